"""`hedgerow bench bridge`: from a publisher at one broker through a bridge to a subscriber at another.

Four bridges are measured in rounds that go round them: ours between two of our brokers, ours to a Mosquitto
and from one, and beside them Mosquitto's own between two Mosquittos. All carry the same load, sent and
counted by one loader. The loop is closed (`loader`): at QoS 1 every message must arrive exactly once, or
there is no figure. At QoS 0 a bridge may drop; what counts is what arrived, and what did not is reported.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hedgerow.bench import BenchError
from hedgerow.bench.broker import data_directory
from hedgerow.bench.loader import PUBLISHERS, SUBSCRIBERS, Load, Measured, Subscriber
from hedgerow.bench.peers import BROKERS, OURS, Broker, Child
from hedgerow.bench.report import Progress, Request, Result, Row, machine, progress
from hedgerow.bench.rounds import FULL, QUICK, Plan, Processes
from hedgerow.bench.wire import PAYLOAD
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish

TOPIC = "bench/throughput"
READY_TOPIC = "bench/ready"
PEER = "mosquitto"
LOST_S = 1.0  # on loopback, what has not come by then will not, however busy the machine is
READY_S = 20.0
_PROBE_S = 0.05
_PACKET_IDS = 10_000  # ten windows: an identifier is long free again when its turn comes


@dataclass(frozen=True)
class Bridge:
    """Two brokers, of which `carrier` dials `far`."""

    name: str
    carrier: Broker
    far: Broker
    direction: str
    """Where messages go, seen from the carrier: "out" or "in"."""
    at_least: float | None = None
    """The ratio to Mosquitto's own bridge that ours promises."""

    def section(self, far_port: int, qos: int) -> str:
        """What a configuration file says of it, to either broker; the rest is the default."""
        return f"connection bench\naddress 127.0.0.1:{far_port}\ntopic bench/# {self.direction} {qos}\n"


HEDGEROW, MOSQUITTO = BROKERS[OURS], BROKERS[PEER]
PEER_BRIDGE = Bridge("mosquitto-mosquitto", MOSQUITTO, MOSQUITTO, "out")
OUR_BRIDGES = (
    Bridge("hedgerow-hedgerow", HEDGEROW, HEDGEROW, "out", at_least=3.0),
    Bridge("hedgerow-mosquitto", HEDGEROW, MOSQUITTO, "out", at_least=1.0),
    Bridge("mosquitto-hedgerow", HEDGEROW, MOSQUITTO, "in"),
)


@dataclass(frozen=True)
class Traffic:
    name: str
    qos: int
    payload: bytes
    window: int
    durable: bool = False

    @property
    def chunk(self) -> int:
        return self.window // 4

    def packets(self) -> list[bytes]:
        """What the publisher repeats: whole chunks, with every packet identifier in turn."""
        if self.qos:
            return [self._packet(packet_id) for packet_id in range(1, _PACKET_IDS + 1)]
        return [self._packet(0)] * self.chunk

    def delivery(self) -> bytes:
        """What the subscriber receives; at QoS 1 the broker's packet identifier differs."""
        return self._packet(self.qos)

    def _packet(self, packet_id: int) -> bytes:
        return encode(Publish(TOPIC, self.payload, self.qos, packet_id=packet_id), MQTT_3_1_1)


# The windows suit the peer. Mosquitto 2.0.11's own bridge was measured in two runs of nine rounds that went
# round the windows. QoS 0, 64 bytes: of 1,000 to 24,000, 3,000 had the highest median in both. 1 KiB: 1,000
# to 4,000 could not be told apart. QoS 1: nor could 100 to 4,000. Rounds of one window differed by up to 2×.
QOS_1 = Traffic("qos1-64", 1, PAYLOAD, window=1_000)
TRAFFIC = (
    Traffic("qos0-64", 0, PAYLOAD, window=3_000),
    Traffic("qos0-1024", 0, PAYLOAD * 16, window=2_000),
    QOS_1,
    replace(QOS_1, name="qos1-64-durable", durable=True),
)
ROW_NAMES = tuple(f"{traffic.name}-{bridge.name}" for traffic in TRAFFIC for bridge in OUR_BRIDGES)


class LossySubscriber(Subscriber):
    def check(self, expected: int) -> None:
        if self._bytes > expected * self._size:
            super().check(expected)


class LossyLoad(Load):
    """A load whose messages may get lost: those that have not come after `LOST_S` of silence are given up,
    so that they keep no place in the window."""

    _given_up = 0
    _heard_at = 0.0
    _silent_since = 0.0

    def run(self, seconds: float, messages: int | None = None) -> Measured:
        """As `Load.run`; the messages are those that arrived, and the seconds end with the last of them."""
        before = self.sent - self.lost
        started = self._heard_at = self._silent_since = time.perf_counter()
        measured = super().run(seconds, messages)
        arrived = self.sent - self.lost - before
        if arrived == 0:
            raise BenchError(f"none of {measured.messages} messages arrived")
        return Measured(arrived, self._heard_at - started, measured.busy)

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def lost(self) -> int:
        """Of all that were sent; one that was given up and came after all is not."""
        return self._sent - self._subscribers[0].received

    def _settled(self) -> int:
        return min(super()._settled() + self._given_up, self._sent)

    def _receive(self) -> int:
        size = super()._receive()
        now = time.perf_counter()
        if size:
            self._heard_at = self._silent_since = now
        # What waits in this process because the broker does not read is not lost.
        elif now - self._silent_since > LOST_S and not self._publishers[0].unsent:
            self._given_up = self.lost
            self._silent_since = now
        return size


@dataclass
class Running:
    """A bridge that is up, with its load."""

    carrier: Child
    far: Child
    load: Load


class BridgeBench(Processes[Bridge]):
    def __init__(self, plan: Plan, ours: Bridge, directory: Path, progress: Progress) -> None:
        super().__init__(plan, ours, directory, progress)
        self.lost: dict[str, dict[str, dict[str, int]]] = {}

    def is_ours(self, bridge: Bridge) -> bool:
        return bridge.name != PEER_BRIDGE.name


def bridging(broker: Broker, section: str) -> Broker:
    """The broker with a bridge in its configuration."""

    def command(port: int, directory: Path) -> list[str]:
        words = broker.command(port, directory)
        if broker.name == OURS:
            (directory / "bridge.conf").write_text(section)
            return [*words, "--bridge", str(directory / "bridge.conf")]
        with (directory / "mosquitto.conf").open("a") as configuration:
            configuration.write(section)
        return words

    return replace(broker, command=command)


def start(bench: BridgeBench, bridge: Bridge, traffic: Traffic, stack: ExitStack) -> Running:
    """Both brokers, the bridge up, and a warm load."""

    def running(broker: Broker) -> Child:
        data = traffic.durable and broker.name == OURS
        arguments = ("--data", stack.enter_context(data_directory())) if data else ()
        return stack.enter_context(bench.running(broker, arguments))

    far = running(bridge.far)
    carrier = running(bridging(bridge.carrier, bridge.section(far.port, traffic.qos)))
    ends = (carrier, far) if bridge.direction == "out" else (far, carrier)
    wait_until_up(*ends)
    load = connect(*ends, traffic)
    stack.callback(load.close)
    load.run(bench.plan.warm_up_s)
    return Running(carrier, far, load)


def wait_until_up(publisher_at: Child, subscriber_at: Child) -> None:
    """Until a message has come through, on a topic whose subscriber is gone when the measurement begins."""
    packet = encode(Publish(READY_TOPIC, b""), MQTT_3_1_1)
    with (
        subscriber_at.dialect.connect(subscriber_at.port, "ready-subscriber") as subscriber,
        publisher_at.dialect.connect(publisher_at.port, "ready-publisher") as publisher,
    ):
        subscriber_at.dialect.subscribe(subscriber, [READY_TOPIC])
        subscriber.settimeout(_PROBE_S)
        give_up_at = time.perf_counter() + READY_S
        while time.perf_counter() < give_up_at:
            publisher.sendall(packet)
            try:
                if subscriber.recv(len(packet)):
                    return
            except TimeoutError:
                continue
            raise BenchError("closed the connection of a subscriber that waited for the bridge")
    raise BenchError(f"the bridge was not up within {READY_S:g} s")


def connect(publisher_at: Child, subscriber_at: Child, traffic: Traffic) -> Load:
    with ExitStack() as sockets:
        subscriber = sockets.enter_context(
            subscriber_at.dialect.connect(subscriber_at.port, "subscriber", clean_start=not traffic.durable)
        )
        subscriber_at.dialect.subscribe(subscriber, [TOPIC], traffic.qos)
        publisher = sockets.enter_context(publisher_at.dialect.connect(publisher_at.port, "publisher"))
        sockets.pop_all()
    publishers = [PUBLISHERS[traffic.qos](publisher, traffic.packets(), traffic.chunk)]
    if traffic.qos == 0:
        return LossyLoad(publishers, [LossySubscriber(subscriber, traffic.delivery())], traffic.window)
    return Load(publishers, [SUBSCRIBERS[traffic.qos](subscriber, traffic.delivery())], traffic.window)


def throughput(bench: BridgeBench, traffic: Traffic, bridges: Sequence[Bridge]) -> dict[str, float]:
    """Messages a second that arrived, by the name of the bridge."""
    lost: dict[str, dict[str, int]] = {}

    def prepare(bridge: Bridge, stack: ExitStack) -> Running:
        return start(bench, bridge, traffic, stack)

    def measure(bridge: Bridge, running: Running) -> float:
        children = (running.carrier, running.far)
        before = [child.processor_s() for child in children]
        measured = running.load.run(bench.plan.round_s)
        took_s = [child.processor_s() - then for child, then in zip(children, before, strict=True)]
        broker, far = (processor_s / measured.seconds for processor_s in took_s)
        bench.saw(traffic.name, bridge, measured.busy, broker, far=far)
        if isinstance(running.load, LossyLoad):
            lost[bridge.name] = {"sent": running.load.sent, "lost": running.load.lost}
        return measured.messages / measured.seconds

    rounds = bench.interleave(bench.plan.rounds, bridges, prepare, measure)
    if lost:
        bench.lost[traffic.name] = lost
    for name, counted in lost.items():
        if counted["lost"]:
            bench.note(f"{traffic.name}: {name} lost {counted['lost']:,} of {counted['sent']:,} messages")
    return {bridge.name: statistics.median(rates) for bridge, rates in rounds.items()}


def run(request: Request) -> Result:
    request.check(ROW_NAMES, (PEER,))
    peer = PEER_BRIDGE if request.peers is None or PEER in request.peers else None
    return measure(OUR_BRIDGES, peer, QUICK if request.quick else FULL, request.only)


def measure(ours: Sequence[Bridge], peer: Bridge | None, plan: Plan, only: Sequence[str] = ()) -> Result:
    """All rows, or those named in `only`. Bridges whose brokers are not installed are left out."""
    bridges = [*ours, peer] if peer else [*ours]
    brokers = {broker.name: broker for bridge in bridges for broker in (bridge.carrier, bridge.far)}
    versions = {name: broker.version() for name, broker in brokers.items()}
    there = [bridge for bridge in bridges if versions[bridge.carrier.name] and versions[bridge.far.name]]
    wanted = {
        traffic: [bridge for bridge in there if _is_wanted(traffic, bridge, only)] for traffic in TRAFFIC
    }
    stages = {
        traffic: chosen for traffic, chosen in wanted.items() if any(each is not peer for each in chosen)
    }
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as directory, progress(len(stages)) as shown:
        bench = BridgeBench(plan, ours[0], Path(directory), shown)
        for name in (name for name, version in versions.items() if version is None):
            bench.note(f"{name}: not installed")
        for traffic, chosen in stages.items():
            shown.begin(traffic.name, (plan.rounds + 1) * len(chosen))
            rows += _rows(bench, traffic, chosen, throughput(bench, traffic, chosen))
    about: dict[str, object] = {
        "versions": {name: version for name, version in versions.items() if version},
        "machine": machine(),
        "busy": bench.busy,
        "lost": bench.lost,
        "notes": bench.notes,
    }
    return Result(OURS, [PEER] if peer in there else [], rows, about)


def _is_wanted(traffic: Traffic, bridge: Bridge, only: Sequence[str]) -> bool:
    return not only or bridge.name == PEER_BRIDGE.name or f"{traffic.name}-{bridge.name}" in only


def _rows(
    bench: BridgeBench, traffic: Traffic, bridges: Sequence[Bridge], rates: dict[str, float]
) -> Iterator[Row]:
    """The figure of Mosquitto's own bridge is the same in every row of one traffic."""
    peers = {PEER: rates[PEER_BRIDGE.name]} if PEER_BRIDGE.name in rates else {}
    for bridge in filter(bench.is_ours, bridges):
        row = Row(f"{traffic.name}-{bridge.name}", "msg/s", "higher", rates[bridge.name], peers)
        ratio = row.ratio.get(PEER)
        # The peer keeps nothing on a disk, so no ratio is promised where ours does.
        if bridge.at_least and ratio is not None and ratio < bridge.at_least and not traffic.durable:
            bench.note(f"{row.name}: {ratio:.2f}× is less than the {bridge.at_least:g}× that we promise")
        yield row
