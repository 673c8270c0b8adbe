"""An experiment's section of the pipeline's report: what introduces it, and every run from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import MAX_CURVES, Curve, line_chart
from hedgerow.pipeline.report.html import Html
from hedgerow.pipeline.report.page import NONE, PageSection, cell, number
from hedgerow_workshop.lab.results.gather import Experiment, Figures, ReportRun

FIGURE_HEAD = (
    "expected", "delivered", "lost", "doubled", "with DUP", "mean, ms", "deviation", "median", "95 %", "99 %",
    "longest",
)  # fmt: skip

Describe = Callable[[Experiment], PageSection]
"""How an experiment is introduced: its title, and what stands before what all experiments have in common."""


def describe_plainly(experiment: Experiment) -> PageSection:
    """For one that nobody described."""
    return PageSection(experiment.name, [own_rows(experiment)] if experiment.rows else [])


def own_rows(experiment: Experiment) -> Html:
    """The rows that the experiment itself gave: ours beside what was published."""
    lines = [["row", "unit", "ours", "published"]]
    for row in experiment.rows:
        cells = [cell(row.get(name)) for name in ("ours", "published")]
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


def _distributions(runs: Sequence[ReportRun]) -> Iterator[Html]:
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


def _run_parts(run: ReportRun) -> Iterator[Html]:
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
