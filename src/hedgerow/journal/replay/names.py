"""Topic filters that ask for the past: `$replay/FROM/FILTER`, and what FROM may be.

all                    everything that the journal has
new                    what is recorded from now on
90s  15m  1h  7d       what came in this time before now
2026-11-19T08:00:00Z   what came since then (UTC); the time may be left out, and so may its seconds
@1763539200            the same, in seconds since 1970
position-12345         from this position of the journal on
last-100               the last so many that match FILTER
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from hedgerow.errors import TopicError
from hedgerow.topics import REPLAY, split_replay, split_shared, validate_filter

MAX_LAST = 1_000_000
MAX_POSITION = 2**63 - 1

POSITION, TIME, LAST, NEW = "position", "time", "last", "new"

_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS = re.compile(r"@(\d{1,11}(?:\.\d{1,6})?)")
_NUMBERED = re.compile(r"(position|last)-(\d{1,19})")
WORDS = "all, new, a duration such as 1h, a time such as 2026-11-19T08:00:00Z, position-N or last-N"


class Start(NamedTuple):
    """Where a replay begins."""

    kind: str
    number: float
    """The position, the time in seconds since 1970, or how many."""


def read_start(text: str, now: float) -> Start:
    """TopicError: it is none of those above."""
    if text == "all":
        return Start(POSITION, 0)
    if text == "new":
        return Start(NEW, 0)
    if found := _DURATION.fullmatch(text):
        return Start(TIME, now - int(found[1]) * _UNIT_S[found[2]])
    if found := _SECONDS.fullmatch(text):
        return Start(TIME, float(found[1]))
    if found := _NUMBERED.fullmatch(text):
        number, most = int(found[2]), MAX_LAST if found[1] == "last" else MAX_POSITION
        if number <= most:
            return Start(found[1], number)
    elif text[:1].isdigit() and "-" in text:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return Start(TIME, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    raise TopicError(f'"{text}" is no beginning of a replay; it may be {WORDS}')


def split_name(topic_filter: str) -> tuple[str, str]:
    """FROM, and the filter behind it. TopicError: it is no such name."""
    begin, rest = split_replay(topic_filter)
    if begin is None:
        raise TopicError(f"{topic_filter!r} is not {REPLAY}FROM/FILTER")
    if split_shared(rest)[0] is not None or rest.startswith(REPLAY):
        raise TopicError(f"{topic_filter!r}: a replay is not shared, and not of another replay")
    return begin, validate_filter(rest)
