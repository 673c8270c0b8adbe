"""The duplicate log: says once that an id is new, within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.duplicates import DuplicateLog
from hedgerow.message import MessageId


def message_id(sequence: int, origin: str = "node", epoch: int = 1) -> MessageId:
    return MessageId(origin, epoch, sequence)


def test_an_id_is_new_once() -> None:
    log = DuplicateLog(100)
    assert not log.seen(message_id(1), 0.0)
    assert log.seen(message_id(1), 0.0)
    assert log.seen(message_id(1), 1.0)


def test_origin_epoch_and_sequence_all_count() -> None:
    log = DuplicateLog(100)
    ids = [message_id(1), message_id(2), message_id(1, origin="other"), message_id(1, epoch=2)]
    assert [log.seen(each, 0.0) for each in ids] == [False] * 4
    assert [log.seen(each, 0.0) for each in ids] == [True] * 4


def test_an_id_is_remembered_for_its_time() -> None:
    log = DuplicateLog(100, min_age_s=10.0)
    log.seen(message_id(0), 0.0)
    log.seen(message_id(1), 9.0)
    assert not log.seen(message_id(2), 10.5)
    assert log.seen(message_id(1), 18.9)
    assert log.forgotten_early == 0


def test_an_id_is_forgotten_in_the_end() -> None:
    log = DuplicateLog(100, min_age_s=10.0)
    for number in range(5):
        log.seen(message_id(number), 10.0 * number)
    assert len(log) == 2
    assert not log.seen(message_id(0), 50.0)


def test_an_id_that_keeps_coming_back_is_kept() -> None:
    log = DuplicateLog(100, min_age_s=10.0)
    log.seen(message_id(0), 0.0)
    for number in range(1, 20):
        log.seen(message_id(number), 9.0 * number)
        assert log.seen(message_id(0), 9.0 * number)


def test_a_flood_pushes_out_the_oldest_and_is_counted() -> None:
    log = DuplicateLog(100, min_age_s=10.0)
    for number in range(1_000):
        assert not log.seen(message_id(number), 0.0)
        assert len(log) <= 100
    assert log.forgotten_early == 900
    assert all(log.seen(message_id(number), 0.0) for number in range(950, 1_000))
    assert not log.seen(message_id(0), 0.0)


def test_an_id_that_is_there_is_known_even_at_the_moment_that_makes_room() -> None:
    log = DuplicateLog(4, min_age_s=10.0)
    for number in range(4):
        log.seen(message_id(number), 0.0)
    assert log.seen(message_id(0), 0.0)


def test_a_log_needs_room() -> None:
    with pytest.raises(ValueError, match="at least two"):
        DuplicateLog(1)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 5)), max_size=200), st.integers(2, 40))
def test_it_answers_as_a_log_that_forgets_nothing_would_while_it_must_remember(
    steps: list[tuple[int, float]], max_entries: int
) -> None:
    log = DuplicateLog(max_entries, min_age_s=10.0)
    now = 0.0
    history: list[tuple[int, float]] = []
    for number, pause_s in steps:
        now += pause_s
        last = max((position for position, (each, _) in enumerate(history) if each == number), default=None)
        answer = log.seen(message_id(number), now)
        if last is None:
            assert not answer
        elif now - history[last][1] < 10.0:
            others = {each for each, _ in history[last + 1 :]}
            assert answer or len(others) >= max_entries // 2
        history.append((number, now))
        assert len(log) <= max_entries
