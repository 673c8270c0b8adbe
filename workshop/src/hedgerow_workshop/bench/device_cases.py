"""The cases of `bench devices` that are no steady traffic of one kind.

Clients connect, subscribe, retain and come back; and a site has a mixture of all that there is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Disconnect, Publish
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import data_directory
from hedgerow_workshop.bench.device_loader import (
    STALL_S,
    Crowd,
    Device,
    Measured,
    Qos1Device,
    Reader,
    Socket,
    Traffic,
)
from hedgerow_workshop.bench.device_storm import Storm
from hedgerow_workshop.bench.device_wire import (
    client_context,
    connect_packet,
    framed,
    greet,
    make_certificate,
    open_tcp,
    open_tls,
    open_websocket,
    payload,
    publication,
    subscribe_packet,
)
from hedgerow_workshop.bench.peers import OURS, BrokerKind, Child, configured
from hedgerow_workshop.bench.rounds import Bench
from hedgerow_workshop.bench.scenarios import Figures, Scenario, latencies_us, medians
from hedgerow_workshop.programs import free_port

CONNACK, CONNACK_PRESENT = b"\x20\x02\0\0", b"\x20\x02\1\0"
SUBACK_QOS_1 = b"\x90\x03\0\x01\x01"
SETTLE_S = 0.3
FRAME_OF_ACKNOWLEDGEMENT = b"\x82\x04"  # of a server, around four bytes

STORM_CLIENTS = 5_000
SESSIONS, QUEUED = 2_000, 10
FILTERS, FILTERS_AT_ONCE, SUBSCRIBERS = 100_000, 10, 100
RETAINED, RETAINERS = 100_000, 100
SITE_DEVICES, DASHBOARDS = 1_000, 10
SITE_RATE = 3_000


@dataclass(frozen=True)
class DevicePlan:
    share: float = 1.0
    """Of the devices, clients, filters and messages of each case."""
    fresh_rounds: int = 3
    """Rounds of the cases that start their brokers anew each time."""

    def count(self, whole: int, at_least: int = 1) -> int:
        return max(at_least, int(whole * self.share))


class Noted:
    """What a case takes note of, beside its rows: how busy loader and broker were, and what was lost."""

    def __init__(self, bench: Bench, case: str) -> None:
        self._bench = bench
        self._case = case
        self._lost: dict[str, int] = {}
        self._deliveries: dict[str, int] = {}

    def measured(
        self, broker: BrokerKind, child: Child, run: Callable[[], Measured], *, is_paced: bool = False
    ) -> tuple[Measured, float]:
        """What a run came to, and the broker's processor time."""
        before, started = child.processor_s(), time.perf_counter()
        measured = run()
        used = max(child.processor_s() - before, 0.01)  # one tick of its clock
        if not is_paced:
            self._bench.saw(
                self._case, broker, loader=measured.busy, broker=used / (time.perf_counter() - started)
            )
        self._lost[broker.name] = self._lost.get(broker.name, 0) + measured.lost
        total = measured.deliveries + measured.lost
        self._deliveries[broker.name] = self._deliveries.get(broker.name, 0) + total
        return measured, used

    def tell(self) -> None:
        tell_busy(self._bench, self._case)
        for name, lost in self._lost.items():
            if lost:
                self._bench.note(f"{self._case}: {name} lost {lost} of {self._deliveries[name]}")


def tell_busy(bench: Bench, case: str) -> None:
    shares = [
        f"{name} {each['loader']:.2f} and {each['broker']:.2f}" for name, each in bench.busy[case].items()
    ]
    bench.note(f"{case}: of a core, loader and broker took at most: {'; '.join(shares)}")


@dataclass(frozen=True)
class Timed:
    """One round of a case: so many of what it counts, in so many seconds, of which the broker's processor
    took so many."""

    count: int
    seconds: float
    processor_s: float
    busy: float
    memory_bytes: float = 0.0


def rates(rounds: dict[BrokerKind, list[Timed]]) -> list[Figures]:
    """Per second, the median of the rounds; and per second of the broker's processor, of all together."""
    return [
        medians({broker: [each.count / each.seconds for each in of] for broker, of in rounds.items()}),
        per_processor_s(
            {broker: [(each.count, each.processor_s) for each in of] for broker, of in rounds.items()}
        ),
    ]


def per_processor_s(rounds: dict[BrokerKind, list[tuple[int, float]]]) -> Figures:
    return {
        broker.name: sum(count for count, _ in of) / sum(used for _, used in of)
        for broker, of in rounds.items()
    }


def timed(bench: Bench, case: str, broker: BrokerKind, child: Child, run: Callable[[], int]) -> Timed:
    before, own, started = child.processor_s(), time.process_time(), time.perf_counter()
    count = run()
    seconds = time.perf_counter() - started
    used = max(child.processor_s() - before, 0.01)
    busy = (time.process_time() - own) / seconds
    bench.saw(case, broker, loader=busy, broker=used / seconds)
    return Timed(count, seconds, used, busy)


# Brokers that listen on TLS and WebSocket too


@dataclass(frozen=True)
class Doors:
    tls: int
    websocket: int


@contextmanager
def running_with_doors(bench: Bench, broker: BrokerKind) -> Iterator[tuple[Child, Doors]]:
    doors = Doors(free_port(), free_port())
    certificate, key = make_certificate(bench.directory)
    if broker.name == OURS:
        addresses = f"--mqtts 127.0.0.1:{doors.tls} --ws 127.0.0.1:{doors.websocket}"
        words = (*addresses.split(), "--certificate", str(certificate), "--key", str(key))
        broker = replace(broker, command=partial(_with_words, broker, words))
    else:
        # As root it would become another user, which may not read the key.
        lines = ("user root\n" if os.geteuid() == 0 else "") + (
            f"listener {doors.tls} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n"
            f"listener {doors.websocket} 127.0.0.1\nprotocol websockets\n"
        )
        broker = configured(broker, lines)
    with bench.running(broker) as child:
        yield child, doors


def _with_words(broker: BrokerKind, words: Sequence[str], port: int, directory: Path) -> list[str]:
    """Its command, with these in the place of "no WebSocket"."""
    command = broker.command(port, directory)
    at = command.index("--ws")
    return [*command[:at], *words, *command[at + 2 :]]


# Storms


def storm(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], plan: DevicePlan, is_tls: bool
) -> list[Figures]:
    """So many clients connect at once; all stay until the last one is in."""
    packets = [((connect_packet(f"device-{n}"), CONNACK),) for n in range(plan.count(STORM_CLIENTS))]
    context = client_context() if is_tls else None

    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, int]:
        if not is_tls:
            child = stack.enter_context(bench.running(broker))
            return child, child.port
        child, doors = stack.enter_context(running_with_doors(bench, broker))
        return child, doors.tls

    def measure(broker: BrokerKind, subject: tuple[Child, int]) -> Timed:
        child, port = subject
        opened: list[Socket] = []

        def run() -> int:
            Storm(
                port, packets, lambda number, connection, _: opened.append(connection), context=context
            ).run()
            return len(packets)

        try:
            return timed(bench, rows[0], broker, child, run)
        finally:
            for connection in opened:
                connection.close()
            time.sleep(SETTLE_S)  # They all end, which is not what is measured.

    values = bench.interleave(bench.plan.rounds, brokers, prepare, measure)
    tell_busy(bench, rows[0])
    return rates(values)


# Sessions that come back


def reconnect(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], plan: DevicePlan, is_durable: bool
) -> list[Figures]:
    """Sessions for which messages wait come back at once, and get them."""
    sessions = plan.count(SESSIONS)
    topics = [f"site/{number % 10}/device/{number:04}/command" for number in range(sessions)]

    def coming(answer: bytes, *, subscribes: bool) -> list[tuple[tuple[bytes, bytes], ...]]:
        return [
            (
                (connect_packet(f"session-{number}", clean_start=False), answer),
                *([(subscribe_packet([topic], 1), SUBACK_QOS_1)] if subscribes else ()),
            )
            for number, topic in enumerate(topics)
        ]

    def leave(connections: list[Socket]) -> None:
        for connection in connections:
            connection.setblocking(True)
            connection.sendall(encode(Disconnect(), MQTT_3_1_1))
            connection.close()
        connections.clear()
        time.sleep(SETTLE_S)

    def prepare(broker: BrokerKind, stack: ExitStack) -> Child:
        arguments = ("--data", stack.enter_context(data_directory())) if is_durable else ()
        child = stack.enter_context(bench.running(broker, arguments))
        opened: list[Socket] = []
        Storm(child.port, coming(CONNACK, subscribes=True), lambda n, each, _: opened.append(each)).run()
        leave(opened)
        return child

    def measure(broker: BrokerKind, child: Child) -> Timed:
        _queue(child, topics)
        crowd, opened = Crowd(), list[Socket]()

        def came(number: int, connection: Socket, surplus: bytes) -> None:
            opened.append(connection)
            Reader(crowd, connection).take(surplus)

        def run() -> int:
            arriving = Storm(child.port, coming(CONNACK_PRESENT, subscribes=False), came)
            heard_at = time.perf_counter()
            while crowd.received < sessions * QUEUED:
                if (0 if arriving.is_over else arriving.turn(0.0)) + crowd.turn(0.001):
                    heard_at = time.perf_counter()
                elif time.perf_counter() - heard_at > STALL_S:
                    raise BenchError(f"stalled: {crowd.received} of {sessions * QUEUED} came")
            arriving.close()
            return crowd.received

        try:
            return timed(bench, rows[0], broker, child, run)
        finally:
            time.sleep(SETTLE_S)  # The last acknowledgements arrive.
            leave(opened)
            crowd.poll.close()

    values = bench.interleave(bench.plan.rounds, brokers, prepare, measure)
    tell_busy(bench, rows[0])
    return rates(values)


def _queue(child: Child, topics: Sequence[str]) -> None:
    """`QUEUED` messages for each, and wait until all are taken."""
    with child.dialect.connect(child.port, "commander") as connection:
        packets = [
            encode(Publish(topic, payload(number), 1, packet_id=number % 1_000 + 1), MQTT_3_1_1)
            for number, topic in enumerate(topics)
        ]
        for _ in range(QUEUED):
            for start in range(0, len(packets), 500):
                chunk = packets[start : start + 500]
                connection.sendall(b"".join(chunk))
                _take_bytes(connection, 4 * len(chunk))


def _take_bytes(connection: Socket, size: int) -> None:
    while size > 0:
        received = connection.recv(65_536)
        if not received:
            raise BenchError("closed a connection under load")
        size -= len(received)


# Subscriptions and retained messages


class _Asking:
    """A client with many packets to send, each when the one before is answered."""

    def __init__(self, crowd: Crowd, connection: Socket, packets: list[bytes]) -> None:
        self._crowd = crowd
        self._connection = connection
        self._left = iter(packets)
        crowd.add(connection, self.handle)
        self.go_on()

    def go_on(self) -> None:
        packet = next(self._left, None)
        if packet is not None:
            self._connection.send(packet)

    def handle(self) -> None:
        if not self._connection.recv(4_096):
            raise BenchError("closed a connection under load")
        self._crowd.received += 1
        self.go_on()


def _ask_all(child: Child, packets: list[list[bytes]], name: str) -> Callable[[], int]:
    """Each list is a client's. What is returned makes them all, and says how many were answered."""
    connections = [child.dialect.connect(child.port, f"{name}-{n}") for n in range(len(packets))]
    crowd = Crowd()

    def run() -> int:
        for connection, own in zip(connections, packets, strict=True):
            _Asking(crowd, connection, own)
        total = sum(map(len, packets))
        heard_at = time.perf_counter()
        while crowd.received < total:
            if crowd.turn():
                heard_at = time.perf_counter()
            elif time.perf_counter() - heard_at > STALL_S:
                raise BenchError(f"stalled: {crowd.received} of {total} packets were answered")
        crowd.close()
        return total

    return run


def subscribe(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], plan: DevicePlan
) -> list[Figures]:
    """So many filters from a hundred clients, ten to a packet; one in five ends with a wildcard."""
    count = plan.count(FILTERS, SUBSCRIBERS * FILTERS_AT_ONCE) // SUBSCRIBERS
    packets = []
    for client in range(SUBSCRIBERS):
        filters = [
            f"site/{client}/device/{number:04}/command" + ("/#" if number % 5 == 0 else "")
            for number in range(count)
        ]
        packets.append(
            [
                subscribe_packet(filters[start : start + FILTERS_AT_ONCE], 1)
                for start in range(0, count, FILTERS_AT_ONCE)
            ]
        )

    def measure(broker: BrokerKind, _: None) -> Timed:
        with bench.running(broker) as child:
            run = _ask_all(child, packets, "subscriber")
            time.sleep(SETTLE_S)
            memory = child.resident_bytes()
            found = timed(bench, rows[0], broker, child, run)
            total = count * SUBSCRIBERS
            return replace(found, count=total, memory_bytes=(child.resident_bytes() - memory) / total)

    values = bench.interleave(plan.fresh_rounds, brokers, _nothing, measure)
    tell_busy(bench, rows[0])
    return [*rates(values), _memory(values)]


def retain(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], plan: DevicePlan
) -> list[Figures]:
    """So many topics get a retained message, from a hundred devices; and then a client reads all of them."""
    count = plan.count(RETAINED, RETAINERS) // RETAINERS
    packets = [
        [
            encode(
                Publish(f"site/{device}/sensor/{number:04}", payload(number), 1, True, packet_id=1),
                MQTT_3_1_1,
            )
            for number in range(count)
        ]
        for device in range(RETAINERS)
    ]

    def measure(broker: BrokerKind, _: None) -> tuple[Timed, Timed]:
        with bench.running(broker) as child:
            run = _ask_all(child, packets, "device")
            time.sleep(SETTLE_S)
            memory = child.resident_bytes()
            stored = timed(bench, rows[0], broker, child, run)
            grown = (child.resident_bytes() - memory) / stored.count
            return replace(stored, memory_bytes=grown), timed(
                bench, rows[3], broker, child, lambda: _read_retained(child, stored.count)
            )

    values = bench.interleave(plan.fresh_rounds, brokers, _nothing, measure)
    for case in (rows[0], rows[3]):
        tell_busy(bench, case)
    stored = {broker: [each[0] for each in of] for broker, of in values.items()}
    read = {broker: [each[1] for each in of] for broker, of in values.items()}
    return [*rates(stored), _memory(stored), *rates(read)]


def _read_retained(child: Child, count: int) -> int:
    crowd = Crowd()
    try:
        connection = open_tcp(child.port)
        greet(connection, connect_packet("reader"), CONNACK[0], "CONNACK")
        connection.sendall(subscribe_packet(["site/#"], 1))
        Reader(crowd, connection)
        heard_at = time.perf_counter()
        while crowd.received < count:
            if crowd.turn():
                heard_at = time.perf_counter()
            elif time.perf_counter() - heard_at > STALL_S:
                raise BenchError(f"stalled: {crowd.received} of {count} retained messages came")
        return count
    finally:
        crowd.close()


def _memory(rounds: dict[BrokerKind, list[Timed]]) -> Figures:
    return medians({broker: [each.memory_bytes for each in of] for broker, of in rounds.items()})


def _nothing(broker: BrokerKind, stack: ExitStack) -> None:
    """Each round starts its broker anew."""


# All that a site has


def _site(child: Child, doors: Doors, plan: DevicePlan, stack: ExitStack) -> Traffic:
    """Pairs of devices, one at QoS 1, and one at QoS 0 that follows it. All retain what they say. Every
    second pair speaks MQTT 5; one in twenty comes by TLS, and one in twenty by WebSocket. One dashboard sees
    all, each of the others a part."""
    crowd = Crowd()
    stack.callback(crowd.close)
    parts = DASHBOARDS - 1
    for number in range(DASHBOARDS):
        topic_filter = f"site/{number}/+/+/state" if number < parts else "site/#"
        connection = open_tcp(child.port)
        greet(connection, connect_packet(f"dashboard-{number}"), CONNACK[0], "CONNACK")
        greet(connection, subscribe_packet([topic_filter], 1), SUBACK_QOS_1[0], "SUBACK")
        Reader(crowd, connection)
    devices: list[Device] = []
    for number in range(plan.count(SITE_DEVICES, 2) // 2):
        pair: list[Device] = []
        for qos in (0, 1):
            version = MQTT_5 if number % 2 else MQTT_3_1_1
            topic = f"site/{number % parts}/device/{number:04}-{qos}/state"
            connection, frame = _enter(child, doors, number, f"device-{number}-{qos}", version)
            packet = publication(
                child.dialect,
                topic,
                number,
                qos,
                retain=True,
                version=version,
                frame=framed if frame else bytes,
            )
            if qos:
                pair.append(Qos1Device(crowd, connection, packet, frame, pair[0]))
            else:
                pair.append(Device(crowd, connection, packet))
        devices += pair
    return Traffic(crowd, devices, copies=2)


def _enter(child: Child, doors: Doors, number: int, client_id: str, version: int) -> tuple[Socket, bytes]:
    """A connection, and what precedes each acknowledgement on it."""
    connect = connect_packet(client_id, version)
    connection: Socket
    if number % 20 == 7:
        connection, frame = open_tls(doors.tls), b""
    elif number % 20 == 13:
        connection, frame = open_websocket(doors.websocket), FRAME_OF_ACKNOWLEDGEMENT
        connect = framed(connect)
    else:
        connection, frame = open_tcp(child.port), b""
    greet(connection, connect, CONNACK[0], "CONNACK")
    return connection, frame


def mixed(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], plan: DevicePlan
) -> list[Figures]:
    noted = Noted(bench, rows[0])

    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, Traffic]:
        child, doors = stack.enter_context(running_with_doors(bench, broker))
        load = _site(child, doors, plan, stack)
        load.run(bench.plan.warm_up_s)
        return child, load

    def measure(broker: BrokerKind, subject: tuple[Child, Traffic]) -> tuple[Timed, list[int]]:
        child, load = subject
        seconds = bench.plan.round_s
        full, used = noted.measured(broker, child, partial(load.run, seconds))
        rate = SITE_RATE * plan.share
        paced, _ = noted.measured(broker, child, partial(load.run_paced, seconds, rate), is_paced=True)
        return Timed(full.deliveries, full.seconds, used, full.busy), paced.latencies

    values = bench.interleave(bench.plan.rounds, brokers, prepare, measure)
    noted.tell()
    return [
        *rates({broker: [each[0] for each in of] for broker, of in values.items()}),
        *latencies_us({broker: [each[1] for each in of] for broker, of in values.items()}),
    ]


# The rows

MQTT_PEERS = ("mosquitto", "aedes")
WITH_DOORS = ("mosquitto",)


def _case(
    name: str,
    unit: str,
    peers: tuple[str, ...],
    measure: Callable[..., list[Figures]],
    more: dict[str, str] | None = None,
) -> Scenario:
    rows = {name: f"{unit}/s", f"{name}/cpu": f"{unit}/cpu-s", **(more or {})}
    lower = frozenset(row for row in rows if row.endswith(("/memory", "/p50", "/p99")))
    return Scenario(rows, "higher", peers, measure, lower)


def other_scenarios(plan: DevicePlan) -> tuple[Scenario, ...]:
    reading = {"retain-100k-read": "msg/s", "retain-100k-read/cpu": "msg/cpu-s"}
    return (
        _case("mixed", "msg", WITH_DOORS, partial(mixed, plan=plan), {"mixed/p50": "µs", "mixed/p99": "µs"}),
        _case("storm", "connects", MQTT_PEERS, partial(storm, plan=plan, is_tls=False)),
        _case("storm-tls", "connects", WITH_DOORS, partial(storm, plan=plan, is_tls=True)),
        _case("reconnect", "msg", MQTT_PEERS, partial(reconnect, plan=plan, is_durable=False)),
        _case("reconnect-durable", "msg", MQTT_PEERS, partial(reconnect, plan=plan, is_durable=True)),
        _case(
            "subscribe-100k",
            "filters",
            MQTT_PEERS,
            partial(subscribe, plan=plan),
            {"subscribe-100k/memory": "bytes"},
        ),
        _case(
            "retain-100k",
            "msg",
            MQTT_PEERS,
            partial(retain, plan=plan),
            {"retain-100k/memory": "bytes"} | reading,
        ),
    )
