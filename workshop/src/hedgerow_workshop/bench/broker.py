"""`hedgerow bench broker`: our broker beside others, row by row.

The machine is taken to be noisy. So every row is measured in several short rounds that go round the
brokers (ours, a peer, the next, ours again …), after a warm-up; throughput is the median of the
rounds, latencies are pooled (`scenarios`).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.latency import LatencyPair
from hedgerow_workshop.bench.loader import PUBLISHERS, STALL_S, SUBSCRIBERS, Load
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child, raise_open_files
from hedgerow_workshop.bench.report import BenchRequest, BenchResult
from hedgerow_workshop.bench.rounds import FULL, QUICK, Bench, Plan
from hedgerow_workshop.bench.scenarios import Figures, Scenario, latencies_us, measure_all, medians, row_names
from hedgerow_workshop.bench.wire import Dialect

TOPIC = "bench/throughput"
_SPARE_FILES = 200
_SETTLE_S = 0.3
_SET_UP_S = 60.0
_MIB = 1 << 20

# Ten windows: an identifier is long free again when its turn comes, even with brokers that
# acknowledge out of order.
_PACKET_IDS = 10_000

TOPICS = [f"plant/a/machine/{number:04}/temp" for number in range(1_000)]
TOPICS_FILTER = "plant/a/machine/+/temp"
CROWD_CONNECTIONS = 20
# None of these matches a topic of `TOPICS`; all but the first lead a search some levels astray.
_CROWD_SHAPES = (
    "site/{i:04}/+/temp/{j}",
    "plant/a/machine/{i:04}/+/{j}",
    "plant/+/machine/{i:04}/state/{j}",
    "+/a/machine/{i:04}/{j}/#",
    "plant/a/+/{i:04}/{j}",
    "plant/a/machine/+/{i:04}-{j}",
)


@dataclass(frozen=True)
class Shape:
    publishers: int = 1
    subscribers: int = 1
    qos: int = 0
    durable: bool = False
    topics: tuple[str, ...] = (TOPIC,)
    topic_filter: str = TOPIC
    window: int = 6_000
    """Messages under way: half a MiB, unless said otherwise."""

    @property
    def chunk(self) -> int:
        """A quarter, so that the broker has the next chunk while the last is being counted."""
        return self.window // 4


MANY_TOPICS = Shape(topics=tuple(TOPICS), topic_filter=TOPICS_FILTER)
# Each message is ten deliveries: a smaller window holds as much work.
FAN_OUT = Shape(subscribers=10, window=2_000)
# Mosquitto is as fast with 1,000 unacknowledged as with its default of 20.
QOS_1 = Shape(qos=1, window=1_000)
QOS_2 = replace(QOS_1, qos=2)


def _packets(dialect: Dialect, shape: Shape) -> list[bytes]:
    """What a publisher repeats: whole chunks, with every topic and packet identifier in turn."""
    if shape.qos:
        return [dialect.publish(shape.topics[0], shape.qos, number) for number in range(1, _PACKET_IDS + 1)]
    packets = [dialect.publish(topic) for topic in shape.topics]
    return packets * (math.lcm(len(packets), shape.chunk) // len(packets))


def load(child: Child, shape: Shape, stall_s: float = STALL_S) -> Load:
    """Connections to the broker, ready to run. A durable subscriber has a session that outlives them."""
    dialect, qos = child.dialect, shape.qos
    sockets = ExitStack()
    with sockets:
        subscribers = []
        for number in range(shape.subscribers):
            connection = dialect.connect(child.port, f"subscriber-{number}", clean_start=not shape.durable)
            sockets.enter_context(connection)
            dialect.subscribe(connection, [shape.topic_filter], qos)
            delivery = dialect.delivery(shape.topics[0], qos)
            subscribers.append(SUBSCRIBERS[qos](connection, delivery, dialect.stray))
        packets = _packets(dialect, shape)
        publishers = []
        for number in range(shape.publishers):
            connection = dialect.connect(child.port, f"publisher-{number}")
            sockets.enter_context(connection)
            publishers.append(PUBLISHERS[qos](connection, packets, shape.chunk))
        sockets.pop_all()
    return Load(publishers, subscribers, shape.window, stall_s)


def _rate(bench: Bench, row: str, broker: BrokerKind, child: Child, loaded: Load, deliveries: int) -> float:
    """Deliveries a second in one round."""
    before = child.processor_s()
    measured = loaded.run(bench.plan.round_s)
    share = (child.processor_s() - before) / measured.seconds
    bench.saw(row, broker, loader=measured.busy, broker=share)
    return measured.messages * deliveries / measured.seconds


def throughput(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], shape: Shape
) -> list[Figures]:
    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, Load]:
        arguments = ("--data", stack.enter_context(data_directory())) if shape.durable else ()
        child = stack.enter_context(bench.running(broker, arguments))
        return child, warm_load(bench, child, shape, stack)

    def measure(broker: BrokerKind, subject: tuple[Child, Load]) -> float:
        return _rate(bench, rows[0], broker, *subject, shape.subscribers)

    return [medians(bench.interleave(bench.plan.rounds, brokers, prepare, measure))]


def matching(bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind]) -> list[Figures]:
    """Two processes of each broker, one with the crowd of subscriptions: the median ratio of the two."""

    def prepare(broker: BrokerKind, stack: ExitStack) -> list[tuple[Child, Load]]:
        children = [stack.enter_context(bench.running(broker)) for _ in ("alone", "crowded")]
        _subscribe_crowd(children[1], bench.plan.crowd_subscriptions, stack)
        return [(child, warm_load(bench, child, MANY_TOPICS, stack)) for child in children]

    def measure(broker: BrokerKind, pair: list[tuple[Child, Load]]) -> float:
        alone, crowded = (_rate(bench, rows[0], broker, *subject, 1) for subject in pair)
        return crowded / alone

    return [medians(bench.interleave(bench.plan.rounds, brokers, prepare, measure))]


def warm_load(bench: Bench, child: Child, shape: Shape, stack: ExitStack) -> Load:
    loaded = load(child, shape, bench.plan.stall_s)
    stack.callback(loaded.close)
    loaded.run(bench.plan.warm_up_s)
    return loaded


def crowd_filters(count: int) -> list[str]:
    """So many different wildcard filters that match none of the published topics."""
    kinds = len(_CROWD_SHAPES)
    return [
        _CROWD_SHAPES[n % kinds].format(i=n // kinds % 1_000, j=n // kinds // 1_000) for n in range(count)
    ]


def _subscribe_crowd(child: Child, subscriptions: int, stack: ExitStack) -> None:
    filters = crowd_filters(subscriptions)
    give_up_at = time.perf_counter() + _SET_UP_S
    for number in range(CROWD_CONNECTIONS):
        connection = stack.enter_context(child.dialect.connect(child.port, f"crowd-{number}"))
        child.dialect.subscribe(connection, filters[number::CROWD_CONNECTIONS])
        if time.perf_counter() > give_up_at:
            raise BenchError(f"took more than {_SET_UP_S:g} s for {subscriptions:,} subscriptions")


def latency(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], rate: int | None = None
) -> list[Figures]:
    """50th and 99th percentile in µs; without a rate, one message at a time."""

    def prepare(broker: BrokerKind, stack: ExitStack) -> LatencyPair:
        child = stack.enter_context(bench.running(broker))
        dialect = child.dialect
        subscriber = stack.enter_context(dialect.connect(child.port, "subscriber"))
        publisher = stack.enter_context(dialect.connect(child.port, "publisher"))
        dialect.subscribe(subscriber, [TOPIC])
        packet, delivery = dialect.publish(TOPIC), dialect.delivery(TOPIC)
        pair = LatencyPair(publisher, subscriber, packet, delivery, dialect.stray)
        pair.one_at_a_time(bench.plan.warm_up_s)
        return pair

    def measure(broker: BrokerKind, pair: LatencyPair) -> list[int]:
        seconds = bench.plan.round_s
        return pair.one_at_a_time(seconds) if rate is None else pair.paced(seconds, rate)

    return latencies_us(bench.interleave(bench.plan.rounds, brokers, prepare, measure))


def idle_node(bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind]) -> list[Figures]:
    """Start each broker several times: what it occupies, and how soon it answered."""

    def measure(broker: BrokerKind, _: None) -> tuple[float, float]:
        with bench.running(broker) as child:
            time.sleep(_SETTLE_S)
            return child.resident_bytes() / _MIB, child.ready_s

    starts = bench.interleave(bench.plan.starts, brokers, _nothing, measure)
    return [
        medians({broker: [value[index] for value in values] for broker, values in starts.items()})
        for index in (0, 1)
    ]


def idle_connections(bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind]) -> list[Figures]:
    """Resident memory with and without so many connections that say nothing, by connection."""
    connections = bench.plan.idle_connections
    needed, files = connections + _SPARE_FILES, raise_open_files()
    if files < needed:
        bench.note(f"{rows[0]}: needs {needed} open files, and the hard limit is {files}")
        return [{}]

    def measure(broker: BrokerKind, _: None) -> float:
        with ExitStack() as stack:
            child = stack.enter_context(bench.running(broker, ("--limit", "connects_per_s=0")))
            time.sleep(_SETTLE_S)
            before = child.resident_bytes()
            give_up_at = time.perf_counter() + _SET_UP_S
            for number in range(connections):
                stack.enter_context(child.dialect.connect(child.port, f"idle-{number}"))
                if time.perf_counter() > give_up_at:
                    raise BenchError(f"took more than {_SET_UP_S:g} s for {number + 1:,} connections")
            time.sleep(_SETTLE_S)
            return (child.resident_bytes() - before) / connections

    return [medians(bench.interleave(1, brokers, _nothing, measure))]


def _nothing(broker: BrokerKind, stack: ExitStack) -> None:
    """Where starting the broker is a part of the measurement."""


@contextmanager
def data_directory() -> Iterator[str]:
    """For a store, on a disk: a commit to memory would cost nothing."""
    for candidate in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):  # noqa: S108
        if candidate.is_dir() and file_system(candidate) not in {"tmpfs", "ramfs"}:
            with tempfile.TemporaryDirectory(prefix="hedgerow-bench-", dir=candidate) as directory:
                yield directory
            return
    raise BenchError("no directory on a disk for the store; set TMPDIR to one")


def file_system(path: Path, mounts_file: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that holds `path`, by the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in mounts_file.read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(above)[1] if above else "unknown"


MQTT_PEERS = ("mosquitto", "amqtt", "aedes")
ALL_PEERS = ("mosquitto", "nats-server", "amqtt", "aedes")
QUICK_PEERS = ("mosquitto", "nats-server")
FORWARDING = (*ALL_PEERS, "ceiling")
# amqtt takes 50 s to accept 100,000 filters, and compares each topic with all of them.
INDEXED_PEERS = ("mosquitto", "nats-server", "aedes")


def _throughput(row: str, peers: tuple[str, ...], shape: Shape, unit: str = "msg/s") -> Scenario:
    return Scenario({row: unit}, "higher", peers, partial(throughput, shape=shape))


def _latency(name: str, rate: int | None) -> Scenario:
    rows = {f"{name}-p50": "µs", f"{name}-p99": "µs"}
    return Scenario(rows, "lower", FORWARDING, partial(latency, rate=rate))


SCENARIOS = (
    _throughput("qos0-1to1", FORWARDING, Shape()),
    _throughput("qos0-1to10", FORWARDING, FAN_OUT, "deliveries/s"),
    _throughput("qos0-5to1", FORWARDING, Shape(publishers=5)),
    _throughput("qos0-topics", FORWARDING, MANY_TOPICS),
    _throughput("qos1-1to1", MQTT_PEERS, QOS_1),
    _throughput("qos1-durable", MQTT_PEERS, replace(QOS_1, durable=True)),
    _throughput("qos2-1to1", MQTT_PEERS, QOS_2),
    _latency("latency-1", None),
    _latency("latency-1000", 1_000),
    Scenario({"memory-idle-node": "MiB", "ready": "s"}, "lower", ALL_PEERS, idle_node),
    Scenario({"memory-idle-connection": "bytes"}, "lower", ALL_PEERS, idle_connections),
    Scenario({"matching-100k": "×"}, "higher", INDEXED_PEERS, matching),
)
ROW_NAMES = row_names(SCENARIOS)


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, FORWARDING)
    names = request.peers
    if names is None:
        names = QUICK_PEERS if request.quick else ALL_PEERS
    peers = [BROKERS[name] for name in names]
    return measure_all(SCENARIOS, BROKERS[OURS], peers, plan(request.quick, len(names)), request.only)


def plan(quick: bool, peers: int) -> Plan:
    """A quick run stays within a minute: with more peers than usual, each gets fewer rounds."""
    if not quick:
        return FULL
    return QUICK if peers <= len(QUICK_PEERS) else replace(QUICK, rounds=2, round_s=0.15, starts=1)
