"""Lists of cores of which only the beginning has come: bounded together, whoever begins how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from hedgerow.federation.mesh.core import Core
from hedgerow.federation.mesh.limits import weight_of


class Beginnings:
    """`most`: ordinary filters, beyond which the neighbour that has begun the most begins again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lists: dict[Core, tuple[str, set[str], int]] = {}  # who tells it, its filters and their weight
        self._weights: Counter[str] = Counter()  # by neighbour

    @property
    def weight(self) -> int:
        return self._weights.total()

    def begin(self, core: Core, neighbour_id: str) -> None:
        self.end(core)
        self._lists[core] = neighbour_id, set(), 0

    def add(self, core: Core, neighbour_id: str, topic_filters: Collection[str]) -> set[str] | None:
        """What has come by now; None: not from its beginning on, or there is no room for it."""
        teller, filters, weight = self._lists.get(core, ("", set(), 0))
        if teller != neighbour_id:
            return None
        more = weight_of(topic_filters)
        while self.weight + more > self._most:
            largest = max(self._weights, key=self._weights.__getitem__, default=neighbour_id)
            if largest == neighbour_id:
                self.end(core)
                return None
            for each in [each for each, (by, *_) in self._lists.items() if by == largest]:
                self.end(each)
        filters.update(topic_filters)
        self._lists[core] = neighbour_id, filters, weight + more
        self._weights[neighbour_id] += more
        return filters

    def end(self, core: Core) -> None:
        teller, _, weight = self._lists.pop(core, ("", set(), 0))
        self._weights[teller] -= weight
        if not self._weights[teller]:
            del self._weights[teller]
