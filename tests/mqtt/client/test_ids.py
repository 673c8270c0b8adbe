"""Publications with ids: what the short paths write and read is what the codec would."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.message import MAX_NUMBER, Message, MessageId, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.events import Event, MessageReceived
from hedgerow.mqtt.client.receiver import IdentifyingDecoder, PublishDecoder
from hedgerow.mqtt.client.sender import IdentifyingEncoder
from hedgerow.mqtt.ids import ID_PROPERTY
from hedgerow.mqtt.packets import MQTT_5, Puback, Publish
from tests.mqtt.client.peer import connected

numbers = st.integers(0, MAX_NUMBER)
origins = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=256)
ids = st.builds(MessageId, origins, numbers, numbers)
payloads = st.binary(max_size=300)


def body_of(packet: bytes) -> int:
    header = codec.read_header(packet, 0)
    assert header is not None
    return header[0]


def decode(decoder: PublishDecoder, packet: bytes) -> Message:
    return decoder.decode(packet[0], packet, body_of(packet), len(packet), 100.0)


@given(ids, payloads, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 3))
def test_what_is_written_is_read(
    message_id: MessageId, payload: bytes, qos: int, retain: bool, dup: bool, aliases: int
) -> None:
    encoder, decoder = IdentifyingEncoder(MQTT_5, aliases), IdentifyingDecoder(MQTT_5, aliases)
    message = Message("farm/barn", payload, qos, retain, id=message_id)
    packet_id = 513 if qos else 0
    dup = dup and qos > 0
    for _ in range(3):  # by the codec; with a new alias, if there are some; by the short path
        packet = encoder.encode(message, 0.0, packet_id, dup)
        body = body_of(packet)
        found = codec.decode(packet[0], packet[body:], MQTT_5)
        assert isinstance(found, Publish)
        assert (found.payload, found.qos, found.retain) == (payload, qos, retain)
        assert (found.packet_id, found.dup) == (packet_id, dup)
        assert found.properties["user_property"] == ((ID_PROPERTY, str(message_id)),)
        read = decode(decoder, packet)
        assert read.id == message_id
        assert (read.topic, read.payload, read.qos, read.retain) == ("farm/barn", payload, qos, retain)
        assert read.properties == {}


@given(st.binary(max_size=80), payloads)
def test_whatever_stands_in_the_place_of_an_id_both_ways_read_the_same(value: bytes, payload: bytes) -> None:
    """The short path takes nothing for an id that is none, and nothing of the payload for the id."""
    text = value.decode("utf-8", "ignore").replace("\0", "")
    packet = Publish("a", payload, properties={"user_property": ((ID_PROPERTY, text),)})
    encoded = codec.encode(packet, MQTT_5)
    seen = IdentifyingDecoder(MQTT_5)
    decode(
        seen, codec.encode(Publish("a", b""), MQTT_5)
    )  # Now the topic is known, which the short path needs.
    read, slowly = decode(seen, encoded), decode(IdentifyingDecoder(MQTT_5), encoded)
    assert (read.id, read.payload, read.properties) == (slowly.id, slowly.payload, slowly.properties)


@given(st.binary(max_size=60), st.sampled_from([0x30, 0x31, 0x32, 0x34, 0x3A, 0x36, 0x38]))
def test_bytes_that_are_no_publication_are_refused_as_ever(body: bytes, first_byte: int) -> None:
    def outcome(decoder: PublishDecoder) -> object:
        try:
            message = decoder.decode(first_byte, body, 0, len(body), 0.0)
        except Exception as error:
            return type(error)
        return message.topic, message.payload, message.qos

    assert outcome(IdentifyingDecoder(MQTT_5)) == outcome(PublishDecoder(MQTT_5))


def test_numbers_written_in_another_way_are_no_ids() -> None:
    decoder = IdentifyingDecoder(MQTT_5)
    for text, is_id in (
        ("n/1/5", True),
        ("n/1/6", True),
        ("n/1/07", False),
        ("n/1/0", True),
        ("n/1/+8", False),
    ):
        packet = Publish("a", b"", properties={"user_property": ((ID_PROPERTY, text),)})
        message = decode(decoder, codec.encode(packet, MQTT_5))
        assert (message.id is not None) is is_id, text
        assert not cast(dict[str, object], message.properties)


def copy(
    payload: bytes, packet_id: int, dup: bool = False, retain: bool = False, sequence: int = 1
) -> Publish:
    properties: Properties = {"user_property": ((ID_PROPERTY, f"barn/7/{sequence}"),)}
    return Publish("farm", payload, 1, retain, dup, packet_id, properties)


def heard(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events if isinstance(event, MessageReceived)]


@pytest.mark.parametrize("dup", [False, True])
def test_what_comes_again_after_a_crash_of_the_server_is_dropped_by_its_id(dup: bool) -> None:
    peer = connected(origin="farmer", clean_start=False)
    assert heard(peer.answer(copy(b"1", 5))) == [b"1"]
    peer.lose()
    peer.connect(session_present=True)
    # Killed before it wrote down that it had sent it, the server calls it no copy.
    assert heard(peer.answer(copy(b"1", 9, dup))) == []
    assert heard(peer.answer(copy(b"2", 10, sequence=2))) == [b"2"]
    acknowledged = [packet.packet_id for packet in peer.sent() if isinstance(packet, Puback)]
    assert acknowledged[-2:] == [9, 10]


def test_what_was_not_acknowledged_by_hand_comes_again() -> None:
    peer = connected(origin="farmer", clean_start=False, manual_acknowledgement=True)
    assert heard(peer.answer(copy(b"1", 5))) == [b"1"]
    peer.lose()
    peer.connect(session_present=True)
    assert heard(peer.answer(copy(b"1", 5, dup=True))) == [b"1"]


def test_two_subscriptions_that_overlap_get_a_message_each() -> None:
    peer = connected(origin="farmer", clean_start=False)
    assert heard(peer.answer(copy(b"1", 5), copy(b"1", 6))) == [b"1", b"1"]
    assert heard(peer.answer(copy(b"1", 6, dup=True))) == []
