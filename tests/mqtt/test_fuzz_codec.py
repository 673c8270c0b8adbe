"""Whatever packet we write is read back; whatever bytes come, only a packet or a ProtocolError leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.errors import ProtocolError
from hedgerow.mqtt import codec, properties
from hedgerow.mqtt.packets import MQTT_5, PUBACK, PUBREC, Packet, Puback, Pubrec
from hedgerow.mqtt.reasons import REASON_CODES, Reason
from tests.mqtt.strategies import packets, versions
from tests.packets import read_packet

versions_and_packets = versions.flatmap(lambda version: st.tuples(st.just(version), packets(version)))


def decode_or_refuse(first_byte: int, body: bytes, version: int) -> Packet | None:
    """The packet, or None after checking that the refusal says what a log line and an answer need."""
    try:
        return codec.decode(first_byte, body, version)
    except ProtocolError as error:
        refusal = error
    assert Reason(refusal.reason_code) >= Reason.UNSPECIFIED_ERROR
    assert refusal.reason
    assert refusal.clause.startswith(("MQTT-", "§"))
    return None


def check_written_again(packet: Packet, version: int) -> None:
    """The same packet is read again. Reason codes that only brokers of others put there are not written."""
    packet_type = {Puback: PUBACK, Pubrec: PUBREC}.get(type(packet))
    if packet_type is not None and packet.reason_code not in REASON_CODES[packet_type][0]:  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="reason code"):
            codec.encode(packet, version)
        return
    written = codec.encode(packet, version)
    assert codec.encode(read_packet(written, version), version) == written


@settings(max_examples=500)
@given(versions_and_packets)
def test_every_packet_survives_a_round_trip(case: tuple[int, Packet]) -> None:
    version, packet = case
    assert read_packet(codec.encode(packet, version), version) == packet


@given(versions_and_packets, st.data())
def test_a_packet_cut_anywhere_is_refused_or_a_shorter_packet_of_its_kind(
    case: tuple[int, Packet], data: Any
) -> None:
    version, packet = case
    encoded = codec.encode(packet, version)
    header = codec.read_header(encoded, 0)
    assert header is not None
    body = encoded[header[0] :]
    cut = data.draw(st.integers(0, max(0, len(body) - 1)))
    shorter = decode_or_refuse(encoded[0], body[:cut], version)
    assert shorter is None or type(shorter) is type(packet)


@settings(max_examples=500)
@given(versions_and_packets, st.data())
def test_a_packet_with_changed_bytes_is_refused_or_another_packet(
    case: tuple[int, Packet], data: Any
) -> None:
    version, packet = case
    encoded = bytearray(codec.encode(packet, version))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(encoded[0], bytes(encoded[2:]), version)


@settings(max_examples=500)
@given(st.integers(0, 255), st.binary(max_size=64), versions)
@example(PUBACK << 4, bytes((0, 1, Reason.PACKET_TOO_LARGE)), MQTT_5)
def test_arbitrary_bytes_are_refused_or_a_packet_that_can_be_written_again(
    first_byte: int, body: bytes, version: int
) -> None:
    packet = decode_or_refuse(first_byte, body, version)
    if packet is not None:
        check_written_again(packet, version)


@given(st.binary(max_size=8), st.integers(0, 8))
def test_arbitrary_headers_are_unfinished_or_bounds_or_refused(data: bytes, position: int) -> None:
    length = data[position + 1 : position + 5]
    try:
        header = codec.read_header(data, position)
    except ProtocolError:
        assert len(length) == 4 or 0 in length
        return
    if header is None:
        assert len(length) < 4
    else:
        assert position + 2 <= header[0] <= min(position + 5, len(data))
        assert header[1] >= header[0]


@settings(max_examples=500)
@given(st.binary(max_size=48), st.integers(0, 15))
def test_arbitrary_properties_are_refused_or_written_back_alike(data: bytes, packet_type: int) -> None:
    try:
        found, position = properties.decode(data, 0, packet_type)
    except ProtocolError:
        return
    assert position <= len(data)
    encoded = properties.encode(found, packet_type)
    assert properties.decode(encoded, 0, packet_type) == (found, len(encoded))


@given(versions.flatmap(lambda version: st.tuples(st.just(version), st.lists(packets(version), max_size=4))))
def test_packets_in_one_stream_are_found_one_after_the_other(case: tuple[int, list[Packet]]) -> None:
    version, sent = case
    data = b"".join(codec.encode(packet, version) for packet in sent)
    received = []
    position = 0
    while (header := codec.read_header(data, position)) is not None:
        start, end = header
        received.append(codec.decode(data[position], data[start:end], version))
        position = end
    assert received == sent
    assert position == len(data)


@given(packets(MQTT_5))
def test_mqtt_5_packets_are_written_in_the_shortest_form(packet: Packet) -> None:
    """No variable byte integer longer than needed: the strict header reader takes every packet."""
    assert codec.read_header(codec.encode(packet, MQTT_5), 0) is not None
