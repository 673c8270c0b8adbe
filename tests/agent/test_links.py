"""When a pair counts as cut, and when it is tried again."""

from __future__ import annotations

from hedgerow.agent.links import FIRST_RETRY_S, MAX_RETRY_S, LinkWatch
from hedgerow.agent.plan import BrokerLink

AB = BrokerLink("a", "b")
GRACE_S, CONNECT_S, STABLE_S = 0.25, 3.0, 1.5


class World:
    """One pair whose ends answer whenever they are asked, until told otherwise."""

    def __init__(self) -> None:
        self.watch = LinkWatch(GRACE_S, CONNECT_S, STABLE_S)
        self.heard_at = {"a": 0.0, "b": 0.0}
        self.asked: list[set[str]] = []

    def at(self, now: float, is_up: bool | None = None, *, wanted: bool = True, answers: bool = True) -> bool:
        """Is the pair cut? `is_up` None: there is no bridge."""
        for _ in range(2):
            states = {} if is_up is None else {AB: is_up}
            asked = self.watch.observe(states, {AB} if wanted else set(), self.heard_at, now)
            if asked:
                self.asked.append(asked)
            if not answers or not asked:
                break
            self.heard_at = dict.fromkeys(self.heard_at, now)
        return AB in self.watch.cut


def test_a_bridge_that_goes_down_has_a_short_grace() -> None:
    world = World()
    assert not world.at(0.0, True)
    assert not world.at(10.0, False)
    assert world.watch.deadline(10.0) == 10.0 + GRACE_S
    assert not world.at(10.2, False)
    assert not world.at(10.24, True)
    assert not world.at(10.5, False)
    assert not world.at(10.7, False)
    assert world.at(10.75, False)


def test_a_bridge_that_was_just_made_has_longer() -> None:
    world = World()
    assert not world.at(0.0)
    assert not world.at(1.0, False)
    assert not world.at(3.9, False)
    assert world.at(4.0, False)


def test_a_bridge_that_is_not_made_has_time_for_lost_commands() -> None:
    world = World()
    assert not world.at(0.0)
    assert not world.at(5.9)
    assert world.at(6.0)


def test_a_bridge_that_is_made_and_lost_over_and_over_is_one_attempt() -> None:
    world = World()
    cut_at = [tick for tick in range(100) if world.at(tick / 10, False if tick % 5 else None)]
    assert cut_at[0] == 60


def test_a_bridge_that_somebody_took_away_is_not_a_cut() -> None:
    world = World()
    world.at(0.0, True)
    assert not world.at(1.0)
    assert not world.at(6.9)
    assert world.at(7.0)


def test_ends_are_asked_once_and_must_answer_before_a_pair_is_cut() -> None:
    world = World()
    world.at(0.0, True)
    world.at(1.0, False)
    assert not world.at(1.25, False, answers=False)
    assert not world.at(1.5, False, answers=False)
    assert world.asked == [{"a", "b"}]
    world.heard_at = {"a": 1.6, "b": 1.2}
    assert not world.at(1.6, False), "b has not answered"
    world.heard_at["b"] = 1.7
    assert world.at(1.7, False)


def test_a_cut_pair_is_tried_again_later_and_later() -> None:
    world = World()
    world.at(0.0)
    now, expected_s = 2 * CONNECT_S, FIRST_RETRY_S
    assert world.at(now)
    for _ in range(12):
        assert world.watch.deadline(now) == now + expected_s
        assert world.at(now + expected_s - 0.01, wanted=False)
        now += expected_s
        assert not world.at(now, wanted=False)
        assert not world.at(now)
        now += 2 * CONNECT_S
        assert world.at(now)
        expected_s = min(2 * expected_s, MAX_RETRY_S)
    assert expected_s == MAX_RETRY_S


def test_a_cut_pair_is_not_tried_while_another_link_is_missing() -> None:
    world = World()
    world.at(0.0, True)
    world.at(1.0, False)
    assert world.at(2.0, False)
    other = BrokerLink("a", "c")
    world.heard_at["c"] = 2.0
    later = 3.0 + FIRST_RETRY_S
    world.watch.observe({}, {other}, world.heard_at, later)
    assert AB in world.watch.cut
    world.watch.observe({other: True}, {other}, world.heard_at, later)
    assert AB not in world.watch.cut


def test_a_ghost_that_stays_down_stays_cut_without_a_gap() -> None:
    world = World()
    world.at(0.0, True)
    world.at(1.0, False)
    assert all(world.at(1.25 + step / 10, False, wanted=False) for step in range(1000))


def test_a_ghost_that_comes_up_must_stay_up_longer_each_time() -> None:
    world = World()
    world.at(0.0, True)
    now = 10.0
    for stable_s in (1.5, 3.0, 6.0):
        world.at(now, False)
        assert world.at(now + GRACE_S, False)
        now += 1.0
        assert world.at(now, True)
        assert world.at(now + stable_s - 0.1, True)
        now += stable_s
        assert not world.at(now, True)
        now += 1.0
    now += MAX_RETRY_S
    world.at(now, True)
    world.at(now + 1.0, False)
    assert world.at(now + 2.0, False)
    assert world.watch.deadline(now + 2.0) == now + 2.0 + FIRST_RETRY_S, "its past is forgotten"


def test_a_broker_that_dies_takes_its_cuts_along() -> None:
    world = World()
    world.at(0.0, True)
    world.at(1.0, False)
    assert world.at(2.0, False)
    del world.heard_at["b"]
    assert not world.at(3.0, False)
    assert world.watch.deadline(3.0) == float("inf")
    world.heard_at["b"] = 4.0
    assert not world.at(4.0, False)
