"""`hedgerow passwd FILE USER`: set, change or delete a user's password."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from pathlib import Path

from hedgerow.cli.option_values import whole
from hedgerow.errors import ConfigError
from hedgerow.node.passwords import ITERATIONS, MAX_ITERATIONS, delete_user, set_password


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the password file; Mosquitto reads it too")
    parser.add_argument("user", metavar="USER")
    parser.add_argument("password", metavar="PASSWORD", nargs="?", help="with -b alone")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-c", "--create", action="store_true", help="create FILE, which must not exist yet")
    what.add_argument("-D", "--delete", action="store_true", help="delete USER")
    add_password_options(parser)


def add_password_options(parser: argparse.ArgumentParser) -> None:
    password = parser.add_mutually_exclusive_group()
    password.add_argument(
        "-b",
        "--batch",
        action="store_true",
        help="take PASSWORD from the command line, where other users of this machine can see it",
    )
    password.add_argument(
        "--stdin", action="store_true", help="take the password from the first line of standard input"
    )
    parser.add_argument(
        "-I",
        "--iterations",
        metavar="N",
        type=whole(1, MAX_ITERATIONS),
        default=ITERATIONS,
        help="rounds of hashing, the price of each guess (default: %(default)s)",
    )


def ask_at_terminal(prompt: str) -> str:
    """Without echo."""
    if not sys.stdin.isatty():
        raise ConfigError("no terminal to ask for the password; --stdin reads it from standard input")
    return getpass.getpass(prompt)


def run(arguments: argparse.Namespace, ask: Callable[[str], str] = ask_at_terminal) -> int:
    file: Path = arguments.file
    if arguments.delete:
        if arguments.batch or arguments.stdin or arguments.password is not None:
            raise ConfigError("-D deletes the user; it takes no password")
        delete_user(file, arguments.user)
        print(f"deleted {arguments.user} from {file}")
        return 0
    is_new = set_password(
        file,
        arguments.user,
        read_password(arguments, ask),
        create=arguments.create,
        iterations=arguments.iterations,
    )
    print(f"{'added' if is_new else 'changed the password of'} {arguments.user} in {file}")
    return 0


def read_password(arguments: argparse.Namespace, ask: Callable[[str], str] = ask_at_terminal) -> bytes:
    if arguments.batch:
        if arguments.password is None:
            raise ConfigError("-b without a password: hedgerow passwd -b FILE USER PASSWORD")
        return str(arguments.password).encode(errors="surrogateescape")
    if arguments.password is not None:
        raise ConfigError("a password on the command line is taken with -b only")
    if arguments.stdin:
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        password = ask(f"Password of {arguments.user}: ")
        if ask("Again: ") != password:
            raise ConfigError("the two passwords differ; nothing was changed")
    except EOFError:
        raise ConfigError("no password was given; nothing was changed") from None
    return password.encode(errors="surrogateescape")
