"""What a member has to do later: a queue of (when, what). Whoever is called looks if it still applies."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Timers:
    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    @property
    def deadline(self) -> float:
        return self._queue[0][0] if self._queue else float("inf")

    def at(self, when: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` then."""
        self._count += 1
        heappush(self._queue, (when, self._count, action))

    def run(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            heappop(self._queue)[2](now)
