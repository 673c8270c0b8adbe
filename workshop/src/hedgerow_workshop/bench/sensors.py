"""`hedgerow bench sensors`: our UDP broker beside a bare echo and a bare fan-out of the same packets.

The peers are the shortest programs that Python has for it (`udp_echo`): what they do is the limit, and the
ratio says what parsing, limiting, remembering and publishing to MQTT cost. Rounds go round the brokers as in
`hedgerow bench broker`. The loader is one process. The loop is closed: at most `WINDOW` packets are under
way, fewer than a socket's buffer holds. What counts is what arrived; what did not is a note.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hedgerow.sensors.packet import PUBLISHER, SUBSCRIBER, build
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.latency import LatencyPair
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child
from hedgerow_workshop.bench.report import BenchRequest, BenchResult
from hedgerow_workshop.bench.rounds import FULL, QUICK, Bench
from hedgerow_workshop.bench.scenarios import Figures, Scenario, latencies_us, measure_all, medians, row_names
from hedgerow_workshop.bench.wire import ANSWER_S, PAYLOAD

TOPIC, READINESS_TOPIC = 1, 3
PACKET = build(12345, PUBLISHER, TOPIC, PAYLOAD)
WINDOW = 128  # a small datagram takes 768 bytes of a socket's 208 KiB
CHUNK = 32
FAN_OUT = 10
LOST_S = 1.0  # on loopback, what has not come by then will not, however busy the machine is
_UDP_SEGMENT = 103  # <linux/udp.h>: the kernel cuts what is sent into datagrams of this size


class SensorDialect:
    """How a UDP broker is spoken to. A connection is a socket that is subscribed, and has been answered.

    Nobody can unsubscribe. So a connection without a name, which only finds out whether the broker is there,
    has a topic of its own: otherwise every packet that is measured would go to its closed socket too.
    """

    stray = b""

    def connect(self, port: int, client_id: str = "", clean_start: bool = True) -> socket.socket:
        connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            connection.connect(("127.0.0.1", port))
            connection.settimeout(ANSWER_S)
            topic = TOPIC if client_id else READINESS_TOPIC
            own_port = connection.getsockname()[1]
            # One of its own, so that the last value, which may be another's, is not taken for it.
            probe = build(12345, PUBLISHER, topic, b"%d" % own_port)
            connection.send(build(own_port, SUBSCRIBER, topic))
            connection.send(probe)
            while connection.recv(len(PACKET)) != probe:
                pass
        except TimeoutError:
            connection.close()
            raise BenchError(f"no answer within {ANSWER_S:g} s") from None
        except BaseException:
            connection.close()
            raise
        return connection

    def subscribe(self, connection: socket.socket, topic_filters: Sequence[str], qos: int = 0) -> None:
        """Every connection is subscribed already."""

    def publish(self, topic: str, qos: int = 0, packet_id: int = 0) -> bytes:
        return PACKET

    def delivery(self, topic: str, qos: int = 0) -> bytes:
        return PACKET


class EchoDialect(SensorDialect):
    """An echo answers the publisher and nobody else."""


def _publisher(child: Child, subscriber: socket.socket, stack: ExitStack) -> socket.socket:
    """Where it can be, a socket that subscribes to nothing: what comes back unchanged from a subscriber's
    port is a loop to a node."""
    if isinstance(child.dialect, EchoDialect):
        return subscriber
    publisher = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    publisher.connect(("127.0.0.1", child.port))
    return publisher


def _hedgerow_command(port: int, directory: Path) -> list[str]:
    off = [word for scheme in ("mqtt", "ws", "http") for word in (f"--{scheme}", "off")]
    return [sys.executable, "-m", "hedgerow", "up", *off, "--udp", f"127.0.0.1:{port}"]


def _bare_command(port: int, directory: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "hedgerow_workshop.bench.udp_echo", str(port), *words]


def _announcing(
    name: str,
    version: Callable[[], str | None],
    command: Callable[[int, Path], list[str]],
    dialect: SensorDialect | None = None,
) -> BrokerKind:
    """A UDP broker that chooses its port itself.

    A socket that asks at a port that nobody has yet may get the same port: then it hears itself, and takes
    that for the broker.
    """
    return BrokerKind(name, dialect or SensorDialect(), version, command, announces_port=True)


SENSOR_BROKERS = {
    broker.name: broker
    for broker in (
        _announcing(OURS, BROKERS[OURS].version, _hedgerow_command),
        _announcing("echo", lambda: "", _bare_command, EchoDialect()),
        _announcing("fan-out", lambda: "", lambda *given: _bare_command(*given, "fan-out")),
    )
}
PEERS = ("echo", "fan-out")


class PacketLoad:
    """Packets from one publisher to all subscribers."""

    def __init__(self, child: Child, subscribers: int, stack: ExitStack, lost_s: float = LOST_S) -> None:
        self.lost = 0
        self._sockets = [
            stack.enter_context(child.dialect.connect(child.port, "subscriber")) for _ in range(subscribers)
        ]
        limit = struct.pack("ll", int(lost_s), int(lost_s % 1 * 1e6))
        for each in self._sockets:
            _drain(each)
            each.settimeout(None)
            # The kernel's own time limit: Python's would add a poll() to every receive.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._send_chunk = _chunk_sender(_publisher(child, self._sockets[0], stack))
        self._buffer = bytearray(2 * len(PACKET))

    def run(self, seconds: float) -> tuple[int, float, float]:
        """Deliveries, seconds, and how much of one core this process took."""
        started_at, busy_before = time.perf_counter(), time.process_time()
        stop_at = started_at + seconds
        delivered, under_way = 0, CHUNK
        self._send_chunk()  # One at least, however late this process is.
        while under_way or time.perf_counter() < stop_at:
            while under_way + CHUNK <= WINDOW and time.perf_counter() < stop_at:
                self._send_chunk()
                under_way += CHUNK
            if under_way:
                delivered += sum(map(self._receive_chunk, self._sockets))
                under_way -= CHUNK
        took_s = time.perf_counter() - started_at
        if not delivered:
            raise BenchError("nothing arrived")
        return delivered, took_s, (time.process_time() - busy_before) / took_s

    def _receive_chunk(self, subscriber: socket.socket) -> int:
        receive, buffer = subscriber.recv_into, self._buffer
        for count in range(CHUNK):
            try:
                size = receive(buffer)
            except BlockingIOError:
                self.lost += CHUNK - count
                return count
            if size != len(PACKET):
                raise BenchError(f"delivered {size} bytes instead of {len(PACKET)}")
        if buffer[: len(PACKET)] != PACKET:
            raise BenchError("delivered something other than what was published")
        return CHUNK


def _chunk_sender(publisher: socket.socket) -> Callable[[], object]:
    """What sends a chunk: with one call where the kernel can, so that the loader is not what is measured."""
    try:
        publisher.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, len(PACKET))
    except OSError:
        send = publisher.send
        return lambda: [send(PACKET) for _ in range(CHUNK)]
    return partial(publisher.send, PACKET * CHUNK)


def _drain(subscriber: socket.socket) -> None:
    """Take the probes of those who came later."""
    subscriber.setblocking(False)
    try:
        while True:
            subscriber.recv(len(PACKET))
    except BlockingIOError:
        pass


def throughput(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], subscribers: int
) -> list[Figures]:
    """Deliveries a second."""
    (row,) = rows
    sent_and_lost: dict[str, list[int]] = {broker.name: [0, 0] for broker in brokers}

    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, PacketLoad]:
        child = stack.enter_context(bench.running(broker))
        load = PacketLoad(child, subscribers, stack)
        load.run(bench.plan.warm_up_s)
        load.lost = 0
        return child, load

    def measure(broker: BrokerKind, subject: tuple[Child, PacketLoad]) -> float:
        child, load = subject
        before = child.processor_s()
        delivered, took_s, busy = load.run(bench.plan.round_s)
        bench.saw(row, broker, loader=busy, broker=(child.processor_s() - before) / took_s)
        sent_and_lost[broker.name][0] += delivered
        sent_and_lost[broker.name][1] = load.lost
        return delivered / took_s

    rounds = bench.interleave(bench.plan.rounds, brokers, prepare, measure)
    for name, (delivered, lost) in sent_and_lost.items():
        if lost:
            bench.note(f"{row}: {name} lost {lost:,} of {delivered + lost:,} packets")
    return [medians(rounds)]


def latency(bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind]) -> list[Figures]:
    """50th and 99th percentile in µs, one packet at a time."""

    def prepare(broker: BrokerKind, stack: ExitStack) -> LatencyPair:
        child = stack.enter_context(bench.running(broker))
        connection = stack.enter_context(child.dialect.connect(child.port, "subscriber"))
        pair = LatencyPair(_publisher(child, connection, stack), connection, PACKET, PACKET, b"")
        pair.one_at_a_time(bench.plan.warm_up_s)
        return pair

    def measure_round(broker: BrokerKind, pair: LatencyPair) -> list[int]:
        return pair.one_at_a_time(bench.plan.round_s)

    return latencies_us(bench.interleave(bench.plan.rounds, brokers, prepare, measure_round))


SCENARIOS = (
    Scenario({"sensors-1to1": "packets/s"}, "higher", ("echo",), partial(throughput, subscribers=1)),
    Scenario(
        {"sensors-1to10": "deliveries/s"}, "higher", ("fan-out",), partial(throughput, subscribers=FAN_OUT)
    ),
    Scenario({"sensors-latency-p50": "µs", "sensors-latency-p99": "µs"}, "lower", ("echo",), latency),
)
ROW_NAMES = row_names(SCENARIOS)


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, PEERS)
    names = PEERS if request.peers is None else request.peers
    peers = [SENSOR_BROKERS[name] for name in names]
    return measure_all(SCENARIOS, SENSOR_BROKERS[OURS], peers, QUICK if request.quick else FULL, request.only)
