"""What the process plane says of a session on its way, until the events from before it have been read.

The process plane may be ahead of events. A session changes brokers at one place among them: else one that
its client has had already would wait for it at the next broker, and one that was on its way would be lost.
"""

from __future__ import annotations

from collections import deque

from hedgerow.mobility.delegation.publications import Roaming


class Postponed:
    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Roaming]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, written: int, body: Roaming) -> None:
        """`written`: how many events the other side had written before it."""
        self._waiting.append((written, body))

    def take(self, received: int) -> list[tuple[int, Roaming]]:
        """Those whose events have been received, in order, with how many these are."""
        due: list[tuple[int, Roaming]] = []
        while self._waiting and self._waiting[0][0] <= received:
            due.append(self._waiting.popleft())
        return due

    def clear(self) -> None:
        self._waiting.clear()
