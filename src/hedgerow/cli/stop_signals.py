"""Of the signals that ask a program to stop: which of them do, and whether one asks again.

A program may inherit them as ignored. Shells without job control ignore SIGINT and SIGQUIT for what they
start in the background, and yet one that is sent to this program means it. But whoever starts it with
`nohup` says that SIGHUP is not to end it.

The first asks for an end in order, which may take a while, and a person who does not want to wait asks again.
But coreutils' `timeout` signals a program and then its group, in which that program is: signals that come
together are one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

TOGETHER_S = 0.5


def ending_signals(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Those that are to end this program: all, but not SIGHUP where it is ignored already."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in numbers if not (number == signal.SIGHUP and is_kept))


class StopSignals:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_at: float | None = None

    def asks_again(self) -> bool:
        """To be called once for each signal."""
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
        return now - self._first_at > TOGETHER_S
