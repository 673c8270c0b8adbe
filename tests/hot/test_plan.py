"""A plan for the whole network decides while it is valid, and the broker's own window after that."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hedgerow.hot.hot_topics import HotTopics
from hedgerow.hot.naive import Naive
from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.hot.registries import RegistryChanges

NOTHING = RegistryChanges([], [])


def _plan(keep: Iterable[str], version: int = 1, expires_at: float = 100.0) -> HotPlan:
    return HotPlan(frozenset(keep), version, expires_at)


@pytest.fixture
def hot() -> HotTopics:
    """At 0.4, with "a" and "b" kept, "c" and "d" delegated."""
    hot = HotTopics()
    for topic, count in {"a": 9, "b": 8, "c": 2, "d": 1}.items():
        hot.note_many(topic, count, 0.0)
    hot.handle_timer(0.4)
    assert hot.take_changes() == RegistryChanges(["c", "d"], [])
    return hot


def test_a_plan_decides_at_once(hot: HotTopics) -> None:
    assert hot.follow(_plan("bd"), 0.5)
    assert hot.take_changes() == RegistryChanges(["a"], ["d"])
    assert hot.plan == _plan("bd")


def test_while_it_is_valid_ranks_decide_nothing(hot: HotTopics) -> None:
    hot.follow(_plan("bd"), 0.5)
    hot.take_changes()
    hot.note_many("a", 50, 0.6)
    hot.note_many("new", 50, 0.6)
    hot.handle_timer(0.8)
    assert hot.take_changes() == RegistryChanges(["new"], [])


def test_it_recovers_topics_that_are_silent(hot: HotTopics) -> None:
    hot.handle_timer(50.0)
    assert not hot.scores
    hot.follow(_plan("c"), 50.0)
    assert hot.take_changes() == RegistryChanges([], ["c"])


def test_the_own_window_decides_again_when_it_expires(hot: HotTopics) -> None:
    hot.follow(_plan("cd", expires_at=1.0), 0.5)
    assert hot.take_changes() == RegistryChanges(["a", "b"], ["c", "d"])
    hot.note_many("a", 2, 0.9)
    hot.handle_timer(0.8)
    assert hot.take_changes() == NOTHING
    hot.handle_timer(1.2)
    assert hot.plan is None
    assert hot.take_changes() == RegistryChanges(["c", "d"], ["a", "b"])


def test_a_calculation_made_late_is_made_by_the_plan_of_its_moment(hot: HotTopics) -> None:
    """All is told at 5.0: until 1.0 the plan decided, then the ranks, by what the window held."""
    hot.follow(_plan("cd", expires_at=1.0), 0.5)
    hot.handle_timer(5.0)
    assert hot.take_changes() == NOTHING
    assert hot.plan is None


def test_its_end_is_a_deadline(hot: HotTopics) -> None:
    hot.handle_timer(10.0)
    assert hot.deadline == float("inf")
    hot.follow(_plan("a", expires_at=20.0), 10.0)
    assert hot.deadline == 20.0
    hot.handle_timer(20.0)
    assert hot.plan is None
    assert hot.deadline == float("inf")


def test_withdrawn(hot: HotTopics) -> None:
    hot.follow(_plan("cd", version=7), 0.5)
    hot.take_changes()
    assert hot.follow(None, 0.6)
    hot.handle_timer(0.8)
    assert hot.take_changes() == RegistryChanges(["c", "d"], ["a", "b"])
    assert hot.follow(_plan("cd", version=1), 0.9)


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_plan_never_replaces_a_newer_one(hot: HotTopics, version: int) -> None:
    hot.follow(_plan("ab", version=3, expires_at=0.7), 0.5)
    assert not hot.follow(_plan("cd", version=version), 0.6)
    hot.handle_timer(0.8)
    assert hot.plan is None
    assert not hot.follow(_plan("cd", version=version), 0.9)
    assert hot.take_changes() == NOTHING
    assert hot.follow(_plan("cd", version=4), 1.0)


def test_a_plan_that_has_expired_is_not_followed(hot: HotTopics) -> None:
    assert not hot.follow(_plan("cd", expires_at=0.5), 0.5)
    assert hot.plan is None
    assert hot.take_changes() == NOTHING
    assert hot.follow(_plan("cd"), 0.6)


def test_a_plan_that_is_too_large_is_not_followed(hot: HotTopics) -> None:
    too_many = map(str, range(MAX_PLAN_TOPICS + 1))
    assert not hot.follow(_plan(too_many), 0.5)
    assert hot.take_changes() == NOTHING


def test_before_any_event() -> None:
    hot = HotTopics()
    assert hot.follow(_plan("a"), 5.0)
    hot.note("a", 6.0)
    hot.note("b", 6.0)
    hot.handle_timer(6.4)
    assert hot.take_changes() == RegistryChanges(["b"], [])


def test_the_yardstick_follows_none() -> None:
    naive = Naive()
    assert not naive.follow(_plan("b"), 0.0)
    naive.note("a", 0.0)
    naive.note("b", 0.0)
    assert naive.take_changes() == RegistryChanges(["b"], [])
