"""A broker that offers less than MQTT has: lower QoS, no retained messages (§3.2.2.3.4, §3.2.2.3.5)."""

from __future__ import annotations

import pytest

from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World

VERSIONS = (MQTT_3_1_1, MQTT_5)


def offering(maximum_qos: int = 2, takes_retained: bool = True) -> World:
    world = World()
    world.broker.offer(maximum_qos, takes_retained)
    return world


def is_refused(client: Client, reason: Reason, version: int) -> bool:
    answers = client.take()
    assert [type(each) for each in answers] == ([Disconnect] if version == MQTT_5 else [])
    assert all(isinstance(each, Disconnect) and each.reason_code == reason for each in answers)
    return client.closed


def test_clients_of_mqtt_5_are_told() -> None:
    """MQTT-3.2.2-9."""
    told = offering(1, takes_retained=False).connect("a").connack.properties
    assert (told["maximum_qos"], told["retain_available"]) == (1, 0)
    assert not offering().connect("a").connack.properties.keys() & {"maximum_qos", "retain_available"}
    assert offering(0).connect("a", MQTT_3_1_1).connack.properties == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("maximum", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_a_higher_qos_is_refused(maximum: int, qos: int, version: int) -> None:
    """MQTT-3.2.2-11."""
    world = offering(maximum)
    client, reader = world.connect("a", version), world.connect("reader")
    reader.subscribe("t")
    client.send(Publish("t", b"1", maximum, packet_id=min(maximum, 1)))
    client.take()
    client.send(Publish("t", b"2", qos, packet_id=2))
    assert is_refused(client, Reason.QOS_NOT_SUPPORTED, version)
    assert [each.payload for each in reader.take() if isinstance(each, Publish)] == [b"1"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_refused(qos: int, version: int) -> None:
    """MQTT-3.2.2-14."""
    client = offering(takes_retained=False).connect("a", version)
    client.send(Publish("t", b"1", 1, packet_id=1))
    assert [type(each) for each in client.take()] == [Puback]
    client.send(Publish("t", b"2", qos, True, packet_id=2 * bool(qos)))
    assert is_refused(client, Reason.RETAIN_NOT_SUPPORTED, version)


def test_subscriptions_are_granted_with_what_there_is() -> None:
    client = offering(1).connect("a")
    client.send(
        Subscribe(1, [Subscription("a", 2, True, True, 1), Subscription("b", 1), Subscription("c", 0)])
    )
    assert client.take() == [Suback(1, [1, 1, 0])]
    held = client.connection.connected_session().subscriptions
    assert held is not None
    assert held["a"].subscription == Subscription("a", 1, True, True, 1)


@pytest.mark.parametrize(
    ("will", "reason"),
    [
        (Will("t", b"", 2), Reason.QOS_NOT_SUPPORTED),
        (Will("t", b"", 1, True), Reason.RETAIN_NOT_SUPPORTED),
        (Will("t", b"", 1), Reason.SUCCESS),
    ],
)
def test_wills_are_held_to_it(will: Will, reason: Reason) -> None:
    """MQTT-3.2.2-12, MQTT-3.2.2-13."""
    client = offering(1, takes_retained=False).open()
    client.send(Connect("a", will=will))
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.reason_code == reason
    assert client.closed is bool(reason)
