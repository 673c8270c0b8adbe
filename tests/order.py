"""In which order tests run, where several processes share them.

`--dist worksteal` gives each process a run of neighbours, as many as the next one's, and who is done takes
from the end of another's. So in each run the long ones come first, and short ones are left for the end:
nobody works at a test of ten seconds while the others have nothing to do. What needs Spark is at the
beginning of the first runs, where nobody takes it away: another process would start a Spark of its own. Where
there are more than two processes two of them have a Spark, since with one its tests would last longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

# Where most tests wait for programs; elsewhere they take milliseconds. The longest first.
LIVE = (
    "faults",
    "lab",
    "demo",
    "docs",
    "bench",
    "web",
    "hosts_multicast",
    "interop",
    "examples",
    "cli",
    "commands",
    "deploy",
    "wireshark",
)

T = TypeVar("T")


def in_order(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests for so many processes."""
    spark = [item for item in items if needs_spark(item)]
    modules = list(dict.fromkeys(_module(item) for item in spark))  # whose fixtures are made once
    hands = 2 if processes > 2 else 1
    sparks = [[item for item in spark if _module(item) in modules[n::hands]] for n in range(hands)]
    rest = [item for item in items if not needs_spark(item)]
    places = [_place(item) for item in rest]
    live = [item for name in LIVE for item, place in zip(rest, places, strict=True) if place == name]
    short = [item for item, place in zip(rest, places, strict=True) if place not in LIVE]
    return deal(sparks, live, short, processes)


def needs_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _place(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/").removeprefix("workshop/").split("/")[0]


def deal(sparks: Sequence[Sequence[T]], live: Sequence[T], short: Sequence[T], processes: int) -> list[T]:
    """Each process's run after the other's. The first ones have a hand of `sparks` each."""
    everything = sum(map(len, sparks)) + len(live) + len(short)
    dealt: list[T] = []
    left = list(short)
    for number in range(processes):
        until = len(dealt) + (everything - len(dealt)) // (processes - number)
        dealt += sparks[number] if number < len(sparks) else ()
        part = processes - 1 - number  # the longest to the last: the first have Spark's
        dealt += live[part * len(live) // processes : (part + 1) * len(live) // processes]
        room = max(0, until - len(dealt))
        dealt += left[:room]
        del left[:room]
    return dealt + left
