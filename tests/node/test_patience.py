"""How long messages wait for acknowledgements before they are written."""

from __future__ import annotations

from hedgerow.node.patience import LEAST_S, MOST_S, Patience


def test_it_waits_as_long_as_a_commit_takes() -> None:
    patience = Patience()
    assert patience.wait_s == 0
    for took_s, wait_s in ((0.005, 0.005), (0.0, LEAST_S), (7.0, MOST_S)):
        patience.stored(True, took_s)
        assert patience.wait_s == wait_s
    patience.stored(False, 0.005)
    assert patience.wait_s == 0


def test_it_is_given_up_for_longer_each_time_that_it_was_in_vain() -> None:
    patience = Patience()
    for expected in (1, 2, 4):
        patience.stored(True, 0.005)
        assert patience.wait_s
        patience.in_vain()
        for _ in range(expected):
            assert not patience.wait_s
            patience.stored(True, 0.005)
    patience.stored(True, 0.005)
    patience.paid()
    patience.in_vain()
    patience.stored(True, 0.005)
    assert not patience.wait_s
    patience.stored(True, 0.005)
    assert patience.wait_s
