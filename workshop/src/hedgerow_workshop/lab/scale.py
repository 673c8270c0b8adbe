"""`hedgerow lab run scale`: how the federation does as it grows, on the simulator.

Sizes are swept for every topology, then redundancy, then churn, each around the same middle; then, on the
document's grid, the number of filters. One process a core; each configuration is a pure function of its
parameters, and only the time that it took to compute is not.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.pipeline.report.charts import Curve
from hedgerow_workshop.lab.harness.experiment import Request, Result, hand_in
from hedgerow_workshop.lab.harness.figures import (
    html_figure,
    html_paragraph,
    html_table,
    plot_curves,
    write_page,
)
from hedgerow_workshop.lab.harness.rows import NONE, Row, number, row_cells
from hedgerow_workshop.sim.configuration import run_configuration
from hedgerow_workshop.sim.filters import PLACINGS, FilterParameters, FilterTraffic, measure_filters
from hedgerow_workshop.sim.simulation import (
    CHURN,
    RECOVERED,
    REPAIRED,
    UNNOTICED,
    WHOLE,
    Measured,
    Parameters,
    failed,
)
from hedgerow_workshop.sim.topologies import TOPOLOGIES

MOST_PER_LINK = 2.0  # Theorem 1 of the document
REDUNDANCY = 2
REDUNDANCIES = (1, 2, 3, 4)
CHURNS = (0.1, 0.5)
LARGE = 10_000  # from here on one number of failures is enough
FILTERS = (1, 100, 10_000)
TITLE = "The federation as it grows"
INTRODUCTION = (
    "Virtual brokers on links of 5 ms, ten of them with subscribers of one filter. All start at once. "
    "Convergence is the time until every broker follows the right core, and what is published at any of "
    "five random brokers would reach every subscriber, from then on. Then brokers of the mesh fall silent "
    "(k of them): publications at random brokers are sent at once, before anybody can have noticed, and "
    "after the repair. What is delivered is counted at all brokers with subscribers that live and can be "
    "reached: before the failure was noticed, and when it was repaired and what had waited was sent again. "
    "Stretch is the number of links that a publication travelled, over that of the shortest way. With "
    "churn, a share of all brokers dies each minute, half of them silently, and returns after ten seconds. "
    "What filters cost is measured on the document's grid, where each has subscribers at two brokers."
)

Timed = tuple[Measured, float]
"""A result, and the seconds of processor time that it took."""


def run(
    request: Request,
    configurations: Sequence[Parameters] | None = None,
    filters: Sequence[FilterParameters] | None = None,
    cores: int | None = None,
) -> Result:
    """What is not given, it chooses."""
    if request.timeline is not None or request.broker != "hedgerow":
        raise ConfigError("scale runs on the simulator: it takes neither --timeline nor --broker")
    request.make_out()
    configurations = configurations or list(choose_configurations(request.fast))
    done = compute(configurations, request.say, cores)
    rows = make_rows(done)
    for parameters in filters or choose_filters(request.fast):
        traffic = measure_filters(parameters)
        request.say(f"{parameters.count} filters, {parameters.placing}")
        rows += filter_rows(traffic)
    notes = list(make_notes(done))
    return hand_in(request, "scale", [], rows, notes, lambda out: write_report(out, done, rows, notes))


# The sweep


def choose_configurations(fast: bool) -> Iterator[Parameters]:
    """The dearest first, so that no core has one left when the others have done."""
    sizes = (100, 1_000) if fast else (100, 1_000, LARGE)
    middle = 100 if fast else 1_000
    for size in reversed(sizes):
        for topology in TOPOLOGIES:
            whole = Parameters(topology=topology, size=size, redundancy=REDUNDANCY)
            yield replace(whole, failures=(1,)) if size >= LARGE else whole
            if size == middle:
                yield from (replace(whole, redundancy=r) for r in REDUNDANCIES if r != REDUNDANCY)
                yield from (replace(whole, failures=(), churn=churn) for churn in CHURNS)


def choose_filters(fast: bool) -> Iterator[FilterParameters]:
    for placing in PLACINGS:
        yield from (FilterParameters(placing, count) for count in (FILTERS[:-1] if fast else FILTERS))


def compute(
    configurations: Sequence[Parameters], say: Callable[[str], None], cores: int | None = None
) -> list[Timed]:
    """In the order of the configurations."""
    workers = min(cores or os.cpu_count() or 1, len(configurations))
    done: dict[Parameters, Timed] = {}
    if workers <= 1:
        for parameters in configurations:
            done[parameters] = compute_one(parameters)
            say(_progress(done[parameters], len(done), len(configurations)))
    else:
        # Leaving the block ends whatever still runs. Workers that are replaced one by one (maxtasksperchild)
        # may not hear it: one that is just being forked has its parent's answer to SIGTERM.
        with get_context().Pool(workers, _begin_worker) as pool:
            for timed in pool.imap_unordered(compute_one, configurations):
                done[timed[0].parameters] = timed
                say(_progress(timed, len(done), len(configurations)))
            pool.close()
            pool.join()
    return [done[parameters] for parameters in configurations]


def compute_one(parameters: Parameters) -> Timed:
    began_at = time.process_time()
    return run_configuration(parameters), time.process_time() - began_at


def _begin_worker() -> None:
    """Ctrl-C goes to the whole group; the parent alone answers it, and ends its workers by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _progress(timed: Timed, count: int, total: int) -> str:
    measured, seconds = timed
    return f"{count}/{total} {name_of(measured.parameters)}: {seconds:.1f} s"


def name_of(parameters: Parameters) -> str:
    name = f"{parameters.topology}/{parameters.size}/r{parameters.redundancy}"
    return f"{name}/churn{100 * parameters.churn:.0f}" if parameters.churn else name


# Rows


def make_rows(done: Iterable[Timed]) -> list[Row]:
    done = sorted(done, key=lambda timed: _order(timed[0].parameters))
    every = [measured for measured, _ in done]
    rows = [Row("messages/worst", "per link", max(one.messages_per_link for one in every), MOST_PER_LINK)]
    for kind in (WHOLE, failed(1, RECOVERED), failed(1, REPAIRED)):
        ratios = [
            ratio
            for one in every
            if one.parameters.redundancy >= REDUNDANCY and (ratio := one.deliveries.get(kind)) is not None
        ]
        rows.append(Row(f"delivery/worst/{kind}", "%", _percent(min(ratios, default=None))))
    for measured, seconds in done:
        rows += _rows_of(measured, seconds)
    return rows


def _rows_of(measured: Measured, seconds: float) -> Iterator[Row]:
    name = name_of(measured.parameters)
    if not measured.parameters.churn:
        yield Row(f"convergence/{name}", "s", measured.converged_after_s)
        yield Row(f"stretch/{name}", "×", measured.stretch_mean)
    yield Row(f"messages/{name}", "per link", measured.messages_per_link, MOST_PER_LINK)
    for kind, ratio in measured.deliveries.items():
        if kind != WHOLE or not measured.parameters.churn:
            yield Row(f"delivery/{name}" + ("" if kind == CHURN else f"/{kind}"), "%", _percent(ratio))
    yield Row(f"compute/{name}", "s", seconds)


def filter_rows(measured: FilterTraffic) -> Iterator[Row]:
    name = f"filters/{measured.parameters.placing}/{measured.parameters.count}"
    occasions = {
        "beginning": measured.beginning,
        "announcement": measured.announcement,
        "change": measured.change,
    }
    for occasion, traffic in occasions.items():
        yield Row(f"{name}/{occasion}/packets", "per link", traffic.packets)
        yield Row(f"{name}/{occasion}/bytes", "per link", traffic.size)


def make_notes(done: Iterable[Timed]) -> Iterator[str]:
    for measured, _ in done:
        name = name_of(measured.parameters)
        if measured.converged_after_s is None:
            yield f"{name}: did not converge."
        for count, after_s in measured.repaired_after_s.items():
            if after_s is None:
                yield f"{name}: did not work again with {count} brokers dead."


def _order(parameters: Parameters) -> tuple[int, int, int, float]:
    place = list(TOPOLOGIES).index(parameters.topology)
    return place, parameters.size, parameters.redundancy, parameters.churn


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


# The report


def write_report(directory: Path, done: Sequence[Timed], rows: Sequence[Row], notes: Sequence[str]) -> Path:
    every = [measured for measured, _ in done]
    (directory / "results.json").write_text(json.dumps([asdict(one) for one in every], indent=2) + "\n")
    sizes, failures = directory / "convergence.png", directory / "failures.png"
    plot_curves(sizes, "Convergence, R = 2", ("brokers", "seconds"), list(_convergence_curves(every)), {})
    plot_curves(failures, "Delivered before anyone noticed", ("dead", "%"), list(_failure_curves(every)), {})
    parts = [
        html_paragraph(INTRODUCTION),
        *map(html_paragraph, notes),
        html_figure(sizes, "Time until all works, by the number of brokers"),
        html_figure(failures, "Delivered with k silent brokers of the mesh, mean of all topologies"),
        "<h2>Each configuration</h2>",
        html_table(_configuration_lines(every)),
        "<h2>Rows</h2>",
        html_table(row_cells(rows)),
    ]
    return write_page(directory, TITLE, parts)


def _convergence_curves(every: Sequence[Measured]) -> Iterator[Curve]:
    for topology in TOPOLOGIES:
        points = [
            (one.parameters.size, one.converged_after_s)
            for one in every
            if (one.parameters.topology, one.parameters.redundancy) == (topology, REDUNDANCY)
            and one.converged_after_s is not None
            and not one.parameters.churn
        ]
        yield Curve(topology, sorted(points))


def _failure_curves(every: Sequence[Measured]) -> Iterator[Curve]:
    for redundancy in REDUNDANCIES:
        ratios: dict[int, list[float]] = {}
        for one in every:
            for count in one.parameters.failures if one.parameters.redundancy == redundancy else ():
                ratio = one.deliveries[failed(count, UNNOTICED)]
                if ratio is not None:
                    ratios.setdefault(count, []).append(100 * ratio)
        points = [(float(count), sum(values) / len(values)) for count, values in sorted(ratios.items())]
        yield Curve(f"R = {redundancy}", points)


def _configuration_lines(every: Iterable[Measured]) -> list[list[str]]:
    kinds = list(dict.fromkeys(kind for one in every for kind in one.deliveries))
    lines = [["", "links", "converged, s", "mesh", "per link", "stretch", "copies", "late changes", *kinds]]
    for one in sorted(every, key=lambda one: _order(one.parameters)):
        figures = (one.converged_after_s, one.mesh, one.messages_per_link, one.stretch_mean)
        cells = [
            name_of(one.parameters),
            str(one.links),
            *map(number, figures),
            number(one.copies_per_arrival),
        ]
        shares = [_percent(one.deliveries.get(kind)) for kind in kinds]
        lines.append([*cells, *(NONE if share is None else f"{share:.1f} %" for share in shares)])
    return lines
