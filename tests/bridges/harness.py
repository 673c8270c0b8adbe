"""Whole brokers with bridges in memory: wires between them that may be cut, one clock, stores made of dicts.

    network = Network()
    north, south = network.add("north"), network.add("south")
    north.bridge("# both 1", address="south")
    network.settle()

A node is the broker tests' `World` with bridges, and is driven as the shell drives it. `cut` is silent: bytes
vanish, nobody is told. `lose` is what a reset is. A node that crashes starts again from what was committed,
with the same bridges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from hedgerow.bridges.bridge import Bridge, BridgePhase
from hedgerow.bridges.bridge_set import BridgeSet
from hedgerow.bridges.events import BridgeEvent
from hedgerow.bridges.fabric_key import (
    NO_PROOF,
    NONCE_PROPERTY,
    Envelopes,
    FabricKey,
    with_proof,
)
from hedgerow.bridges.section import FarAddress, Section, read_section
from hedgerow.broker.access import Access
from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import Connection
from hedgerow.broker.ledger import Outbound
from hedgerow.broker.limits import Limits
from hedgerow.broker.port import Port
from hedgerow.broker.seal import RecordSeal
from hedgerow.message import Message
from hedgerow.mqtt import codec
from hedgerow.mqtt.ids import node_of
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Packet, Suback, Subscribe
from tests.broker.harness import START, World
from tests.packets import PacketReader

BRIDGE = "b"


def make_section(*lines: str, name: str = BRIDGE, address: str = "south", **options: object) -> Section:
    topics = "".join(f"topic {line}\n" for line in lines)
    words = "".join(f"{word} {_write(value)}\n" for word, value in options.items())
    return read_section(f"connection {name}\naddress {address}\n{topics}{words}")


def _write(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


SECRET = b"of one fabric" * 3
TAIL_BYTES = 32  # of what carriers say: who, when, and the proof


def sealed(topic: str, payload: bytes, now: float, life: int = 99) -> bytes:
    """As another carrier of the same fabric says it."""
    return Envelopes(FabricKey(SECRET), life).wrap(topic, payload, now)


def opened(payload: bytes) -> bytes:
    return payload[:-TAIL_BYTES]


def proved(connect: Connect, connack: Connack) -> tuple[Connack, RecordSeal]:
    """As a node of the same fabric answers, and what follows travels in."""
    key = FabricKey(SECRET)
    pairs = (*connack.properties["user_property"], (NONCE_PROPERTY, "1"), NO_PROOF)
    connack = replace(connack, properties={**connack.properties, "user_property": pairs})
    connack = with_proof(connack, key.prove_node(connect, connack))
    return connack, key.link_seal(connect, connack, is_bridge=False)


class Side(Protocol):
    """What is at one end of a wire: a connection of a broker, or a script in a broker's place."""

    link: Any

    def receive_data(self, data: bytes, now: float) -> None: ...

    def lost(self, now: float, was_closed: bool) -> None: ...


class Wire:
    """A link between two nodes: bytes in order, until it is cut or closed."""

    def __init__(self, network: Network, near: Side, far: Side, names: set[str]) -> None:
        self.network = network
        self.names = names
        self.is_cut = False
        self.sides: tuple[Side, Side] = (near, far)
        self.waiting: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # for each side
        self.written = 0  # by the first side
        self.acknowledged: int | None = None  # of that; None: all
        self.unread_since = float("-inf")  # when the last bytes came that nobody has read yet
        for index, side in enumerate(self.sides):
            side.link = End(self, index)

    def carry(self, index: int, data: bytes) -> None:
        """From one side to the other."""
        self.written += len(data) if index == 0 else 0
        if data and not self.is_cut:
            self.waiting[1 - index].append(data)

    def deliver(self, index: int) -> bool:
        """The next chunk for a side."""
        if not self.waiting[index]:
            return False
        self.sides[index].receive_data(self.waiting[index].popleft(), self.network.now)
        return True

    def close(self, index: int) -> None:
        """One side has closed; the other hears of it behind the last bytes."""
        self._leave(index)
        if self.is_cut:
            return
        while self.deliver(1 - index):
            pass
        self._leave(1 - index, was_closed=True)
        self.network.wires.remove(self)

    def _leave(self, index: int, was_closed: bool = False) -> None:
        side = self.sides[index]
        if side.link is not None:
            side.link = None
            side.lost(self.network.now, was_closed)

    def lose(self) -> None:
        """A reset: what is under way is gone, and both sides know."""
        self.is_cut = True
        for each in self.waiting:
            each.clear()
        for index in range(2):
            self._leave(index)
        self.network.wires.remove(self)

    def cut(self) -> None:
        self.is_cut = True
        for each in self.waiting:
            each.clear()


class End:
    """What a connection takes for its transport."""

    def __init__(self, wire: Wire, index: int) -> None:
        self.wire = wire
        self._index = index

    def transmit(self) -> None:
        connection = self.wire.sides[self._index]
        assert isinstance(connection, Connection)
        self.wire.carry(self._index, connection.take_output())
        if connection.closing:
            self.wire.close(self._index)

    def unacknowledged_bytes(self) -> int:
        wire = self.wire
        return 0 if wire.acknowledged is None else wire.written - wire.acknowledged

    def silent_s(self) -> float:
        return self.wire.network.now - self.wire.unread_since


class Script:
    """A far broker that says what a test has it say."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.link: Any = None
        self.version = MQTT_5
        self.is_lost = False
        self.seal: RecordSeal | None = None
        self._reader = PacketReader()

    def receive_data(self, data: bytes, now: float) -> None:
        self._reader.feed(self.seal.open(data) if self.seal is not None else data)

    def lost(self, now: float, was_closed: bool) -> None:
        self.is_lost = True

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(codec.encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.link.wire.carry(1, self.seal.close(data) if self.seal is not None else data)
        self.network.settle()

    def take(self) -> list[Packet]:
        packets: list[Packet] = []
        while (packet := self._reader.take(self.version)) is not None:
            if isinstance(packet, Connect):
                self.version = packet.protocol_version
            packets.append(packet)
        return packets

    def take_connect(self) -> Connect:
        self.version = MQTT_5
        (packet,) = self.take()
        assert isinstance(packet, Connect)
        return packet

    def accept(self, connack: Connack | None = None) -> list[Packet]:
        """Take the CONNECT and grant what is subscribed; what else came. A script that says that it is a node
        proves it."""
        connect, connack = self.take_connect(), connack or Connack()
        if node_of(connack.properties) is None:
            self.send(connack)
        else:
            connack, seal = proved(connect, connack)
            data = codec.encode(connack, self.version)
            self.seal = seal
            self.link.wire.carry(1, data)
            self.network.settle()
        others: list[Packet] = []
        for packet in self.take():
            if isinstance(packet, Subscribe):
                self.send(Suback(packet.packet_id, [each.qos for each in packet.subscriptions]))
            else:
                others.append(packet)
        return others + self.take()


class Node(World):
    def __init__(self, network: Network, name: str, secret: bytes = SECRET, **options: Any) -> None:
        self.network = network
        self.secret = secret
        self.name = name
        self.heard: list[Message] = []
        self.events: list[BridgeEvent] = []
        self.states: dict[str, dict[str, Any]] = {}
        self._sections: dict[str, Section] = {}
        self._filters: list[str] = []
        super().__init__(**options)
        self._start_bridges()

    @property
    def now(self) -> float:
        return self.network.now

    @now.setter
    def now(self, now: float) -> None:
        self.network.now = max(now, self.network.now)

    def _start(self) -> Broker:
        snapshot = self.store.snapshot()
        return Broker(self.name, self.epoch, self.now, snapshot=snapshot, log=self.store, **self._options)  # type: ignore[arg-type]

    def _start_bridges(self) -> None:
        self.bridges = BridgeSet(
            self.broker,
            self.network.random,
            self.network.token,
            lambda address: address.host == self.name,
            lambda: self.secret,
        )
        for section in self._sections.values():
            self.bridges.create(section, self.now)
        self.bridges.leave_unclaimed()
        self._port = Port(self.broker, "test", self.heard.append)
        for topic_filter in self._filters:
            self._port.subscribe(topic_filter, self.now)

    def crash(self, after_s: float = 0.0) -> None:
        """Memory is gone, and every link with it."""
        wires = [wire for wire in self.network.wires if self.name in wire.names]
        for wire in wires:
            for side in wire.sides:
                if isinstance(side, Connection) and side.broker is self.broker:
                    side.link = None  # The dead hear nothing.
        self.epoch += 1
        self._taken = None
        self.broker = self._start()
        for wire in wires:
            wire.lose()
        self._start_bridges()
        self.network.settle()

    # Bridges

    def bridge(self, *lines: str, **options: Any) -> Bridge:
        return self.create(make_section(*lines, **options))

    def create(self, section: Section) -> Bridge:
        self.bridges.create(section, self.now)
        self._sections[section.name] = section
        self.network.settle()
        return self.find(section.name)

    def delete(self, name: str = BRIDGE) -> None:
        self.bridges.delete(name, self.now)
        del self._sections[name]
        self.network.settle()

    def find(self, name: str = BRIDGE) -> Bridge:
        return next(bridge for bridge in self.bridges if bridge.section.name == name)

    def state(self, name: str = BRIDGE) -> BridgePhase:
        return self.find(name).state

    @property
    def is_up(self) -> bool:
        return all(bridge.state is BridgePhase.UP for bridge in self.bridges)

    # Messages

    def listen(self, topic_filter: str = "#") -> None:
        """Note in `heard` what others publish here."""
        self._filters.append(topic_filter)
        self._port.subscribe(topic_filter, self.now)

    def publish(self, topic: str, payload: bytes = b"", qos: int = 1, **fields: Any) -> None:
        """By a part of the node that is no subscriber."""
        publisher = Port(self.broker, "publisher", lambda message: None)
        publisher.publish(Message(topic, payload, qos, **fields), self.now)
        publisher.close()
        self.settle()

    def take_heard(self) -> list[bytes]:
        payloads = [message.payload for message in self.heard]
        self.heard.clear()
        return payloads

    # The shell's part

    def settle(self) -> None:
        self.network.settle()

    def settle_alone(self) -> bool:
        """Whether anything was to do."""
        broker, bridges = self.broker, self.bridges
        is_busy = bool(broker.dirty) or broker.deadline <= self.now or bridges.has_work
        super().settle()
        if bridges.deadline <= self.now:
            is_busy = True
            bridges.handle_timer(self.now)
            self._tell_states()
        bridges.has_work = False
        for bridge, address in bridges.take_dials(self.now):
            is_busy = True
            self.network.dial(self, bridge, address)
        self._tell_states()
        self.events += bridges.take_events()
        return is_busy or bool(broker.dirty)

    def _tell_states(self) -> None:
        for name, state in self.bridges.changed(self.now):
            if state is None:
                self.states.pop(name, None)
            else:
                self.states[name] = state

    @property
    def deadline(self) -> float:
        return min(self.broker.deadline, self.bridges.deadline)


class Network:
    def __init__(self) -> None:
        self.now = START
        self.nodes: dict[str, Node] = {}
        self.wires: list[Wire] = []
        self.scripts: dict[str, Callable[[], Script]] = {}
        self.dialled: list[tuple[float, str]] = []  # when, and where
        self.unreachable: set[str] = set()  # hosts, or "A B" for one way between nodes
        self.hanging: set[str] = set()  # hosts of which a dial hears nothing
        self.flows = True  # off: bytes wait for `Wire.deliver`
        self.chance = 0.5
        self._tokens = 0
        self._is_settling = False

    def add(
        self, name: str, limits: Limits | None = None, access: Access | None = None, **options: Any
    ) -> Node:
        node = self.nodes[name] = Node(self, name, limits=limits, access=access, **options)
        return node

    def script(self, host: str) -> list[Script]:
        """A scripted far broker at this address; one entry for each link to it."""
        opened: list[Script] = []

        def open_link() -> Script:
            opened.append(Script(self))
            return opened[-1]

        self.scripts[host] = open_link
        return opened

    def random(self) -> float:
        return self.chance

    def token(self) -> int:
        self._tokens += 1
        return self._tokens * 7_919

    def dial(self, node: Node, bridge: Bridge, address: FarAddress) -> None:
        host = address.host
        self.dialled.append((self.now, host))
        script = self.scripts.get(host)
        far: Side
        if host in self.hanging:
            return
        if {host, f"{node.name} {host}", f"{host} {node.name}"} & self.unreachable:
            bridge.handle_dial_failed(address, "nobody answers", self.now)
        elif script is not None:
            far = script()
            self.wires.append(Wire(self, bridge.open(address, self.now), far, {node.name, host}))
        elif host in self.nodes:
            far = self.nodes[host].broker.open(self.now, f"{node.name}:40000", anonymous=True)
            self.wires.append(Wire(self, bridge.open(address, self.now), far, {node.name, host}))
        else:
            bridge.handle_dial_failed(address, "connection refused", self.now)

    def between(self, one: str, other: str) -> list[Wire]:
        return [wire for wire in self.wires if wire.names == {one, other}]

    def cut(self, one: str, other: str) -> None:
        """Bytes vanish from now on, and no new link comes about."""
        self.unreachable.add(f"{one} {other}")
        for wire in self.between(one, other):
            wire.cut()

    def mend(self, one: str, other: str) -> None:
        self.unreachable.discard(f"{one} {other}")

    def lose(self, one: str, other: str) -> None:
        for wire in self.between(one, other):
            wire.lose()
        self.settle()

    def settle(self) -> None:
        """Until nobody has anything left to do at this moment."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            rounds = 0
            while self.settle_once():
                rounds += 1
                assert rounds < 10_000, "something goes round"
        finally:
            self._is_settling = False

    def settle_once(self) -> bool:
        busy = [node for node in list(self.nodes.values()) if node.settle_alone()]
        is_busy = bool(busy)
        if self.flows:
            for wire in list(self.wires):
                is_busy = any([wire.deliver(0), wire.deliver(1)]) or is_busy
        return is_busy

    def advance(self, seconds: float) -> None:
        """Let the time pass, stopping at every deadline on the way."""
        end = self.now + seconds
        self.settle()
        while (at := min(node.deadline for node in self.nodes.values())) <= end:
            self.now = max(self.now, at)
            self.settle()
        self.now = end
        self.settle()


def balance(ledger: Outbound, waiting: int) -> int:
    """What the ledger says was published, less all that it says became of it: 0."""
    gone = ledger.relayed + ledger.away + ledger.overflowed + ledger.expired + ledger.too_large
    return ledger.published - gone - ledger.refused - ledger.discarded - waiting
