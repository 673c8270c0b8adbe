"""The client machine on connections of the extension, and one machine that takes over from another."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.message import MessageId
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.client import Client
from hedgerow.mqtt.client.events import (
    Connected,
    Disconnected,
    Event,
    MessageReceived,
    Published,
    Refused,
    Renewed,
    Subscribed,
)
from hedgerow.mqtt.client.sightings import MAX_SIGHTINGS, Sightings
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.mqtt.client.peer import NOW, Peer, connected

FIXED = "192.0.2.9:1883"


class Follower(Peer):
    """A client of the extension, and the servers that it meets."""

    def __init__(self, client: Client | None = None, **options: Any) -> None:
        super().__init__(version=MQTT_EXTENDED, **options)
        if client is not None:
            self.client = client

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        handle = self.client.subscribe([Subscription(topic_filter, qos)], self.now)
        (packet,) = self.sent()
        assert isinstance(packet, Subscribe)
        (event,) = self.answer(Suback(packet.packet_id, [qos]))
        assert isinstance(event, Subscribed)
        assert event.handle == handle

    def successor(self, *active: str, clean_start: bool = False) -> Follower:
        return Follower(self.client.successor(clean_start, active))


def follower(**options: Any) -> Follower:
    peer = Follower(**options)
    peer.connect()
    return peer


def payloads(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events if isinstance(event, MessageReceived)]


def message(sequence: int, qos: int = 1, packet_id: int = 1, retain: bool = False) -> Pubcallback:
    text = b"%d" % sequence
    return Pubcallback(
        "a", text, qos, retain, packet_id=packet_id if qos else 0, message_id=f"n/1/{sequence}"
    )


# Renewals.


def test_the_connack_may_name_a_supporter() -> None:
    peer = Follower()
    peer.client.connect(NOW)
    (packet,) = peer.sent()
    assert isinstance(packet, Connect)
    assert packet.protocol_version == MQTT_EXTENDED
    first, second = peer.answer(Renew(Renewal.CONNECTION, FIXED))
    assert isinstance(first, Connected)
    assert second == Renewed(Renewal.CONNECTION, FIXED)
    assert peer.client.connected
    assert peer.answer(Renew(Renewal.ACTIVE_TOPICS, "", ["a"])) == [
        Renewed(Renewal.ACTIVE_TOPICS, FIXED, ["a"])
    ]
    assert peer.client.connected


def test_a_renewal_instead_of_a_connection_is_a_refusal_that_says_where() -> None:
    peer = Follower()
    peer.client.connect(NOW)
    (event,) = peer.answer(Renew(Renewal.RENEW_TOPICS, FIXED))
    assert isinstance(event, Refused)
    assert (event.reason_code, event.server_reference) == (Reason.USE_ANOTHER_SERVER, FIXED)


def test_a_server_that_does_not_know_the_version_refuses_it() -> None:
    peer = Follower()
    peer.client.connect(NOW)
    (event,) = peer.client.receive_data(bytes.fromhex("20 02 00 01"), NOW)
    assert isinstance(event, Refused)
    assert event.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("a second CONNACK", "20 02 00 00"),
        ("Active Topics, and no address was told before", "20 04 00 07 0000"),
        ("an empty callback", "00 08 0003 7b227d 0000 61"),
    ],
)
def test_what_makes_no_sense_ends_the_connection(what: str, data: str) -> None:
    peer = follower()
    (event,) = peer.client.receive_data(bytes.fromhex(data), NOW)
    assert isinstance(event, Disconnected)
    assert not peer.client.connected


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("packet", [Renew(Renewal.RENEW_TOPICS, FIXED), Pubcallback("a")])
def test_elsewhere_its_packets_are_errors_as_ever(version: int, packet: Packet) -> None:
    peer = connected(version=version)
    (event,) = peer.client.receive_data(codec.encode(packet, MQTT_EXTENDED), NOW)
    assert isinstance(event, Disconnected)


# Messages.


def test_a_message_has_its_id_and_its_callbacks() -> None:
    peer = follower()
    (event,) = peer.answer(Pubcallback("a", b"x", callbacks=("c1", "c2"), message_id="n/1/7"))
    assert isinstance(event, MessageReceived)
    assert (event.topic, event.payload, event.id) == ("a", b"x", MessageId("n", 1, 7))
    assert event.callbacks == ("c1", "c2")
    (event,) = peer.answer(Pubcallback("a", b"x", message_id="what?"))
    assert isinstance(event, MessageReceived)
    assert event.id is None


def test_it_is_acknowledged_as_a_publish_is() -> None:
    peer = follower()
    peer.answer(message(1, 1, 7), message(2, 2, 8))
    assert peer.sent() == [Puback(7), Pubrec(8)]
    peer.answer(Pubrel(8))
    assert peer.sent() == [Pubcomp(8)]


def test_what_comes_again_by_another_connection_is_acknowledged_and_not_given_again() -> None:
    peer = follower()
    assert payloads(peer.answer(message(1, 1), message(2, 2, 2), message(3, 0))) == [b"1", b"2", b"3"]
    peer.lose()
    peer.connect(session_present=False)
    again = peer.answer(message(1, 1), message(2, 2, 2), message(3, 0), message(4, 1, 4))
    assert payloads(again) == [b"4"]
    assert peer.sent() == [Puback(1), Pubrec(2), Puback(4)]


def test_what_the_application_has_not_acknowledged_is_given_again() -> None:
    peer = follower(manual_acknowledgement=True)
    one, two = peer.answer(message(1, 1, 1), message(2, 1, 2))
    assert isinstance(one, MessageReceived)
    assert isinstance(two, MessageReceived)
    peer.client.acknowledge(one)
    peer.lose()
    peer.connect(session_present=True)
    events = peer.answer(message(1, 1, 1), message(2, 1, 2))
    assert payloads(events) == [b"2"]
    assert peer.sent() == [Puback(1)]


def test_retained_messages_come_again_to_who_asks_for_them_and_to_nobody_else() -> None:
    peer = follower()
    peer.subscribe("a")
    assert payloads(peer.answer(message(1, 1, 1, retain=True))) == [b"1"]
    peer.lose()
    peer.connect(session_present=False)
    assert payloads(peer.answer(message(1, 1, 1, retain=True))) == []
    peer.sent()
    peer.client.subscribe([Subscription("a", 1)], NOW)
    assert payloads(peer.answer(message(1, 1, 2, retain=True))) == [b"1"]


def test_sightings_are_bounded() -> None:
    sightings = Sightings()
    connection = sightings.begin()
    for sequence in range(MAX_SIGHTINGS + 1):
        event = MessageReceived("a", b"", id=MessageId("n", 1, sequence))
        assert not sightings.is_again(event, connection, False)
    later = sightings.begin()
    assert sightings.is_again(MessageReceived("a", b"", id=MessageId("n", 1, 5)), later, False)
    assert not sightings.is_again(MessageReceived("a", b"", id=MessageId("n", 1, 0)), later, False)


# From one machine to the next.


def test_a_successor_subscribes_again_where_the_session_is_not() -> None:
    old = follower()
    old.subscribe("a")
    old.subscribe("b", 2)
    new = old.successor(clean_start=True)
    new.client.connect(NOW)
    (packet,) = new.sent()
    assert isinstance(packet, Connect)
    assert packet.clean_start
    assert packet.client_id == old.client.client_id
    new.answer(Connack())
    (packet,) = new.sent()
    assert isinstance(packet, Subscribe)
    assert packet.subscriptions == [Subscription("a", 1), Subscription("b", 2)]
    assert not new.client.is_settled
    new.answer(Suback(packet.packet_id, [1, 2]))
    assert new.client.is_settled


@pytest.mark.parametrize(("active", "asked"), [((), []), (("a", "b"), []), (("a",), ["b"])])
def test_a_successor_subscribes_to_what_is_not_active_in_its_session(
    active: tuple[str, ...], asked: list[str]
) -> None:
    old = follower()
    old.subscribe("a")
    old.subscribe("b")
    new = old.successor(*active)
    new.client.connect(NOW)
    (packet,) = new.sent()
    assert isinstance(packet, Connect)
    assert not packet.clean_start
    new.answer(Connack(session_present=True))
    filters = [
        each.topic_filter
        for packet in new.sent()
        if isinstance(packet, Subscribe)
        for each in packet.subscriptions
    ]
    assert filters == asked


def test_what_changes_while_it_connects_is_changed_there_too() -> None:
    old = follower()
    old.subscribe("kept")
    old.subscribe("left")
    new = old.successor()
    new.connect(session_present=True)
    old.subscribe("added", 2)
    old.client.unsubscribe(["left"], NOW)
    new.client.take_over(old.client, NOW)
    unsubscribe, subscribe = new.sent()
    assert isinstance(unsubscribe, Unsubscribe)
    assert unsubscribe.topic_filters == ["left"]
    assert isinstance(subscribe, Subscribe)
    assert subscribe.subscriptions == [Subscription("added", 2)]


def test_what_is_in_flight_is_finished_where_it_is_and_the_queue_moves() -> None:
    old = Follower(max_in_flight=1)
    old.connect()
    first, second = old.publish("a", b"1", 1), old.publish("a", b"2", 1)
    assert [packet.payload for packet in old.sent() if isinstance(packet, Publish)] == [b"1"]
    new = old.successor()
    new.connect(session_present=True)
    new.client.take_over(old.client, NOW)
    (sent,) = new.sent()
    assert isinstance(sent, Publish)
    assert (sent.payload, sent.dup) == (b"2", False)
    assert not old.client.is_finished
    assert old.answer(Puback(1)) == [Published(first)]
    assert old.client.is_finished
    assert new.answer(Puback(sent.packet_id)) == [Published(second)]


def test_what_the_old_server_does_not_finish_is_sent_to_the_new_one() -> None:
    old = follower()
    handle = old.publish("a", b"1", 1)
    released = old.publish("a", b"2", 2)
    old.sent()
    old.answer(Pubrec(2))
    new = old.successor()
    new.connect(session_present=True)
    new.client.take_over(old.client, NOW)
    later = new.publish("a", b"3", 1)
    old.lose()
    (lost,) = new.client.inherit(old.client, NOW)
    assert isinstance(lost, Published)
    assert (lost.handle, lost.reason_code) == (released, Reason.UNSPECIFIED_ERROR)
    sent = [packet for packet in new.sent() if isinstance(packet, Publish)]
    assert [packet.payload for packet in sent] == [b"3", b"1"]
    answered = new.answer(*(Puback(packet.packet_id) for packet in sent))
    assert answered == [Published(later), Published(handle)]


def test_what_both_servers_send_is_given_once() -> None:
    old = follower()
    new = old.successor()
    new.connect(session_present=True)
    assert payloads(new.answer(message(1))) == [b"1"]
    assert payloads(old.answer(message(1), message(2))) == [b"2"]
    assert payloads(new.answer(message(2), message(3))) == [b"3"]
    assert old.sent() == [Puback(1), Puback(1)]


@pytest.mark.parametrize("is_lost", [False, True], ids=["the old one is there", "the old one is gone"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_both_send_is_given_once_while_the_application_is_at_it(qos: int, is_lost: bool) -> None:
    """Both are answered when the application is done with the one copy that it has."""
    old = follower(manual_acknowledgement=True)
    new = old.successor()
    new.connect(session_present=True)
    (first,) = old.answer(message(1, qos, 7))
    assert isinstance(first, MessageReceived)
    if is_lost:
        old.lose()
    assert new.answer(message(1, qos, 1)) == []
    (second,) = new.answer(message(2, qos, 2))
    assert isinstance(second, MessageReceived)
    assert new.sent() == []
    for event in (first, second):
        for peer in (old, new):
            peer.client.acknowledge(event)
    answer = Puback if qos == 1 else Pubrec
    if not is_lost:
        assert old.sent() == [answer(7)]
    assert new.sent() == [answer(1), answer(2)]


def test_of_two_attempts_of_a_server_the_last_one_is_what_the_application_ends() -> None:
    old = follower(manual_acknowledgement=True)
    old.answer(message(1, 1, 7))
    old.lose()
    old.connect(session_present=True)
    (again,) = old.answer(message(1, 1, 7))
    assert isinstance(again, MessageReceived)
    old.client.acknowledge(again)
    new = old.successor()
    new.connect(session_present=True)
    assert new.answer(message(1, 1, 1)) == []
    assert (old.sent(), new.sent()) == ([Puback(7)], [Puback(1)])


def test_handles_of_both_are_never_the_same() -> None:
    old = follower()
    new = old.successor()
    new.connect()
    handles = [peer.publish("a", b"", 1) for peer in (old, new, old, new)]
    assert len(set(handles)) == 4
