"""What the rows are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hedgerow.lab.experiments import Row
from hedgerow.lab.figures import number


class Bar(NamedTuple):
    value: float
    is_exact: bool = False
    """The row is to be this; otherwise, this or less."""

    def __str__(self) -> str:
        return f"{'=' if self.is_exact else '≤'} {self.value:g}"


KILL, CUT = Bar(500), Bar(2_000)

BARS: Mapping[str, Bar] = {
    "delay/node7/mosquitto": Bar(8),
    "delay/node2/mosquitto": Bar(26),
    "delay/node7/hedgerow": Bar(6.5),
    "delay/node2/hedgerow": Bar(22.5),
    "lost": Bar(0),
    "doubled": Bar(0),
    "mesh": Bar(1, is_exact=True),
    "heal/kill": KILL,
    "heal/kill/slowest": KILL,
    "heal/cut": CUT,
    "heal/cut/slowest": CUT,
    "heal/kill/mosquitto": KILL,
    "heal/kill/slowest/mosquitto": KILL,
    "heal/cut/mosquitto": CUT,
    "heal/cut/slowest/mosquitto": CUT,
}


def is_met(row: Row) -> bool | None:
    """None where there is no bar, or nothing was measured."""
    bar = BARS.get(row.name)
    if bar is None or row.ours is None:
        return None
    return row.ours == bar.value if bar.is_exact else row.ours <= bar.value


def missed(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if is_met(row) is False:
            found = f"{number(row.ours)} {row.unit}".strip()
            yield f"{row.name} misses its bar: it is {found}, and should be {BARS[row.name]}."
