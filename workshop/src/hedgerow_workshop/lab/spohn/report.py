"""The report of the experiment: delays beside the published ones, the floor and the bars, the mesh that
formed, and what every failure cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow.pipeline.report.charts import Curve
from hedgerow_workshop.lab.harness.figures import (
    html_figure,
    html_paragraph,
    html_table,
    plot_curves,
    write_page,
)
from hedgerow_workshop.lab.harness.measure import Spread, count_doubled, count_lost, delays, delays_ms, spread
from hedgerow_workshop.lab.harness.rows import NONE, Bar, Bars, Row, number
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.drawing import draw_mesh, draw_transmissions
from hedgerow_workshop.lab.spohn.record import Misfortune, Setting, SpohnRecord

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

TRANSMISSIONS_TEXT = (
    "How often a publication took each link, and in brackets how often it had come to the other end before "
    "(compare the document's figure 6, which names 4-5 and 1-2). Where most of them had, the arrow is of "
    "another colour."
)

DOCUMENT_WIRE_TEXT = (
    "At node 4 is a stock Mosquitto with a federator that is not ours, to which its neighbours speak the "
    "document's wire; they and the others speak our own to each other. Publishers are at node 6 (QoS 1) and "
    "at node 4 (QoS 2), subscribers at nodes 7, 2 and 4."
)

KILL, CUT = Bar(500), Bar(2_000)

BARS = Bars(
    {
        "delay/node7/mosquitto": Bar(8),
        "delay/node2/mosquitto": Bar(26),
        "delay/node7/hedgerow": Bar(6.5),
        "delay/node2/hedgerow": Bar(22.5),
        "lost": Bar(0),
        "doubled": Bar(0),
        "mesh": Bar(1, least=1),
        "distance/shortest": Bar(1, least=1),
        "document-wire/lost": Bar(0),
        "document-wire/doubled": Bar(0),
        "heal/kill": KILL,
        "heal/kill/slowest": KILL,
        "heal/cut": CUT,
        "heal/cut/slowest": CUT,
        "heal/kill/mosquitto": KILL,
        "heal/kill/slowest/mosquitto": KILL,
        "heal/cut/mosquitto": CUT,
        "heal/cut/slowest/mosquitto": CUT,
    }
)
"""What the rows are held against."""


def write_report(
    directory: Path, records: Sequence[SpohnRecord], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [
        html_paragraph(INTRODUCTION),
        html_table(BARS.lines(rows)),
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
        elif record.spec.setting is Setting.DOCUMENT_WIRE:
            parts += _mixed_parts(record)
    return write_page(directory, TITLE, parts)


def delay_lines(records: Sequence[SpohnRecord]) -> list[list[str]]:
    """A line for each run and subscriber: mean ± deviation, ours and published, and the floor."""
    lines = [["ms", "subscriber", "publications", "ours", "published", "floor"]]
    for record in records:
        spec = record.spec
        if spec.setting not in (Setting.FEDERATED, Setting.CENTRALISED):
            continue
        for subscriber in record.arrived:
            published = grid.published(spec.node, subscriber, spec.count)
            far = spec.node or subscriber
            lines.append(
                [
                    str(spec),
                    subscriber,
                    str(spec.count),
                    _spread(spread(delays_ms(record.heard(subscriber)))),
                    _spread(published),
                    number(grid.floor_ms(grid.PUBLISHER, far)),
                ]
            )
    return lines


def _spread(value: Spread | None) -> str:
    return NONE if value is None else f"{value.mean:.2f} ± {value.deviation:.2f}"


def _mesh_parts(directory: Path, record: SpohnRecord) -> list[str]:
    spec = record.spec
    drawing = directory / f"{spec.file_name}-mesh.png"
    draw_mesh(drawing, str(spec), record.states[-1], record.topic)
    routing = directory / f"{spec.file_name}-transmissions.png"
    draw_transmissions(routing, str(spec), record.transmissions, max(1, spec.count))
    plot = directory / f"{spec.file_name}-delays.png"
    began_at = record.sent[grid.PUBLISHER][0]
    curves = _curves(record, began_at)
    plot_curves(plot, str(spec), ("seconds", "delay, ms"), curves, {})
    return [
        f"<h2>{spec}, {spec.count} publications</h2>",
        html_figure(drawing, "The mesh that formed (compare the document's figure 5)"),
        html_figure(routing, TRANSMISSIONS_TEXT),
        html_table(transmission_lines(record)),
        html_figure(plot, "The delay of every publication"),
    ]


def transmission_lines(record: SpohnRecord) -> list[list[str]]:
    """A line for each link and direction that carried publications."""
    count = max(1, record.spec.count)
    lines = [["from – to", "sent", "of them redundant", "per publication"]]
    for link, (sent, redundant) in sorted(record.transmissions.items()):
        if sent:
            lines.append([link, str(sent), str(redundant), number(sent / count)])
    return lines


def _mixed_parts(record: SpohnRecord) -> list[str]:
    """A line for each publisher and subscriber."""
    lines = [["from – to", "published", "came", "lost", "doubled", "ms"]]
    lines += [
        [
            f"{hearing.stream.publisher} – {hearing.subscriber}",
            str(len(hearing.stream.sent)),
            str(len(hearing.numbers)),
            str(count_lost([hearing])),
            str(count_doubled([hearing])),
            _spread(spread(delays_ms([hearing]))),
        ]
        for hearing in record.hearings()
    ]
    return [f"<h2>{record.spec}</h2>", html_paragraph(DOCUMENT_WIRE_TEXT), html_table(lines)]


def _failure_parts(directory: Path, record: SpohnRecord) -> list[str]:
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


def failure_lines(record: SpohnRecord) -> list[list[str]]:
    lines = [["ms", "heal", "whole"]]
    heals = {
        (misfortune, what): s for misfortune in Misfortune for what, s in measure.heals(record, misfortune)
    }
    for misfortune, what, at, whole_at in record.happened:
        whole = None if whole_at is None else 1_000 * (whole_at - at)
        lines.append([f"{misfortune} {what}", number(1_000 * heals[misfortune, what]), number(whole)])
    return lines


def _curves(record: SpohnRecord, began_at: float) -> list[Curve]:
    return [
        Curve(
            f"from {publisher} to {subscriber}",
            sorted((at - began_at, ms) for at, ms in delays(record.heard(subscriber, publisher))),
        )
        for publisher in record.sent
        for subscriber in record.arrived
    ]
