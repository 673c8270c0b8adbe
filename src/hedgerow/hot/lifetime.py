"""Events of each topic since the beginning: `Ts.count` of the published listing, which its line 9 copies.

Memory: at most `MAX_LIFETIME` topics, which is as many as a window holds. Beyond that, the topic that has
been silent for longest is forgotten, and begins at 0 when it comes back. A topic in the window never is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from hedgerow.hot.window import MAX_COUNTS

MAX_LIFETIME = MAX_COUNTS
"""Topics: whoever publishes can invent them without end."""


class LifetimeCounts:
    def __init__(self, most: int = MAX_LIFETIME) -> None:
        self._most = most
        self._counts: dict[str, int] = {}  # the topic that has been silent for longest first

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, counts: Mapping[str, int]) -> None:
        """Those of a slot. Each of its topics is heard, and so the last to be forgotten."""
        known = self._counts
        for topic, count in counts.items():
            known[topic] = known.pop(topic, 0) + count
        # All at once: each search for the first topic passes over those that were moved or deleted before it.
        for topic in list(islice(known, max(0, len(known) - self._most))):
            del known[topic]

    def seed(self, scores: Mapping[str, int]) -> dict[str, int]:
        """These scores, each beginning with the topic's count instead of 0."""
        known = self._counts
        return {topic: known.get(topic, 0) + score for topic, score in scores.items()}
