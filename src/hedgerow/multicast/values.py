"""Last values: retained messages, kept by whoever publishes or hears them.

The newer of two values is the one published later; of the same instant, the one from the greater origin. A
publisher never stamps a value older than the one it knows, so that a clock that is behind does not
silence it. A value of no bytes is a deletion, and is kept too: otherwise a member that missed it would
bring the old value back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hedgerow.message import Message
from hedgerow.topics import TopicTree

DELETION_S = 600.0  # How long it is remembered that a value was deleted.
_OVERHEAD_BYTES = 400
_TICK_S = 1e-6  # The resolution of the time in a frame.


class LastValue(NamedTuple):
    message: Message
    published_at: float

    @property
    def size(self) -> int:
        return self.message.size + _OVERHEAD_BYTES

    @property
    def age_key(self) -> tuple[float, str]:
        message_id = self.message.id
        return self.published_at, message_id.origin if message_id is not None else ""


class LastValues:
    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._tree: TopicTree[str, LastValue] = TopicTree()
        self._values: dict[str, LastValue] = {}  # in the order in which they were set

    def __len__(self) -> int:
        return len(self._values)

    @property
    def visited(self) -> int:
        """Nodes that searches have looked at."""
        return self._tree.visited

    def get(self, topic: str) -> LastValue | None:
        return self._values.get(topic)

    def stamp(self, topic: str, now: float) -> float:
        """The time of a value that is published now."""
        known = self._values.get(topic)
        return now if known is None else max(now, known.published_at + _TICK_S)

    def set(self, message: Message, published_at: float) -> bool:
        """Keep a value; False when the one that we have is as new."""
        value = LastValue(message, published_at)
        known = self._values.get(message.topic)
        if known is not None and value.age_key <= known.age_key:
            return False
        self.remove(message.topic)
        self._values[message.topic] = value
        self._tree.set(message.topic, message.topic, value)
        self.bytes += value.size
        while self.bytes > self._max_bytes:
            self.remove(next(iter(self._values)))
        return True

    def remove(self, topic: str) -> None:
        value = self._values.pop(topic, None)
        if value is not None:
            self._tree.remove(topic, topic)
            self.bytes -= value.size

    def match(self, topic_filter: str) -> Iterator[LastValue]:
        """Deletions too."""
        return (value for _, value in self._tree.match_filter(topic_filter))

    def forget_deletions(self, now: float) -> None:
        old = [
            topic
            for topic, value in self._values.items()
            if not value.message.payload and value.published_at < now - DELETION_S
        ]
        for topic in old:
            self.remove(topic)
