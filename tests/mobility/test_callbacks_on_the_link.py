"""Callbacks between the brokers: in the header of PUBCALLBACK, and over plain MQTT 5 in a user property."""

from __future__ import annotations

import pytest

from hedgerow.mobility.delegation.codec import CALLBACKS_PROPERTY
from hedgerow.mobility.link import FixedLink
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connack, Connect, Pubcallback, Publish
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World
from tests.mobility.domain import Domain, Roamer
from tests.mobility.traffic import Traffic, steady

STAYING = {"moves_clients": False}


class Wire:
    """What has come to the mobile broker's end of the link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pubcallbacks: list[Pubcallback] = []
        self.publishes: list[Publish] = []
        take_callbacks, take_publish = FixedLink.handle_pubcallback, FixedLink.handle_control

        def handle_pubcallback(link: FixedLink, packet: Pubcallback) -> None:
            self.pubcallbacks.append(packet)
            take_callbacks(link, packet)

        def handle_control(link: FixedLink, packet: Publish) -> bool:
            self.publishes.append(packet)
            return take_publish(link, packet)

        monkeypatch.setattr(FixedLink, "handle_pubcallback", handle_pubcallback)
        monkeypatch.setattr(FixedLink, "handle_control", handle_control)


def delegate_cold(domain: Domain) -> list[Roamer]:
    domain.add_mobile("m", "f", settings=STAYING)
    domain.advance(0.5)
    roamers = [Roamer(domain, "m", name, MQTT_3_1_1, "hot", "cold") for name in ("a", "b")]
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: domain["m"].delegated == {"cold"}, 5)
    domain.advance(1)
    traffic.stop()
    domain.advance(0.5)
    traffic.check(roamers)
    return roamers


def test_an_event_is_itself_with_the_callbacks_in_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, domain = Wire(monkeypatch), Domain()
    domain.add_fixed("f")
    roamers = delegate_cold(domain)
    wire.pubcallbacks.clear()
    domain["f"].publish("cold", b"31")
    domain.advance(0.5)
    (packet,) = wire.pubcallbacks
    assert (packet.topic, packet.payload, packet.callbacks) == ("cold", b"31", ("a@m", "b@m"))
    assert packet.message_id.startswith("f/")
    assert not any(name == CALLBACKS_PROPERTY for name, _ in packet.properties["user_property"])
    assert b'{a@m"b@m}' in codec.encode(packet, MQTT_5)[:20]
    assert all(each.payloads.count(b"31") == 1 for each in roamers)
    assert not any(each.topic == "cold" for each in wire.publishes)


def test_over_plain_mqtt_5_they_are_in_a_user_property(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker there does not know version 0xFF."""
    wire, domain = Wire(monkeypatch), Domain()
    fixed = domain.add_fixed("f")
    fixed.broker.roles["mobile broker"].takes_callbacks = False
    roamers = delegate_cold(domain)
    assert not wire.pubcallbacks
    domain["f"].publish("cold", b"31")
    domain.advance(0.5)
    (packet,) = (each for each in wire.publishes if each.topic == "cold" and each.payload == b"31")
    assert (CALLBACKS_PROPERTY, '{a@m"b@m}') in packet.properties["user_property"]
    assert all(each.payloads.count(b"31") == 1 for each in roamers)


def test_what_a_client_says_of_callbacks_is_its_own_affair() -> None:
    """Its user properties stand behind those of the brokers, and come to subscribers as they were."""
    domain = Domain()
    domain.add_fixed("f")
    roamers = delegate_cold(domain)
    watcher = domain["m"].subscribe("cold", client_id="watcher")
    domain.advance(0.5)
    said = (("hedgerow-callbacks", "{nobody@m}"), ("hedgerow-served", '{a@m"b@m}'), ("x", "y"))
    sender = domain["f"].subscribe(client_id="sender")
    sender.send(Publish("cold", b"32", 0, properties={"user_property": said}))
    domain.advance(0.5)
    assert all(each.payloads.count(b"32") == 1 for each in roamers)
    (got,) = (each for each in watcher.messages if each.payload == b"32")
    assert got.properties["user_property"] == said


@pytest.mark.parametrize("client_id", ["client", "hedgerow-mobile-x"])
def test_mqtt_5_with_the_extension_is_for_brokers(client_id: str) -> None:
    world = World()
    client = world.open()
    client.send(Connect(client_id, MQTT_5, is_extended=True))
    assert client.take_one(Connack).reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION


def test_a_client_sends_no_pubcallback() -> None:
    world = World()
    client = world.connect("client")
    pairs = (("hedgerow-stream", "2 12 1 1 1 1 1 0 0 0 0 0 0"),)
    packet = Pubcallback("t", b"x", callbacks=("a@m",), properties={"user_property": pairs})
    client.send_bytes(codec.encode(packet, MQTT_5))
    assert client.connection.closing
