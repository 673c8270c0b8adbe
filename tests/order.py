"""In which order tests run, where several processes share them.

`--dist worksteal` gives each process a run of neighbours, as many as the next one's, and who is done takes
from the end of another's. So in each run the long ones come first, and short ones are left for the end:
nobody works at a test of ten seconds while the others have nothing to do. All that needs Spark is at the
beginning of the first run, where nobody takes it away: another process would start a Spark of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

# Where most tests wait for programs; elsewhere they take milliseconds. The longest first.
LIVE = (
    "pipeline",
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
    rest = [item for item in items if not needs_spark(item)]
    places = [_place(item) for item in rest]
    live = [item for name in LIVE for item, place in zip(rest, places, strict=True) if place == name]
    short = [item for item, place in zip(rest, places, strict=True) if place not in LIVE]
    return deal(spark, live, short, processes)


def needs_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _place(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/").removeprefix("workshop/").split("/")[0]


def deal(spark: Sequence[T], live: Sequence[T], short: Sequence[T], processes: int) -> list[T]:
    """Each process's run after the other's."""
    everything = len(spark) + len(live) + len(short)
    dealt: list[T] = []
    left = list(short)
    for number in range(processes):
        until = len(dealt) + (everything - len(dealt)) // (processes - number)
        dealt += spark if number == 0 else ()
        part = processes - 1 - number  # the longest to the last: the first has Spark's
        dealt += live[part * len(live) // processes : (part + 1) * len(live) // processes]
        room = max(0, until - len(dealt))
        dealt += left[:room]
        del left[:room]
    return dealt + left
