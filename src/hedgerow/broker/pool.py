"""What there is only so much of for all owners together (`owners.py`).

An owner may have one part for so many parts that are free. So one owner leaves most of it to the others, and
however many there are, something is left for the next one.
"""

from __future__ import annotations


class Pool:
    """`least`: an owner may always have so much, for as long as there is any."""

    def __init__(self, total: int, least: int, free_per_own: int) -> None:
        self._total = total
        self._least = least
        self._free_per_own = free_per_own
        self._own: dict[str, int] = {}
        self.used = 0

    def resize(self, total: int, least: int) -> None:
        """Nobody loses what they have."""
        self._total = total
        self._least = least

    def of(self, name: str) -> int:
        return self._own.get(name, 0)

    def has_room(self, name: str | None, more: int) -> bool:
        """May this owner have more? Without a name it is a part of the node, which has no share."""
        if more <= 0:
            return True
        left = self._total - self.used - more
        if left < 0:
            return False
        if name is None:
            return True
        own = self._own.get(name, 0) + more
        return own <= self._least or own <= left // self._free_per_own

    def is_beyond(self, name: str) -> bool:
        """Has this owner more than it may have?"""
        left = self._total - self.used
        own = self._own.get(name, 0)
        return left < 0 or (own > self._least and own > left // self._free_per_own)

    def change(self, name: str | None, change: int) -> None:
        self.used += change
        if name is not None and change:
            own = self.of(name) + change
            if own:
                self._own[name] = own
            else:
                del self._own[name]
