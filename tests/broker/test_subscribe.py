"""SUBSCRIBE and UNSUBSCRIBE: what is granted, and what a subscription's options do."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.limits import Limits
from hedgerow.broker.owners import MAX_DEEP_LEVELS_OF_OWNER
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World


def test_every_filter_is_answered_in_order() -> None:
    """MQTT-3.8.4-6, MQTT-3.9.3-1."""
    world = World(access=Access(Acl.parse("topic open/#", "acl")))
    wanted = [Subscription("open/a", 2), Subscription("closed"), Subscription("#", 1), Subscription("open/b")]
    for version, refused in (MQTT_5, Reason.NOT_AUTHORIZED), (MQTT_3_1_1, Reason.UNSPECIFIED_ERROR):
        client = world.connect("a", version)
        client.send(Subscribe(7, wanted))
        assert client.take() == [Suback(7, [2, refused, 1, 0])]
    old = world.connect("a", MQTT_3_1)
    old.send(Subscribe(7, wanted))
    assert old.take() == [Suback(7, [2, 0, 1, 0])]


def test_a_wildcard_delivers_only_what_its_client_may_read() -> None:
    world = World(access=Access(Acl.parse("topic open/#\ntopic write closed", "acl")))
    client = world.connect("a")
    client.subscribe("#")
    client.publish("closed", b"x")
    client.publish("open/a", b"y")
    assert client.take_payloads() == [b"y"]


def test_subscribing_again_replaces_the_subscription() -> None:
    """MQTT-3.8.4-3."""
    world = World()
    client = world.connect("a")
    client.subscribe("t", 2, identifier=1)
    client.subscribe("t", 1, identifier=2)
    client.publish("t", b"x", 2)
    [packet, _] = client.take()
    assert packet == Publish("t", b"x", 1, packet_id=1, properties={"subscription_identifier": (2,)})
    client.subscribe("t", 0)
    client.publish("t", b"y")
    assert client.take() == [Publish("t", b"y")]


def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos_with_every_identifier() -> None:
    """MQTT-3.3.4-2 to -4."""
    world = World()
    client = world.connect("a")
    client.subscribe("t/+", 0, identifier=1)
    client.subscribe("t/#", 1, identifier=200)
    client.subscribe("#", 0)
    client.subscribe("t/x", 0, identifier=268_435_455)
    world.connect("b").publish("t/x", b"x", 2)
    [packet] = client.take()
    assert isinstance(packet, Publish)
    assert packet.qos == 1
    assert sorted(packet.properties["subscription_identifier"]) == [1, 200, 268_435_455]


def test_the_bytes_that_match_no_identifier_carry_none() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("t", 0, identifier=3)
    client.subscribe("u", 0)
    client.publish("u", b"x")
    assert client.take() == [Publish("u", b"x")]


def test_no_local_keeps_a_clients_own_publications_from_it() -> None:
    """MQTT-3.8.3-3."""
    world = World()
    client, other = world.connect("a"), world.connect("b")
    client.subscribe("t", 0, no_local=True)
    other.subscribe("t", 0, no_local=True)
    client.publish("t", b"mine")
    other.publish("t", b"theirs", 1)
    assert client.take_payloads() == [b"theirs"]
    assert [packet for packet in other.take() if isinstance(packet, Publish)] == [Publish("t", b"mine")]


def test_no_local_speaks_for_one_subscription_alone() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("t", 2, identifier=1, no_local=True)
    client.subscribe("#", 1, identifier=2)
    client.publish("t", b"x", 2)
    [packet, _] = client.take()
    assert packet == Publish("t", b"x", 1, packet_id=1, properties={"subscription_identifier": (2,)})


def test_no_local_is_about_the_client_not_the_connection() -> None:
    world = World()
    world.connect("a", kept=True).subscribe("t", 1, no_local=True)
    client = world.connect("a", kept=True)
    client.publish("t", b"x")
    assert client.take() == []


def test_retain_as_published_keeps_the_flag() -> None:
    """MQTT-3.3.1-12, MQTT-3.3.1-13."""
    world = World()
    plain, keeps, old = world.connect("plain"), world.connect("keeps"), world.connect("old", MQTT_3_1_1)
    plain.subscribe("t")
    keeps.subscribe("t", retain_as_published=True)
    old.subscribe("t")
    publisher = world.connect("publisher")
    publisher.publish("t", b"1", retain=True)
    publisher.publish("t", b"2")
    assert keeps.take() == [Publish("t", b"1", retain=True), Publish("t", b"2")]
    assert plain.take() == old.take() == [Publish("t", b"1"), Publish("t", b"2")]


def test_topics_with_a_dollar_do_not_match_a_leading_wildcard() -> None:
    """MQTT-4.7.2-1."""
    world = World()
    client = world.connect("a")
    client.subscribe("#")
    client.subscribe("+/x")
    client.publish("$private/x", b"1")
    assert client.take() == []
    client.subscribe("$private/#")
    client.publish("$private/x", b"2")
    assert client.take_payloads() == [b"2"]


def test_topics_are_compared_character_by_character() -> None:
    """MQTT-4.7.3-4, MQTT-1.5.4-3: no normalization, and U+FEFF stays."""
    world = World()
    client = world.connect("a")
    names = ["\u00e9", "e\u0301", "\ufefft", "t", "T", "/t", "t/", "t//", " t"]
    for number, name in enumerate(names, 1):
        client.subscribe(name, 0, identifier=number)
    for number, name in enumerate(names, 1):
        client.publish(name)
        assert client.take() == [Publish(name, properties={"subscription_identifier": (number,)})]


# Unsubscribing


def test_unsubscribing_stops_the_messages() -> None:
    world = World()
    client, old = world.connect("a"), world.connect("b", MQTT_3_1_1)
    for each in client, old:
        each.subscribe("t/+")
        each.subscribe("t/x")
        each.send(Unsubscribe(7, ["t/+", "nothing", "t/+"]))
    codes: list[int] = [Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED, Reason.NO_SUBSCRIPTION_EXISTED]
    assert client.take() == [Unsuback(7, codes)]
    assert old.take() == [Unsuback(7)]
    world.connect("c").publish("t/y", b"1")
    world.connect("c").publish("t/x", b"2")
    assert client.take_payloads() == old.take_payloads() == [b"2"]


def test_only_the_very_filter_is_unsubscribed() -> None:
    """MQTT-3.10.4-1."""
    world = World()
    client = world.connect("a")
    client.subscribe("t/x")
    client.send(Unsubscribe(7, ["t/+", "#", "T/x", "$share/g/t/x"]))
    assert client.take() == [Unsuback(7, [Reason.NO_SUBSCRIPTION_EXISTED] * 4)]
    client.publish("t/x", b"x")
    assert client.take_payloads() == [b"x"]


# What is refused


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize(
    "topic_filter",
    ["", "a#", "a/#/b", "#/a", "a+", "+a/b", "$share/g", "$share//t", "$share/g/", "$share/+/t"],
)
def test_a_filter_that_breaks_the_rules_is_a_malformed_packet(version: int, topic_filter: str) -> None:
    """§4.7, §4.8.2; nothing of the packet is acted on."""
    for packet in (
        Subscribe(1, [Subscription("good"), Subscription(topic_filter)]),
        Unsubscribe(1, ["good", topic_filter]),
    ):
        world = World()
        client = world.connect("a", version, kept=True)
        client.send(packet)
        assert client.closed
        answers = client.take()
        assert len(answers) == (version == MQTT_5)
        assert all(
            each.reason_code == Reason.MALFORMED_PACKET for each in answers if isinstance(each, Disconnect)
        )
        assert len(world.broker.subscriptions) == 0


def test_levels_are_bounded_by_what_they_cost() -> None:
    """A name costs its bytes, however many levels it has; one with wildcards a search at each."""
    client = World().connect("a")
    deep, wild = "/" * 65_535, "+/" * (MAX_DEEP_LEVELS_OF_OWNER - 1) + "x"
    client.send(Subscribe(1, [Subscription(deep), Subscription(wild), Subscription(wild + "/+")]))
    assert client.take() == [Suback(1, [0, 0, Reason.QUOTA_EXCEEDED])]
    client.send(Publish(deep, b"1"), Publish("/".join("t" * (MAX_DEEP_LEVELS_OF_OWNER - 1)) + "/x", b"2"))
    assert [each.payload for each in client.take() if isinstance(each, Publish)] == [b"1", b"2"]
    client.send(Unsubscribe(1, [deep, wild, wild + "/+"]))
    assert client.take() == [Unsuback(1, [0, 0, Reason.NO_SUBSCRIPTION_EXISTED])]


def test_no_local_on_a_shared_subscription_is_a_protocol_error() -> None:
    """MQTT-3.8.3-4."""
    world = World()
    client = world.connect("a", kept=True)
    client.send(Subscribe(1, [Subscription("good"), Subscription("$share/g/t", no_local=True)]))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    assert len(world.broker.subscriptions) == 0


def test_the_number_of_subscriptions_is_limited() -> None:
    world = World(Limits(subscriptions=2))
    client = world.connect("a")
    client.send(Subscribe(1, [Subscription(name) for name in ("a", "b", "c", "a")]))
    assert client.take() == [Suback(1, [0, 0, Reason.QUOTA_EXCEEDED, 0])]
    client.send(Unsubscribe(2, ["a"]), Subscribe(3, [Subscription("c")]))
    assert client.take()[1:] == [Suback(3, [0])]


def test_an_answer_that_the_client_has_no_room_for_is_not_sent() -> None:
    """MQTT-3.1.2-24."""
    world = World()
    client = world.connect("a", properties={"maximum_packet_size": 40})
    client.send(Subscribe(1, [Subscription(f"t/{number}") for number in range(36)]))
    assert client.take_one(Disconnect).reason_code == Reason.PACKET_TOO_LARGE


def cost_of_a_publication(world: World) -> int:
    table = world.broker.subscriptions
    before = table.visited
    world.connect("publisher").publish("a/b")
    return table.visited - before


def test_the_table_is_empty_when_everybody_has_gone() -> None:
    world = World()
    for number in range(5):
        client = world.connect(f"client-{number}")
        for topic_filter in "a/b", "a/+", "#", "$share/g/a/b", "$share/g/#":
            client.subscribe(topic_filter)
        client.lose()
    table = world.broker.subscriptions
    assert len(table) == 0
    assert table.shared_count == 0
    assert cost_of_a_publication(world) == cost_of_a_publication(World())


def test_deep_filters_count_for_several() -> None:
    """Each level takes a node of the tree: a session's limit bounds what its filters take."""
    world = World(Limits(subscriptions=100))
    client = world.connect("a")
    deep = [Subscription(f"{number}" + "/x" * 159) for number in range(20)]
    client.send(Subscribe(1, deep))
    codes = client.take_one(Suback).reason_codes
    assert codes == [0] * 10 + [Reason.QUOTA_EXCEEDED] * 10
    client.send(Subscribe(2, [Subscription(f"shallow/{number}") for number in range(100)]))
    assert client.take_one(Suback).reason_codes.count(0) == 90
