"""Every packet byte for byte, whole and in pieces, and what each version leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.errors import ProtocolError
from hedgerow.message import Message
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import REASON_CODES, Reason

V3, V4, V5 = MQTT_3_1, MQTT_3_1_1, MQTT_5
MALFORMED = Reason.MALFORMED_PACKET
BROKEN = Reason.PROTOCOL_ERROR
UNSUPPORTED = Reason.UNSUPPORTED_PROTOCOL_VERSION

FULL_CONNECT = Connect(
    "id",
    V5,
    clean_start=True,
    keep_alive=60,
    username="u",
    password=b"pw",
    will=Will("w", b"gone", qos=2, retain=True, properties={"will_delay_interval": 5}),
    properties={"receive_maximum": 10, "user_property": (("k", "v"), ("k", "w"))},
)

# (version, packet, its bytes in hexadecimal)
WIRE: list[tuple[int, Packet, str]] = [
    (V3, Connect("id", V3, keep_alive=10), "10 10 0006 4d514973647003 02 000a 0002 6964"),
    (V4, Connect("", V4, is_bridge=True), "10 0c 0004 4d515454 84 02 0000 0000"),
    (V4, Connect("", V4), "10 0c 0004 4d515454 04 02 0000 0000"),
    (V4, Connect("id", V4, clean_start=False, username=""), "10 10 0004 4d515454 04 80 0000 0002 6964 0000"),
    (
        V4,
        Connect("id", V4, will=Will("w", b"", qos=1), username="u", password=b""),
        "10 18 0004 4d515454 04 ce 0000 0002 6964 0001 77 0000 0001 75 0000",
    ),
    (V5, Connect("id", V5, password=b"\0"), "10 12 0004 4d515454 05 42 0000 00 0002 6964 0001 00"),
    (
        V5,
        FULL_CONNECT,
        "10 36 0004 4d515454 05 f6 003c 11 21000a 2600016b000176 2600016b000177 0002 6964"
        "05 1800000005 0001 77 0004 676f6e65 0001 75 0002 7077",
    ),
    (V3, Connack(), "20 02 00 00"),
    (V4, Connack(session_present=True), "20 02 01 00"),
    (V4, Connack(reason_code=Reason.NOT_AUTHORIZED), "20 02 00 05"),
    (V5, Connack(session_present=True), "20 03 01 00 00"),
    (V5, Connack(reason_code=0x87, properties={"reason_string": "no"}), "20 08 00 87 05 1f 0002 6e6f"),
    (V4, Publish("a/b", b"hi"), "30 07 0003 612f62 6869"),
    (V4, Publish("a", b"", qos=1, retain=True, dup=True, packet_id=0x1234), "3b 05 0001 61 1234"),
    (V5, Publish("a", b"x", qos=2, packet_id=1), "34 07 0001 61 0001 00 78"),
    (V5, Publish("", b"x", properties={"topic_alias": 3}), "30 07 0000 03 23 0003 78"),
    (V4, Puback(1), "40 02 0001"),
    (V5, Puback(1), "40 02 0001"),
    (V5, Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), "40 03 0001 10"),
    (V5, Puback(1, 0, {"reason_string": ""}), "40 07 0001 00 03 1f 0000"),
    (V4, Pubrec(2), "50 02 0002"),
    (V5, Pubrec(2, Reason.QUOTA_EXCEEDED), "50 03 0002 97"),
    (V4, Pubrel(3), "62 02 0003"),
    (V5, Pubrel(3, Reason.PACKET_IDENTIFIER_NOT_FOUND), "62 03 0003 92"),
    (V4, Pubcomp(4), "70 02 0004"),
    (V5, Pubcomp(4, Reason.PACKET_IDENTIFIER_NOT_FOUND), "70 03 0004 92"),
    (V4, Subscribe(5, [Subscription("a", 1), Subscription("#", 2)]), "82 0a 0005 0001 61 01 0001 23 02"),
    (
        V5,
        Subscribe(5, [Subscription("a", 2, True, True, 2)], {"subscription_identifier": (300,)}),
        "82 0a 0005 03 0b ac02 0001 61 2e",
    ),
    (V4, Suback(5, [0, 1, 2, 0x80]), "90 06 0005 00 01 02 80"),
    (V5, Suback(5, [0x8F]), "90 04 0005 00 8f"),
    (V4, Unsubscribe(6, ["a", "b/+"]), "a2 0a 0006 0001 61 0003 622f2b"),
    (V5, Unsubscribe(6, ["a"]), "a2 06 0006 00 0001 61"),
    (V4, Unsuback(6), "b0 02 0006"),
    (V5, Unsuback(6, [0x00, 0x11]), "b0 05 0006 00 00 11"),
    (V4, Pingreq(), "c0 00"),
    (V5, Pingresp(), "d0 00"),
    (V4, Disconnect(), "e0 00"),
    (V5, Disconnect(), "e0 00"),
    (V5, Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE), "e0 01 04"),
    (V5, Disconnect(0, {"session_expiry_interval": 0}), "e0 07 00 05 11 00000000"),
    (V5, Auth(), "f0 00"),
    (V5, Auth(0x18, {"authentication_method": "m"}), "f0 06 18 04 15 0001 6d"),
]

WIRE_IDS = [f"{type(packet).__name__}-{version}-{data[:24]}" for version, packet, data in WIRE]


def body_of(data: bytes) -> bytes:
    header = codec.read_header(data, 0)
    assert header is not None
    assert header[1] == len(data)
    return data[header[0] :]


def refused(first_byte: int, body: bytes, version: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        codec.decode(first_byte, body, version)
    return caught.value


@pytest.mark.parametrize(("version", "packet", "data"), WIRE, ids=WIRE_IDS)
def test_packet_is_written_as_these_bytes(version: int, packet: Packet, data: str) -> None:
    assert codec.encode(packet, version).hex(" ") == bytes.fromhex(data).hex(" ")


@pytest.mark.parametrize(("version", "packet", "data"), WIRE, ids=WIRE_IDS)
def test_bytes_are_read_as_this_packet(version: int, packet: Packet, data: str) -> None:
    encoded = bytes.fromhex(data)
    assert codec.decode(encoded[0], body_of(encoded), version) == packet


@pytest.mark.parametrize(("version", "packet", "data"), WIRE, ids=WIRE_IDS)
def test_packet_cut_at_every_byte_is_refused_or_has_a_shorter_meaning(
    version: int, packet: Packet, data: str
) -> None:
    """What may be left out at the end is named here; every other cut is a refusal."""
    encoded = bytes.fromhex(data)
    body = body_of(encoded)
    for size in range(len(body)):
        try:
            shorter = codec.decode(encoded[0], body[:size], version)
        except ProtocolError:
            continue
        assert type(shorter) is type(packet)
        match shorter:
            case Publish():  # The payload has no length of its own.
                assert isinstance(packet, Publish)
                assert packet.payload.startswith(shorter.payload)
            case Puback() | Pubrec() | Pubrel() | Pubcomp():
                assert version == V5
                assert size in (2, 3)
            case Disconnect():
                assert version == V5
                assert size in (0, 1)
            case Auth():
                assert size == 0
            case Suback() | Unsuback():
                assert isinstance(packet, Suback | Unsuback)
                assert shorter.reason_codes == packet.reason_codes[: len(shorter.reason_codes)]
            case Subscribe():
                assert isinstance(packet, Subscribe)
                assert shorter.subscriptions == packet.subscriptions[: len(shorter.subscriptions)]
            case Unsubscribe():
                assert isinstance(packet, Unsubscribe)
                assert shorter.topic_filters == packet.topic_filters[: len(shorter.topic_filters)]
            case _:
                pytest.fail(f"{body[:size].hex(' ')} was read as {shorter}")


@pytest.mark.parametrize(
    ("version", "packet", "data"),
    [case for case in WIRE if not isinstance(case[1], Publish)],
    ids=[name for name in WIRE_IDS if not name.startswith("Publish-")],
)
def test_packet_with_trailing_bytes_is_refused(version: int, packet: Packet, data: str) -> None:
    encoded = bytes.fromhex(data)
    error = refused(encoded[0], body_of(encoded) + b"\xff", version)
    assert error.reason_code in (MALFORMED, BROKEN)  # Where a reason code may stand, 0xff is a wrong one.
    assert error.clause


@pytest.mark.parametrize(("version", "packet", "data"), WIRE, ids=WIRE_IDS)
def test_header_arrives_byte_by_byte(version: int, packet: Packet, data: str) -> None:
    encoded = bytes.fromhex(data)
    assert codec.read_header(encoded[:0], 0) is None
    assert codec.read_header(encoded[:1], 0) is None
    for size in range(2, len(encoded) + 1):
        assert codec.read_header(encoded[:size], 0) == (2, len(encoded))
    assert codec.read_header(b"\xc0\x00" + encoded, 2) == (4, 2 + len(encoded))


@pytest.mark.parametrize(
    ("size", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_remaining_length_at_its_borders(size: int, encoded: str) -> None:
    length = bytes.fromhex(encoded)
    assert codec.encode_remaining_length(size) == length
    start = 1 + len(length)
    assert codec.read_header(b"\x30" + length, 0) == (start, start + size)
    for cut in range(len(length)):
        assert codec.read_header(b"\x30" + length[:cut], 0) is None


@pytest.mark.parametrize("size", [-1, 268_435_456])
def test_remaining_length_out_of_range_is_our_mistake(size: int) -> None:
    with pytest.raises(ValueError):
        codec.encode_remaining_length(size)


def test_remaining_length_of_five_bytes_is_refused_with_the_fourth() -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.read_header(b"\x30\xff\xff\xff\x80", 0)
    assert caught.value.reason_code == MALFORMED
    assert caught.value.clause == "§1.5.5"


def test_mqtt_1_5_5_1_remaining_length_is_as_short_as_can_be() -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.read_header(b"\xc0\x80\x00", 0)
    assert caught.value.reason_code == MALFORMED
    assert caught.value.clause == "MQTT-1.5.5-1"


def test_mqtt_1_5_4_3_byte_order_mark_is_kept() -> None:
    packet = codec.decode(0x30, b"\x00\x04\xef\xbb\xbfa\x00", V5)
    assert isinstance(packet, Publish)
    assert packet.topic == "\ufeffa"


def test_mqtt_3_3_4_publish_answers_several_subscriptions() -> None:
    packet = Publish("a", properties={"subscription_identifier": (1, 1, 268_435_455)})
    encoded = codec.encode(packet, V5)
    assert codec.decode(encoded[0], body_of(encoded), V5) == packet


@pytest.mark.parametrize("first_byte", [0x8A, 0xAA, 0x6A])
def test_3_1_repeats_packets_with_dup_set(first_byte: int) -> None:
    body = {0x8A: "0001 0001 61 00", 0xAA: "0001 0001 61", 0x6A: "0001"}[first_byte]
    codec.decode(first_byte, bytes.fromhex(body), V3)
    assert refused(first_byte, bytes.fromhex(body), V4).clause == "MQTT-2.2.2-2"


def test_3_1_client_older_than_user_names_ends_before_the_fields_of_its_flags() -> None:
    start = bytes.fromhex("0006 4d5149736470 03 c2 0000 0001 63")
    assert codec.decode(0x10, start, V3) == Connect("c", V3)
    assert codec.decode(0x10, start + b"\x00\x01u", V3) == Connect("c", V3, username="u")
    assert refused(0x10, start + b"\x00\x05u", V3).reason_code == MALFORMED


def test_3_1_connack_ignores_the_byte_that_it_does_not_use() -> None:
    assert codec.decode(0x20, b"\xff\x00", V3) == Connack()


def test_connect_brings_its_own_version() -> None:
    encoded = codec.encode(Connect("c", V4), V5)
    assert codec.decode(encoded[0], body_of(encoded), V5) == Connect("c", V4)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("", 0),
        ("00", 0),
        ("0004 4d5154", 0),
        ("0004 4d515454", 0),
        ("0004 4d515454 05", 5),
        ("0000 83", 3),
        ("0000 86", 0x86),
    ],
)
def test_version_is_seen_in_a_connect_that_cannot_be_decoded(body: str, version: int) -> None:
    assert codec.peek_version(bytes.fromhex(body)) == version


@pytest.mark.parametrize("version", [V3, V4])
@pytest.mark.parametrize(
    ("packet", "older"),
    [
        (Puback(1, 0x87, {"reason_string": "no"}), Puback(1)),
        (Pubrec(1, 0x97), Pubrec(1)),
        (Pubrel(1, 0x92), Pubrel(1)),
        (Pubcomp(1, 0x92), Pubcomp(1)),
        (Publish("a", b"b", properties={"topic_alias": 1, "content_type": "x"}), Publish("a", b"b")),
        (Connack(reason_code=Reason.BANNED), Connack(reason_code=Reason.NOT_AUTHORIZED)),
        (Connack(reason_code=Reason.SERVER_BUSY), Connack(reason_code=Reason.SERVER_UNAVAILABLE)),
        (Connack(reason_code=Reason.MALFORMED_PACKET), Connack(reason_code=Reason.SERVER_UNAVAILABLE)),
        (Suback(1, [0x02, 0x8F, 0x87]), Suback(1, [0x02, 0x80, 0x80])),
        (Unsuback(1, [0x11]), Unsuback(1)),
        (Disconnect(0x8B, {"server_reference": "x"}), Disconnect()),
        (Subscribe(1, [Subscription("a", 1, True, True, 2)]), Subscribe(1, [Subscription("a", 1)])),
    ],
)
def test_older_versions_leave_out_what_they_have_no_words_for(
    packet: Packet, older: Packet, version: int
) -> None:
    encoded = codec.encode(packet, version)
    assert codec.decode(encoded[0], body_of(encoded), version) == older


LONG = "x" * 65_536

MISUSE: list[tuple[str, int, Packet]] = [
    ("version 6", V5, Connect(protocol_version=6)),
    ("version 0", 0, Pingreq()),
    ("bridge in 5", V5, Connect(is_bridge=True)),
    ("client identifier too long", V5, Connect(LONG)),
    ("client identifier with U+0000", V5, Connect("\0")),
    ("client identifier with a surrogate", V5, Connect("\ud800")),
    ("keep-alive too long", V5, Connect(keep_alive=65_536)),
    ("keep-alive below 0", V5, Connect(keep_alive=-1)),
    ("password without user name", V4, Connect(protocol_version=V4, password=b"")),
    ("password too long", V5, Connect(password=LONG.encode())),
    ("will QoS 3", V5, Connect(will=Will("a", b"", qos=3))),
    ("will topic with wildcard", V5, Connect(will=Will("#", b""))),
    ("will payload too long", V5, Connect(will=Will("a", LONG.encode()))),
    ("session present refused", V4, Connack(session_present=True, reason_code=0x87)),
    ("CONNACK reason code", V4, Connack(reason_code=0x93)),
    ("QoS 3", V5, Publish("a", qos=3, packet_id=1)),
    ("DUP with QoS 0", V5, Publish("a", dup=True)),
    ("packet identifier with QoS 0", V5, Publish("a", packet_id=1)),
    ("QoS 1 without packet identifier", V5, Publish("a", qos=1)),
    ("packet identifier too large", V5, Publish("a", qos=1, packet_id=65_536)),
    ("topic name empty", V4, Publish("")),
    ("topic name empty, alias before 5", V4, Publish("", properties={"topic_alias": 1})),
    ("topic name empty without alias", V5, Publish("")),
    ("topic name with wildcard", V5, Publish("a/+")),
    ("topic name with wildcard and alias", V5, Publish("#", properties={"topic_alias": 1})),
    ("topic name too long", V5, Publish(LONG)),
    ("PUBACK for 0", V4, Puback(0)),
    ("PUBACK reason code", V5, Puback(1, 0x92)),
    ("SUBSCRIBE without a filter", V5, Subscribe(1, [])),
    ("SUBSCRIBE for QoS 3", V5, Subscribe(1, [Subscription("a", 3)])),
    ("SUBSCRIBE with retain handling 3", V5, Subscribe(1, [Subscription("a", retain_handling=3)])),
    ("SUBACK without a reason code", V4, Suback(1, [])),
    ("SUBACK reason code", V4, Suback(1, [3])),
    ("UNSUBSCRIBE without a filter", V4, Unsubscribe(1, [])),
    ("UNSUBACK without a reason code", V5, Unsuback(1)),
    ("DISCONNECT reason code", V5, Disconnect(0x84)),
    ("AUTH before 5", V4, Auth()),
    ("AUTH without a method", V5, Auth(0x18)),
]


@pytest.mark.parametrize(
    ("version", "packet"), [case[1:] for case in MISUSE], ids=[case[0] for case in MISUSE]
)
def test_our_own_mistake_raises_at_once(version: int, packet: Packet) -> None:
    with pytest.raises(ValueError):
        codec.encode(packet, version)


@pytest.mark.parametrize(
    ("packet_class", "packet_type"),
    [(Connack, 2), (Puback, 4), (Pubrec, 5), (Pubrel, 6), (Pubcomp, 7), (Suback, 9), (Unsuback, 11),
     (Disconnect, 14), (Auth, 15)],
)  # fmt: skip
def test_each_packet_carries_exactly_its_own_reason_codes(packet_class: Any, packet_type: int) -> None:
    def packet(code: int) -> Packet:
        if packet_class in (Suback, Unsuback):
            return packet_class(1, [code])  # type: ignore[no-any-return]
        if packet_class is Auth:
            return Auth(code, {"authentication_method": "m"})
        if packet_class in (Connack, Disconnect):
            return packet_class(reason_code=code)  # type: ignore[no-any-return]
        return packet_class(1, code)  # type: ignore[no-any-return]

    def is_taken(code: int) -> bool:
        try:
            codec.encode(packet(code), V5)
        except ValueError:
            return False
        return True

    allowed, _ = REASON_CODES[packet_type]
    assert {code for code in range(256) if is_taken(code)} == allowed
    assert allowed <= {int(reason) for reason in Reason}


@pytest.mark.parametrize("size", [0, 119, 120, 16_375, 16_376, 70_000])
def test_a_plain_publish_has_the_length_that_the_codec_reads(size: int) -> None:
    """At the ends of what one, two and three bytes of length can say, too."""
    message = Message("a/b", b"x" * size)
    data = codec.encode_plain_publish(message, 1, False, 7, False, b"")
    assert data == codec.encode(Publish("a/b", message.payload, 1, packet_id=7), V4)
    assert codec.read_header(data, 0) == (len(data) - 7 - size, len(data))
