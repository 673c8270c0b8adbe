"""The data log: its size, and the least age of what it forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.document.data_log import ENTRY_BYTES, MOST, DataLog, key_of
from hedgerow.federation.document.numbers import PublicationId


def key(number: int) -> bytes:
    return key_of("t", PublicationId(1, number), b"x")


def test_what_was_here_is_known() -> None:
    log = DataLog(10 * ENTRY_BYTES, 0)
    assert log.holders(key(1)) is None
    log.note(key(1), 0, 0.0)
    assert log.holders(key(1)) == 0


def test_who_has_it_is_known_and_makes_it_no_younger() -> None:
    log = DataLog(2 * ENTRY_BYTES, 0)
    for number in (1, 2, 1):
        log.note(key(number), number, 0.0)
    log.note(key(1), 0b101, 9.0)
    assert log.holders(key(1)) == 0b101
    log.note(key(3), 0, 9.0)
    assert (log.holders(key(1)), log.holders(key(2)), len(log)) == (None, 2, 2)


def test_the_payload_the_topic_and_both_numbers_count() -> None:
    keys = {
        key_of("t", PublicationId(1, 2), b"x"),
        key_of("t", PublicationId(1, 2), b"y"),
        key_of("u", PublicationId(1, 2), b"x"),
        key_of("t", PublicationId(1, 3), b"x"),
        key_of("t", PublicationId(2, 2), b"x"),
    }
    assert len(keys) == 5


def test_beyond_its_size_the_oldest_is_forgotten() -> None:
    log = DataLog(10 * ENTRY_BYTES, 0)
    for number in range(11):
        log.note(key(number), 0, float(number))
    assert len(log) == 10
    assert key(0) not in log
    assert key(1) in log


def test_what_is_younger_than_the_least_age_is_kept_beyond_its_size() -> None:
    log = DataLog(10 * ENTRY_BYTES, 5.0)
    for number in range(20):
        log.note(key(number), 0, number / 10)
    assert len(log) == 20
    log.note(key(20), 0, 6.05)  # The first eleven are older than 5 s.
    assert len(log) == 10
    assert key(11) in log
    assert key(10) not in log


@given(st.integers(1, 30), st.floats(0, 100), st.lists(st.floats(0, 1), max_size=300))
def test_it_is_bounded_however_fast_things_come(size: int, least_age_s: float, gaps: list[float]) -> None:
    log = DataLog(size * ENTRY_BYTES, least_age_s)
    now = 0.0
    times = []
    for number, gap in enumerate(gaps):
        now += gap
        times.append(now)
        assert log.holders(key(number)) is None
        log.note(key(number), 0, now)
        assert len(log) <= size * MOST
        if len(log) < size * MOST:
            young = [number for number, at in enumerate(times) if at + least_age_s > now]
            assert all(key(number) in log for number in young)
