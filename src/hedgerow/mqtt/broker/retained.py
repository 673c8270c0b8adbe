"""Retained messages (MQTT 5 §3.3.1.3): the last one of each topic, bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterator

from hedgerow.message import Message
from hedgerow.topics import TopicTree, is_wildcard

# What a message takes beside its bytes, and each level of its topic in the tree: without them, a flood of
# messages of one byte would take a hundred times the memory that it is allowed.
MESSAGE_BYTES = 400
LEVEL_BYTES = 240


def cost(message: Message) -> int:
    """What a retained message counts for: about the memory that it takes."""
    return message.size + MESSAGE_BYTES + LEVEL_BYTES * (message.topic.count("/") + 1)


class Retained:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.expiring: set[str] = set()  # topics whose message has a Message Expiry Interval
        self._messages: dict[str, Message] = {}
        # The tree is for wildcard subscriptions alone; its single key says that a name ends there.
        self._tree: TopicTree[None, Message] = TopicTree()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages.values())

    @property
    def visited(self) -> int:
        """What lookups have cost: see `TopicTree`."""
        return self._tree.visited

    def get(self, topic: str) -> Message | None:
        return self._messages.get(topic)

    def has_room_for(self, message: Message) -> bool:
        return not message.payload or self._bytes_with(message) <= self.max_bytes

    def _bytes_with(self, message: Message) -> int:
        old = self._messages.get(message.topic)
        return self.bytes + cost(message) - (cost(old) if old is not None else 0)

    def set(self, message: Message) -> bool:
        """Keep it in place of the topic's last one. False when there is no room for it."""
        if not self.has_room_for(message):
            return False
        self.bytes = self._bytes_with(message)
        self._messages[message.topic] = message
        if message.expires_at is not None:
            self.expiring.add(message.topic)
        else:
            self.expiring.discard(message.topic)
        self._tree.set(message.topic, None, message)
        return True

    def remove(self, topic: str) -> bool:
        message = self._messages.pop(topic, None)
        if message is None:
            return False
        self.bytes -= cost(message)
        self.expiring.discard(topic)
        self._tree.remove(topic, None)
        return True

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """The retained messages that a new subscription gets, without those that have expired."""
        if not is_wildcard(topic_filter):
            message = self._messages.get(topic_filter)
            found = [] if message is None else [message]
        else:
            found = [message for _, message in self._tree.match_filter(topic_filter)]
        return [message for message in found if message.expires_at is None or message.expires_at > now]

    def expired(self, now: float) -> list[str]:
        """The topics whose message has outlived its Message Expiry Interval."""
        return [topic for topic in self.expiring if (self._messages[topic].expires_at or now) <= now]
