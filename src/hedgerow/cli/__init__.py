"""The `hedgerow` program: a table of commands, each a module with `add_arguments` and `run`.

Only the module of the command that runs is imported, so that none pays for another. A command
returns its exit status; the errors that people can do something about leave as one line that names
the command, with status 2 when what was asked for is wrong and 1 when it could not be done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from hedgerow.errors import ConfigError, HedgerowError, TopicError, reason_of

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("hedgerow.cli.demo", "a node, a few sensors and a subscriber, in one command"),
    "up": ("hedgerow.cli.up", "run a node"),
    "pub": ("hedgerow.cli.pub", "publish messages"),
    "sub": ("hedgerow.cli.sub", "subscribe and print what arrives"),
    "record": ("hedgerow.cli.record", "keep what a broker publishes in a journal"),
    "federate": ("hedgerow.cli.federate", "federate a broker that is not ours, from beside it"),
    "agent": ("hedgerow.cli.agent", "keep brokers connected by bridges"),
    "bridge": ("hedgerow.cli.bridge", "create, delete and list the bridges of a running node"),
    "pipeline": ("hedgerow.cli.pipeline", "read journals with Spark, and feed back what it learns"),
    "passwd": ("hedgerow.cli.passwd", "set, change or delete a user's password"),
    "bench": ("hedgerow.cli.bench", "measure this broker beside others"),
    "lab": ("hedgerow.cli.lab", "experiments, and the links that they run on"),
}

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = f"hedgerow {words[0]}" if words and words[0] in COMMANDS else "hedgerow"
    try:
        status = _dispatch(words)
        sys.stdout.flush()  # here, where a closed pipe is still quiet
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, and Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ConfigError, TopicError) as error:
        return _complain(name, str(error), EXIT_USAGE)
    except HedgerowError as error:
        return _complain(name, str(error), EXIT_FAILED)
    except OSError as error:
        reason = reason_of(error)
        return _complain(name, f"{error.filename}: {reason}" if error.filename else reason, EXIT_FAILED)


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["-h" | "--help"] | ["help"]:
            print(_usage(), file=sys.stdout if words else sys.stderr)
            return 0 if words else EXIT_USAGE
        case ["--version" | "-V"]:
            from hedgerow.net.version import installed_version

            print(f"hedgerow {installed_version()}")
            return 0
        case ["help", command]:
            return _run(command, ["--help"])
        case [command, *rest]:
            return _run(command, rest)
    raise AssertionError(words)


def _run(command: str, words: list[str]) -> int:
    if command not in COMMANDS:
        raise ConfigError(_unknown(command))
    import argparse

    path, help_text = COMMANDS[command]
    module = import_module(path)
    parser = argparse.ArgumentParser(prog=f"hedgerow {command}", description=help_text)
    module.add_arguments(parser)
    try:
        arguments = parser.parse_intermixed_args(words)
    except SystemExit as leaving:  # argparse has said why
        return int(leaving.code or 0)
    return int(module.run(arguments))


def _unknown(command: str) -> str:
    import difflib

    what = "option" if command.startswith("-") else "command"
    nearest = difflib.get_close_matches(command, COMMANDS, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(COMMANDS)}"
    return f'no {what} "{command}"; {hint}'


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  hedgerow {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hedgerow COMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "hedgerow COMMAND --help says more. hedgerow --version prints the version.",
        ]
    )


def _complain(name: str, reason: str, status: int) -> int:
    print(f"{name}: {reason}", file=sys.stderr)
    return status
