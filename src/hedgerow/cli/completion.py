"""`hedgerow completion bash|zsh|fish`: print what makes a shell complete commands, options and values.

The script is made of the parsers themselves. It completes commands, options, words and values that are one of
a few, and the names of files and directories where the help says FILE or DIR. For a value of which nothing is
known it offers nothing. A command's `WORDS_AFTER` says, for each of its words, what may follow: FILE, DIR, or
one of a few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from hedgerow.cli import all_commands, make_parser, module_of
from hedgerow.cli.completion_scripts import (
    ANYTHING,
    DIRECTORY,
    FILE,
    NOTHING,
    SHELLS,
    CompletedCommand,
    CompletedOption,
    CompletedValue,
)

EXAMPLES = """\
to try it in this shell:
  source <(hedgerow completion bash)
to keep it:
  hedgerow completion bash > ~/.local/share/bash-completion/completions/hedgerow
  hedgerow completion zsh > ~/.zfunc/_hedgerow      (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  hedgerow completion fish > ~/.config/fish/completions/hedgerow.fish
"""

KINDS = {"FILE": FILE, "PATH": FILE, "DIR": DIRECTORY}
"""By what the help calls a value."""

# Values and words that a parser takes as any text, since it is the command that reads them: the module and
# its table of those that there are.
VALUES_OF: dict[str, tuple[str, str]] = {
    "--log-level": ("hedgerow.node.logs", "LEVELS"),
    "--multicast-naming": ("hedgerow.multicast.io.options", "NAMINGS"),
    "--multicast-scope": ("hedgerow.multicast.limits", "SCOPES"),
    "--topology": ("hedgerow.agent.shapes", "TOPOLOGIES"),
}
WORDS_OF: dict[str, tuple[str, str]] = {"bridge": ("hedgerow.cli.bridge", "COMMANDS")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of: {', '.join(SHELLS)}")


def run(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell](commands()), end="")
    return 0


# What there is to complete


def commands() -> list[CompletedCommand]:
    listed = all_commands()
    found = [read_command(name) for name in listed]
    names = CompletedValue(ANYTHING, tuple(listed))
    return [*found, CompletedCommand("help", "say more about a command", (), names, {})]


def read_command(
    name: str, parser_of: Callable[[str], argparse.ArgumentParser] = make_parser
) -> CompletedCommand:
    """A command as its parser knows it."""
    options = []
    words = CompletedValue(ANYTHING, _table(*WORDS_OF[name])) if name in WORDS_OF else None
    for action in parser_of(name)._actions:
        if action.option_strings:
            if action.help != argparse.SUPPRESS:
                options.append(_option(action))
        elif words is None:
            words = CompletedValue(NOTHING) if action.help == argparse.SUPPRESS else _value(action)
    following: dict[str, str | tuple[str, ...]] = getattr(module_of(name), "WORDS_AFTER", {})
    after = {word: _words_after(each) for word, each in following.items()}
    return CompletedCommand(
        name, all_commands()[name].help, tuple(options), words or CompletedValue(NOTHING), after
    )


def _option(action: argparse.Action) -> CompletedOption:
    value = _value(action)
    for name in action.option_strings:
        if name in VALUES_OF:
            value = CompletedValue(ANYTHING, _table(*VALUES_OF[name]))
    return CompletedOption(tuple(action.option_strings), value, _plain_help(action))


def _value(action: argparse.Action) -> CompletedValue:
    if action.nargs == 0:
        return CompletedValue(NOTHING)
    if action.choices is not None:
        return CompletedValue(ANYTHING, tuple(map(str, action.choices)))
    called = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return CompletedValue(KINDS.get(called, ANYTHING))


def _words_after(what: str | tuple[str, ...]) -> CompletedValue:
    return CompletedValue(KINDS[what]) if isinstance(what, str) else CompletedValue(ANYTHING, what)


def _table(module: str, name: str) -> tuple[str, ...]:
    return tuple(getattr(import_module(module), name))


def _plain_help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
