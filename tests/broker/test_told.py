"""Which of the last messages a broker says that it has, and what the other one reads of that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.recent import KEEP_S, Recent
from hedgerow.broker.told import MAX_LIVES, MAX_SPAN, MAX_TOTAL_BYTES, SETTLED_S, read_told, tell_recent
from hedgerow.message import MAX_NUMBER, Message, MessageId
from hedgerow.mqtt.ids import RECENT_PROPERTY


def add(recent: Recent, at: float, *ids: MessageId, retain: bool = False) -> None:
    for message_id in ids:
        recent.add(Message("t", b"x", 1, retain, id=message_id), at)


def pairs_of(
    recent: Recent, now: float = SETTLED_S, stored_until: float = KEEP_S
) -> tuple[tuple[str, str], ...]:
    return tell_recent(recent, now, stored_until)


ids = st.builds(
    MessageId, st.sampled_from(["a", "user~a b", "ü/2"]), st.integers(0, 3), st.integers(1, 2_000)
)


@given(st.sets(ids), st.sets(ids))
def test_what_is_told_is_what_is_there(here: set[MessageId], others: set[MessageId]) -> None:
    recent = Recent()
    add(recent, 0.0, *here)
    told = read_told({"user_property": (("x", "y"), *pairs_of(recent), ("z", ""))})
    assert all(each in told for each in here)
    assert not any(each in told for each in others - here)
    assert None not in told


def test_the_form_on_the_wire() -> None:
    recent = Recent()
    add(recent, 0.0, MessageId("a", 7, 100), MessageId("a", 7, 102), MessageId("a", 7, 108))
    # Bits 0, 2 and 8.
    assert pairs_of(recent) == ((RECENT_PROPERTY, "BQE= 7/100/a"),)


def test_what_may_not_be_stored_yet_and_what_is_retained_is_not_told() -> None:
    recent = Recent()
    add(recent, 0.0, MessageId("a", 1, 1))
    add(recent, 0.0, MessageId("a", 1, 2), retain=True)
    add(recent, 0.1, MessageId("a", 1, 3))
    told = read_told({"user_property": pairs_of(recent)})
    assert [MessageId("a", 1, number) in told for number in (1, 2, 3)] == [True, False, False]
    assert pairs_of(recent, KEEP_S + 1) == ()


def test_what_a_slow_disk_does_not_have_is_not_told() -> None:
    recent = Recent()
    add(recent, 0.0, MessageId("a", 1, 1))
    add(recent, 0.2, MessageId("a", 1, 2))
    told = read_told({"user_property": pairs_of(recent, 5.0, stored_until=0.2)})
    assert [MessageId("a", 1, number) in told for number in (1, 2)] == [True, False]


def test_there_is_a_bound_and_the_latest_are_told() -> None:
    recent = Recent()
    add(recent, 0.0, MessageId("a", 1, 1), MessageId("a", 1, 5 * MAX_SPAN))
    (pair,) = pairs_of(recent)
    told = read_told({"user_property": (pair,)})
    assert MessageId("a", 1, 5 * MAX_SPAN) in told
    assert MessageId("a", 1, 1) not in told
    for number in range(2 * MAX_LIVES):
        add(recent, 0.0, MessageId(f"b{number}", 1, 1), MessageId(f"b{number}", 1, MAX_SPAN))
    found = pairs_of(recent)
    assert len(found) <= MAX_LIVES
    assert sum(len(value) for _, value in found) < 2 * MAX_TOTAL_BYTES


@pytest.mark.parametrize(
    "value",
    [
        "",
        "BQE=",
        "BQE= 7",
        "BQE= 7/100",
        "BQE= 7/100/",
        "BQE= x/100/a",
        "BQE= 7/-1/a",
        f"BQE= 7/{MAX_NUMBER + 1}/a",
        "!! 7/100/a",
        "B 7/100/a",
        "ü 7/100/a",
        "A" * (4 * MAX_SPAN) + " 7/100/a",
        f"BQE= 7/{'9' * 5_000}/a",
    ],
)
def test_what_cannot_be_read_says_nothing(value: str) -> None:
    assert not read_told({"user_property": ((RECENT_PROPERTY, value),)})


def test_no_more_is_read_than_is_told() -> None:
    pairs = tuple((RECENT_PROPERTY, f"AQ== 1/1/o{number}") for number in range(1_000))
    assert len(read_told({"user_property": pairs})) == MAX_LIVES
