"""The section of a sweep in the pipeline's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import MAX_CURVES, Curve, line_chart
from hedgerow.pipeline.report.html import Html
from hedgerow.pipeline.report.page import TableSection, cell, lines_of
from hedgerow_workshop.lab.sweep import job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_CHARTS = 30


def describe(rows: DataFrame) -> Iterator[Html]:
    aggregated = job.aggregate(rows).persist()
    try:
        parameters = job.parameters_of(rows)
        if parameters:
            yield from _charts(aggregated, parameters)
        lines = job.lines(aggregated)
    finally:
        aggregated.unpersist()
    yield html.table(lines, "Every point and result")
    failed = rows.where("error is not null").select("point", "seed", "error").orderBy("point", "seed")
    lines = lines_of(failed)
    if len(lines) > 1:
        yield html.table(lines, "Runs that failed")


def _charts(aggregated: DataFrame, parameters: Sequence[str]) -> Iterator[Html]:
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
                label = ", ".join(f"{name} {cell(row[name])}" for name in others) or result
                curves.setdefault(label, []).append((row[across], row["mean"]))
        drawn = [Curve(label, sorted(points)) for label, points in sorted(curves.items())]
        chart = line_chart(result, (across, "mean"), drawn)
        left_out = f" Of {len(drawn)} curves, {MAX_CURVES}." if len(drawn) > MAX_CURVES else ""
        yield html.folded(result, [html.figure(chart, f"{result} by {across}, mean of all seeds.{left_out}")])


SECTION = TableSection("Sweep of the simulator", describe)
