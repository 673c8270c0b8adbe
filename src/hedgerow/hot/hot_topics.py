"""The hot-topic algorithm (Morales Domínguez et al. 2013, Figures 5 and 6): the busiest topics are kept here.

Every X.time the topics that had events in the last Y.time are ranked by their score, equal ones by name.
The score is the number of those events. The score "published" is that of the listing: its line 9 seeds each
score with the topic's count since the beginning (`lifetime.py`). So the events of the window count twice, and
what was busy for long stays hot for long, however short the window is.

The upper `share` of them, rounded up as the document's loop does, and at most `capacity`, are kept:
In.Registry. The others are delegated: Out.Registry. Its pseudo-code moves only topics that are in
Registry.Calc, those with an event in the window. So a topic without any stays where it is, and an idle
system says nothing. A topic that was never ranked is kept, in no registry.

Calculations are those of a clock that is never late: they are made when time is told, by an event or the
timer, as of the moment when they were due, and an event of that same moment is in them if it was noted
before.

What is bounded is in `window.py` (topics that are counted), `lifetime.py` (those whose counts are remembered)
and `registries.py` (topics that are delegated).
The long tail beyond both is kept, as topics without a decision are: nothing is lost by it, and a topic that
is busy gets a place in the next slot. With a full Out.Registry the topics delegated longest ago that are
silent are recovered.

A plan for the whole network decides instead of the ranks while it is valid, whatever share and capacity
say: at once for the topics that have a rank or are delegated, and with the next calculation for those that
come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from hedgerow.hot.lifetime import LifetimeCounts
from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.hot.registries import HotRegistries, RegistryChanges
from hedgerow.hot.window import Window

Score = Literal["window", "published"]
"""What ranks a topic that has events in the window: those events alone, as the document's prose and Figure
10 argue for, or as its listing has it, line 9 included."""


class HotTopics:
    def __init__(
        self,
        x_s: float = 0.4,
        y_s: float = 2.0,
        share: float = 0.5,
        capacity: int | None = None,
        score: Score = "window",
        registries: HotRegistries | None = None,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"the share of topics to keep must be between 0 and 1: {share}")
        if capacity is not None and capacity < 0:
            raise ValueError(f"the capacity must not be negative: {capacity}")
        self._share = share
        self._capacity = capacity
        self._lifetime = LifetimeCounts() if score == "published" else None
        self._window = Window(x_s, y_s, None if self._lifetime is None else self._lifetime.add)
        self._scores: Mapping[str, int] = self._window.scores
        """Of the last calculation."""
        self._registries = registries or HotRegistries()
        self._plan: HotPlan | None = None
        self._version: int | None = None

    def note(self, topic: str, now: float) -> None:
        """An event that matched a subscriber."""
        window = self._window
        if window.begin_at < now <= window.end_at and topic in window.counts:
            window.counts[topic] += 1
        else:
            self._note_first(topic, 1, now)

    def note_many(self, topic: str, count: int, now: float) -> None:
        """Several of one topic that came together."""
        window = self._window
        if window.begin_at < now <= window.end_at and topic in window.counts:
            window.counts[topic] += count
        else:
            self._note_first(topic, count, now)

    def _note_first(self, topic: str, count: int, now: float) -> None:
        window = self._window
        if not window.started:
            window.start(now)
        while now > window.end_at:
            self._close_slot(now)
        window.count(topic, count, now)

    @property
    def deadline(self) -> float:
        """When there is something to calculate, or the plan ends."""
        calculation_at = float("inf") if self._window.empty else self._window.calculation_at
        return calculation_at if self._plan is None else min(calculation_at, self._plan.expires_at)

    def handle_timer(self, now: float) -> None:
        # Not yet the slot that ends now without a calculation: events of this moment may still come.
        window = self._window
        while window.started and (now > window.end_at or now == window.calculation_at == window.end_at):
            self._close_slot(now)
        self._end_plan(now)

    def follow(self, plan: HotPlan | None, now: float) -> bool:
        """Is it taken? None withdraws the one that is followed, and the next may have any version."""
        self.handle_timer(now)
        if plan is None:
            self._plan = self._version = None
            return True
        if len(plan.keep) > MAX_PLAN_TOPICS or plan.expires_at <= now:
            return False
        if self._version is not None and plan.version <= self._version:
            return False
        self._plan, self._version = plan, plan.version
        for topic in self._registries.out_registry:
            if topic in plan.keep:
                self._registries.keep(topic)
        self._assign(plan.keep)
        return True

    def _close_slot(self, now: float) -> None:
        window = self._window
        if not window.close_slot():
            return
        if self._lifetime is not None:
            self._scores = self._lifetime.seed(window.scores)
        self._end_plan(window.begin_at)
        self._assign(self._plan.keep if self._plan is not None else self._hottest())
        window.skip(now)

    def _end_plan(self, now: float) -> None:
        if self._plan is not None and self._plan.expires_at <= now:
            self._plan = None

    def _hottest(self) -> Set[str]:
        ranked = _by_rank(self._scores)
        # 0.07 × 100 is a little more than 7.
        kept = math.ceil(round(self._share * len(ranked), 6))
        return set(ranked[: kept if self._capacity is None else min(kept, self._capacity)])

    def _assign(self, kept: Set[str]) -> None:
        """Every topic of the window to its side."""
        registries = self._registries
        scores = self._scores
        cold = []
        for topic in scores:
            if topic in kept:
                registries.keep(topic)
            elif registries.keeps(topic):
                cold.append(topic)
        registries.make_room(len(cold), scores)
        for topic in cold:
            registries.delegate(topic)

    def take_changes(self) -> RegistryChanges:
        """Topics that are on the other side than when this was last asked."""
        return self._registries.take_changes()

    def keeps(self, topic: str) -> bool:
        return self._registries.keeps(topic)

    @property
    def in_registry(self) -> Sequence[str]:
        return self._registries.in_registry

    @property
    def out_registry(self) -> Sequence[str]:
        return self._registries.out_registry

    @property
    def scores(self) -> Mapping[str, int]:
        """Topic → its score in the last calculation, the busiest first."""
        scores = self._scores
        return {topic: scores[topic] for topic in _by_rank(scores)}

    @property
    def uncounted(self) -> int:
        return self._window.uncounted

    @property
    def plan(self) -> HotPlan | None:
        """The one that is followed."""
        return self._plan


def _by_rank(scores: Mapping[str, int]) -> list[str]:
    # Sorting twice, as sorts are stable, takes a third of the time of one with a pair for each topic.
    return sorted(sorted(scores), key=scores.__getitem__, reverse=True)
