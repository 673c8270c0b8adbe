"""Topic aliases, both ways."""

from __future__ import annotations

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.message import Properties
from hedgerow.mqtt.packets import MQTT_3_1_1, Disconnect, Puback, Publish
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def alias(number: int) -> Properties:
    return {"topic_alias": number}


def test_an_alias_stands_for_its_topic_until_it_is_set_anew() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("#", 1)
    client.publish("one", b"1", properties=alias(1))
    client.publish("", b"2", properties=alias(1))
    client.publish("", b"3", 1, properties=alias(1))
    client.publish("two", b"4", properties=alias(1))
    client.publish("", b"5", properties=alias(1))
    client.publish("two", b"6", properties=alias(2))
    seen = [(packet.topic, packet.payload) for packet in client.take() if isinstance(packet, Publish)]
    assert seen == [("one", b"1"), ("one", b"2"), ("one", b"3"), ("two", b"4"), ("two", b"5"), ("two", b"6")]


def test_aliases_are_not_passed_on() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("t")
    client.publish("t", b"x", properties={"topic_alias": 5, "content_type": "y"})
    assert client.take() == [Publish("t", b"x", properties={"content_type": "y"})]


@pytest.mark.parametrize("number", [0, 4, 65_535])
def test_an_alias_out_of_range_is_refused(number: int) -> None:
    """MQTT-3.3.2-8, MQTT-3.3.2-9."""
    client = World(Limits(topic_alias_maximum=3)).connect("a")
    client.send_bytes(bytes.fromhex("3007 0001 74 03 23") + number.to_bytes(2, "big"))
    assert client.take_one(Disconnect).reason_code == Reason.TOPIC_ALIAS_INVALID


def test_an_alias_that_was_never_set_is_a_protocol_error() -> None:
    client = World().connect("a")
    client.publish("", b"x", properties=alias(1))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR


def test_aliases_end_with_the_connection() -> None:
    """MQTT-3.3.2-7."""
    world = World()
    world.connect("a", kept=True).publish("t", b"x", properties=alias(1))
    client = world.connect("a", kept=True)
    client.publish("", b"x", properties=alias(1))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR


def test_without_a_maximum_there_are_no_aliases() -> None:
    client = World(Limits(topic_alias_maximum=0)).connect("a")
    assert "topic_alias_maximum" not in client.connack.properties
    client.publish("t", b"x", properties=alias(1))
    assert client.take_one(Disconnect).reason_code == Reason.TOPIC_ALIAS_INVALID


# To the client


class AliasReader:
    """A client that resolves the aliases of what it receives, as strictly as it may."""

    def __init__(self, client: Client, maximum: int) -> None:
        self.client = client
        self.maximum = maximum
        self.topics: dict[int, str] = {}

    def take(self) -> list[tuple[str, bytes]]:
        seen = []
        for packet in self.client.take():
            if not isinstance(packet, Publish):
                continue
            number = packet.properties.get("topic_alias")
            if number is not None:
                assert 0 < number <= self.maximum
                if packet.topic:
                    self.topics[number] = packet.topic
            assert packet.topic or number in self.topics, "an alias that was never set"
            seen.append((packet.topic or self.topics[number or 0], packet.payload))
            if packet.qos:
                self.client.send(Puback(packet.packet_id))
        return seen


def alias_reader(
    world: World, maximum: int = 2, qos: int = 0, packet_bytes: int = 65_535, kept: bool = False
) -> AliasReader:
    properties: Properties = {"topic_alias_maximum": maximum, "maximum_packet_size": packet_bytes}
    client = world.connect("reader", properties=properties, kept=kept)
    client.subscribe("#", qos)
    return AliasReader(client, maximum)


@pytest.mark.parametrize("qos", [0, 1])
def test_the_first_topics_get_aliases_and_the_others_do_not(qos: int) -> None:
    world = World()
    reader = alias_reader(world, 2, qos)
    publisher = world.connect("publisher", MQTT_3_1_1)
    sent = [(topic, b"%d" % number) for number in range(3) for topic in ("a", "b", "c")]
    for topic, payload in sent:
        publisher.publish(topic, payload, qos)
    assert reader.take() == sent
    assert set(reader.topics.values()) == {"a", "b"}


def test_an_alias_makes_the_packet_shorter() -> None:
    world = World()
    reader = alias_reader(world)
    publisher = world.connect("publisher")
    publisher.publish("a/long/topic", b"1")
    publisher.publish("a/long/topic", b"2")
    assert [packet.topic for packet in reader.client.take() if isinstance(packet, Publish)] == [
        "a/long/topic",
        "",
    ]


def test_who_wants_no_aliases_gets_none() -> None:
    """MQTT-3.1.2-27."""
    world = World()
    reader = alias_reader(world, 0)
    world.connect("publisher").publish("t", b"1")
    assert reader.client.take() == [Publish("t", b"1")]


def test_our_own_limit_counts_to_the_client_too() -> None:
    world = World(Limits(topic_alias_maximum=1))
    reader = alias_reader(world, 9)
    publisher = world.connect("publisher")
    for topic in "a", "b":
        publisher.publish(topic, b"x")
    reader.take()
    assert reader.topics == {1: "a"}


def test_an_alias_that_a_dropped_packet_would_have_set_is_not_used() -> None:
    """Too large for the client, or too much for a slow reader: it never saw the topic."""
    world = World(Limits(queue_bytes=200))
    reader = alias_reader(world, packet_bytes=100)
    publisher = world.connect("publisher")
    publisher.publish("large", bytes(200))
    publisher.publish("other", b"1")
    publisher.publish("large", b"2")
    publisher.publish("large", b"3")
    assert reader.take() == [("other", b"1"), ("large", b"2"), ("large", b"3")]
    reader = alias_reader(world)
    reader.client.set_congested(True)
    for _ in range(5):
        publisher.publish("slow", bytes(90))
    publisher.publish("gone", b"x")
    reader.client.set_congested(False)
    publisher.publish("gone", b"y")
    assert reader.take()[-1] == ("gone", b"y")


def test_an_alias_set_by_a_packet_that_waits_for_the_store_is_not_used_before_it() -> None:
    world = World(durable=True)
    reader = alias_reader(world, qos=2, kept=True)
    world.commits = False
    publisher = world.connect("publisher")
    publisher.publish("t", b"held", 2, 1)
    publisher.publish("t", b"now", 0)
    assert reader.take() == [("t", b"now")]
    world.commit()
    world.settle()
    [packet] = [packet for packet in reader.client.take() if isinstance(packet, Publish)]
    assert (packet.topic, packet.payload) == ("t", b"held")
