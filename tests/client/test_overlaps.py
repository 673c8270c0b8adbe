"""Overlapping filters, and the subscription identifiers that tell their copies of a message apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.client.overlaps import SubscriptionIdentifiers, overlap
from hedgerow.topics import matches

LEVELS = st.sampled_from(["a", "b", "", "$x"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.one_of(LEVELS, st.just("+")), max_size=3), st.sampled_from([[], ["#"], ["a"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/+", "+/b", True),
        ("a/+", "a/b/c", False),
        ("a/b/#", "a/+", True),
        ("a/b/#", "a", False),
        ("#", "$SYS/#", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/+", True),
        ("/", "+", False),
        ("/", "+/+", True),
    ],
)
def test_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


@given(FILTERS, FILTERS, NAMES)
def test_filters_that_match_one_name_overlap(one: str, other: str, name: str) -> None:
    if matches(one, name) and matches(other, name):
        assert overlap(one, other)


def test_filters_that_do_not_overlap_get_no_identifier() -> None:
    identifiers = SubscriptionIdentifiers()
    assert identifiers.add("a/#", []) == []
    assert identifiers.add("b/#", ["a/#"]) == []
    assert identifiers.add("a/#", ["a/#", "b/#"]) == []  # the same filter is one subscription
    assert not identifiers


def test_an_overlap_identifies_all_that_take_part() -> None:
    identifiers = SubscriptionIdentifiers()
    assert identifiers.add("a/b", ["a/#", "c"]) == ["a/#", "a/b"]
    assert identifiers.add("a/+", ["a/#", "c", "a/b"]) == ["a/+"]
    assert identifiers.add("$share/g/c", ["a/#", "c"]) == ["c", "$share/g/c"]
    numbers = [identifiers.get(each) for each in ("a/#", "a/b", "a/+", "c", "$share/g/c")]
    assert numbers == [1, 2, 3, 4, 5]
    identifiers.remove("a/b")
    assert identifiers.get("a/b") is None
    assert identifiers.add("a/b", ["a/#"]) == ["a/b"]
    assert identifiers.get("a/b") == 6  # messages of the old one may still be on their way
