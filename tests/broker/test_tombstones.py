"""Deletions of retained values: what is remembered of them, for whom, for how long, and how many."""

from __future__ import annotations

import pytest

from hedgerow.broker.ledger import Inbound
from hedgerow.broker.limits import Limits
from hedgerow.broker.retained import TOMBSTONE_S, Tombstones, cost, stamp
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.ids import MAX_TIME
from hedgerow.mqtt.packets import Publish, Subscribe, Subscription
from tests.broker.harness import START, Client, World

MARK = ("hedgerow-held", "1")
TICK_S = 1e-6


def connect_peer(world: World, name: str = "far") -> Client:
    return world.connect(f"bridge of {name}", properties={"user_property": (("hedgerow-node", name),)})


def told(
    text: str, payload: bytes, at: float, *pairs: tuple[str, str], topic: str = "t", qos: int = 0
) -> Publish:
    own = (("hedgerow-id", text), ("hedgerow-time", f"{at:.6f}"), *pairs)
    return Publish(topic, payload, qos, True, packet_id=qos, properties={"user_property": own})


def tombstones(world: World) -> list[str]:
    return [each.topic for each in world.broker.retained.tombstones]


def value(world: World, topic: str = "t") -> bytes | None:
    message = world.broker.retained.get(topic)
    return None if message is None else message.payload


# What leaves one


def test_a_deletion_leaves_a_tombstone_where_there_was_a_value() -> None:
    world = World()
    client = world.connect("a")
    client.publish("never/there", b"", retain=True)
    client.publish("t", b"x", retain=True)
    client.publish("t", b"", retain=True)
    assert tombstones(world) == ["t"]
    client.subscribe("#")
    assert client.take() == [], "clients see none"


def test_a_deletion_from_another_broker_leaves_one_always() -> None:
    world = World()
    connect_peer(world).send(told("far/1/1", b"", 500.0))
    assert tombstones(world) == ["t"]


def test_and_one_that_goes_to_another_broker() -> None:
    """It may have a value of which nothing is known here."""
    world = World()
    connect_peer(world).subscribe("t/#")
    client = world.connect("a")
    client.publish("t/1", b"", retain=True)
    client.publish("u", b"", retain=True)
    assert tombstones(world) == ["t/1"]


def test_topics_of_one_broker_leave_none() -> None:
    world = World()
    client = world.connect("a")
    client.publish("$own", b"x", retain=True)
    client.publish("$own", b"", retain=True)
    assert value(world, "$own") is None
    assert tombstones(world) == []


def test_what_expires_leaves_none_and_gives_way_to_an_older_value() -> None:
    world = World(durable=True)
    client = world.connect("a")
    client.publish("t", b"short", retain=True, properties={"message_expiry_interval": 5})
    world.advance(6)
    connect_peer(world).send(told("far/1/1", b"older", 500.0))
    assert value(world) == b"older"
    client.publish("u", b"short", retain=True, properties={"message_expiry_interval": 5})
    world.advance(60)
    assert tombstones(world) == []
    assert list(world.store.retained) == ["t"]


def test_a_new_value_takes_the_tombstone_away() -> None:
    world = World(durable=True)
    client = world.connect("a")
    for payload in b"x", b"", b"y":
        client.publish("t", payload, retain=True)
    assert tombstones(world) == []
    assert world.store.retained["t"].payload == b"y"


# Which is the newer


@pytest.mark.parametrize("first", [0, 1])
def test_value_and_deletion_go_by_their_time_in_either_order(first: int) -> None:
    for older, newer, left in ((b"x", b"", None), (b"", b"x", b"x")):
        world = World()
        peer = connect_peer(world)
        packets = [told("far/1/1", older, 500.0), told("far/1/2", newer, 600.0)]
        peer.send(packets[first], packets[1 - first])
        assert value(world) == left
        assert peer.connection.inbound == Inbound(published=2, outdated=first)


@pytest.mark.parametrize("first", [0, 1])
def test_at_one_moment_the_greater_id_wins(first: int) -> None:
    world = World()
    peer = connect_peer(world)
    packets = [told("a/1/9", b"x", 500.0), told("b/1/1", b"", 500.0)]
    peer.send(packets[first], packets[1 - first])
    assert value(world) is None
    assert tombstones(world) == ["t"]


def test_at_one_moment_with_a_value_of_this_node() -> None:
    """Its id counts from the first, though no other broker has asked for it."""
    for name, left in (("aaa", b"mine"), ("zzz", b"theirs")):
        world = World()  # its node is called "node"
        world.connect("a").publish("t", b"mine", retain=True)
        connect_peer(world).send(told(f"{name}/1/1", b"theirs", START))
        assert value(world) == left


def test_the_same_deletion_again_is_no_news() -> None:
    world = World(durable=True)
    peer = connect_peer(world)
    reader = world.connect("reader")
    reader.subscribe("t")
    for _ in range(2):
        peer.send(told("far/1/1", b"", 500.0))
    assert reader.take() == [Publish("t", b"")]
    world.crash()
    reader = world.connect("reader")
    reader.subscribe("t")
    connect_peer(world).send(told("far/1/1", b"", 500.0), told("far/1/0", b"older", 400.0))
    assert reader.take() == []
    assert value(world) is None


def test_what_was_here_before_is_kept_if_it_is_the_newest_but_not_heard_again() -> None:
    """Born at a foreign broker, it came by two nodes, and each gave it a time."""
    world = World()
    reader, peer, third = world.connect("reader"), connect_peer(world), connect_peer(world, "third")
    reader.subscribe("t")
    third.subscribe("t", retain_as_published=True)
    peer.send(told("foreign/1/1", b"x", 500.0), told("far/1/1", b"y", 600.0))
    reader.take()
    third.take()
    peer.send(told("foreign/1/1", b"x", 700.0))
    assert value(world) == b"x"
    assert reader.take() == []
    assert third.take_one(Publish) == told("foreign/1/1", b"x", 700.0)
    peer.send(told("foreign/1/1", b"x", 800.0))
    assert third.take_one(Publish) == told("foreign/1/1", b"x", 800.0)
    assert peer.connection.inbound == Inbound(published=4, duplicates=2)


def test_a_publication_of_this_node_is_the_newest_whatever_its_clock_says() -> None:
    world = World()
    peer, client = connect_peer(world), world.connect("a")
    peer.send(told("far/1/1", b"ahead", START + 5_000))
    client.publish("t", b"mine", retain=True)
    kept = world.broker.retained.get("t")
    assert kept is not None
    assert (kept.payload, kept.published_at) == (b"mine", START + 5_000 + TICK_S)
    peer.send(told("far/1/2", b"", START + 9_000))
    client.publish("t", b"mine again", retain=True)
    assert value(world) == b"mine again"


def test_the_last_time_that_there_is_stops_nobody() -> None:
    world = World()
    latest = MAX_TIME - 2 * TICK_S
    connect_peer(world).send(told("far/1/1", b"hostile", latest))
    client = world.connect("a")
    for number in range(3):
        client.publish("t", b"%d" % number, retain=True)
    assert value(world) == b"2"


@pytest.mark.parametrize("now", [0.1, 1.7e9 + 0.123456789, MAX_TIME - 1 / 3])
def test_times_are_the_same_numbers_wherever_they_come(now: float) -> None:
    kept = None
    times = []
    for _ in range(100):
        times.append(stamp(now, kept))
        kept = Message("t", b"", published_at=times[-1])
    assert times == sorted(set(times))
    assert times == [float(f"{at:.6f}") for at in times]


# Who is told


def test_a_broker_that_subscribes_is_told_of_deletions() -> None:
    world = World()
    client = world.connect("a")
    for topic in "t/1", "u":
        client.publish(topic, b"x", 1, retain=True)
        client.publish(topic, b"", 1, retain=True, properties={"user_property": (("large", "x" * 500),)})
    peer = connect_peer(world)
    peer.subscribe("t/#", 1, retain_as_published=True)
    packet = peer.take_one(Publish)
    assert (packet.topic, packet.payload, packet.qos, packet.retain) == ("t/1", b"", 1, True)
    assert packet.properties["user_property"] == (
        ("hedgerow-id", "node/1/2"),
        ("hedgerow-time", f"{START + TICK_S:.6f}"),
        MARK,
    )
    peer.subscribe("u", 1)
    assert peer.take() == [], "it is not to retain, so it would hear an empty message"


def test_a_deletion_that_is_told_is_published_only_where_it_deletes() -> None:
    world = World()
    reader, peer, third = world.connect("reader"), connect_peer(world), connect_peer(world, "third")
    world.connect("a").publish("t", b"x", retain=True)
    reader.subscribe("#", retain_handling=2)
    third.subscribe("#", retain_as_published=True, retain_handling=2)
    peer.send(told("far/1/1", b"", START + 1, MARK), told("far/1/2", b"", START + 1, MARK, topic="u"))
    assert reader.take() == [Publish("t", b"")]
    assert third.take() == [
        told("far/1/1", b"", START + 1),
        told("far/1/2", b"", START + 1, MARK, topic="u"),
    ]
    peer.send(told("far/1/3", b"", START + 1, topic="w"))
    assert reader.take() == [Publish("w", b"")], "published a moment ago: a message like any other"


def test_one_that_was_replaced_meanwhile_is_not_told() -> None:
    world = World()
    client, peer = world.connect("a"), connect_peer(world)
    for topic in "t", "u":
        client.publish(topic, b"x", retain=True)
        client.publish(topic, b"", retain=True)
    peer.connection.set_congested(True, world.now)
    peer.send_later(Subscribe(1, [Subscription("#", 0, False, True)]))
    client.send_later(Publish("t", b"new", retain=True))
    peer.connection.set_congested(False, world.now)
    world.settle()
    told_of = [(each.topic, each.payload) for each in peer.take() if isinstance(each, Publish)]
    assert told_of == [("t", b"new"), ("u", b"")]


# How long, and how many


def test_tombstones_survive_a_crash_and_end_in_time() -> None:
    world = World(durable=True)
    client = world.connect("a")
    client.publish("t", b"x", retain=True)
    world.advance(100)
    client.publish("t", b"", 1, retain=True)
    world.crash(TOMBSTONE_S - 10)
    assert tombstones(world) == ["t"]
    world.advance(30)
    assert tombstones(world) == []
    assert world.store.retained == {}
    assert world.broker.deadline == float("inf")


def test_one_whose_time_ended_while_the_broker_was_away_is_removed_from_the_store() -> None:
    world = World(durable=True)
    client = world.connect("a")
    client.publish("t", b"x", retain=True)
    client.publish("t", b"", retain=True)
    world.crash(TOMBSTONE_S + 1)
    assert tombstones(world) == []
    assert world.store.retained == {}


def test_a_deletion_of_long_ago_deletes_and_leaves_none() -> None:
    """Brokers must not keep it alive by telling each other."""
    world = World(durable=True)
    world.now += 2 * TOMBSTONE_S
    peer = connect_peer(world)
    peer.send(told("far/1/1", b"old", START), told("far/1/2", b"", START + 1))
    assert value(world) is None
    assert tombstones(world) == []
    assert world.store.retained == {}


def test_a_flood_of_deletions_takes_a_bounded_room_and_the_oldest_go_first() -> None:
    world = World(Limits(retained_bytes=80_000), durable=True)
    peer = connect_peer(world)
    for number in range(200):
        peer.send(told(f"far/1/{number}", b"", START, topic=f"t/{number:03}"))
    kept = world.broker.retained.tombstones
    assert kept.bytes == sum(map(cost, kept)) <= 10_000
    assert 5 < len(kept) < 15
    assert tombstones(world) == [f"t/{number:03}" for number in range(200 - len(kept), 200)]
    assert list(world.store.retained) == tombstones(world)
    world.crash()
    assert tombstones(world) == list(world.store.retained)


def test_one_that_has_no_room_at_all_is_not_kept() -> None:
    kept = Tombstones(1_000)
    assert not kept.set(
        Message("t" * 1_000, b"", 0, True, {}, MessageId("a", 1, 1), published_at=START), START
    )
    assert (len(kept), kept.bytes) == (0, 0)
