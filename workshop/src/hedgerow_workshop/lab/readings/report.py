"""The report of an experiment with readings: its rows, what the bytes were, and how long readings took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import (
    COLOURS,
    html_figure,
    html_paragraph,
    html_table,
    open_axes,
    write_page,
)
from hedgerow_workshop.lab.harness.rows import Bars, Row, number
from hedgerow_workshop.lab.readings import measure
from hedgerow_workshop.lab.readings.experiment import CAPTURES
from hedgerow_workshop.lab.readings.record import ReadingsRecord

WIRESHARK = (
    "The frames of each run are in captures/, for Wireshark with tools/wireshark/hedgerow.lua: "
    "wireshark -X lua_script:tools/wireshark/hedgerow.lua captures/RUN.pcap"
)


def write_report(
    directory: Path,
    title: str,
    texts: Sequence[str],
    records: Sequence[ReadingsRecord],
    rows: Sequence[Row],
    notes: Sequence[str],
    bars: Bars,
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [html_paragraph(text) for text in (*texts, *notes)]
    parts.append(html_table(bars.lines(rows)))
    if records:
        picture = directory / "bytes.png"
        draw_bytes(picture, records)
        parts += [html_figure(picture, "Bytes that hosts sent, by what they are for")]
        parts += ["<h2>Bytes</h2>", html_table(list(bytes_lines(records)))]
        parts += ["<h2>Delays</h2>", html_table(list(delay_lines(records)))]
        parts += ["<h2>Captures</h2>", html_paragraph(WIRESHARK), *map(_link, records)]
    return write_page(directory, title, parts)


def _link(record: ReadingsRecord) -> str:
    file = f"{CAPTURES}/{record.file_name}.pcap"
    return f'<p><a href="{file}">{file}</a></p>'


def kinds_of(records: Sequence[ReadingsRecord]) -> list[str]:
    """Of all frames, in the order of what they cost."""
    found: dict[str, int] = {}
    for record in records:
        for kind, size in record.sent_bytes.items():
            found[kind] = found.get(kind, 0) + size
    return sorted(found, key=found.__getitem__, reverse=True)


def bytes_lines(records: Sequence[ReadingsRecord]) -> Iterator[list[str]]:
    kinds = kinds_of(records)
    yield ["", "readings", "frames", "bytes", "for each reading", "on all cables", *kinds]
    for record in records:
        figures = (record.bytes, measure.bytes_per_reading(record), record.carried_bytes)
        by_kind = [f"{record.sent_bytes.get(kind, 0):,}" for kind in kinds]
        yield [
            record.file_name,
            f"{record.readings:,}",
            f"{record.frames:,}",
            *map(number, figures),
            *by_kind,
        ]


def delay_lines(records: Sequence[ReadingsRecord]) -> Iterator[list[str]]:
    yield ["ms", "median", "90 %", "99 %", "lost"]
    for record in records:
        delays = [number(measure.delay(record, percent)) for percent in (50, 90, 99)]
        yield [record.file_name, *delays, str(measure.lost([record]))]


def draw_bytes(path: Path, records: Sequence[ReadingsRecord]) -> None:
    height = 0.4 * len(records) + 1.5
    figure, axes = open_axes((9, height), (0.2, 0.6 / height, 0.77, 1 - 1.2 / height))
    names = [record.file_name for record in records]
    begins = [0] * len(records)
    for kind, colour in zip(kinds_of(records), cycle(COLOURS), strict=False):
        sizes = [record.sent_bytes.get(kind, 0) for record in records]
        axes.barh(names, sizes, left=begins, color=colour, label=kind)
        begins = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("bytes")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=7, fontsize="x-small")
    figure.savefig(path)
