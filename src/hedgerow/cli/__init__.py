"""The `hedgerow` program: a table of commands, each a module with `add_arguments` and `run`.

Only the module of the command that runs is imported, so that none pays for another. Other packages add
commands by entry points of the group `hedgerow.commands`, each the name of a module like ours; the package
that holds the module has a table like ours, `COMMANDS`. A name with a dot is a command below another,
`pipeline.sweep` for `hedgerow pipeline sweep`, and in no table. A command
returns its exit status; the errors that people can do something about leave as one line that names
the command, with the status that `EXIT_CODES` gives them. A mistake on the command line is followed
by an example of how it is done.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from hedgerow.errors import ConfigError, ConnectError, HedgerowError, TopicError, reason_of

if TYPE_CHECKING:
    from hedgerow.cli.parsing import Parser


class Command(NamedTuple):
    group: str
    """Under which the list of commands has it."""
    help: str
    example: str
    """What a mistake is followed by, and its help, where that has no examples of its own."""


COMMANDS: dict[str, Command] = {
    "doctor": Command(
        "begin",
        "say what on this machine would be in the way, and what to do about it",
        "hedgerow doctor --config node.toml",
    ),
    "up": Command("nodes", "run a node", "hedgerow up --id barn --neighbour mqtt://10.0.0.2"),
    "convert": Command(
        "nodes",
        "write the configuration of a node from a mosquitto.conf",
        "hedgerow convert /etc/mosquitto/mosquitto.conf --to /etc/hedgerow",
    ),
    "federate": Command(
        "nodes",
        "federate a broker that is not ours, from beside it",
        "hedgerow federate --broker mqtt://localhost:1883 --id barn --neighbour mqtt://10.0.0.2",
    ),
    "agent": Command(
        "nodes",
        "keep brokers connected by bridges",
        "hedgerow agent barn=10.0.0.1:1883 house=10.0.0.2:1883 --topology star",
    ),
    "bridge": Command(
        "nodes",
        "create, delete and list the bridges of a running node",
        "hedgerow bridge new north north.example -t '# both 1'",
    ),
    "passwd": Command("nodes", "set, change or delete a user's password", "hedgerow passwd passwords anna"),
    "user": Command(
        "nodes", "list, add, disable, enable and remove users", "hedgerow user add passwords anna"
    ),
    "token": Command(
        "nodes", "make, list and remove tokens for a node's API", "hedgerow token create tokens grafana"
    ),
    "pub": Command(
        "messages", "publish messages", "hedgerow pub mqtt://localhost farm/barn/temperature 21.5"
    ),
    "sub": Command(
        "messages", "subscribe and print what arrives", "hedgerow sub mqtt://localhost 'farm/#' -v"
    ),
    "rr": Command(
        "messages",
        "publish a request, and print the response",
        "hedgerow rr -t farm/gate/open -e farm/gate/answer -m now",
    ),
    "record": Command(
        "messages",
        "keep what a broker publishes in a journal",
        "hedgerow record --broker mqtt://localhost --filter 'farm/#' --journal journal",
    ),
    "journal": Command(
        "messages",
        "show, export and verify what was recorded",
        "hedgerow journal cat data/journal -t 'farm/#' --last 20 -v",
    ),
    "top": Command(
        "watch",
        "watch a fabric in a terminal: nodes, links, hot topics, events",
        "hedgerow top mqtt://localhost",
    ),
    "dash": Command(
        "watch",
        "watch a fabric in a browser, from a machine that runs no node",
        "hedgerow dash mqtt://localhost",
    ),
    "pipeline": Command(
        "data",
        "read journals with Spark, and feed back what it learns",
        "hedgerow pipeline run --journal journal --tables tables --once",
    ),
    "completion": Command(
        "shell", "print what makes bash, zsh or fish complete these commands", "hedgerow completion bash"
    ),
}
"""By name; the module is `hedgerow.cli.NAME`."""
GROUPS = ("begin", "nodes", "messages", "watch", "data", "measure", "shell")
"""In the order of the list of commands."""

SHOWN_OF_WORD = 100
LONG_WORD = re.compile(r"\S{1000,}")

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_CONNECTION = 3
EXIT_TIMED_OUT = 27  # as mosquitto_sub -W
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

EXIT_CODES: dict[int, str] = {
    EXIT_DONE: "done",
    EXIT_FAILED: "it could not be done",
    EXIT_USAGE: "what was asked for is wrong: an option, a word, a value, a configuration file",
    EXIT_NO_CONNECTION: "the broker cannot be reached, or does not let us in: later it may",
    EXIT_TIMED_OUT: "the time that was given for it is over (`sub -W`)",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_BROKEN_PIPE: "whoever read the output has gone",
}
"""For scripts; docs/cli.md has the same table."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    name = f"hedgerow {words[0]}" if words and find_command(words[0]) else "hedgerow"
    try:
        with _heeding_interrupts():
            status = _dispatch(words)
        sys.stdout.flush()  # here, where a closed pipe is still quiet
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)
        return EXIT_BROKEN_PIPE
    except (ConfigError, TopicError) as error:
        from hedgerow.cli.mistakes import with_example

        return _complain(name, with_example(error, words), EXIT_USAGE)
    except ConnectError as error:
        from hedgerow.cli.mistakes import with_hint

        return _complain(name, with_hint(error), EXIT_NO_CONNECTION)
    except HedgerowError as error:
        return _complain(name, str(error), EXIT_FAILED)
    except OSError as error:
        reason = reason_of(error)
        return _complain(name, f"{error.filename}: {reason}" if error.filename else reason, EXIT_FAILED)


@cache
def added_commands() -> dict[str, str]:
    """The names of the modules of commands that other packages add, by the command's name."""
    # Reading the packages' metadata takes longer than most commands take to start.
    from importlib.metadata import entry_points

    return {each.name: each.module for each in entry_points(group="hedgerow.commands")}


def all_commands() -> dict[str, Command]:
    """Ours and those that other packages add, in the order of their groups."""
    added = {
        name: import_module(module.rpartition(".")[0]).COMMANDS[name]
        for name, module in added_commands().items()
        if "." not in name
    }
    return dict(sorted((added | COMMANDS).items(), key=lambda item: _place(item[1].group)))


def _place(group: str) -> tuple[int, str]:
    """A group that only another package has comes last."""
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS), group)


def find_command(name: str) -> Command | None:
    return COMMANDS.get(name) or all_commands().get(name)


def module_of(command: str) -> Any:
    return import_module(f"hedgerow.cli.{command}" if command in COMMANDS else added_commands()[command])


def make_parser(command: str) -> Parser:
    """The parser of a command, with all that its module adds."""
    from hedgerow.cli.parsing import Parser

    found = find_command(command)
    assert found is not None
    _, help_text, example = found
    parser = Parser(prog=f"hedgerow {command}", description=help_text)
    module_of(command).add_arguments(parser)
    more = parser.epilog or ""
    if "examples:" not in more and example not in more:
        from argparse import RawDescriptionHelpFormatter

        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = f"{more}\n\nexample:\n  {example}".strip()
    return parser


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["-h" | "--help"] | ["help"]:
            print(_usage(), file=sys.stdout if words else sys.stderr)
            return 0 if words else EXIT_USAGE
        case ["--version" | "-V"]:
            from hedgerow.node.version import VERSION

            print(f"hedgerow {VERSION}")
            return 0
        case ["help" | "--help" | "-h", command]:
            return _run(command, ["--help"])
        case ["help", _, word, *_]:
            from hedgerow.cli.parsing import UsageError

            raise UsageError(f'what is "{word}"? help takes one command')
        case [command, *rest]:
            return _run(command, rest)
    raise AssertionError(words)


def _run(command: str, words: list[str]) -> int:
    if find_command(command) is None:
        from hedgerow.cli.mistakes import unknown_command
        from hedgerow.cli.parsing import UsageError

        raise UsageError(unknown_command(command))
    try:
        # The parser, which knows every option and its help, is gone before the command runs.
        arguments = make_parser(command).parse(words)
    except SystemExit as leaving:  # help was asked for, and printed
        return int(leaving.code or 0)
    return int(module_of(command).run(arguments))


def _usage() -> str:
    found = all_commands()
    width = max(map(len, found))
    lines = ["usage: hedgerow COMMAND [OPTIONS]"]
    for title, commands in groupby(found.items(), lambda item: item[1].group):
        lines += ["", f"{title}:", *(f"  hedgerow {name:{width}}  {each.help}" for name, each in commands)]
    end = "hedgerow help COMMAND says more, with examples. hedgerow --version prints the version."
    return "\n".join([*lines, "", end])


def _prepare_streams() -> None:
    """Standard streams that can be used, whoever started us.

    Where one is closed, the next file that is opened would take its place: uvloop aborts for that, and what
    is printed could end up in a store. What cannot be said in the terminal's letters is not worth an error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """SIGINT ends a command even if it was inherited as ignored, as in the background of a shell script.

    Python has no handler then, and neither has asyncio. In a thread it is for the program that called us.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _complain(name: str, reason: str, status: int) -> int:
    # A word that was mistyped may hold anything, an escape sequence or a whole file.
    text = LONG_WORD.sub(lambda found: f"{found[0][:SHOWN_OF_WORD]}…", reason)
    text = "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)
    try:
        print(f"{name}: {text}", file=sys.stderr, flush=True)
    except OSError:  # nobody can be told; the status still says it
        silence(sys.stderr)
    return status


def silence(stream: TextIO) -> None:
    """Whoever read it has gone, and what it has kept would fail again when Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
