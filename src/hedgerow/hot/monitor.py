"""What a broker asks of whoever decides which topics it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hedgerow.hot.plan import HotPlan
from hedgerow.hot.registries import RegistryChanges


class Monitor(Protocol):
    """`note` for each event that matched a subscriber, `handle_timer` at `deadline`, then `take_changes`."""

    def note(self, topic: str, now: float) -> None: ...

    def note_many(self, topic: str, count: int, now: float) -> None: ...

    @property
    def deadline(self) -> float: ...

    def handle_timer(self, now: float) -> None: ...

    def follow(self, plan: HotPlan | None, now: float) -> bool: ...

    def take_changes(self) -> RegistryChanges: ...

    def keeps(self, topic: str) -> bool: ...

    @property
    def in_registry(self) -> Sequence[str]: ...

    @property
    def out_registry(self) -> Sequence[str]: ...

    @property
    def scores(self) -> Mapping[str, int]: ...

    @property
    def uncounted(self) -> int:
        """Events of topics for which there was no room, or whose name is too long."""

    @property
    def plan(self) -> HotPlan | None:
        """The one that is followed."""
