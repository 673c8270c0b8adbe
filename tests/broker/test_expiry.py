"""Message expiry in queues and retained messages, and session expiry."""

from __future__ import annotations

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, Disconnect, Puback, Publish, Pubrec, Pubrel
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World


def expiring(seconds: int, qos: int = 1, **fields: object) -> Publish:
    properties = {"message_expiry_interval": seconds}
    return Publish("t", b"%d" % seconds, qos, packet_id=1 if qos else 0, properties=properties, **fields)  # type: ignore[arg-type]


def test_a_message_that_waited_tells_what_is_left() -> None:
    """MQTT-3.3.2-6."""
    world = World()
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    world.connect("b").send(expiring(100))
    world.advance(30)
    [packet] = world.connect("a", kept=True).take()
    assert isinstance(packet, Publish)
    assert packet.properties == {"message_expiry_interval": 70}


def test_a_message_that_waited_too_long_is_deleted() -> None:
    """MQTT-3.3.2-5."""
    world = World(durable=True)
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    world.connect("b").send(expiring(10), expiring(100), expiring(10))
    world.advance(10)
    assert world.connect("a", kept=True).take_payloads() == [b"100"]
    assert world.broker.stats.publish_expired == 2
    assert len(world.store.messages) == 1


def test_a_message_in_the_window_queue_expires_too() -> None:
    world = World()
    client = world.connect("a", properties={"receive_maximum": 1})
    client.subscribe("t", 1)
    world.connect("b").send(expiring(100), expiring(10), expiring(100))
    assert client.take_payloads() == [b"100"]
    world.advance(10)
    client.send(Puback(1))
    assert client.take_payloads() == [b"100"]


def test_what_was_sent_is_sent_again_even_when_it_has_expired() -> None:
    """MQTT-4.3.3-7."""
    world = World()
    client = world.connect("a", kept=True)
    client.subscribe("t", 2)
    world.connect("b").send(expiring(10, 2))
    client.lose()
    world.advance(100)
    client = world.connect("a", kept=True)
    [packet] = client.take()
    assert isinstance(packet, Publish)
    assert packet.dup
    client.send(Pubrec(1))
    assert client.take() == [Pubrel(1)]


def test_an_expired_retained_message_is_not_sent_and_is_removed() -> None:
    world = World(Limits(retained_bytes=1_100), durable=True)
    publisher = world.connect("publisher")
    publisher.publish("t", bytes(90), retain=True, properties={"message_expiry_interval": 10})
    client = world.connect("a")
    for seconds_left in 10, 6:
        client.subscribe("t")
        assert client.take_one(Publish).properties == {"message_expiry_interval": seconds_left}
        world.advance(4)
    world.advance(2)
    client.subscribe("t")
    assert client.take() == []
    world.advance(20)
    assert len(world.broker.retained) == 0
    assert world.store.retained == {}
    assert world.broker.deadline == float("inf")


def test_a_retained_message_without_expiry_takes_the_place_of_one_with() -> None:
    world = World()
    publisher = world.connect("publisher")
    publisher.publish("t", b"1", retain=True, properties={"message_expiry_interval": 10})
    publisher.publish("t", b"2", retain=True)
    world.advance(100)
    client = world.connect("a")
    client.subscribe("t")
    assert client.take_payloads() == [b"2"]


# Sessions


def test_a_session_ends_when_its_time_is_over() -> None:
    """MQTT-4.1.0-2."""
    world = World()
    client = world.connect("a", properties={"session_expiry_interval": 10})
    client.subscribe("t", 1)
    world.advance(100)
    client.lose()
    world.advance(9)
    client = world.connect("a", clean_start=False, properties={"session_expiry_interval": 10})
    assert client.connack.session_present
    client.lose()
    world.advance(10)
    assert not world.broker.sessions
    assert len(world.broker.subscriptions) == 0
    assert world.broker.stats.sessions_expired == 1


def test_a_session_without_an_interval_ends_with_its_connection() -> None:
    world = World()
    world.connect("a").lose()
    assert not world.connect("a", clean_start=False).connack.session_present


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1])
def test_the_sessions_of_older_versions_are_kept_or_not(version: int) -> None:
    world = World()
    client = world.connect("a", version, clean_start=False)
    client.subscribe("t", 1)
    client.lose()
    world.advance(10_000_000)
    world.connect("b").publish("t", b"x", 1)
    client = world.connect("a", version, clean_start=False)
    assert client.connack.session_present is (version == MQTT_3_1_1)
    assert client.take_payloads() == [b"x"]
    client.lose()
    client = world.connect("a", version, clean_start=True)
    assert client.take() == []
    client.lose()
    assert "a" not in world.broker.sessions


def test_an_interval_may_be_for_ever() -> None:
    world = World()
    world.connect("a", properties={"session_expiry_interval": 0xFFFFFFFF}).lose()
    world.advance(10**10)
    assert world.connect("a", clean_start=False).connack.session_present


def test_our_own_limit_counts_and_is_told() -> None:
    world = World(Limits(session_expiry_s=60))
    client = world.connect("a", properties={"session_expiry_interval": 61})
    assert client.connack.properties["session_expiry_interval"] == 60
    client.lose()
    world.connect("b", MQTT_3_1_1, clean_start=False).lose()
    assert (
        "session_expiry_interval"
        not in world.connect("c", properties={"session_expiry_interval": 60}).connack.properties
    )
    world.advance(60)
    assert world.broker.sessions.keys() == {"c"}


def test_a_disconnect_may_change_the_interval() -> None:
    world = World()
    client = world.connect("a", properties={"session_expiry_interval": 10})
    client.send(Disconnect(0, {"session_expiry_interval": 100}))
    world.advance(99)
    client = world.connect("a", clean_start=False, properties={"session_expiry_interval": 10})
    assert client.connack.session_present
    client.send(Disconnect(0, {"session_expiry_interval": 0}))
    assert not world.broker.sessions


def test_a_disconnect_may_not_bring_a_session_to_life() -> None:
    """§3.14.2.2.2."""
    world = World()
    client = world.connect("a")
    client.send(Disconnect(0, {"session_expiry_interval": 10}))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    assert not world.broker.sessions


def test_a_session_whose_timer_is_late_has_ended_all_the_same() -> None:
    world = World()
    world.connect("a", properties={"session_expiry_interval": 10}).lose()
    world.now += 10
    assert not world.connect("a", clean_start=False).connack.session_present


def test_a_take_over_stops_the_clock_of_the_session() -> None:
    world = World()
    for _ in range(2):
        world.connect("a", clean_start=False, properties={"session_expiry_interval": 10})
    world.advance(100)
    assert "a" in world.broker.sessions


def test_what_has_expired_makes_room_in_a_full_queue() -> None:
    world = World(Limits(queue_messages=10), durable=True)
    away = world.connect("away", kept=True)
    away.subscribe("#", 1)
    away.lose()
    publisher = world.connect("publisher")
    for _ in range(10):
        publisher.publish("reading", b"r", 1, properties={"message_expiry_interval": 1})
    world.advance(600)
    publisher.publish("alarm", b"fire", 1)
    assert len(world.store.messages) == 1
    assert world.connect("away", kept=True).take_payloads() == [b"fire"]


def test_an_expiry_interval_never_grows_though_the_clock_went_back() -> None:
    world = World(durable=True)
    away = world.connect("away", kept=True)
    away.subscribe("#", 1)
    away.lose()
    world.connect("publisher").publish("t", b"x", 1, properties={"message_expiry_interval": 0xFFFFFFFF})
    world.now -= 60
    world.crash()
    again = world.connect("away", kept=True)
    assert again.take_one(Publish).properties == {"message_expiry_interval": 0xFFFFFFFF}
