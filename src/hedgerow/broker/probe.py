"""Whether the far broker of a connection still lives.

A probe is a PINGREQ, which the far broker itself must answer: so many of them without a word and the
link is dead, whatever the socket says. As long as earlier bytes are still being taken by the far host the
probe is on its way, and a slow link is not taken for a dead one.

How long an answer takes says how far the far broker is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.connection import MUST_WAIT
from hedgerow.mqtt.packets import Pingreq

if TYPE_CHECKING:
    from hedgerow.broker.dialled import DialledConnection


class Probe:
    """`begin` when the connection is established, then `check` whenever its time has come."""

    __slots__ = (
        "_acknowledged_before",
        "_answered",
        "_connection",
        "_due_at",
        "_interval_s",
        "_misses",
        "_probe_mark",
        "_probed_at",
        "_sent",
        "_timed",
        "_timed_at",
        "written",
    )

    def __init__(self, connection: DialledConnection, now: float, interval_s: float, misses: int) -> None:
        self.written = 0  # bytes, on this connection
        self._connection = connection
        self._interval_s = interval_s
        self._misses = misses
        self._probed_at = now
        self._probe_mark = 0  # what was written before the last probe
        self._acknowledged_before = 0
        self._due_at = now  # when `check` is to be called
        self._sent = self._answered = 0
        self._timed = 0  # which probe's answer is waited for, by its number; 0: that of none
        self._timed_at = now

    def begin(self) -> None:
        self._probed_at = self._connection.broker.now
        self._arm()

    def check(self) -> None:
        connection = self._connection
        now = connection.broker.now
        # It may be we who do not listen: what has come since is read after this.
        stood_still = now > self._due_at + self._interval_s
        if stood_still or connection.pauses & MUST_WAIT or self._is_taking_bytes():
            connection.heard_at = now
        if self._is_over(now):
            connection.look_for_bytes()
        if self._is_over(now):
            connection.end(f"no answer to {self._misses} probes, {self._interval_s:g} s apart")
            return
        if now >= self._probed_at + self._interval_s:
            self._probed_at = now
            self._probe_mark = self.written
            self._sent += 1
            if not self._timed:
                self._timed, self._timed_at = self._sent, now
            connection.send_packet(Pingreq())
        self._arm()

    def answered(self) -> float | None:
        """The round trip, if it was the answer to the probe that is timed; further ones may be under way."""
        self._answered = min(self._answered + 1, self._sent)
        if self._answered != self._timed:
            return None
        self._timed = 0
        return self._connection.broker.now - self._timed_at

    def _is_over(self, now: float) -> bool:
        return self._probed_at > self._connection.heard_at and now >= self._dead_at

    @property
    def _dead_at(self) -> float:
        return self._connection.heard_at + self._interval_s * self._misses

    def _arm(self) -> None:
        broker = self._connection.broker
        self._due_at = self._probed_at + self._interval_s
        if self._probed_at > self._connection.heard_at:
            self._due_at = min(self._due_at, max(self._dead_at, broker.now + 0.001))
        broker.arm(self._due_at, self._connection)

    def _is_taking_bytes(self) -> bool:
        """Is the last probe still behind bytes of which the far host has got more since the last look?"""
        link = self._connection.link
        if link is None:
            return False
        acknowledged = self.written - link.unacknowledged_bytes()
        before, self._acknowledged_before = self._acknowledged_before, acknowledged
        return bool(before < acknowledged < self._probe_mark)
