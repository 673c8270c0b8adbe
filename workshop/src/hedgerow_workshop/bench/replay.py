"""`hedgerow bench replay`: how fast one client reads a node's past, and what the others notice of it.

A node with `--journal` records messages of 64 bytes: at QoS 0 in runs of one topic, or between others; and at
QoS 1. Then one client reads them all, over and over; `kept` is one whose session is stored. Rates are told as
they are and by second of the node's processor time, which other programs disturb least. A pair
of clients measures the time of every live message, alone and beside a client that reads without a pause.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io.files import durable_position
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.latency import LatencyPair
from hedgerow_workshop.bench.monitoring import TICK_S
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child
from hedgerow_workshop.bench.replay_reader import begin, read
from hedgerow_workshop.bench.report import (
    BenchRequest,
    BenchResult,
    BenchRow,
    Progress,
    make_result,
    measuring,
)
from hedgerow_workshop.bench.rounds import FULL, QUICK, Bench, Plan

ALONE = "alone"
KINDS = ("runs-qos0", "singles-qos0", "qos1", "qos1-kept")
LIVE_ROW = "live-p99"
ROW_NAMES = (*(f"{kind}{suffix}" for kind in KINDS for suffix in ("", "-processor")), LIVE_ROW)
TOPIC, LIVE_TOPIC = "bench/past", "live/now"
AT_LEAST = {"runs-qos0": 500_000.0, "qos1": 50_000.0}  # msg/s
AT_MOST = 1.5  # of the 99th percentile of live messages alone
LIVE_RATE = 1_000  # messages a second
RECORDED_S = 20.0
_CHUNK = 200


class Sizes(NamedTuple):
    runs: int
    others: int
    live_s: float


FULL_SIZES, QUICK_SIZES = Sizes(1_000_000, 100_000, 5.0), Sizes(200_000, 20_000, 1.5)


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, (ALONE,))
    plan, sizes = (QUICK, QUICK_SIZES) if request.quick else (FULL, FULL_SIZES)
    return measure(BROKERS[OURS], plan, sizes, request.only)


def measure(broker: BrokerKind, plan: Plan, sizes: Sizes, only: tuple[str, ...] = ()) -> BenchResult:
    kinds = [kind for kind in KINDS if not only or {kind, f"{kind}-processor"} & set(only)]
    with_live = not only or LIVE_ROW in only
    rows: list[BenchRow] = []
    with measuring(len(kinds) + with_live) as (directory, shown):
        bench = Bench(plan, broker, directory, shown)
        for kind in kinds:
            shown.begin(kind, plan.rounds)
            rows += _rate_rows(bench, shown, kind, sizes.runs if kind == "runs-qos0" else sizes.others)
        if with_live:
            shown.begin(LIVE_ROW, 2 * plan.rounds)
            rows.append(_live_row(bench, shown, sizes))
    return make_result(broker.name, [ALONE], rows, only, {OURS: broker.version()}, bench.notes)


@contextmanager
def _recorded(bench: Bench, kind: str, count: int) -> Iterator[Child]:
    """A node that has recorded so many messages."""
    journal = Path(tempfile.mkdtemp(prefix="journal-", dir=bench.directory))
    arguments = ["--journal", "bench/#", "--journal-dir", str(journal)]
    if kind == "qos1-kept":
        arguments += ["--data", str(bench.directory / "data")]
    with bench.running(bench.ours, arguments) as child:
        _record(child, kind, count, journal)
        yield child


def _record(child: Child, kind: str, count: int, journal: Path) -> None:
    qos = int(kind.startswith("qos1"))
    with closing(child.dialect.connect(child.port)) as publisher:
        if kind == "runs-qos0":
            chunk = child.dialect.publish(TOPIC) * _CHUNK
        else:
            packets = [child.dialect.publish(TOPIC, qos, qos * (number + 1)) for number in range(_CHUNK)]
            other = [child.dialect.publish("bench/other")] * (kind == "singles-qos0")
            # Packets of another topic between them, so that none is in a row.
            chunk = b"".join(b"".join((packet, *other)) for packet in packets)
        recorded_each = _CHUNK * (2 if kind == "singles-qos0" else 1)
        for done in range(0, count, _CHUNK):
            publisher.sendall(chunk)
            if qos:
                _receive(publisher, 4 * _CHUNK)
            else:
                _wait_for(journal, done // _CHUNK * recorded_each - 20 * recorded_each)
        _wait_for(journal, count // _CHUNK * recorded_each)


def _receive(publisher: object, size: int) -> None:
    while size:
        size -= len(publisher.recv(size))  # type: ignore[attr-defined]


def _wait_for(journal: Path, position: int) -> None:
    """What is published at QoS 0 is missed where it comes faster than the disk takes it."""
    give_up_at = time.monotonic() + RECORDED_S
    while (durable_position(journal) or 0) < position:
        if time.monotonic() > give_up_at:
            raise BenchError(f"recorded {durable_position(journal)} of {position} messages")
        time.sleep(0.001)


def _rate_rows(bench: Bench, shown: Progress, kind: str, count: int) -> list[BenchRow]:
    qos = int(kind.startswith("qos1"))
    rates, took = [], 0.0
    with _recorded(bench, kind, count) as child:
        delivery = child.dialect.delivery(TOPIC, qos)
        for number in range(bench.plan.rounds):
            name = f"reader-{number}" if kind == "qos1-kept" else ""
            before = child.processor_s()
            subscriber = begin(child.port, TOPIC, delivery, qos, name)
            with closing(subscriber.socket):
                rates.append(count / read(subscriber, count))
            took += child.processor_s() - before
            shown.step(f"{rates[-1]:,.0f} msg/s")
    rate = statistics.median(rates)
    at_least = AT_LEAST.get(kind)
    if at_least is not None and rate < at_least:
        bench.note(f"{kind}: {rate:,.0f} msg/s is less than the {at_least:,.0f} that we promise")
    by_processor = count * len(rates) / max(took, TICK_S)
    return [
        BenchRow(kind, "msg/s", "higher", rate),
        BenchRow(f"{kind}-processor", "msg/s", "higher", by_processor),
    ]


def _live_row(bench: Bench, shown: Progress, sizes: Sizes) -> BenchRow:
    """The 99th percentile of all live messages: alone, and beside a replay."""
    alone, beside = list[int](), list[int]()
    with _recorded(bench, "runs-qos0", sizes.runs) as child:
        for _ in range(bench.plan.rounds):
            alone += _live(child, sizes.live_s)
            shown.step(ALONE)
            words = [str(child.port), TOPIC, str(sizes.runs), "0"]
            command = [sys.executable, "-m", "hedgerow_workshop.bench.replay_reader", *words]
            with bench.running_beside("replay-reader", command) as reader:
                _wait_until_it_reads(child)
                beside += _live(child, sizes.live_s)
                if (end := reader.how_it_ended()) is not None:
                    raise BenchError(f"the reader {end}")
            shown.step("beside a replay")
    row = BenchRow(LIVE_ROW, "µs", "lower", _p99(beside) / 1e3, {ALONE: _p99(alone) / 1e3})
    if row.ratio[ALONE] > AT_MOST:
        bench.note(f"{LIVE_ROW}: {row.ratio[ALONE]:.2f}× is more than the {AT_MOST:g}× that we promise")
    return row


def _live(child: Child, seconds: float) -> list[int]:
    with ExitStack() as stack:
        subscriber = stack.enter_context(closing(child.dialect.connect(child.port)))
        publisher = stack.enter_context(closing(child.dialect.connect(child.port)))
        child.dialect.subscribe(subscriber, [LIVE_TOPIC])
        packet = child.dialect.publish(LIVE_TOPIC)
        pair = LatencyPair(publisher, subscriber, packet, child.dialect.delivery(LIVE_TOPIC), b"")
        return pair.paced(seconds, LIVE_RATE)


def _wait_until_it_reads(child: Child) -> None:
    """A node that hands out nothing uses next to no processor time."""
    give_up_at = time.monotonic() + RECORDED_S
    begun = child.processor_s()
    while child.processor_s() - begun < 5 * TICK_S:
        if time.monotonic() > give_up_at:
            raise BenchError("the reader reads nothing")
        time.sleep(TICK_S)


def _p99(latencies: list[int]) -> float:
    return statistics.quantiles(latencies, n=100)[-1]
