"""What the broker asks of mobility: links of mobile brokers, sessions that come, go and stay, guests."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.events import ConnectionRefused
from hedgerow.broker.handle_subscribe import subscribe_for, unsubscribe_for
from hedgerow.broker.limits import Limits
from hedgerow.broker.publishing import deliver_to
from hedgerow.broker.session import Channel
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mobility.renewals import renew
from hedgerow.mobility.roles import ADDRESS_PROPERTY, MOBILE_PREFIX, MobileBrokerRole
from hedgerow.mqtt.ids import RIGHT_TOPIC
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World
from tests.mobility.fake_mobility import FakeMobility, MobileWorld

LINK = MOBILE_PREFIX + "m"
ADDRESS = "192.0.2.7:1883"


def as_mobile(name: str = "m", address: str = ADDRESS) -> Properties:
    return {"user_property": (("hedgerow-node", name), (ADDRESS_PROPERTY, address))}


class BareWorld(World):
    """A broker that is neither mobile nor fixed."""

    def prepare(self, broker: Broker) -> None:
        broker.register(MobileBrokerRole(broker))


def moving(**options: Any) -> tuple[World, FakeMobility]:
    world = MobileWorld(**options)
    return world, world.mobility


def link(world: World) -> Client:
    return world.connect(LINK, properties=as_mobile())


# The link of a mobile broker


def refused(world: World, properties: Properties, version: int = MQTT_5) -> str:
    client = world.open()
    client.send(Connect(LINK, version, properties=properties))
    answer = client.take_one(Connack)
    assert answer.reason_code in (Reason.NOT_AUTHORIZED, 5)  # 5: as 3.1.1 says it
    assert client.closed
    assert not world.broker.sessions
    [event] = [event for event in world.broker.take_events() if isinstance(event, ConnectionRefused)]
    return event.reason


def test_without_mobility_no_mobile_broker_is_let_in() -> None:
    assert refused(BareWorld(), as_mobile()) == "this broker supports no mobile brokers"


def test_a_mobile_broker_says_who_it_is_and_where() -> None:
    world, mobility = moving()
    assert refused(world, as_mobile("other")) == "not as a mobile broker connects"
    assert refused(world, as_mobile(address="http://x")) == "not as a mobile broker connects"
    assert "are those of mobile brokers" in refused(world, {})
    assert "are those of mobile brokers" in refused(world, {}, MQTT_3_1_1)
    assert mobility.take() == []


def test_a_mobile_broker_needs_the_right_of_one() -> None:
    access = Access(Acl.parse(f"topic deny {RIGHT_TOPIC}\n", "acl"))
    world, mobility = moving(access=access)
    assert RIGHT_TOPIC in refused(world, as_mobile())
    assert mobility.take() == []


def test_mobility_may_refuse_it() -> None:
    world, mobility = moving()
    mobility.refuses = "not one of ours"
    assert refused(world, as_mobile()) == "not one of ours"
    assert mobility.take() == [("asked", "m", None)]


def test_a_link_begins_and_ends() -> None:
    world, mobility = moving()
    client = link(world)
    assert client.connack.properties["user_property"] == (
        ("hedgerow-node", "node"),
        ("hedgerow-domain", "d"),
        ("hedgerow-sessions", "1"),
    )
    assert mobility.take() == [("asked", "m", None), ("accepted", LINK, ADDRESS)]
    client.lose()
    assert mobility.take() == [("ended", LINK)]
    assert not world.broker.sessions


def test_a_link_may_keep_its_address_to_itself() -> None:
    world, mobility = moving()
    world.connect(LINK, properties={"user_property": (("hedgerow-node", "m"),)})
    assert mobility.take()[-1] == ("accepted", LINK, "")


@pytest.mark.parametrize(
    "properties", [{}, {"content_type": "x"}, {"user_property": (("hedgerow-id", "m/1/1"),)}]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_what_comes_by_a_link_is_for_mobility_alone(qos: int, properties: Properties) -> None:
    world, mobility = moving()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#", 1)
    client = link(world)
    mobility.take()
    client.send(
        *(Publish("d/m/event", b"%d" % n, qos, packet_id=n * qos, properties=properties) for n in (1, 2))
    )
    assert mobility.take() == [("received", LINK, "d/m/event", b"1"), ("received", LINK, "d/m/event", b"2")]
    assert client.take() == [Puback(1), Puback(2)] * qos
    assert subscriber.take() == []
    assert world.broker.stats.publish_received == 2


def test_what_a_link_retains_is_for_mobility_alone() -> None:
    world, mobility = moving()
    client = link(world)
    mobility.take()
    client.publish("d/m/event", b"x", retain=True)
    assert mobility.take() == [("received", LINK, "d/m/event", b"x")]
    assert not world.broker.retained.match("#", world.now)


def test_what_others_publish_does_not_come_by_a_link() -> None:
    """It would be taken for the word of the broker at its other end."""
    world, _ = moving()
    publisher = world.connect("publisher")
    publisher.publish("d/node/hello", b"retained", retain=True)
    client = link(world)
    client.subscribe("d/node/#", 1)
    publisher.publish("d/node/notify", b"live", 1)
    assert client.take() == []


def test_reserved_topics_are_not_for_clients() -> None:
    world, mobility = moving()
    mobility.reserved = {"d/node/notify"}
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#", 1)
    will = Will("d/node/notify", b"will")
    publisher = world.connect("publisher", will=will)
    for qos in (0, 1):
        publisher.publish("d/node/notify", b"x", qos)
    assert publisher.take_one(Puback).reason_code == Reason.NOT_AUTHORIZED
    publisher.lose()
    assert subscriber.take() == []
    assert world.broker.stats.publish_refused == 2


def test_a_link_knows_no_qos_2() -> None:
    world, mobility = moving()
    client = link(world)
    mobility.take()
    client.publish("d/m/event", b"x", 2)
    assert client.take_one(Disconnect).reason_code == Reason.QOS_NOT_SUPPORTED
    assert mobility.take() == [("ended", LINK)]


def test_what_is_malformed_on_a_link_ends_it() -> None:
    world, mobility = moving()
    client = link(world)
    mobility.take()
    client.send_bytes(b"\x30\x03\x00\x02\xff")
    assert client.closed
    assert mobility.take() == [("ended", LINK)]


@pytest.mark.parametrize("data", [b"\x30\x05\x00\x01\x00\x00x", b"\x30\x04\x00\x01+\x00"])
def test_a_topic_that_is_none_is_passed_over_on_a_link(data: bytes) -> None:
    world, mobility = moving()
    client = link(world)
    mobility.take()
    client.send_bytes(data)
    assert not client.closed
    assert mobility.take() == []
    assert world.broker.stats.protocol_errors == 1


def test_a_link_that_is_ended_by_what_it_says_says_no_more() -> None:
    world, mobility = moving()
    client = link(world)
    mobility.take()
    receive = mobility.receive

    def refuse(connection: Channel, publication: Message) -> None:
        receive(connection, publication)
        connection.disconnect(Reason.PROTOCOL_ERROR, "nonsense")

    mobility.receive = refuse  # type: ignore[method-assign]
    client.send(Publish("d/m/event", b"1"), Publish("d/m/event", b"2"))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    assert mobility.take() == [("received", LINK, "d/m/event", b"1"), ("ended", LINK)]


def test_the_will_of_a_link_is_nobodys() -> None:
    world, _ = moving()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#")
    world.connect(LINK, properties=as_mobile(), will=Will("gone", b"x")).lose()
    assert subscriber.take() == []


# Sessions that come, go and stay


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_client_that_brings_its_session_is_told_that_it_is_present(version: int) -> None:
    world, mobility = moving()
    mobility.expected.add("guest")
    assert world.connect("guest", version, clean_start=False).connack.session_present
    assert mobility.take() == [("connected", "guest")]
    assert not world.connect("other", version, clean_start=False).connack.session_present


def test_a_clean_start_has_no_session_present() -> None:
    world, mobility = moving()
    mobility.expected.add("guest")
    assert not world.connect("guest", clean_start=True).connack.session_present


def test_a_client_of_the_extension_is_told_that_its_session_is_present() -> None:
    world, mobility = moving()
    mobility.supporter = ADDRESS
    mobility.expected.add("guest")
    client = world.open()
    client.send(Connect("guest", MQTT_EXTENDED, clean_start=False))
    assert client.take_one(Renew).session_present


def test_what_connected_delivers_comes_behind_the_connack() -> None:
    world, mobility = moving()
    route = world.broker.find_route("t")

    def connected(connection: Any) -> None:
        deliver_to(world.broker, connection.session, Message("t", b"x", 1), route, 1)

    mobility.connected = connected  # type: ignore[method-assign]
    client = world.connect("guest")
    assert client.take_one(Publish).payload == b"x"


def test_connected_may_turn_a_client_away() -> None:
    world, mobility = moving()
    client = world.connect("client", kept=True)
    client.subscribe("t", 2)
    world.connect("publisher").publish("t", b"x", 2)
    client.send(Pubrec(client.take_one(Publish).packet_id))
    client.take_one(Pubrel)
    client.lose()
    mobility.connected = lambda connection: connection.disconnect(  # type: ignore[method-assign]
        Reason.USE_ANOTHER_SERVER, ""
    )
    again = world.connect("client", kept=True)
    assert again.take_one(Disconnect).reason_code == Reason.USE_ANOTHER_SERVER  # and no PUBREL behind it
    assert again.closed


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5, MQTT_EXTENDED])
def test_a_session_that_is_kept_outlives_its_disconnect(version: int) -> None:
    world, mobility = moving()
    client = world.connect("client", version)
    client.subscribe("t", 1)
    expiry_s = world.broker.sessions["client"].expiry_s
    mobility.kept.add("client")
    client.send(Disconnect())
    session = world.broker.sessions["client"]
    assert (session.connection, session.expires_at, session.expiry_s) == (None, None, expiry_s)
    world.advance(1_000_000)
    assert world.broker.sessions["client"] is session
    world.connect("publisher").publish("t", b"x", 1)
    again = world.connect("client", MQTT_5, clean_start=False)
    assert again.connack.session_present
    assert again.take_one(Publish).payload == b"x"


def test_a_session_that_is_not_kept_ends_as_ever() -> None:
    world, mobility = moving()
    client = world.connect("client")
    client.subscribe("t")
    mobility.take()
    client.send(Disconnect())
    assert "client" not in world.broker.sessions
    assert mobility.take() == [("discarded", "client", ("t",))]


def test_a_client_that_is_moved_keeps_its_session_and_leaves_no_will() -> None:
    world, mobility = moving()
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#")
    client = world.connect("client", will=Will("gone", b"x"))
    mobility.kept.add("client")
    renew(client.connection, 7, ADDRESS)
    world.settle()
    assert client.take_one(Disconnect).properties["server_reference"] == ADDRESS
    session = world.broker.sessions["client"]
    world.broker.discard(session)
    world.settle()
    assert subscriber.take() == []


def test_a_disconnect_does_not_shorten_a_session_that_is_kept() -> None:
    world, mobility = moving()
    client = world.connect("client", kept=True)
    mobility.kept.add("client")
    client.send(Disconnect(0, {"session_expiry_interval": 0}))
    assert world.broker.sessions["client"].expiry_s == 3_600


def test_a_kept_session_can_be_given_a_time() -> None:
    world, mobility = moving()
    client = world.connect("client")
    mobility.kept.add("client")
    client.send(Disconnect())
    session = world.broker.sessions["client"]
    mobility.take()
    world.broker.expire(session, 5.0)
    world.advance(4.9)
    assert "client" in world.broker.sessions
    world.advance(0.2)
    assert "client" not in world.broker.sessions
    assert mobility.take() == [("discarded", "client", ())]
    world.broker.expire(session, 5.0)  # It is gone: nothing comes of it.
    world.advance(10)
    assert mobility.take() == []


def test_a_kept_session_can_end_at_once_but_not_under_its_client() -> None:
    world, mobility = moving()
    client = world.connect("client")
    session = world.broker.sessions["client"]
    world.broker.expire(session, 0.0)
    assert "client" in world.broker.sessions
    mobility.kept.add("client")
    client.send(Disconnect())
    world.broker.expire(session, 0.0)
    assert "client" not in world.broker.sessions


def test_a_clean_start_discards_first_and_connects_then() -> None:
    world, mobility = moving()
    world.connect("client", kept=True).lose()
    mobility.take()
    world.connect("client", clean_start=True)
    assert mobility.take() == [("discarded", "client", ()), ("connected", "client")]


# Guests


def test_a_guest_subscribes_at_its_owner_and_gets_what_is_retained_here() -> None:
    world, mobility = moving()
    mobility.guests.add("guest")
    publisher = world.connect("publisher")
    publisher.publish("a/b", b"kept", 1, retain=True)
    assert publisher.take_one(Puback).reason_code == 0x10
    guest = world.connect("guest")
    mobility.take()
    guest.subscribe("a/+", 1)  # sees it granted
    assert mobility.take() == [("subscribed", "guest", "a/+", 1)]
    assert guest.take_one(Publish).payload == b"kept"
    assert len(world.broker.subscriptions) == 0
    publisher.publish("a/b", b"live")
    assert guest.take() == []


def test_a_guest_that_subscribed_here_before_does_so_no_more() -> None:
    world, mobility = moving(durable=True)
    guest = world.connect("guest", kept=True)
    guest.subscribe("a")
    mobility.guests.add("guest")
    guest.subscribe("a")
    assert len(world.broker.subscriptions) == 0
    assert not world.store.subscriptions
    guest.subscribe("b")
    assert not world.store.subscriptions
    assert set(world.broker.sessions["guest"].subscriptions or ()) == {"a", "b"}


def test_a_guest_unsubscribes_at_its_owner_whatever_is_known_here() -> None:
    world, mobility = moving()
    mobility.guests.add("guest")
    guest = world.connect("guest")
    guest.subscribe("a")
    mobility.take()
    guest.send(Unsubscribe(2, ["a", "b"]))
    assert guest.take_one(Unsuback).reason_codes == [Reason.SUCCESS, Reason.SUCCESS]
    assert mobility.take() == [("unsubscribed", "guest", "a"), ("unsubscribed", "guest", "b")]
    assert not world.broker.sessions["guest"].subscriptions
    other = world.connect("other")
    other.send(Unsubscribe(2, ["a"]))
    assert other.take_one(Unsuback).reason_codes == [Reason.NO_SUBSCRIPTION_EXISTED]


def test_a_client_that_is_away_is_subscribed_for() -> None:
    world, _ = moving(limits=Limits(subscriptions=2), durable=True)
    client = world.connect("client", kept=True)
    client.subscribe("a", 1, identifier=6)
    client.lose()
    session = world.broker.sessions["client"]
    assert subscribe_for(world.broker, session, SubscriptionRecord(Subscription("a", 2), 7))
    assert subscribe_for(world.broker, session, SubscriptionRecord(Subscription("b", 1)))
    assert not subscribe_for(world.broker, session, SubscriptionRecord(Subscription("c", 1)))
    world.settle()
    assert {name for _, name in world.store.subscriptions} == {"a", "b"}
    world.connect("publisher").publish("a", b"x", 2)
    assert unsubscribe_for(world.broker, session, "b")
    assert not unsubscribe_for(world.broker, session, "b")
    again = world.connect("client", kept=True)
    packet = again.take_one(Publish)
    assert (packet.qos, packet.properties) == (2, {"subscription_identifier": (7,)})


# Deliveries that are directed


def test_a_guest_gets_what_is_found_for_it() -> None:
    world, mobility = moving()
    mobility.guests.add("guest")
    guest = world.connect("guest")
    guest.subscribe("a/+", 1, identifier=7, retain_as_published=True)
    session = world.broker.sessions["guest"]
    route = world.broker.find_route("a/b")
    message = Message("a/b", b"x", 2, retain=True, id=MessageId("m", 1, 1))
    delivery = deliver_to(world.broker, session, message, route, 2)
    world.settle()
    assert delivery is not None
    packet = guest.take_one(Publish)
    assert (packet.qos, packet.retain, packet.properties) == (1, True, {"subscription_identifier": (7,)})
    other = world.broker.find_route("c")
    deliver_to(world.broker, session, Message("c", b"y", 2, retain=True), other, 1)
    world.settle()
    packet = guest.take_one(Publish)  # subscribed to where it was before
    assert (packet.qos, packet.retain, packet.properties) == (1, False, {})


def test_at_qos_0_nothing_is_left_in_the_outbox() -> None:
    world, _ = moving()
    guest = world.connect("guest", kept=True)
    session = world.broker.sessions["guest"]
    route = world.broker.find_route("a")
    assert deliver_to(world.broker, session, Message("a", b"x", 1), route, 0) is None
    assert deliver_to(world.broker, session, Message("a", b"y", 0), route, 1) is None
    world.settle()
    assert [(packet.payload, packet.qos) for packet in guest.take() if isinstance(packet, Publish)] == [
        (b"x", 0),
        (b"y", 0),
    ]
    guest.lose()
    assert deliver_to(world.broker, session, Message("a", b"z", 0), route, 1) is None
    assert world.connect("guest", kept=True).take() == []


def test_what_is_for_a_client_without_a_connection_waits() -> None:
    world, _ = moving(limits=Limits(queue_messages=1), durable=True)
    world.connect("guest", kept=True).lose()
    session = world.broker.sessions["guest"]
    route = world.broker.find_route("a")
    assert deliver_to(world.broker, session, Message("a", b"x", 1), route, 1) is not None
    assert deliver_to(world.broker, session, Message("a", b"y", 1), route, 1) is None  # no room
    world.settle()
    world.crash()
    assert world.connect("guest", kept=True).take_payloads() == [b"x"]


def test_nobody_gets_what_it_may_not_read() -> None:
    world, _ = moving(access=Access(Acl.parse("topic read b\n", "acl")))
    guest = world.connect("guest")
    session = world.broker.sessions["guest"]
    assert deliver_to(world.broker, session, Message("a", b"x", 1), world.broker.find_route("a"), 1) is None
    assert deliver_to(world.broker, session, Message("b", b"y", 1), world.broker.find_route("b"), 1)
    world.settle()
    assert guest.take_payloads() == [b"y"]
