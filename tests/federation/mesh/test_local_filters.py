"""Of a broker's own filters exactly those are announced that no other one covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.mesh import local_filters
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.limits import EARLY_S, OVERLAP_S
from hedgerow.federation.mesh.local_filters import SWEPT_AT_ONCE, LocalFilters
from hedgerow.topics import covers

filters = st.sampled_from(
    ["#", "+", "+/#", "a", "a/#", "a/+", "a/b", "a/b/#", "+/b", "b/c", "a/+/c", "a/b/c"]
)


def widest(model: set[str]) -> set[str]:
    return {narrow for narrow in model if not any(wide != narrow and covers(wide, narrow) for wide in model)}


@given(st.lists(st.tuples(st.booleans(), filters), max_size=40))
def test_against_the_naive_model(steps: list[tuple[bool, str]]) -> None:
    local = LocalFilters()
    model: set[str] = set()
    told: set[str] = set()
    for adds, topic_filter in steps:
        new, gone = local.add(topic_filter) if adds else local.remove(topic_filter)
        (model.add if adds else model.discard)(topic_filter)
        assert told.isdisjoint(new)
        assert told.issuperset(gone)
        told = (told | set(new)) - set(gone)
        assert told == local.announced == widest(model)
        assert len(local) == len(model)
        assert (topic_filter in local) == adds


@given(st.lists(st.tuples(st.sampled_from("+-..."), filters), max_size=60), st.integers(0, 3))
def test_what_is_wanted_is_announced_while_a_pass_goes_on(steps: list[tuple[str, str]], looks: int) -> None:
    """However little of it is done at once."""
    local = LocalFilters()
    model: set[str] = set()
    before, local_filters.SWEPT_AT_ONCE = local_filters.SWEPT_AT_ONCE, looks
    try:
        for what, topic_filter in steps:
            if what == "+":
                local.add(topic_filter)
                model.add(topic_filter)
            elif what == "-":
                local.remove(topic_filter)
                model.discard(topic_filter)
            else:
                local_filters.SWEPT_AT_ONCE = 1
                local.sweep()
                local_filters.SWEPT_AT_ONCE = looks
            for each in model:
                assert any(covers(wide, each) for wide in local.announced)
        local_filters.SWEPT_AT_ONCE = 1
        while not local.is_swept:
            local.sweep()
    finally:
        local_filters.SWEPT_AT_ONCE = before
    assert local.announced == widest(model)


@pytest.mark.parametrize("wide", [["#"], [f"+/{number}/#" for number in range(20)]])
def test_wide_filters_over_many_are_looked_at_in_turns(wide: list[str]) -> None:
    local = LocalFilters()
    narrow = {f"a/{number}/b" for number in range(20 * SWEPT_AT_ONCE)}
    for each in narrow:
        local.add(each)
    for change in (local.add, local.remove):
        before = local.visited
        for each in wide:
            assert sum(map(len, change(each))) <= SWEPT_AT_ONCE + 1
        while not local.is_swept:
            assert sum(map(len, local.sweep())) <= SWEPT_AT_ONCE
        assert local.visited - before < 4 * len(narrow), "no longer for many of them"
        assert all(any(covers(one, each) for one in local.announced) for each in ("a/0/b", "a/1/b"))
    assert local.announced == narrow


def test_a_federator_goes_on_by_its_timer() -> None:
    federator = Federator("a", 0.0, random=lambda: 0.5)
    for number in range(4 * SWEPT_AT_ONCE):
        federator.subscribe(f"a/{number}/b", 0.0)
    federator.subscribe("#", 0.0)
    turns = 0
    while (now := federator.deadline) < EARLY_S:
        before = federator.swept
        federator.handle_timer(now)
        assert federator.swept - before <= 2 * SWEPT_AT_ONCE
        turns += 1
    assert turns >= 3
    federator.handle_timer(now + OVERLAP_S)
    assert [each.topic_filter for each in federator.describe()] == ["#"]
