"""A load that may lose messages, for QoS 0 over several brokers: what counts is what arrived."""

from __future__ import annotations

import time

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.loader import Load, LoadMeasured, Subscriber

LOST_S = 1.0  # on loopback, what has not come by then will not, however busy the machine is


class LossySubscriber(Subscriber):
    def check(self, expected: int) -> None:
        if self._bytes > expected * self._size:
            super().check(expected)


class LossyLoad(Load):
    """Messages that have not come after `lost_s` of silence are given up, so that they keep no place in the
    window."""

    lost_s = LOST_S
    _given_up = 0
    _heard_at = 0.0
    _silent_since = 0.0

    def run(self, seconds: float, messages: int | None = None) -> LoadMeasured:
        """As `Load.run`; the messages are those that arrived, and the seconds end with the last of them."""
        before = self.sent - self.lost
        started = self._heard_at = self._silent_since = time.perf_counter()
        measured = super().run(seconds, messages)
        arrived = self.sent - self.lost - before
        if arrived == 0:
            raise BenchError(f"none of {measured.messages} messages arrived")
        return LoadMeasured(arrived, self._heard_at - started, measured.busy)

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def lost(self) -> int:
        """Of all that were sent; one that was given up and came after all is not."""
        return self._sent - self._subscribers[0].received

    def _settled(self) -> int:
        return min(super()._settled() + self._given_up, self._sent)

    def _receive(self) -> int:
        size = super()._receive()
        now = time.perf_counter()
        if size:
            self._heard_at = self._silent_since = now
        # What waits in this process because the broker does not read is not lost.
        elif now - self._silent_since > self.lost_s and not self._publishers[0].unsent:
            self._given_up = self.lost
            self._silent_since = now
        return size
