"""Of the signals that ask a program to stop: whether one asks again.

The first asks for an end in order, which may take a while, and a person who does not want to wait asks again.
But coreutils' `timeout` signals a program and then its group, in which that program is: signals that come
together are one.
"""

from __future__ import annotations

import time

TOGETHER_S = 0.5


class StopSignals:
    def __init__(self) -> None:
        self._first_at: float | None = None

    def asks_again(self) -> bool:
        """To be called once for each signal."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        return now - self._first_at > TOGETHER_S
