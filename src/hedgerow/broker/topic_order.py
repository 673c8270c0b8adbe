"""Topic names in order, and a cursor over those that a filter matches.

A cursor is one name, behind which the next is looked for: it takes as much memory for a million names as for
one, stands still for as long as its reader does, and names may come and go meanwhile. In an order in which
"/" comes first, names with a common beginning stand together, so a cursor leaps over what cannot match.
"""

from __future__ import annotations

from bisect import bisect_left, insort

BLOCK = 512  # Names that are kept in one list: a new one moves a few kilobytes, among however many.

# No topic contains U+0000 (MQTT-4.7.3-2), and nothing comes between it and U+0001.
_SLASH = "\0"
_BEHIND = "\1"


class TopicOrder:
    """Distinct names in order, in blocks."""

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []  # of each block

    def add(self, topic: str) -> None:
        """A name that is not there yet."""
        key = topic.replace("/", _SLASH)
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, key)
        self._lasts[at] = block[-1]
        if len(block) > 2 * BLOCK:
            self._blocks.insert(at + 1, block[BLOCK:])
            del block[BLOCK:]
            self._lasts[at : at + 1] = (block[-1], self._lasts[at])

    def remove(self, topic: str) -> None:
        """A name that is there."""
        key = topic.replace("/", _SLASH)
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def first_from(self, key: str) -> str | None:
        """The first that is not before `key`."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return None
        block = self._blocks[at]
        return block[bisect_left(block, key)]


class Cursor:
    """The names that a filter matches, one look at a time."""

    __slots__ = ("_at", "_levels", "is_done", "looked_at")

    def __init__(self, topic_filter: str) -> None:
        self._levels = topic_filter.split("/")
        wildcards = [index for index, level in enumerate(self._levels) if level in ("+", "#")]
        literal = self._levels[: wildcards[0]] if wildcards else self._levels
        self._at = _SLASH.join(literal)
        self.is_done = False
        self.looked_at = 0  # characters of the name that the last step looked at: it takes so long

    def step(self, order: TopicOrder) -> str | None:
        """Look at one name, and return it if the filter matches it. `is_done`: there are no more."""
        key = order.first_from(self._at)
        if key is None:
            self.is_done = True
            return None
        self.looked_at = len(key)
        if key[:1] == "$" and self._levels[0] in ("+", "#"):
            self._at = "%"  # MQTT-4.7.2-1; "%" comes next behind "$"
            return None
        return key.replace(_SLASH, "/") if self._look_at(key) else None

    def _look_at(self, key: str) -> bool:
        """Does it match? And go on to the first name behind it that could."""
        names = key.split(_SLASH)
        last_plus = -1
        for index, level in enumerate(self._levels):
            if level == "#":
                self._at = key + _SLASH
                return True
            if index == len(names):
                self._at = key + _SLASH  # It is the beginning of names that could.
                return False
            name = names[index]
            if level == "+":
                last_plus = index
            elif name < level:
                self._at = _SLASH.join([*names[:index], level])
                return False
            elif name > level:
                # None behind it has this beginning up to the last "+" and matches.
                self._at = _SLASH.join(names[: last_plus + 1]) + _BEHIND
                self.is_done = last_plus < 0
                return False
        self._at = _SLASH.join(names[: len(self._levels)]) + _BEHIND
        return len(names) == len(self._levels)
