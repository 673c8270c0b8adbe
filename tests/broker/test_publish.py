"""PUBLISH through the broker: the short path, the long one, and the bytes that come out."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.limits import Limits
from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World

VERSIONS = [MQTT_3_1, MQTT_3_1_1, MQTT_5]


def pair(version: int, other: int, qos: int = 0) -> tuple[Client, Client]:
    """A publisher of the first version, and a subscriber of the other to everything."""
    world = World()
    subscriber = world.connect("subscriber", other)
    subscriber.subscribe("#", qos)
    return world.connect("publisher", version), subscriber


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 120, 121, 122, 123, 124, 125, 126, 200, 16_380, 70_000])
def test_a_publication_arrives_whatever_the_versions_and_the_size(
    version: int, other: int, size: int
) -> None:
    """The two wire forms differ in one byte, which may change the length of the length."""
    publisher, subscriber = pair(version, other)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    publisher.publish("t", payload)
    assert subscriber.take() == [Publish("t", payload)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
def test_a_run_of_publications_arrives_in_order(version: int, other: int) -> None:
    publisher, subscriber = pair(version, other)
    payloads = [b"%03d" % number for number in range(300)]
    publisher.send(*(Publish("t", payload) for payload in payloads))
    assert subscriber.take() == [Publish("t", payload) for payload in payloads]


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_end_where_topic_size_or_kind_change(version: int) -> None:
    publisher, subscriber = pair(version, MQTT_5, qos=1)
    sent = [
        Publish("a", b"1"),
        Publish("a", b"2"),
        Publish("a", b"33"),
        Publish("ab", b"4"),
        Publish("a", b"b5"),
        Publish("a", b"6", 1, packet_id=6),
        Publish("a", b"7"),
        Publish("a", b"8", retain=True),
        Publish("a", b"9"),
    ]
    publisher.send(*sent)
    assert subscriber.take_payloads() == [packet.payload for packet in sent]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_split_of_the_bytes_gives_the_same(version: int) -> None:
    sent = [
        Publish("t/a", b"one"),
        Publish("t/a", b"two"),
        Publish("t/b", b"x" * 130),
        Publish("t/c", b"three", 1, packet_id=1),
        Publish("t/c", b"four", 2, packet_id=2),
    ]
    data = b"".join(codec.encode(packet, version) for packet in sent) + codec.encode(Pingreq(), version)
    for cut in range(len(data) + 1):
        publisher, subscriber = pair(version, MQTT_5, qos=2)
        publisher.send_bytes(data[:cut])
        publisher.send_bytes(data[cut:])
        assert subscriber.take_payloads() == [packet.payload for packet in sent]
        assert [type(packet) for packet in publisher.take()] == [Puback, Pubrec, Pingresp]
    publisher, subscriber = pair(version, MQTT_5, qos=2)
    for position in range(len(data)):
        publisher.send_bytes(data[position : position + 1])
    assert subscriber.take_payloads() == [packet.payload for packet in sent]


@pytest.mark.parametrize("other", VERSIONS)
def test_properties_arrive_unaltered_and_in_order(other: int) -> None:
    """MQTT-3.3.2-4, -15 to -18, -20; older versions get the message without them."""
    properties: Properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\0\1",
        "user_property": (("z", "1"), ("a", "2"), ("z", "3"), ("", "")),
    }
    publisher, subscriber = pair(MQTT_5, other)
    publisher.publish("t", b"x", properties=properties)
    assert subscriber.take() == [Publish("t", b"x", properties=properties if other == MQTT_5 else {})]


def test_a_publication_to_nobody_says_so_in_mqtt_5() -> None:
    world = World()
    client, old = world.connect("a"), world.connect("b", MQTT_3_1_1)
    for each, reason in (client, Reason.NO_MATCHING_SUBSCRIBERS), (old, Reason.SUCCESS):
        each.publish("t", b"", 1, 7)
        assert each.take() == [Puback(7, reason)]
        each.publish("t", b"", 2, 8)
        assert each.take() == [Pubrec(8, reason)]
        each.send(Pubrel(8))
        assert each.take() == [Pubcomp(8)]


def test_a_client_gets_what_it_publishes_itself() -> None:
    client = World().connect("a")
    client.subscribe("t")
    client.publish("t", b"x")
    assert client.take() == [Publish("t", b"x")]


def test_a_new_subscription_is_heard_at_once_by_who_published_before() -> None:
    """What a publisher's connection remembers of its topics is forgotten when a subscription changes."""
    world = World()
    publisher = world.connect("publisher")
    publisher.publish("t", b"0")
    exact, wild, shared = (world.connect(name) for name in ("exact", "wild", "shared"))
    exact.subscribe("t")
    publisher.publish("t", b"1")
    wild.subscribe("#")
    publisher.publish("t", b"2")
    shared.subscribe("$share/g/t")
    publisher.publish("t", b"3")
    assert exact.take_payloads() == [b"1", b"2", b"3"]
    assert wild.take_payloads() == [b"2", b"3"]
    assert shared.take_payloads() == [b"3"]
    wild.lose()
    exact.send(Subscribe(1, [Subscription("t", 1)]))
    exact.take()
    publisher.publish("t", b"4", 1)
    assert exact.take() == [Publish("t", b"4", 1, packet_id=1)]


def test_a_session_that_comes_back_in_another_version_is_spoken_to_in_that() -> None:
    world = World()
    world.connect("a", MQTT_3_1_1, kept=True).subscribe("t/+")
    publisher = world.connect("publisher", MQTT_3_1_1)
    publisher.publish("t/x", b"1")
    client = world.connect("a", MQTT_5, kept=True)
    publisher.publish("t/x", b"2")
    assert client.take() == [Publish("t/x", b"2")]
    client = world.connect("a", MQTT_3_1, kept=True)
    publisher.publish("t/x", b"3")
    assert client.take() == [Publish("t/x", b"3")]


# What is refused


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_may_not_be_written_is_refused_and_the_connection_stays(version: int, qos: int) -> None:
    world = World(access=Access(Acl.parse("topic read #\ntopic write open", "acl")))
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#", 2)
    client = world.connect("a", version)
    client.publish("secret", b"x", qos, 5) if qos else client.publish("secret", b"x")
    if qos:
        [answer] = client.take()
        assert isinstance(answer, Puback if qos == 1 else Pubrec)
        assert answer.packet_id == 5
        assert answer.reason_code == (Reason.NOT_AUTHORIZED if version == MQTT_5 else 0)
    assert not client.closed
    client.publish("open", b"y")
    assert subscriber.take_payloads() == [b"y"]
    assert world.broker.stats.publish_refused == 1


def test_an_identifier_whose_publication_was_refused_is_free_again() -> None:
    """MQTT-4.3.3-9."""
    world = World(access=Access(Acl.parse("topic read #\ntopic write open", "acl")))
    client = world.connect("a")
    client.subscribe("#", 0)
    client.publish("secret", b"x", 2, 5)
    assert client.take_one(Pubrec).reason_code == Reason.NOT_AUTHORIZED
    client.publish("open", b"y", 2, 5)
    assert client.take() == [Publish("open", b"y"), Pubrec(5)]


@pytest.mark.parametrize("properties", [{"request_problem_information": 0}, {"maximum_packet_size": 30}])
def test_a_reason_string_is_left_out_where_it_is_not_wanted_or_does_not_fit(properties: Properties) -> None:
    """MQTT-3.1.2-29, MQTT-3.4.2-2."""
    world = World(access=Access(Acl.parse("topic read #", "acl")))
    client = world.connect("a", properties=properties)
    client.publish("secret", b"x", 1, 5)
    assert client.take() == [Puback(5, Reason.NOT_AUTHORIZED)]


def test_new_rules_hold_for_topics_that_were_used_before() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("t")
    client.publish("t", b"1")
    world.broker.set_access(Access(Acl.parse("topic write t", "acl")))
    client.publish("t", b"2")
    world.broker.set_access(Access(Acl.parse("topic read t", "acl")))
    client.publish("t", b"3")
    assert client.take_payloads() == [b"1"]


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$SYS/x"])
def test_nobody_but_the_broker_speaks_under_sys(topic: str) -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("$SYS/#")
    client.take()
    client.publish(topic, b"x", 1)
    assert client.take_one(Puback).reason_code == Reason.NOT_AUTHORIZED
    client.publish(topic, b"x")
    assert client.take() == []


def test_a_packet_larger_than_we_take_is_refused_at_its_header() -> None:
    world = World(Limits(packet_bytes=1_000))
    client = world.connect("a")
    client.send_bytes(b"\x30" + codec.encode_remaining_length(998))
    assert client.take_one(Disconnect).reason_code == Reason.PACKET_TOO_LARGE
    assert client.closed
    client = world.connect("a")
    client.subscribe("t")
    client.publish("t", bytes(1_000 - len(codec.encode(Publish("t", bytes(200)), MQTT_5)) + 200))
    assert len(client.take_payloads()) == 1


def test_a_length_of_more_bytes_than_needed_is_not_passed_on() -> None:
    """MQTT-1.5.5-1, also behind a packet that is right: strict subscribers would close."""
    publisher, subscriber = pair(MQTT_5, MQTT_5)
    good = codec.encode(Publish("t", b"x"), MQTT_5)
    publisher.send_bytes(good + good[:1] + bytes((good[1] | 0x80, 0)) + good[2:])
    assert publisher.take_one(Disconnect).reason_code == Reason.MALFORMED_PACKET
    assert subscriber.take_payloads() == [b"x"]


def test_who_breaks_a_rule_is_told_which_and_nobody_else_is_disturbed() -> None:
    world = World()
    other = world.connect("other")
    other.subscribe("t")
    client = world.connect("a")
    client.send_bytes(codec.encode(Publish("t", b"before"), MQTT_5) + bytes.fromhex("36 05 0001 74 0001"))
    assert client.take_one(Disconnect).reason_code == Reason.MALFORMED_PACKET
    assert client.closed
    assert other.take_payloads() == [b"before"]
    assert "MQTT-3.3.1-4" in "\n".join(map(str, world.broker.take_events()))
