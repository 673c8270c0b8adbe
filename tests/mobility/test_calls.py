"""Whom a mobile broker dials: one at a time, and nobody while there is a link."""

from __future__ import annotations

from hedgerow.mobility.calls import FIRST_PAUSE_S, Calls

HOUSE, NORTH = "mqtt://house", "mqtt://north"


def linked_calls() -> Calls:
    calls = Calls((HOUSE,), 0.0)
    assert calls.take(0.0) == [HOUSE]
    calls.answered(HOUSE)
    calls.proved(HOUSE)
    return calls


def test_a_link_that_is_lost_is_dialled_again() -> None:
    calls = linked_calls()
    assert calls.take(5.0) == []
    calls.failed(HOUSE, 5.0)
    assert calls.take(5.0) == []
    assert calls.take(5.0 + FIRST_PAUSE_S) == [HOUSE]


def test_nobody_is_dialled_when_a_second_link_has_taken_the_place_of_the_first() -> None:
    """An attempt that hung while the link was cut gets through when it is back, and so does the next one: the
    fixed broker ends the older link, which is told after or before the newer one has answered."""
    calls = linked_calls()
    calls.failed(HOUSE, 5.0)
    calls.answered(HOUSE)
    assert calls.take(5.0 + 10 * FIRST_PAUSE_S) == []


def test_an_answer_of_one_that_is_not_listed_any_more_stops_no_attempt() -> None:
    calls = linked_calls()
    calls.failed(HOUSE, 5.0)
    calls.set_urls((NORTH,), set())
    calls.answered(HOUSE)
    assert calls.take(6.0) == [NORTH]


def test_an_attempt_at_one_that_is_not_listed_any_more_holds_up_nobody() -> None:
    calls = Calls((HOUSE, NORTH), 0.0)
    assert calls.take(0.0) == [HOUSE]
    calls.answered(HOUSE)
    calls.set_urls((NORTH,), {HOUSE})
    assert calls.take(1.0) == [NORTH]
    calls.set_urls((HOUSE,), {HOUSE})
    calls.failed(HOUSE, 5.0)
    assert calls.deadline == 5.0 + FIRST_PAUSE_S
    assert calls.take(6.0) == [HOUSE]


def test_nothing_is_due_while_an_attempt_is_under_way() -> None:
    """Another link comes and goes meanwhile: a deadline that nobody could keep would never let go."""
    calls = Calls((NORTH, HOUSE), 0.0)
    assert calls.take(0.0) == [NORTH]
    calls.answered(HOUSE)
    calls.failed(HOUSE, 1.0)
    assert calls.deadline == float("inf")
    calls.failed(NORTH, 5.0)
    assert 5.0 < calls.deadline < 10.0
    assert len(calls.take(calls.deadline)) == 1


def test_nothing_is_due_where_nobody_is_listed() -> None:
    calls = Calls((), 0.0)
    assert calls.deadline == float("inf")
    assert calls.take(1.0) == []
