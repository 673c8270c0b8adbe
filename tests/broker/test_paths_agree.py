"""For every role: the short path does what the readable path does.

The same bytes come once as they always do, and once to a connection that has no short path. Everybody who is
there gets the same, and the broker knows and counts the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.batch import Batch
from hedgerow.broker.connection import Connection
from hedgerow.broker.observer import Observer
from hedgerow.broker.port import Port
from hedgerow.broker.session import Channel
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX, NeighbourRole
from hedgerow.message import Message, Properties
from hedgerow.mobility.roles import MOBILE_PREFIX, MobileBrokerRole
from hedgerow.mqtt import codec
from hedgerow.mqtt.ids import BRIDGE_PROPERTY, NODE_PROPERTY
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connack, Packet, Publish
from tests.bridges.harness import Network, Node
from tests.broker.harness import Client

NODE = "north"
ACCESS = Access(Acl.parse("topic readwrite #\ntopic deny secret\ntopic readwrite $hedgerow/bridge\n", "acl"))

# Who sends


@dataclass
class Sender:
    connection: Connection
    version: int
    send_bytes: Callable[[bytes], None]
    take: Callable[[], list[Packet]]


class OpenNeighbourhood:
    """A federation that lets everybody in."""

    has_key = False

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []

    def acceptor(self, node_id: str, connect: bytes) -> None:
        return None

    def claim_refusal(self, node_id: str, username: str | None, address: str) -> str | None:
        return None

    def inherits(self, node_id: str) -> bool:
        return False

    def forgotten(self, node_id: str) -> None:
        pass

    def refusal(self, node_id: str, proven_name: str | None) -> str | None:
        return None

    def refuse(self, node_id: str, reason: str) -> None:
        pass

    def accepted(self, connection: Channel) -> None:
        pass

    def ended(self, connection: Channel) -> None:
        pass

    def receive_control(self, connection: Channel, topic: str, payload: bytes) -> None:
        self.heard.append((topic, payload))


class OpenSupport:
    """A fixed broker that supports every mobile one."""

    domain = "d"

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []

    def refusal(self, broker_id: str, username: str | None) -> str | None:
        return None

    def accepted(self, connection: Channel, address: str, is_extended: bool) -> None:
        pass

    def ended(self, connection: Channel) -> None:
        pass

    def receive(self, connection: Channel, publication: Message) -> None:
        self.heard.append((publication.topic, publication.payload))


def named(*pairs: tuple[str, str]) -> Properties:
    return {"user_property": ((NODE_PROPERTY, "far"), *pairs)}


def connected(node: Node, client_id: str, version: int = MQTT_5, **fields: Any) -> Sender:
    client = node.connect(client_id, version, **fields)
    return Sender(client.connection, version, client.send_bytes, client.take)


def dialled(node: Node, properties: Properties, **options: Any) -> Sender:
    """A bridge of this node, to a script that sends in the far broker's place."""
    scripts = node.network.script("far")
    node.bridge("# in 2", address="far", notifications=False, **options)
    (far,) = scripts
    far.accept(Connack(properties=properties))
    node.network.advance(0.6)  # Nobody else is at the far broker.
    far.take()
    near = far.link.wire.sides[0]
    assert isinstance(near, Connection)
    return Sender(near, far.version, far.send_bytes, far.take)


SENDERS: dict[str, Callable[[Node], Sender]] = {
    "client, MQTT 3.1.1": lambda node: connected(node, "sender", MQTT_3_1_1),
    "client, MQTT 5": lambda node: connected(node, "sender"),
    "identified": lambda node: connected(node, "sender", properties=named()),
    "far bridge": lambda node: connected(node, "sender", properties=named((BRIDGE_PROPERTY, "b"))),
    "foreign broker": lambda node: connected(node, "sender", MQTT_3_1_1, is_bridge=True),
    "neighbour": lambda node: connected(node, NEIGHBOUR_PREFIX + "far", properties=named(), kept=True),
    "mobile broker": lambda node: connected(node, MOBILE_PREFIX + "far", properties=named(), kept=True),
    "bridge to a node": lambda node: dialled(node, named()),
    "bridge to a foreign broker": lambda node: dialled(node, {}),
    "bridge, MQTT 3.1.1": lambda node: dialled(node, {}, bridge_protocol_version="mqttv311"),
}
ROLES = {
    "client, MQTT 3.1.1": "client",
    "client, MQTT 5": "client",
    "bridge to a node": "bridge",
    "bridge to a foreign broker": "bridge",
    "bridge, MQTT 3.1.1": "bridge",
}
ONE_PATH = {"bridge, MQTT 3.1.1", "mobile broker"}
"""Their publications have no short path: ids are found by what is in them."""

# Who is there


class Seen(Observer):
    def __init__(self) -> None:
        self.publications: list[tuple[object, ...]] = []

    def observe(self, batch: Batch, now: float) -> bool:
        self.publications += [
            (each.topic, each.payload, each.qos, each.retain, batch.source) for each in batch.messages
        ]
        return False


READERS: dict[str, Callable[[Node], Client]] = {
    "mqtt 3": lambda node: node.connect("mqtt 3", MQTT_3_1_1),
    "mqtt 5": lambda node: node.connect("mqtt 5"),
    "kept": lambda node: node.connect("kept", kept=True),
    "away": lambda node: node.connect("away", MQTT_3_1_1, kept=True),
    "peer": lambda node: node.connect("peer", properties={"user_property": ((NODE_PROPERTY, "third"),)}),
}
AUDIENCES: dict[str, dict[str, int]] = {
    "one at QoS 0": {"mqtt 5": 0},
    "one at QoS 1": {"mqtt 5": 1},
    "two versions": {"mqtt 3": 0, "mqtt 5": 0},
    "two at QoS 1": {"mqtt 3": 1, "mqtt 5": 2},
    "stored for some": {"mqtt 3": 1, "mqtt 5": 1, "kept": 1, "away": 1},
    "one of them": {"mqtt 3": 1, "mqtt 5": 2, "kept": 1},
    "everybody": {"mqtt 3": 1, "mqtt 5": 2, "kept": 1, "away": 1, "peer": 2},
}
SHARED = {"one of them"}
OBSERVED = {"one at QoS 1", "everybody"}
WITH_A_PORT = {"everybody"}
DURABLE = {"everybody", "stored for some", "one of them"}
ONE_BY_ONE = {"two versions", "two at QoS 1", "stored for some", "one of them"}
"""Each packet comes by itself, and not all of them in one chunk."""


# What is sent


def row(*numbers: int, topic: str = "t", size: int = 3, **fields: Any) -> list[tuple[int, Publish]]:
    """(number of the id that it has where there are ids, packet)"""
    return [(number, Publish(topic, b"%0*d" % (size, number), **fields)) for number in numbers]


def empty(*numbers: int, **fields: Any) -> list[tuple[int, Publish]]:
    return [(number, Publish("t", b"", **fields)) for number in numbers]


TRAFFIC: dict[str, list[tuple[int, Publish]]] = {
    "one": row(1),
    "a row": row(*range(1, 13)),
    "sizes": [*row(1, 2), *row(3, size=200), *row(4, 5, size=20_000), *row(6, 7)],
    "topics": [*row(1, 2, 3), *row(4, 5, topic="u"), *row(6), *row(7, topic="u/v"), *row(8, 9)],
    "empty": empty(1, 2, 3),
    "empty between": [*row(1), *empty(2), *row(3)],
    "retained": row(1, 2, 3, retain=True),
    "retained between": [*row(1, 2), *row(3, retain=True), *row(4, 5)],
    "retained and taken away": [*row(1, retain=True), *row(2), *empty(3, retain=True), *row(4)],
    "nobody there": row(1, 2, 3, topic="elsewhere/x"),
    "forbidden": row(1, 2, topic="secret"),
    "forbidden between": [*row(1, 2), *row(3, 4, topic="secret"), *row(5, 6)],
    "not for clients": [*row(1), *row(2, topic="$SYS/broker/x"), *row(3)],
    "between nodes": [*row(1), *row(2, topic="$hedgerow/federation/x"), *row(3)],
    "twice": [*row(1, 2, 2, 1, 3), *row(3), *row(4)],
    "out of order": row(9, 3, 5, 1, 7),
    "marked as sent before": [*row(1, 2), *row(3, 4, dup=True), *row(5)],
}


def encode(traffic: list[tuple[int, Publish]], qos: int, origin: str | None, version: int) -> list[bytes]:
    packets = []
    for place, (number, given) in enumerate(traffic, 1):
        properties: Properties = {}
        if origin is not None:
            properties = {"user_property": (("hedgerow-id", f"{origin}/1/{number}"),)}
        packet = Publish(
            given.topic,
            given.payload,
            qos,
            given.retain,
            given.dup and qos > 0,
            place if qos else 0,
            properties,
        )
        packets.append(codec.encode(packet, version))
    return packets


# What comes of it


def outcome(sender_name: str, audience: str, packets: list[bytes], *, short: bool) -> dict[str, object]:
    node = Network().add(NODE, access=ACCESS, durable=audience in DURABLE)
    neighbourhood, support = OpenNeighbourhood(), OpenSupport()
    node.broker.register(NeighbourRole(node.broker, neighbourhood))
    node.broker.register(MobileBrokerRole(node.broker, support))
    seen, heard = Seen(), list[Message]()
    if audience in OBSERVED:
        node.broker.observe(seen)
    if audience in WITH_A_PORT:
        Port(node.broker, "test", heard.append).subscribe("#", node.now)
    readers = {name: READERS[name](node) for name in AUDIENCES[audience]}
    for name, qos in AUDIENCES[audience].items():
        for topic_filter in ("t", "u/#"):
            share = "$share/readers/" if audience in SHARED else ""
            readers[name].subscribe(share + topic_filter, qos)
    if "away" in readers:
        readers["away"].lose()
    sender = SENDERS[sender_name](node)
    session = sender.connection.connected_session()
    assert session.role.name == ROLES.get(sender_name, sender_name)
    if not short:
        sender.connection.short_path = {}
    for chunk in packets if audience in ONE_BY_ONE else [b"".join(packets)]:
        if sender.connection.is_connected:
            sender.send_bytes(chunk)
    broker, store = node.broker, node.store
    found: dict[str, object] = {
        "readers": {name: reader.take() for name, reader in readers.items()},
        "answers": sender.take(),
        "is connected": sender.connection.is_connected,
        "inbound": sender.connection.inbound,
        "ledger": session.ledger,
        "stats": asdict(broker.stats),
        "port": [(each.topic, each.payload, each.qos, each.retain, each.id) for each in heard],
        "observer": seen.publications,
        "control": (neighbourhood.heard, support.heard),
        "retained": [(each.topic, each.payload, each.qos, each.id) for each in broker.retained],
        "stored": [
            (place, store.messages[place[1]].payload, place in store.deliveries) for place in store.waits
        ],
        "stored values": {topic: each.payload for topic, each in store.retained.items()},
    }
    if "away" in readers:
        found["away"] = READERS["away"](node).take()
    return found


MQTT_3_SENDERS = {"client, MQTT 3.1.1", "foreign broker", "bridge, MQTT 3.1.1"}
WITHOUT_IDS = {*MQTT_3_SENDERS, "mobile broker"}


@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("sender", SENDERS)
def test_the_paths_agree(sender: str, traffic: str) -> None:
    version = MQTT_3_1_1 if sender in MQTT_3_SENDERS else MQTT_5
    for origin in (None,) if sender in WITHOUT_IDS else (None, "far"):
        for qos in (0, 1, 2):
            packets = encode(TRAFFIC[traffic], qos, origin, version)
            for audience in AUDIENCES:
                short = outcome(sender, audience, packets, short=True)
                readable = outcome(sender, audience, packets, short=False)
                assert short == readable, (origin, qos, audience)


@pytest.mark.parametrize("sender", sorted(SENDERS.keys() - WITHOUT_IDS))
def test_the_paths_agree_on_what_began_here(sender: str) -> None:
    """A message that comes back has the id that this node gave it."""
    for qos in (0, 1, 2):
        packets = encode(TRAFFIC["a row"], qos, NODE, MQTT_5)
        for audience in AUDIENCES:
            short = outcome(sender, audience, packets, short=True)
            assert short == outcome(sender, audience, packets, short=False), (qos, audience)


@pytest.mark.parametrize("sender", [name for name in SENDERS if name not in ONE_PATH])
def test_there_are_two_paths(sender: str) -> None:
    """Without this, the suite above could compare a path with itself."""
    node = Network().add(NODE)
    node.broker.register(NeighbourRole(node.broker, OpenNeighbourhood()))
    node.broker.register(MobileBrokerRole(node.broker, OpenSupport()))
    opened = SENDERS[sender](node)
    taken: list[int] = []

    def noting(short: Callable[[Any, bytes, int, int, int], int]) -> Callable[..., int]:
        def note(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
            taken.append(short(connection, data, position, body, stop))
            return taken[-1]

        return note

    opened.connection.short_path = {
        first: noting(short) for first, short in opened.connection.short_path.items()
    }
    for origin in (None, "far") if opened.version == MQTT_5 else (None,):
        opened.send_bytes(b"".join(encode(TRAFFIC["a row"], 0, origin, opened.version)))
    assert any(taken)


@pytest.mark.parametrize("sender", [name for name in SENDERS if ROLES.get(name) == "client"])
def test_there_is_a_third_path(sender: str) -> None:
    """For what comes alone, and again."""
    node = Network().add(NODE)
    reader = READERS["mqtt 3"](node)
    reader.subscribe("t", 1)
    opened = SENDERS[sender](node)
    first, *others = encode(TRAFFIC["a row"], 1, None, opened.version)
    opened.send_bytes(first)
    opened.connection.short_path = {}
    for packet in others:
        opened.send_bytes(packet)
    assert node.broker.work < 20 * len(others)  # The readable path takes more for each.
    assert opened.connection.repeated is not None
    assert len(reader.take()) == len(opened.take()) == len(others) + 1


def test_a_stranger_may_begin_like_the_last_packet() -> None:
    """What differs from it goes the long way, which says what is wrong with it."""
    for chunk in (
        b"",
        b"2",
        b"2\x05\0\1t\0\0",
        b"2\x85\0\0\1t\0\1",
        b"2\x06\0\1t\0\1",
        b"2\x04\0\1t\0",
        b"@\2\0\0",
    ):
        node = Network().add(NODE)
        READERS["mqtt 3"](node).subscribe("t", 1)
        answers = []
        for remembers in (True, False):
            opened = SENDERS["client, MQTT 3.1.1"](node)
            opened.send_bytes(b"2\x06\0\1t\0\1x")
            assert opened.connection.repeated is not None
            if not remembers:
                opened.connection.repeated = None
            opened.send_bytes(chunk)
            answers.append((opened.take(), opened.connection.is_connected, opened.connection.partial))
        assert answers[0] == answers[1], chunk
