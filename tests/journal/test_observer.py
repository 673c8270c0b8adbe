"""The journal as the broker fills it: every publication once, with its id and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.bridges.roles import BridgeRole
from hedgerow.broker.port import Port
from hedgerow.broker.watching import set_role
from hedgerow.journal.observer import JournalObserver, Source
from hedgerow.message import Message, MessageId
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import START, Client, World


class Row(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    transport: str
    client: str | None
    id: MessageId | None
    published_at: float | None = None


class FakeJournal:
    """Rows in a list. `room` is how many bytes of payloads it takes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.runs = 0
        self.is_behind = False
        self.room = 1 << 30

    def has_room(self, size: int) -> bool:
        return size <= self.room

    def record(self, message: Message, source: Source, now: float) -> bool:
        if not self.has_room(len(message.payload)):
            return False
        row = Row(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            *source,
            message.id,
            message.published_at,
        )
        self.rows.append(row)
        return True

    def record_run(
        self,
        topic: str,
        payloads: Sequence[bytes],
        first_id: MessageId,
        qos: int,
        source: Source,
        now: float,
    ) -> bool:
        self.runs += 1
        if not self.has_room(sum(map(len, payloads))):
            return False
        for shift, payload in enumerate(payloads):
            message_id = MessageId(first_id.origin, first_id.epoch, first_id.sequence + shift)
            self.rows.append(Row(topic, payload, qos, False, *source, message_id))
        return True

    def record_packets(
        self,
        topic: str,
        packets: bytes,
        size: int,
        head: int,
        first_id: MessageId,
        source: Source,
        now: float,
    ) -> bool:
        assert len(packets) % size == 0
        payloads = [packets[start + head : start + size] for start in range(0, len(packets), size)]
        return self.record_run(topic, payloads, first_id, 0, source, now)

    def figures(self) -> Mapping[str, int]:
        return {"messages/recorded": len(self.rows)}

    @property
    def contents(self) -> list[tuple[str, bytes]]:
        return [(row.topic, row.payload) for row in self.rows]


def make_world(
    *filters: str, durable: bool = False, sys_interval_s: float = 0.0
) -> tuple[World, FakeJournal]:
    world = World(durable=durable, sys_interval_s=sys_interval_s)
    journal = FakeJournal()
    world.broker.observe(JournalObserver(journal, filters or ("#",)))
    return world, journal


def connect_peer(world: World, name: str) -> Client:
    return world.connect(name, properties={"user_property": (("hedgerow-node", name),)})


def identified(topic: str, payload: bytes, message_id: str, qos: int = 0, packet_id: int = 0) -> Publish:
    properties = {"user_property": (("hedgerow-id", message_id),)}
    return Publish(topic, payload, qos, packet_id=packet_id, properties=properties)  # type: ignore[arg-type]


def own(sequence: int) -> MessageId:
    return MessageId("node", 1, sequence)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("subscriber", [None, MQTT_3_1_1, MQTT_5])
def test_packets_in_a_row_are_recorded_in_runs(version: int, subscriber: int | None) -> None:
    """One topic in a row is one run, whether the recipients take the very bytes received or not."""
    world, journal = make_world()
    if subscriber is not None:
        world.connect("subscriber", subscriber).subscribe("#")
    publisher = world.connect("publisher", version)
    before = world.broker.sequence
    publisher.send(
        *(Publish("a", b"%03d" % number) for number in range(10)),
        Publish("b", b""),
        Publish("a", b"longer than the others"),
    )
    payloads = [b"%03d" % number for number in range(10)]
    expected = [("a", payload) for payload in payloads] + [("b", b""), ("a", b"longer than the others")]
    assert journal.contents == expected
    assert [row.id for row in journal.rows] == [own(before + 1 + number) for number in range(12)]
    assert {row[2:6] for row in journal.rows} == {(0, False, "tcp", "publisher")}
    assert journal.runs == 3


def test_a_packet_like_the_last_is_recorded_too() -> None:
    world, journal = make_world()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("a")
    publisher = world.connect("publisher")
    for number in range(4):
        publisher.publish("a", b"%d" % number)
    assert journal.contents == [("a", b"%d" % number) for number in range(4)]
    sequences = [row.id.sequence for row in journal.rows if row.id is not None]
    assert sequences == list(range(sequences[0], sequences[0] + 4))
    assert subscriber.take_payloads() == [b"0", b"1", b"2", b"3"]


def test_a_port_hears_the_id_that_is_recorded() -> None:
    world, journal = make_world()
    heard: list[Message] = []
    Port(world.broker, "listener", heard.append).subscribe("#", world.now)
    world.connect("publisher").send(*(Publish("a", b"%d" % number) for number in range(3)))
    assert [message.id for message in heard] == [row.id for row in journal.rows]
    assert len(heard) == 3


def test_what_ports_publish_is_recorded_with_their_transport() -> None:
    world, journal = make_world()
    for options in (("sensors",), ("multicast",), ()):
        Port(world.broker, "a port", lambda message: None, *options).publish(Message("a", b"x"), world.now)
    assert [row.transport for row in journal.rows] == ["sensors", "multicast", "node"]
    assert {row.client for row in journal.rows} == {None}


@pytest.mark.parametrize("with_subscriber", [False, True])
def test_at_qos_1_acknowledgements_wait_for_the_journal(with_subscriber: bool) -> None:
    world, journal = make_world()
    if with_subscriber:
        world.connect("subscriber").subscribe("a", 1)
    publisher = world.connect("publisher")
    world.commits = False
    publisher.send(*(Publish("a", b"%d" % number, 1, packet_id=number) for number in range(1, 4)))
    publisher.publish("b", b"exactly once", 2, 9)
    assert [row[:6] for row in journal.rows] == [
        *(("a", b"%d" % number, 1, False, "tcp", "publisher") for number in range(1, 4)),
        ("b", b"exactly once", 2, False, "tcp", "publisher"),
    ]
    assert len({row.id for row in journal.rows}) == 4
    assert publisher.take() == []
    world.commits = True
    world.settle()
    answers = publisher.take()
    assert [type(answer) for answer in answers] == [Puback, Puback, Puback, Pubrec]


def test_without_a_journal_for_its_topic_nothing_waits() -> None:
    world, journal = make_world("a/#")
    publisher = world.connect("publisher")
    world.commits = False
    publisher.publish("b", b"", 1)
    publisher.take_one(Puback)
    assert journal.rows == []


def test_a_copy_waits_while_the_first_may_not_be_durable() -> None:
    """The first came at QoS 0, so that nothing is held for it; the copy must not be acknowledged before."""
    world, journal = make_world()
    first, second = connect_peer(world, "first"), connect_peer(world, "second")
    first.send(identified("a", b"x", "far/1/1"))
    world.commits = False
    journal.is_behind = True
    second.send(identified("a", b"x", "far/1/1", 1, 5))
    assert second.take() == []
    journal.is_behind = False
    world.commits = True
    world.settle()
    second.take_one(Puback)
    assert len(journal.rows) == 1


@pytest.mark.parametrize("durable", [False, True])
def test_retained_and_properties_are_recorded(durable: bool) -> None:
    world, journal = make_world(durable=durable)
    publisher = world.connect("publisher")
    publisher.publish("a", b"value", 1, retain=True, properties={"content_type": "text/plain"})
    (row,) = journal.rows
    assert row[:4] == ("a", b"value", 1, True)
    assert row.published_at is not None
    assert row.published_at >= START


def test_the_will_of_a_client_that_is_gone_is_recorded() -> None:
    world, journal = make_world()
    world.connect("mortal", will=Will("a", b"gone")).lose()
    assert [row[:6] for row in journal.rows] == [("a", b"gone", 0, False, "will", "mortal")]


def test_of_peers_each_id_is_recorded_once() -> None:
    world, journal = make_world()
    first, second = connect_peer(world, "first"), connect_peer(world, "second")
    first.send(*(identified("a", b"%d" % number, f"far/7/{number}") for number in (1, 2, 3, 5, 4, 8)))
    second.send(*(identified("a", b"again", f"far/7/{number}") for number in (2, 3)))
    second.send(
        *(identified("a", b"%d" % number, f"far/7/{number}", 1, number) for number in (5, 6, 7, 8, 9))
    )
    second.send(identified("a", b"twice", "far/7/6", 1, 1), identified("b", b"10", "far/7/10", 2, 2))
    expected = [1, 2, 3, 5, 4, 8, 6, 7, 9, 10]
    assert [row.id for row in journal.rows] == [MessageId("far", 7, number) for number in expected]
    assert [row.payload for row in journal.rows] == [b"%d" % number for number in expected]
    assert [row.client for row in journal.rows] == ["first"] * 6 + ["second"] * 4
    assert [row.qos for row in journal.rows] == [0] * 6 + [1, 1, 1, 2]


def test_topics_of_the_node_only_where_a_filter_names_them() -> None:
    world, journal = make_world("#", sys_interval_s=10.0)
    world.advance(30)
    assert journal.rows == []
    world, journal = make_world("$SYS/broker/uptime", sys_interval_s=10.0)
    world.advance(30)
    assert {row[0] for row in journal.rows} == {"$SYS/broker/uptime"}
    assert {row[4:6] for row in journal.rows} == {("node", None)}


def test_commands_are_never_recorded() -> None:
    """The section of a bridge may hold a password."""
    world, journal = make_world("$SYS/#")
    world.broker.take_commands((NEW_BRIDGE, DELETE_BRIDGE))
    administrator = world.open("127.0.0.1")
    administrator.send(Connect("administrator", MQTT_5))
    administrator.take()
    administrator.publish("$SYS/broker/bridge/new", b"remote_password secret", 1)
    assert administrator.take_one(Puback).reason_code in (0, Reason.NO_MATCHING_SUBSCRIBERS)
    assert journal.rows == []
    assert world.broker.find_route("$SYS/broker/uptime").observers


def test_figures_are_seen_below_sys() -> None:
    world, _ = make_world(sys_interval_s=10.0)
    watcher = world.connect("watcher")
    world.connect("publisher").publish("a", b"x")
    world.advance(11)
    watcher.subscribe("$SYS/broker/journal/#")
    shown = watcher.take_one(Publish)
    assert (shown.topic, shown.payload) == ("$SYS/broker/journal/messages/recorded", b"1")


def test_a_journal_that_comes_later_finds_topics_that_are_in_use() -> None:
    world = World()
    publisher = world.connect("publisher")
    world.connect("subscriber").subscribe("a")
    publisher.publish("a", b"before")
    journal = FakeJournal()
    world.broker.observe(JournalObserver(journal, ("a",)))
    publisher.publish("a", b"behind")
    assert journal.contents == [("a", b"behind")]


def refused(client: Client) -> bool:
    *_, last = client.take()
    return client.closed and isinstance(last, Disconnect) and last.reason_code == Reason.SERVER_BUSY


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("qos", [1, 2])
def test_without_room_nobody_gets_what_must_be_recorded(qos: int, count: int) -> None:
    world, journal = make_world()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("a", qos)
    publisher = world.connect("publisher")
    journal.room = 2
    errors = world.broker.stats.protocol_errors
    publisher.send(*(Publish("a", b"large", qos, packet_id=number + 1) for number in range(count)))
    assert refused(publisher)
    assert subscriber.take() == []
    assert journal.rows == []
    assert world.broker.stats.protocol_errors == errors


def test_the_link_of_a_bridge_is_ended_without_an_error() -> None:
    """A timer of the bridge may be what passes its messages on."""
    world, journal = make_world()
    bridge = world.connect("bridge")
    role = BridgeRole("node")
    role.may_write = lambda session, topic: True  # type: ignore[method-assign]
    set_role(world.broker, bridge.connection.connected_session(), role)
    journal.room = 2
    bridge.send(Publish("a", b"large", 1, packet_id=1))
    assert refused(bridge)
    assert journal.rows == []


@pytest.mark.parametrize("count", [1, 3])
def test_what_found_no_room_is_no_duplicate_when_it_comes_again(count: int) -> None:
    world, journal = make_world()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("a", 1)
    packets = [identified("a", b"large", f"far/1/{number}", 1, number) for number in range(1, count + 1)]
    journal.room = 2
    peer = connect_peer(world, "peer")
    peer.send(*packets)
    assert refused(peer)
    journal.room = 1_000
    peer = connect_peer(world, "peer")
    peer.send(*packets)
    assert len(peer.take()) == count
    assert subscriber.take_payloads() == [b"large"] * count
    assert journal.contents == [("a", b"large")] * count


def test_without_room_qos_0_is_passed_on_all_the_same() -> None:
    world, journal = make_world()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("a")
    publisher = world.connect("publisher")
    journal.room = 2
    publisher.publish("a", b"large")
    Port(world.broker, "port", lambda message: None).publish(Message("a", b"large too", 1), world.now)
    world.settle()
    assert subscriber.take_payloads() == [b"large", b"large too"]
    assert journal.rows == []


PUBLICATION = st.tuples(
    st.sampled_from(["a/1", "a/2", "b"]),
    st.sampled_from([b"", b"x", b"yy", b"z" * 200]),
    st.sampled_from([0, 0, 0, 1, 1, 2]),
    st.booleans() | st.just(False),
    st.booleans() | st.just(False),
    st.integers(1, 12),
)
PUBLISHERS = ("old", "new", "peer-1", "peer-2")
SUBSCRIBERS = {"none": (), "old": (MQTT_3_1_1,), "new": (MQTT_5,), "both": (MQTT_3_1_1, MQTT_5)}


@given(
    st.lists(
        st.tuples(st.sampled_from(PUBLISHERS), st.lists(PUBLICATION, min_size=1, max_size=8)), max_size=8
    ),
    st.sampled_from(sorted(SUBSCRIBERS)),
    st.booleans(),
)
def test_the_record_is_what_was_accepted(
    chunks: list[tuple[str, list[tuple[str, bytes, int, bool, bool, int]]]], subscribers: str, has_port: bool
) -> None:
    world, journal = make_world("a/#")
    for version in SUBSCRIBERS[subscribers]:
        world.connect(f"subscriber-{version}", version).subscribe("#", 1)
    if has_port:
        Port(world.broker, "listener", lambda message: None).subscribe("#", world.now)
    clients = {name: world.connect(name, MQTT_3_1_1 if name == "old" else MQTT_5) for name in PUBLISHERS[:2]}
    clients |= {name: connect_peer(world, name) for name in PUBLISHERS[2:]}
    taken: set[int] = set()
    expected: list[tuple[str, bytes, int, bool, str, int | None]] = []
    packet_id = 0
    for name, publications in chunks:
        client, packets = clients[name], []
        for topic, payload, qos, retain, has_property, sequence in publications:
            packet_id += 1
            pairs = [("hedgerow-id", f"far/3/{sequence}")] if name.startswith("peer") else []
            pairs += [("colour", "green")] if has_property and name != "old" else []
            publish = Publish(topic, payload, qos, retain, packet_id=packet_id if qos else 0)
            if pairs:
                publish.properties["user_property"] = tuple(pairs)
            packets.append(codec.encode(publish, client.version))
            if name.startswith("peer"):
                if sequence in taken:
                    continue
                taken.add(sequence)
            if topic != "b":
                expected.append((topic, payload, qos, retain, name, sequence if "peer" in name else None))
        client.send_bytes(b"".join(packets))
        assert not client.closed
    found = [
        (*row[:4], row.client, row.id.sequence if row.id is not None and row.id.origin == "far" else None)
        for row in journal.rows
    ]
    assert found == expected
    ids = [row.id for row in journal.rows if row.id is not None]
    assert len(set(ids)) == len(journal.rows)
    sequences = [each.sequence for each in ids if each.origin == "node"]
    assert sequences == sorted(sequences)
