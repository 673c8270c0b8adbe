"""The 8-byte header, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.sensors.packet import (
    MAX_PORT,
    MAX_TOPIC_NUMBER,
    PUBLISHER,
    SUBSCRIBER,
    Malformed,
    SensorPacket,
    build,
    parse,
    read_number,
)


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        (b"12346001", SensorPacket(12346, SUBSCRIBER, 1, b"")),
        (b"12349002", SensorPacket(12349, SUBSCRIBER, 2, b"")),
        (b"1234510121.5", SensorPacket(12345, PUBLISHER, 1, b"21.5")),
        (b"00001199\x00\xff", SensorPacket(1, PUBLISHER, 99, b"\x00\xff")),
        (b"65535000", SensorPacket(65535, SUBSCRIBER, 0, b"")),
    ],
)
def test_the_documents_packets(data: bytes, packet: SensorPacket) -> None:
    assert parse(data) == packet
    assert build(*packet) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are shorter than the header of 8"),
        (b"1234510", "7 bytes are shorter than the header of 8"),
        (b"1234x101", "port '1234x' is not five digits"),
        (b"+1234101", "port '+1234' is not five digits"),
        (b" 1234101", "port ' 1234' is not five digits"),
        (b"1_234101", "port '1_234' is not five digits"),
        (b"\n\x1b[2J101", r"port '\n\x1b[2J' is not five digits"),
        ("²2345101".encode("latin-1"), r"port '\xb22345' is not five digits"),
        (b"00000101", "port 00000 is not from 00001 to 65535"),
        (b"65536101", "port 65536 is not from 00001 to 65535"),
        (b"99999001", "port 99999 is not from 00001 to 65535"),
        (b"12345201", "role '2' is neither 0, a subscriber, nor 1, a publisher"),
        (b"12345\x0001", r"role '\x00' is neither 0, a subscriber, nor 1, a publisher"),
        (b"123451-1", "topic '-1' is not two digits"),
        (b"123451 1", "topic ' 1' is not two digits"),
    ],
)
def test_a_wrong_header_is_told_in_words(data: bytes, reason: str) -> None:
    assert parse(data) == Malformed(reason)


@given(
    st.integers(1, MAX_PORT),
    st.sampled_from((SUBSCRIBER, PUBLISHER)),
    st.integers(0, MAX_TOPIC_NUMBER),
    st.binary(max_size=64),
)
def test_what_is_built_is_parsed(port: int, role: int, topic: int, payload: bytes) -> None:
    data = build(port, role, topic, payload)
    assert len(data) == 8 + len(payload)
    assert parse(data) == (port, role, topic, payload)


@pytest.mark.parametrize(
    ("port", "role", "topic"), [(0, 0, 1), (65_536, 0, 1), (1, 2, 1), (1, 0, 100), (1, 0, -1)]
)
def test_what_does_not_fit_the_header_is_a_mistake_of_ours(port: int, role: int, topic: int) -> None:
    with pytest.raises(ValueError):
        build(port, role, topic)


def test_topic_numbers_as_people_write_them() -> None:
    assert [read_number(text) for text in ("1", "01", "99", "0")] == [1, 1, 99, 0]
    assert [read_number(text) for text in ("", "100", "-1", "x", "٣", "1 ")] == [None] * 6
