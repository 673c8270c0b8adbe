"""From a publisher at one broker to a subscriber at another, for `bench bridge` and `bench federation`.

A `Way` is what lies between the two. In a `Stage`, all ways of one traffic are open at the same time and
measured in rounds that go round them, ours and Mosquitto's own. All carry the same load, sent and counted by
one loader. The loop is closed (`loader`): at QoS 1 every message must arrive exactly once, or there is no
figure. At QoS 0 some may be lost; what counts is what arrived, and what did not is reported.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.loader import PUBLISHERS, SUBSCRIBERS, Load
from hedgerow_workshop.bench.lossy import LOST_S, LossyLoad, LossySubscriber
from hedgerow_workshop.bench.peers import OURS, BrokerKind, Child, Process
from hedgerow_workshop.bench.report import (
    BenchRequest,
    BenchResult,
    BenchRow,
    Progress,
    make_result,
    measuring,
)
from hedgerow_workshop.bench.rounds import FULL, QUICK, Plan, Processes
from hedgerow_workshop.bench.scenarios import medians
from hedgerow_workshop.bench.wire import PAYLOAD

TOPIC = "bench/throughput"
PEER = "mosquitto"
_PROBE_S = 0.05
_RECEIVE_BYTES = 65_536
_PACKET_IDS = 10_000  # ten windows: an identifier is long free again when its turn comes


@dataclass(frozen=True)
class EndToEndTraffic:
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
QOS_0 = EndToEndTraffic("qos0-64", 0, PAYLOAD, window=3_000)
QOS_0_LARGE = EndToEndTraffic("qos0-1024", 0, PAYLOAD * 16, window=2_000)
QOS_1 = EndToEndTraffic("qos1-64", 1, PAYLOAD, window=1_000)


@dataclass(frozen=True)
class Ends:
    """Where the clients of an open way are, and the processes that it consists of."""

    publisher_at: Child
    subscriber_at: Child
    processes: dict[str, Sequence[Process]]
    """By what `busy` calls them; the shares of those with one name are added up."""


class Way(Protocol):
    """It is a key of dictionaries, too."""

    @property
    def name(self) -> str: ...

    @property
    def brokers(self) -> tuple[BrokerKind, ...]:
        """What has to be installed."""

    @property
    def at_least(self) -> float | None:
        """The ratio to the peer that ours promises."""

    @property
    def is_peer(self) -> bool: ...

    def open(self, bench: EndToEnd, traffic: EndToEndTraffic, stack: ExitStack) -> Ends:
        """Start everything; messages need not come through yet."""


@dataclass(frozen=True)
class Stage:
    """One traffic, and the ways that carry it. The peer's figure is the same in the rows of all of ours."""

    traffic: EndToEndTraffic
    ours: tuple[Way, ...]
    peer: Way | None

    @property
    def ways(self) -> list[Way]:
        return [*self.ours, self.peer] if self.peer else [*self.ours]

    def row(self, way: Way) -> str:
        return f"{self.traffic.name}-{way.name}"

    def keep(self, wanted: Callable[[Way], bool]) -> Stage:
        peer = self.peer if self.peer and wanted(self.peer) else None
        return replace(self, ours=tuple(filter(wanted, self.ours)), peer=peer)


def row_names(stages: Iterable[Stage]) -> tuple[str, ...]:
    return tuple(stage.row(way) for stage in stages for way in stage.ours)


class EndToEnd(Processes[Way]):
    def __init__(self, plan: Plan, ours: Way, directory: Path, progress: Progress) -> None:
        super().__init__(plan, ours, directory, progress)
        self.lost: dict[str, dict[str, dict[str, int]]] = {}

    def is_ours(self, way: Way) -> bool:
        return not way.is_peer


def connect(ends: Ends, traffic: EndToEndTraffic, open_s: float = FULL.open_s) -> Load:
    """Clients at both ends, as soon as messages come through.

    That is tried with the very topic that is measured, by a subscriber that leaves when there is another:
    a federation carries a topic because somebody subscribed, and until the last one has left.
    """
    near, far = ends.publisher_at, ends.subscriber_at
    with ExitStack() as sockets:
        publisher = sockets.enter_context(near.dialect.connect(near.port, "publisher"))
        with far.dialect.connect(far.port, "first-subscriber") as first:
            far.dialect.subscribe(first, [TOPIC], traffic.qos)
            wait_until_open(publisher, first, itertools.chain(*ends.processes.values()), open_s)
            subscriber = far.dialect.connect(far.port, "subscriber", clean_start=not traffic.durable)
            sockets.enter_context(subscriber)
            far.dialect.subscribe(subscriber, [TOPIC], traffic.qos)
        sockets.pop_all()
    publishers = [PUBLISHERS[traffic.qos](publisher, traffic.packets(), traffic.chunk)]
    if traffic.qos == 0:
        return LossyLoad(publishers, [LossySubscriber(subscriber, traffic.delivery())], traffic.window)
    return Load(publishers, [SUBSCRIBERS[traffic.qos](subscriber, traffic.delivery())], traffic.window)


def wait_until_open(
    publisher: socket.socket,
    subscriber: socket.socket,
    processes: Iterable[Process],
    open_s: float,
    lost_s: float = LOST_S,
) -> None:
    """Until a message has come through and, since they come in order, none is still under way."""
    needed = list(processes)
    heard = b""
    give_up_at = time.perf_counter() + open_s
    for number in itertools.count():
        probe = encode(Publish(TOPIC, b"%d." % number), MQTT_3_1_1)
        publisher.sendall(probe)
        heard = _hear(subscriber, probe, lost_s if heard else _PROBE_S)
        if probe in heard:
            return
        for process in needed:
            if ended := process.how_it_ended():
                raise BenchError(f"{process.name} {ended}")
        if time.perf_counter() > give_up_at:
            raise BenchError(f"no message came through within {open_s:g} s")


def _hear(subscriber: socket.socket, wanted: bytes, silence_s: float) -> bytes:
    """What comes until it is the wanted, or until nothing comes any more."""
    subscriber.settimeout(silence_s)
    heard = b""
    while wanted not in heard:
        try:
            data = subscriber.recv(_RECEIVE_BYTES)
        except TimeoutError:
            break
        if not data:
            raise BenchError("closed the connection of a subscriber that waited for a message")
        heard += data
    return heard


def throughput(bench: EndToEnd, traffic: EndToEndTraffic, ways: Sequence[Way]) -> dict[str, float]:
    """Messages a second that arrived, by the name of the way."""
    lost: dict[str, dict[str, int]] = {}

    def prepare(way: Way, stack: ExitStack) -> tuple[Ends, Load]:
        ends = way.open(bench, traffic, stack)
        load = connect(ends, traffic, bench.plan.open_s)
        stack.callback(load.close)
        load.run(bench.plan.warm_up_s)
        return ends, load

    def measure_round(way: Way, subject: tuple[Ends, Load]) -> float:
        ends, load = subject
        before = _processor_s(ends)
        measured = load.run(bench.plan.round_s)
        shares = {
            name: (took_s - before[name]) / measured.seconds for name, took_s in _processor_s(ends).items()
        }
        bench.saw(traffic.name, way, loader=measured.busy, **shares)
        if isinstance(load, LossyLoad):
            lost[way.name] = {"sent": load.sent, "lost": load.lost}
        return measured.messages / measured.seconds

    rounds = bench.interleave(bench.plan.rounds, ways, prepare, measure_round)
    if lost:
        bench.lost[traffic.name] = lost
    for name, counted in lost.items():
        if counted["lost"]:
            bench.note(f"{traffic.name}: {name} lost {counted['lost']:,} of {counted['sent']:,} messages")
    return medians(rounds)


def _processor_s(ends: Ends) -> dict[str, float]:
    return {
        name: sum(process.processor_s() for process in processes)
        for name, processes in ends.processes.items()
    }


def run(request: BenchRequest, stages: Sequence[Stage]) -> BenchResult:
    request.check(row_names(stages), (PEER,))
    if request.peers is not None and PEER not in request.peers:
        stages = [replace(stage, peer=None) for stage in stages]
    return measure(stages, QUICK if request.quick else FULL, request.only)


def measure(stages: Sequence[Stage], plan: Plan, only: Sequence[str] = ()) -> BenchResult:
    """All rows, or those named in `only`. Ways whose brokers are not installed are left out."""
    ways = [way for stage in stages for way in stage.ways]
    brokers = {broker.name: broker for way in ways for broker in way.brokers}
    versions = {name: broker.version() for name, broker in brokers.items()}

    def wanted(stage: Stage) -> Stage:
        there = stage.keep(lambda way: all(versions[broker.name] for broker in way.brokers))
        return there.keep(lambda way: not only or way.is_peer or stage.row(way) in only)

    chosen = [stage for stage in map(wanted, stages) if stage.ours]
    rows: list[BenchRow] = []
    with measuring(len(chosen)) as (directory, shown):
        bench = EndToEnd(plan, ways[0], directory, shown)
        for name in (name for name, version in versions.items() if version is None):
            bench.note(f"{name}: not installed")
        for stage in chosen:
            shown.begin(stage.traffic.name, (plan.rounds + 1) * len(stage.ways))
            rows += _rows(bench, stage, throughput(bench, stage.traffic, stage.ways))
    peers = [PEER] if any(stage.peer for stage in chosen) else []
    return make_result(OURS, peers, rows, (), versions, bench.notes, busy=bench.busy, lost=bench.lost)


def _rows(bench: EndToEnd, stage: Stage, rates: dict[str, float]) -> Iterator[BenchRow]:
    peers = {PEER: rates[stage.peer.name]} if stage.peer and stage.peer.name in rates else {}
    for way in stage.ours:
        row = BenchRow(stage.row(way), "msg/s", "higher", rates[way.name], peers)
        ratio = row.ratio.get(PEER)
        # The peer keeps nothing on a disk, so no ratio is promised where ours does.
        if way.at_least and ratio is not None and ratio < way.at_least and not stage.traffic.durable:
            bench.note(f"{row.name}: {ratio:.2f}× is less than the {way.at_least:g}× that we promise")
        yield row
