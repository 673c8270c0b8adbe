"""Retained messages: kept, replaced, removed, and sent to those who subscribe."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.deliveries import PUMP_BYTES
from hedgerow.broker.limits import Limits
from hedgerow.broker.retained import MESSAGE_BYTES
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Puback, Publish, Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_the_last_retained_message_of_a_topic_is_sent_to_a_new_subscription(version: int) -> None:
    world = World()
    publisher = world.connect("publisher")
    publisher.publish("t/a", b"old", retain=True)
    publisher.publish("t/a", b"new", retain=True)
    publisher.publish("t/a", b"live")
    client = world.connect("a", version)
    client.subscribe("t/+", 1)
    assert client.take() == [Publish("t/a", b"new", retain=True)]


@pytest.mark.parametrize(("published", "granted"), [(p, g) for p in range(3) for g in range(3)])
def test_a_retained_message_comes_at_the_lower_qos(published: int, granted: int) -> None:
    world = World()
    world.connect("publisher").publish("t", b"x", published, retain=True)
    client = world.connect("a")
    client.subscribe("t", granted)
    [packet] = client.take()
    assert isinstance(packet, Publish)
    assert (packet.qos, packet.retain) == (min(published, granted), True)


def test_an_empty_payload_removes_the_message_and_is_passed_on() -> None:
    """MQTT-3.3.1-6, MQTT-3.3.1-7."""
    world = World()
    watcher = world.connect("watcher")
    watcher.subscribe("t")
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", retain=True)
    publisher.publish("t", b"", retain=True)
    assert watcher.take() == [Publish("t", b"x"), Publish("t", b"")]
    client = world.connect("a")
    client.subscribe("#")
    assert client.take() == []
    assert len(world.broker.retained) == 0
    assert world.broker.retained.bytes == 0


def test_an_empty_payload_without_the_flag_removes_nothing() -> None:
    """MQTT-3.3.1-8."""
    world = World()
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", retain=True)
    publisher.publish("t", b"")
    client = world.connect("a")
    client.subscribe("t")
    assert client.take_payloads() == [b"x"]


def test_retain_handling() -> None:
    """MQTT-3.3.1-9 to -11."""
    world = World()
    client = world.connect("a")
    client.publish("t", b"x", retain=True)
    client.subscribe("t", retain_handling=2)
    assert client.take() == []
    client.subscribe("t", retain_handling=1)
    assert client.take() == [], "the subscription existed"
    client.subscribe("#", retain_handling=1)
    assert client.take_payloads() == [b"x"]
    for _ in range(2):
        client.subscribe("t", retain_handling=0)
        assert client.take_payloads() == [b"x"]


def test_each_filter_of_a_subscribe_gets_its_messages_after_the_suback() -> None:
    world = World()
    client = world.connect("a")
    client.publish("t", b"x", retain=True)
    wanted = [Subscription("t"), Subscription("#"), Subscription("$share/g/t")]
    client.send(Subscribe(1, wanted, {"subscription_identifier": (5,)}))
    copy = Publish("t", b"x", retain=True, properties={"subscription_identifier": (5,)})
    assert client.take() == [Suback(1, [0, 0, 0]), copy, copy]


def test_a_wildcard_gets_only_what_its_client_may_read() -> None:
    world = World(access=Access(Acl.parse("topic open/#\ntopic write closed", "acl")))
    client = world.connect("a")
    client.publish("closed", b"x", retain=True)
    client.publish("open/a", b"y", retain=True)
    client.subscribe("#")
    assert client.take_payloads() == [b"y"]


def test_retained_messages_keep_their_properties() -> None:
    world = World()
    client = world.connect("a")
    client.publish("t", b"x", retain=True, properties={"user_property": (("b", "1"), ("a", "2"))})
    client.subscribe("t", 0, identifier=9)
    expected = {"user_property": (("b", "1"), ("a", "2")), "subscription_identifier": (9,)}
    assert client.take() == [Publish("t", b"x", retain=True, properties=expected)]  # type: ignore[arg-type]


def test_a_message_that_was_replaced_meanwhile_does_not_follow_the_newer_one() -> None:
    """A subscription's retained messages wait for a slow reader; a live one may overtake them."""
    world = World()
    publisher, client = world.connect("publisher"), world.connect("a")
    publisher.publish("t", b"old", retain=True)
    publisher.publish("u", b"gone", retain=True)
    client.connection.set_congested(True, world.now)
    client.send_later(Subscribe(1, [Subscription("#")]))
    publisher.send_later(Publish("t", b"new", retain=True))
    publisher.send_later(Publish("u", b"", retain=True))
    client.connection.set_congested(False, world.now)
    world.settle()
    assert client.take() == [Suback(1, [0]), Publish("t", b"new"), Publish("u", b"")]


def test_many_retained_messages_go_out_in_turns() -> None:
    """A subscription to a million topics must not keep the others waiting."""
    world = World()
    publisher, client = world.connect("publisher"), world.connect("a")
    for number in range(100):
        publisher.publish(f"t/{number}", bytes(10_000), 1, retain=True)
    client.send_later(Subscribe(1, [Subscription("t/#")]))
    turns = 1  # the first with the SUBACK
    while world.broker.deadline == world.now:
        world.broker.handle_timer(world.now)
        turns += 1
    assert turns == -(-100 * 10_000 // PUMP_BYTES)
    world.settle()
    assert len(client.take()) == 101


def test_retained_bytes_are_limited() -> None:
    world = World(Limits(retained_bytes=101 + MESSAGE_BYTES))
    client = world.connect("a")
    client.publish("t", bytes(90), 1, retain=True)
    assert client.take() == [Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)]
    client.publish("u", b"!", 1, retain=True)
    assert client.take_one(Puback).reason_code == Reason.QUOTA_EXCEEDED, "a byte is not all that it takes"
    client.publish("t", bytes(99), 1, retain=True)
    assert client.take_one(Puback).reason_code == Reason.NO_MATCHING_SUBSCRIBERS, "in place of the other"
    for topic in "nothing/here", "t":
        client.publish(topic, b"", 1, retain=True)
        assert client.take_one(Puback).reason_code == Reason.NO_MATCHING_SUBSCRIBERS, "needs no room"
    client.publish("u", bytes(20), 1, retain=True)
    assert client.take_one(Puback).reason_code == Reason.NO_MATCHING_SUBSCRIBERS


def test_properties_count_as_retained_bytes() -> None:
    world = World(Limits(retained_bytes=1_500))
    client = world.connect("a")
    client.publish("t", b"x", 1, retain=True, properties={"user_property": (("n", "v" * 1_000),)})
    assert client.take_one(Puback).reason_code == Reason.QUOTA_EXCEEDED


def test_subscribing_again_and_again_piles_up_nothing() -> None:
    world = World()
    client = world.connect("a")
    for number in range(20):
        client.publish(f"t/{number}", b"x", retain=True)
    client.set_congested(True)
    for _ in range(20):
        client.send(Subscribe(1, [Subscription("t/#")]))
    assert client.connection.backlog is not None
    assert len(client.connection.backlog) == 1
    client.set_congested(False)
    assert sum(isinstance(packet, Publish) for packet in client.take()) == 20


def test_what_waits_for_a_client_that_may_no_longer_read_it_is_not_sent() -> None:
    world = World(access=Access(Acl.parse("topic readwrite #", "acl")), durable=True)
    publisher, client = world.connect("publisher"), world.connect("a", kept=True)
    publisher.publish("secret", b"retained", 1, retain=True)
    client.connection.set_congested(True, world.now)
    client.send_later(Subscribe(1, [Subscription("#", 1)]))
    world.settle()
    publisher.publish("secret", b"live", 1)
    world.broker.set_access(Access(Acl.parse("topic readwrite open", "acl")))
    client.connection.set_congested(False, world.now)
    world.settle()
    assert client.take() == [Suback(1, [1])]
