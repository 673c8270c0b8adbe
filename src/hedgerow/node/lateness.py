"""How late the event loop was, as its own timers tell: what a client waits for an answer, at worst."""

from __future__ import annotations

WINDOW_S = 30.0


class Lateness:
    """The most of the last half to whole minute: who reads it takes nothing away from another reader."""

    __slots__ = ("_current", "_previous", "_window_ends_at")

    def __init__(self) -> None:
        self._current = self._previous = 0.0
        self._window_ends_at = float("-inf")

    def note(self, late_s: float, now: float) -> None:
        self._turn(now)
        if late_s > self._current:
            self._current = late_s

    def maximum(self, now: float) -> float:
        self._turn(now)
        return max(self._current, self._previous)

    def _turn(self, now: float) -> None:
        if now < self._window_ends_at:
            return
        is_next = now < self._window_ends_at + WINDOW_S
        self._previous, self._current = (self._current if is_next else 0.0), 0.0
        self._window_ends_at = now + WINDOW_S
