"""Retained messages (MQTT 5 §3.3.1.3): the last one of each topic, bounded in bytes; and what was deleted.

Brokers that are joined agree on the value of a topic, whatever they heard in which order: the newest holds,
by the time of its publication and then by its id (`ids.age_key`), so that all decide alike. A deletion is a
value of no bytes, and is kept too, as a *tombstone*: a broker that did not hear of it, because a link was
away, would bring the old value back. A topic has a value or a tombstone, never both. Ordinary clients see no
tombstones.

**Times.** What a client publishes is newer than what is kept here, even where the clock of this machine is
behind (`stamp`): so a value from a clock that runs ahead, or from someone who says that it is the year 2100,
moves the time of its topic on, and stops nobody. No time is corrected on its way, since a broker whose own
clock is wrong would spoil it for those behind it. Times are whole microseconds, as they travel: one that was
rounded on the way would be another than at its origin, and two brokers could each take the other's.

**How long.** A tombstone is kept for `TOMBSTONE_S` from the time of the deletion, which is the same moment
everywhere: brokers do not keep it alive by telling each other. A broker that was cut off for longer brings
back what was deleted meanwhile. What expires (Message Expiry Interval) was not deleted, and leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hedgerow.message import Message, Properties
from hedgerow.mqtt.ids import HELD
from hedgerow.topics import TopicTree, is_wildcard

# What a message takes beside its bytes, and each level of its topic in the tree: without them, a flood of
# messages of one byte would take a hundred times the memory that it is allowed.
MESSAGE_BYTES = 400
LEVEL_BYTES = 240
TOMBSTONE_S = 7 * 86_400.0
TOMBSTONE_SHARE = 8  # They may take one part in so many of what values may: some 30,000 by default.


def cost(message: Message) -> int:
    """What a retained message counts for: about the memory that it takes."""
    return message.size + MESSAGE_BYTES + LEVEL_BYTES * (message.topic.count("/") + 1)


def stamp(now: float, kept: Message | None) -> float:
    """The time of a value that is published now, in the place of what is kept."""
    microseconds = int(now * 1e6 + 0.5)
    if kept is not None and kept.published_at is not None:
        microseconds = max(microseconds, int(kept.published_at * 1e6 + 0.5) + 1)
    return microseconds / 1e6  # what rounding to six digits gives too, at six times the cost


class TopicMessages:
    """One message for each topic, found by its name or by a filter."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
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

    def _put(self, message: Message) -> None:
        self.bytes = self._bytes_with(message)
        self._messages[message.topic] = message
        self._tree.set(message.topic, None, message)

    def _bytes_with(self, message: Message) -> int:
        old = self._messages.get(message.topic)
        return self.bytes + cost(message) - (cost(old) if old is not None else 0)

    def remove(self, topic: str) -> bool:
        message = self._messages.pop(topic, None)
        if message is None:
            return False
        self.bytes -= cost(message)
        self._tree.remove(topic, None)
        return True

    def _find(self, topic_filter: str) -> list[Message]:
        if not is_wildcard(topic_filter):
            message = self._messages.get(topic_filter)
            return [] if message is None else [message]
        return [message for _, message in self._tree.match_filter(topic_filter)]


class Tombstones(TopicMessages):
    """Deletions, as the messages that tell other brokers of them. Beyond `max_bytes` the oldest go first."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.ends_at = float("inf")  # when the first of them is over, or earlier
        self.on_forget: Callable[[str], None] = lambda topic: None  # a topic that has none any more

    def set(self, deletion: Message, now: float) -> bool:
        """Keep it; False when it is too long ago."""
        if self._ends_at(deletion) <= now:
            return False
        super().remove(deletion.topic)  # It is the youngest now, in the order in which they go.
        mark: Properties = {"user_property": (HELD,)}
        topic, qos, message_id, at = deletion.topic, deletion.qos, deletion.id, deletion.published_at
        self._put(Message(topic, b"", qos, True, mark, message_id, published_at=at))
        self.ends_at = min(self.ends_at, self._ends_at(deletion))
        while self.bytes > self.max_bytes:
            self._forget(next(iter(self._messages)))
        return deletion.topic in self._messages

    def match(self, topic_filter: str, now: float) -> list[Message]:
        return [each for each in self._find(topic_filter) if self._ends_at(each) > now]

    def purge(self, now: float) -> None:
        """Forget those whose time is over."""
        if self.ends_at <= now:
            for topic in [each.topic for each in self if self._ends_at(each) <= now]:
                self._forget(topic)
            self.ends_at = min(map(self._ends_at, self), default=float("inf"))

    def _forget(self, topic: str) -> None:
        super().remove(topic)
        self.on_forget(topic)

    @staticmethod
    def _ends_at(deletion: Message) -> float:
        return (deletion.published_at or 0.0) + TOMBSTONE_S


class Retained(TopicMessages):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.expiring: set[str] = set()  # topics whose message has a Message Expiry Interval
        self.tombstones = Tombstones(max_bytes // TOMBSTONE_SHARE)

    def newest(self, topic: str, now: float) -> Message | None:
        """The topic's value, or the tombstone in its place."""
        message = self._messages.get(topic)
        if message is None:
            return self.tombstones.get(topic)
        return message if message.expires_at is None or message.expires_at > now else None

    def holds(self, message: Message) -> bool:
        """Is it this very one that is kept?"""
        kept = self if message.payload else self.tombstones
        return kept.get(message.topic) is message

    def has_room_for(self, message: Message) -> bool:
        return not message.payload or self._bytes_with(message) <= self.max_bytes

    def set(self, message: Message) -> bool:
        """Keep it in place of the topic's last one, or its tombstone. False when there is no room for it."""
        if not self.has_room_for(message):
            return False
        self._put(message)
        if message.expires_at is not None:
            self.expiring.add(message.topic)
        else:
            self.expiring.discard(message.topic)
        self.tombstones.remove(message.topic)
        return True

    def remove(self, topic: str) -> bool:
        self.expiring.discard(topic)
        return super().remove(topic)

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """The retained messages that a new subscription gets, without those that have expired."""
        return [
            message
            for message in self._find(topic_filter)
            if message.expires_at is None or message.expires_at > now
        ]

    def expired(self, now: float) -> list[str]:
        """The topics whose message has outlived its Message Expiry Interval."""
        return [topic for topic in self.expiring if (self._messages[topic].expires_at or now) <= now]
