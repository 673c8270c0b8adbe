"""The duplicate log: says once that an id is new, within its bounds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.duplicates import LIFE_BYTES, MAX_SEQUENCE, MOST_GROWTH, PAGE_BYTES, DuplicateLog, PageKey
from hedgerow.message import MessageId

PAGE = 2_048  # sequences
SMALL = 16 * (LIFE_BYTES + PAGE_BYTES)


def message_id(sequence: int, origin: str = "node", epoch: int = 1) -> MessageId:
    return MessageId(origin, epoch, sequence)


def test_an_id_is_new_once() -> None:
    log = DuplicateLog()
    assert not log.seen(message_id(1))
    assert log.seen(message_id(1))
    assert log.seen(message_id(1))


def test_origin_epoch_and_sequence_all_count() -> None:
    log = DuplicateLog()
    ids = [message_id(1), message_id(2), message_id(1, origin="other"), message_id(1, epoch=2)]
    assert [log.seen(each) for each in ids] == [False] * 4
    assert [log.seen(each) for each in ids] == [True] * 4


def test_millions_of_dense_ids_are_remembered() -> None:
    """What came long ago is still known, and nothing is taken for seen because its number is low."""
    log = DuplicateLog()
    life = log.life("node", 1)
    for sequence in range(0, 2_000_000, 7):
        assert not life.seen(sequence)
    assert log.seen(message_id(0))
    assert log.seen(message_id(7 * 200_000))
    assert not log.seen(message_id(7 * 200_000 + 1))
    assert log.forgotten == 0
    assert log.bytes < 1024 * 1024


def test_the_page_unused_for_longest_is_forgotten_first() -> None:
    log = DuplicateLog(SMALL)
    log.seen(message_id(1, "kept in use"))
    log.seen(message_id(1, "old"))
    for number in range(100):
        log.seen(message_id(1, f"flood {number}"))
        assert log.seen(message_id(1, "kept in use"))
        assert log.bytes <= SMALL
    assert not log.seen(message_id(1, "old"))
    assert log.forgotten == log.forgotten_lives > 80


def test_one_life_has_no_more_than_a_quarter() -> None:
    log = DuplicateLog(SMALL)
    log.seen(message_id(1, "other"))
    for number in range(1_000):
        assert not log.seen(message_id(number * PAGE))
    assert log.seen(message_id(1, "other"))
    assert log.bytes <= SMALL // 4 + 2 * (LIFE_BYTES + PAGE_BYTES)
    assert log.seen(message_id(999 * PAGE))
    assert not log.seen(message_id(0))


@pytest.mark.parametrize(
    "flood",
    [
        lambda number: f"mallory~{number}",
        lambda number: f"~{number}",
        lambda number: f"!link@node~{number}",
        lambda number: f"!as:a/{number}#b~mill",
    ],
    ids=["user", "anonymous", "link", "topics"],
)
def test_one_giver_has_no_more_than_a_quarter(flood: Callable[[int], str]) -> None:
    """Whoever may give ids can make up an origin for each: what others gave is still known."""
    log = DuplicateLog(SMALL)
    others = ["mill", "alice~press", "!user:barn@hill~mill"]
    for origin in others:
        assert not log.seen(message_id(1, origin))
    for number in range(1_000):
        assert not log.seen(message_id(1, flood(number)))
    assert all(log.seen(message_id(1, origin)) for origin in others)
    assert log.bytes <= SMALL // 4 + len(others) * 2 * (LIFE_BYTES + PAGE_BYTES)
    assert log.seen(message_id(1, flood(999)))


def test_the_lives_of_one_giver_are_bounded() -> None:
    log = DuplicateLog(max_lives=40)
    log.seen(message_id(1, "alice~press"))
    for number in range(1_000):
        log.seen(message_id(1, f"mallory~{number}"))
    assert log.life_count == 11
    assert log.seen(message_id(1, "alice~press"))


def test_of_one_giver_the_life_unused_for_longest_is_forgotten_first() -> None:
    log = DuplicateLog(max_lives=40)
    for number in range(100):
        log.seen(message_id(1, f"farm~{number}"))
        assert number == 0 or log.seen(message_id(1, "farm~0"))
    assert not log.seen(message_id(1, "farm~50"))


def test_what_is_forgotten_is_counted_no_longer() -> None:
    log = DuplicateLog(SMALL)
    for number in range(1_000):
        log.seen(message_id(number * PAGE, f"user-{number % 7}~{number % 50}"))
    for number in range(1_000):
        log.seen(message_id(number * PAGE, "node"))
        log.seen(message_id(1, f"node-{number}"))
    assert log.bytes <= SMALL


def test_forgotten_counts_ids() -> None:
    log = DuplicateLog(SMALL)
    for sequence in range(PAGE):
        log.seen(message_id(sequence))
    for number in range(1, 20):
        log.seen(message_id(number * PAGE))
    kept = (log.bytes - LIFE_BYTES) // PAGE_BYTES
    assert log.forgotten == PAGE + 19 - kept


def test_lives_are_bounded() -> None:
    log = DuplicateLog(max_lives=10)
    first = log.life("first", 1)
    first.seen(1)
    for number in range(9):
        log.seen(message_id(1, f"{number}"))
    first.seen(1)
    log.seen(message_id(1, "one more"))
    assert log.life_count == 10
    assert log.forgotten_lives == log.forgotten == 1
    assert not first.is_forgotten
    assert not log.seen(message_id(1, "0"))


def test_a_long_name_is_counted() -> None:
    log = DuplicateLog(1024 * 1024)
    for number in range(100):
        log.seen(message_id(1, f"{number}" + 50_000 * "x"))
        assert log.bytes <= 1024 * 1024
    assert log.life_count < 21


def test_a_life_that_was_forgotten_says_so_and_still_answers() -> None:
    log = DuplicateLog(SMALL)
    life = log.life("node", 1)
    assert not life.seen(1)
    for number in range(100):
        log.seen(message_id(1, f"flood {number}"))
    assert life.is_forgotten
    assert not life.seen(1)
    assert life.seen(1)
    again = log.life("node", 1)
    assert again is not life
    assert again.seen(1)


@pytest.mark.parametrize("sequence", [-1, MAX_SEQUENCE + 1, 10**1_000])
def test_a_number_that_no_node_gives_is_never_new_and_takes_no_room(sequence: int) -> None:
    log = DuplicateLog()
    log.life("node", 1)
    before = log.bytes
    assert log.seen(message_id(sequence))
    assert log.bytes == before
    assert not log.seen(message_id(MAX_SEQUENCE))


@pytest.mark.parametrize("is_dense", [True, False])
def test_the_bytes_counted_are_those_taken(is_dense: bool) -> None:
    max_bytes = 4 * 1024 * 1024
    ids = [
        message_id(number // 5 * PAGE, f"{number % 5}")
        if is_dense
        else message_id(10**9, f"{number}", number)
        for number in range(10_000)
    ]
    tracemalloc.start()
    try:
        log = DuplicateLog(max_bytes)
        for each in ids:
            log.seen(each)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * log.bytes < taken < 1.1 * max_bytes


def test_a_log_needs_room() -> None:
    with pytest.raises(ValueError, match="at least"):
        DuplicateLog(1)


ids = st.builds(
    MessageId, st.sampled_from("abcdefghi"), st.integers(1, 2), st.integers(0, 10).map(lambda n: n * 700)
)


@given(st.lists(ids, max_size=300))
def test_it_never_takes_a_new_id_for_a_duplicate_and_knows_what_was_used_last(steps: list[MessageId]) -> None:
    log = DuplicateLog(8 * (LIFE_BYTES + PAGE_BYTES))
    history: list[MessageId] = []
    for each in steps:
        answer = log.seen(each)
        if each not in history:
            assert not answer
        elif each == history[-1]:
            assert answer
        history.append(each)
        assert log.bytes <= 8 * (LIFE_BYTES + PAGE_BYTES)


@given(st.lists(ids, max_size=300))
def test_with_room_it_answers_as_a_set_would(steps: list[MessageId]) -> None:
    log = DuplicateLog()
    known: set[MessageId] = set()
    for each in steps:
        assert log.seen(each) == (each in known)
        known.add(each)


def test_a_page_that_was_stored_is_known_again() -> None:
    log, other = DuplicateLog(), DuplicateLog()
    ids = [MessageId("barn", 1, sequence) for sequence in (0, 5, 2_047, 2_048, 1_000_000)]
    for message_id in ids:
        log.seen(message_id)
    for message_id in ids:
        page = log.page_of(message_id)
        assert page is not None
        other.restore(page.key, bytes(page.bits))
    assert all(map(other.seen, ids))
    assert not other.seen(MessageId("barn", 1, 6))
    assert log.page_of(MessageId("barn", 2, 5)) is None


def test_a_page_is_not_restored_over_one_that_is_there() -> None:
    log = DuplicateLog()
    log.seen(MessageId("barn", 1, 5))
    log.restore(("barn", 1, 0), bytes(256))
    assert log.seen(MessageId("barn", 1, 5))
    log.restore(("barn", 1, 1), b"short")
    assert not log.seen(MessageId("barn", 1, 2_048))


def test_who_stores_pages_is_told_of_those_that_are_forgotten() -> None:
    log = DuplicateLog(max_bytes=64 * 1024)
    forgotten: list[PageKey] = []
    log.on_forget = forgotten.append
    for number in range(1_000):
        log.seen(MessageId("barn", number, 2_048 * number))
    assert forgotten
    assert len(set(forgotten)) == len(forgotten)
    assert ("barn", 0, 0) in forgotten
    assert ("barn", 999, 999) not in forgotten


def test_what_is_younger_than_the_least_age_is_kept_beyond_the_size() -> None:
    log = DuplicateLog()
    now = 0.0
    log.clock = lambda: now
    log.set_bounds(SMALL, 10.0)
    for page in range(30):
        now = page / 10
        log.life("node", 1 + page % 10).seen(page * PAGE)
    assert log.forgotten == 0
    assert log.bytes > SMALL
    now = 20.0  # All were used more than 10 s ago.
    log.seen(message_id(30 * PAGE))
    assert log.bytes <= SMALL
    assert log.seen(message_id(30 * PAGE))
    assert not log.seen(message_id(0))


def test_however_young_a_log_is_bounded() -> None:
    log = DuplicateLog()
    log.set_bounds(SMALL, 1e9)
    for page in range(1_000):
        log.seen(message_id(page * PAGE))
        assert log.bytes <= MOST_GROWTH * SMALL + LIFE_BYTES + PAGE_BYTES


def test_a_page_that_is_in_use_is_not_old() -> None:
    log = DuplicateLog()
    now = 0.0
    log.clock = lambda: now
    log.set_bounds(SMALL, 5.0)
    log.seen(message_id(0))
    now = 100.0
    log.seen(message_id(1))
    for page in range(1, 40):
        log.seen(message_id(page * PAGE))
    assert log.seen(message_id(1))


def test_the_size_can_be_changed_while_it_runs() -> None:
    log = DuplicateLog()
    for page in range(100):
        log.seen(message_id(page * PAGE))
    log.set_bounds(SMALL, 0.0)
    assert log.bytes <= SMALL
    assert log.seen(message_id(99 * PAGE))


def test_of_a_giver_with_several_lives_in_use_only_old_ids_are_forgotten() -> None:
    """Two origins of one giver take turns: neither makes room for the other with all that it has."""
    log = DuplicateLog(4 * SMALL)
    for page in range(40):
        assert not log.seen(message_id(page * PAGE, origin="giver~a"))
        assert not log.seen(message_id(page * PAGE, origin="giver~b"))
        assert log.seen(message_id(page * PAGE, origin="giver~a"))
        assert log.bytes <= 4 * SMALL
    assert log.forgotten > 0
    assert log.seen(message_id(38 * PAGE, origin="giver~a"))
    assert log.seen(message_id(38 * PAGE, origin="giver~b"))


@given(
    st.lists(st.tuples(st.integers(0, 4_200), st.integers(1, 300) | st.integers(1, 12_000)), max_size=20),
    st.sampled_from([SMALL, 4 * SMALL]),
)
def test_a_run_is_noted_as_its_numbers_are(runs: list[tuple[int, int]], size: int) -> None:
    """All or none of it: the rest is for whoever looks at each. Some runs are more than the log holds."""
    life, one_by_one = DuplicateLog(size).life("a", 1), DuplicateLog(size).life("a", 1)
    for first, count in runs:
        numbers = range(first, first + count)
        seen = [one_by_one.seen(number) for number in numbers]
        if life.note_run(first, count):
            assert not any(seen)
        else:
            assert [life.seen(number) for number in numbers] == seen


@given(st.lists(st.integers(0, 4_200), min_size=1, max_size=50), st.lists(st.integers(0, 4_200)))
def test_all_that_is_noted_is_known_and_nothing_else(noted: list[int], others: list[int]) -> None:
    life = DuplicateLog().life("a", 1)
    life.note_all(noted)
    life.note_all(range(noted[0], noted[0] + 5))
    known = {*noted, *range(noted[0], noted[0] + 5)}
    assert [life.seen(number) for number in dict.fromkeys(others)] == [
        number in known for number in dict.fromkeys(others)
    ]
