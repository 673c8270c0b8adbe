"""The client's sending half: encoding, QoS 1 and 2, flow control, and what a reconnection sends again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import RefusedError, TopicError
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.events import Published
from hedgerow.mqtt.client.sender import MAX_QOS_2_MQTT_3, PublishEncoder
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hedgerow.mqtt.reasons import Reason
from tests.mqtt.client.peer import NOW, Peer, connected
from tests.packets import read_packets


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


# Encoding.


@pytest.mark.parametrize(
    ("version", "message", "expected"),
    [
        (MQTT_5, Message("a/b", b"x"), "30 07 0003 612f62 00 78"),
        (MQTT_3_1_1, Message("a/b", b"x"), "30 06 0003 612f62 78"),
        (MQTT_5, Message("a/b", b"x", 1, True), "33 09 0003 612f62 0001 00 78"),
        (MQTT_3_1_1, Message("a/b", b"", 2), "34 07 0003 612f62 0001"),
        (MQTT_5, Message("a", b"", properties={"payload_format_indicator": 1}), "30 06 0001 61 02 0101"),
        (MQTT_3_1_1, Message("a", b"", properties={"payload_format_indicator": 1}), "30 03 0001 61"),
    ],
)
def test_publish_is_these_bytes_at_first_and_later(version: int, message: Message, expected: str) -> None:
    encoder = PublishEncoder(version)
    for _ in range(3):  # the first through the codec, those after it on the short path
        assert encoder.encode(message, NOW, message.qos and 1) == bytes.fromhex(expected)


@given(
    st.sampled_from([MQTT_3_1_1, MQTT_5]),
    st.integers(0, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["t", "long/topic", "ä/β", "a/b/c/d", "temperature", "x" * 200]),
            st.binary(max_size=300),
            st.integers(0, 2),
            st.booleans(),
            st.booleans(),
            st.sampled_from([{}, {"content_type": "text"}]),
        ),
        max_size=30,
    ),
)
def test_whatever_path_the_encoder_takes_the_server_reads_the_message(
    version: int,
    alias_maximum: int,
    messages: list[tuple[str, bytes, int, bool, bool, Properties]],
) -> None:
    encoder = PublishEncoder(version, alias_maximum if version == MQTT_5 else 0)
    aliases: dict[int, str] = {}
    for number, (topic, payload, qos, retain, dup, properties) in enumerate(messages, 1):
        message = Message(topic, payload, qos, retain, properties)
        data = encoder.encode(message, NOW, qos and number, dup and qos > 0)
        (packet,) = read_packets(data, version)
        assert isinstance(packet, Publish)
        alias = packet.properties.pop("topic_alias", None)
        if alias is not None:
            assert 1 <= alias <= alias_maximum
            packet.topic = aliases.setdefault(alias, packet.topic) if not packet.topic else packet.topic
            aliases[alias] = packet.topic
        expected = Publish(topic, payload, qos, retain, dup and qos > 0, qos and number)
        expected.properties = properties if version == MQTT_5 else {}
        assert packet == expected


def test_topic_aliases_begin_with_the_second_use_and_end_with_the_connection() -> None:
    peer = connected({"topic_alias_maximum": 1}, session_expiry_s=60)
    for _ in range(3):
        peer.publish("farm/field", b"x")
        peer.publish("farm/house", b"y")
    topics = [
        (packet.topic, packet.properties.get("topic_alias"))
        for packet in peer.sent()
        if isinstance(packet, Publish)
    ]
    assert topics == [
        ("farm/field", None), ("farm/house", None),
        ("farm/field", 1), ("farm/house", None),
        ("", 1), ("farm/house", None),
    ]  # fmt: skip
    peer.lose()
    peer.connect(session_present=True, properties={"topic_alias_maximum": 1})
    peer.publish("farm/field", b"x")
    (packet,) = peer.sent()
    assert isinstance(packet, Publish)
    assert packet.topic == "farm/field"


def test_an_alias_does_not_push_a_packet_over_the_servers_maximum() -> None:
    message = Message("farm/field", b"x" * 20)
    size = len(codec.encode(Publish(message.topic, message.payload), MQTT_5))
    encoder = PublishEncoder(MQTT_5, topic_alias_maximum=5, maximum_packet_size=size)
    assert all(len(encoder.encode(message, NOW)) <= size for _ in range(3))


def test_the_time_that_a_message_waited_counts_against_its_expiry() -> None:
    peer = connected(session_expiry_s=60)
    peer.lose()
    peer.publish("a", qos=1, properties={"message_expiry_interval": 100})
    peer.now += 40
    peer.connect()
    (packet,) = peer.sent()
    assert isinstance(packet, Publish)
    assert packet.properties == {"message_expiry_interval": 60}
    peer.lose()
    peer.now += 1_000
    peer.connect(session_present=True)
    (packet,) = peer.sent()
    assert isinstance(packet, Publish)
    assert packet.properties == {"message_expiry_interval": 1}


# QoS 1 and 2.


def test_qos_1() -> None:
    peer = connected()
    handle = peer.publish("a", b"x", qos=1)
    assert peer.sent() == [Publish("a", b"x", 1, packet_id=1)]
    assert peer.client.unanswered
    assert peer.answer(Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)) == [Published(handle, 0x10)]
    assert not peer.client.unanswered
    assert peer.answer(Puback(1)) == []  # twice is once


def test_qos_2() -> None:
    peer = connected()
    handle = peer.publish("a", b"x", qos=2)
    assert peer.sent() == [Publish("a", b"x", 2, packet_id=1)]
    assert peer.answer(Pubrec(1)) == []
    assert peer.sent() == [Pubrel(1)]
    assert peer.answer(Pubrec(1)) == []  # the server did not see the PUBREL
    assert peer.sent() == [Pubrel(1)]
    assert peer.answer(Pubcomp(1)) == [Published(handle)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refusal_is_reported_with_its_reason(qos: int) -> None:
    peer = connected()
    handle = peer.publish("a", qos=qos)
    peer.sent()
    acknowledgement = (Puback if qos == 1 else Pubrec)(1, Reason.NOT_AUTHORIZED, {"reason_string": "no"})
    assert peer.answer(acknowledgement) == [Published(handle, Reason.NOT_AUTHORIZED, "no")]
    assert peer.sent() == []


def test_a_pubrec_for_nothing_is_told_so() -> None:
    peer = connected()
    assert peer.answer(Pubrec(7)) == []
    assert peer.sent() == [Pubrel(7, Reason.PACKET_IDENTIFIER_NOT_FOUND)]


def test_the_receive_maximum_is_kept_and_the_order_too() -> None:
    peer = connected({"receive_maximum": 3})
    for number in range(7):
        peer.publish("a", b"%d" % number, qos=1 + number % 2)
    sent = peer.sent()
    assert payloads(sent) == [b"0", b"1", b"2"]
    peer.answer(Puback(1), Pubrec(2))  # QoS 2 takes its place until PUBCOMP
    assert payloads(peer.sent()) == [b"3"]
    peer.answer(Pubcomp(2), Puback(3))
    assert payloads(peer.sent()) == [b"4", b"5"]


def test_thousands_may_be_in_flight() -> None:
    peer = connected()
    for _ in range(60_000):
        peer.publish("a", qos=1)
    assert len(peer.sent()) == 60_000
    events = peer.answer(*(Puback(number) for number in range(1, 60_001)))
    assert len(events) == 60_000


def test_mqtt_3_holds_back_qos_2_alone() -> None:
    peer = connected(version=MQTT_3_1_1)
    for _ in range(100):
        peer.publish("a", qos=1)
    assert len(peer.sent()) == 100
    peer.answer(*(Puback(number) for number in range(1, 101)))
    for _ in range(100):
        peer.publish("a", qos=2)
    assert len(peer.sent()) == MAX_QOS_2_MQTT_3


# What the server does not take.


@pytest.mark.parametrize(
    ("offer", "message", "reason_code"),
    [
        ({"maximum_qos": 1}, Message("a", qos=2, payload=b""), Reason.QOS_NOT_SUPPORTED),
        ({"maximum_qos": 0}, Message("a", qos=1, payload=b""), Reason.QOS_NOT_SUPPORTED),
        ({"retain_available": 0}, Message("a", b"", 1, retain=True), Reason.RETAIN_NOT_SUPPORTED),
        ({"maximum_packet_size": 50}, Message("a", b"x" * 50, 1), Reason.PACKET_TOO_LARGE),
        (
            {"maximum_packet_size": 50},
            Message("a", b"", 1, properties={"content_type": "x" * 50}),
            Reason.PACKET_TOO_LARGE,
        ),
    ],
)
def test_what_the_server_does_not_take_is_not_sent(
    offer: Properties, message: Message, reason_code: Reason
) -> None:
    peer = connected(offer)
    with pytest.raises(RefusedError) as caught:
        peer.client.publish(message, NOW)
    assert caught.value.reason_code == reason_code
    assert peer.sent() == []
    assert not peer.client.unanswered

    waiting = Peer()
    handle = waiting.client.publish(message, NOW)
    _, event = waiting.connect(properties=offer)
    assert isinstance(event, Published)
    assert (event.handle, event.reason_code) == (handle, reason_code)
    assert waiting.sent() == []


def test_a_packet_of_just_the_servers_maximum_is_sent() -> None:
    size = len(codec.encode(Publish("a", b"x" * 40, 1, packet_id=1), MQTT_5))
    peer = connected({"maximum_packet_size": size})
    peer.publish("a", b"x" * 40, qos=1)
    assert payloads(peer.sent()) == [b"x" * 40]
    with pytest.raises(RefusedError):
        peer.publish("a", b"x" * 41, qos=1)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("a/#", b"", 1), TopicError),
        (("", b"", 1), TopicError),
        (("a", b"", 3), ValueError),
        (("a", b"", 1, False, {"topic_alias": 1}), ValueError),
        (("a", b"", 1, False, {"message_expiry_interval": -1}), ValueError),
        (("a", "text", 1), TypeError),
    ],
)
def test_misuse_raises_at_once(given: tuple[Any, ...], error: type[Exception], online: bool) -> None:
    peer = connected() if online else Peer()
    with pytest.raises(error):
        peer.client.publish(Message(*given), NOW)
    assert not peer.client.unanswered


# Reconnection.


def test_with_the_session_everything_in_flight_is_sent_again_in_order_with_dup() -> None:
    peer = connected(session_expiry_s=60)
    for number in range(4):
        peer.publish("a", b"%d" % number, qos=1 if number < 2 else 2)
    peer.sent()
    peer.answer(Pubrec(3), Puback(1))
    peer.sent()
    peer.lose()
    handle = peer.publish("a", b"later", qos=1)
    peer.connect(session_present=True)
    assert peer.sent() == [
        Publish("a", b"1", 1, dup=True, packet_id=2),
        Publish("a", b"3", 2, dup=True, packet_id=4),
        Pubrel(3),
        Publish("a", b"later", 1, packet_id=5),
    ]
    assert peer.answer(Puback(5)) == [Published(handle)]


def test_without_the_session_what_was_not_acknowledged_is_sent_as_new() -> None:
    peer = connected(session_expiry_s=60)
    handles = [peer.publish("a", b"%d" % number, qos=1 + number % 2) for number in range(4)]
    peer.sent()
    peer.answer(Pubrec(2))
    peer.sent()
    peer.lose()
    _, lost = peer.connect(session_present=False)
    # MQTT-4.3.3-6: after PUBREC the PUBLISH must not be sent again, so its outcome is not known.
    assert isinstance(lost, Published)
    assert (lost.handle, lost.reason_code) == (handles[1], Reason.UNSPECIFIED_ERROR)
    sent = peer.sent()
    assert payloads(sent) == [b"0", b"2", b"3"]
    assert not any(packet.dup for packet in sent if isinstance(packet, Publish))
    assert peer.client.unacknowledged == 3


def test_sending_again_keeps_a_smaller_receive_maximum() -> None:
    peer = connected({"receive_maximum": 10}, session_expiry_s=60)
    for number in range(6):
        peer.publish("a", b"%d" % number, qos=1)
    peer.lose()
    peer.connect(session_present=True, properties={"receive_maximum": 2})
    assert payloads(peer.sent()) == [b"0", b"1"]
    peer.answer(Puback(1))
    assert payloads(peer.sent()) == [b"2"]
    peer.publish("a", b"new", qos=1)
    assert peer.sent() == []
    for packet_id in range(2, 7):
        peer.answer(Puback(packet_id))
    assert payloads(peer.sent()) == [b"3", b"4", b"5", b"new"]


def test_pubcomp_not_found_after_a_reconnection_means_that_the_server_had_finished() -> None:
    peer = connected(session_expiry_s=60)
    handle = peer.publish("a", qos=2)
    peer.answer(Pubrec(1))
    peer.lose()
    peer.connect(session_present=True)
    assert peer.answer(Pubcomp(1, Reason.PACKET_IDENTIFIER_NOT_FOUND)) == [Published(handle)]


class ModelServer:
    """A server that keeps its session and takes each message once, whatever the link does."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.unreleased: set[int] = set()

    def receive(self, packet: Packet) -> Packet | None:
        match packet:
            case Publish(qos=1):
                self.taken.append((1, packet.payload))
                return Puback(packet.packet_id)
            case Publish(qos=2):
                if packet.packet_id not in self.unreleased:
                    self.unreleased.add(packet.packet_id)
                    self.taken.append((2, packet.payload))
                return Pubrec(packet.packet_id)
            case Pubrel():
                found = packet.packet_id in self.unreleased
                self.unreleased.discard(packet.packet_id)
                return Pubcomp(packet.packet_id, 0 if found else Reason.PACKET_IDENTIFIER_NOT_FOUND)
        return None


@given(
    st.lists(st.sampled_from([1, 2]), min_size=1, max_size=25),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8),
    st.sampled_from([1, 3, 100]),
)
def test_whatever_the_link_loses_qos_1_arrives_and_qos_2_arrives_once(
    levels: list[int], losses: list[tuple[int, int]], window: int
) -> None:
    """Each connection carries some packets to the server and some answers back, then is cut."""
    server, peer = ModelServer(), Peer(session_expiry_s=60)
    over: list[int] = []
    handles = [peer.publish("a", b"%d" % number, qos=qos) for number, qos in enumerate(levels)]
    for number, (there, back) in enumerate([*losses, (10_000, 10_000)]):
        events = peer.connect(session_present=number > 0, properties={"receive_maximum": window})
        while sent := peer.sent():
            answers = [server.receive(packet) for packet in sent[:there]]
            there -= len(sent)
            arriving = [answer for answer in answers if answer is not None][: max(back, 0)]
            back -= len(arriving)
            events += peer.answer(*arriving)
            if there <= 0:
                break
        over += [event.handle for event in events if isinstance(event, Published)]
        peer.lose()
    assert sorted(over) == handles
    wanted = [(qos, b"%d" % number) for number, qos in enumerate(levels)]
    assert [entry for entry in server.taken if entry[0] == 2] == [entry for entry in wanted if entry[0] == 2]
    first_arrivals = list(dict.fromkeys(entry for entry in server.taken if entry[0] == 1))
    assert first_arrivals == [entry for entry in wanted if entry[0] == 1]
