"""What of the journals a query can want, by its filters: never less than what it wants.

A journal says of each frame between which times its messages were received, and which topics it has. So
filters of these columns, of positions and of journals save reading; Spark looks at every row that is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from hedgerow.errors import TopicError
from hedgerow.pipeline.options import MAX_POSITION
from hedgerow.topics import validate_filter


@dataclass(frozen=True)
class Wanted:
    journals: frozenset[str] | None = None
    first: int = 0
    """Of positions."""
    end: int = MAX_POSITION
    topics: tuple[str, ...] = ()
    """None: those of the options."""
    since: float = -math.inf
    until: float = math.inf
    """Both belong to it."""


EVERYTHING = Wanted()


def wanted_of(filters: Iterable[Filter], wanted: Wanted, topics: tuple[str, ...]) -> Wanted:
    """`topics`: what the options ask for. One of several filters of topics is enough."""
    for each in filters:
        match each:
            case EqualTo((column,), value):
                values = (value,)
                wanted = _at_least(_at_most(wanted, column, value), column, value)
            case In((column,), values):
                pass
            case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value):
                wanted = _at_least(wanted, column, value)
                continue
            case LessThan((column,), value) | LessThanOrEqual((column,), value):
                wanted = _at_most(wanted, column, value)
                continue
            case StringStartsWith(("topic",), prefix) if not topics and not wanted.topics:
                # Of what begins with a/b there may be a/bc: only whole levels make a filter.
                level = prefix.rpartition("/")[0]
                wanted = replace(wanted, topics=_valid([f"{level}/#"] if level else []))
                continue
            case _:
                continue
        if column == "journal":
            known = frozenset(values) if wanted.journals is None else wanted.journals & frozenset(values)
            wanted = replace(wanted, journals=known)
        elif column == "topic" and not topics and not wanted.topics:
            wanted = replace(wanted, topics=_valid(values))
    return wanted


def _at_least(wanted: Wanted, column: str, value: Any) -> Wanted:
    return _bounded(wanted, column, value, ("first", "since"), max)


def _at_most(wanted: Wanted, column: str, value: Any) -> Wanted:
    above = value + 1 if column == "position" else value
    return _bounded(wanted, column, above, ("end", "until"), min)


def _bounded(
    wanted: Wanted, column: str, value: Any, names: tuple[str, str], stricter: Callable[[Any, Any], Any]
) -> Wanted:
    match column, value:
        case "position", int():
            name = names[0]
        case "received_at", datetime():
            name, value = names[1], value.timestamp()
        case _:
            return wanted
    return replace(wanted, **{name: stricter(getattr(wanted, name), value)})


def _valid(topics: Iterable[str]) -> tuple[str, ...]:
    """As filters; none, where one of them is none."""
    found = tuple(topics)
    try:
        return tuple(validate_filter(topic) for topic in found)
    except TopicError:
        return ()
