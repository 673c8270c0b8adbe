"""Messages between brokers: ids come and go with them, duplicates are dropped, clients see nothing of it.

The short way for publications with ids must do what the long way through the codec does, byte for byte.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.ledger import Inbound
from hedgerow.broker.limits import Limits
from hedgerow.broker.port import Port
from hedgerow.broker.short_path import SHORT_PATH
from hedgerow.duplicates import DEFAULT_BYTES, MAX_LIVES
from hedgerow.message import MAX_NUMBER, Message, MessageId, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    PUBLISH,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from tests.broker.harness import Client, RelayRole, World
from tests.packets import read_packets

LONG_WAY = {first: short for first, short in SHORT_PATH.items() if first >> 4 != PUBLISH}


def as_peer(name: str) -> Properties:
    return {"user_property": (("hedgerow-node", name),)}


def connect_peer(world: World, name: str = "far", **options: Any) -> Client:
    properties: Properties = {**as_peer(name), **options.pop("properties", {})}
    return world.connect(f"bridge of {name}", properties=properties, **options)


def with_id(text: str, *pairs: tuple[str, str], **others: Any) -> Properties:
    return {"user_property": (("hedgerow-id", text), *pairs), **others}  # type: ignore[typeddict-item]


def identified(text: str, payload: bytes = b"", qos: int = 0, topic: str = "t", **fields: Any) -> Publish:
    return Publish(
        topic,
        payload,
        qos,
        packet_id=fields.pop("packet_id", 1 if qos else 0),
        properties=with_id(text),
        **fields,
    )


def id_of(packet: Packet) -> str | None:
    assert isinstance(packet, Publish)
    pairs = packet.properties.get("user_property", ())
    found = [value for name, value in pairs if name == "hedgerow-id"]
    assert len(found) <= 1
    assert not found or pairs[0][0] == "hedgerow-id", "it is the first"
    return found[0] if found else None


# Who takes part


def test_peers_are_told_each_others_names() -> None:
    world = World()
    peer = connect_peer(world)
    assert peer.connack.properties["user_property"] == (("hedgerow-node", "node"),)
    assert "user_property" not in world.connect("client").connack.properties


def test_mqtt_3_has_no_peers() -> None:
    world = World()
    client = world.connect("client", MQTT_3_1_1)
    assert not client.connection.carries_ids


def test_a_peer_gets_ids_with_all_it_is_sent() -> None:
    world = World()
    peer = connect_peer(world)
    peer.subscribe("#", 2, retain_as_published=True)
    client = world.connect("client", MQTT_3_1_1)
    client.send(Publish("t", b"0"), Publish("t", b"1"), Publish("t", b"2", 1, packet_id=1))
    client.send(Publish("t", b"3", 2, packet_id=2), Publish("t", b"4", 0, True))
    packets = peer.take()
    ids = [id_of(packet) for packet in packets]
    assert len(set(ids)) == 5
    assert all(each is not None and each.startswith("node/1/") for each in ids)
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [
        b"%d" % n for n in range(5)
    ]


def test_all_peers_get_the_same_id_by_whichever_way() -> None:
    """On the short way, with and without a Maximum Packet Size, and at a port."""
    world = World()
    heard: list[Message] = []
    Port(world.broker, "test", heard.append).subscribe("t", world.now)
    peers = [connect_peer(world, "one"), connect_peer(world, "two", properties={"maximum_packet_size": 150})]
    for peer in peers:
        peer.subscribe("t", 0)
    world.connect("client").send(Publish("t", b"a"), Publish("t", b"b"), Publish("t", b"c"))
    first, second = ([id_of(packet) for packet in peer.take()] for peer in peers)
    assert first == second == [str(message.id) for message in heard]


def test_an_id_goes_on_as_it_came() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("#", 2)
    for number, qos in enumerate((0, 1, 2)):
        sender.send(identified(f"far/7/{number}", b"", qos, packet_id=number))
    assert [id_of(packet) for packet in receiver.take()] == ["far/7/0", "far/7/1", "far/7/2"]


def test_nothing_goes_back_to_where_it_began() -> None:
    world = World()
    sender, other = connect_peer(world, "far"), connect_peer(world, "other")
    for peer in (sender, other):
        peer.subscribe("#", 1)
    for qos in (0, 1):
        other.send(identified(f"far/7/{qos}", b"", qos))  # by a way around
        sender.send(Publish("t", b"", qos, packet_id=qos))
    assert [each for each in sender.take() if isinstance(each, Publish)] == []


# Ordinary clients


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("options", [{}, {"topic_alias_maximum": 5}, {"maximum_packet_size": 1000}])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_see_nothing_of_ids(version: int, options: Properties, qos: int) -> None:
    world = World()
    peer = connect_peer(world)
    reader = world.connect("reader", version, options if version == MQTT_5 else None)
    reader.subscribe("t", qos)
    pairs = (("hedgerow-id", "far/1/1"), ("mine", "1"), ("hedgerow-time", "5.0"), ("mine", "2"))
    peer.send(Publish("t", b"a", qos, True, packet_id=1 if qos else 0, properties={"user_property": pairs}))
    peer.send(identified("far/1/2", b"b", qos, packet_id=2 if qos else 0))
    late = world.connect("late", version)
    late.subscribe("t", qos)
    for client, payloads in ((reader, [b"a", b"b"]), (late, [b"a"])):
        data = client.take_bytes()
        assert b"hedgerow" not in data
        packets = [each for each in read_packets(data, version) if isinstance(each, Publish)]
        assert [each.payload for each in packets] == payloads
        if version == MQTT_5:
            assert packets[0].properties.get("user_property") == (("mine", "1"), ("mine", "2"))


def test_what_an_ordinary_client_calls_an_id_is_an_application_matter() -> None:
    world = World()
    client, reader = world.connect("client"), world.connect("reader")
    reader.subscribe("t")
    client.publish("t", b"1", properties=with_id("far/1/1"))
    client.publish("t", b"2", properties=with_id("far/1/1"))
    packets = reader.take()
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"1", b"2"]
    assert [id_of(packet) for packet in packets] == ["far/1/1", "far/1/1"]


def test_properties_beside_the_id_go_on() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("t")
    properties = with_id("far/1/1", ("a", "b"), content_type="text", message_expiry_interval=60)
    sender.publish("t", b"", properties=properties)
    packet = receiver.take_one(Publish)
    assert packet.properties == properties


# What is taken for an id

NO_IDS = [
    "far/1/01",
    "far/01/1",
    "/1/1",
    "far/1",
    "far/1/-1",
    "far/1/+1",
    "far/1/1_0",
    "far/1/\u0661",
    "far/1/ 1",
    "",
]
BEYOND = [
    f"far/1/{MAX_NUMBER + 1}",
    f"far/{MAX_NUMBER + 1}/1",
    "far/1/" + "9" * 30,
    "f" * 300 + "/1/1",
    f"far/1/{'9' * 5000}",
]


@pytest.mark.parametrize("text", NO_IDS + BEYOND)
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_no_id_is_as_if_it_were_not_there(text: str, qos: int) -> None:
    """Above all nothing that the store could not write: one such message would stop it for good."""
    world = World(durable=True)
    heard: list[Message] = []
    Port(world.broker, "test", heard.append).subscribe("t", world.now)
    peer = connect_peer(world)
    peer.send(identified(text, b"1", qos), identified(text, b"2", qos, packet_id=2 if qos else 0))
    assert [message.payload for message in heard] == [b"1", b"2"]
    assert all(message.id is not None and message.id.origin == "node" for message in heard)


@pytest.mark.parametrize(
    "text", [f"far/{MAX_NUMBER}/{MAX_NUMBER}", "a/b/c/1/2", "f\u00e4r/0/0", f"far/1/{10**18}"]
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_unusual_ids_are_ids(text: str, qos: int) -> None:
    world = World()
    heard: list[Message] = []
    Port(world.broker, "test", heard.append).subscribe("t", world.now)
    peer = connect_peer(world)
    for packet_id in (1, 2):
        peer.send(identified(text, b"", qos, packet_id=packet_id if qos else 0))
    assert [message.id for message in heard] == [MessageId.parse(text)]
    assert peer.connection.inbound == Inbound(published=2, duplicates=1)


def test_an_id_with_u_0000_breaks_a_rule() -> None:
    """Else we would pass it on to a peer that refuses us for it."""
    for qos in (0, 1):
        world = World()
        peer = connect_peer(world)
        data = codec.encode(identified("f.r/1/1", b"", qos), MQTT_5).replace(b"f.r", b"f\0r")
        peer.send_bytes(data)
        assert peer.connection.inbound == Inbound(published=1, refused=1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_own_messages_have_always_been_here(qos: int) -> None:
    world = World()
    reader, peer = world.connect("reader"), connect_peer(world)
    reader.subscribe("t", 2)
    peer.send(
        identified("node/1/999", b"", qos), identified("node/77/0", b"", qos, packet_id=2 if qos else 0)
    )
    assert reader.take() == []
    assert peer.connection.inbound == Inbound(published=2, duplicates=2)


def test_the_first_of_two_ids_counts() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("t")
    sender.publish("t", b"1", properties=with_id("far/1/1", ("hedgerow-id", "far/1/2")))
    sender.publish("t", b"2", properties=with_id("far/1/2"))
    assert [id_of(packet) for packet in receiver.take()] == ["far/1/1", "far/1/2"]


def test_an_id_that_is_not_the_first_property() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("t")
    properties: Properties = {"content_type": "x", "user_property": (("a", "b"), ("hedgerow-id", "far/1/1"))}
    sender.publish("t", b"", properties=properties)
    sender.publish("t", b"", properties=with_id("far/1/1"))
    assert id_of(receiver.take_one(Publish)) == "far/1/1"


def test_a_message_without_id_begins_here() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("t")
    sender.publish("t", b"same")
    sender.publish("t", b"same")
    ids = [id_of(packet) for packet in receiver.take()]
    assert len(set(ids)) == 2
    assert all(each is not None and each.startswith("node/1/") for each in ids)


# Who may claim one


def test_without_the_right_ids_are_ignored() -> None:
    """A client that claims ids of another node could have that node's later messages dropped."""
    rules = "topic readwrite #\nuser bridge\ntopic readwrite #\ntopic write $hedgerow/bridge\n"
    world = World(access=Access(Acl.parse(rules, "acl")), verifies_passwords=True)
    reader = world.connect("reader")
    reader.subscribe("t")
    attacker = world.connect("attacker", properties=as_peer("far"))
    assert "user_property" not in attacker.connack.properties
    attacker.send(*[identified(f"victim/1/{number}", b"claimed") for number in range(3)])
    assert len(reader.take()) == 3
    peer = world.open()
    peer.send(Connect("b", username="bridge", password=b"", properties=as_peer("victim")))
    (login,) = world.broker.take_logins()
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert peer.take_first(Connack).properties["user_property"] == (("hedgerow-node", "node"),)
    peer.send(*[identified(f"victim/1/{number}", b"real") for number in range(3)])
    assert reader.take_payloads() == [b"real"] * 3


# Limits


def test_a_peer_gets_nothing_larger_than_it_takes() -> None:
    world = World()
    peer = connect_peer(world, properties={"maximum_packet_size": 120})
    peer.subscribe("t", 1)
    client = world.connect("client")
    client.send(Publish("t", b"x" * 10), Publish("t", b"y" * 200), Publish("t", b"z" * 10))
    client.send(Publish("t", b"x" * 200, 1, packet_id=1), Publish("t", b"w", 1, packet_id=2))
    packets = peer.take()
    assert [each.payload for each in packets if isinstance(each, Publish)] == [b"x" * 10, b"z" * 10, b"w"]
    assert all(len(codec.encode(packet, MQTT_5)) <= 120 for packet in packets)


def test_a_congested_peer_loses_qos_0_and_keeps_qos_1() -> None:
    world = World(Limits(queue_bytes=2_000))
    peer = connect_peer(world)
    peer.subscribe("t", 1)
    peer.set_congested(True)
    client = world.connect("client")
    for number in range(100):
        client.publish("t", (b"%d" % number).ljust(50))
    client.publish("t", b"kept", 1)
    assert peer.take() == []
    assert world.broker.stats.publish_dropped > 0
    peer.set_congested(False)
    payloads = peer.take_payloads()
    assert payloads[-1] == b"kept"
    assert 1 < len(payloads) < 101
    client.publish("t", b"again")
    assert peer.take_payloads() == [b"again"]


def test_invented_origins_fill_no_memory() -> None:
    world = World()
    sender, receiver = connect_peer(world, "far"), connect_peer(world, "other")
    receiver.subscribe("t")
    for start in range(0, 10_000, 500):
        sender.send(*[identified(f"far{number}/1/1", b"") for number in range(start, start + 500)])
    assert len(receiver.take()) == 10_000
    assert len(sender.connection.lives) <= 1_024
    assert len(world.broker.id_prefixes) <= 4_096
    assert world.broker.duplicates.life_count <= MAX_LIVES
    assert world.broker.duplicates.bytes <= DEFAULT_BYTES


# Acknowledgements and the store


def test_a_duplicate_is_not_acknowledged_before_the_first_is_stored() -> None:
    """The link broke before the commit: were the repetition acknowledged, a crash would lose the message."""
    world = World(durable=True)
    reader = world.connect("reader", kept=True)
    reader.subscribe("t", 1)
    peer = connect_peer(world)
    world.commits = False
    reader.lose()
    peer.send(identified("far/1/1", b"", 1))
    peer.lose()
    again = connect_peer(world)
    again.send(identified("far/1/1", b"", 1, dup=True))
    assert again.take() == []
    world.commits = True
    world.settle()
    assert [each.packet_id for each in again.take() if isinstance(each, Puback)] == [1]


def test_what_is_seen_while_a_batch_waits_for_the_disk_is_not_in_it() -> None:
    """Else, after a crash, the second message is known, and its delivery is not."""
    world = World(durable=True)
    reader = world.connect("reader", kept=True)
    reader.subscribe("t", 1)
    peer = connect_peer(world)
    reader.lose()
    world.commits = False
    peer.send(identified("far/1/1", b"1", 1))
    assert world.take_changes()
    peer.send(identified("far/1/2", b"2", 1, packet_id=2))
    world.write_taken()
    world.crash()
    world.commits = True
    again = connect_peer(world)
    again.send(
        identified("far/1/1", b"1", 1, dup=True), identified("far/1/2", b"2", 1, dup=True, packet_id=2)
    )
    reader = world.connect("reader", kept=True, clean_start=False)
    assert [each.payload for each in reader.take() if isinstance(each, Publish)] == [b"1", b"2"]


def test_a_duplicate_is_acknowledged_at_once_when_all_is_stored() -> None:
    world = World(durable=True)
    peer = connect_peer(world)
    peer.send(identified("far/1/1", b"", 1))
    peer.take()
    world.commits = False
    peer.send(identified("far/1/1", b"", 1, packet_id=2))
    assert [type(each) for each in peer.take()] == [Puback]


# Retained values


def retained(text: str, payload: bytes, at: float, topic: str = "t") -> Publish:
    return Publish(topic, payload, 0, True, properties=with_id(text, ("hedgerow-time", f"{at:.6f}")))


def test_an_older_value_does_not_replace_a_newer_one() -> None:
    world = World()
    peer = connect_peer(world)
    peer.send(retained("far/1/2", b"new", 200.0), retained("far/1/1", b"old", 100.0))
    kept = world.broker.retained.get("t")
    assert kept is not None
    assert kept.payload == b"new"
    assert peer.connection.inbound == Inbound(published=2, outdated=1)
    peer.send(retained("other/1/1", b"newest", 300.0))
    assert peer.connection.inbound.outdated == 1
    kept = world.broker.retained.get("t")
    assert kept is not None
    assert kept.payload == b"newest"


@pytest.mark.parametrize("text", ["nan", "inf", "-5", "1e300", "soon", ""])
def test_a_time_that_is_none(text: str) -> None:
    world = World()
    peer = connect_peer(world)
    properties = with_id("far/1/1", ("hedgerow-time", text))
    peer.publish("t", b"x", retain=True, properties=properties)
    kept = world.broker.retained.get("t")
    assert kept is not None
    assert kept.published_at == world.now


def test_values_of_one_moment_and_origin_go_by_their_sequence() -> None:
    """Two in one chunk have the same time; by two ways they come in either order."""
    for order in ((1, 2), (2, 1)):
        world = World()
        peer = connect_peer(world)
        peer.send(*[retained(f"far/1/{number}", b"%d" % number, 100.0) for number in order])
        kept = world.broker.retained.get("t")
        assert kept is not None
        assert kept.payload == b"2"


def test_the_very_same_value_is_no_news_after_a_restart() -> None:
    world = World(durable=True)
    connect_peer(world).send(retained("far/1/1", b"x", 100.0))
    world.crash()
    reader = world.connect("reader")
    reader.subscribe("t")
    reader.take()
    connect_peer(world).send(retained("far/1/1", b"x", 100.0))
    assert reader.take() == []


def test_a_peer_is_told_the_time_of_a_retained_value() -> None:
    world = World()
    world.connect("client").publish("t", b"x", retain=True)
    peer = connect_peer(world)
    peer.subscribe("t", retain_as_published=True)
    packet = peer.take_one(Publish)
    assert packet.properties["user_property"][1] == ("hedgerow-time", f"{world.now:.6f}")


# The short way and the long one

ORIGINS = ("far", "far", "far", "other", "node", "f\u00e4r")
ids = st.builds(
    lambda *parts: "/".join(map(str, parts)), st.sampled_from(ORIGINS), st.integers(0, 1), st.integers(0, 12)
)
odd_ids = st.sampled_from([*NO_IDS, *BEYOND[:3], "far/0/9223372036854775807", "far/0/999999999999999999"])
pairs = st.one_of(
    ids.map(lambda text: (("hedgerow-id", text),)),
    ids.map(lambda text: (("hedgerow-id", text),)),
    odd_ids.map(lambda text: (("hedgerow-id", text),)),
    st.just(()),
    st.tuples(ids, ids).map(lambda both: (("hedgerow-id", both[0]), ("hedgerow-id", both[1]))),
    ids.map(lambda text: (("a", "b"), ("hedgerow-id", text))),
    ids.map(lambda text: (("hedgerow-id", text), ("hedgerow-time", "55.5"), ("a", "b"))),
)


@st.composite
def publications(draw: st.DrawFn) -> list[Publish]:
    packets = []
    for number in range(draw(st.integers(1, 12))):
        qos = draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
        found = draw(pairs)
        properties: Properties = {"user_property": found} if found else {}
        if draw(st.integers(0, 9)) == 0:
            properties = {"content_type": "c", **properties}
        payload = b"p" * draw(st.sampled_from([0, 1, 1, 1, 200])) + b"%d" % number
        topic = draw(st.sampled_from(["t", "t", "t", "u", "$SYS/forbidden"]))
        retain = draw(st.integers(0, 9)) == 0
        packets.append(
            Publish(topic, payload, qos, retain, packet_id=number + 1 if qos else 0, properties=properties)
        )
    return packets


def outcome(chunks: list[bytes], short: bool) -> dict[str, Any]:
    """What everybody gets who is there: readers of both versions, another peer, a port, the sender."""
    world = World()
    heard: list[Message] = []
    Port(world.broker, "test", heard.append).subscribe("t", world.now)
    readers = {
        "3": world.connect("3", MQTT_3_1_1),
        "5": world.connect("5"),
        "peer": connect_peer(world, "third"),
    }
    for reader in readers.values():
        reader.subscribe("t", 1)
        reader.subscribe("u", 0)
    sender = connect_peer(world)
    sender.subscribe("t", 0)
    if not short:
        sender.connection.short_path = LONG_WAY
    for chunk in chunks:
        if not sender.closed:
            sender.send_bytes(chunk)
    found: dict[str, Any] = {
        name: [_comparable(each) for each in reader.take()] for name, reader in readers.items()
    }
    found["port"] = [(message.payload, message.qos, _foreign(message.id)) for message in heard]
    found["sender"] = [type(each).__name__ for each in sender.take()], sender.closed
    found["inbound"] = sender.connection.inbound
    found["received"] = world.broker.stats.publish_received
    return found


def _comparable(packet: Packet) -> Any:
    if not isinstance(packet, Publish):
        return packet
    message_id = id_of(packet)
    name = _foreign(MessageId.parse(message_id)) if message_id else None
    others = tuple(pair for pair in packet.properties.get("user_property", ()) if pair[0] != "hedgerow-id")
    return packet.topic, packet.payload, packet.qos, packet.retain, packet.packet_id, name, others


def _foreign(message_id: MessageId | None) -> MessageId | str | None:
    """Ids that begin here are counted up in different steps."""
    return "ours" if message_id is not None and message_id.origin == "node" else message_id


def encode(packets: list[Publish]) -> bytes:
    return b"".join(codec.encode(packet, MQTT_5) for packet in packets)


def split(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(marks) if begin < end]


@settings(max_examples=200)
@given(publications(), st.lists(st.integers(0, 5_000), max_size=4))
def test_the_short_way_does_what_the_long_way_does(packets: list[Publish], places: list[int]) -> None:
    data = encode(packets)
    assert outcome(split(data, places), short=True) == outcome([data], short=False)


@settings(max_examples=200)
@given(publications(), st.integers(0, 5_000), st.integers(0, 255))
def test_also_with_what_is_wrong(packets: list[Publish], place: int, byte: int) -> None:
    data = bytearray(encode(packets))
    data[place % len(data)] = byte
    assert outcome([bytes(data)], short=True) == outcome([bytes(data)], short=False)


def test_at_every_position() -> None:
    packets = [identified(f"far/1/{number}", b"%d" % number) for number in (1, 2, 3, 2)]
    packets += [
        identified("other/1/10", b"x"),
        identified("other/1/11", b"y" * 130),
        identified("far/1/9", b"z", 1),
    ]
    data = encode(packets)
    whole = outcome([data], short=False)
    assert len(whole["5"]) == 6
    for place in range(1, len(data)):
        assert outcome([data[:place], data[place:]], short=True) == whole, place


@pytest.mark.parametrize(
    "data", [b"\x30\x00", b"\x30\x01\x00", b"\x32\x00", b"\x34\x02\x00\x00", b"\x30\x02\x00\x00"]
)
def test_packets_too_short_to_be_one(data: bytes) -> None:
    world = World()
    peer = connect_peer(world)
    peer.send_bytes(data)
    assert peer.closed
    assert world.broker.stats.protocol_errors == 1


def test_a_packet_that_ends_within_its_id_is_refused() -> None:
    """Its digits would be read from the packet behind it."""
    first = codec.encode(identified("far/1/123"), MQTT_5)
    cut = bytes((first[0], first[1] - 3)) + first[2:-3]
    world = World()
    peer = connect_peer(world)
    peer.send_bytes(first + cut + first)
    assert peer.connection.inbound == Inbound(published=3, duplicates=1, refused=1)


def test_qos_2_from_a_peer_is_released() -> None:
    world = World()
    peer = connect_peer(world)
    peer.send(identified("far/1/1", b"", 2), identified("far/1/1", b"", 2, dup=True))
    peer.send(Pubrel(1))
    assert [type(packet) for packet in peer.take()[:2]] == [Pubrec, Pubrec]
    assert not peer.connection.connected_session().received


def test_a_subscribe_of_many_filters_is_not_one_turn() -> None:
    """Each is compared with what has just flowed."""
    world = World()
    peer = connect_peer(world)
    for number in range(5_000):
        message = Message("a/b", b"", 1, id=MessageId("o", 1, number))
        world.broker.recent.add(message, world.now)
    wanted = [Subscription(f"f/{number}", 1) for number in range(50)]
    peer.connection.receive_data(codec.encode(Subscribe(9, wanted), MQTT_5), world.now)
    assert len(peer.connection.connected_session().subscriptions or ()) < 5
    world.settle()
    assert len(peer.connection.connected_session().subscriptions or ()) == 50


@pytest.mark.parametrize(("origin", "most"), [("far", 800), ("far{}", 450)])
def test_what_a_peer_sends_is_worked_off_in_turns(origin: str, most: int) -> None:
    """A packet whose topic or origin is another than the last one's takes 15 to 25 microseconds."""
    world = World()
    peer = connect_peer(world)
    packets = [identified(f"{origin.format(each)}/1/{each}", topic=f"t/{each % 2}") for each in range(2_000)]
    peer.send_later(*packets)
    assert world.broker.stats.publish_received <= most
    world.settle()
    assert world.broker.stats.publish_received == 2_000


def test_the_sessions_of_links_are_known_apart_from_those_of_clients() -> None:
    """Who looks for what waits for other links need not walk a hundred thousand clients."""
    world = World()
    world.connect("client")
    broker = world.broker
    assert set(broker.links.values()) == {each for each in broker.sessions.values() if each.role.is_link}

    class LinkRole(RelayRole):
        is_link = True

    role = LinkRole(broker)
    link = broker.create_session("link", None, role)
    assert list(broker.links.values()) == [link]
    broker.discard(link)
    assert not broker.links
