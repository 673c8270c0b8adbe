"""QoS 1 and 2 in runs: what many packets at once do is what each of them does, packet by packet."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.connection import MAX_UNREAD_ANSWERS
from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.deliveries import PUMP_BYTES
from hedgerow.broker.ledger import Inbound
from hedgerow.broker.limits import Limits
from hedgerow.broker.unreleased import FEW, MAX_BEFORE_MQTT_5
from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World
from tests.broker.test_identified import connect_peer, identified
from tests.packets import read_packets

RUNS = (0x32, 0x34)


def numbered(count: int, topic: str = "t", first: int = 1, size: int = 0) -> list[Publish]:
    numbers = range(first, first + count)
    return [Publish(topic, (b"%d" % number).ljust(size), 1, packet_id=number) for number in numbers]


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def acknowledged(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets if isinstance(packet, Puback)]


def run_sizes(reader: Client) -> list[int]:
    """How many messages each run had that it got in one piece."""
    return [len(read_packets(piece, reader.version)) for piece in reader.pieces]


# Who gets them

READERS: dict[str, dict[str, Any]] = {
    "mqtt 3": {"version": MQTT_3_1_1},
    "mqtt 5": {},
    "exactly once": {"qos": 2},
    "at most once": {"qos": 0},
    "identifier": {"identifier": 7},
    "few at a time": {"properties": {"receive_maximum": 3}},
    "small packets": {"properties": {"maximum_packet_size": 60}},
    "aliases": {"properties": {"topic_alias_maximum": 2}},
    "shared": {"topic_filter": "$share/group/t"},
    "kept": {"kept": True},
    "away": {"kept": True},
    "congested": {},
    "peer": {"peer": "third"},
    "peer of small packets": {"peer": "fourth", "properties": {"maximum_packet_size": 120}},
    "peer where some began": {"peer": "far"},
}
PUBLISHERS = ("mqtt 3", "mqtt 5", "peer", "no local")


def connect_reader(world: World, name: str) -> Client:
    options = dict(READERS[name])
    topic_filter, qos = options.pop("topic_filter", "t"), options.pop("qos", 1)
    identifier, peer = options.pop("identifier", None), options.pop("peer", None)
    if peer is not None:
        client = connect_peer(world, peer, **options)
    else:
        client = world.connect(
            name, options.pop("version", MQTT_5), options.pop("properties", None), **options
        )
    client.subscribe(topic_filter, qos, identifier)
    return client


def connect_publisher(world: World, kind: str) -> Client:
    if kind == "peer":
        peer = connect_peer(world, "second")
        peer.subscribe("t", 1)
        return peer
    publisher = world.connect("publisher", MQTT_3_1_1 if kind == "mqtt 3" else MQTT_5)
    if kind == "no local":
        publisher.subscribe("t", 1, no_local=True)
    return publisher


def prepare(world: World, readers: list[str], kind: str) -> tuple[dict[str, Client], Client]:
    """The readers, and the publisher. All have had a message: what a session needs is made with the first."""
    clients = {name: connect_reader(world, name) for name in readers}
    publisher = connect_publisher(world, kind)
    world.connect("first").publish("t", b"first", 1)
    for client in (*clients.values(), publisher):
        had = [each for each in client.take() if isinstance(each, Publish) and each.qos]
        client.send(*[Puback(each.packet_id) for each in had])
    if "away" in clients:
        clients["away"].lose()
    if "congested" in clients:
        clients["congested"].set_congested(True)
    return clients, publisher


@st.composite
def traffic(draw: st.DrawFn, kind: str, usual_qos: int) -> list[Publish]:
    """Mostly runs, now and then something else in between."""
    packets = []
    for number in range(draw(st.integers(2, 14))):
        topic = draw(st.sampled_from(["t"] * 8 + ["u"]))
        qos = draw(st.sampled_from([usual_qos] * 12 + [0, 1, 2]))
        payload = b"%d" % number + b"p" * draw(st.sampled_from([0, 1, 1, 1, 1, 90, 200]))
        properties: Properties = {}
        if kind == "peer":
            origin = draw(st.sampled_from(["second"] * 8 + ["far", "node", "f\u00e4r"]))
            sequence = draw(st.sampled_from([number, number, number, 5, 10, 10**17, 2**63 - 1]))
            properties = {"user_property": (("hedgerow-id", f"{origin}/1/{sequence}"),)}
        elif kind != "mqtt 3" and draw(st.integers(0, 9)) == 0:
            properties = {"content_type": "c"}
        retain, dup = (draw(st.integers(0, 19)) == 0 for _ in range(2))
        packet_id = draw(st.sampled_from([number + 1] * 9 + [1])) if qos else 0
        packets.append(Publish(topic, payload, qos, retain, dup and qos > 0, packet_id, properties))
    return packets


def outcome(
    kind: str, readers: list[str], chunks: list[bytes], durable: bool, limits: Limits, short: bool
) -> dict[str, Any]:
    world = World(limits, durable=durable)
    clients, publisher = prepare(world, readers, kind)
    if not short:
        ways = publisher.connection.short_path
        publisher.connection.short_path = {first: ways[first] for first in ways if first not in RUNS}
    for chunk in chunks:
        if not publisher.closed:
            publisher.send_bytes(chunk)
    broker = world.broker
    answers = publisher.take()
    found: dict[str, Any] = {
        "answers": [packet for packet in answers if not isinstance(packet, Publish)],
        "own": payloads(answers),
        "closed": publisher.closed,
        "inbound": publisher.connection.inbound,
        "stats": {name: value for name, value in asdict(broker.stats).items() if name != "bytes_received"},
        "recent": [(each.id, each.payload) for _, run in broker.recent.runs(world.now) for each in run],
        "stored messages": len(world.store.messages),
        "stored": [
            (message.id, message.payload, (session_key, position) in world.store.deliveries)
            for session_key, position in world.store.waits
            for message in [world.store.messages[position]]
        ],
    }
    for name, client in clients.items():
        packets = client.take()
        found[name] = packets
        outbox = broker.sessions[client.connection.connected_session().client_id].outbox
        if outbox is not None:
            in_flight = [
                (key, each.message.payload, each.queued_at) for key, each in outbox.in_flight.items()
            ]
            found[name + " outbox"] = (in_flight, len(outbox.queue), outbox.bytes, outbox.next_packet_id)
        if not client.closed:
            client.send(
                *[Puback(each.packet_id) for each in packets if isinstance(each, Publish) and each.qos == 1]
            )
            exactly_once = [each.packet_id for each in packets if isinstance(each, Publish) and each.qos == 2]
            client.send(*[Pubrec(each) for each in exactly_once], *[Pubcomp(each) for each in exactly_once])
            found[name + " afterwards"] = client.take()
    if not publisher.closed:
        found["unreleased"] = sorted(publisher.connection.connected_session().received or ())
        publisher.send(*[Pubrel(each) for each in (*found["unreleased"], 999)])
        found["released"] = publisher.take()
    found["stats afterwards"] = broker.stats.packets_sent
    found["stored afterwards"] = len(world.store.waits)
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_run_does_what_its_packets_do(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(PUBLISHERS))
    readers = data.draw(st.lists(st.sampled_from(sorted(READERS)), unique=True, max_size=4))
    packets = data.draw(traffic(kind, data.draw(st.sampled_from([1, 2]))))
    durable = data.draw(st.booleans())
    limits = Limits(
        queue_bytes=data.draw(st.sampled_from([500, 2_000, 1 << 24])),
        in_flight=data.draw(st.sampled_from([5, 1_024])),
        receive_maximum=data.draw(st.sampled_from([4, 1_024])),
        packet_bytes=data.draw(st.sampled_from([250, 1 << 20])),
    )
    encoded = b"".join(codec.encode(each, MQTT_3_1_1 if kind == "mqtt 3" else MQTT_5) for each in packets)
    if data.draw(st.integers(0, 4)) == 0:
        place, byte = data.draw(st.integers(0, len(encoded) - 1)), data.draw(st.integers(0, 255))
        encoded = encoded[:place] + bytes((byte,)) + encoded[place + 1 :]
    places = data.draw(st.lists(st.integers(0, len(encoded)), max_size=3))
    marks = [0, *sorted(places), len(encoded)]
    chunks = [encoded[begin:end] for begin, end in pairwise(marks) if begin < end]
    short = outcome(kind, readers, chunks, durable, limits, short=True)
    assert short == outcome(kind, readers, chunks, durable, limits, short=False)


@pytest.mark.parametrize(
    "name", ["mqtt 3", "mqtt 5", "exactly once", "kept", "peer", "peer of small packets"]
)
@pytest.mark.parametrize("kind", ["mqtt 3", "mqtt 5", "peer"])
@pytest.mark.parametrize("durable", [False, True])
def test_usual_recipients_get_a_run_in_one_piece(name: str, kind: str, durable: bool) -> None:
    world = World(durable=durable)
    clients, publisher = prepare(world, [name], kind)
    clients[name].pieces.clear()
    packets = numbered(10)
    if kind == "peer":
        packets = [
            identified(f"other/1/{10 + each.packet_id}", each.payload, 1, packet_id=each.packet_id)
            for each in packets
        ]
    publisher.send(*packets)
    assert run_sizes(clients[name]) == [10]
    assert payloads(clients[name].take()) == [packet.payload for packet in packets]


def test_topics_of_other_runs_in_between() -> None:
    world = World()
    reader, publisher = world.connect("reader"), world.connect("publisher")
    reader.subscribe("#", 1)
    publisher.publish("t", b"", 1)
    reader.take()
    reader.pieces.clear()
    publisher.send(*numbered(3), *numbered(4, "u", 4), *numbered(2, "t", 8, 300))
    assert run_sizes(reader) == [3, 4, 2]
    found = [(each.topic, int(each.payload)) for each in reader.take() if isinstance(each, Publish)]
    assert found == [("t", 1), ("t", 2), ("t", 3), *[("u", each) for each in range(4, 8)], ("t", 8), ("t", 9)]


def test_a_run_does_not_go_back_to_where_it_began() -> None:
    world = World()
    clients, publisher = prepare(world, ["peer where some began", "peer"], "peer")
    packets = [identified(f"far/1/{number}", b"", 1, packet_id=number) for number in range(1, 6)]
    publisher.send(*packets)
    assert clients["peer where some began"].take() == []
    assert len(clients["peer"].take()) == 5
    assert acknowledged(publisher.take()) == [1, 2, 3, 4, 5]


# The store, and what waits for it


def test_a_run_is_acknowledged_when_it_is_stored() -> None:
    world = World(durable=True)
    reader, publisher = world.connect("reader", kept=True), world.connect("publisher")
    reader.subscribe("t", 1)
    publisher.publish("t", b"", 1)
    publisher.take()
    world.commits = False
    publisher.send(*numbered(5))
    publisher.send(*numbered(2, "nobody", 6))
    assert publisher.take() == []
    assert publisher.connection.held_acknowledgements == 7
    assert publisher.connection.held_publications == 7
    world.commit()
    world.settle()
    assert acknowledged(publisher.take()) == [1, 2, 3, 4, 5, 6, 7]
    assert publisher.connection.held_acknowledgements == 0
    assert publisher.connection.held_publications == 0
    world.crash()
    again = world.connect("reader", kept=True)
    assert payloads(again.take())[-5:] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_run_is_stored_once_for_several_sessions() -> None:
    world = World(durable=True)
    readers = [world.connect(name, kept=True) for name in ("one", "two")]
    for reader in readers:
        reader.subscribe("t", 1)
    world.connect("publisher").send(*numbered(5))
    assert [payloads(reader.take()) for reader in readers] == [[b"1", b"2", b"3", b"4", b"5"]] * 2
    assert (len(world.store.messages), len(world.store.waits)) == (5, 10)


def test_duplicates_in_a_run_wait_for_what_is_not_stored() -> None:
    world = World(durable=True)
    reader, peer = world.connect("reader", kept=True), connect_peer(world)
    reader.subscribe("t", 1)
    world.commits = False
    peer.send(*[identified(f"far/1/{number}", b"", 1, packet_id=number) for number in (1, 2, 3)])
    again = connect_peer(world, "other")
    again.take()
    again.send(*[identified(f"far/1/{number}", b"", 1, packet_id=number) for number in (1, 2, 3)])
    assert acknowledged(again.take()) == []
    assert again.connection.inbound == Inbound(published=3, duplicates=3)
    world.commit()
    world.settle()
    assert acknowledged(again.take()) == [1, 2, 3]
    assert len(payloads(reader.take())) == 3


def test_receive_maximum_holds_within_a_run() -> None:
    world = World(Limits(receive_maximum=10), durable=True)
    reader, publisher = world.connect("reader", kept=True), world.connect("publisher")
    reader.subscribe("t", 1)
    world.commits = False
    publisher.send(*numbered(10))
    assert not publisher.closed
    publisher.send(*numbered(2, first=11))
    assert publisher.closed
    assert publisher.take_one(Disconnect).reason_code == Reason.RECEIVE_MAXIMUM_EXCEEDED
    assert len(payloads(reader.take())) == 10


# What is wrong


@pytest.mark.parametrize(
    ("wrong", "reason_code"),
    [
        (
            codec.encode(Publish("t", b"", 1, packet_id=3), MQTT_5).replace(b"\x00\x03", b"\0\0"),
            Reason.PROTOCOL_ERROR,
        ),
        (codec.encode(Publish("t", b"x" * 300, 1, packet_id=3), MQTT_5), Reason.PACKET_TOO_LARGE),
    ],
    ids=["packet identifier 0", "too large"],
)
def test_the_packets_before_a_wrong_one_count(wrong: bytes, reason_code: int) -> None:
    world = World(Limits(packet_bytes=200))
    clients, publisher = prepare(world, ["mqtt 5"], "mqtt 5")
    publisher.send_bytes(b"".join(codec.encode(packet, MQTT_5) for packet in numbered(2)) + wrong)
    *answers, last = publisher.take()
    assert acknowledged(answers) == [1, 2]
    assert isinstance(last, Disconnect)
    assert last.reason_code == reason_code
    assert payloads(clients["mqtt 5"].take()) == [b"1", b"2"]


# Turns, windows and slow readers


def test_a_long_run_is_handled_in_turns() -> None:
    world = World()
    reader, publisher = world.connect("reader", MQTT_3_1_1), world.connect("publisher", MQTT_3_1_1)
    reader.subscribe("t", 1)
    data = b"".join(codec.encode(packet, MQTT_3_1_1) for packet in numbered(6_000))
    before = world.broker.work
    publisher.connection.receive_data(data, world.now)
    assert TURN_WORK < world.broker.work - before < TURN_WORK + 100
    assert publisher.connection.paused
    world.settle()
    assert acknowledged(publisher.take()) == list(range(1, 6_001))


def test_what_a_window_has_no_room_for_waits_in_order() -> None:
    world = World()
    reader = world.connect("reader", properties={"receive_maximum": 4})
    reader.subscribe("t", 1)
    publisher = world.connect("publisher")
    publisher.send(*numbered(3))
    publisher.send(*numbered(20, first=4))
    heard: list[bytes] = []
    while packets := reader.take():
        assert len(packets) <= 4
        heard += payloads(packets)
        reader.send(*[Puback(each.packet_id) for each in packets if isinstance(each, Publish)])
    assert heard == [b"%d" % number for number in range(1, 24)]


def test_a_run_stays_behind_what_waits() -> None:
    world = World()
    clients, publisher = prepare(world, ["mqtt 5"], "mqtt 5")
    reader = clients["mqtt 5"]
    reader.set_congested(True)
    publisher.send(*numbered(4, size=PUMP_BYTES // 2))
    reader.connection.set_congested(False, world.now)  # Half of it leaves before others have their turn.
    publisher.send_later(*numbered(3, first=5))
    world.settle()
    assert [int(payload) for payload in payloads(reader.take())] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["mqtt 3", "mqtt 5", "peer", "kept"])
def test_what_waited_leaves_in_one_piece_but_for_what_is_unusual(kind: str) -> None:
    world = World(durable=kind == "kept")
    clients, publisher = prepare(world, [kind], "mqtt 5")
    reader = clients[kind]
    reader.set_congested(True)
    unusual = [
        replace(numbered(1, first=11)[0], properties={"content_type": "text"}),
        replace(numbered(1, first=12)[0], qos=2),
        *numbered(1, "u", first=13),
    ]
    publisher.send(*numbered(10), *unusual, *numbered(10, first=14))
    reader.set_congested(False)
    assert [int(each) for each in payloads(reader.take())] == [*range(1, 13), *range(14, 24)]
    assert [each for each in run_sizes(reader) if each > 1] == [10, 10]


def test_a_run_has_no_more_room_than_its_messages() -> None:
    world = World(Limits(queue_bytes=500))
    clients, publisher = prepare(world, ["mqtt 5"], "mqtt 5")
    publisher.send(*numbered(10, size=99))
    assert payloads(clients["mqtt 5"].take()) == [packet.payload for packet in numbered(5, size=99)]
    assert world.broker.stats.publish_dropped == 5


def test_acknowledgements_that_are_left_unread_are_counted_one_by_one() -> None:
    """Else a client that never reads could have us keep thousands of them for each that counts."""
    world = World()
    reader, publisher = world.connect("reader", MQTT_3_1_1), world.connect("publisher", MQTT_3_1_1)
    reader.subscribe("t", 1)
    publisher.set_congested(True)
    for _ in range(MAX_UNREAD_ANSWERS // 1_000 + 1):
        publisher.send(*numbered(1_000))
    assert publisher.connection.paused
    publisher.set_congested(False)
    assert not publisher.connection.paused


# PUBACK in a row


def test_pubacks_in_a_row_finish_their_deliveries_and_no_others() -> None:
    world = World(durable=True)
    reader, publisher = world.connect("reader", kept=True), world.connect("publisher")
    reader.subscribe("t", 2)
    publisher.send(*numbered(5), Publish("t", b"twice", 2, packet_id=6))
    sent = {each.payload: each.packet_id for each in reader.take() if isinstance(each, Publish)}
    wrong = [Puback(sent[b"twice"]), Puback(999)]
    reader.send(Puback(sent[b"1"]), *wrong, Puback(sent[b"3"]), Puback(sent[b"3"]), Pingreq())
    left = {each.message.payload for each in reader.connection.connected_session().outbox.in_flight.values()}  # type: ignore[union-attr]
    assert left == {b"2", b"4", b"5", b"twice"}
    assert len(world.store.waits) == 4


# QoS 2


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("acknowledgement", "qos"), [(Puback, 2), (Pubrec, 1), (Pubcomp, 1)])
def test_an_acknowledgement_of_the_other_qos_ends_the_connection(
    acknowledgement: type[Puback | Pubrec | Pubcomp], qos: int, durable: bool
) -> None:
    for among_others in (False, True):
        world = World(durable=durable)
        reader = world.connect("reader", kept=durable)
        reader.subscribe("t", 1)
        reader.subscribe("u", 2)
        publisher = world.connect("publisher")
        right, wrong = ("t", "u") if qos == 2 else ("u", "t")
        publisher.publish(right, b"1", 3 - qos, 1)
        publisher.publish(wrong, b"2", qos, 2)
        ids = [each.packet_id for each in reader.take() if isinstance(each, Publish)]
        reader.send(*[acknowledgement(each) for each in (ids if among_others else ids[1:])])
        (said,) = [each for each in reader.take() if isinstance(each, Disconnect)]
        assert said.reason_code == Reason.PROTOCOL_ERROR
        assert reader.closed


def exactly_once(count: int, first: int = 1) -> list[Publish]:
    return [replace(each, qos=2) for each in numbered(count, first=first)]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_run_at_qos_2_is_passed_on_once(version: int) -> None:
    """The second time all of it, and then some that are new: only these are passed on."""
    world = World()
    reader, publisher = world.connect("reader", version), world.connect("publisher", version)
    reader.subscribe("t", 2)
    publisher.send(*exactly_once(FEW * 2))
    assert [each.packet_id for each in publisher.take() if isinstance(each, Pubrec)] == list(
        range(1, FEW * 2 + 1)
    )
    publisher.send(*exactly_once(FEW * 2 + 3))
    sent = [each for each in reader.take() if isinstance(each, Publish)]
    assert [int(each.payload) for each in sent] == list(range(1, FEW * 2 + 4))
    reader.send(*[Pubrec(each.packet_id) for each in sent])
    released = [each.packet_id for each in reader.take() if isinstance(each, Pubrel)]
    assert released == [each.packet_id for each in sent]
    reader.send(*[Pubcomp(each.packet_id) for each in sent])
    publisher.take()
    publisher.send(*[Pubrel(each.packet_id) for each in exactly_once(FEW * 2 + 3)])
    assert len([each for each in publisher.take() if isinstance(each, Pubcomp)]) == FEW * 2 + 3
    assert not publisher.connection.connected_session().received
    assert not reader.connection.connected_session().waiting_count


def test_a_run_at_qos_2_has_no_more_room_than_its_packets() -> None:
    """What a client before MQTT 5 leaves unreleased is bounded within a run, too."""
    world = World()
    reader, publisher = world.connect("reader"), world.connect("publisher", MQTT_3_1_1)
    reader.subscribe("t", 2)
    publisher.send(*exactly_once(MAX_BEFORE_MQTT_5))
    assert not publisher.closed
    publisher.send(*exactly_once(2, first=MAX_BEFORE_MQTT_5 + 1))
    assert publisher.closed


def test_a_usual_recipient_gets_a_run_at_qos_2_in_one_piece() -> None:
    world = World()
    clients, publisher = prepare(world, ["exactly once", "mqtt 5"], "mqtt 5")
    for client in clients.values():
        client.pieces.clear()
    publisher.send(*exactly_once(10))
    assert [run_sizes(client) for client in clients.values()] == [[10], [10]]
