"""The report: rows and bars, how publishing and reading went, what was lost and when."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import html_paragraph, html_table, write_page
from hedgerow_workshop.lab.harness.rows import Bar, Bars, Row, number
from hedgerow_workshop.lab.overload.record import OverloadRecord

TITLE = "A federation that is overloaded"
INTRODUCTION = (
    "Three nodes in a ring and a Mosquitto with a federator, publishers at full speed at each of them, two "
    "that publish by multicast, UDP sensors, and a journal. One node is killed and started again. lost: "
    "acknowledged publications that a persistent subscriber or the journal never got. doubled: what came "
    "again without DUP. flaps: links that were dropped while both ends lived. slowed: how fast publishers "
    "are while readers are slow, as a share of how fast they are while readers are fast."
)

BARS = Bars(
    {
        "lost/mqtt": Bar(0),
        "lost/multicast": Bar(0),
        "doubled": Bar(0),
        "flaps": Bar(0),
        "udp/uncounted": Bar(0),
        "memory/largest": Bar(150),
        "slowed": Bar(inf, least=0.8),
    }
)
"""What the rows are held against."""


def write_report(
    directory: Path, records: Sequence[OverloadRecord], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [html_paragraph(INTRODUCTION), html_table(BARS.lines(rows)), *map(html_paragraph, notes)]
    parts += ["<h2>Runs</h2>", html_table(run_lines(records))]
    for record in records:
        parts += [f"<h2>With {record.readers} readers</h2>", html_table(moment_lines(record))]
    return write_page(directory, TITLE, parts)


def run_lines(records: Sequence[OverloadRecord]) -> list[list[str]]:
    head = [
        "readers",
        "sent",
        "published, s",
        "a second",
        "read after, s",
        "readings sent",
        "counted as lost",
    ]
    lines = [head]
    for record in records:
        sensors = record.sensors
        figures = (record.published_s, record.rate, record.settled_s, sensors.sent, sensors.counted)
        sent = sum(map(len, record.sent.values()))
        lines.append([record.readers, number(sent), *map(number, figures)])
    return lines


def moment_lines(record: OverloadRecord) -> list[list[str]]:
    return [["what", "s"], *([what, f"{at - record.began_at:.3f}"] for at, what in record.moments())]
