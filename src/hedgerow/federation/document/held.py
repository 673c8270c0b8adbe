"""Publications from other federators that began at a node of ours: do they come by our own links as well?

Several nodes of one fabric may have neighbours of both kinds. What they pass on to federators that are not
ours comes back from these to the others, perhaps before it has come by our links. For the fabric it would
then have two ids. So what began at a node of ours waits here for a moment. If it comes by our links
meanwhile, all of its origin does, and copies by others are dropped: our links lose nothing that is
acknowledged. If it does not, its origin is a node of another fabric, whose publications are taken at once
from then on, in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from hedgerow.federation.document import limits
from hedgerow.federation.document.federator import DocumentPublication

NEVER = float("inf")


class _Waiting(NamedTuple):
    until: float
    publication: DocumentPublication


class HeldPublications:
    def __init__(self) -> None:
        self.dropped = 0
        """They came, or are to come, by our links."""
        self._ours: OrderedDict[int, float] = (
            OrderedDict()
        )  # origins → when they were last heard by our links
        self._others: OrderedDict[int, None] = OrderedDict()
        self._waiting: OrderedDict[int, deque[_Waiting]] = OrderedDict()  # by origin
        self._count = self._bytes = 0

    @property
    def deadline(self) -> float:
        return min((row[0].until for row in self._waiting.values()), default=NEVER)

    def hear(self, origin: int, now: float) -> None:
        """It was published in this fabric."""
        if origin not in self._ours:
            self._others.pop(origin, None)
            self.dropped += len(self._take(origin))
        self._ours[origin] = now
        self._ours.move_to_end(origin)
        if len(self._ours) > limits.MAX_ORIGINS:
            self._ours.popitem(last=False)

    def take(self, publication: DocumentPublication, now: float) -> list[DocumentPublication]:
        """From another federator: what is to be published here now."""
        assert publication.id is not None
        origin = publication.id.origin
        if not publication.id.is_of_ours or origin in self._others:
            return [publication]
        if now < self._ours.get(origin, -NEVER) + limits.OURS_S:
            self.dropped += 1
            return []
        self._waiting.setdefault(origin, deque()).append(_Waiting(now + limits.HOLD_S, publication))
        self._count += 1
        self._bytes += len(publication.payload)
        full = self._count > limits.MAX_HELD or self._bytes > limits.MAX_HELD_BYTES
        return self._release(origin) if full else []

    def handle_timer(self, now: float) -> list[DocumentPublication]:
        due = [origin for origin, row in self._waiting.items() if row[0].until <= now]
        return [publication for origin in due for publication in self._release(origin)]

    def _release(self, origin: int) -> list[DocumentPublication]:
        self._ours.pop(origin, None)
        self._others[origin] = None
        if len(self._others) > limits.MAX_ORIGINS:
            self._others.popitem(last=False)
        return self._take(origin)

    def _take(self, origin: int) -> list[DocumentPublication]:
        found = [each.publication for each in self._waiting.pop(origin, ())]
        self._count -= len(found)
        self._bytes -= sum(len(each.payload) for each in found)
        return found
