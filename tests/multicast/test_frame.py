"""Every frame that can be written is read back the same; whatever else comes is a FrameError."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.message import Message, MessageId
from hedgerow.multicast import frame
from hedgerow.multicast.frame import (
    Acknowledgement,
    Challenge,
    Flags,
    FrameError,
    FrameKind,
    Gone,
    GroupInterest,
    Hello,
    RepairRequest,
)
from hedgerow.multicast.groups import topic_crc
from hedgerow.multicast.keys import Keyring, SealError
from tests.multicast import frames
from tests.multicast.frames import ORIGIN, PACKERS, SENDER, read, write, write_message

NONCE = bytes(range(16))

# One of each kind, as it is on the wire behind the header.
BODIES: dict[FrameKind, tuple[Any, str]] = {
    FrameKind.HEARTBEAT: (258, "0000000000000102"),
    FrameKind.REPAIR: (
        RepairRequest(b"SENDER-8", 1_500, [(7, 2), (300, 1)]),
        "53454e4445522d38 000005dc 0000000000000007 0002 000000000000012c 0001",
    ),
    FrameKind.GONE: (Gone(b"MEMBER-8", 258, 3), "4d454d4245522d38 0000000000000102 0000000000000003"),
    FrameKind.TOPICS: (["a/b", "é"], "0003612f62 0002c3a9"),
    FrameKind.INTEREST: (GroupInterest(True, ["a/#", "+"]), "01 0003612f23 00012b"),
    FrameKind.PRESENCE: (b"", ""),
    FrameKind.HELLO: (Hello(b"COOKIE-8", True, ["#"]), "434f4f4b49452d38 01 000123"),
    FrameKind.WELCOME: (b"COOKIE-8", "434f4f4b49452d38"),
    FrameKind.CHALLENGE: (Challenge(b"MEMBER-8", NONCE), f"4d454d4245522d38 {NONCE.hex()}"),
    FrameKind.PROOF: (Challenge(b"MEMBER-8", NONCE), f"4d454d4245522d38 {NONCE.hex()}"),
    FrameKind.LEAVE: (b"", ""),
    FrameKind.ACKNOWLEDGEMENT: (
        Acknowledgement(b"SENDER-8", 65_536, [(b"TOPIC-8-", 258), (b"OTHER-8-", frame.CEASED)]),
        "53454e4445522d38 00010000 544f5049432d382d 0000000000000102 4f544845522d382d ffffffffffffffff",
    ),
    FrameKind.ASK: (b"", ""),
}


def test_the_header_is_32_bytes_in_this_order() -> None:
    written = write(
        FrameKind.DATA, flags=frame.RETAIN, topic="home/vacuum", stream_sequence=2, message_sequence=3
    )
    assert written.hex(" ", 4) == (
        f"01010080 {topic_crc('home/vacuum'):08x} 01020304 05060708 00000000 00000002 00000000 00000003"
    )
    assert len(written) == frame.HEADER_BYTES == 32


@pytest.mark.parametrize("kind", BODIES)
def test_the_body_of_each_kind_is_these_bytes(kind: FrameKind) -> None:
    value, wire = BODIES[kind]
    body = bytes.fromhex(wire)
    assert PACKERS[kind](value) == body
    assert read(write(kind, body)).body == value


def test_there_is_a_vector_of_every_kind() -> None:
    assert {FrameKind.DATA, *BODIES} == set(FrameKind)


def test_the_content_of_a_message_with_everything_is_these_bytes() -> None:
    message = Message("t", b"done", 2, True, {"content_type": "x"}, MessageId("node", 1, 2))
    flags, content = frame.pack_content(message, ORIGIN, 1.5)
    assert flags == Flags.FOREIGN | Flags.TIME | Flags.PROPERTIES | Flags.RETAIN | Flags.QOS_2
    assert content == bytes.fromhex(
        "04 6e6f6465 0000000000000001 0000000000000002"  # the id: origin, epoch, sequence
        "000000000016e360"  # microseconds
        "04 03 000178"  # properties as MQTT 5 writes them
        "646f6e65"
    )
    other = MessageId(ORIGIN, 0, 9)
    message.published_at = 1.5
    assert frame.parse_content("t", flags, other, content) == message


@pytest.mark.parametrize("microseconds", [1_001, 1_700_000_000_000_003, 1_700_000_000_123_457])
def test_a_time_comes_back_to_the_microsecond(microseconds: int) -> None:
    # Passed on again and again, a value must not become older each time.
    flags, content = frame.pack_content(Message("t", b""), ORIGIN, microseconds / 1e6)
    assert (flags, int.from_bytes(content, "big")) == (frame.TIME, microseconds)


def test_a_message_of_the_sender_itself_has_no_id_in_it() -> None:
    message = Message("t", b"done", id=MessageId(ORIGIN, 0, 9))
    assert frame.pack_content(message, ORIGIN, None) == (0, b"done")
    assert read(write_message(message, message_sequence=9)).body == message


@given(st.sampled_from(sorted(frames.bodies)), st.data(), st.booleans())
def test_every_kind_comes_back(kind: FrameKind, data: st.DataObject, says_topic: bool) -> None:
    value = data.draw(frames.bodies[kind])
    flags = frame.TOPIC if says_topic else 0
    found = read(write(kind, PACKERS[kind](value), flags=flags, topic="a/b", stream_sequence=5))
    assert found.body == value
    assert found.topic == ("a/b" if says_topic else None)
    assert found.header == (1, kind, flags, topic_crc("a/b"), SENDER, 5, 0)


@given(frames.messages, frames.times, st.sampled_from([0, frame.TOPIC, frame.HELD, frame.TOPIC | frame.HELD]))
def test_every_message_comes_back(message: Message, published_at: float | None, flags: int) -> None:
    found = read(write_message(message, published_at, flags=flags), message.topic)
    assert found.body == replace(message, published_at=published_at)
    assert found.header.flags & (frame.TOPIC | frame.HELD) == flags


@given(st.lists(st.binary(max_size=300)))
def test_every_batch_comes_back(payloads: list[bytes]) -> None:
    assert read(write(FrameKind.DATA, frame.pack_batch(payloads), flags=frame.BATCH)).body == payloads


@given(st.integers(2, 0xFFFF), st.data(), st.binary(min_size=1, max_size=50))
def test_every_fragment_comes_back(count: int, data: st.DataObject, piece: bytes) -> None:
    index = data.draw(st.integers(0, count - 1))
    body = frame.pack_fragment(index, count, piece)
    assert read(write(FrameKind.DATA, body, flags=frame.FRAGMENT)).body == (index, count, piece)


def whole_frames() -> list[tuple[str, bytes, set[int]]]:
    """(name, frame, sizes above the header at which a shorter one is a frame too)."""
    found = [
        (kind.name, write(kind, bytes.fromhex(wire), flags=frame.TOPIC), set[int]())
        for kind, (_, wire) in BODIES.items()
    ]
    everything = Message("t", b"", 1, True, {"content_type": "x"}, MessageId("node", 1, 2))
    found += [
        ("a message", write_message(everything, 1.5, flags=frame.TOPIC), set()),
        ("a fragment", write(FrameKind.DATA, b"\0\0\0\2x", flags=frame.TOPIC | frame.FRAGMENT), set()),
        ("a batch", write(FrameKind.DATA, b"\0\1x\0\0", flags=frame.TOPIC | frame.BATCH), {3, 6}),
    ]
    shorter_too = {
        "REPAIR": {25},
        "GONE": set(range(19, 27)),  # as it was before it had a count
        "TOPICS": {3, 8},
        "INTEREST": {4, 9},
        "HELLO": {12},
        "ACKNOWLEDGEMENT": {15, 31},
    }
    return [(name, data, sizes | shorter_too.get(name, set())) for name, data, sizes in found]


@pytest.mark.parametrize(("name", "data", "shorter_too"), whole_frames())
def test_a_truncated_frame_is_refused(name: str, data: bytes, shorter_too: set[int]) -> None:
    read(data)
    whole = {frame.HEADER_BYTES + size for size in shorter_too}
    for size in range(len(data)):
        if size in whole:
            read(data[:size])
        else:
            with pytest.raises(FrameError):
                read(data[:size])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"\2" + write(FrameKind.PRESENCE)[1:], "version 2"),
        (write(0), "kind 0"),
        (write(15), "kind 15"),
        (write(FrameKind.DATA, flags=0x1000), "flags 0x1000 in DATA"),
        (write(FrameKind.DATA, b"abc", flags=frame.AGE), "too short"),
        (write(FrameKind.DATA, stream_sequence=1 << 62), "stream sequence"),
        (write(FrameKind.DATA, flags=0x8000), "flags 0x8000 in DATA"),
        (write(FrameKind.PRESENCE, flags=frame.RETAIN), "flags 0x80 in PRESENCE"),
        (write(FrameKind.HELLO, flags=frame.BATCH), "flags 0x40 in HELLO"),
        (write(FrameKind.DATA, message_sequence=frame.MAX_SEQUENCE + 1), "message sequence"),
        (write(FrameKind.DATA, flags=frame.QOS_1 | frame.QOS_2), "QoS 3"),
        (write(FrameKind.DATA, b"\0\1+", flags=frame.TOPIC, topic=""), "at least one character"),
        (write(FrameKind.DATA, flags=frame.TOPIC, topic="a/+"), "wildcard"),
        (write(FrameKind.DATA, flags=frame.TOPIC, topic="a\0"), "U\\+0000"),
        (write(FrameKind.PRESENCE)[:2] + b"\0\2" + write(FrameKind.PRESENCE)[4:] + b"\0\1\xff", "not UTF-8"),
        (write(FrameKind.DATA, b"\0\1\0\1x", flags=frame.FRAGMENT), "fragment 1 of 1"),
        (write(FrameKind.DATA, b"\0\0\0\1x", flags=frame.FRAGMENT), "fragment 0 of 1"),
        (write(FrameKind.DATA, b"\0\2\0\2x", flags=frame.FRAGMENT), "fragment 2 of 2"),
        (write(FrameKind.DATA, b"\0\0\0\2", flags=frame.FRAGMENT), "nothing in it"),
        (write(FrameKind.DATA, b"\0" + bytes(16), flags=frame.FOREIGN), "origin"),
        (write(FrameKind.DATA, b"\x41" + b"o" * 65 + bytes(16), flags=frame.FOREIGN), "origin"),
        (write(FrameKind.DATA, b"\1o" + b"\x40" + bytes(15), flags=frame.FOREIGN), "message id"),
        (write(FrameKind.DATA, b"\1o" + bytes(8) + b"\x40" + bytes(7), flags=frame.FOREIGN), "message id"),
        (write(FrameKind.DATA, b"\0\x10" + bytes(5) + b"\1", flags=frame.TIME), "published"),
        (write(FrameKind.DATA, b"\3\x23\0\1", flags=frame.PROPERTIES), "one MQTT connection"),
        (write(FrameKind.DATA, b"\2\x0b\1", flags=frame.PROPERTIES), "one MQTT connection"),
        (write(FrameKind.DATA, b"\2\x7e\1", flags=frame.PROPERTIES), "unknown property"),
        (write(FrameKind.REPAIR, bytes(12)), "torn range"),
        (write(FrameKind.REPAIR, bytes(12 + 10 * (frame.MAX_RANGES + 1))), "torn range"),
        (write(FrameKind.TOPICS, b"\0\1#"), "wildcard"),
        (write(FrameKind.INTEREST, b"\0\0\2a#"), "not alone"),
        (write(FrameKind.TOPICS, b"\0\1a" * (frame.MAX_NAMES + 1)), "more than 512"),
        (write(FrameKind.WELCOME, bytes(9)), "another length"),
        (write(FrameKind.ACKNOWLEDGEMENT, bytes(13)), "torn stream"),
        (write(FrameKind.ACKNOWLEDGEMENT, bytes(12 + 16 * (frame.MAX_ACKNOWLEDGED + 1))), "torn stream"),
        (write(FrameKind.ACKNOWLEDGEMENT, bytes(20) + b"\x40" + bytes(7)), "beyond the last"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_frame_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        read(data)


@pytest.mark.parametrize(
    "kind", [FrameKind.HEARTBEAT, FrameKind.GONE, FrameKind.CHALLENGE, FrameKind.PRESENCE, FrameKind.LEAVE]
)
def test_what_follows_a_body_of_fixed_size_is_left_for_later_versions(kind: FrameKind) -> None:
    value, wire = BODIES[kind]
    found = read(write(kind, bytes.fromhex(wire) + b"more")).body
    assert found == (value if kind not in (FrameKind.PRESENCE, FrameKind.LEAVE) else b"more")


def test_a_gone_of_an_earlier_version_has_no_count() -> None:
    assert read(write(FrameKind.GONE, frame.pack_gone(Gone(frame.EVERYONE, 2, 3))[:16])).body == Gone(
        frame.EVERYONE, 2
    )


def test_ranges_that_ask_for_nothing_are_left_out() -> None:
    asked = RepairRequest(SENDER, 0, [(0, 1), (1, 0), (4, 2)])
    assert read(write(FrameKind.REPAIR, frame.pack_repair(asked))).body.ranges == [(4, 2)]


def test_an_origin_that_does_not_fit_is_our_own_mistake() -> None:
    # Cut to fit it would be another id, and the message would pass for a new one.
    message = Message("t", b"", id=MessageId("o" * 65, 0, 1))
    with pytest.raises(ValueError, match="origin of 65 bytes"):
        frame.pack_content(message, ORIGIN, None)


@pytest.mark.parametrize("payload_bytes", [0, 1, 40])
def test_every_single_flipped_bit_of_a_sealed_frame_is_noticed(payload_bytes: int) -> None:
    keyring = Keyring.parse(f"1 {'ab' * 32}\n2 {'cd' * 32}", "keys")
    clear = write_message(Message("home/vacuum", bytes(payload_bytes), 1), 1.5, flags=frame.TOPIC)
    sealed = keyring.sealer(SENDER).seal(clear[: frame.HEADER_BYTES], clear[frame.HEADER_BYTES :])
    assert keyring.open(SENDER, sealed) == (1, clear[frame.HEADER_BYTES :])
    for position in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(SealError):
            keyring.open(bytes(flipped[8:16]), bytes(flipped))


@settings(max_examples=500)
@given(
    st.sampled_from(list(FrameKind)),
    st.integers(0, 0x0FFF),
    st.binary(max_size=100),
    st.integers(0, 2**64 - 1),
)
def test_any_bytes_are_a_frame_or_a_frame_error(
    kind: FrameKind, flags: int, body: bytes, sequence: int
) -> None:
    read_or_refuse(frame.HEADER.pack(1, kind, flags, 0, SENDER, sequence, sequence) + body)


@given(st.binary(max_size=200))
def test_bytes_that_are_hardly_a_frame_are_a_frame_error(data: bytes) -> None:
    read_or_refuse(data)


def read_or_refuse(data: bytes) -> None:
    """The check of tests/fuzz/fuzz_frame.py: what can be read can be written, and is then read the same."""
    try:
        found = read(data)
    except FrameError:
        return
    header, topic, body = found
    if header.kind != FrameKind.DATA:
        written = PACKERS[FrameKind(header.kind)](body)
        if header.kind == FrameKind.REPAIR and not body.ranges:
            return  # Ranges of nothing were left out, and a request for nothing cannot be written.
        assert read(data[: frame.HEADER_BYTES] + _topic_of(topic) + written).body == body
    elif header.flags & frame.FRAGMENT:
        assert frame.parse_fragment(frame.pack_fragment(*body)) == body
    elif header.flags & frame.BATCH:
        assert frame.parse_batch(frame.pack_batch(body)) == body
    else:
        flags, content = frame.pack_content(body, header.sender.hex(), body.published_at)
        assert frame.parse_content(body.topic, flags, body.id, content) == body


def _topic_of(topic: str | None) -> bytes:
    return b"" if topic is None else frame.pack_topic(topic)
