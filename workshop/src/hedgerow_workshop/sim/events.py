"""The virtual clock: what is planned happens in the order of time, and what is planned for the same moment in
the order in which it was planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Events:
    __slots__ = ("_heap", "_planned", "happened", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._planned = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def plan(self, at: float, happen: Callable[..., None], *arguments: Any) -> None:
        """What should have been earlier happens now."""
        self._planned += 1
        heappush(self._heap, (max(at, self.now), self._planned, happen, arguments))

    def run(self, until_at: float) -> None:
        """All that is due by then, what is planned meanwhile included."""
        heap = self._heap
        while heap and heap[0][0] <= until_at:
            self.now, _, happen, arguments = heappop(heap)
            self.happened += 1
            happen(*arguments)
        self.now = max(self.now, until_at)
