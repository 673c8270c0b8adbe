"""Every packet there and back; what is no packet is refused with a reason, whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.mesh import wire
from hedgerow.federation.mesh.limits import MAX_PACKET_BYTES, MAX_SEQUENCE, PART_BYTES
from hedgerow.federation.mesh.wire import (
    About,
    CoreAnnouncement,
    Correction,
    FilterChanges,
    FilterList,
    MembershipAnnouncement,
    MeshKind,
    Question,
    RegularTopic,
    Repair,
    WireError,
    decode,
    encode_packet,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
numbers = st.integers(0, MAX_SEQUENCE)
filters = st.sampled_from(["a", "a/b", "a/+", "#", "/", "a/b/ü😀", "x" * 500])
rows = st.lists(filters, max_size=6).map(tuple)
changes = st.one_of(
    st.builds(FilterChanges, numbers, numbers, numbers, rows, rows).filter(
        lambda each: each.since != each.version
    ),
    st.builds(lambda version, size: FilterChanges(version, version, size), numbers, numbers),
)
editions = st.integers(1, MAX_SEQUENCE)
tenths = st.integers(1, 10_000).map(lambda number: number / 10)
ENTRIES: dict[MeshKind, tuple[st.SearchStrategy[Any], Callable[[Any], bytes]]] = {
    MeshKind.CORE_ANN: (
        st.builds(CoreAnnouncement, names, numbers, numbers, tenths, changes, st.just(0)),
        wire.encode_core_announcement,
    ),
    MeshKind.PART_ANN: (
        st.builds(CoreAnnouncement, names, numbers, numbers, tenths, changes, editions),
        wire.encode_core_announcement,
    ),
    MeshKind.MESH_MEMB_ANN: (
        st.builds(MembershipAnnouncement, names, numbers, changes),
        wire.encode_membership,
    ),
    MeshKind.NEW_REGULAR_TOPIC: (st.builds(RegularTopic, filters, st.booleans()), wire.encode_regular_topic),
    MeshKind.ASK: (st.builds(Question, st.sampled_from(About), names), wire.encode_question),
    MeshKind.LIST: (
        st.builds(FilterList, names, numbers, st.booleans(), st.booleans(), numbers, rows, st.just(0)),
        wire.encode_list,
    ),
    MeshKind.PART_LIST: (
        st.builds(FilterList, names, numbers, st.booleans(), st.booleans(), numbers, rows, editions),
        wire.encode_list,
    ),
    MeshKind.REPAIR: (st.builds(Repair, names, numbers), wire.encode_repair),
    MeshKind.DISTANCE: (st.builds(Correction, names, numbers, numbers), wire.encode_correction),
}
packets = st.sampled_from(sorted(ENTRIES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(ENTRIES[kind][0], max_size=4))
)


def encode(kind: MeshKind, entries: list[Any]) -> bytes:
    return encode_packet(kind, map(ENTRIES[kind][1], entries))


@given(packets)
def test_there_and_back(packet: tuple[MeshKind, list[Any]]) -> None:
    assert decode(encode(*packet)) == packet


@given(packets, st.data())
def test_what_is_cut_short_is_refused_or_has_fewer_entries(
    packet: tuple[MeshKind, list[Any]], data: st.DataObject
) -> None:
    whole = encode(*packet)
    length = data.draw(st.integers(0, len(whole) - 1))
    try:
        _, entries = decode(whole[:length])
    except WireError:
        return
    assert entries == packet[1][: len(entries)]
    assert len(entries) < len(packet[1])


@settings(max_examples=500)
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda rest: b"\x01\x01" + rest)))
def test_any_bytes(payload: bytes) -> None:
    with suppress(WireError):
        decode(payload)


@given(packets, st.data())
def test_changed_bytes(packet: tuple[MeshKind, list[Any]], data: st.DataObject) -> None:
    damaged = bytearray(encode(*packet))
    damaged[data.draw(st.integers(2, max(2, len(damaged) - 1))) % len(damaged)] ^= data.draw(
        st.integers(1, 255)
    )
    with suppress(WireError):
        decode(bytes(damaged))


def row_of(*pieces: bytes) -> bytes:
    """A LIST of core "a" with these pieces as its filters."""
    return bytes((1, MeshKind.LIST, 1)) + b"a" + bytes((1, 3, len(pieces), len(pieces))) + b"".join(pieces)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "malformed"),
        (b"\x01", "malformed"),
        (b"\x02\x01", "version"),
        (b"\x00\x01", "version"),
        (b"\x01\x63", "kind"),
        (bytes((1, MeshKind.DATA)), "kind"),
        (bytes((1, MeshKind.CORE_ANN)) + bytes(MAX_PACKET_BYTES), "too large"),
        (bytes((1, MeshKind.REPAIR, 1)) + b"a\x80\x00", "malformed"),  # a number in two forms
        (bytes((1, MeshKind.REPAIR, 1)) + b"a" + b"\xff" * 9 + b"\x01", "malformed"),  # too large a number
        (bytes((1, MeshKind.REPAIR, 1)) + b"a" + b"\xff" * 40, "malformed"),
        (bytes((1, MeshKind.REPAIR, 0, 1)), "malformed"),  # no id
        (bytes((1, MeshKind.REPAIR, 2)) + b"\xc3\x28\x01", "malformed"),  # no UTF-8
        (bytes((1, MeshKind.ASK, 9, 1)) + b"a", "malformed"),
        (row_of(b"\x01\x01a"), "malformed"),  # shares with nothing
        (row_of(b"\x00\x03a#b"), "malformed"),  # no filter
        (row_of(b"\x00\x00"), "malformed"),
        (row_of(b"\x00\x06$SYS/#"), "local topic"),
    ],
)
def test_refused_with_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=f"^{reason}$"):
        decode(payload)


def test_a_small_packet_does_not_unfold_into_gigabytes() -> None:
    long = b"x" * 60_000
    first = b"\x00" + wire.encode_numbers(len(long)) + long
    again = wire.encode_numbers(len(long), 0)
    payload = bytes((1, MeshKind.LIST, 1)) + b"a" + b"\x01\x03\x01" + wire.encode_numbers(10_001)
    with pytest.raises(WireError, match="too large"):
        decode(payload + first + again * 10_000)


def test_filters_share_their_beginnings() -> None:
    row = tuple(f"site/hall 3/machine {number:05}/temperature" for number in range(300))
    packed = wire.encode_list(FilterList("a", 1, True, True, len(row), row))
    assert len(packed) < sum(map(len, row)) * 0.5


@given(st.lists(filters, max_size=200))
def test_parts_are_all_of_it_and_each_fits(row: list[str]) -> None:
    cut = wire.parts(row, PART_BYTES)
    assert [each for part in cut for each in part] == row
    for part in cut:
        decode(encode(MeshKind.LIST, [FilterList("a", 1, True, True, 0, part)]))
    longest = "ü" * 32_767
    assert wire.parts([longest, longest], PART_BYTES) == [(longest,), (longest,)]
