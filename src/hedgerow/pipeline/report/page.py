"""The sections of the report's page: one for each experiment, one for each table of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from hedgerow.pipeline.gaps import GAPS, read_gaps
from hedgerow.pipeline.jobs import sweep
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import MAX_CURVES, Curve, line_chart
from hedgerow.pipeline.report.html import Part
from hedgerow.pipeline.report.results import Experiment, Figures, ReportRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NONE = "–"
MAX_ROWS = 200  # that are shown of a table
MAX_CHARTS = 30  # of a sweep
FIGURE_HEAD = (
    "expected", "delivered", "lost", "doubled", "with DUP", "mean, ms", "deviation", "median", "95 %", "99 %",
    "longest",
)  # fmt: skip


class PageSection(NamedTuple):
    title: str
    parts: Sequence[Part]


Describe = Callable[[Experiment], PageSection]
"""How an experiment is introduced: its title, and what stands before what all experiments have in common."""


def number(value: float | None) -> str:
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


# Experiments


def describe_plainly(experiment: Experiment) -> PageSection:
    """For one that nobody described."""
    return PageSection(experiment.name, [own_rows(experiment)] if experiment.rows else [])


def own_rows(experiment: Experiment) -> Part:
    """The rows that the experiment itself gave: ours beside what was published."""
    lines = [["row", "unit", "ours", "published"]]
    for row in experiment.rows:
        cells = [_cell(row.get(name)) for name in ("ours", "published")]
        lines.append([str(row["name"]), str(row.get("unit", "")), *cells])
    return html.table(lines, "The experiment's rows")


def experiment_section(experiment: Experiment, describe: Describe) -> PageSection:
    title, parts = describe(experiment)
    found = [
        html.paragraph(f"From {experiment.directory}.", is_soft=True),
        *parts,
        html.items(experiment.notes),
    ]
    if experiment.runs:
        found += [
            html.heading("Every run, from its journal", 3),
            html.table(run_lines(experiment.runs), "Runs"),
        ]
        found += _distributions(experiment.runs)
        found += [html.folded(f"{run.name}: each subscriber", _run_parts(run)) for run in experiment.runs]
    return PageSection(title, found)


def run_lines(runs: Iterable[ReportRun]) -> list[list[str]]:
    lines = [["run", "published", *FIGURE_HEAD]]
    lines += [[run.name, number(run.published), *figure_cells(run.figures)] for run in runs]
    return lines


def figure_cells(figures: Figures) -> list[str]:
    return [
        number(value)
        for value in (
            figures.expected, figures.delivered, figures.lost, figures.doubled, figures.repeated,
            figures.mean_ms, figures.deviation_ms, figures.p50_ms, figures.p95_ms, figures.p99_ms,
            figures.most_ms,
        )
    ]  # fmt: skip


def _distributions(runs: Sequence[ReportRun]) -> Iterator[Part]:
    """All runs, a few to a chart."""
    measured = [run for run in runs if run.percentiles]
    for at in range(0, len(measured), MAX_CURVES):
        few = measured[at : at + MAX_CURVES]
        curves = [
            Curve(run.name, [(delay_ms, float(percent)) for percent, delay_ms in enumerate(run.percentiles)])
            for run in few
        ]
        names = ", ".join(run.name for run in few)
        chart = line_chart("Delays", ("delay, ms", "% that took no longer"), curves, log_x=True)
        yield html.figure(chart, f"How the delays are distributed: {names}")


def _run_parts(run: ReportRun) -> Iterator[Part]:
    if run.settings:
        yield html.paragraph(", ".join(f"{name}: {value or NONE}" for name, value in run.settings.items()))
    if run.groups:
        lines = [["group", *FIGURE_HEAD]]
        lines += [[part.group, *figure_cells(part.figures)] for part in run.groups]
        yield html.table(lines, f"{run.name}, by group")
    lines = [["subscriber", "topic", *FIGURE_HEAD]]
    lines += [[part.subscriber, part.topic, *figure_cells(part.figures)] for part in run.parts]
    yield html.table(lines, f"{run.name}, by subscriber and topic")
    if run.course:
        curves = [
            Curve("mean", [(at_s, mean_ms) for at_s, mean_ms, _ in run.course]),
            Curve("longest", [(at_s, most_ms) for at_s, _, most_ms in run.course]),
        ]
        marks = {f"{what}, {at_s:.1f} s": at_s for at_s, what in run.happened}
        chart = line_chart(run.name, ("published at, s", "delay, ms"), curves, marks)
        marked = f" Marks: {'; '.join(marks)}." if marks else ""
        yield html.figure(chart, f"Delays in the course of {run.name}.{marked}")


# Tables of the pipeline


def table_sections(tables: str, read: Callable[[str], DataFrame | None]) -> Iterator[PageSection]:
    """Those that are there. `read` gives a table by its name, or None."""
    for name, (title, describe) in TABLES.items():
        rows = read(name)
        if rows is not None:
            counted = html.paragraph(f"{rows.count():,} rows in {name}/.")
            yield PageSection(title, [counted, *_described(rows, describe)])
    gaps = read_gaps(f"{tables}/{GAPS}")
    if gaps:
        lines = [["journal", "from", "to", "reason"], *(list(map(_cell, gap)) for gap in gaps)]
        yield PageSection("What could not be read", [html.table(lines, "Gaps in journals, by position")])


def _described(rows: DataFrame, describe: Callable[[DataFrame], Iterable[Part]]) -> list[Part]:
    """A table that has not the columns that are looked for, of another version say, is shown as it is."""
    try:
        return list(describe(rows))
    except AnalysisException:
        return list(_plain(rows))


def lines_of(rows: DataFrame) -> list[list[str]]:
    return [list(rows.columns), *([_cell(value) for value in row] for row in rows.limit(MAX_ROWS).collect())]


def _bronze(rows: DataFrame) -> Iterator[Part]:
    hours = rows.groupBy("date", "hour").agg(
        sql.count("*").alias("messages"),
        sql.countDistinct("journal").alias("journals"),
        sql.countDistinct("broker").alias("brokers"),
        sql.countDistinct("topic").alias("topics"),
        sql.count("clamped").alias("clamped"),
    )
    yield html.table(lines_of(hours.orderBy("date", "hour")), "Messages by hour")
    brokers = rows.groupBy("broker", "transport").agg(sql.count("*").alias("messages"))
    yield html.table(lines_of(brokers.orderBy(sql.desc("messages"), "broker")), "Messages by broker")


def _readings(rows: DataFrame) -> Iterator[Part]:
    sensors = rows.groupBy("sensor", "field", "unit").agg(
        sql.count("*").alias("readings"), sql.min("value").alias("least"), sql.avg("value").alias("mean"),
        sql.max("value").alias("most"), sql.min("at").alias("first"), sql.max("at").alias("last"),
    )  # fmt: skip
    yield html.table(lines_of(sensors.orderBy("sensor", "field")), "Readings by sensor and field")


def _quarantine(rows: DataFrame) -> Iterator[Part]:
    reasons = rows.groupBy("rule", "reason").agg(
        sql.count("*").alias("messages"), sql.min("topic").alias("a topic")
    )
    yield html.table(lines_of(reasons.orderBy(sql.desc("messages"), "reason")), "Quarantined, by reason")


def _hot(rows: DataFrame) -> Iterator[Part]:
    topics = rows.groupBy("broker", "topic").agg(
        sql.count("*").alias("windows"), sql.sum("events").alias("events"), sql.max("events").alias("most")
    )
    busiest = topics.orderBy(sql.desc("events"), "broker", "topic")
    yield html.table(lines_of(busiest), "Topics by events, summed over windows (broker –: all brokers)")


def _anomalies(rows: DataFrame) -> Iterator[Part]:
    sensors = rows.groupBy("sensor", "field", "reason").agg(
        sql.count("*").alias("readings"), sql.max(sql.abs("score")).alias("highest score")
    )
    yield html.table(lines_of(sensors.orderBy("sensor", "field", "reason")), "By sensor and reason")
    strange = rows.where("is_anomaly").orderBy(sql.desc_nulls_last(sql.abs("score")), "at")
    yield html.table(lines_of(strange), f"Anomalies, at most {MAX_ROWS}, by score")


def _plain(rows: DataFrame) -> Iterator[Part]:
    yield html.table(lines_of(rows), f"At most {MAX_ROWS} rows")


def _sweep(rows: DataFrame) -> Iterator[Part]:
    aggregated = sweep.aggregate(rows).persist()
    try:
        parameters = sweep.parameters_of(rows)
        if parameters:
            yield from _sweep_charts(aggregated, parameters)
        lines = sweep.lines(aggregated)
    finally:
        aggregated.unpersist()
    yield html.table(lines, "Every point and result")
    failed = rows.where("error is not null").select("point", "seed", "error").orderBy("point", "seed")
    lines = lines_of(failed)
    if len(lines) > 1:
        yield html.table(lines, "Runs that failed")


def _sweep_charts(aggregated: DataFrame, parameters: Sequence[str]) -> Iterator[Part]:
    """Each result over the first parameter that has several numbers, a curve for what the others are."""
    rows = [row.asDict() for row in aggregated.where("result is not null").collect()]
    numeric = [
        name
        for name in parameters
        if len({row[name] for row in rows}) > 1 and all(type(row[name]) in (int, float) for row in rows)
    ]
    if not numeric:
        return
    across = max(numeric, key=lambda name: len({row[name] for row in rows}))
    others = [name for name in parameters if name != across and len({row[name] for row in rows}) > 1]
    for result in sorted({row["result"] for row in rows})[:MAX_CHARTS]:
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row["result"] == result:
                label = ", ".join(f"{name} {_cell(row[name])}" for name in others) or result
                curves.setdefault(label, []).append((row[across], row["mean"]))
        drawn = [Curve(label, sorted(points)) for label, points in sorted(curves.items())]
        chart = line_chart(result, (across, "mean"), drawn)
        left_out = f" Of {len(drawn)} curves, {MAX_CURVES}." if len(drawn) > MAX_CURVES else ""
        yield html.folded(result, [html.figure(chart, f"{result} by {across}, mean of all seeds.{left_out}")])


def _cell(value: Any) -> str:
    match value:
        case None:
            return NONE
        case bool() | str():
            return str(value)
        case int() | float():
            return number(value)
        case bytes() | bytearray():
            return f"{len(value)} bytes"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value)


TABLES: Mapping[str, tuple[str, Callable[[DataFrame], Iterable[Part]]]] = {
    "bronze": ("Messages (bronze)", _bronze),
    "readings": ("Readings", _readings),
    "quarantine": ("Quarantine", _quarantine),
    "hot": ("Hot topics", _hot),
    "quality": ("Quality of links and subscribers", _plain),
    "gaps": ("Gaps by message id", _plain),
    "anomalies": ("Anomalies", _anomalies),
    "sweep": ("Sweep of the simulator", _sweep),
}
