"""The counting Bloom filter: what was added is in it, what was not seldom, and bytes say the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.mobility.delegation.bloom import (
    FALSE_POSITIVE_RATE,
    MAX_CAPACITY,
    MAX_COUNT,
    BloomError,
    CountingBloomFilter,
)

names = st.text(max_size=12)


def filled(capacity: int, prefix: str = "client") -> CountingBloomFilter:
    members = CountingBloomFilter(capacity)
    for index in range(capacity):
        members.add(f"{prefix}-{index}@m1")
    return members


@pytest.mark.parametrize("capacity", [10, 100, 1_000])
def test_the_false_positive_rate_is_within_its_bound(capacity: int) -> None:
    filters = max(1, 1_000 // capacity)  # Of small ones several, since each is lucky or unlucky as a whole.
    tries = 20_000 // filters
    found = sum(
        f"stranger-{number}-{index}@m1" in members
        for number in range(filters)
        for members in [filled(capacity, f"client-{number}")]
        for index in range(tries)
    )
    assert 0 < found <= FALSE_POSITIVE_RATE * tries * filters


@given(st.lists(names, max_size=60), st.data())
def test_what_was_added_and_not_removed_is_in_it(added: list[str], data: st.DataObject) -> None:
    members = CountingBloomFilter(max(1, len(added)))
    for name in added:
        members.add(name)
    removed = data.draw(st.lists(st.sampled_from(added), unique=True)) if added else []
    for name in removed:
        assert members.remove(name)
    left = list(added)
    for name in removed:
        left.remove(name)
    assert all(name in members for name in left)
    assert len(members) == len(left)


def test_removing_everything_leaves_nothing() -> None:
    members = filled(50)
    for index in range(50):
        members.remove(f"client-{index}@m1")
    assert not any(f"client-{index}@m1" in members for index in range(50))
    assert members.encode() == CountingBloomFilter(50).encode()


def test_what_is_not_in_it_cannot_be_removed() -> None:
    members = filled(10)
    before = members.encode()
    assert not members.remove("a stranger")
    assert members.encode() == before


def test_a_counter_that_overflowed_never_denies_a_member() -> None:
    members = CountingBloomFilter(1)
    for _ in range(MAX_COUNT + 5):
        members.add("a")
    for _ in range(MAX_COUNT + 4):
        members.remove("a")
    assert "a" in members


@given(st.integers(1, 80), st.lists(names, max_size=100))
def test_bytes_and_back(capacity: int, added: list[str]) -> None:
    members = CountingBloomFilter(capacity)
    for name in added:
        members.add(name)
    again = CountingBloomFilter.decode(members.encode())
    assert (again.capacity, len(again)) == (capacity, len(members))
    assert again.encode() == members.encode()
    assert all(name in again for name in added)


def test_the_bytes_are_few() -> None:
    full, nearly_empty = filled(1_000), CountingBloomFilter(1_000)
    nearly_empty.add("a")
    assert len(full.encode()) <= 10 + 1_000 * 6
    assert len(nearly_empty.encode()) < 40


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_filter_or_refused(data: bytes) -> None:
    try:
        CountingBloomFilter.decode(b"\x01\0\0" + data)
    except BloomError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + filled(3).encode()[1:],
        b"\x01" + (MAX_CAPACITY + 1).to_bytes(4, "big") + bytes(4) + b"\x01",
        b"\x01" + bytes(4) + bytes(4) + b"\x01",
        filled(3).encode() + b"\xf1\x7f",
        filled(3).encode()[:-1] + b"\xff",
        b"\x01\0\0\0\x02\0\0\0\0\x00" + bytes(11),
        b"\x01\0\0\0\x02\0\0\0\0\x01" + b"\x00",
        b"\x01\0\0\0\x02\0\0\0\0\x02",
    ],
)
def test_bytes_that_are_no_filter(data: bytes) -> None:
    with pytest.raises(BloomError):
        CountingBloomFilter.decode(data)
