"""The document's yardstick: half of the topics are delegated, whatever their traffic.

Topics take turns as they first appear: one is kept, the next one delegated. `rotation` 0 and 1 are the two
halves, so that the mean over both has every topic once on either side. Topics beyond the bound are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hedgerow.hot.plan import HotPlan
from hedgerow.hot.registries import MAX_REGISTERED, HotRegistries, RegistryChanges
from hedgerow.hot.window import MAX_TOPIC_LENGTH


class Naive:
    def __init__(self, rotation: int = 0, max_registered: int = MAX_REGISTERED) -> None:
        self._rotation = rotation
        self._counts: dict[str, int] = {}
        self._max_registered = max_registered
        self._registries = HotRegistries(max_registered)
        self._changed_at = float("inf")
        self.uncounted = 0

    def note(self, topic: str, now: float) -> None:
        self.note_many(topic, 1, now)

    def note_many(self, topic: str, count: int, now: float) -> None:
        if topic in self._counts:
            self._counts[topic] += count
        elif len(self._counts) < self._max_registered and len(topic) <= MAX_TOPIC_LENGTH:
            self._place(topic, now)
            self._counts[topic] = count
        else:
            self.uncounted += count

    def _place(self, topic: str, now: float) -> None:
        if (len(self._counts) + self._rotation) % 2:
            self._registries.delegate(topic)
            self._changed_at = min(self._changed_at, now)
        else:
            self._registries.keep(topic)

    @property
    def deadline(self) -> float:
        return self._changed_at

    def handle_timer(self, now: float) -> None:
        """Nothing comes with time: changes only wait to be taken."""

    def follow(self, plan: HotPlan | None, now: float) -> bool:
        """A yardstick follows no plan."""
        return False

    @property
    def plan(self) -> HotPlan | None:
        return None

    def take_changes(self) -> RegistryChanges:
        self._changed_at = float("inf")
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
        """All events there were, since the window means nothing here."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))
