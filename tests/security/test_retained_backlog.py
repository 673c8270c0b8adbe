"""What is retained and waits for a subscriber costs a cursor, and its sending is divided into turns."""

from __future__ import annotations

import tracemalloc

from hedgerow.broker.broker import MAX_PURGED
from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.deliveries import PUMP_BYTES
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_5, Pingreq, Publish, Suback, Subscribe, Subscription, Unsubscribe
from tests.broker.harness import Client, World

RETAINED = 5_000


def retaining_world(**fields: object) -> tuple[World, Client]:
    world = World()
    publisher = world.connect("publisher")
    for number in range(RETAINED):
        publisher.send_later(Publish(f"t/{number}", b"x", retain=True, **fields))  # type: ignore[arg-type]
        if number % 500 == 0:
            world.settle()
    world.settle()
    publisher.take_bytes()
    return world, publisher


def payload_topics(client: Client) -> list[str]:
    return [packet.topic for packet in client.take() if isinstance(packet, Publish)]


def test_a_client_that_subscribes_to_everything_and_reads_nothing_costs_little_memory() -> None:
    world, _ = retaining_world()
    client = world.connect("a")
    client.set_congested(True)
    filters = ["t/#", "#", "+/+", "t/+", "+/+/#", "t/+/#"]
    tracemalloc.start()
    for topic_filter in filters:
        client.send(Subscribe(1, [Subscription(topic_filter, 1)]))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000, f"{used} bytes for {len(filters)} subscriptions"
    client.set_congested(False)
    topics = payload_topics(client)
    assert len(topics) >= 1_024, "as many as may be in flight"


def test_retained_messages_are_sent_in_turns_however_small_they_are() -> None:
    world, _ = retaining_world()
    client, other = world.connect("a"), world.connect("other")
    before = world.broker.work
    client.connection.receive_data(encode(Subscribe(1, [Subscription("#")]), MQTT_5), world.now)
    turns = 1
    while world.broker.deadline <= world.now:
        assert world.broker.work - before < 2 * TURN_WORK
        other.connection.receive_data(encode(Pingreq(), MQTT_5), world.now)
        assert other.connection.out, "another is heard between the turns"
        other.connection.take_output()
        before = world.broker.work
        world.broker.handle_timer(world.now)
        turns += 1
    assert turns > 1
    world.settle()
    packets = client.take()
    assert packets[0] == Suback(1, [0]), "before all that is retained"
    assert sorted(packet.topic for packet in packets[1:] if isinstance(packet, Publish)) == sorted(
        f"t/{number}" for number in range(RETAINED)
    )


def test_looking_for_what_does_not_match_is_divided_into_turns_too() -> None:
    world, _ = retaining_world()
    client = world.connect("a")
    client.connection.receive_data(
        encode(Subscribe(1, [Subscription(f"+/+/{number}") for number in range(50)]), MQTT_5), world.now
    )
    while world.broker.deadline <= world.now:
        before = world.broker.work
        world.broker.handle_timer(world.now)
        assert world.broker.work - before < 2 * TURN_WORK
    world.settle()
    assert payload_topics(client) == []


def test_what_changes_while_a_subscription_waits_comes_once_and_in_order() -> None:
    world = World()
    publisher, client = world.connect("publisher"), world.connect("a")
    for topic in "abc":
        publisher.publish(f"t/{topic}", b"old", retain=True)
    client.set_congested(True)
    client.send(Subscribe(1, [Subscription("t/#")]))
    publisher.publish("t/a", b"new", retain=True)
    publisher.publish("t/b", b"", retain=True)
    publisher.publish("t/d", b"new", retain=True)
    client.set_congested(False)
    found = [(each.topic, each.payload, each.retain) for each in client.take() if isinstance(each, Publish)]
    assert found == [
        ("t/a", b"new", False),
        ("t/b", b"", False),
        ("t/d", b"new", False),
        ("t/c", b"old", True),
    ]


def test_a_subscription_that_ends_leaves_nothing_that_waits() -> None:
    world = World()
    client = world.connect("a")
    client.publish("t", b"x", retain=True)
    client.set_congested(True)
    client.send(Subscribe(1, [Subscription("t")]), Unsubscribe(2, ["t"]))
    assert not client.connection.backlog
    client.set_congested(False)
    assert payload_topics(client) == []


def test_messages_that_expire_at_one_moment_go_in_turns() -> None:
    world, _ = retaining_world(properties={"message_expiry_interval": 5})
    world.now += 60
    left = []
    while world.broker.deadline <= world.now:
        world.broker.handle_timer(world.now)
        left.append(len(world.broker.retained))
    steps = [before - after for before, after in zip([RETAINED, *left], left, strict=False)]
    assert max(steps) <= MAX_PURGED
    assert left[-1] == 0


def test_names_that_take_long_to_look_at_are_looked_at_in_turns() -> None:
    """300 names of 60,000 characters, of which none matches: none of them is sent, and all are read."""
    world = World()
    publisher, client = world.connect("publisher"), world.connect("a")
    for number in range(300):
        publisher.send_later(Publish("a" * 60_000 + str(number), b"x", retain=True))
    world.settle()
    client.send_later(Subscribe(1, [Subscription("+/b")]))
    rounds = 0
    while client.connection.backlog:
        rounds += 1
        world.broker.handle_timer(world.now)
    assert rounds >= 300 // (PUMP_BYTES // 60_000 + 1) - 1
    assert payload_topics(client) == []
