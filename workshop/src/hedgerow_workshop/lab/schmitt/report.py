"""The report of the experiment: the table of losses beside the published ones, the times, and for each run a
plot like the document's figure 6 and the topology at the end of each stage, like its figure 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from hedgerow.pipeline.report.charts import Curve
from hedgerow_workshop.lab.harness.figures import (
    NetworkDrawing,
    draw_networks,
    html_figure,
    html_paragraph,
    html_table,
    plot_curves,
    write_page,
)
from hedgerow_workshop.lab.harness.rows import NONE, Row, number, row_cells
from hedgerow_workshop.lab.schmitt import measure
from hedgerow_workshop.lab.schmitt.record import QOS, Departure, Mode, SchmittRecord, SchmittSpec
from hedgerow_workshop.lab.schmitt.timeline import Timeline

PUBLISHED = {Mode.STATIC: 40.0, Mode.PUBLISHED: 20.0, Mode.GHOST: 20.0, Mode.PURE: 2.0}
"""Percent lost at broker 2, as the document has it: one figure for ghost links, whatever their policy."""

TITLE = "Bridges that come and go"
INTRODUCTION = (
    "Brokers in a star, a publisher at one of them, a subscriber at each. Some brokers go and return, "
    "after Schmitt, Carlier and Renault: Dynamic bridge generation for IoT data exchange via the MQTT "
    "protocol (2018). Static bridges are made once. With ghosts an agent makes new bridges and leaves those "
    "to dead brokers in place: ghost-published is the document's policy, ghost is ours, which makes before "
    "it breaks. Pure, the agent deletes them. Line is the broken line of the document's figure 2. A broker "
    "goes by SIGKILL (kill), by SIGSTOP (stop), or because its links silently pass nothing any more (cut)."
)
TIMES_TEXT = (
    "Medians, in milliseconds. α: from the departure of a broker until the agent knows. β: from the "
    "return of a broker until a ghost link to it is up. γ: from its return until its subscriber hears the "
    "publisher. λ: from a command until a bridge is up, or gone. heal: until the subscriber at the "
    "measured broker hears what was published after the departure (stop, cut), or after the agent knew of "
    "it (kill)."
)

TRANSITIONS_TEXT = (
    "A stage's name is that of the transition to it; the document shows α at t3, and γ at t4. Bridges are "
    "those that the agent had created and deleted before the next transition. γ is that of the broker that "
    "returned."
)

Times = Callable[[SchmittRecord], Iterator[float]]
TIMES: dict[str, Times] = {
    "α": measure.detections,
    "β": measure.ghost_reconnections,
    "γ": measure.returns,
    "λ create": lambda record: measure.commands(record, "create"),
    "λ delete": lambda record: measure.commands(record, "delete"),
    "heal": measure.heals,
}


def write_report(
    directory: Path,
    timelines: Mapping[Mode, Timeline],
    records: Sequence[SchmittRecord],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Path:
    """Into a directory that is there; returns the page."""
    parts = [
        html_paragraph(INTRODUCTION),
        html_table(row_cells(rows)),
        *map(html_paragraph, notes),
        "<h2>Lost at the measured broker</h2>",
        html_table(loss_lines(records)),
        "<h2>Lost and doubled at QoS 1, at every broker</h2>",
        html_table(every_broker_lines(records)),
        "<h2>Times</h2>",
        html_paragraph(TIMES_TEXT),
        html_table(time_lines(records)),
        "<h2>Transitions, with killed brokers</h2>",
        html_paragraph(TRANSITIONS_TEXT),
        html_table(transition_lines(records)),
    ]
    for record in records:
        plot, drawing = draw_record(directory, timelines[record.spec.mode], record)
        parts += [
            f"<h2>{record.spec}</h2>",
            html_figure(plot, "Messages received per broker, QoS 0 (compare the document's figure 6)"),
            html_figure(drawing, "Bridges at the end of each stage (compare its figure 5)"),
        ]
    return write_page(directory, TITLE, parts)


def loss_lines(records: Sequence[SchmittRecord]) -> list[list[str]]:
    """Mode and broker kind down, departure and QoS across."""
    columns = [(departure, qos) for qos in QOS for departure in Departure]
    lines = [["percent", *(f"{departure}, QoS {qos}" for departure, qos in columns), "published"]]
    found = {record.spec: record for record in records}
    for kind, mode in dict.fromkeys((spec.kind, spec.mode) for spec in found):
        cells = []
        for departure, qos in columns:
            record = found.get(SchmittSpec(kind, mode, departure))
            cells.append(NONE if record is None else number(measure.loss_percent(record, qos)))
        lines.append([f"{kind} {mode}", *cells, number(PUBLISHED.get(mode))])
    return lines


def every_broker_lines(records: Sequence[SchmittRecord]) -> list[list[str]]:
    lines = [["lost % / doubled", *(f"broker {broker}" for broker in records[0].brokers)]]
    for record in [each for each in records if each.brokers == records[0].brokers]:
        cells = [
            f"{number(measure.loss_percent(record, 1, each))} / {measure.doubled(record, 1, each)}"
            for each in record.brokers
        ]
        lines.append([str(record.spec), *cells])
    return lines


def time_lines(records: Sequence[SchmittRecord]) -> list[list[str]]:
    lines = [["ms", *TIMES]]
    for record in records:
        cells = []
        for times_of in TIMES.values():
            times = list(times_of(record))
            cells.append(number(1_000 * median(times)) if times else NONE)
        lines.append([str(record.spec), *cells])
    return lines


def transition_lines(records: Sequence[SchmittRecord]) -> list[list[str]]:
    lines = [["run", "transition", "broker", "α, ms", "γ, ms", "created", "deleted"]]
    for record in records:
        if record.agent and record.spec.departure is Departure.KILL:
            for each in measure.transitions(record):
                times = [NONE if s is None else number(1_000 * s) for s in (each.alpha, each.gamma)]
                bridges = [_name_bridges(record, found) for found in (each.created, each.deleted)]
                lines.append([str(record.spec), each.name, f"{each.broker} {each.does}", *times, *bridges])
    return lines


def _name_bridges(record: SchmittRecord, bridges: set[measure.Bridge]) -> str:
    """ "1–5, 2–5" """
    names = sorted(sorted(bridge, key=record.brokers.index) for bridge in bridges)
    return ", ".join("–".join(ends) for ends in names) or NONE


def draw_record(directory: Path, timeline: Timeline, record: SchmittRecord) -> tuple[Path, Path]:
    plot = directory / f"{record.spec.file_name}-messages.png"
    marks = {step.name: step.at - record.began_at for step in record.happened}
    curves = [Curve(f"broker {broker}", list(_counted(record, broker))) for broker in record.brokers]
    plot_curves(plot, str(record.spec), ("seconds", "messages received"), curves, marks)
    drawing = directory / f"{record.spec.file_name}-topology.png"
    draw_networks(drawing, _networks(timeline, record))
    return plot, drawing


def _counted(record: SchmittRecord, broker: str) -> Iterator[tuple[float, float]]:
    """(second of the run, messages so far), with a point on each side of a silence."""
    count = 0
    yield 0.0, 0
    for arrival in record.arrived[broker][0]:
        at = arrival.at - record.began_at
        yield at, count
        count += 1
        yield at, count
    yield max(record.ended_at - record.began_at, 0.0), count


def _networks(timeline: Timeline, record: SchmittRecord) -> list[NetworkDrawing]:
    networks = []
    moments = [*(step.at for step in record.happened), record.ended_at]
    for stage, end_at in zip(timeline.stages(), moments, strict=True):
        at = end_at - 0.001
        networks.append(
            NetworkDrawing(
                f"after {stage.after}" if stage.after else "at first",
                {broker: broker in stage.alive for broker in record.brokers},
                measure.live_bridges(record, at),
                measure.ghost_bridges(record, at),
            )
        )
    return networks
