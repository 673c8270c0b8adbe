"""The filters of this broker's own subscribers, and which of them the federation has to know.

A filter that a wider one of the same broker covers brings nothing new here, so that it is not announced: with
`#` among them, `#` is all.
"""

from __future__ import annotations

from hedgerow.topics import TopicTree, covers


class LocalFilters:
    def __init__(self) -> None:
        self.announced: set[str] = set()
        self._filters: set[str] = set()
        self._tree: TopicTree[str, None] = TopicTree()

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._filters

    def add(self, topic_filter: str) -> tuple[list[str], list[str]]:
        """(what is announced from now on, what no longer)"""
        self._filters.add(topic_filter)
        if not self._tree.set(topic_filter, topic_filter, None) or self._is_covered(topic_filter):
            return [], []
        gone = [narrow for narrow in self._covered_by(topic_filter) if narrow in self.announced]
        self.announced.difference_update(gone)
        self.announced.add(topic_filter)
        return [topic_filter], gone

    def remove(self, topic_filter: str) -> tuple[list[str], list[str]]:
        """As `add`."""
        self._filters.discard(topic_filter)
        self._tree.remove(topic_filter, topic_filter)
        if topic_filter not in self.announced:
            return [], []
        self.announced.discard(topic_filter)
        new = [narrow for narrow in self._covered_by(topic_filter) if not self._is_covered(narrow)]
        self.announced.update(new)
        return new, [topic_filter]

    def _is_covered(self, topic_filter: str) -> bool:
        return any(wide != topic_filter for wide, _ in self._tree.match_wider(topic_filter))

    def _covered_by(self, topic_filter: str) -> list[str]:
        # Taken as a name, a stored filter may seem to match where it is not covered: "a/#" for "a/+".
        found = [narrow for narrow, _ in self._tree.match_filter(topic_filter)]
        return [narrow for narrow in found if narrow != topic_filter and covers(topic_filter, narrow)]
