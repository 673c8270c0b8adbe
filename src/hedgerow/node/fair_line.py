"""What waits, in a tree by where it comes from. At each fork the branches take turns, and where there is no
room the heaviest gives up.

An attacker has many addresses, but seldom many networks: whoever asks alone from a network waits for one
of each other network, however many addresses of those ask, and keeps its place when they fill the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

Place = tuple[str, ...]
"""From the widest network to whoever asks. All of one line have the same length."""


class FairLine(Generic[Item]):
    def __init__(self) -> None:
        self._sizes: Counter[Place] = Counter()  # of each branch
        self._forks: dict[Place, dict[Place, None]] = {}  # the one whose turn it is comes first
        self._leaves: dict[Place, dict[Item, None]] = {}

    def __len__(self) -> int:
        return self._sizes[()]

    def size(self, branch: Place) -> int:
        return self._sizes[branch]

    def contains(self, place: Place, item: Item) -> bool:
        return item in self._leaves.get(place, ())

    def add(self, place: Place, item: Item) -> None:
        self._leaves.setdefault(place, {})[item] = None
        self._sizes[place] += 1
        for depth in range(len(place)):
            self._sizes[place[:depth]] += 1
            self._forks.setdefault(place[:depth], {}).setdefault(place[: depth + 1])

    def remove(self, place: Place, item: Item) -> None:
        """Raises KeyError for what does not wait there."""
        del self._leaves[place][item]
        if not self._leaves[place]:
            del self._leaves[place]
        for depth in range(len(place), -1, -1):
            branch = place[:depth]
            self._sizes[branch] -= 1
            if not self._sizes[branch]:
                del self._sizes[branch]
                self._forks.pop(branch, None)
                if branch:
                    del self._forks[branch[:-1]][branch]

    def take(self) -> Item:
        """The one whose turn it is; there must be one."""
        place: Place = ()
        while (fork := self._forks.get(place)) is not None:
            place = next(iter(fork))
            del fork[place]
            fork[place] = None  # behind the others
        item = next(iter(self._leaves[place]))
        self.remove(place, item)
        return item

    def heaviest(self, branch: Place = ()) -> Item:
        """Whoever gives up there, and of equals whoever came last: otherwise a flood would have nobody's turn
        come."""
        while (fork := self._forks.get(branch)) is not None:
            branch = max(reversed(fork), key=self._sizes.__getitem__)
        return next(reversed(self._leaves[branch]))
