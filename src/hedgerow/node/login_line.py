"""Log-ins that wait for their passwords to be looked at, in several fair lines, of which the first go first.

Which line a log-in stands in is its *standing*: of users at sites from which they have logged in before,
then of networks that gave no wrong password of late, then of those that gave few, and so on. It is asked
again when its turn comes: the log-ins before it may have been wrong. So whoever floods from many networks
waits behind everybody else after the first wrong password of each. Every `OTHERS_TURN`th turn is that of the
last line, so that whoever stands there gets a turn, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hedgerow.node.fair_line import FairLine, Place

Item = TypeVar("Item", bound=Hashable)

OTHERS_TURN = 4


class LoginLine(Generic[Item]):
    """`standing_of` says which of `count` lines an item belongs to, 0 being the first."""

    def __init__(self, count: int, standing_of: Callable[[Item], int]) -> None:
        self._lines: list[FairLine[Item]] = [FairLine() for _ in range(count)]
        self._standing_of = standing_of
        self._turn = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def size(self, branch: Place) -> int:
        return sum(line.size(branch) for line in self._lines)

    def add(self, place: Place, item: Item) -> None:
        self._lines[self._standing_of(item)].add(place, item)

    def discard(self, place: Place, item: Item) -> None:
        """Unless it does not wait."""
        for line in self._lines:
            if line.contains(place, item):
                line.remove(place, item)

    def take(self, place_of: Callable[[Item], Place]) -> Item:
        """The one whose turn it is; there must be one."""
        self._turn += 1
        if self._turn % OTHERS_TURN == 0:
            return next(line for line in reversed(self._lines) if len(line)).take()
        while True:
            standing, line = next((at, line) for at, line in enumerate(self._lines) if len(line))
            item = line.take()
            now = self._standing_of(item)
            if now <= standing:
                return item
            self._lines[now].add(place_of(item), item)
