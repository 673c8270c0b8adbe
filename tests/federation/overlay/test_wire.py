"""The bytes between members: every packet comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.overlay import wire
from hedgerow.federation.overlay.limits import MAX_ADDRESSES
from hedgerow.federation.overlay.wire import (
    PEERS_ALLOWED,
    OverlayKind,
    OverlayPacket,
    PacketError,
    Peer,
    ProofError,
)

KEY = bytes(range(32))
texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)
peers = st.builds(Peer, texts, st.lists(texts, max_size=MAX_ADDRESSES).map(tuple))


@st.composite
def packets(draw: st.DrawFn) -> OverlayPacket:
    kind = draw(st.sampled_from(OverlayKind))
    fewest, most = PEERS_ALLOWED[kind]
    some = draw(st.lists(peers, min_size=fewest, max_size=most))
    value, number = draw(st.integers(0, 255)), draw(st.integers(0, 2**32 - 1))
    return OverlayPacket(kind, value, number, tuple(some))


@given(packets(), st.integers(0, 2**64 - 1), st.sampled_from([None, KEY]))
def test_a_packet_comes_back_as_it_was(packet: OverlayPacket, sequence: int, key: bytes | None) -> None:
    data = wire.encode(packet, sequence, key, "a", "b")
    assert wire.decode(data, key, "a", "b") == (packet, sequence)
    assert len(data) <= wire.MAX_PACKET_BYTES


@given(packets(), st.data())
def test_a_byte_changed_anywhere_breaks_the_proof(packet: OverlayPacket, data: st.DataObject) -> None:
    good = wire.encode(packet, 1, KEY, "a", "b")
    at = data.draw(st.integers(1, len(good) - 1))  # the first byte is the version
    bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with pytest.raises(ProofError):
        wire.decode(bad, KEY, "a", "b")


@pytest.mark.parametrize(
    ("key", "sender", "receiver"),
    [
        (KEY[::-1], "a", "b"),
        (KEY, "c", "b"),
        (KEY, "a", "c"),
        (KEY, "ab", ""),
        (KEY, "", "ab"),
        (KEY, "b", "a"),
    ],
)
def test_a_proof_is_of_one_key_sender_and_receiver(key: bytes, sender: str, receiver: str) -> None:
    data = wire.encode(OverlayPacket(OverlayKind.RELEASE), 1, KEY, "a", "b")
    with pytest.raises(ProofError):
        wire.decode(data, key, sender, receiver)


def test_a_packet_without_a_proof_is_none_of_a_member() -> None:
    data = wire.encode(OverlayPacket(OverlayKind.RELEASE), 1, None, "a", "b")
    with pytest.raises(ProofError):
        wire.decode(data, KEY, "a", "b")


@given(packets(), st.data())
def test_the_packet_has_no_more_bytes_and_no_fewer(packet: OverlayPacket, data: st.DataObject) -> None:
    good = wire.encode(packet, 1, None, "a", "b")
    for bad in (good + b"\0", good[: data.draw(st.integers(0, len(good) - 1))]):
        with pytest.raises(PacketError):
            wire.decode(bad, None, "a", "b")


@given(st.binary(max_size=300), st.booleans())
def test_noise_is_refused_and_nothing_else_happens(noise: bytes, has_version: bool) -> None:
    data = bytes([wire.VERSION]) + noise if has_version else noise
    for key in (None, KEY):
        with suppress(PacketError):
            wire.decode(data, key, "a", "b")


HEADER = "01 {kind:02x} 00 00000000 0000000000000001 {count:02x}"


@pytest.mark.parametrize(
    ("kind", "count", "rest"),
    [
        (0, 0, ""),
        (99, 0, ""),
        (OverlayKind.JOIN, 0, ""),
        (OverlayKind.JOIN, 2, "0161 00 0162 00"),
        (OverlayKind.JOIN, 1, "00 00"),  # no id
        (OverlayKind.JOIN, 1, "010a 00"),  # a line feed for an id
        (OverlayKind.JOIN, 1, "0161 01 00"),  # an empty address
        (OverlayKind.JOIN, 1, "0161 01 0a 61"),  # a text longer than the packet
        (OverlayKind.JOIN, 1, "0161 05 0162 0162 0162 0162 0162"),
        (OverlayKind.JOIN, 1, "01ff 00"),
        (OverlayKind.JOIN, 1, "81" + "61" * 129 + "00"),
        (OverlayKind.SHUFFLE, 17, "0161 00" * 17),
        (OverlayKind.NEIGHBOUR_REPLY, 1, "0161 00"),
    ],
)
def test_what_is_no_packet(kind: int, count: int, rest: str) -> None:
    with pytest.raises(PacketError):
        wire.decode(bytes.fromhex(HEADER.format(kind=kind, count=count) + rest), None, "a", "b")


def test_another_version_is_told_apart() -> None:
    with pytest.raises(wire.UnknownVersionError):
        wire.decode(b"\x02" + bytes(50), KEY, "a", "b")
