"""Which address of its far broker a bridge dials next, and when.

After a failure the next address is tried at once; when all have failed the bridge waits, longer each time,
and each bridge for a time of its own: not all come at once to a broker that is back. One that is up at a
later address tries the first again from time to time, unless all are equal (`round_robin`).
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.bridges.section import FarAddress, Section

FIRST_ADDRESS_S = 30.0  # how often one that has come to a second address tries the first again
_NEVER = float("inf")


class Dialling:
    """`random` gives numbers from 0 to 1."""

    def __init__(self, section: Section, random: Callable[[], float], dial_at: float) -> None:
        self.position = 0  # of the address to dial next
        self._section = section
        self._random = random
        self._delay_s = 0.0
        self._dial_at = dial_at
        self._trial_at = _NEVER

    @property
    def deadline(self) -> float:
        return min(self._dial_at, self._trial_at)

    def take_dial(self, now: float) -> FarAddress | None:
        if self._dial_at > now:
            return None
        self._dial_at = _NEVER
        return self._section.addresses[self.position]

    def take_trial(self, now: float) -> FarAddress | None:
        """The first address, while a link to another is open."""
        if self._trial_at > now:
            return None
        self._trial_at = now + FIRST_ADDRESS_S
        return self._section.addresses[0]

    def handle_up(self, now: float) -> None:
        if self.position and not self._section.round_robin:
            self._trial_at = now + FIRST_ADDRESS_S

    def dial(self, position: int, at: float) -> None:
        self.position, self._dial_at = position, at

    def try_next_address(self) -> None:
        self.position = (self.position + 1) % len(self._section.addresses)

    def wait(self, now: float) -> None:
        base_s, cap_s = self._section.restart_timeout
        if base_s == cap_s:
            self._delay_s = base_s
        else:
            upper_s = min(cap_s, max(base_s, 3 * self._delay_s))
            self._delay_s = base_s + (upper_s - base_s) * self._random()
        # Another address need not wait for this one.
        self._dial_at = now + (0.0 if self.position else self._delay_s)

    def hurry(self, now: float, delay_s: float) -> None:
        """The same address again, and soon."""
        self._dial_at = now + delay_s

    def forget_delay(self) -> None:
        self._delay_s = 0.0

    def stop(self) -> None:
        self._dial_at = self._trial_at = _NEVER
