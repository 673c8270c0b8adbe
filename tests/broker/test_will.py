"""Wills: when they are published, when not, and as what."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, Disconnect, Publish, Will
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def watched_world(access: Access | None = None) -> tuple[World, Client]:
    world = World(access=access)
    watcher = world.connect("watcher")
    watcher.subscribe("#", 2)
    watcher.subscribe("$SYS/#", 2)
    return world, watcher


def delayed(delay_s: int) -> Will:
    return Will("will", b"gone", properties={"will_delay_interval": delay_s})


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_a_will_is_published_when_the_connection_is_lost(version: int) -> None:
    world, watcher = watched_world()
    world.connect("a", version, will=Will("will", b"gone")).lose()
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_will_is_published_after_a_protocol_error() -> None:
    world, watcher = watched_world()
    world.connect("a", will=Will("will", b"gone")).send_bytes(b"\xf0\0")
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_will_is_published_when_the_keep_alive_runs_out() -> None:
    world, watcher = watched_world()
    world.connect("a", keep_alive=10, will=Will("will", b"gone"))
    world.advance(16)
    assert watcher.take() == [Publish("will", b"gone")]


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_a_normal_disconnect_deletes_the_will(version: int) -> None:
    """MQTT-3.14.4-3."""
    world, watcher = watched_world()
    world.connect("a", version, will=Will("will", b"gone")).send(Disconnect())
    world.connect("b", version, kept=True, will=Will("will", b"gone")).send(Disconnect())
    world.connect("b", version, kept=True).lose()
    world.advance(10_000)
    assert watcher.take() == []


def test_a_disconnect_may_ask_for_the_will() -> None:
    world, watcher = watched_world()
    world.connect("a", will=Will("will", b"gone")).send(Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE))
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_will_has_its_own_qos_retain_flag_and_properties() -> None:
    world, watcher = watched_world()
    properties = {"content_type": "text/plain", "user_property": (("b", "2"), ("a", "1"))}
    will = Will("will", b"gone", 1, True, {**properties, "will_delay_interval": 0})  # type: ignore[typeddict-item]
    world.connect("a", will=will).lose()
    assert watcher.take() == [Publish("will", b"gone", 1, packet_id=1, properties=properties)]  # type: ignore[arg-type]
    late = world.connect("late")
    late.subscribe("will", 1)
    assert late.take() == [Publish("will", b"gone", 1, True, packet_id=1, properties=properties)]  # type: ignore[arg-type]


def test_a_will_may_expire() -> None:
    world, watcher = watched_world()
    reader = world.connect("reader", kept=True)
    reader.subscribe("will", 1)
    reader.lose()
    world.connect("a", will=Will("will", b"gone", 1, properties={"message_expiry_interval": 10})).lose()
    [packet] = watcher.take()
    assert isinstance(packet, Publish)
    assert packet.properties == {"message_expiry_interval": 10}
    world.advance(11)
    assert world.connect("reader", kept=True).take() == []


# Will delay


def test_a_will_waits_for_its_delay() -> None:
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10)).lose()
    world.advance(9)
    assert watcher.take() == []
    world.advance(1)
    assert watcher.take() == [Publish("will", b"gone")]
    world.advance(10_000)
    assert watcher.take() == []


def test_a_will_does_not_wait_longer_than_its_session_lives() -> None:
    """MQTT-3.1.2-8."""
    world, watcher = watched_world()
    world.connect("a", will=delayed(10)).lose()
    assert watcher.take() == [Publish("will", b"gone")]
    world.connect("b", properties={"session_expiry_interval": 5}, will=delayed(10)).lose()
    world.advance(4)
    assert watcher.take() == []
    world.advance(1)
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_disconnect_that_ends_the_session_publishes_the_will_at_once() -> None:
    world, watcher = watched_world()
    client = world.connect("a", kept=True, will=delayed(10))
    client.send(Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE, {"session_expiry_interval": 0}))
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_client_that_comes_back_in_time_has_no_will_published() -> None:
    """MQTT-3.1.3-9."""
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10)).lose()
    world.advance(9)
    world.connect("a", kept=True)
    world.advance(100)
    assert watcher.take() == []


def test_a_client_that_comes_back_clean_ends_its_session_and_so_publishes_the_will() -> None:
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10)).lose()
    world.connect("a", clean_start=True)
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_take_over_publishes_a_will_without_delay() -> None:
    """MQTT-3.1.4-3."""
    world, watcher = watched_world()
    world.connect("a", kept=True, will=Will("will", b"first"))
    world.connect("a", kept=True, will=Will("will", b"second"))
    assert watcher.take_payloads() == [b"first"]


def test_a_take_over_in_the_same_session_is_in_time_for_a_delayed_will() -> None:
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10))
    world.connect("a", kept=True)
    world.advance(100)
    assert watcher.take() == []


def test_a_take_over_with_a_clean_start_publishes_a_delayed_will() -> None:
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10))
    world.connect("a", clean_start=True)
    assert watcher.take() == [Publish("will", b"gone")]


def test_a_will_of_the_new_connection_takes_the_place_of_the_old_one() -> None:
    world, watcher = watched_world()
    world.connect("a", kept=True, will=delayed(10)).lose()
    second = world.connect("a", kept=True, will=Will("will", b"second"))
    second.lose()
    world.advance(100)
    assert watcher.take_payloads() == [b"second"]


def test_a_client_gets_its_own_will_when_it_comes_back() -> None:
    world = World()
    client = world.connect("a", kept=True, will=Will("will", b"gone", 1))
    client.subscribe("will", 1)
    client.lose()
    assert world.connect("a", kept=True).take_payloads() == [b"gone"]


# What a will may not do


def test_a_will_needs_the_right_to_write() -> None:
    world, watcher = watched_world(Access(Acl.parse("topic read #\ntopic write open/#", "acl")))
    world.connect("a", will=Will("secret", b"x")).lose()
    world.connect("a", will=Will("open/door", b"x")).lose()
    assert watcher.take() == [Publish("open/door", b"x")]


def test_a_will_does_not_speak_for_the_broker() -> None:
    world, watcher = watched_world()
    world.connect("a", will=Will("$SYS/broker/version", b"mine", retain=True)).lose()
    assert watcher.take() == []
