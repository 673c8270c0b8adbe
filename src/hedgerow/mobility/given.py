"""What clients get at a mobile broker while more may come for them from elsewhere.

It is noted by its id: a broker that was away when the client had left it may bring the same hours later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hedgerow.message import MessageId
from hedgerow.mobility.delegation.publications import GuestSubscription
from hedgerow.mobility.roaming import Noted

MAX_GIVEN = 1_000  # clients of whom it is noted what they get


@dataclass(slots=True)
class Claim:
    """The fixed broker was told that the client is here, and has not answered."""

    number: int
    until: float
    is_fresh: bool
    """It had no session here that others' events have come to."""
    arrived: dict[MessageId, int] = field(default_factory=dict)
    """What waits for it here, by which of the fixed broker's events it came."""
    window: int | None = None
    """Of its outbox before; None: it is served."""
    backup: tuple[GuestSubscription, ...] = ()
    """What it had here, in case the fixed broker that took it is lost."""


class GivenHere:
    """By callback."""

    def __init__(self) -> None:
        self._by_callback: dict[str, Noted] = {}

    def __len__(self) -> int:
        return len(self._by_callback)

    def begin(self, callback: str) -> None:
        given = self._by_callback
        if callback not in given:
            if len(given) >= MAX_GIVEN:
                del given[next(iter(given))]
            given[callback] = Noted()

    def end(self, callback: str) -> None:
        self._by_callback.pop(callback, None)

    def clear(self) -> None:
        self._by_callback.clear()

    def among(self, callbacks: Collection[str]) -> list[str]:
        """Those of them of whom it is noted what they get."""
        given = self._by_callback
        few, many = (given, callbacks) if len(given) < len(callbacks) else (callbacks, given)
        return [each for each in few if each in many]

    def add(self, callback: str, message_id: MessageId) -> None:
        given = self._by_callback.get(callback)
        if given is not None:
            given.add(message_id)

    def of(self, callback: str) -> Noted:
        return self._by_callback.get(callback) or Noted()
