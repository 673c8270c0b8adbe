"""What the rows are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hedgerow.lab.experiments import Row
from hedgerow.lab.figures import number


class Bar(NamedTuple):
    most: float
    least: float = 0.0

    def __str__(self) -> str:
        return f"{self.least:g} … {self.most:g}" if self.least else f"≤ {self.most:g}"


BARS: Mapping[str, Bar] = {
    "ratio/biased90/lte": Bar(0.25),
    "ratio/biased90/wimax": Bar(0.25),
    "ratio/random/lte": Bar(1.05, least=0.95),
    "ratio/burst/best": Bar(0.6),
    "ratio/burst/20s": Bar(1.1, least=0.9),
    "lost": Bar(0),
    "doubled": Bar(0),
    "farm/lost": Bar(0),
    "farm/doubled": Bar(0),
}


def is_met(row: Row) -> bool | None:
    """None where there is no bar, or nothing was measured."""
    bar = BARS.get(row.name)
    if bar is None or row.ours is None:
        return None
    return bar.least <= row.ours <= bar.most


def missed(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if is_met(row) is False:
            found = f"{number(row.ours)} {row.unit}".strip()
            yield f"{row.name} misses its bar: it is {found}, and should be {BARS[row.name]}."
