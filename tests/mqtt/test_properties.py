"""Every property in every packet: where it may stand, how often, and with which values."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt import properties
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.wire import encode_variable_byte_integer

WILL = properties.WILL
PLACES = range(16)

# Table 2-4 of MQTT 5, written down a second time: identifier → (name, an example on the wire, packets).
SPECIFICATION: dict[int, tuple[str, str, set[int]]] = {
    0x01: ("payload_format_indicator", "01", {PUBLISH, WILL}),
    0x02: ("message_expiry_interval", "00000001", {PUBLISH, WILL}),
    0x03: ("content_type", "0001 61", {PUBLISH, WILL}),
    0x08: ("response_topic", "0001 61", {PUBLISH, WILL}),
    0x09: ("correlation_data", "0001 ff", {PUBLISH, WILL}),
    0x0B: ("subscription_identifier", "8001", {PUBLISH, SUBSCRIBE}),
    0x11: ("session_expiry_interval", "ffffffff", {CONNECT, CONNACK, DISCONNECT}),
    0x12: ("assigned_client_identifier", "0001 61", {CONNACK}),
    0x13: ("server_keep_alive", "003c", {CONNACK}),
    0x15: ("authentication_method", "0001 61", {CONNECT, CONNACK, AUTH}),
    0x16: ("authentication_data", "0001 ff", {CONNECT, CONNACK, AUTH}),
    0x17: ("request_problem_information", "00", {CONNECT}),
    0x18: ("will_delay_interval", "00000001", {WILL}),
    0x19: ("request_response_information", "01", {CONNECT}),
    0x1A: ("response_information", "0001 61", {CONNACK}),
    0x1C: ("server_reference", "0001 61", {CONNACK, DISCONNECT}),
    0x1F: (
        "reason_string",
        "0001 61",
        {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH},
    ),
    0x21: ("receive_maximum", "0001", {CONNECT, CONNACK}),
    0x22: ("topic_alias_maximum", "0000", {CONNECT, CONNACK}),
    0x23: ("topic_alias", "0001", {PUBLISH}),
    0x24: ("maximum_qos", "01", {CONNACK}),
    0x25: ("retain_available", "01", {CONNACK}),
    0x26: (
        "user_property",
        "0001 61 0001 62",
        set(PLACES) - {PINGREQ, PINGRESP},
    ),
    0x27: ("maximum_packet_size", "00000001", {CONNECT, CONNACK}),
    0x28: ("wildcard_subscription_available", "00", {CONNACK}),
    0x29: ("subscription_identifier_available", "00", {CONNACK}),
    0x2A: ("shared_subscription_available", "00", {CONNACK}),
}

METHOD = bytes.fromhex("15 0001 6d")  # What authentication data may not be without.


def block(*encoded: bytes) -> bytes:
    """Properties with their length before them."""
    joined = b"".join(encoded)
    return encode_variable_byte_integer(len(joined)) + joined


def example(identifier: int) -> bytes:
    return bytes((identifier,)) + bytes.fromhex(SPECIFICATION[identifier][1])


def needed_with(identifier: int) -> bytes:
    return METHOD if SPECIFICATION[identifier][0] == "authentication_data" else b""


def refused(data: bytes, packet_type: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        properties.decode(data, 0, packet_type)
    return caught.value


def test_the_table_and_the_typed_dictionary_name_the_same_properties() -> None:
    names = {name for name, _, _ in SPECIFICATION.values()}
    assert {rule.name for rule in properties.TABLE} == names
    assert set(Properties.__annotations__) == names


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("identifier", SPECIFICATION)
def test_2_2_2_2_property_stands_only_where_it_may(identifier: int, place: int) -> None:
    name, _, places = SPECIFICATION[identifier]
    data = block(needed_with(identifier), example(identifier))
    if place not in places:
        error = refused(data, place)
        assert (error.reason_code, error.clause) == (Reason.MALFORMED_PACKET, "§2.2.2.2")
        return
    found, position = properties.decode(b"before" + data + b"after", len(b"before"), place)
    assert name in found
    assert position == len(b"before") + len(data)
    assert properties.encode(found, place) == data


def test_2_2_2_2_identifier_that_does_not_exist() -> None:
    for identifier in set(range(1_000)) - SPECIFICATION.keys():
        for place in PLACES:
            error = refused(block(encode_variable_byte_integer(identifier), b"\0"), place)
            assert (error.reason_code, error.clause) == (Reason.MALFORMED_PACKET, "§2.2.2.2")


@pytest.mark.parametrize(
    ("identifier", "place"),
    [(identifier, place) for identifier in SPECIFICATION for place in SPECIFICATION[identifier][2]],
)
def test_property_given_twice_is_a_protocol_error_unless_it_may_repeat(identifier: int, place: int) -> None:
    name = SPECIFICATION[identifier][0]
    data = block(needed_with(identifier), example(identifier) * 2)
    if name == "user_property" or (name == "subscription_identifier" and place == PUBLISH):
        found: dict[str, Any] = dict(properties.decode(data, 0, place)[0])
        assert len(found[name]) == 2
        return
    error = refused(data, place)
    assert error.reason_code == Reason.PROTOCOL_ERROR
    assert error.clause.startswith("§3.")


@pytest.mark.parametrize(
    ("data", "place", "reason_code", "clause"),
    [
        ("01 02", PUBLISH, Reason.PROTOCOL_ERROR, "§3.3.2.3.2"),
        ("01 02", WILL, Reason.PROTOCOL_ERROR, "§3.3.2.3.2"),
        ("17 02", CONNECT, Reason.PROTOCOL_ERROR, "§3.1.2.11.7"),
        ("19 ff", CONNECT, Reason.PROTOCOL_ERROR, "§3.1.2.11.6"),
        ("21 0000", CONNECT, Reason.PROTOCOL_ERROR, "§3.1.2.11.3"),
        ("21 0000", CONNACK, Reason.PROTOCOL_ERROR, "§3.1.2.11.3"),
        ("27 00000000", CONNECT, Reason.PROTOCOL_ERROR, "§3.1.2.11.4"),
        ("24 02", CONNACK, Reason.PROTOCOL_ERROR, "§3.2.2.3.4"),
        ("25 02", CONNACK, Reason.PROTOCOL_ERROR, "§3.2.2.3.5"),
        ("28 02", CONNACK, Reason.PROTOCOL_ERROR, "§3.2.2.3.11"),
        ("29 02", CONNACK, Reason.PROTOCOL_ERROR, "§3.2.2.3.12"),
        ("2a 02", CONNACK, Reason.PROTOCOL_ERROR, "§3.2.2.3.13"),
        ("0b 00", SUBSCRIBE, Reason.PROTOCOL_ERROR, "§3.8.2.1.2"),
        ("0b 00", PUBLISH, Reason.PROTOCOL_ERROR, "§3.8.2.1.2"),
        ("23 0000", PUBLISH, Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
        ("16 0001 ff", CONNECT, Reason.PROTOCOL_ERROR, "§3.1.2.11.10"),
        ("16 0001 ff", AUTH, Reason.PROTOCOL_ERROR, "§3.1.2.11.10"),
        ("08 0003 612f2b", PUBLISH, Reason.MALFORMED_PACKET, "MQTT-3.3.2-14"),
        ("08 0001 23", WILL, Reason.MALFORMED_PACKET, "MQTT-3.3.2-14"),
        ("03 0001 ff", PUBLISH, Reason.MALFORMED_PACKET, "MQTT-1.5.4-1"),
        ("1f 0001 00", PUBACK, Reason.MALFORMED_PACKET, "MQTT-1.5.4-2"),
        ("26 0001 61 0001 00", CONNECT, Reason.MALFORMED_PACKET, "MQTT-1.5.4-2"),
        ("0b 8000", SUBSCRIBE, Reason.MALFORMED_PACKET, "MQTT-1.5.5-1"),
        ("8b00 01", SUBSCRIBE, Reason.MALFORMED_PACKET, "MQTT-1.5.5-1"),
    ],
)
def test_value_that_the_specification_forbids(
    data: str, place: int, reason_code: Reason, clause: str
) -> None:
    error = refused(block(bytes.fromhex(data)), place)
    assert (Reason(error.reason_code), error.clause) == (reason_code, clause)


@pytest.mark.parametrize("identifier", SPECIFICATION)
def test_property_cut_at_every_byte_is_malformed(identifier: int) -> None:
    """Both when the packet ends too early, and when the length of the properties says so."""
    place = min(SPECIFICATION[identifier][2])
    whole = needed_with(identifier) + example(identifier)
    for size in range(len(needed_with(identifier)) + 1, len(whole)):
        assert refused(block(whole)[: 1 + size], place).reason_code == Reason.MALFORMED_PACKET
        within = block(whole[:size]) + whole[size:]
        assert refused(within, place).reason_code == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("data", "clause"), [(b"", "§2.1.4"), (b"\x80\x00", "MQTT-1.5.5-1"), (b"\xff\xff\xff\xff\x01", "§1.5.5")]
)
def test_length_of_the_properties_is_malformed(data: bytes, clause: str) -> None:
    error = refused(data, PUBLISH)
    assert (error.reason_code, error.clause) == (Reason.MALFORMED_PACKET, clause)


def test_mqtt_2_2_2_1_no_properties_are_a_length_of_zero() -> None:
    assert properties.encode({}, PUBLISH) == b"\0"
    assert properties.decode(b"\0rest", 0, PUBLISH) == ({}, 1)


def test_mqtt_3_3_2_18_user_properties_keep_their_order_and_repetition() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"), ("", ""))
    encoded = properties.encode({"user_property": pairs}, PUBLISH)
    assert properties.decode(encoded, 0, PUBLISH) == ({"user_property": pairs}, len(encoded))


def test_number_of_repetitions_in_one_packet_is_bounded() -> None:
    one = bytes.fromhex("26 0000 0000")
    most = (
        properties.MAX_REPETITIONS + properties.OWN_REPETITIONS
    )  # What clients may send is for the machine.
    found, _ = properties.decode(block(one * most), 0, PUBLISH)
    assert len(found["user_property"]) == most
    error = refused(block(one * (most + 1)), PUBLISH)
    assert error.reason_code == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({"colour": "green"}, PUBLISH),
        ({"topic_alias": 1}, CONNECT),
        ({"topic_alias": 0}, PUBLISH),
        ({"topic_alias": 65_536}, PUBLISH),
        ({"receive_maximum": 0}, CONNECT),
        ({"maximum_qos": 2}, CONNACK),
        ({"content_type": "\0"}, PUBLISH),
        ({"content_type": "x" * 65_536}, PUBLISH),
        ({"response_topic": "a/#"}, PUBLISH),
        ({"authentication_data": b""}, AUTH),
        ({"subscription_identifier": (1, 2)}, SUBSCRIBE),
        ({"subscription_identifier": (0,)}, PUBLISH),
        ({"subscription_identifier": (268_435_456,)}, PUBLISH),
        ({"user_property": (("a", "b"),)}, PINGREQ),
    ],
)
def test_our_own_mistake_raises_at_once(found: Properties, place: int) -> None:
    with pytest.raises(ValueError):
        properties.encode(found, place)
