"""The client's receiving half: decoding, acknowledgements and their order, topic aliases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.events import Disconnected, Event, MessageReceived, MessageRefused
from hedgerow.mqtt.client.receiver import PublishDecoder
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hedgerow.mqtt.reasons import Reason
from tests.mqtt.client.peer import NOW, Peer, connected


def received(events: list[Event]) -> list[MessageReceived]:
    return [event for event in events if isinstance(event, MessageReceived)]


@given(
    st.sampled_from([MQTT_3_1_1, MQTT_5]),
    st.lists(
        st.tuples(
            st.sampled_from(["t", "a/b", "ä/β"]),
            st.binary(max_size=200),
            st.integers(0, 2),
            st.booleans(),
            st.booleans(),
            st.sampled_from([{}, {"content_type": "text"}, {"subscription_identifier": (1, 300)}]),
        ),
        max_size=20,
    ),
    st.binary(max_size=3),
)
def test_whatever_path_the_decoder_takes_the_message_is_the_same(
    version: int,
    messages: list[tuple[str, bytes, int, bool, bool, Properties]],
    trailing: bytes,
) -> None:
    decoder = PublishDecoder(version)
    for number, (topic, payload, qos, retain, dup, properties) in enumerate(messages, 1):
        dup = dup and qos > 0
        packet = Publish(topic, payload, qos, retain, dup, qos and number, properties)
        data = codec.encode(packet, version) + trailing
        header = codec.read_header(data, 0)
        assert header is not None
        message = decoder.decode(data[0], data, *header, NOW)
        assert (message.topic, message.payload, message.qos) == (topic, payload, qos)
        assert (message.retain, message.dup, message.packet_id) == (retain, dup, qos and number)
        if version == MQTT_5:
            identifiers = properties.get("subscription_identifier", ())
            assert message.subscription_identifiers == identifiers
            assert message.properties == ({} if identifiers else properties)


def test_expiry_becomes_a_time() -> None:
    peer = connected()
    (message,) = received(peer.answer(Publish("a", properties={"message_expiry_interval": 30})))
    assert message.expires_at == NOW + 30


# Content that breaks a rule.


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize(("version", "is_topic"), [(MQTT_3_1_1, True), (MQTT_5, True), (MQTT_5, False)])
def test_content_that_breaks_a_rule_is_refused_alone(
    version: int, is_topic: bool, manual: bool, qos: int
) -> None:
    """It would come again first thing on each connection."""
    peer = connected(version=version, manual_acknowledgement=manual)
    wrong = Publish("a?", b"wrong", qos, packet_id=qos and 1)
    if not is_topic:
        wrong = Publish("a", b"wrong", qos, packet_id=qos and 1, properties={"response_topic": "r?"})
    data = codec.encode(wrong, version).replace(b"?", b"#")
    events = peer.client.receive_data(data + codec.encode(Publish("a", b"after"), version), NOW)
    refused, after = events
    assert isinstance(refused, MessageRefused)
    assert refused.topic == ("a#" if is_topic else "a")
    assert received([after])[0].payload == b"after"
    reason_code = Reason.UNSPECIFIED_ERROR if version == MQTT_5 else 0
    assert peer.sent() == [[], [Puback(1, reason_code)], [Pubrec(1, reason_code)]][qos]
    if qos == 2 and version == MQTT_3_1_1:
        peer.answer(Pubrel(1))
        assert peer.sent() == [Pubcomp(1)]
    assert peer.client.is_finished
    assert peer.client.connected


def test_a_refusal_leaves_in_the_order_of_the_messages() -> None:
    peer = connected(manual_acknowledgement=True)
    (first,) = received(peer.answer(Publish("a", b"1", 1, packet_id=1)))
    data = codec.encode(Publish("a?", b"2", 2, packet_id=2), MQTT_5).replace(b"?", b"+")
    peer.client.receive_data(data, NOW)
    assert peer.sent() == []
    peer.client.acknowledge(first)
    assert peer.sent() == [Puback(1), Pubrec(2, Reason.UNSPECIFIED_ERROR)]


# Automatic acknowledgement.


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_each_qos_is_acknowledged_in_its_way(version: int) -> None:
    peer = connected(version=version)
    events = peer.answer(
        Publish("a", b"0"), Publish("a", b"1", 1, packet_id=7), Publish("a", b"2", 2, packet_id=8)
    )
    assert [message.payload for message in received(events)] == [b"0", b"1", b"2"]
    assert peer.sent() == [Puback(7), Pubrec(8)]
    assert peer.answer(Pubrel(8)) == []
    assert peer.sent() == [Pubcomp(8)]


def test_qos_2_sent_again_is_delivered_once() -> None:
    peer = connected(session_expiry_s=60)
    assert len(peer.answer(Publish("a", b"x", 2, packet_id=8))) == 1
    assert peer.answer(Publish("a", b"x", 2, packet_id=8, dup=True)) == []
    assert peer.sent() == [Pubrec(8), Pubrec(8)]
    peer.lose()
    peer.connect(session_present=True)
    assert peer.answer(Publish("a", b"x", 2, packet_id=8, dup=True), Pubrel(8)) == []
    assert peer.sent() == [Pubrec(8), Pubcomp(8)]
    assert len(peer.answer(Publish("a", b"y", 2, packet_id=8))) == 1


def test_a_new_session_forgets_what_was_received() -> None:
    peer = connected(session_expiry_s=60)
    peer.answer(Publish("a", b"x", 2, packet_id=8))
    peer.lose()
    peer.connect(session_present=False)
    assert len(peer.answer(Publish("a", b"y", 2, packet_id=8))) == 1


@pytest.mark.parametrize(
    ("version", "answer"),
    [(MQTT_5, Pubcomp(8, Reason.PACKET_IDENTIFIER_NOT_FOUND)), (MQTT_3_1_1, Pubcomp(8))],
)
def test_a_pubrel_for_nothing_is_answered(version: int, answer: Packet) -> None:
    peer = connected(version=version)
    peer.answer(Pubrel(8))
    assert peer.sent() == [answer]


# Acknowledgement by the application.


def test_nothing_is_acknowledged_before_the_application_does() -> None:
    peer = connected(manual_acknowledgement=True)
    first, second = received(
        peer.answer(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 2, packet_id=2))
    )
    assert peer.sent() == []
    peer.client.acknowledge(first)
    assert peer.sent() == [Puback(1)]
    peer.client.acknowledge(second)
    peer.client.acknowledge(second)
    assert peer.sent() == [Pubrec(2)]


def test_acknowledgements_leave_in_the_order_of_the_messages() -> None:
    """MQTT-4.6.0-2, whatever the order in which the application is done with them."""
    peer = connected(manual_acknowledgement=True)
    messages = received(peer.answer(*(Publish("a", qos=1, packet_id=number) for number in (5, 3, 4))))
    peer.client.acknowledge(messages[2])
    peer.client.acknowledge(messages[1])
    assert peer.sent() == []
    peer.client.acknowledge(messages[0])
    assert peer.sent() == [Puback(5), Puback(3), Puback(4)]


def test_qos_1_of_an_earlier_connection_is_delivered_again_and_acknowledged_then() -> None:
    peer = connected(manual_acknowledgement=True, session_expiry_s=60)
    (early,) = received(peer.answer(Publish("a", b"x", 1, packet_id=1)))
    peer.lose()
    peer.connect(session_present=True)
    peer.client.acknowledge(early)
    assert peer.sent() == []
    (late,) = received(peer.answer(Publish("a", b"x", 1, packet_id=1, dup=True)))
    assert peer.sent() == []
    peer.client.acknowledge(late)
    assert peer.sent() == [Puback(1)]


@pytest.mark.parametrize("acknowledged_while", ["connected", "away", "back"])
def test_qos_2_acknowledged_over_a_reconnection_is_delivered_once(acknowledged_while: str) -> None:
    peer = connected(manual_acknowledgement=True, session_expiry_s=60)
    (message,) = received(peer.answer(Publish("a", b"x", 2, packet_id=1)))
    if acknowledged_while == "connected":
        peer.client.acknowledge(message)
    peer.lose()
    if acknowledged_while == "away":
        peer.client.acknowledge(message)
    peer.connect(session_present=True)
    assert received(peer.answer(Publish("a", b"x", 2, packet_id=1, dup=True))) == []
    if acknowledged_while == "back":
        assert peer.sent() == []
        peer.client.acknowledge(message)
    assert peer.sent() == [Pubrec(1)]
    peer.answer(Pubrel(1))
    assert peer.sent() == [Pubcomp(1)]


def test_held_acknowledgements_leave_when_there_is_room_again() -> None:
    peer = connected()
    peer.client.hold_acknowledgements(True)
    assert len(peer.answer(Publish("a", qos=1, packet_id=1), Publish("a", qos=2, packet_id=2))) == 2
    assert peer.sent() == []
    peer.client.hold_acknowledgements(False)
    assert peer.sent() == [Puback(1), Pubrec(2)]
    peer.answer(Publish("a", qos=1, packet_id=3))
    assert peer.sent() == [Puback(3)]


def test_a_server_that_exceeds_our_receive_maximum_is_disconnected() -> None:
    peer = connected(manual_acknowledgement=True, receive_maximum=2)
    events = peer.answer(*(Publish("a", qos=1, packet_id=number) for number in (1, 2, 3)))
    assert isinstance(events[-1], Disconnected)
    assert peer.sent() == [Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)]


# Topic aliases.


def test_topic_aliases_that_we_offered_are_understood() -> None:
    peer = Peer(topic_alias_maximum=2)
    peer.connect()
    events = peer.answer(
        Publish("a/b", b"1", properties={"topic_alias": 2}),
        Publish("", b"2", properties={"topic_alias": 2}),
        Publish("c", b"3", properties={"topic_alias": 2}),
        Publish("", b"4", 1, packet_id=1, properties={"topic_alias": 2, "content_type": "x"}),
    )
    assert [(message.topic, message.payload) for message in received(events)] == [
        ("a/b", b"1"), ("a/b", b"2"), ("c", b"3"), ("c", b"4"),
    ]  # fmt: skip
    assert received(events)[3].properties == {"content_type": "x"}


@pytest.mark.parametrize(
    ("alias", "reason_code"), [(3, Reason.TOPIC_ALIAS_INVALID), (1, Reason.PROTOCOL_ERROR)]
)
def test_a_topic_alias_too_high_or_never_set_ends_the_connection(alias: int, reason_code: Reason) -> None:
    peer = connected(topic_alias_maximum=2)
    peer.answer(Publish("", properties={"topic_alias": alias}))
    assert peer.sent() == [Disconnect(reason_code)]


def test_topic_aliases_end_with_the_connection() -> None:
    peer = connected(topic_alias_maximum=2)
    peer.answer(Publish("a", properties={"topic_alias": 1}))
    peer.lose()
    peer.connect()
    peer.answer(Publish("", properties={"topic_alias": 1}))
    assert peer.sent() == [Disconnect(Reason.PROTOCOL_ERROR)]
