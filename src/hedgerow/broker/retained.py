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
from heapq import heapify, heappop, heappush
from itertools import islice

from hedgerow.broker.pool import Pool
from hedgerow.broker.topic_order import Cursor, TopicOrder
from hedgerow.message import Message, Properties
from hedgerow.mqtt.ids import HELD

# What a message takes beside its bytes, and its properties: without them, a flood of messages of one byte
# would take a hundred times the memory that it is allowed. Of 100,000 with 180 bytes each took 812.
MESSAGE_BYTES = 600
PROPERTIES_BYTES = 400
# One object for all that have a size: each has it, and an int takes 32 bytes.
_SIZES: dict[int, int] = {}
MAX_SIZES = 4_096
TOMBSTONE_S = 7 * 86_400.0
MIN_OWN_BYTES = 64 * 1024  # An owner's messages may always take so much, for as long as there is room.
TOMBSTONE_SHARE = 8  # They may take one part in so many of what values may: some 30,000 by default.
MAX_VOID_EXPIRIES = 1_024  # Beside those of the messages that there are.


def cost(message: Message) -> int:
    """What a retained message counts for: about the memory that it takes."""
    size = 2 * len(message.topic) + len(message.payload) + MESSAGE_BYTES  # The topic is in `TopicOrder` too.
    if message.properties:
        size = message.size + len(message.topic) + MESSAGE_BYTES + PROPERTIES_BYTES
    return _SIZES.setdefault(size, size) if size < MAX_SIZES else size


def stamp(now: float, kept: Message | None) -> float:
    """The time of a value that is published now, in the place of what is kept."""
    microseconds = int(now * 1e6 + 0.5)
    if kept is not None and kept.published_at is not None:
        microseconds = max(microseconds, int(kept.published_at * 1e6 + 0.5) + 1)
    return microseconds / 1e6  # what rounding to six digits gives too, at six times the cost


class Kept:
    """The message of a topic."""

    __slots__ = ("cost", "message", "number", "owner")

    def __init__(self, message: Message, size: int, number: int, owner: str | None) -> None:
        self.message = message
        self.cost = size
        self.number = number  # what `TopicMessages.count` came to when it was put there
        self.owner = owner


class TopicMessages:
    """One message for each topic, found by its name or by a filter."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.count = 0  # of all that were ever put here
        self.order = TopicOrder()
        self._kept: dict[str, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Message]:
        return (kept.message for kept in self._kept.values())

    def get(self, topic: str) -> Message | None:
        kept = self._kept.get(topic)
        return None if kept is None else kept.message

    def get_older(self, topic: str, count: int) -> Message | None:
        """The topic's message, if it was here when `count` was that."""
        kept = self._kept.get(topic)
        return None if kept is None or kept.number > count else kept.message

    def _put(self, message: Message, size: int, owner: str | None = None) -> None:
        topic = message.topic
        self.count += 1
        kept = self._kept.get(topic)
        if kept is None:
            self.order.add(topic)
            self._kept[topic] = Kept(message, size, self.count, owner)
            self.bytes += size
        else:
            self.bytes += size - kept.cost
            kept.message, kept.cost, kept.number, kept.owner = message, size, self.count, owner

    def remove(self, topic: str) -> bool:
        kept = self._kept.pop(topic, None)
        if kept is None:
            return False
        self.bytes -= kept.cost
        self.order.remove(topic)
        return True

    def look_for(self, topic_filter: str) -> Iterator[Message | None]:
        """Those that a filter matches, and None for each look at a name that it does not match. Peers choose
        how many there are of both: whoever does not take all of them takes some, or goes on later."""
        cursor = Cursor(topic_filter)
        while not cursor.is_done:
            topic = cursor.step(self.order)
            yield None if topic is None else self._kept[topic].message


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
        message = Message(topic, b"", qos, True, mark, message_id, published_at=at)
        self._put(message, cost(message))
        self.ends_at = min(self.ends_at, self._ends_at(deletion))
        while self.bytes > self.max_bytes:
            self._forget(next(iter(self._kept)))
        return deletion.topic in self._kept

    def is_over(self, deletion: Message, now: float) -> bool:
        return self._ends_at(deletion) <= now

    def purge(self, now: float, most: int) -> None:
        """Forget those whose time is over, but no more than so many; `ends_at` says when there are others."""
        if self.ends_at <= now:
            over = list(islice((each.topic for each in self if self._ends_at(each) <= now), most))
            for topic in over:
                self._forget(topic)
            if len(over) < most:
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
        # Those of an owner (`owners.py`) may take as much as they leave free. Whose one is, is not stored.
        self.shares = Pool(max_bytes, MIN_OWN_BYTES, 1)
        self._expiring = 0  # messages with a Message Expiry Interval
        self._expiries: list[tuple[float, str]] = []  # a heap: when, and which topic; void if it differs
        self.tombstones = Tombstones(max_bytes // TOMBSTONE_SHARE)

    def set_max_bytes(self, max_bytes: int) -> None:
        """Nothing goes that is kept; if it is too much by now, nothing comes either."""
        self.max_bytes = max_bytes
        self.shares.resize(max_bytes, MIN_OWN_BYTES)
        self.tombstones.max_bytes = max_bytes // TOMBSTONE_SHARE

    def newest(self, topic: str, now: float) -> Message | None:
        """The topic's value, or the tombstone in its place."""
        kept = self._kept.get(topic)
        if kept is None:
            return self.tombstones.get(topic)
        message = kept.message
        return message if message.expires_at is None or message.expires_at > now else None

    def has_room_for(self, message: Message, owner: str | None = None) -> bool:
        return not message.payload or self._has_room(
            self._kept.get(message.topic), message, cost(message), owner
        )

    def _has_room(self, old: Kept | None, message: Message, size: int, owner: str | None) -> bool:
        more = size if old is None else size - old.cost
        if self.bytes + more > self.max_bytes:
            return False
        if owner is None:
            return True
        if old is None or old.owner != owner:
            return self.shares.has_room(owner, size)
        # Others have come since: what it has may change, if not grow beyond what one alone may have.
        return self.shares.of(owner) + more <= max(self.max_bytes // 2, MIN_OWN_BYTES)

    def set(self, message: Message, owner: str | None = None) -> bool:
        """Keep it in place of the topic's last one, or its tombstone. False when there is no room for it."""
        old, size = self._kept.get(message.topic), cost(message)
        if message.payload and not self._has_room(old, message, size, owner):
            return False
        if old is None:
            self.shares.change(owner, size)
            self.tombstones.remove(message.topic)
        else:
            self._note_expiry(old.message, -1)
            if old.owner != owner or old.cost != size:
                self.shares.change(old.owner, -old.cost)
                self.shares.change(owner, size)
        self._put(message, size, owner)
        if message.expires_at is not None:
            self._note_expiry(message, 1)
        return True

    def remove(self, topic: str) -> bool:
        kept = self._kept.get(topic)
        if kept is not None:
            self._note_expiry(kept.message, -1)
            self.shares.change(kept.owner, -kept.cost)
        return super().remove(topic)

    def _note_expiry(self, message: Message, change: int) -> None:
        if message.expires_at is None:
            return
        self._expiring += change
        if change < 0:
            return
        if len(self._expiries) > 2 * self._expiring + MAX_VOID_EXPIRIES:
            # One who publishes to a topic again and again leaves one each time.
            self._expiries = [each for each in self._expiries if self._is_due(*each)]
            heapify(self._expiries)
        heappush(self._expiries, (message.expires_at, message.topic))

    def _is_due(self, at: float, topic: str) -> bool:
        message = self.get(topic)
        return message is not None and message.expires_at == at

    def match(self, topic_filter: str, now: float, most_looks: int | None = None) -> list[Message]:
        """The retained messages that a new subscription gets, without those that have expired. In one go: for
        whoever knows that they are few, or takes those alone that are found with so many looks."""
        return [
            message
            for message in islice(self.look_for(topic_filter), most_looks)
            if message is not None and (message.expires_at is None or message.expires_at > now)
        ]

    @property
    def expires_at(self) -> float:
        """When the first of them has outlived its Message Expiry Interval, or earlier."""
        return self._expiries[0][0] if self._expiries else float("inf")

    def take_expired(self, now: float, most: int) -> list[str]:
        """The topics whose message has outlived its interval, each once, and no more than so many."""
        topics: dict[str, None] = {}
        while self.expires_at <= now and len(topics) < most:
            expiry = heappop(self._expiries)
            if self._is_due(*expiry):
                topics[expiry[1]] = None
        return list(topics)
