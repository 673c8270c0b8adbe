"""The duplicate log: which messages have been here, by their fabric-wide id.

`seen` remembers an id and answers whether it was there already. Two generations keep that O(1): ids go into
the young one; when that is full, or `min_age_s` old, it becomes the old one, and the old one is forgotten. So
an id is remembered for at least `min_age_s` unless `max_entries` / 2 others come meanwhile, never more than
`max_entries` are held, and an id that keeps coming back is kept.
"""

from __future__ import annotations

from hedgerow.message import MessageId

MIN_AGE_S = 60.0  # A second copy takes the slower path: repairs, and links that queue while they are away.


class DuplicateLog:
    """`forgotten_early` counts ids that had to go before `min_age_s`: a flood, or too small a log."""

    def __init__(self, max_entries: int, min_age_s: float = MIN_AGE_S) -> None:
        if max_entries < 2:
            raise ValueError("a duplicate log has room for at least two entries")
        self.forgotten_early = 0
        self._max_young = max_entries // 2
        self._min_age_s = min_age_s
        self._young: set[MessageId] = set()
        self._old: set[MessageId] = set()
        self._young_since_at = float("-inf")

    def __len__(self) -> int:
        """How many entries it holds; an id that came back may count twice."""
        return len(self._young) + len(self._old)

    def seen(self, message_id: MessageId, now: float) -> bool:
        """Was it here before? From now on it was."""
        if message_id in self._young:
            return True
        was_seen = message_id in self._old
        age_s = now - self._young_since_at
        if age_s >= self._min_age_s or len(self._young) >= self._max_young:
            if age_s < self._min_age_s:
                self.forgotten_early += len(self._old)
            self._old, self._young = self._young, set()
            self._young_since_at = now
        self._young.add(message_id)
        return was_seen
