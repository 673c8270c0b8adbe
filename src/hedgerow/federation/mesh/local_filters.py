"""The filters of this broker's own subscribers, and which of them the federation has to know.

A filter that a wider one of the same broker covers brings nothing new here, so that it is not announced: with
`#` among them, `#` is all.

A client may subscribe to `#` where there are a hundred thousand others, and take it back. So a wide filter is
announced at once, and those that it covers are withdrawn by and by; one that is taken back stays announced
until those that it covered are announced again. Meanwhile more is announced than is needed, and never less.
`sweep` goes on with that: it passes over filters in order, and finds out anew for each. All that comes during
a pass waits for one more pass, whose length does not grow with their number.
"""

from __future__ import annotations

from collections import deque

from hedgerow.broker.topic_order import Cursor, TopicOrder
from hedgerow.topics import STATUS_FILTER, TopicTree, is_wildcard

Told = tuple[list[str], list[str]]
"""(what is announced from now on, what no longer)"""

SWEPT_AT_ONCE = 200  # looks at a filter, each of which may change its mesh
VISITS_PER_LOOK = 16
MAX_CURSORS = 4  # of one pass; for more wide filters than that it is over all filters
EVERYTHING = ("#", STATUS_FILTER)  # Of topics that begin with $ no others are known to a federation.


class LocalFilters:
    def __init__(self) -> None:
        self.announced: set[str] = set()
        self.visited = 0  # what sweeps have cost
        self._filters: set[str] = set()
        self._order = TopicOrder()
        self._tree: TopicTree[str, None] = TopicTree()
        # Wide filters that came or went: of the pass that goes on, and of the next one.
        self._of_pass: set[str] = set()
        self._of_next: set[str] = set()
        self._cursors: deque[Cursor] = deque()

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._filters

    @property
    def is_swept(self) -> bool:
        """Is exactly that announced which no other filter covers?"""
        return not self._of_pass and not self._of_next

    def add(self, topic_filter: str) -> Told:
        if topic_filter in self._filters:
            return [], []
        self._filters.add(topic_filter)
        self._order.add(topic_filter)
        self._tree.set(topic_filter, topic_filter, None)
        told: Told = [], []
        if not self._is_covered(topic_filter):
            self._announce(topic_filter, told)
            if is_wildcard(topic_filter):
                self._of_next.add(topic_filter)
        return self.sweep(told)

    def remove(self, topic_filter: str) -> Told:
        if topic_filter not in self._filters:
            return [], []
        self._filters.discard(topic_filter)
        self._order.remove(topic_filter)
        self._tree.remove(topic_filter, topic_filter)
        told: Told = [], []
        if not is_wildcard(topic_filter):
            self._withdraw(topic_filter, told)
        elif topic_filter in self.announced or not self.is_swept:
            # One that is not announced may be why others were withdrawn in this pass.
            self._announce(topic_filter, told)
            self._of_next.add(topic_filter)
        return self.sweep(told)

    def sweep(self, told: Told | None = None) -> Told:
        """Go on, for a bounded number of filters, behind what has changed already."""
        told = told or ([], [])
        looks = 0
        while looks < SWEPT_AT_ONCE and not self.is_swept:
            before = self._tree.visited
            self._look(told)
            looks += 1 + (self._tree.visited - before) // VISITS_PER_LOOK
        self.visited += looks
        return told

    def _look(self, told: Told) -> None:
        """At one filter: in order, and behind all of them at those that came or went."""
        if not self._of_pass:
            self._of_pass, self._of_next = self._of_next, set()
            wide = self._of_pass if len(self._of_pass) <= MAX_CURSORS else EVERYTHING
            self._cursors.extend(map(Cursor, wide))
        if not self._cursors:
            over = self._of_pass.pop()
            if over not in self._of_next:
                self._settle(over, told)
            return
        cursor = self._cursors[0]
        narrow = cursor.step(self._order)
        if narrow is not None:
            self._settle(narrow, told)
        if cursor.is_done:
            self._cursors.popleft()

    def _settle(self, topic_filter: str, told: Told) -> None:
        if topic_filter in self._filters and not self._is_covered(topic_filter):
            self._announce(topic_filter, told)
        else:
            self._withdraw(topic_filter, told)

    def _announce(self, topic_filter: str, told: Told) -> None:
        if topic_filter not in self.announced:
            self.announced.add(topic_filter)
            told[0].append(topic_filter)

    def _withdraw(self, topic_filter: str, told: Told) -> None:
        if topic_filter in self.announced:
            self.announced.discard(topic_filter)
            told[1].append(topic_filter)

    def _is_covered(self, topic_filter: str) -> bool:
        return any(wide != topic_filter for wide, _ in self._tree.match_wider(topic_filter))
