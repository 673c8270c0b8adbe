"""What the rows of an experiment are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hedgerow_workshop.lab.experiments import Row
from hedgerow_workshop.lab.figures import number


class Bar(NamedTuple):
    most: float
    least: float = 0.0

    def __str__(self) -> str:
        if not self.least:
            return f"≤ {self.most:g}"
        return f"= {self.most:g}" if self.least == self.most else f"{self.least:g} … {self.most:g}"


class Bars(dict[str, Bar]):
    """By the row's name."""

    def is_met(self, row: Row) -> bool | None:
        """None where there is no bar, or nothing was measured."""
        bar = self.get(row.name)
        if bar is None or row.ours is None:
            return None
        return bar.least <= row.ours <= bar.most

    def missed(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            if self.is_met(row) is False:
                found = f"{number(row.ours)} {row.unit}".strip()
                yield f"{row.name} misses its bar: it is {found}, and should be {self[row.name]}."
