"""The report: rows and bars, and how the parts went."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import html_paragraph, html_table, write_page
from hedgerow_workshop.lab.harness.rows import Bar, Bars, Row

TITLE = "Backlogs on the disk"
INTRODUCTION = (
    "line: three nodes, publishers at one end, and at the other a subscriber that reads slowly until "
    "publishing has ended. killed: the same, and the middle node is killed meanwhile. full: a small file "
    "system that fills with what waits for a subscriber that is away. shared: durable sessions with the same "
    "wildcard, all of them away. start: a node that is killed and started again while messages wait. missing "
    "and lost: acknowledged publications that a subscriber never got. doubled: what came again without DUP."
)
YES = Bar(1, least=1)

BARS = Bars(
    {
        **{f"{line}/{what}": Bar(0) for line in ("line", "killed") for what in ("missing", "doubled")},
        **{f"{line}/memory": Bar(120) for line in ("line", "killed")},
        **{f"{line}/read-rate": Bar(inf, least=50_000) for line in ("line", "killed")},
        "full/lost": Bar(0),
        "full/doubled": Bar(0),
        "full/waited": YES,
        "full/continued": YES,
        "shared/disk-ratio": Bar(1.3),
        "shared/missing": Bar(0),
        "shared/doubled": Bar(0),
        "start/seconds": Bar(2),
        "start/missing": Bar(0),
        "start/doubled": Bar(0),
    }
)
"""What the rows are held against."""


def write_report(directory: Path, rows: Sequence[Row], notes: Sequence[str]) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [html_paragraph(INTRODUCTION), html_table(BARS.lines(rows)), *map(html_paragraph, notes)]
    return write_page(directory, TITLE, parts)
