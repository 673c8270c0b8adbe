"""The data types of §1.5, each at its borders, cut short, and in the ways that it must not be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import ProtocolError
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.wire import (
    Reader,
    encode_binary_data,
    encode_byte,
    encode_four_byte_integer,
    encode_two_byte_integer,
    encode_utf8_string,
    encode_utf8_string_pair,
    encode_variable_byte_integer,
)

Read = Callable[[Reader], Any]
Write = Callable[[Any], bytes]

# (how to read it, how to write it, value, bytes)
VALUES: list[tuple[Read, Write, Any, bytes]] = [
    (Reader.byte, encode_byte, 0, b"\0"),
    (Reader.byte, encode_byte, 255, b"\xff"),
    (Reader.two_byte_integer, encode_two_byte_integer, 0x1234, b"\x12\x34"),
    (Reader.four_byte_integer, encode_four_byte_integer, 0x12345678, b"\x12\x34\x56\x78"),
    (Reader.four_byte_integer, encode_four_byte_integer, 4_294_967_295, b"\xff\xff\xff\xff"),
    (Reader.variable_byte_integer, encode_variable_byte_integer, 0, b"\0"),
    (Reader.variable_byte_integer, encode_variable_byte_integer, 128, b"\x80\x01"),
    (Reader.variable_byte_integer, encode_variable_byte_integer, 268_435_455, b"\xff\xff\xff\x7f"),
    (Reader.binary_data, encode_binary_data, b"", b"\0\0"),
    (Reader.binary_data, encode_binary_data, b"\0\xff", b"\0\x02\0\xff"),
    (Reader.utf8_string, encode_utf8_string, "", b"\0\0"),
    (Reader.utf8_string, encode_utf8_string, "x" * 65_535, b"\xff\xff" + b"x" * 65_535),
    (Reader.utf8_string, encode_utf8_string, "A\U0002a6d4", b"\0\x05A\xf0\xaa\x9b\x94"),
    (Reader.utf8_string_pair, encode_utf8_string_pair, ("a", "ü"), b"\0\x01a\0\x02\xc3\xbc"),
]


@pytest.mark.parametrize(("read", "write", "value", "data"), VALUES)
def test_value_is_written_and_read(read: Read, write: Write, value: Any, data: bytes) -> None:
    assert write(value) == data
    reader = Reader(b"before" + data + b"after", len(b"before"))
    assert read(reader) == value
    assert reader.rest() == b"after"


@pytest.mark.parametrize(("read", "write", "value", "data"), VALUES)
def test_value_cut_at_every_byte_is_malformed(read: Read, write: Write, value: Any, data: bytes) -> None:
    for size in {*range(min(len(data), 8)), len(data) - 1}:
        for reader in (Reader(data[:size]), Reader(data, 0, size)):
            with pytest.raises(ProtocolError) as caught:
                read(reader)
            assert caught.value.reason_code == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"\x80\x00", "MQTT-1.5.5-1"),
        (b"\xff\xff\xff\x00", "MQTT-1.5.5-1"),
        (b"\xff\xff\xff\x80\x01", "§1.5.5"),
        (b"\xff\xff\xff\xff", "§1.5.5"),
    ],
)
def test_variable_byte_integer_written_wrongly(data: bytes, clause: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Reader(data).variable_byte_integer()
    assert (caught.value.reason_code, caught.value.clause) == (Reason.MALFORMED_PACKET, clause)


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"\0\x01\x80", "MQTT-1.5.4-1"),
        (b"\0\x02\xc0\x80", "MQTT-1.5.4-1"),
        (b"\0\x03\xed\xa0\x80", "MQTT-1.5.4-1"),
        (b"\0\x03\xed\xbf\xbf", "MQTT-1.5.4-1"),
        (b"\0\x04\xf4\x90\x80\x80", "MQTT-1.5.4-1"),
        (b"\0\x03a\0b", "MQTT-1.5.4-2"),
    ],
)
def test_mqtt_1_5_7_1_both_strings_of_a_pair_obey_the_rules_of_strings(data: bytes, clause: str) -> None:
    good = b"\0\x01a"
    for pair in (data + good, good + data):
        with pytest.raises(ProtocolError) as caught:
            Reader(pair).utf8_string_pair()
        assert (caught.value.reason_code, caught.value.clause) == (Reason.MALFORMED_PACKET, clause)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (encode_byte, -1),
        (encode_byte, 256),
        (encode_two_byte_integer, 65_536),
        (encode_four_byte_integer, 4_294_967_296),
        (encode_variable_byte_integer, -1),
        (encode_variable_byte_integer, 268_435_456),
        (encode_binary_data, bytes(65_536)),
        (encode_utf8_string, "x" * 65_536),
        (encode_utf8_string, "ü" * 32_768),
        (encode_utf8_string, "a\0"),
        (encode_utf8_string, "\udfff"),
        (encode_utf8_string_pair, ("a", "\0")),
    ],
)
def test_our_own_mistake_raises_at_once(write: Write, value: Any) -> None:
    with pytest.raises(ValueError):
        write(value)


@given(st.integers(0, 268_435_455))
def test_variable_byte_integer_takes_the_fewest_bytes(value: int) -> None:
    encoded = encode_variable_byte_integer(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert Reader(encoded).variable_byte_integer() == value
