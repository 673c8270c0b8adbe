"""`hedgerow bench broker`: our broker beside others, row by row.

The machine is taken to be noisy. So every row is measured in several short rounds that go round the
brokers (ours, a peer, the next, ours again …), after a warm-up; throughput is the median of the
rounds, latencies are pooled. A row starts its brokers anew, so that it does not depend on the rows
before it. A peer that cannot be measured leaves its place empty, with a line that says why; if ours
cannot, the bench ends with that error.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hedgerow.bench import BenchError
from hedgerow.bench.latency import Pair
from hedgerow.bench.loader import PUBLISHERS, SUBSCRIBERS, Load
from hedgerow.bench.peers import BROKERS, OURS, Broker, Child, raise_open_files
from hedgerow.bench.report import Better, Request, Result, Row, machine, progress
from hedgerow.bench.rounds import FULL, QUICK, Bench, Plan
from hedgerow.bench.wire import Dialect
from hedgerow.errors import ConfigError

Figures = dict[str, dict[str, float]]
"""By row and by broker."""

TOPIC = "bench/throughput"
IDLE_CONNECTIONS = 5_000
_SPARE_FILES = 200
_SETTLE_S = 0.3
_MIB = 1 << 20

# Messages under way at QoS 0: half a MiB with one subscriber, fewer with many, as each message is many
# deliveries. At QoS 1 and 2: what brokers take unacknowledged; Mosquitto is as fast with 1,000 as with
# its default of 20. A chunk is a small part of it, so that the broker always has the next one.
_WINDOW = 6_000
_WINDOW_AT_LEAST = 2_000
_WINDOW_UNACKNOWLEDGED = 1_000
# Ten windows: an identifier is long free again when its turn comes, even with brokers that
# acknowledge out of order.
_PACKET_IDS = 10_000

CROWD_TOPICS = [f"plant/a/machine/{number:04}/temp" for number in range(1_000)]
CROWD_FILTER = "plant/a/machine/+/temp"
CROWD_CONNECTIONS = 20
CROWD_SUBSCRIPTIONS = 100_000
# None of these matches a topic of `CROWD_TOPICS`; all but the first lead a search some levels astray.
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


def _packets(dialect: Dialect, topics: tuple[str, ...], qos: int) -> list[bytes]:
    """What a publisher repeats: a whole number of chunks, with every topic and packet identifier in turn."""
    if qos:
        return [dialect.publish(topics[0], qos, packet_id) for packet_id in range(1, _PACKET_IDS + 1)]
    packets = [dialect.publish(topic) for topic in topics]
    return packets * (math.lcm(len(packets), _CHUNKS[0]) // len(packets))


def load(child: Child, shape: Shape) -> Load:
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
        packets = _packets(dialect, shape.topics, qos)
        publishers = []
        for number in range(shape.publishers):
            connection = dialect.connect(child.port, f"publisher-{number}")
            sockets.enter_context(connection)
            publishers.append(PUBLISHERS[qos](connection, packets, _CHUNKS[qos]))
        sockets.pop_all()
    return Load(publishers, subscribers, _WINDOWS[qos])


def _rate(bench: Bench, row: str, broker: Broker, child: Child, loaded: Load, deliveries: int) -> float:
    """Deliveries a second in one round."""
    before = child.processor_s()
    measured = loaded.run(bench.plan.round_s)
    bench.saw(row, broker, measured.busy, (child.processor_s() - before) / measured.seconds)
    return measured.messages * deliveries / measured.seconds


def throughput(bench: Bench, row: str, brokers: Sequence[Broker], shape: Shape) -> Figures:
    with ExitStack() as stack:

        def make(broker: Broker) -> tuple[Child, Load]:
            arguments = ("--data", stack.enter_context(_data_directory())) if shape.durable else ()
            child = stack.enter_context(bench.running(broker, arguments))
            loaded = load(child, shape)
            stack.callback(loaded.close)
            loaded.run(bench.plan.warm_up_s)
            return child, loaded

        def measure(broker: Broker, subject: tuple[Child, Load]) -> float:
            return _rate(bench, row, broker, *subject, shape.subscribers)

        rates = bench.each(bench.plan.rounds, bench.prepare(brokers, make), measure)
    return {row: {broker.name: statistics.median(values) for broker, values in rates.items()}}


def matching(bench: Bench, row: str, brokers: Sequence[Broker]) -> Figures:
    """Two processes of each broker, one with the crowd of subscriptions: the median ratio of the two."""
    shape = Shape(topics=tuple(CROWD_TOPICS), topic_filter=CROWD_FILTER)
    with ExitStack() as stack:

        def make(broker: Broker) -> list[tuple[Child, Load]]:
            pair = []
            for subscriptions in (0, CROWD_SUBSCRIPTIONS):
                child = stack.enter_context(bench.running(broker))
                _subscribe_crowd(child, stack, subscriptions)
                loaded = load(child, shape)
                stack.callback(loaded.close)
                loaded.run(bench.plan.warm_up_s)
                pair.append((child, loaded))
            return pair

        def measure(broker: Broker, pair: list[tuple[Child, Load]]) -> float:
            alone, crowded = (_rate(bench, row, broker, *subject, 1) for subject in pair)
            return crowded / alone

        ratios = bench.each(bench.plan.rounds, bench.prepare(brokers, make), measure)
    return {row: {broker.name: statistics.median(values) for broker, values in ratios.items()}}


def crowd_filters(count: int) -> list[str]:
    """So many different wildcard filters that match none of the published topics."""
    kinds = len(_CROWD_SHAPES)
    return [
        _CROWD_SHAPES[n % kinds].format(i=n // kinds % 1_000, j=n // kinds // 1_000) for n in range(count)
    ]


def _subscribe_crowd(child: Child, stack: ExitStack, count: int) -> None:
    filters = crowd_filters(count)
    for number in range(CROWD_CONNECTIONS if count else 0):
        connection = stack.enter_context(child.dialect.connect(child.port, f"crowd-{number}"))
        child.dialect.subscribe(connection, filters[number::CROWD_CONNECTIONS])


def latency(bench: Bench, row: str, brokers: Sequence[Broker], rate: int | None) -> Figures:
    """50th and 99th percentile in µs; `rate` None: one message at a time."""
    with ExitStack() as stack:

        def make(broker: Broker) -> Pair:
            child = stack.enter_context(bench.running(broker))
            dialect = child.dialect
            subscriber = stack.enter_context(dialect.connect(child.port, "subscriber"))
            publisher = stack.enter_context(dialect.connect(child.port, "publisher"))
            dialect.subscribe(subscriber, [TOPIC])
            packet, delivery = dialect.publish(TOPIC), dialect.delivery(TOPIC)
            pair = Pair(publisher, subscriber, packet, delivery, dialect.stray)
            pair.one_at_a_time(bench.plan.warm_up_s)
            return pair

        def measure(broker: Broker, pair: Pair) -> list[int]:
            seconds = bench.plan.round_s
            return pair.one_at_a_time(seconds) if rate is None else pair.paced(seconds, rate)

        rounds = bench.each(bench.plan.rounds, bench.prepare(brokers, make), measure)
    figures: Figures = {f"{row}-p50": {}, f"{row}-p99": {}}
    for broker, lists in rounds.items():
        pooled = sorted(value for values in lists for value in values)
        for percent in (50, 99):
            figures[f"{row}-p{percent}"][broker.name] = pooled[len(pooled) * percent // 100] / 1_000
    return figures


def idle_node(bench: Bench, row: str, brokers: Sequence[Broker]) -> Figures:
    """Start each broker several times: how soon it answers, and what it then occupies."""

    def measure(broker: Broker, _: Broker) -> tuple[float, float]:
        with bench.running(broker) as child:
            time.sleep(_SETTLE_S)
            return child.ready_s, child.resident_bytes() / _MIB

    starts = bench.each(bench.plan.starts, {broker: broker for broker in brokers}, measure)
    return {
        name: {broker.name: statistics.median(v[index] for v in values) for broker, values in starts.items()}
        for index, name in enumerate(("ready", "memory-idle-node"))
    }


def idle_connections(bench: Bench, row: str, brokers: Sequence[Broker]) -> Figures:
    """Resident memory with and without so many connections that say nothing, by connection."""
    files = raise_open_files()
    if files < IDLE_CONNECTIONS + _SPARE_FILES:
        bench.note(f"{row}: needs {IDLE_CONNECTIONS + _SPARE_FILES} open files, the hard limit is {files}")
        return {row: {}}

    def measure(broker: Broker, _: Broker) -> float:
        with ExitStack() as stack:
            child = stack.enter_context(bench.running(broker, ("--limit", "connects_per_s=0")))
            time.sleep(_SETTLE_S)
            before = child.resident_bytes()
            for number in range(IDLE_CONNECTIONS):
                stack.enter_context(child.dialect.connect(child.port, f"idle-{number}"))
            time.sleep(_SETTLE_S)
            return (child.resident_bytes() - before) / IDLE_CONNECTIONS

    values = bench.each(1, {broker: broker for broker in brokers}, measure)
    return {row: {broker.name: value for broker, (value,) in values.items()}}


@contextmanager
def _data_directory() -> Iterator[str]:
    """For a store, on a disk: a commit to memory would cost nothing."""
    for candidate in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):  # noqa: S108
        if candidate.is_dir() and _file_system(candidate) not in {"tmpfs", "ramfs"}:
            with tempfile.TemporaryDirectory(prefix="hedgerow-bench-", dir=candidate) as directory:
                yield directory
            return
    raise BenchError("no directory on a disk for the store; set TMPDIR to one")


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path`, by the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(above)[1] if above else "unknown"


Measure = Callable[[Bench, str, Sequence[Broker]], Figures]
MQTT_PEERS = ("mosquitto", "amqtt", "aedes")
ALL_PEERS = ("mosquitto", "nats-server", "amqtt", "aedes")
FORWARDING = (*ALL_PEERS, "ceiling")
# amqtt compares a topic with every filter in turn; 100,000 of them are beyond it.
QUICK_PEERS = ("mosquitto", "nats-server")
INDEXED_PEERS = ("mosquitto", "nats-server", "aedes")


@dataclass(frozen=True)
class Scenario:
    """What one measurement yields: a row, or several that begin with its name."""

    name: str
    unit: str
    better: Better
    peers: tuple[str, ...]
    measure: Measure
    rows: dict[str, str] = field(default_factory=dict)
    """Where there are several: their names and units."""

    def units(self) -> dict[str, str]:
        return self.rows or {self.name: self.unit}


def _latency_rows(name: str) -> dict[str, str]:
    return {f"{name}-p50": "µs", f"{name}-p99": "µs"}


SCENARIOS = (
    Scenario("qos0-1to1", "msg/s", "higher", FORWARDING, partial(throughput, shape=Shape())),
    Scenario(
        "qos0-1to10", "deliveries/s", "higher", FORWARDING, partial(throughput, shape=Shape(subscribers=10))
    ),
    Scenario("qos0-5to1", "msg/s", "higher", FORWARDING, partial(throughput, shape=Shape(publishers=5))),
    Scenario("qos1-1to1", "msg/s", "higher", MQTT_PEERS, partial(throughput, shape=Shape(qos=1))),
    Scenario(
        "qos1-durable", "msg/s", "higher", MQTT_PEERS, partial(throughput, shape=Shape(qos=1, durable=True))
    ),
    Scenario("qos2-1to1", "msg/s", "higher", MQTT_PEERS, partial(throughput, shape=Shape(qos=2))),
    Scenario("latency-1", "µs", "lower", FORWARDING, partial(latency, rate=None), _latency_rows("latency-1")),
    Scenario(
        "latency-1000", "µs", "lower", FORWARDING, partial(latency, rate=1_000), _latency_rows("latency-1000")
    ),
    Scenario("idle", "", "lower", ALL_PEERS, idle_node, {"memory-idle-node": "MiB", "ready": "s"}),
    Scenario("memory-idle-connection", "bytes", "lower", ALL_PEERS, idle_connections),
    Scenario("matching-100k", "of none", "higher", INDEXED_PEERS, matching),
)
ROW_NAMES = tuple(name for scenario in SCENARIOS for name in scenario.units())


def run(request: Request) -> Result:
    ours = BROKERS[OURS]
    unknown = [name for name in request.only if name not in ROW_NAMES]
    if unknown:
        raise ConfigError(f"no row {', '.join(unknown)}; there are {', '.join(ROW_NAMES)}")
    names = request.peers if request.peers is not None else (QUICK_PEERS if request.quick else ALL_PEERS)
    return measure(ours, [_peer(name) for name in names], QUICK if request.quick else FULL, request.only)


def _peer(name: str) -> Broker:
    if name not in FORWARDING:
        raise ConfigError(f"no peer {name}; there are {', '.join(FORWARDING)}")
    return BROKERS[name]


def measure(ours: Broker, peers: Sequence[Broker], plan: Plan, only: Sequence[str] = ()) -> Result:
    """All rows, or those named in `only`."""
    scenarios = [s for s in SCENARIOS if not only or not set(only).isdisjoint(s.units())]
    raise_open_files()
    with (
        tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as directory,
        progress(len(scenarios)) as shown,
    ):
        bench = Bench(plan, ours, Path(directory), shown)
        versions = {broker.name: broker.version() for broker in (ours, *peers)}
        installed = [broker for broker in peers if versions[broker.name] is not None]
        for broker in peers:
            if broker not in installed:
                bench.note(f"{broker.name}: not installed")
        rows = []
        for scenario in scenarios:
            brokers = [ours, *(broker for broker in installed if broker.name in scenario.peers)]
            shown.begin(scenario.name, plan.rounds * len(brokers))
            figures = scenario.measure(bench, scenario.name, brokers)
            rows += [row for row in _rows(scenario, figures, ours.name) if not only or row.name in only]
    about: dict[str, object] = {
        "versions": {name: version for name, version in versions.items() if version},
        "machine": machine(),
        "busy": bench.busy,
        "notes": bench.notes,
    }
    return Result(ours.name, [broker.name for broker in installed], rows, about)


def _rows(scenario: Scenario, figures: Figures, ours: str) -> list[Row]:
    rows = []
    for name, unit in scenario.units().items():
        values = dict(figures[name])
        if ours in values:
            rows.append(Row(name, unit, scenario.better, values.pop(ours), values))
    return rows
