"""What the hot-topic machine decides, when it speaks, and how little it keeps."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from hedgerow.hot import lifetime, registries, window
from hedgerow.hot.hot_topics import HotTopics, Score
from hedgerow.hot.lifetime import LifetimeCounts
from hedgerow.hot.monitor import Monitor
from hedgerow.hot.naive import Naive
from hedgerow.hot.registries import HotRegistries, RegistryChanges

NOTHING = RegistryChanges([], [])


def _burst(hot: Monitor, counts: dict[str, int], now: float) -> None:
    for topic, count in counts.items():
        hot.note_many(topic, count, now)


def test_the_busier_half_is_kept_and_the_rest_delegated() -> None:
    hot = HotTopics()
    _burst(hot, {"soil": 1, "wind": 9, "rain": 3, "heat": 2}, now=10.0)
    assert hot.take_changes() == NOTHING
    assert hot.deadline == 10.4
    hot.handle_timer(10.4)
    assert hot.take_changes() == RegistryChanges(["soil", "heat"], [])
    assert (set(hot.in_registry), set(hot.out_registry)) == ({"wind", "rain"}, {"soil", "heat"})
    assert list(hot.scores.items()) == [("wind", 9), ("rain", 3), ("heat", 2), ("soil", 1)]
    assert [topic for topic in ("soil", "wind", "rain", "heat") if hot.keeps(topic)] == ["wind", "rain"]


def test_a_topic_that_gets_hot_is_recovered_and_another_delegated() -> None:
    hot = HotTopics()
    _burst(hot, {"soil": 1, "wind": 9}, now=0.0)
    hot.handle_timer(0.4)
    hot.take_changes()
    _burst(hot, {"soil": 20}, now=0.5)
    hot.handle_timer(0.8)
    assert hot.take_changes() == RegistryChanges(["wind"], ["soil"])


def test_ranks_that_change_on_one_side_are_no_change() -> None:
    hot = HotTopics()
    _burst(hot, {"a": 9, "b": 8, "c": 2, "d": 1}, now=0.0)
    hot.handle_timer(0.4)
    hot.take_changes()
    _burst(hot, {"b": 9, "d": 3}, now=0.5)
    hot.handle_timer(0.8)
    assert list(hot.scores) == ["b", "a", "d", "c"]
    assert hot.take_changes() == NOTHING


def test_what_went_and_came_back_before_anyone_asked_is_no_change() -> None:
    hot = HotTopics()
    _burst(hot, {"a": 2, "b": 1}, now=0.0)
    hot.handle_timer(0.4)
    _burst(hot, {"b": 5}, now=0.5)
    hot.handle_timer(0.8)
    assert hot.take_changes() == RegistryChanges(["a"], [])
    _burst(hot, {"a": 9}, now=0.9)
    hot.handle_timer(1.2)
    _burst(hot, {"b": 9}, now=1.3)
    hot.handle_timer(1.6)
    assert hot.take_changes() == NOTHING


def test_an_idle_system_says_nothing_and_sleeps() -> None:
    hot = HotTopics()
    assert hot.deadline == float("inf")
    _burst(hot, {"soil": 1, "wind": 9}, now=0.0)
    calculated_at = []
    while hot.deadline < float("inf"):
        calculated_at.append(hot.deadline)
        hot.handle_timer(hot.deadline)
    assert calculated_at == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert hot.take_changes() == RegistryChanges(["soil"], [])
    hot.handle_timer(1_000_000.0)
    assert hot.take_changes() == NOTHING
    assert not hot.scores
    assert hot.out_registry == ("soil",)


def test_after_a_long_silence_calculations_go_on_at_the_same_moments() -> None:
    """Of two thousand million calculations in between nearly none is made."""
    hot = HotTopics(x_s=0.5)
    hot.note("wind", 0.25)
    hot.note("wind", 1e9)
    assert hot.deadline == 1e9 + 0.25


@pytest.mark.parametrize(
    ("share", "capacity", "kept"),
    [
        (0.5, None, "abc"),  # The document's loop runs while the counter is below 5 / 2.
        (0.0, None, ""),
        (1.0, None, "abcde"),
        (0.2, None, "a"),
        (0.21, None, "ab"),
        (0.5, 2, "ab"),
        (1.0, 0, ""),
        (0.5, 10, "abc"),
    ],
)
def test_share_and_capacity(share: float, capacity: int | None, kept: str) -> None:
    hot = HotTopics(share=share, capacity=capacity)
    _burst(hot, dict.fromkeys("ecbda", 1), now=0.0)
    hot.handle_timer(0.4)
    assert sorted(hot.in_registry) == list(kept)
    assert sorted(hot.out_registry) == [topic for topic in "abcde" if topic not in kept]


def test_a_share_is_of_whole_topics() -> None:
    """0.07 × 100 is 7.000000000000001."""
    hot = HotTopics(share=0.07)
    _burst(hot, {str(number): 1 for number in range(100)}, now=0.0)
    hot.handle_timer(0.4)
    assert len(hot.in_registry) == 7


@pytest.mark.parametrize(
    "settings",
    [
        {"x_s": 0.0},
        {"y_s": 0.0},
        {"x_s": 0.001, "y_s": 2.0},
        {"share": 1.1},
        {"share": -0.1},
        {"capacity": -1},
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        HotTopics(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("score", "expected"), [("window", {"new": 5, "old": 1}), ("published", {"old": 22, "new": 10})]
)
def test_the_published_score_begins_with_all_that_there_ever_was(
    score: Score, expected: dict[str, int]
) -> None:
    """The topic that was busy long ago outranks the one that is busy now; with the window's it does not."""
    hot = HotTopics(score=score)
    _burst(hot, {"old": 20}, now=0.0)
    _burst(hot, {"new": 5, "old": 1}, now=60.0)
    hot.handle_timer(60.4)
    assert list(hot.scores.items()) == list(expected.items())
    assert hot.out_registry == (list(expected)[-1],)


def test_a_clock_that_goes_back_loses_no_event() -> None:
    hot = HotTopics(x_s=0.5, y_s=1.25)
    for now in (10.0, 10.6, 10.5, 10.3, 9.0):
        hot.note("wind", now)
    hot.handle_timer(11.0)
    assert dict(hot.scores) == {"wind": 5}


# Bounds


def _usual(number: int) -> str:
    return f"farm/sector1/sensor{number}/temperature"


def _longest(number: int) -> str:
    return f"{number:07}".ljust(
        window.MAX_TOPIC_LENGTH, "🌿"
    )  # one such character makes all of them four bytes


def _bytes_of(machine: object) -> int:
    """Of all objects that it holds, and that those hold."""
    found: dict[int, object] = {}
    waiting = [machine]
    while waiting:
        item = waiting.pop()
        if id(item) not in found and not isinstance(item, type):
            found[id(item)] = item
            waiting += gc.get_referents(item)
    return sum(map(sys.getsizeof, found.values()))


@pytest.mark.parametrize("score", ["window", "published"])
@pytest.mark.parametrize(("name", "topics", "y_s"), [(_usual, 1_000_000, 2.0), (_longest, 200_000, 2.1)])
def test_memory_with_very_many_topics(
    name: Callable[[int], str], topics: int, y_s: float, score: Score
) -> None:
    """Whether anyone takes the changes or not."""
    hot = HotTopics(y_s=y_s, score=score)
    for number in range(topics):
        hot.note(name(number), 6.0 * number / topics)
        if number == topics // 2:
            hot.take_changes()
    assert _bytes_of(hot) < 64 * 2**20
    assert hot.uncounted > topics / 4
    assert len(hot.in_registry) == len(hot.out_registry) == registries.MAX_REGISTERED


def test_a_busy_topic_is_found_in_a_flood_of_others() -> None:
    hot = HotTopics()
    for number in range(60_000):
        now = number / 25_000
        hot.note(_usual(number), now)
        if number % 250 == 0:  # 100 a second
            hot.note("busy", now)
    assert hot.uncounted > 0
    assert next(iter(hot.scores)) == "busy"
    assert hot.scores["busy"] > 100
    assert hot.keeps("busy")


def test_a_name_that_is_too_long_is_kept_and_not_counted() -> None:
    hot = HotTopics(share=0.0)
    fits, too_long = "x" * window.MAX_TOPIC_LENGTH, "x" * (window.MAX_TOPIC_LENGTH + 1)
    hot.note(fits, 0.0)
    hot.note_many(too_long, 3, 0.0)
    hot.handle_timer(0.4)
    assert hot.take_changes() == RegistryChanges([fits], [])
    assert hot.uncounted == 3
    assert hot.keeps(too_long)


def test_a_full_out_registry_recovers_those_that_are_silent() -> None:
    hot = HotTopics(x_s=1.0, y_s=1.5, share=0.0, registries=HotRegistries(4, 2))
    _burst(hot, dict.fromkeys("abcd", 1), now=0.5)
    hot.handle_timer(1.5)
    assert hot.take_changes() == RegistryChanges(["a", "b", "c", "d"], [])
    _burst(hot, dict.fromkeys("awxyz", 1), now=3.0)
    hot.handle_timer(3.5)
    changes = hot.take_changes()
    assert changes == RegistryChanges(["w", "x"], ["b", "c"])
    assert sorted(hot.out_registry) == ["a", "d", "w", "x"]
    assert [hot.keeps(topic) for topic in "yz"] == [True, True]


def test_a_full_in_registry_forgets_without_a_word() -> None:
    hot = HotTopics(share=1.0, registries=HotRegistries(2))
    _burst(hot, dict.fromkeys("abc", 1), now=0.0)
    hot.handle_timer(0.4)
    assert hot.in_registry == ("b", "c")
    assert hot.keeps("a")
    assert hot.take_changes() == NOTHING


def test_of_too_many_topics_the_count_of_the_one_that_is_silent_longest_is_forgotten() -> None:
    counts = LifetimeCounts(3)
    counts.add({"a": 5, "b": 1, "c": 1})
    counts.add({"a": 1, "d": 1})
    assert len(counts) == 3
    assert counts.seed({"a": 1, "c": 1, "d": 1}) == {"a": 7, "c": 2, "d": 2}
    counts.add({"b": 2, "c": 1})
    assert counts.seed({"b": 2, "c": 1}) == {"b": 4, "c": 3}


def test_the_count_of_a_topic_in_the_window_is_never_forgotten() -> None:
    """Whatever floods it: twice as many topics as are remembered, ten times a second the one that counts."""
    hot = HotTopics(score="published")
    topics = 2 * lifetime.MAX_LIFETIME
    said = 0
    for number in range(topics):
        now = 10.0 * number / topics
        if said <= now * 10:
            hot.note("steady", now)
            said += 1
        hot.note(_usual(number), now)
    hot.handle_timer(10.0)
    assert hot.uncounted == 0
    assert hot.scores["steady"] == said + 20


def test_an_event_of_a_known_topic_makes_no_object() -> None:
    hot = HotTopics()
    hot.note("wind", 0.0)
    hot.note("wind", 0.1)
    tracemalloc.start(1)
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(200):  # Python has the numbers up to 256 already.
            hot.note("wind", 0.2)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200


# The naïve algorithm


def _sides(monitor: Monitor, topics: Sequence[str]) -> str:
    for topic in topics:
        monitor.note(topic, 0.0)
    monitor.handle_timer(monitor.deadline)
    return "".join("+" if monitor.keeps(topic) else "-" for topic in topics)


def test_naive_delegates_half_of_the_topics_whatever_their_traffic() -> None:
    topics = [f"topic {number}" for number in range(10)]
    assert _sides(Naive(rotation=0), topics) == "+-" * 5
    assert _sides(Naive(rotation=1), topics) == "-+" * 5
    naive = Naive()
    _burst(naive, {"a": 1, "b": 100, "c": 1}, now=5.0)
    assert naive.deadline == 5.0
    assert naive.take_changes() == RegistryChanges(["b"], [])
    assert naive.deadline == float("inf")
    _burst(naive, {"b": 100, "a": 1}, now=6.0)
    assert naive.take_changes() == NOTHING
    assert list(naive.scores.items()) == [("b", 200), ("a", 2), ("c", 1)]
    assert (naive.in_registry, naive.out_registry) == (("a", "c"), ("b",))


def test_naive_is_bounded() -> None:
    naive = Naive(max_registered=4)
    assert _sides(naive, "abcdef") == "+-+-++"
    assert naive.uncounted == 2


def test_either_can_stand_for_the_other() -> None:
    monitors: list[Monitor] = [HotTopics(), Naive()]
    for monitor in monitors:
        assert _sides(monitor, "ab") == "+-"
        assert monitor.take_changes() == RegistryChanges(["b"], [])
