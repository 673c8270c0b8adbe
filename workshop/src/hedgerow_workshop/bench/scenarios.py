"""Rows of brokers side by side: what is measured of each, and the result that it becomes.

A scenario starts its brokers anew, so that it does not depend on those before it. A peer that cannot be
measured leaves its place empty, with a line that says why; if ours cannot, the bench ends with that error.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hedgerow_workshop.bench.peers import BrokerKind, raise_open_files
from hedgerow_workshop.bench.report import BenchResult, BenchRow, Better, make_result, measuring
from hedgerow_workshop.bench.rounds import AnyContender, Bench, Plan, find_installed
from hedgerow_workshop.percentiles import percentile

Figures = dict[str, float]
"""One row's, by the name of the broker."""
Measure = Callable[[Bench, Sequence[str], Sequence[BrokerKind]], list[Figures]]


@dataclass(frozen=True)
class Scenario:
    """One measurement; `rows` are the names and units of the figures that it yields, in order."""

    rows: dict[str, str]
    better: Better
    peers: tuple[str, ...]
    measure: Measure
    lower: frozenset[str] = frozenset()
    """Rows for which less is better, where more of the others is."""


def row_names(scenarios: Sequence[Scenario]) -> tuple[str, ...]:
    return tuple(name for scenario in scenarios for name in scenario.rows)


def measure_all(
    scenarios: Sequence[Scenario],
    ours: BrokerKind,
    peers: Sequence[BrokerKind],
    plan: Plan,
    only: Sequence[str] = (),
) -> BenchResult:
    """All rows, or those named in `only`."""
    chosen = [scenario for scenario in scenarios if not only or not scenario.rows.keys().isdisjoint(only)]
    raise_open_files()
    rows: list[BenchRow] = []
    with measuring(len(chosen)) as (directory, shown):
        bench = Bench(plan, ours, directory, shown)
        versions, installed = find_installed(bench, ours, peers)
        for scenario in chosen:
            brokers = [ours, *(broker for broker in installed if broker.name in scenario.peers)]
            shown.begin(", ".join(scenario.rows), (plan.rounds + 1) * len(brokers))
            rows += _rows(scenario, scenario.measure(bench, list(scenario.rows), brokers), ours.name)
    names = [broker.name for broker in installed]
    return make_result(ours.name, names, rows, only, versions, bench.notes, busy=bench.busy)


def _rows(scenario: Scenario, figures: list[Figures], ours: str) -> Iterator[BenchRow]:
    for (name, unit), values in zip(scenario.rows.items(), figures, strict=True):
        if ours in values:
            peers = {broker: value for broker, value in values.items() if broker != ours}
            better = "lower" if name in scenario.lower else scenario.better
            yield BenchRow(name, unit, better, values[ours], peers)


# What rounds come to


def medians(rounds: Mapping[AnyContender, Sequence[float]]) -> Figures:
    return {contender.name: statistics.median(values) for contender, values in rounds.items()}


def latencies_us(rounds: Mapping[AnyContender, Sequence[Sequence[int]]]) -> list[Figures]:
    """50th and 99th percentile in µs, of the nanoseconds of all rounds together."""
    pooled = {
        contender.name: sorted(value for values in lists for value in values)
        for contender, lists in rounds.items()
    }
    return [
        {name: percentile(values, percent) / 1_000 for name, values in pooled.items()} for percent in (50, 99)
    ]
