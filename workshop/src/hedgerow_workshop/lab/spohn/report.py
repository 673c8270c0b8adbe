"""The report of the experiment: delays beside the published ones, the floor and the bars, the mesh that
formed, and what every failure cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow_workshop.lab.experiments import Row
from hedgerow_workshop.lab.figures import (
    NONE,
    Curve,
    html_figure,
    html_page,
    html_paragraph,
    html_table,
    number,
    plot_curves,
    row_cells,
)
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.bars import BARS
from hedgerow_workshop.lab.spohn.delays import topic_of
from hedgerow_workshop.lab.spohn.drawing import draw_mesh
from hedgerow_workshop.lab.spohn.record import Misfortune, Record, Setting

TITLE = "Autonomous brokers, federated"
INTRODUCTION = (
    "Nine brokers in a grid of 3 × 3 with links of 5 ms and a mesh redundancy of 2, after Spohn: An "
    "endogenous and self-organizing approach for the federation of autonomous MQTT brokers (2021). A "
    "publisher at node 6, subscribers at nodes 2 and 7; 64 bytes every 50 to 100 ms at QoS 0. The brokers "
    "are stock Mosquitto with a federator beside each, or hedgerow nodes with the federator inside. "
    "Centralised, both subscribers are at one broker, and nothing is federated. The floor is what the links "
    "alone take."
)
FAILURES_TEXT = (
    "Publishers at nodes 6 and 0, 20 messages a second each, at QoS 1, while nodes are killed and links are "
    "silently cut, one after the other. heal: from then until both subscribers have received something from "
    "both publishers that was published afterwards. whole: until all nodes said that all is as before, with "
    "what failed back again."
)


def write_report(
    directory: Path, records: Sequence[Record], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [
        html_paragraph(INTRODUCTION),
        html_table(bar_lines(rows)),
        *map(html_paragraph, notes),
        "<h2>Delays</h2>",
        html_table(delay_lines(records)),
    ]
    for record in records:
        if record.spec.setting is Setting.FEDERATED:
            parts += _mesh_parts(directory, record)
    for record in records:
        if record.spec.setting is Setting.FAILURES:
            parts += _failure_parts(directory, record)
    page = directory / "report.html"
    page.write_text(html_page(TITLE, parts), encoding="utf-8")
    return page


def bar_lines(rows: Sequence[Row]) -> list[list[str]]:
    """The rows, and for those that have a bar whether it was met."""
    head, *lines = row_cells(rows)
    table = [[*head, "bar", ""]]
    for row, cells in zip(rows, lines, strict=True):
        bar = BARS.get(row.name)
        met = BARS.is_met(row)
        table.append(
            [*cells, "" if bar is None else str(bar), "" if met is None else "met" if met else "MISSED"]
        )
    return table


def delay_lines(records: Sequence[Record]) -> list[list[str]]:
    """A line for each run and subscriber: mean ± deviation, ours and published, and the floor."""
    lines = [["ms", "subscriber", "publications", "ours", "published", "floor"]]
    for record in records:
        spec = record.spec
        if spec.setting is Setting.FAILURES:
            continue
        for subscriber in record.arrived:
            published = grid.published(spec.node, subscriber, spec.count)
            far = spec.node or subscriber
            lines.append(
                [
                    str(spec),
                    subscriber,
                    str(spec.count),
                    _spread(measure.delay(record, subscriber)),
                    _spread(published),
                    number(grid.floor_ms(grid.PUBLISHER, far)),
                ]
            )
    return lines


def _spread(value: tuple[float, float] | None) -> str:
    return NONE if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def _mesh_parts(directory: Path, record: Record) -> list[str]:
    spec = record.spec
    drawing = directory / f"{spec.file_name}-mesh.png"
    draw_mesh(drawing, str(spec), record.states[-1], topic_of(spec))
    plot = directory / f"{spec.file_name}-delays.png"
    began_at = record.sent[grid.PUBLISHER][0]
    curves = _curves(record, began_at)
    plot_curves(plot, str(spec), ("seconds", "delay, ms"), curves, {})
    return [
        f"<h2>{spec}, {spec.count} publications</h2>",
        html_figure(drawing, "The mesh that formed (compare the document's figure 5)"),
        html_figure(plot, "The delay of every publication"),
    ]


def _failure_parts(directory: Path, record: Record) -> list[str]:
    spec = record.spec
    plot = directory / f"{spec.file_name}-delays.png"
    began_at = min(sent[0] for sent in record.sent.values())
    marks = {each.what: each.at - began_at for each in record.happened}
    curves = _curves(record, began_at)
    plot_curves(plot, str(spec), ("seconds", "delay, ms"), curves, marks)
    return [
        f"<h2>{spec}</h2>",
        html_paragraph(FAILURES_TEXT),
        html_table(failure_lines(record)),
        html_figure(plot, "The delay of every publication; marks are nodes killed and links cut"),
    ]


def failure_lines(record: Record) -> list[list[str]]:
    lines = [["ms", "heal", "whole"]]
    heals = {
        (misfortune, what): s for misfortune in Misfortune for what, s in measure.heals(record, misfortune)
    }
    for misfortune, what, at, whole_at in record.happened:
        whole = None if whole_at is None else 1_000 * (whole_at - at)
        lines.append([f"{misfortune} {what}", number(1_000 * heals[misfortune, what]), number(whole)])
    return lines


def _curves(record: Record, began_at: float) -> list[Curve]:
    return [
        Curve(
            f"from {publisher} to {subscriber}",
            sorted((at - began_at, ms) for at, ms in measure.delays(record, subscriber, publisher)),
        )
        for publisher in record.sent
        for subscriber in record.arrived
    ]
