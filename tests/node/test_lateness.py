"""The most by which timers were late, over a window that moves."""

from __future__ import annotations

from hedgerow.node.lateness import WINDOW_S, Lateness


def test_the_latest_counts_for_at_least_one_window_and_less_than_three() -> None:
    lateness = Lateness()
    lateness.note(0.2, 100.0)
    lateness.note(0.1, 101.0)
    assert lateness.maximum(102.0) == 0.2
    assert lateness.maximum(100.0 + WINDOW_S) == 0.2
    assert lateness.maximum(100.0 + 2 * WINDOW_S) == 0.0


def test_after_a_long_silence_nothing_old_is_told() -> None:
    lateness = Lateness()
    lateness.note(0.2, 100.0)
    assert lateness.maximum(100.0 + 5 * WINDOW_S) == 0.0


def test_reading_takes_nothing_away() -> None:
    lateness = Lateness()
    lateness.note(0.2, 100.0)
    assert [lateness.maximum(101.0), lateness.maximum(101.0)] == [0.2, 0.2]
