"""`hedgerow token create|list|remove FILE`: tokens by which programs use a node's API."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from hedgerow.cli.option_values import duration
from hedgerow.cli.parsing import UsageError
from hedgerow.node.api import READ, RIGHTS
from hedgerow.web.api.tokens import MAX_LIFE_S, Tokens, create_token, remove_token

EXAMPLES = """\
examples:
  hedgerow token create tokens grafana                      may read
  hedgerow token create tokens door --right publish --user door --lasts 90d
  hedgerow token list tokens
  hedgerow token remove tokens door

Name the file to the node: hedgerow up --api-tokens tokens. After a change, SIGHUP puts it in force.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    rights = "\n".join(f"  {right:9}{what}" for right, what in RIGHTS.items())
    parser.epilog = f"rights:\n{rights}\n\n{EXAMPLES}"
    parser.add_argument("action", choices=("create", "list", "remove"), help="what to do")
    parser.add_argument("file", metavar="FILE", type=Path, help="the file of tokens; create makes it")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the token's name, for the log")
    parser.add_argument(
        "--right",
        metavar="RIGHT",
        action="append",
        choices=list(RIGHTS),
        help=f"what it may do; may be repeated (default: {READ})",
    )
    parser.add_argument("--user", metavar="USER", help="as whom the ACL sees what it publishes and reads")
    parser.add_argument(
        "--lasts",
        metavar="DURATION",
        type=duration(1, MAX_LIFE_S),
        help="how long it holds, as 90d (default: until removed)",
    )


def run(arguments: argparse.Namespace) -> int:
    file: Path = arguments.file
    if arguments.action == "list":
        for token in Tokens.load(file).by_name():
            ends = "" if token.ends_at is None else f"  until {datetime.fromtimestamp(token.ends_at, UTC):%F}"
            user = "" if token.user is None else f"  as {token.user}"
            print(f"{token.name}  {', '.join(sorted(token.rights))}{user}{ends}")
        return 0
    if arguments.name is None:
        raise UsageError(f"{arguments.action} takes the name of the token")
    if arguments.action == "remove":
        remove_token(file, arguments.name)
        print(f"removed {arguments.name} from {file}")
        return 0
    print(create_token(file, arguments.name, arguments.right or [READ], arguments.user, arguments.lasts))
    return 0
