"""The bytes of tunnels: every frame comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.tunnel import frames
from hedgerow.federation.tunnel.frames import (
    Seal,
    TunnelFrame,
    TunnelFrameError,
    TunnelFrameKind,
    quote_node_id,
    unquote_node_id,
)
from hedgerow.topics import validate_name

KEY = bytes(range(32))
numbers = st.integers(0, 2**64 - 1)
names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)


@st.composite
def some_frames(draw: st.DrawFn) -> TunnelFrame:
    kind = draw(st.sampled_from(TunnelFrameKind))
    head = kind, draw(st.booleans()), draw(numbers), draw(names)
    if kind in (TunnelFrameKind.OPEN, TunnelFrameKind.OPENED):
        return TunnelFrame(*head, data=draw(st.binary(min_size=16, max_size=16)))
    if kind is TunnelFrameKind.CLOSE:
        return TunnelFrame(*head, reason=draw(names))
    data = draw(st.binary(min_size=1, max_size=50)) if kind is TunnelFrameKind.DATA else b""
    return TunnelFrame(*head, sequence=draw(numbers), acknowledged=draw(numbers), data=data)


seals = st.sampled_from([Seal(None), Seal(KEY, b"context")])


@given(some_frames(), seals)
def test_a_frame_comes_back_as_it_was(frame: TunnelFrame, seal: Seal) -> None:
    payload = frames.encode(frame, seal)
    assert frames.decode(payload) == frame
    assert seal.accepts(payload)


def test_the_largest_frame_is_taken_and_a_larger_one_is_not() -> None:
    data = bytes(frames.MAX_DATA_BYTES)
    payload = frames.encode(TunnelFrame(TunnelFrameKind.DATA, True, 1, "n" * 255, 0, 0, data), Seal(KEY))
    assert len(payload) == frames.MAX_FRAME_BYTES
    assert frames.decode(payload).data == data
    with pytest.raises(TunnelFrameError, match="too large"):
        frames.decode(payload + b"x")
    with pytest.raises(TunnelFrameError, match="malformed"):
        frames.decode(
            frames.encode(TunnelFrame(TunnelFrameKind.DATA, True, 1, "n", 0, 0, data + b"x"), Seal(None))
        )


@given(some_frames(), st.data())
def test_a_byte_changed_anywhere_breaks_the_proof(frame: TunnelFrame, data: st.DataObject) -> None:
    seal = Seal(KEY, b"context")
    good = frames.encode(frame, seal)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with suppress(TunnelFrameError):
        frames.decode(bad)
        assert not seal.accepts(bad)


@pytest.mark.parametrize(
    "other",
    [Seal(None), Seal(KEY[::-1], b"a", b"b"), Seal(KEY, b"ab"), Seal(KEY, b"", b"ab"), Seal(KEY, b"b", b"a")],
)
def test_a_proof_is_of_one_key_and_one_context(other: Seal) -> None:
    payload = frames.encode(TunnelFrame(TunnelFrameKind.ACK, True, 1, "node", 2, 3), Seal(KEY, b"a", b"b"))
    assert Seal(KEY, b"a", b"b").accepts(payload)
    assert not other.accepts(payload)


def test_a_frame_without_a_proof_does_not_count_where_there_is_a_key() -> None:
    payload = frames.encode(TunnelFrame(TunnelFrameKind.ACK, True, 1, "node", 2, 3), Seal(None))
    assert not Seal(KEY).accepts(payload)


def opening(number: int = 7, sender: str = "dialler", data: bytes = bytes(16)) -> TunnelFrame:
    return TunnelFrame(TunnelFrameKind.OPEN, False, number, sender, data=data)


def answer(sender: str = "federator", data: bytes = bytes(range(16))) -> TunnelFrame:
    return TunnelFrame(TunnelFrameKind.OPENED, True, 7, sender, data=data)


OPENING, ANSWER = opening(), answer()


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    ("opening", "answer"),
    [
        (opening(number=8), ANSWER),
        (opening(sender="other"), ANSWER),
        (opening(data=bytes(range(1, 17))), ANSWER),
        (OPENING, answer(sender="other")),
        (OPENING, answer(data=bytes(16))),
    ],
)
def test_every_part_of_the_handshake_makes_another_session(
    key: bytes | None, opening: TunnelFrame, answer: TunnelFrame
) -> None:
    one, other = frames.agree(key, OPENING, ANSWER), frames.agree(key, opening, answer)
    assert one.number != other.number
    payload = frames.encode(TunnelFrame(TunnelFrameKind.ACK, True, one.number, "federator"), one.seal)
    assert frames.agree(key, OPENING, ANSWER).seal.accepts(payload)
    assert other.seal.accepts(payload) is (key is None)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "malformed"),
        (b"\x01\x04", "malformed"),
        (bytes([2, 4]) + bytes(40), "version"),
        (bytes([1, 0]) + bytes(40), "kind"),
        (bytes([1, 6]) + bytes(40), "kind"),
        (bytes([1, 4]) + bytes(9) + bytes(16), "malformed"),  # no node id
        (bytes([1, 4]) + bytes(8) + b"\x01\n" + bytes(16), "malformed"),
        (bytes([1, 4]) + bytes(8) + b"\x01\xff" + bytes(16), "malformed"),
        (bytes([1, 4]) + bytes(8) + b"\x09n" + bytes(6), "malformed"),
        (bytes([1, 4]) + bytes(8) + b"\x01n" + bytes(17), "malformed"),  # an ACK with data
        (bytes([1, 3]) + bytes(8) + b"\x01n" + bytes(16), "malformed"),  # DATA without
        (bytes([1, 0x44]) + bytes(8) + b"\x01n" + bytes(16), "malformed"),  # the numbers are the proof
        (bytes([1, 1]) + bytes(8) + b"\x01n" + bytes(15), "malformed"),
        (bytes([1, 5]) + bytes(8) + b"\x01n" + b"x" * 201, "malformed"),
    ],
)
def test_what_is_no_frame_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(TunnelFrameError, match=f"^{reason}$"):
        frames.decode(payload)


@given(st.binary(max_size=100), st.integers(0, 255), st.booleans())
def test_noise_is_refused_and_nothing_else_happens(noise: bytes, kind: int, has_head: bool) -> None:
    payload = bytes([frames.VERSION, kind]) + noise if has_head else noise
    with suppress(TunnelFrameError):
        frames.decode(payload)
        assert not Seal(KEY).accepts(payload)


@given(st.text(max_size=300))
def test_a_reason_fits_and_is_one_line(reason: str) -> None:
    payload = frames.encode(TunnelFrame(TunnelFrameKind.CLOSE, True, 1, "n", reason=reason), Seal(None))
    decoded = frames.decode(payload).reason
    assert decoded.isprintable()
    assert len(decoded.encode()) <= frames.MAX_REASON_BYTES


def test_a_reason_that_would_write_to_the_terminal_does_not() -> None:
    payload = (
        frames.encode(TunnelFrame(TunnelFrameKind.CLOSE, True, 1, "n"), Seal(None))
        + b"\x1b[2J\nroot: all is well\xff"
    )
    assert frames.decode(payload).reason == " [2J root: all is well\ufffd"


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=20))
def test_a_quoted_node_id_is_one_topic_level_and_comes_back(node_id: str) -> None:
    level = quote_node_id(node_id)
    assert not set(level) & set("/+#$")
    validate_name(frames.NODE_TOPIC + level)
    assert unquote_node_id(level) == node_id


@pytest.mark.parametrize(
    ("node_id", "level"),
    [("gate-7.lan", "gate-7.lan"), ("a/b", "a%2Fb"), ("$100%", "%24100%25"), ("é #", "é %23"), ("\n", "%0A")],
)
def test_quoting(node_id: str, level: str) -> None:
    assert quote_node_id(node_id) == level


@pytest.mark.parametrize(
    "level", ["a/b", "%", "%2", "%2f", "%41", "% 2", "%zz", "%FF", "+", "\n", "%%25", "", "\ud800"]
)
def test_what_quoting_never_writes_is_refused(level: str) -> None:
    with pytest.raises(ValueError, match="is no quoted node id"):
        unquote_node_id(level)


@pytest.mark.parametrize("node_id", ["", "a\nb", "n" * 256, "é" * 128])
def test_a_node_id_that_cannot_be_sent_is_refused(node_id: str) -> None:
    with pytest.raises(ValueError, match="is no node id"):
        frames.check_node_id(node_id)
