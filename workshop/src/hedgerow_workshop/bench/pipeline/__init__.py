"""`hedgerow bench pipeline`: from the fabric into Spark, beside Spark's own Parquet source and beside the
obvious alternative.

| row | |
| --- | --- |
| `ingest` | rows/s from a journal into bronze, beside the same rows from Parquet files |
| `hot` | rows/s through the windowed hot topics, likewise |
| `rollup` | readings/s into minutes, hours and days, beside the same by plain Spark on Parquet |
| `anomalies` | s that a batch of 1,000 readings takes where 100,000 sensors are watched |
| `linear` | what 4 million rows cost beside 4 times what 1 million cost; 2 million are told in a note |
| `journal-cost` | the share of its throughput (QoS 0, 1 → 1) that a broker keeps with its journal on |
| `freshness` | s from publish to a row in bronze, 95th percentile, at 5,000 messages/s |
| `flood` | rows/s from a flood at the broker into a table, beside a paho subscriber that writes Parquet |
| `stall` | acknowledged messages that are missing after the reader stood still for 10 s, beside the same |
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow_workshop.bench import journal_cost
from hedgerow_workshop.bench.pipeline import alternative, live, rolling, throughput, watching
from hedgerow_workshop.bench.pipeline.recording import record
from hedgerow_workshop.bench.report import (
    BenchRequest,
    BenchResult,
    BenchRow,
    Progress,
    make_result,
    measuring,
)
from hedgerow_workshop.percentiles import percentile_95

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS, SPARK = "hedgerow", "spark-parquet"
AT_LEAST = 0.5  # of the rows a second from Parquet files
AT_MOST_FRESHNESS_S = 2.0
LINEAR_WITHIN = 0.15


@dataclass(frozen=True)
class PipelinePlan:
    rows: int
    """Of the smallest recording."""
    rounds: int
    rate: float
    seconds: float
    """Of traffic, where it is live."""
    flood: int
    stall_s: float
    sensors: int
    at_least: float = AT_LEAST


FULL = PipelinePlan(
    rows=1_000_000, rounds=5, rate=5_000, seconds=30, flood=1_000_000, stall_s=10, sensors=100_000
)
QUICK = PipelinePlan(rows=100_000, rounds=1, rate=1_000, seconds=4, flood=50_000, stall_s=1, sensors=10_000)


class PipelineBench:
    def __init__(self, plan: PipelinePlan, spark: SparkSession, directory: Path, shown: Progress) -> None:
        self.plan = plan
        self.notes: list[str] = []
        self.has_alternative = True
        self._spark = spark
        self._directory = directory
        self._shown = shown
        self._count = 0

    def next_directory(self) -> Path:
        self._count += 1
        place = self._directory / str(self._count)
        place.mkdir()
        return place

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._shown.note(text)

    def race(self, name: str) -> BenchRow:
        recording = record(self.next_directory() / "recording", self.plan.rows)
        return self._race(
            name, recording.rows, lambda source: throughput.seconds(self._spark, name, source, recording)
        )

    def rollup(self) -> BenchRow:
        readings = rolling.Readings(self._spark, self.next_directory(), self.plan.rows)

        def seconds(source: str) -> float:
            readings.forget()
            return readings.seconds(source)

        return self._race(rolling.ROW, readings.rows, seconds, rolling.AT_LEAST)

    def _race(
        self, name: str, rows: int, seconds: Callable[[str], float], at_least: float | None = None
    ) -> BenchRow:
        """Both sources in turn, so that a slow minute falls on both; medians."""
        took: dict[str, list[float]] = {source: [] for source in (OURS, SPARK)}
        for number in range(self.plan.rounds + 1):
            for source, values in took.items():
                self._shown.step(f"{name} from {source}, round {number}")
                value = seconds(source)
                if number or not self.plan.rounds:  # In the first the JVM compiles.
                    values.append(value)
        rates = {source: rows / statistics.median(values) for source, values in took.items()}
        ratio, at_least = rates[OURS] / rates[SPARK], at_least or self.plan.at_least
        if ratio < at_least:
            self.note(f"{name}: {ratio:.3f}× is less than the {at_least:g}× that we promise")
        return BenchRow(name, "rows/s", "higher", rates[OURS], {SPARK: rates[SPARK]})

    def anomalies(self) -> BenchRow:
        self._shown.step(f"{self.plan.sensors:,} sensors")
        took = watching.batches_s(self._spark, self.next_directory(), self.plan.sensors)
        typical = statistics.median(took)
        self.note(f"anomalies: {len(took)} batches, from {min(took):.2f} s to {max(took):.2f} s")
        if typical > watching.AT_MOST_S:
            self.note(f"anomalies: {typical:.2f} s is more than the {watching.AT_MOST_S:g} s that we promise")
        return BenchRow(watching.ROW, "s", "lower", typical)

    def linear(self) -> BenchRow:
        recordings = [
            record(self.next_directory() / "recording", times * self.plan.rows) for times in (1, 2, 4)
        ]
        took: list[list[float]] = [[] for _ in recordings]
        throughput.seconds(self._spark, "ingest", OURS, recordings[0])
        for number in range(self.plan.rounds):
            for values, recording in zip(took, recordings, strict=True):
                self._shown.step(f"{recording.rows:,} rows, round {number + 1}")
                values.append(throughput.seconds(self._spark, "ingest", OURS, recording))
        once, twice, four_times = (statistics.median(values) for values in took)
        shares = {2: twice / (2 * once), 4: four_times / (4 * once)}
        self.note(
            f"linear: {once:.2f} s, {twice:.2f} s and {four_times:.2f} s; of proportional: "
            + ", ".join(f"{share:.3f} for {times} times the rows" for times, share in shares.items())
        )
        worst = max(abs(share - 1) for share in shares.values())
        if worst > LINEAR_WITHIN:
            self.note(
                f"linear: {worst:.0%} from proportional is more than the {LINEAR_WITHIN:.0%} that we promise"
            )
        return BenchRow("linear", "× proportional", "lower", shares[4])

    def journal_cost(self) -> BenchRow:
        costs = [journal_cost.measure() for _ in range(self.plan.rounds)]
        share = statistics.median(cost.share for cost in costs)
        processor = statistics.median(cost.processor for cost in costs)
        recorded = min(cost.recorded for cost in costs)
        self.note(f"journal-cost: by processor time {processor:.2f} kept; at least {recorded:.1%} recorded")
        if share < journal_cost.AT_LEAST:
            self.note(f"journal-cost: {share:.3f} is less than the {journal_cost.AT_LEAST:g} that we promise")
        return BenchRow(journal_cost.ROW, "share kept", "higher", share)

    def freshness(self) -> BenchRow:
        self._shown.step(f"{self.plan.rate:g} messages a second for {self.plan.seconds:g} s")
        place = self.next_directory()
        ages = sorted(live.freshness(self._spark, place, self.plan.rate, self.plan.seconds))
        p95 = percentile_95(ages)
        self.note(
            f"freshness: {len(ages):,} rows, median {statistics.median(ages):.2f} s, p95 {p95:.2f} s, "
            f"at most {ages[-1]:.2f} s"
        )
        if p95 > AT_MOST_FRESHNESS_S:
            self.note(f"freshness: that is more than the {AT_MOST_FRESHNESS_S:g} s that we promise")
        return BenchRow("freshness", "s", "lower", p95)

    def flood(self) -> BenchRow:
        ours = live.flood(self._spark, self.next_directory(), self.plan.flood)
        peers = {}
        if self.has_alternative:
            rate, came = alternative.flood(self.next_directory(), self.plan.flood)
            peers[alternative.NAME] = rate
            self.note(
                f"flood: of {self.plan.flood:,} messages, {came:,} came to {alternative.NAME}, all to ours"
            )
        return BenchRow("flood", "rows/s", "higher", ours, peers)

    def stall(self) -> BenchRow:
        plan = self.plan
        ours = live.stall(self._spark, self.next_directory(), plan.rate, plan.stall_s)
        peers = {}
        if self.has_alternative:
            lost = alternative.stall(self.next_directory(), plan.rate, plan.stall_s)
            peers[alternative.NAME] = float(lost)
        return BenchRow("stall", "lost", "lower", ours, peers)


ROWS: dict[str, Callable[[PipelineBench], BenchRow]] = {
    "ingest": lambda bench: bench.race("ingest"),
    "hot": lambda bench: bench.race("hot"),
    "rollup": PipelineBench.rollup,
    "anomalies": PipelineBench.anomalies,
    "linear": PipelineBench.linear,
    "journal-cost": PipelineBench.journal_cost,
    "freshness": PipelineBench.freshness,
    "flood": PipelineBench.flood,
    "stall": PipelineBench.stall,
}


def run(request: BenchRequest) -> BenchResult:
    request.check(tuple(ROWS), (SPARK, alternative.NAME))
    has_alternative = request.peers is None or alternative.NAME in request.peers
    return measure(QUICK if request.quick else FULL, request.only, has_alternative)


def measure(
    plan: PipelinePlan,
    only: tuple[str, ...] = (),
    has_alternative: bool = True,
    spark: SparkSession | None = None,
) -> BenchResult:
    """All rows, or those named in `only`; in a Spark of its own, unless one is given."""
    from hedgerow.pipeline.session import open_session

    names = [name for name in ROWS if not only or name in only]
    rows: list[BenchRow] = []
    session = spark or open_session("hedgerow bench")
    try:
        with measuring(len(names)) as (directory, shown):
            bench = PipelineBench(plan, session, directory, shown)
            bench.has_alternative = has_alternative and alternative.is_installed()
            for name in names:
                shown.begin(name, plan.rounds)
                rows.append(ROWS[name](bench))
        versions = {"spark": session.version}
    finally:
        if spark is None:
            session.stop()
    peers = [peer for peer in (SPARK, alternative.NAME) if any(peer in row.peers for row in rows)]
    return make_result(OURS, peers, rows, (), versions, bench.notes)
