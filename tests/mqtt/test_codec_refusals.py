"""Every rule that can be seen broken in a packet alone: the reason code and the clause of its refusal."""

from __future__ import annotations

import pytest

from hedgerow.errors import ProtocolError
from hedgerow.mqtt import codec
from hedgerow.mqtt.decoder import MAX_TOPIC_FILTERS
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Subscribe,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason

V3, V4, V5 = MQTT_3_1, MQTT_3_1_1, MQTT_5
MALFORMED = Reason.MALFORMED_PACKET
BROKEN = Reason.PROTOCOL_ERROR
UNSUPPORTED = Reason.UNSUPPORTED_PROTOCOL_VERSION

CONNECT_4 = "0004 4d515454 04"
CONNECT_5 = "0004 4d515454 05"

# (what is wrong, version, first byte, body in hexadecimal, reason code, clause)
REFUSALS: list[tuple[str, int, int, str, Reason, str]] = [
    ("packet type 0", V5, 0x00, "", MALFORMED, "§2.1.2"),
    ("packet type 15 before 5", V4, 0xF0, "", MALFORMED, "§2.2.1"),
    ("flags of CONNECT", V5, 0x11, f"{CONNECT_5} 02 0000 00 0000", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of CONNECT", V4, 0x11, f"{CONNECT_4} 02 0000 0000", MALFORMED, "MQTT-2.2.2-2"),
    ("flags of CONNACK", V5, 0x21, "00 00 00", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PUBACK", V5, 0x42, "0001", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PUBREC", V5, 0x58, "0001", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PUBREL", V5, 0x60, "0001", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PUBREL", V4, 0x6A, "0001", MALFORMED, "MQTT-2.2.2-2"),
    ("flags of PUBCOMP", V5, 0x71, "0001", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of SUBSCRIBE", V5, 0x80, "0001 00 0001 61 00", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of SUBSCRIBE", V4, 0x80, "0001 0001 61 00", MALFORMED, "MQTT-2.2.2-2"),
    ("flags of SUBACK", V5, 0x91, "0001 00 00", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of UNSUBSCRIBE", V5, 0xA0, "0001 00 0001 61", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of UNSUBACK", V5, 0xB4, "0001 00 00", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PINGREQ", V5, 0xC1, "", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of PINGRESP", V4, 0xD1, "", MALFORMED, "MQTT-2.2.2-2"),
    ("flags of DISCONNECT", V5, 0xE1, "", MALFORMED, "MQTT-2.1.3-1"),
    ("flags of AUTH", V5, 0xF8, "", MALFORMED, "MQTT-2.1.3-1"),
    ("protocol name", V5, 0x10, "0004 48545450 05 02 0000 00 0000", UNSUPPORTED, "MQTT-3.1.2-1"),
    ("protocol name in lower case", V4, 0x10, "0004 6d717474 04 02 0000 0000", UNSUPPORTED, "MQTT-3.1.2-1"),
    ("version 6", V5, 0x10, "0004 4d515454 06 02 0000 00 0000", UNSUPPORTED, "MQTT-3.1.2-2"),
    ("version 0", V5, 0x10, "0004 4d515454 00 02 0000 0000", UNSUPPORTED, "MQTT-3.1.2-2"),
    ("3.1 with version 4", V4, 0x10, "0006 4d5149736470 04 02 0000 0000", UNSUPPORTED, "MQTT-3.1.2-2"),
    ("3.1.1 with version 3", V3, 0x10, "0004 4d515454 03 02 0000 0000", UNSUPPORTED, "MQTT-3.1.2-2"),
    ("bridge with version 5", V5, 0x10, "0004 4d515454 85 02 0000 00 0000", UNSUPPORTED, "MQTT-3.1.2-2"),
    ("will QoS of a bridge", V4, 0x10, "0004 4d515454 84 0a 0000 0000", MALFORMED, "MQTT-3.1.2-13"),
    ("version missing", V5, 0x10, "0004 4d515454", MALFORMED, "§2.2.3"),
    ("reserved connect flag", V5, 0x10, f"{CONNECT_5} 03 0000 00 0000", MALFORMED, "MQTT-3.1.2-3"),
    ("reserved connect flag", V4, 0x10, f"{CONNECT_4} 03 0000 0000", MALFORMED, "MQTT-3.1.2-3"),
    ("will QoS without will", V5, 0x10, f"{CONNECT_5} 0a 0000 00 0000", MALFORMED, "MQTT-3.1.2-11"),
    ("will QoS without will", V4, 0x10, f"{CONNECT_4} 0a 0000 0000", MALFORMED, "MQTT-3.1.2-13"),
    ("will QoS 3", V5, 0x10, f"{CONNECT_5} 1e 0000 00 0000 00 0001 61 0000", MALFORMED, "MQTT-3.1.2-12"),
    ("will QoS 3", V4, 0x10, f"{CONNECT_4} 1e 0000 0000 0001 61 0000", MALFORMED, "MQTT-3.1.2-14"),
    ("will retain without will", V5, 0x10, f"{CONNECT_5} 22 0000 00 0000", MALFORMED, "MQTT-3.1.2-13"),
    ("will retain without will", V4, 0x10, f"{CONNECT_4} 22 0000 0000", MALFORMED, "MQTT-3.1.2-15"),
    ("password alone", V4, 0x10, f"{CONNECT_4} 42 0000 0000 0001 70", MALFORMED, "MQTT-3.1.2-22"),
    ("user name missing", V4, 0x10, f"{CONNECT_4} 82 0000 0000", MALFORMED, "§2.2.3"),
    ("will missing", V5, 0x10, f"{CONNECT_5} 06 0000 00 0000", MALFORMED, "§2.1.4"),
    ("client identifier not UTF-8", V5, 0x10, f"{CONNECT_5} 02 0000 00 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
    ("user name not UTF-8", V4, 0x10, f"{CONNECT_4} 82 0000 0000 0001 c0", MALFORMED, "MQTT-1.5.3-1"),
    ("empty will topic", V5, 0x10, f"{CONNECT_5} 06 0000 00 0000 00 0000 0000", MALFORMED, "MQTT-4.7.3-1"),
    ("will topic #", V5, 0x10, f"{CONNECT_5} 06 0000 00 0000 00 0001 23 0000", MALFORMED, "MQTT-3.3.2-2"),
    ("acknowledge flags", V5, 0x20, "02 00 00", MALFORMED, "MQTT-3.2.2-1"),
    ("acknowledge flags", V4, 0x20, "80 00", MALFORMED, "§3.2.2.1"),
    ("session present refused", V5, 0x20, "01 87 00", BROKEN, "MQTT-3.2.2-6"),
    ("session present refused", V4, 0x20, "01 05", BROKEN, "MQTT-3.2.2-4"),
    ("return code 6", V4, 0x20, "00 06", BROKEN, "§3.2.2.3"),
    ("CONNACK without properties", V5, 0x20, "00 00", MALFORMED, "§2.1.4"),
    ("QoS 3", V5, 0x36, "0001 61 0001 00", MALFORMED, "MQTT-3.3.1-4"),
    ("QoS 3", V4, 0x36, "0001 61 0001", MALFORMED, "MQTT-3.3.1-4"),
    ("DUP with QoS 0", V5, 0x38, "0001 61 00", MALFORMED, "MQTT-3.3.1-2"),
    ("DUP with QoS 0", V4, 0x39, "0001 61", MALFORMED, "MQTT-3.3.1-2"),
    ("wildcard + in topic name", V5, 0x30, "0003 612f2b 00", MALFORMED, "MQTT-3.3.2-2"),
    ("wildcard # in topic name", V4, 0x30, "0001 23", MALFORMED, "MQTT-3.3.2-2"),
    ("topic name with U+0000", V5, 0x30, "0003 610062 00", MALFORMED, "MQTT-1.5.4-2"),
    ("topic name with U+0000", V4, 0x30, "0003 610062", MALFORMED, "MQTT-1.5.3-2"),
    ("topic name with a surrogate", V5, 0x30, "0003 eda080 00", MALFORMED, "MQTT-1.5.4-1"),
    ("topic name with a surrogate", V4, 0x30, "0003 eda080", MALFORMED, "MQTT-1.5.3-1"),
    ("topic name in overlong UTF-8", V5, 0x30, "0002 c1a1 00", MALFORMED, "MQTT-1.5.4-1"),
    ("topic name beyond U+10FFFF", V5, 0x30, "0004 f4908080 00", MALFORMED, "MQTT-1.5.4-1"),
    ("topic name that ends within a character", V5, 0x30, "0002 61c3 00", MALFORMED, "MQTT-1.5.4-1"),
    ("topic name longer than the packet", V5, 0x30, "ffff 61", MALFORMED, "§2.1.4"),
    ("neither topic name nor alias", V5, 0x30, "0000 00", BROKEN, "§3.3.2.1"),
    ("empty topic name", V4, 0x30, "0000", MALFORMED, "MQTT-4.7.3-1"),
    ("topic alias 0", V5, 0x30, "0001 61 03 23 0000", Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
    ("wildcard in response topic", V5, 0x30, "0001 61 04 08 0001 23", MALFORMED, "MQTT-3.3.2-14"),
    ("PUBLISH without properties", V5, 0x30, "0001 61", MALFORMED, "§2.1.4"),
    ("PUBLISH with packet identifier 0", V5, 0x32, "0001 61 0000 00", BROKEN, "MQTT-2.2.1-3"),
    ("PUBLISH with packet identifier 0", V4, 0x34, "0001 61 0000", BROKEN, "MQTT-2.3.1-1"),
    ("PUBACK with packet identifier 0", V5, 0x40, "0000", BROKEN, "MQTT-2.2.1-5"),
    ("PUBACK with packet identifier 0", V4, 0x40, "0000", BROKEN, "MQTT-2.3.1-6"),
    ("PUBACK with a reason code before 5", V4, 0x40, "0001 00", MALFORMED, "§2.2.3"),
    ("PUBACK reason code", V5, 0x40, "0001 92", BROKEN, "MQTT-3.4.2-1"),
    ("PUBREC reason code", V5, 0x50, "0001 01", BROKEN, "MQTT-3.5.2-1"),
    ("PUBREL reason code", V5, 0x62, "0001 10", BROKEN, "MQTT-3.6.2-1"),
    ("PUBCOMP reason code", V5, 0x70, "0001 10", BROKEN, "MQTT-3.7.2-1"),
    ("CONNACK reason code", V5, 0x20, "00 93 00", BROKEN, "MQTT-3.2.2-8"),
    ("SUBACK reason code", V5, 0x90, "0001 00 03", BROKEN, "MQTT-3.9.3-2"),
    ("SUBACK return code", V4, 0x90, "0001 87", BROKEN, "MQTT-3.9.3-2"),
    ("SUBACK return code 3", V4, 0x90, "0001 03", BROKEN, "MQTT-3.9.3-2"),
    ("SUBACK without a reason code", V5, 0x90, "0001 00", BROKEN, "MQTT-3.9.3-2"),
    ("SUBACK with packet identifier 0", V5, 0x90, "0000 00 00", BROKEN, "MQTT-2.2.1-6"),
    ("UNSUBACK reason code", V5, 0xB0, "0001 00 10", BROKEN, "MQTT-3.11.3-2"),
    ("UNSUBACK without a reason code", V5, 0xB0, "0001 00", BROKEN, "MQTT-3.11.3-2"),
    ("UNSUBACK with a payload before 5", V4, 0xB0, "0001 00", MALFORMED, "§2.2.3"),
    ("UNSUBACK with packet identifier 0", V4, 0xB0, "0000", BROKEN, "MQTT-2.3.1-7"),
    ("DISCONNECT reason code", V5, 0xE0, "01", BROKEN, "MQTT-3.14.2-1"),
    ("DISCONNECT with a reason code before 5", V4, 0xE0, "00", MALFORMED, "§2.2.3"),
    ("AUTH reason code", V5, 0xF0, "17 04 15 0001 6d", BROKEN, "MQTT-3.15.2-1"),
    ("AUTH without a method", V5, 0xF0, "18 00", BROKEN, "§3.15.2.2.2"),
    ("AUTH without properties", V5, 0xF0, "18", MALFORMED, "§2.1.4"),
    ("SUBSCRIBE with packet identifier 0", V5, 0x82, "0000 00 0001 61 00", BROKEN, "MQTT-2.2.1-3"),
    ("SUBSCRIBE with packet identifier 0", V4, 0x82, "0000 0001 61 00", BROKEN, "MQTT-2.3.1-1"),
    ("SUBSCRIBE without a filter", V5, 0x82, "0001 00", BROKEN, "MQTT-3.8.3-2"),
    ("SUBSCRIBE without a filter", V4, 0x82, "0001", BROKEN, "MQTT-3.8.3-3"),
    ("SUBSCRIBE without options", V5, 0x82, "0001 00 0001 61", MALFORMED, "§2.1.4"),
    ("reserved subscription option", V5, 0x82, "0001 00 0001 61 40", MALFORMED, "MQTT-3.8.3-5"),
    ("subscription option before 5", V4, 0x82, "0001 0001 61 04", MALFORMED, "MQTT-3-8.3-4"),
    ("subscription QoS 3", V5, 0x82, "0001 00 0001 61 03", BROKEN, "§3.8.3.1"),
    ("subscription QoS 3", V4, 0x82, "0001 0001 61 03", BROKEN, "MQTT-3-8.3-4"),
    ("retain handling 3", V5, 0x82, "0001 00 0001 61 30", BROKEN, "§3.8.3.1"),
    ("topic filter not UTF-8", V5, 0x82, "0001 00 0001 80 00", MALFORMED, "MQTT-1.5.4-1"),
    ("two subscription identifiers", V5, 0x82, "0001 04 0b01 0b02 0001 61 00", BROKEN, "§3.8.2.1.2"),
    ("UNSUBSCRIBE with packet identifier 0", V5, 0xA2, "0000 00 0001 61", BROKEN, "MQTT-2.2.1-3"),
    ("UNSUBSCRIBE without a filter", V5, 0xA2, "0001 00", BROKEN, "MQTT-3.10.3-2"),
    ("UNSUBSCRIBE without a filter", V4, 0xA2, "0001", BROKEN, "MQTT-3.10.3-2"),
    ("PINGREQ with a body", V5, 0xC0, "00", MALFORMED, "§2.1.4"),
    ("PINGRESP with a body", V4, 0xD0, "00", MALFORMED, "§2.2.3"),
]  # fmt: skip


def refused(first_byte: int, body: bytes, version: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        codec.decode(first_byte, body, version)
    return caught.value


@pytest.mark.parametrize(
    ("version", "first_byte", "body", "reason_code", "clause"),
    [case[1:] for case in REFUSALS],
    ids=[f"{clause}-{what}-{version}" for what, version, _, _, _, clause in REFUSALS],
)
def test_refusal(version: int, first_byte: int, body: str, reason_code: Reason, clause: str) -> None:
    error = refused(first_byte, bytes.fromhex(body), version)
    assert (Reason(error.reason_code), error.clause) == (reason_code, clause)
    assert str(error).endswith(f"[{clause}]")


@pytest.mark.parametrize(("packet_type", "one"), [(SUBSCRIBE, b"\x00\x01a\x00"), (UNSUBSCRIBE, b"\x00\x01a")])
def test_number_of_topic_filters_in_one_packet_is_bounded(packet_type: int, one: bytes) -> None:
    first_byte = packet_type << 4 | 2
    packet = codec.decode(first_byte, b"\x00\x01\x00" + one * MAX_TOPIC_FILTERS, V5)
    assert isinstance(packet, Subscribe | Unsubscribe)
    error = refused(first_byte, b"\x00\x01\x00" + one * (MAX_TOPIC_FILTERS + 1), V5)
    assert error.reason_code == Reason.QUOTA_EXCEEDED
