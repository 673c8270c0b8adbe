"""`hedgerow user list|add|passwd|disable|enable|remove FILE USER`: the users of a node."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hedgerow.cli.parsing import UsageError
from hedgerow.cli.passwd import add_password_options, read_password
from hedgerow.node.passwords import delete_user, list_users, set_enabled, set_password

EXAMPLES = """\
examples:
  hedgerow user add passwords anna
  hedgerow user disable passwords anna
  hedgerow user list passwords

A running node reads the file again on SIGHUP, and disconnects whoever may no longer log in.
"""

DONE = {
    "add": "added",
    "passwd": "changed the password of",
    "disable": "disabled",
    "enable": "enabled",
    "remove": "removed",
}

CHANGES: dict[str, Callable[[Path, str], object]] = {
    "disable": partial(set_enabled, is_enabled=False),
    "enable": partial(set_enabled, is_enabled=True),
    "remove": delete_user,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("list", *DONE), help="what to do")
    parser.add_argument("file", metavar="FILE", type=Path, help="the password file; add makes it")
    parser.add_argument("user", metavar="USER", nargs="?")
    parser.add_argument("password", metavar="PASSWORD", nargs="?", help="with -b alone")
    add_password_options(parser)


def run(arguments: argparse.Namespace) -> int:
    file: Path = arguments.file
    if arguments.action == "list":
        for each in list_users(file):
            print(each.name if each.is_enabled else f"{each.name}  disabled")
        return 0
    user = arguments.user
    if user is None:
        raise UsageError(f"{arguments.action} takes the name of the user")
    if arguments.action in ("add", "passwd"):
        is_new = arguments.action == "add"
        set_password(
            file,
            user,
            read_password(arguments),
            create=is_new and not file.exists(),
            iterations=arguments.iterations,
            must_be=not is_new,
        )
    else:
        CHANGES[arguments.action](file, user)
    print(f"{DONE[arguments.action]} {user} in {file}")
    return 0
