"""What the pipeline's report says of each experiment: what it is, its rows beside the published ones, and the
document's own tables and figures, computed from the journals of the runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import Curve, line_chart
from hedgerow.pipeline.report.html import Html
from hedgerow.pipeline.report.page import PageSection
from hedgerow_workshop.lab import scale
from hedgerow_workshop.lab.backlog import report as backlog_report
from hedgerow_workshop.lab.genera import report as genera_report
from hedgerow_workshop.lab.harness.rows import NONE, Row, number, row_cells
from hedgerow_workshop.lab.morales import report as morales_report
from hedgerow_workshop.lab.morales.setting import Uplink
from hedgerow_workshop.lab.morales.traffic import BIASED, BURST
from hedgerow_workshop.lab.overload import report as overload_report
from hedgerow_workshop.lab.results.gather import Experiment, Figures, ReportRun
from hedgerow_workshop.lab.results.page import Describe, describe_plainly, experiment_section
from hedgerow_workshop.lab.schmitt import report as schmitt_report
from hedgerow_workshop.lab.schmitt.record import QOS, Mode
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn import report as spohn_report
from hedgerow_workshop.lab.spohn.record import Setting
from hedgerow_workshop.lab.storm import report as storm_report
from hedgerow_workshop.lab.zhang import report as zhang_report

Lines = list[list[str]]


def sections_of(experiments: Iterable[Experiment]) -> Iterator[PageSection]:
    for experiment in experiments:
        yield experiment_section(experiment, DESCRIPTIONS.get(experiment.name, describe_plainly))


def rows_of(experiment: Experiment) -> list[Row]:
    return [
        Row(
            str(row["name"]),
            str(row.get("unit", "")),
            _figure(row.get("ours")),
            _figure(row.get("published")),
        )
        for row in experiment.rows
    ]


def _figure(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _section(
    experiment: Experiment,
    title: str,
    texts: Sequence[str],
    judge: Callable[[Sequence[Row]], Lines] = row_cells,
    parts: Iterable[Html] = (),
) -> PageSection:
    found = [html.paragraph(text) for text in texts]
    if experiment.rows:
        found.append(html.table(judge(rows_of(experiment)), "The experiment's rows"))
    return PageSection(title, [*found, *parts])


# spohn


def describe_spohn(experiment: Experiment) -> PageSection:
    return _section(
        experiment,
        spohn_report.TITLE,
        [spohn_report.INTRODUCTION],
        spohn_report.BARS.lines,
        _spohn_parts(experiment.runs),
    )


def _spohn_parts(runs: Sequence[ReportRun]) -> Iterator[Html]:
    lines = spohn_lines(runs)
    if len(lines) > 1:
        yield html.table(lines, "Delays beside the published ones: mean ± deviation, ms")


def spohn_lines(runs: Sequence[ReportRun]) -> Lines:
    lines = [["run", "subscriber", "publications", "ours", "published", "floor"]]
    for run in runs:
        node, count = run.settings.get("node", ""), run.settings.get("count", "")
        if run.settings.get("setting") not in (Setting.FEDERATED, Setting.CENTRALISED) or not count.isdigit():
            continue
        for part in run.parts:
            try:
                published = grid.published(node, part.subscriber, int(count))
                floor_ms = grid.floor_ms(grid.PUBLISHER, node or part.subscriber)
            except (KeyError, ValueError):
                continue
            ours = _spread(part.figures)
            theirs = f"{published.mean:.2f} ± {published.deviation:.2f}"
            lines.append([run.name, part.subscriber, count, ours, theirs, number(floor_ms)])
    return lines


def _spread(figures: Figures) -> str:
    if figures.mean_ms is None or figures.deviation_ms is None:
        return NONE
    return f"{figures.mean_ms:.2f} ± {figures.deviation_ms:.2f}"


# schmitt


def describe_schmitt(experiment: Experiment) -> PageSection:
    return _section(
        experiment,
        schmitt_report.TITLE,
        [schmitt_report.INTRODUCTION],
        parts=_schmitt_parts(experiment.runs),
    )


def _schmitt_parts(runs: Sequence[ReportRun]) -> Iterator[Html]:
    lines = schmitt_lines(runs)
    if len(lines) > 1:
        yield html.table(lines, "Percent lost at the measured broker, beside the published share")


def schmitt_lines(runs: Sequence[ReportRun]) -> Lines:
    lines = [["run", *(f"QoS {qos}" for qos in QOS), "published, QoS 0"]]
    for run in runs:
        measured = {
            part.group: part.figures for part in run.parts if part.subscriber == run.settings.get("measured")
        }
        losses = [lost_percent(measured.get(f"qos{qos}")) for qos in QOS]
        mode = run.settings.get("mode", "")
        published = schmitt_report.PUBLISHED.get(Mode(mode)) if mode in list(Mode) else None
        lines.append([run.name, *map(number, losses), number(published)])
    return lines


def lost_percent(figures: Figures | None) -> float | None:
    if figures is None or not figures.expected:
        return None
    return 100 * figures.lost / figures.expected


# morales


def describe_morales(experiment: Experiment) -> PageSection:
    return _section(
        experiment,
        morales_report.TITLE,
        [morales_report.INTRODUCTION, morales_report.CHOICES],
        morales_report.BARS.lines,
        _morales_parts(experiment.runs),
    )


def _morales_parts(runs: Sequence[ReportRun]) -> Iterator[Html]:
    labels = "mean delay, ms"
    figure9 = list(_morales_curves(runs, _share))
    if figure9:
        chart = line_chart("Biased traffic", ("share of one topic, %", labels), figure9)
        yield html.figure(chart, "Mean delay of a publication (compare the document's figure 9)")
    figure10 = list(_morales_curves(runs, _window_s))
    if figure10:
        chart = line_chart("Bursts of biased traffic", ("window, s", labels), figure10, log_x=True)
        yield html.figure(chart, "The same for bursts, by the sliding window (compare its figure 10)")


def _morales_curves(runs: Sequence[ReportRun], place: Callable[[ReportRun], float | None]) -> Iterator[Curve]:
    """The naïve algorithm's delay is the mean of both halves, with the same traffic."""
    means = {
        (
            run.settings.get("uplink"),
            run.settings.get("traffic"),
            run.settings.get("algorithm"),
        ): run.figures.mean_ms
        for run in runs
    }
    for uplink in Uplink:
        hot, naive = [], []
        for run in runs:
            x = place(run) if run.settings.get("uplink") == uplink else None
            if x is None or run.figures.mean_ms is None:
                continue
            hot.append((x, run.figures.mean_ms))
            traffic = run.settings.get("traffic")
            halves = [means.get((uplink, traffic, f"naive{half}")) for half in (0, 1)]
            known = [half for half in halves if half is not None]
            if len(known) == len(halves):
                naive.append((x, mean(known)))
        for name, points in (("N", naive), ("HT", hot)):
            if points:
                yield Curve(f"{name}-{uplink.label}", sorted(points))


def _share(run: ReportRun) -> float | None:
    """Percent, of a run with biased traffic and the hot-topic algorithm."""
    found = re.fullmatch(rf"{re.escape(BIASED)}(\d+)", run.settings.get("traffic", ""))
    return float(found[1]) if found and _window_s(run, BIASED) is not None else None


def _window_s(run: ReportRun, traffic: str = BURST) -> float | None:
    """Of the hot-topic algorithm, in a run with this traffic."""
    found = re.fullmatch(r"hot([\d.]+)(ms|s)", run.settings.get("algorithm", ""))
    if found is None or not run.settings.get("traffic", "").startswith(traffic):
        return None
    return float(found[1]) / (1_000 if found[2] == "ms" else 1)


# storm


def describe_storm(experiment: Experiment) -> PageSection:
    return _section(
        experiment, storm_report.TITLE, [storm_report.INTRODUCTION], parts=_storm_parts(experiment.runs)
    )


def _storm_parts(runs: Sequence[ReportRun]) -> Iterator[Html]:
    lines = [["run", "kind", "expected", "lost", "doubled", "with DUP", "median, ms", "99 %", "slowest"]]
    for run in runs:
        for part in run.groups:
            figures = part.figures
            counts = (figures.expected, figures.lost, figures.doubled, figures.repeated)
            times = (figures.p50_ms, figures.p99_ms, figures.most_ms)
            lines.append([run.name, part.group, *map(str, counts), *map(number, times)])
    if len(lines) > 1:
        yield html.table(lines, "What each kind of subscriber lost and got again")


# backlog


def describe_backlog(experiment: Experiment) -> PageSection:
    return _section(
        experiment, backlog_report.TITLE, [backlog_report.INTRODUCTION], backlog_report.BARS.lines
    )


# overload


def describe_overload(experiment: Experiment) -> PageSection:
    return _section(
        experiment, overload_report.TITLE, [overload_report.INTRODUCTION], overload_report.BARS.lines
    )


# genera and zhang


def describe_genera(experiment: Experiment) -> PageSection:
    return _section(experiment, genera_report.TITLE, [genera_report.INTRODUCTION], genera_report.BARS.lines)


def describe_zhang(experiment: Experiment) -> PageSection:
    return _section(experiment, zhang_report.TITLE, [zhang_report.INTRODUCTION], zhang_report.BARS.lines)


# scale


def describe_scale(experiment: Experiment) -> PageSection:
    return _section(experiment, scale.TITLE, [scale.INTRODUCTION], parts=_scale_parts(rows_of(experiment)))


def _scale_parts(rows: Sequence[Row]) -> Iterator[Html]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found = re.fullmatch(rf"convergence/([a-z_-]+)/(\d+)/r{scale.REDUNDANCY}", row.name)
        if found and row.ours is not None:
            curves.setdefault(found[1], []).append((float(found[2]), row.ours))
    if curves:
        drawn = [Curve(topology, sorted(points)) for topology, points in curves.items()]
        chart = line_chart("Convergence", ("brokers", "seconds"), drawn, log_x=True)
        yield html.figure(chart, f"Time until all works, by the number of brokers, R = {scale.REDUNDANCY}")


DESCRIPTIONS: Mapping[str, Describe] = {
    "backlog": describe_backlog,
    "genera": describe_genera,
    "morales": describe_morales,
    "overload": describe_overload,
    "scale": describe_scale,
    "schmitt": describe_schmitt,
    "spohn": describe_spohn,
    "storm": describe_storm,
    "zhang": describe_zhang,
}
