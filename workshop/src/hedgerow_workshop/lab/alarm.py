"""A timer that is exact to a fraction of a millisecond."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Alarm:
    """Calls `ring` at a time of the monotonic clock. The loops' own timers are a millisecond coarse, which is
    much for a link of 0.5 ms; Python has timerfd from 3.13, so the C library is asked."""

    def __init__(self, ring: Callable[[], None], library: object | None = None) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._set_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._library: Any = library or ctypes.CDLL(None)
        self._file = -1
        if hasattr(self._library, "timerfd_create"):
            self._file = self._library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._rang)

    def set(self, at: float | None) -> None:
        if at == self._set_at:
            return
        self._set_at = at
        if self._file >= 0:
            seconds, nanoseconds = divmod(math.ceil((at or 0) * 1e9), 1_000_000_000)
            # struct itimerspec: no interval, then the time; 0 disarms. 1 is TFD_TIMER_ABSTIME.
            self._library.timerfd_settime(
                self._file, 1, struct.pack("llll", 0, 0, seconds, nanoseconds), None
            )
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_later(at - time.monotonic(), self._rang)

    def _rang(self) -> None:
        if self._file >= 0:
            with suppress(BlockingIOError):  # set anew since
                os.read(self._file, 8)
        self._set_at = None
        self._ring()

    def close(self) -> None:
        self.set(None)
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
