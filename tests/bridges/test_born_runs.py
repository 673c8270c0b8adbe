"""Messages in a row that begin at a foreign broker, or go there, by a bridge that is alone there or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.following import FollowingBridge
from hedgerow.bridges.stamp_codec import Presence, decode_ids, encode_presence
from hedgerow.broker.limits import MAX_WINDOW
from hedgerow.message import MessageId
from hedgerow.mqtt.packets import Packet, Puback, Publish
from tests.bridges.harness import Network, Node, Script, balance, opened, sealed
from tests.bridges.test_following import CONTROL, FAR, answer, copy, join, publications, take

COUNT = 40
SUCCESS, NO_MATCHING_SUBSCRIBERS = 0, 0x10


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


def acknowledged(packets: list[Packet]) -> list[tuple[int, int]]:
    return [(each.packet_id, each.reason_code) for each in packets if isinstance(each, Puback)]


def ids_of(packets: Sequence[Packet]) -> list[MessageId]:
    found = [each for each in packets if isinstance(each, Publish) and each.topic == "a/b"]
    return [MessageId.parse(dict(each.properties["user_property"])["hedgerow-id"]) for each in found]


def row(bridge: FollowingBridge, topic_filter: str, qos: int = 1, size: int = 1) -> list[Publish]:
    """To "a/b", as the foreign broker sends them for one filter."""
    return [
        copy(bridge, topic_filter, "a/b", b"%*d" % (size, number), qos=qos, packet_id=number if qos else 0)
        for number in range(1, COUNT + 1)
    ]


def payloads(packets: list[Publish]) -> list[bytes]:
    return [each.payload for each in packets]


def beside(network: Network, node: Node) -> Script:
    """Another broker of ours, which gets everything with its ids."""
    scripts = network.script("beside")
    node.bridge("# out 1", name="beside", address="beside", notifications=False)
    scripts[0].accept(FAR)
    take(scripts[0])
    return scripts[0]


def presence_of_another(network: Network, rank: int) -> Publish:
    """Of the same rank as ours it leads, of a higher one we do."""
    presence = encode_presence(Presence(99, rank, True, ("#",)))
    topic = CARRIER_TOPIC + "a-first"
    return Publish(topic, sealed(topic, presence, network.now), properties=CONTROL)


# In


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [1, 200, 20_000])
@pytest.mark.parametrize("is_client", [True, False])
def test_a_row_comes_in_once_and_in_order(
    network: Network, north: Node, qos: int, size: int, is_client: bool
) -> None:
    """Whether a client gets it, many at a time, or a part of the node, each by itself."""
    bridge, far = join(network, north)
    reader = north.connect("reader")
    if is_client:
        reader.subscribe("#", 1)
    else:
        north.listen("#")
    bridge.ask_for("a/#")
    answer(far)
    reader.take()
    packets = row(bridge, "a/#", qos, size)
    far.send(*packets)
    came = [each.payload for each in reader.take() if isinstance(each, Publish)] + north.take_heard()
    assert came == payloads(packets)
    assert acknowledged(take(far)) == [(each.packet_id, SUCCESS) for each in packets if qos]
    assert (bridge.inbound.published, bridge.inbound.duplicates) == (COUNT, 0)


@pytest.mark.parametrize("qos", [0, 1])
def test_each_of_a_row_has_its_id_and_is_known_by_it(network: Network, north: Node, qos: int) -> None:
    bridge, far = join(network, north)
    there = beside(network, north)
    bridge.ask_for("a/#")
    answer(far)
    far.send(*row(bridge, "a/#", qos))
    ids = ids_of(take(there))
    identity = bridge.find_foreign(True).stamps.attendance.identity
    assert [(each.origin, each.sequence) for each in ids] == [(identity, n + 1) for n in range(COUNT)]
    assert all(north.broker.duplicates.seen(each) for each in ids)
    assert publications(take(far)) == []  # It does not go back.


def test_a_row_by_every_topic_line_too(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = north.bridge("# both 1 in/ out/", address="far", notifications=False)
    scripts[0].accept()
    network.advance(0.6)
    take(scripts[0])
    reader = north.connect("reader")
    reader.subscribe("#", 1)
    reader.take()
    numbers = range(1, COUNT + 1)
    scripts[0].send(*[Publish("out/t", b"%d" % each, 1, packet_id=each) for each in numbers])
    assert publications(reader.take()) == [("in/t", b"%d" % each, 1, False) for each in numbers]
    assert acknowledged(take(scripts[0])) == [(each, SUCCESS) for each in numbers]
    assert bridge.inbound.published == COUNT


def test_what_nobody_gets_is_acknowledged_so(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    bridge.ask_for("a/#")
    answer(far)
    packets = row(bridge, "a/#")
    far.send(*packets)
    assert acknowledged(take(far)) == [(each.packet_id, NO_MATCHING_SUBSCRIBERS) for each in packets]


def test_of_rows_by_two_filters_one_counts(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    reader = north.connect("reader")
    reader.subscribe("#", 1)
    for topic_filter in ("a/#", "a/b"):
        bridge.ask_for(topic_filter)
    answer(far)
    reader.take()
    packets = row(bridge, "a/#")
    far.send(*row(bridge, "a/b"), *packets)
    assert [each.payload for each in reader.take() if isinstance(each, Publish)] == payloads(packets)
    assert len(acknowledged(take(far))) == 2 * COUNT


def test_a_row_that_counted_does_not_count_again_by_another_filter(network: Network, north: Node) -> None:
    """Its copies waited at the foreign broker for room in flight, until the first filter had left."""
    bridge, far = join(network, north)
    reader = north.connect("reader")
    reader.subscribe("#", 1)
    for topic_filter in ("a/#", "a/b"):
        bridge.ask_for(topic_filter)
    answer(far)
    reader.take()
    packets = row(bridge, "a/#")
    far.send(*packets)
    bridge.no_longer_ask_for("a/#")
    answer(far)
    far.send(*row(bridge, "a/b"))
    assert [each.payload for each in reader.take() if isinstance(each, Publish)] == payloads(packets)


def test_unlike_packets_in_a_row_are_told_apart(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    reader = north.connect("reader")
    reader.subscribe("#", 1)
    for topic_filter in ("a/#", "b/#"):
        bridge.ask_for(topic_filter)
    answer(far)
    reader.take()
    with_property = copy(bridge, "a/#", "a/b", b"3", qos=1, packet_id=3)
    with_property.properties["content_type"] = "text"
    far.send(
        copy(bridge, "a/#", "a/b", b"1", qos=1, packet_id=1),
        copy(bridge, "a/#", "a/b", b"2"),
        with_property,
        copy(bridge, "b/#", "b/b", b"4", qos=1, packet_id=4),
        copy(bridge, "a/#", "a/b", b"5", qos=1, packet_id=5, retain=True),
        copy(bridge, "a/#", "a/b", b"6", qos=1, packet_id=6, dup=True),
        copy(bridge, "a/#", "a/c", b""),
        copy(bridge, "a/#", "a/d", b"7"),
        copy(bridge, "a/#", "a/d", b"", qos=1, packet_id=7),
        copy(bridge, "a/#", "a/c", b"8", qos=1, packet_id=8),
    )
    came = [each for each in reader.take() if isinstance(each, Publish)]
    assert payloads(came) == [b"1", b"2", b"3", b"4", b"5", b"6", b"", b"7", b"", b"8"]
    assert [each.qos for each in came] == [1, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    assert [each.topic for each in came[-5:]] == ["a/b", "a/c", "a/d", "a/d", "a/c"]
    assert came[2].properties == {"content_type": "text"}
    assert [packet_id for packet_id, _ in acknowledged(take(far))] == [1, 3, 4, 5, 6, 7, 8]


def test_a_row_waits_for_the_stamps_of_who_leads(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    bridge.ask_for("a/#")
    answer(far)
    far.send(presence_of_another(network, 1))
    far.send(*row(bridge, "a/#"))
    assert north.take_heard() == []
    assert acknowledged(take(far)) == []
    assert bridge.find_foreign(True).stamps.held_count == COUNT


# Out


def listening(network: Network, north: Node) -> tuple[FollowingBridge, Script]:
    bridge, far = join(network, north)
    bridge.listen("a/#", 1)
    take(far)
    return bridge, far


def test_of_a_run_the_foreign_broker_gets_what_it_has_not(network: Network, north: Node) -> None:
    """Another bridge, which has left, brought some of it."""
    bridge, far = listening(network, north)
    first = north.broker.sequence + 1
    has_it = [MessageId("north", north.broker.epoch, first + each) for each in (3, 7)]
    for each in has_it:
        bridge.admission.note_heard(each)
    north.connect("writer").send(*[Publish("a/b", b"%d" % each, 1, packet_id=each + 1) for each in range(10)])
    came = publications(answer(far))
    assert [payload for _, payload, _, _ in came] == [
        b"%d" % each for each in range(10) if each not in (3, 7)
    ]
    answer(far)
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0
    assert not bridge.session.outbox


def test_a_run_waits_for_the_leave_of_who_leads(network: Network, north: Node) -> None:
    bridge, far = listening(network, north)
    far.send(presence_of_another(network, 1))
    answer(far)
    north.connect("writer").send(*[Publish("a/b", b"%d" % each, 1, packet_id=each + 1) for each in range(10)])
    came = take(far)
    assert publications(came) == []
    assert [each.topic for each in came if isinstance(each, Publish)] == [
        f"hedgerow/bridge/ask/{bridge.admission.carrier_id}"
    ]


def test_as_who_leads_we_say_first_what_we_bring(network: Network, north: Node) -> None:
    bridge, far = listening(network, north)
    far.send(presence_of_another(network, 2))
    answer(far)
    north.connect("writer").send(*[Publish("a/b", b"%d" % each, 1, packet_id=each + 1) for each in range(3)])
    came = [each for each in take(far) if isinstance(each, Publish)]
    first, *others = [each.topic for each in came]
    assert first == f"hedgerow/bridge/admitted/{bridge.admission.carrier_id}"
    assert [each for each in others if each != first] == ["a/b"] * 3
    said = [
        each for message in came if message.topic == first for each in decode_ids(opened(message.payload))
    ]
    assert said == ids_of(came)


def test_we_say_how_many_may_be_in_flight(network: Network, north: Node) -> None:
    """Mosquitto has 20 in flight to who does not."""
    scripts = network.script("far")
    north.bridge("# in 1", address="far")
    assert scripts[0].take_connect().properties["receive_maximum"] == MAX_WINDOW
