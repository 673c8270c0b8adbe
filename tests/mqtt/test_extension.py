"""The extension byte for byte, what it refuses, and that its packets exist on its own connections alone."""

from __future__ import annotations

import pytest

from hedgerow.errors import ProtocolError
from hedgerow.mqtt import codec
from hedgerow.mqtt.extension import MAX_ACTIVE_TOPICS, MAX_CALLBACKS, Renewal, parse_address
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    Connack,
    Connect,
    Packet,
    Pubcallback,
    Publish,
    Renew,
)
from hedgerow.mqtt.reasons import Reason
from tests.packets import read_packet

EXTENDED = MQTT_EXTENDED
STANDARD = (MQTT_3_1, MQTT_3_1_1, MQTT_5)

WIRE: list[tuple[Packet, str]] = [
    (Connect("id", EXTENDED, keep_alive=10), "10 10 0006 4d5149736470 ff 02 000a 0002 6964"),
    (Connack(session_present=True), "20 02 01 00"),
    (Connack(reason_code=Reason.NOT_AUTHORIZED), "20 02 00 05"),
    (Renew(Renewal.CONNECTION, "10.0.0.7:1883"), "20 11 00 06 000d 31302e302e302e373a31383833"),
    (Renew(Renewal.CONNECTION, "b:1", session_present=True), "20 07 01 06 0003 623a31"),
    (Renew(Renewal.ACTIVE_TOPICS), "20 04 00 07 0000"),
    (Renew(Renewal.ACTIVE_TOPICS, "b:1", ["a", "c/#"]), "20 0f 00 07 0003 623a31 0001 61 0003 632f23"),
    (Renew(Renewal.RENEW_TOPICS, "[::1]:1"), "20 0b 00 08 0007 5b3a3a315d3a31"),
    (
        Pubcallback("t", b"hi", callbacks=("cb1", "cb2")),
        "00 12 0009 7b636231226362327d 0000 0001 74 6869",
    ),
    (
        Pubcallback("t", b"x", 1, True, True, 0x1234, (), "n/1/2"),
        "0b 11 0002 7b7d 0005 6e2f312f32 0001 74 1234 78",
    ),
]


@pytest.mark.parametrize(("packet", "data"), WIRE)
def test_bytes(packet: Packet, data: str) -> None:
    encoded = codec.encode(packet, EXTENDED)
    assert encoded == bytes.fromhex(data)
    assert read_packet(encoded, EXTENDED) == packet


def test_without_what_precedes_it_the_body_of_a_pubcallback_is_that_of_a_publish() -> None:
    packet = Pubcallback("t", b"payload", 2, False, False, 7, ("one", "two"), "n/1/2")
    encoded = codec.encode(packet, EXTENDED)
    before = 2 + 2 + len('{one"two}') + 2 + len("n/1/2")
    assert codec.decode(encoded[0] | 0x30, encoded[before:], EXTENDED) == Publish(
        "t", b"payload", 2, False, False, 7
    )


@pytest.mark.parametrize("version", STANDARD)
@pytest.mark.parametrize("packet", [Renew(Renewal.RENEW_TOPICS, "b:1"), Pubcallback("t")])
def test_other_connections_neither_write_nor_read_it(packet: Packet, version: int) -> None:
    with pytest.raises(ValueError, match="extension"):
        codec.encode(packet, version)
    encoded = codec.encode(packet, EXTENDED)
    with pytest.raises(ProtocolError):
        codec.decode(encoded[0], encoded[2:], version)


REFUSALS = [
    ("no address", 0x20, "00 06 0000"),
    ("no address", 0x20, "00 08 0000"),
    ("no payload", 0x20, "00 07"),
    ("a scheme", 0x20, "00 08 000a 6d7174743a2f2f623a31"),
    ("a space", 0x20, "00 08 0005 6120623a31"),
    ("port 0", 0x20, "00 08 0003 623a30"),
    ("topics with code 8", 0x20, "00 08 0003 623a31 0001 61"),
    ("an empty topic", 0x20, "00 07 0000 0000"),
    ("session present with code 7", 0x20, "01 07 0000"),
    ("code 9", 0x20, "00 09 0003 623a31"),
    ("flags of CONNACK", 0x21, "00 07 0000"),
    ("no callbacks", 0x00, ""),
    ("callbacks without braces", 0x00, "0000 0000 0001 74"),
    ("one brace for both", 0x00, "0001 7b 0000 0001 74"),
    ("an empty callback", 0x00, "0003 7b227d 0000 0001 74"),
    ("a brace in a callback", 0x00, "0004 7b617b7d 0000 0001 74"),
    ("a callback twice", 0x00, "0005 7b6122617d 0000 0001 74"),
    ("QoS 3", 0x06, "0002 7b7d 0000 0001 74 0001"),
    ("DUP with QoS 0", 0x08, "0002 7b7d 0000 0001 74"),
    ("a wildcard", 0x00, "0002 7b7d 0000 0001 23"),
    ("packet identifier 0", 0x02, "0002 7b7d 0000 0001 74 0000"),
]


@pytest.mark.parametrize(("what", "first", "body"), REFUSALS)
def test_refusals(what: str, first: int, body: str) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(first, bytes.fromhex(body), EXTENDED)


def test_a_packet_names_a_bounded_number_of_callbacks_and_topics() -> None:
    many = tuple(f"{number:x}" for number in range(MAX_CALLBACKS))
    assert codec.encode(Pubcallback("t", callbacks=many), EXTENDED)
    with pytest.raises(ValueError, match="over"):
        codec.encode(Pubcallback("t", callbacks=(*many, "more")), EXTENDED)
    text = "{" + '"'.join((*many, "more")) + "}"
    body = len(text).to_bytes(2, "big") + text.encode() + b"\0\0\0\1t"
    with pytest.raises(ProtocolError, match="over"):
        codec.decode(0, body, EXTENDED)
    body = bytes.fromhex("00 07 0000") + b"\0\1a" * (MAX_ACTIVE_TOPICS + 1)
    with pytest.raises(ProtocolError, match="over"):
        codec.decode(0x20, body, EXTENDED)


@pytest.mark.parametrize("byte", [0xFE, 0x7F, 0x02, 0x00])
def test_no_other_byte_is_taken_for_the_extension(byte: int) -> None:
    body = bytes.fromhex("0006 4d5149736470") + bytes((byte,)) + bytes.fromhex("02 000a 0002 6964")
    with pytest.raises(ProtocolError) as refused:
        codec.decode(0x10, body, EXTENDED)
    assert refused.value.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("[fe80::1]:8883", ("fe80::1", 8883)),
        ("broker.example:65535", ("broker.example", 65_535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "host", "host:", ":1883", "host:0", "host:65536", "host:1883/path", "user@host:1883", "a b:1",
        "mqtt://host:1883", "[::1:1", "[::g]:1", "::1:1", "host:１", "-h:1", "host\n:1", "host:1\n",
        "h" * 254 + ":1",
    ],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)
