"""Names in order, and what a cursor finds of them, beside what the rules of MQTT say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker import topic_order
from hedgerow.broker.topic_order import Cursor, TopicOrder
from hedgerow.topics import matches

LEVELS = ["a", "b", "ab", "", "$x", "a!", "\x01", "z"]  # "!" is before "/"
names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda levels, is_deep: "/".join([*levels, *(["#"] if is_deep else [])]),
    st.lists(st.sampled_from([*LEVELS, "+", "+", "+"]), min_size=1, max_size=4),
    st.booleans(),
).filter(bool)


def find(order: TopicOrder, topic_filter: str) -> list[str]:
    cursor, found = Cursor(topic_filter), []
    while not cursor.is_done:
        topic = cursor.step(order)
        if topic is not None:
            found.append(topic)
    return found


@given(st.sets(names), st.sets(names), filters)
@settings(deadline=None)
def test_a_cursor_finds_each_name_that_its_filter_matches_once(
    kept: set[str], gone: set[str], topic_filter: str
) -> None:
    topic_order.BLOCK, before = 3, topic_order.BLOCK
    try:
        order = TopicOrder()
        for name in kept | gone:
            order.add(name)
        for name in gone - kept:
            order.remove(name)
        found = find(order, topic_filter)
    finally:
        topic_order.BLOCK = before
    assert len(found) == len(set(found))
    assert set(found) == {name for name in kept if matches(topic_filter, name)}


def test_names_may_come_and_go_while_a_cursor_stands() -> None:
    order = TopicOrder()
    for name in "t/a", "t/b", "t/c":
        order.add(name)
    cursor = Cursor("t/+")
    assert cursor.step(order) == "t/a"
    order.remove("t/a")
    order.remove("t/b")
    order.add("t/bb")
    assert [cursor.step(order), cursor.step(order)] == ["t/bb", "t/c"]


def test_a_cursor_leaps_over_what_cannot_match() -> None:
    order = TopicOrder()
    for number in range(1_000):
        order.add(f"a/{number}")
    order.add("b/x")
    cursor = Cursor("+/x")
    looks = 0
    while not cursor.is_done:
        cursor.step(order)
        looks += 1
    assert looks < 6
