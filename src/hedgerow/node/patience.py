"""How long messages wait for their recipients' acknowledgements before they are written to the disk.

A message that everyone has acknowledged need not be stored, and its publisher can be answered at once. So
where the messages of a batch were acknowledged before it was stored, the next ones get as long as that took:
at worst their publishers wait twice as long, at best nothing is written. Where that was in vain the wait is
given up for some batches, and each time for twice as many.
"""

from __future__ import annotations

LEAST_S = 0.001  # The event loop's timers have no shorter time.
MOST_S = 0.05
MOST_BATCHES = 256


class Patience:
    __slots__ = ("_left", "_rests", "wait_s")

    def __init__(self) -> None:
        self.wait_s = 0.0  # 0: what is to be stored is written at once
        self._rests = 1  # so many batches are written at once when it is given up next,
        self._left = 0  # and so many are left of the last time

    def stored(self, was_prompt: bool, took_s: float) -> None:
        """A batch is durable. `was_prompt`: most of its messages had been acknowledged by everyone."""
        if self._left:
            self._left -= 1
        else:
            self.wait_s = min(max(took_s, LEAST_S), MOST_S) if was_prompt else 0.0

    def paid(self) -> None:
        """All of what was waited for came."""
        self._rests = 1

    def in_vain(self) -> None:
        """It did not."""
        self.wait_s = 0.0
        self._left = self._rests
        self._rests = min(2 * self._rests, MOST_BATCHES)
