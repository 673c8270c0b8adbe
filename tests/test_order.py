"""Tests are dealt to processes: the long ones first, each once, and Spark's to one alone."""

from __future__ import annotations

import itertools

import pytest

from tests.order import deal, in_order

SPARK, LIVE, SHORT = ([f"{kind}{number}" for number in range(20)] for kind in ("spark", "live", "short"))


def test_each_run_begins_with_what_is_long() -> None:
    dealt = deal(SPARK[:2], LIVE[:5], SHORT[:13], 2)
    assert dealt[:10] == [*SPARK[:2], *LIVE[2:5], *SHORT[:5]]
    assert dealt[10:] == [*LIVE[:2], *SHORT[5:13]]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize("counts", [(2, 5, 13), (20, 1, 1), (0, 20, 0), (1, 0, 0), (0, 0, 0), (3, 20, 20)])
def test_each_is_dealt_once(counts: tuple[int, int, int], processes: int) -> None:
    hands = [all_of[:count] for all_of, count in zip((SPARK, LIVE, SHORT), counts, strict=True)]
    dealt = deal(hands[0], hands[1], hands[2], processes)
    assert sorted(dealt) == sorted(itertools.chain(*hands))
    assert dealt[: len(hands[0])] == hands[0]


def test_kinds_are_told_apart_by_place_and_fixture(request: pytest.FixtureRequest) -> None:
    """All that this run has collected, whatever that is."""
    items = request.session.items
    ordered = in_order(items, 2)
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)
    uses_spark = ["spark" in getattr(item, "fixturenames", ()) for item in ordered]
    assert uses_spark == sorted(uses_spark, reverse=True)
