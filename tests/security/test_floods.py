"""Floods of clients: whatever one of them asks for, the others wait for a bounded amount of work.

Work is counted in `broker.work`, in units of about a microsecond, so that a slow machine fails no test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hedgerow.broker.core import ROUND_WORK, SHORT_TURN_WORK, TURN_WORK
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    MQTT_5,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from tests.broker.harness import World

PING = encode(Pingreq(), MQTT_5)


def most_work_at_once(world: World, begin: Callable[[], None]) -> int:
    """Of the beginning, and of each round until nothing is left to do."""
    most = 0
    step: Callable[[], None] = begin
    while True:
        before = world.broker.work
        step()
        most = max(most, world.broker.work - before)
        if world.broker.deadline > world.now:
            return most
        step = lambda: world.broker.handle_timer(world.now)  # noqa: E731


def test_many_clients_that_ask_for_much_share_a_round() -> None:
    """A hundred that each use up a turn would keep the others waiting for a second."""
    world = World()
    other = world.connect("other")
    greedy = [world.connect(f"greedy {number}") for number in range(50)]
    before = world.broker.work
    for client in greedy:
        client.connection.receive_data(PING * 5_000, world.now)
    other.connection.receive_data(PING, world.now)
    assert world.broker.work - before < ROUND_WORK + TURN_WORK + 50 * (SHORT_TURN_WORK + 10)
    assert other.connection.out, "it is heard in the same round"
    while world.broker.deadline <= world.now:
        before = world.broker.work
        world.broker.handle_timer(world.now)
        assert world.broker.work - before <= 2 * TURN_WORK + SHORT_TURN_WORK
    world.settle()
    assert all(len(client.take()) == 5_000 for client in greedy), "all are served in the end"


def test_an_unsubscribe_of_many_filters_is_divided_into_turns() -> None:
    world = World()
    client = world.connect("a")
    filters = [f"t/{number}" for number in range(8_000)]
    client.send(Subscribe(1, [Subscription(each) for each in filters]))
    assert client.take_one(Suback).reason_codes == [0] * len(filters)
    data = encode(Unsubscribe(2, filters), MQTT_5)
    assert most_work_at_once(world, lambda: client.connection.receive_data(data, world.now)) < 2 * TURN_WORK
    world.settle()
    assert client.take_one(Unsuback).reason_codes == [0] * len(filters)
    assert len(world.broker.subscriptions) == 0


def test_a_session_with_much_in_it_ends_in_turns_and_gets_nothing_more() -> None:
    world = World(durable=True)
    client, publisher = world.connect("a", kept=True), world.connect("publisher")
    filters = [f"t/{number}" for number in range(8_000)]
    client.send(Subscribe(1, [Subscription(each, 1) for each in [*filters, "$share/group/u"]]))
    client.lose()
    for number in range(5_000):
        publisher.send_later(Publish("t/1", b"x", 1, packet_id=number % 1_000 + 1))
        if number % 500 == 0:
            world.settle()
    world.settle()
    other = world.connect("other")
    other.subscribe("$share/group/u", 1)
    assert len(world.store.waits) == 5_000
    session = world.broker.sessions["a"]

    assert most_work_at_once(world, lambda: world.broker.discard(session)) < 2 * TURN_WORK
    world.settle()
    assert len(world.broker.subscriptions) == 1
    assert not world.store.waits
    assert not world.store.messages
    assert not world.broker.durability.references


def test_a_session_that_is_being_taken_apart_gets_nothing_of_what_is_published() -> None:
    world = World()
    client, other, publisher = world.connect("a", kept=True), world.connect("other"), world.connect("p")
    filters = [Subscription(f"t/{number}", 1) for number in range(8_000)]
    client.send(Subscribe(1, [*filters, Subscription("$share/group/u", 1)]))
    client.lose()
    other.subscribe("$share/group/u", 1)
    session = world.broker.sessions["a"]
    world.broker.discard(session)
    assert len(world.broker.subscriptions) > 1, "it is in the table still"
    for number in range(4):
        publisher.send_later(Publish("u", b"%d" % number))
        publisher.send_later(Publish("t/7999", b"x", 1, packet_id=number + 1))
    assert session.outbox is None
    world.settle()
    assert [each.payload for each in other.take() if isinstance(each, Publish)] == [b"0", b"1", b"2", b"3"]


def test_sessions_that_are_over_at_one_moment_end_in_turns() -> None:
    world = World()
    for number in range(3_000):
        client = world.connect(f"c{number}", properties={"session_expiry_interval": 5})
        client.send_later(Subscribe(1, [Subscription("a/b", 1), Subscription("#", 1)]))
        client.lose()
    world.now += 60
    most = most_work_at_once(world, lambda: world.broker.handle_timer(world.now))
    assert most < 2 * TURN_WORK
    assert not world.broker.sessions


@pytest.mark.parametrize("count", [1, 40])
def test_publications_to_many_are_counted_by_how_many_get_them(count: int) -> None:
    """Two topics in turn, of which each has other subscribers, make no run: each packet is work for all."""
    world = World()
    for number in range(400):
        world.connect(f"c{number}").subscribe("a" if number % 2 else "b")
    greedy = world.connect("greedy")
    pair = encode(Publish("a", b"x"), MQTT_5) + encode(Publish("b", b"x"), MQTT_5)
    before = world.broker.work
    greedy.connection.receive_data(pair * 1_000 * count, world.now)
    assert TURN_WORK < world.broker.work - before < 2 * TURN_WORK
