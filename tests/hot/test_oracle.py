"""Equality with the published algorithm, for any stream of events."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import example, given, settings

from hedgerow.hot.hot_topics import HotTopics, Score
from tests.hot.oracle import Oracle

TICKS_PER_S = 64  # A tick is a whole number of microseconds, and exact as a float.


@dataclass(frozen=True)
class Step:
    wait: int
    topic: str | None
    """None: the timer is looked at."""
    count: int = 1


scores: st.SearchStrategy[Score] = st.sampled_from(["window", "published"])
waits = st.one_of(st.just(0), st.integers(0, 6), st.integers(0, 40), st.integers(0, 200))
steps = st.builds(
    Step,
    waits,
    st.one_of(st.none(), st.sampled_from("abcdefgh"), st.sampled_from("ab")),
    st.one_of(st.just(1), st.integers(1, 5)),
)


@settings(max_examples=300)
@given(
    scores,
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 10_000),
    st.lists(steps, min_size=1, max_size=30),
)
@example("window", 4, 8, 0, [Step(0, "a"), Step(4, None), Step(0, "b"), Step(4, None), Step(4, None)])
@example(
    "window", 4, 2, 5, [Step(0, "a"), Step(2, "a"), Step(1, "b"), Step(1, "c"), Step(0, None), Step(4, None)]
)
@example(
    "published",
    5,
    7,
    0,
    [Step(0, "b"), Step(3, "b"), Step(0, None), Step(0, "a"), Step(2, None), Step(5, None)],
)
def test_equal_to_the_published_algorithm(
    score: Score, x: int, y: int, start: int, stream: list[Step]
) -> None:
    _compare(score, x, y, start, stream, TICKS_PER_S)


@settings(max_examples=100)
@given(scores, st.integers(0, 25), st.lists(steps, min_size=1, max_size=30))
def test_equal_with_times_that_are_no_exact_floats(score: Score, y: int, stream: list[Step]) -> None:
    """X.time 0.4 s, Y.time and events at multiples of 0.1 s: 2.0 // 0.4 is 4.0."""
    at_zero = Step(0, "c")  # From another start the ends of slots are rounded sums.
    _compare(score, 4, y + 1, 0, [at_zero, *stream], 10)


def _compare(score: Score, x: int, y: int, start: int, stream: list[Step], ticks_per_s: int) -> None:
    """After every step: the scores in order, both registries, and changes that lead from one to the next."""
    hot, oracle = HotTopics(x / ticks_per_s, y / ticks_per_s, score=score), Oracle(x, y, score == "published")
    now = start
    delegated: set[str] = set()
    for step in [*stream, Step(y, None), Step(x, None)]:
        now += step.wait
        if step.topic is None:
            hot.handle_timer(now / ticks_per_s)
            oracle.handle_timer(now)
        else:
            if step.count == 1:
                hot.note(step.topic, now / ticks_per_s)
            else:
                hot.note_many(step.topic, step.count, now / ticks_per_s)
            oracle.note(step.topic, step.count, now)
        assert list(hot.scores.items()) == oracle.ranking
        assert set(hot.in_registry) == set(oracle.in_registry)
        assert set(hot.out_registry) == set(oracle.out_registry)
        changes = hot.take_changes()
        assert delegated.isdisjoint(changes.delegate)
        assert delegated.issuperset(changes.recover)
        delegated = (delegated - set(changes.recover)) | set(changes.delegate)
        assert delegated == set(oracle.out_registry)
