"""From hot topics to topic filters: which of the subscriptions are to be delegated, and which recovered.

A monitor ranks topics; what is delegated is a registry, that of a topic filter. A filter without wildcards is
cold when its topic is. One with wildcards is cold when a topic that it matches has gone cold and none that it
matches is kept, and hot as soon as one of them is. A filter that is pinned stays: parts of this node are
subscribed to it, whom a fixed broker cannot notify. Which filters have subscribers, the registries know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hedgerow.hot.monitor import Monitor
from hedgerow.hot.registries import RegistryChanges
from hedgerow.mobility.delegation.registries import Registry
from hedgerow.topics import FilterMap, is_wildcard, matches


class HotFilters:
    def __init__(self, monitor: Monitor, filters: FilterMap[Registry]) -> None:
        self._monitor = monitor
        self._filters = filters
        self._pinned: set[str] = set()
        self._cold: dict[str, None] = {}
        self._hot: dict[str, None] = {}

    @property
    def has_news(self) -> bool:
        return bool(self._hot or self._cold)

    def add(self, topic_filter: str) -> None:
        """It has its first subscriber."""
        if not is_wildcard(topic_filter) and not self._monitor.keeps(topic_filter):
            self._cool(topic_filter)

    def remove(self, topic_filter: str) -> None:
        self._cold.pop(topic_filter, None)
        self._hot.pop(topic_filter, None)

    def pin(self, topic_filter: str, is_pinned: bool) -> None:
        if is_pinned:
            self._pinned.add(topic_filter)
            self._heat(topic_filter)
        else:
            self._pinned.discard(topic_filter)

    def apply(self, changes: RegistryChanges) -> None:
        for topic in changes.recover:
            for topic_filter in self._filters.match_filters(topic):
                self._heat(topic_filter)
        self._cool_matching(changes.delegate)

    def look_again(self) -> None:
        """Nothing is delegated any more, whatever is cold."""
        self._cool_matching(self._monitor.out_registry)

    def _cool_matching(self, topics: Sequence[str]) -> None:
        found = {topic_filter for topic in topics for topic_filter in self._filters.match_filters(topic)}
        wild = [topic_filter for topic_filter in found if is_wildcard(topic_filter)]
        kept = self._monitor.in_registry if wild else ()
        still_hot = {each for each in wild if any(matches(each, topic) for topic in kept)}
        for topic_filter in sorted(found - still_hot):
            self._cool(topic_filter)

    def take_hot(self) -> list[str]:
        hot, self._hot = list(self._hot), {}
        return hot

    def take_cold(self, most: int) -> list[str]:
        cold = list(islice(self._cold, most))
        for topic_filter in cold:
            del self._cold[topic_filter]
        return cold

    def _heat(self, topic_filter: str) -> None:
        self._cold.pop(topic_filter, None)
        self._hot[topic_filter] = None

    def _cool(self, topic_filter: str) -> None:
        if topic_filter not in self._pinned:
            self._hot.pop(topic_filter, None)
            self._cold[topic_filter] = None
