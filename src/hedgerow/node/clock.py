"""The clock that the shell hands to every machine as `now`.

It reads as Unix time, so that what it stamped means something after a restart, and it advances with
the monotonic clock only: setting the system's time, by hand or by NTP, moves no keep-alive and
expires no session. The time that it started from is therefore never corrected while the node runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Call it for the seconds since 1970: the system's time at construction plus the time elapsed."""

    __slots__ = ("_monotonic", "_offset_s")

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()

    def __call__(self) -> float:
        return self._offset_s + self._monotonic()
