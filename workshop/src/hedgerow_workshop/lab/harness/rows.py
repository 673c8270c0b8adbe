"""The rows of an experiment, what they are held against, and how tables are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NONE = "–"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    ours: float | None
    """None: it could not be measured here; the result's notes say why."""
    published: float | None = None


def number(value: float | None) -> str:
    """Three significant digits, and never fewer than the digits before the point."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def row_cells(rows: Iterable[Row]) -> list[list[str]]:
    cells = [[row.name, row.unit, number(row.ours), number(row.published)] for row in rows]
    return [["", "unit", "ours", "published"], *cells]


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if index == 0 else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


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

    def lines(self, rows: Sequence[Row]) -> list[list[str]]:
        """The rows, beside the published ones where there are any, and whether the bars were met."""
        head, *lines = row_cells(rows)
        table = [[*head, "bar", ""]]
        for row, cells in zip(rows, lines, strict=True):
            bar, met = self.get(row.name), self.is_met(row)
            judged = "" if met is None else "met" if met else "MISSED"
            table.append([*cells, "" if bar is None else str(bar), judged])
        if all(row.published is None for row in rows):
            return [[*cells[:3], *cells[4:]] for cells in table]
        return table
