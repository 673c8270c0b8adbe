"""`hedgerow bench monitoring`: what it costs our broker to count hot topics.

Two of our brokers, one with `--hot-topics` and one without, are measured side by side: the row `qos0-1to1` of
`hedgerow bench broker`, where a message costs least, and what so many topics take that each has one message.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import Shape, warm_load
from hedgerow_workshop.bench.loader import Load
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child
from hedgerow_workshop.bench.report import BenchRequest, BenchResult, BenchRow, Better, make_result, measuring
from hedgerow_workshop.bench.rounds import FULL, QUICK, Bench, Plan
from hedgerow_workshop.bench.scenarios import medians

SPEED_ROW, PROCESSOR_ROW, MEMORY_ROW = ROW_NAMES = ("monitoring", "monitoring-processor", "memory-topics")
AT_LEAST = 0.95  # of the messages a second without monitoring
AT_MOST_MIB = 64.0  # more than without monitoring

TOPICS = 1_000_000
QUICK_TOPICS = 100_000
TOPIC_PREFIX = "bench/memory/"
CHUNK = 1_000  # topics under way: nothing is dropped
TICK_S = 0.01  # the least processor time that is told
_SETTLE_S = 0.3
_RECEIVE_BYTES = 262_144
_MIB = 1 << 20


@dataclass(frozen=True)
class MonitoredPair:
    """A broker with monitoring, and the same without."""

    monitoring: BrokerKind
    plain: BrokerKind
    at_least: float = AT_LEAST
    at_most_mib: float = AT_MOST_MIB

    @property
    def brokers(self) -> tuple[BrokerKind, BrokerKind]:
        return self.monitoring, self.plain


def pair_of(broker: BrokerKind, *arguments: str) -> MonitoredPair:
    def command(port: int, directory: Path) -> list[str]:
        return [*broker.command(port, directory), *arguments]

    return MonitoredPair(replace(broker, name="monitoring", command=command), replace(broker, name="plain"))


PAIR = pair_of(BROKERS[OURS], "--hot-topics")


class SideBySide(Bench):
    def is_ours(self, contender: BrokerKind) -> bool:
        return True


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, (PAIR.plain.name,))
    # The difference that is asked about is smaller than that between two rounds: many, and short ones.
    plan = replace(QUICK, rounds=15) if request.quick else replace(FULL, rounds=51, round_s=0.3)
    return measure(PAIR, plan, QUICK_TOPICS if request.quick else TOPICS, request.only)


def measure(pair: MonitoredPair, plan: Plan, topics: int, only: Sequence[str] = ()) -> BenchResult:
    """All rows, or those named in `only`."""
    stages = [
        stage for stage in (ROW_NAMES[:2], ROW_NAMES[2:]) if not only or not set(stage).isdisjoint(only)
    ]
    rows: list[BenchRow] = []
    with measuring(len(stages)) as (directory, shown):
        bench = SideBySide(plan, pair.monitoring, directory, shown)
        for stage in stages:
            shown.begin(", ".join(stage), (plan.rounds + 1) * len(pair.brokers))
            rows += [memory(bench, pair, topics)] if MEMORY_ROW in stage else speed(bench, pair)
    versions = {OURS: pair.plain.version()}
    names = pair.monitoring.name, [pair.plain.name]
    return make_result(*names, rows, only, versions, bench.notes, busy=bench.busy)


def speed(bench: Bench, pair: MonitoredPair) -> list[BenchRow]:
    """Messages a second, and by second of the broker's processor time: that is what others disturb least."""

    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, Load]:
        child = stack.enter_context(bench.running(broker))
        return child, warm_load(bench, child, Shape(), stack)

    def measure_round(broker: BrokerKind, subject: tuple[Child, Load]) -> tuple[float, float, int]:
        child, loaded = subject
        before = child.processor_s()
        measured = loaded.run(bench.plan.round_s)
        processor_s = child.processor_s() - before
        bench.saw(SPEED_ROW, broker, loader=measured.busy, broker=processor_s / measured.seconds)
        return measured.messages / measured.seconds, processor_s, measured.messages

    rounds = bench.interleave(bench.plan.rounds, pair.brokers, prepare, measure_round)
    rates = {broker.name: statistics.median(rate for rate, _, _ in taken) for broker, taken in rounds.items()}
    by_processor = {
        broker.name: sum(messages for _, _, messages in taken)
        / max(sum(took for _, took, _ in taken), TICK_S)
        for broker, taken in rounds.items()
    }
    rows = [
        _row(SPEED_ROW, "msg/s", "higher", pair, rates),
        _row(PROCESSOR_ROW, "msg/s", "higher", pair, by_processor),
    ]
    for row in rows:
        ratio = row.ratio[pair.plain.name]
        if ratio < pair.at_least:
            bench.note(f"{row.name}: {ratio:.3f}× is less than the {pair.at_least:g}× that we promise")
    return rows


def memory(bench: Bench, pair: MonitoredPair, topics: int) -> BenchRow:
    """By how much a broker grows."""

    def measure_one(broker: BrokerKind, _: None) -> float:
        with bench.running(broker) as child:
            time.sleep(_SETTLE_S)
            before = child.resident_bytes()
            publish_topics(child, topics)
            return (child.resident_bytes() - before) / _MIB

    values = bench.interleave(1, pair.brokers, lambda broker, stack: None, measure_one)
    row = _row(MEMORY_ROW, "MiB", "lower", pair, medians(values))
    more = row.ours - row.peers[pair.plain.name]
    bench.note(f"{MEMORY_ROW}: {topics:,} topics, {more:.1f} MiB more with monitoring")
    if more > pair.at_most_mib:
        bench.note(f"{MEMORY_ROW}: that is more than the {pair.at_most_mib:g} MiB that we promise")
    return row


def publish_topics(child: Child, topics: int) -> None:
    """One message to each of so many topics, all of which a subscriber gets."""
    dialect = child.dialect
    with ExitStack() as stack:
        subscriber = stack.enter_context(dialect.connect(child.port, "subscriber"))
        dialect.subscribe(subscriber, [TOPIC_PREFIX + "#"])
        publisher = stack.enter_context(dialect.connect(child.port, "publisher"))
        for start in range(0, topics, CHUNK):
            names = [f"{TOPIC_PREFIX}{n:07}" for n in range(start, min(start + CHUNK, topics))]
            publisher.sendall(b"".join(map(dialect.publish, names)))
            missing = len(names) * len(dialect.delivery(names[0]))
            while missing > 0:
                try:
                    data = subscriber.recv(_RECEIVE_BYTES)
                except TimeoutError:
                    raise BenchError(f"{missing} bytes of {len(names)} messages did not arrive") from None
                if not data:
                    raise BenchError("closed the connection of the subscriber")
                missing -= len(data)


def _row(name: str, unit: str, better: Better, pair: MonitoredPair, figures: dict[str, float]) -> BenchRow:
    plain = {pair.plain.name: figures[pair.plain.name]}
    return BenchRow(name, unit, better, figures[pair.monitoring.name], plain)
