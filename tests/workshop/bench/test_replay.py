"""`hedgerow bench replay`: its rows, and what it promises, with a node that has little to tell."""

from __future__ import annotations

from hedgerow_workshop.bench.peers import BROKERS, OURS
from hedgerow_workshop.bench.replay import ALONE, LIVE_ROW, ROW_NAMES, Sizes, measure
from tests.workshop.bench.test_end_to_end import MOMENT

SIZES = Sizes(runs=1_000, others=400, live_s=0.05)


def test_every_row_is_measured() -> None:
    result = measure(BROKERS[OURS], MOMENT, SIZES)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert all(row.ours > 0 for row in result.rows)
    assert [row.name for row in result.rows if row.peers] == [LIVE_ROW]
    assert result.rows[-1].peers.keys() == {ALONE}


def test_only_the_rows_asked_for() -> None:
    (row,) = measure(BROKERS[OURS], MOMENT, SIZES, ("qos1",)).rows
    assert (row.name, row.unit) == ("qos1", "msg/s")
