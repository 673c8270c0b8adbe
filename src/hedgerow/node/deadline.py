"""A machine's deadline, kept by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls back when the deadline that was set last has come, once."""

    def __init__(self, clock: Callable[[], float], callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at = float("inf")

    def set(self, deadline: float) -> None:
        if deadline == self._at:
            return
        self.cancel()
        self._at = deadline
        if deadline != float("inf"):
            delay_s = max(deadline - self._clock(), 0.001)
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._come)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = float("inf")

    def _come(self) -> None:
        self._handle, self._at = None, float("inf")
        self._callback()
