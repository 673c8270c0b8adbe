"""One client's input costs the others no more than a turn, however much work it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.connection import MAX_UNREAD_ANSWERS
from hedgerow.broker.core import TURN_WORK
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Pingreq, Puback, Publish, Subscribe, Subscription
from tests.broker.harness import World

PING = encode(Pingreq(), MQTT_5)


def flood(count: int, **fields: Any) -> bytes:
    return b"".join(
        encode(
            Publish(f"t/{number}", b"x", packet_id=number + 1 if fields.get("qos") else 0, **fields), MQTT_5
        )
        for number in range(count)
    )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(flood(1_000, qos=1), id="QoS 1 to many"),
        pytest.param(flood(1_000, retain=True), id="retained to many"),
        pytest.param(flood(1_000, properties={"user_property": (("", ""),) * 300}), id="full of properties"),
        pytest.param(PING * 50_000, id="PINGREQ"),
        pytest.param(encode(Subscribe(1, [Subscription("t")]), MQTT_5) * 20_000, id="SUBSCRIBE"),
    ],
)
def test_a_chunk_that_asks_for_much_is_handled_in_turns(data: bytes) -> None:
    world = World()
    for number in range(20):
        world.connect(f"subscriber {number}").subscribe("#", 1)
    greedy, other = world.connect("greedy"), world.connect("other")
    before = world.broker.work
    greedy.connection.receive_data(data, world.now)
    assert TURN_WORK < world.broker.work - before < 2 * TURN_WORK
    assert greedy.connection.paused
    other.connection.receive_data(PING, world.now)
    assert other.connection.out, "the other is heard before the greedy one goes on"
    world.settle()
    assert not greedy.connection.paused
    assert world.broker.work - before > 2 * TURN_WORK, "all of it was done in the end"


def test_acknowledgements_are_handled_in_turns() -> None:
    world = World()
    client = world.connect("a", MQTT_3_1_1)
    client.connection.receive_data(encode(Puback(1), MQTT_3_1_1) * 60_000, world.now)
    assert client.connection.paused
    world.settle()
    assert world.broker.stats.packets_received == 60_001
    assert not client.connection.paused


def test_a_client_that_reads_nothing_is_not_heard_for_ever_although_its_input_comes_in_turns() -> None:
    world = World()
    client = world.connect("a")
    client.connection.set_congested(True, world.now)
    client.connection.receive_data(PING * (MAX_UNREAD_ANSWERS + 1), world.now)
    world.settle()
    assert client.connection.paused
    client.connection.set_congested(False, world.now)
    assert not client.connection.paused


def test_what_others_publish_does_not_count_as_answers_left_unread() -> None:
    world = World()
    slow, publisher = world.connect("slow"), world.connect("publisher")
    slow.subscribe("#")
    slow.connection.set_congested(True, world.now)
    for _ in range(MAX_UNREAD_ANSWERS + 1):
        publisher.connection.receive_data(encode(Publish("t", b"x"), MQTT_5), world.now)
    slow.connection.receive_data(PING, world.now)
    assert not slow.connection.paused
