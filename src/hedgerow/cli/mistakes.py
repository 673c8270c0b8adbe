"""What is said about a mistake on the command line: what was wrong, and the nearest that is right.

Imported when there is one, so that nobody else waits for difflib.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence

from hedgerow.cli import all_commands
from hedgerow.cli.parsing import UsageError

# How argparse says it → how we do; {0} is the argument, {1} what the parentheses found.
_WORDINGS: tuple[tuple[str, str], ...] = (
    (r"expected (?:one|at least one|[0-9]+) arguments?", "{0} needs {value}"),
    (r"ignored explicit argument '(.*)'", '{0} takes no value, and was given "{1}"'),
    (r"not allowed with argument (.*)", "{0} and {1} do not go together"),
    (r"the following arguments are required: (.*)", "missing: {1}"),
    (r"one of the arguments (.*) is required", "missing: one of {1}"),
)

# What other programs call it, which no spelling is near to. Of options, the first that the command has.
_OTHER_COMMANDS = {
    **dict.fromkeys(("broker", "run", "serve", "server", "start"), "up"),
    **dict.fromkeys(("dashboard", "web"), "dash"),
    **dict.fromkeys(("monitor", "status", "watch"), "top"),
    "publish": "pub",
    "subscribe": "sub",
    "version": "--version",
}
_OTHER_OPTIONS = dict.fromkeys(("--host", "--listen", "--port", "-p"), ("--mqtt", "--broker", "--http"))

# Why there is no connection → what to look at. The reasons are `client.link.explain`'s.
_CONNECTION_HINTS: tuple[tuple[str, str], ...] = (
    (r"connection refused$", "does a node run there, at this port?"),
    (
        r"certificate is not trusted: .*(?:issuer|self.signed|first certificate)",
        "name the file of its authority, --cafile FILE",
    ),
)

_NO_OPTION = re.compile(r"-$|-[0-9.]")


def with_example(error: Exception, words: Sequence[str]) -> str:
    """What is wrong, and if that is the command line itself, how it is done right."""
    # What begins with an option was read by others than the parser, such as those who read files too.
    is_about_words = isinstance(error, UsageError) or str(error).startswith("-")
    example = _example(words) if is_about_words else None
    return str(error) if example is None else f"{error}\nfor example: {example}"


def with_hint(error: Exception) -> str:
    """Why there is no connection, and what to look at."""
    found = (hint for reason, hint in _CONNECTION_HINTS if re.search(reason, str(error)))
    hint = next(found, None)
    return str(error) if hint is None else f"{error}; {hint}"


def _example(words: Sequence[str]) -> str | None:
    """For the command that was meant."""
    command = words[1] if words[:1] == ["help"] and len(words) > 1 else words[0] if words else ""
    known = all_commands()
    if command in known:
        return known[command].example
    meant = _OTHER_COMMANDS.get(command) or nearest(command, known) or next(iter(known))
    return known[meant].example if meant in known else f"hedgerow {meant}"


def unknown_command(word: str) -> str:
    known = all_commands()
    if word.startswith("-"):
        return f"there is no option {word}; options go behind a command: {', '.join(known)}"
    found = _OTHER_COMMANDS.get(word) or nearest(word, known)
    hint = f"did you mean {found}?" if found else f"there are {', '.join(known)}"
    return f"there is no command {word}; {hint}"


def none_of(word: str, choices: Iterable[str]) -> str:
    """That a word is not among those that there are."""
    known = list(choices)
    return f'"{word}" is none of {", ".join(known)}{did_you_mean(word, known)}'


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """To end a complaint with, which says nothing when nothing is near, or the word itself is known."""
    found = nearest(word, known)
    return f"; did you mean {found}?" if found not in (None, word) else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    names = list(known)
    by_letters = {name.lower(): name for name in reversed(names)}
    if word.lower() in by_letters:
        return by_letters[word.lower()]
    longer = [name for name in names if word and name.lower().startswith(word.lower())]
    if len(longer) == 1:
        return longer[0]
    close = difflib.get_close_matches(word.lower(), by_letters, 1)
    return by_letters[close[0]] if close else None


def option_strings(parser: argparse.ArgumentParser) -> list[str]:
    return [each for action in parser._actions for each in action.option_strings]


def wrong_option(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """The first option that there is not, or that could be several."""
    known = option_strings(parser)
    for word in words:
        if word == "--":
            return None
        name = word.partition("=")[0]
        # Argparse takes what has a space in it for a value, and a negative number too.
        if not name.startswith("-") or " " in word or name in known or _NO_OPTION.match(word):
            continue
        if not name.startswith("--"):
            if name[:2] not in known:  # else the rest is its value, or more of its kind
                return unknown_option(parser, name)
            continue
        longer = [option for option in known if option.startswith(name)]
        if not longer:
            return unknown_option(parser, name)
        if len(longer) > 1:
            return f"{name} could be {_list(longer)}: write out which"
    return None


def unknown_option(parser: argparse.ArgumentParser, word: str) -> str:
    name = word.partition("=")[0]
    known = option_strings(parser)
    other = next((option for option in _OTHER_OPTIONS.get(name, ()) if option in known), None)
    found = other or nearest(name, [option for option in known if option.startswith("--")])
    hint = f"did you mean {found}?" if found else f"{parser.prog} --help lists those that there are"
    return f"there is no option {name}; {hint}"


def word_too_many(parser: argparse.ArgumentParser, word: str) -> str:
    wanted = [_name(action) for action in parser._actions if not action.option_strings]
    return f'what is "{word}"? There are {" ".join(wanted) + " and options" if wanted else "options"} alone'


def explain(parser: argparse.ArgumentParser, error: argparse.ArgumentError) -> str:
    """What argparse complains about, in our words."""
    name = error.argument_name or ""
    action = next((each for each in parser._actions if _name(each) == name), None)
    for pattern, wording in _WORDINGS:
        if found := re.fullmatch(pattern, error.message):
            return wording.format(name, *found.groups(), value=_value(action))
    return f"{name}: {error.message}" if name else error.message


def _value(action: argparse.Action | None) -> str:
    """What an option wants: its choices, or what its help calls the value."""
    if action is None:
        return "a value"
    if action.choices is not None:
        return f"one of {', '.join(map(str, action.choices))}"
    if action.metavar is None:
        return "a value"
    return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)


def _name(action: argparse.Action) -> str:
    """As argparse names it in an error."""
    if action.option_strings:
        return "/".join(action.option_strings)
    return str(action.metavar or action.dest)


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
