"""The report of the storm: its rows, how long publications took, and what went wrong when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import html_paragraph, html_table, write_page
from hedgerow_workshop.lab.harness.measure import delays_ms
from hedgerow_workshop.lab.harness.rows import Row, number, row_cells
from hedgerow_workshop.lab.storm import measure
from hedgerow_workshop.lab.storm.record import StormRecord, SubscriberKind
from hedgerow_workshop.percentiles import percentile

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
    directory: Path, records: Sequence[StormRecord], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [html_paragraph(INTRODUCTION), *map(html_paragraph, notes), html_table(row_cells(rows))]
    parts += ["<h2>Delays</h2>", html_table(delay_lines(records))]
    for record in records:
        incidents = sorted(measure.incidents(record))
        if incidents or record.happened:
            parts += [f"<h2>{record.fault or 'Nothing failed'}</h2>", html_table(incident_lines(record))]
    return write_page(directory, TITLE, parts)


def delay_lines(records: Sequence[StormRecord]) -> list[list[str]]:
    lines = [["ms", "median", "99 %", "slowest"]]
    for record in records:
        for kind in SubscriberKind:
            found = sorted(delays_ms(measure.of_kind(record, kind)))
            cells = [*(percentile(found, each) for each in (50, 99)), found[-1]] if found else [None] * 3
            lines.append([f"{kind}, {record.fault or 'nothing failed'}", *map(number, cells)])
    return lines


def incident_lines(record: StormRecord) -> list[list[str]]:
    """What failed, and what was lost or doubled, in order."""
    happened = [(at - record.began_at, what) for at, what in record.happened]
    found = sorted([*happened, *measure.incidents(record)])[:MAX_INCIDENTS]
    return [["what", "s"], *([text, f"{at:.3f}"] for at, text in found)]
