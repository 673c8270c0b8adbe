"""Where to begin in what was recorded: `--since`, `--from` and `--last`, of which there is one at most."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from hedgerow.cli.option_values import whole
from hedgerow.errors import TopicError
from hedgerow.journal.replay.names import read_start


def add_beginnings(group: argparse._ArgumentGroup, what: str) -> None:
    """`arguments.since` is where, in the words of `$replay/…`; None: nobody said so."""
    past = group.add_mutually_exclusive_group()
    past.add_argument(
        "--since",
        metavar="WHEN",
        type=_beginning,
        help=f"{what}: in the last 1h, 15m, 7d, since 2026-11-19T08:00:00Z, or all",
    )
    past.add_argument(
        "--from",
        dest="since",
        metavar="N",
        type=_numbered("position"),
        help="the same, from this position of the journal on",
    )
    past.add_argument(
        "--last", dest="since", metavar="N", type=_numbered("last"), help="the same, the last N messages"
    )


def _beginning(text: str) -> str:
    """A time without a zone is that of this machine."""
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is None or at.utcoffset():
            return f"@{at.timestamp():.6f}"
    try:
        read_start(text, 0.0)
    except TopicError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _numbered(word: str) -> Callable[[str], str]:
    read = whole(0)

    def read_number(text: str) -> str:
        return _beginning(f"{word}-{read(text)}")

    return read_number
