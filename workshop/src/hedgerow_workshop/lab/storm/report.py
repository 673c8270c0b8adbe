"""The report of the storm: its rows, how long publications took, and what went wrong when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow_workshop.lab.experiments import Row
from hedgerow_workshop.lab.figures import NONE, html_page, html_paragraph, html_table, number, row_cells
from hedgerow_workshop.lab.storm import measure
from hedgerow_workshop.lab.storm.record import Kind, Record

TITLE = "A hand-over storm"
INTRODUCTION = (
    "A mobile broker and a fixed one. The storm's topic goes hot and cold with every X.time: it is delegated "
    "and its subscribers are sent to the fixed broker, it is recovered and they are sent back. lost: "
    "publications that a subscriber never got. doubled: all that it got beyond the first time; repeated: "
    "those of them with DUP. moves: connections after the first. flips: how often the mobile broker told "
    "that the topic had changed sides."
)
MAX_INCIDENTS = 200


def write_report(
    directory: Path, records: Sequence[Record], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [html_paragraph(INTRODUCTION), *map(html_paragraph, notes), html_table(row_cells(rows))]
    parts += ["<h2>Delays</h2>", html_table(delay_lines(records))]
    for record in records:
        incidents = sorted(measure.incidents(record))
        if incidents or record.happened:
            parts += [f"<h2>{record.fault or 'Nothing failed'}</h2>", html_table(incident_lines(record))]
    page = directory / "report.html"
    page.write_text(html_page(TITLE, parts), encoding="utf-8")
    return page


def delay_lines(records: Sequence[Record]) -> list[list[str]]:
    lines = [["ms", "median", "99 %", "slowest"]]
    for record in records:
        for kind in Kind:
            found = measure.delays_ms(record, kind)
            cells = [found[len(found) // 2], found[len(found) * 99 // 100], found[-1]] if found else []
            name = f"{kind}, {record.fault or 'nothing failed'}"
            lines.append([name, *(map(number, cells) if cells else [NONE] * 3)])
    return lines


def incident_lines(record: Record) -> list[list[str]]:
    """What failed, and what was lost or doubled, in order."""
    happened = [(at - record.began_at, what) for at, what in record.happened]
    found = sorted([*happened, *measure.incidents(record)])[:MAX_INCIDENTS]
    return [["what", "s"], *([text, f"{at:.3f}"] for at, text in found)]
