"""The filters that a bridge has at its far broker while they change, and which copies of a message count.

A broker may send a message once for each subscription that matches it, and Mosquitto (2.0.11) does so in
MQTT 5, whatever `allow_duplicate_messages` says. So each subscription has an identifier (§3.8.2.1.2), which
tells for which of them a copy came, and of the copies of one message one counts:

- It is that of the filter which was subscribed to *first*: every message that comes by a later one came by
  it, too, and what a later one is told of retained values is known by it.
- A filter that is no longer asked for stays the first until the far broker has answered. Then the next one is
  it. At QoS 1 and 2 copies from before may come behind the answer (Mosquitto has 20 in flight, others wait),
  so for a while a copy by the old one counts as well, if its message has not counted by another: the copies
  of one message come close together, and what was awaited of a message is remembered for a moment.
- A filter that is asked for again gets another identifier, since copies by the old one say nothing of the
  new. In the same way copies with identifiers that nobody knows are from an earlier life of this node.

Without identifiers (MQTT 3.1.1) copies cannot be told from messages that are alike, and all count, but for
retained values that each new filter is told. Mosquitto sends one then, unless it has
`allow_duplicate_messages true`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from hedgerow.bridges.stamp_codec import MAX_FILTER_BYTES, MAX_FILTERS, fingerprint
from hedgerow.message import Message
from hedgerow.mqtt.reasons import FAILURE
from hedgerow.topics import TopicTree, validate_filter

Deliver = Callable[[str, bytes, bool], None]
"""(topic, payload, retain)"""

RESERVED = ("$", "hedgerow/")  # what brokers and bridges tell each other
CONTROL_IDENTIFIER = 1  # of what bridges at one broker tell each other (`stamps.py`)
MAX_IDENTIFIER = 268_435_455
MAX_FAR_FILTERS = 200_000  # Neighbours invent them; each takes a kilobyte here and more at the far broker.
MAX_CACHED_TOPICS = 16_384  # A publisher may use a new topic for every message.
COPIES_S = 2.0  # how long the other copies of a message are awaited
MAX_COPIES = 1_000  # messages of which copies are awaited
LEFT_S = 10.0  # how long copies may come behind the answer to UNSUBSCRIBE
TOLD_S = 1.5  # how long after its SUBSCRIBE a filter may be told retained values, as in `stamps.py`


def is_reserved(topic: str) -> bool:
    """A topic, or a filter that matches no others."""
    return topic.startswith(RESERVED)


class Standing(Enum):
    ASKED = "asked"  # subscribed to, or to be with the next connection
    REFUSED = "refused"  # by the far broker
    LEAVING = "leaving"  # UNSUBSCRIBE is not answered, or to be sent with the next connection
    LEFT = "left"


@dataclass(slots=True, eq=False)
class FarFilter:
    """One subscription, from when it is asked for until its last copies have come."""

    topic_filter: str
    qos: int
    deliver: Deliver | None
    """Who watches it; None: its messages become publications here."""
    identifier: int
    order: int
    standing: Standing = Standing.ASKED
    is_new: bool = True
    """The far broker has not granted it yet."""
    is_wanted_again: bool = False
    """While it leaves."""
    told_until: float = 0.0
    left_at: float = 0.0


@dataclass(slots=True)
class _Copies:
    """Of a message that has counted."""

    came_by: set[int]
    awaited: frozenset[int]
    until: float


class FarFilters:
    """Outlives the connections of its bridge, which does what this says is to be done."""

    def __init__(self, *, max_filters: int = MAX_FAR_FILTERS, max_identifier: int = MAX_IDENTIFIER) -> None:
        self._max_filters = max_filters
        self._max_identifier = max_identifier  # all bits set
        self._filters: dict[str, FarFilter] = {}  # but for those that left
        self._tree: TopicTree[int, FarFilter] = TopicTree()  # those that may bring something
        self._by_identifier: dict[int, FarFilter] = {}
        self._left: deque[FarFilter] = deque()
        self._matching: dict[str, tuple[FarFilter, ...]] = {}
        self._copies: OrderedDict[bytes, _Copies] = OrderedDict()
        self._told: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # → to how many, until when
        self._order = 0
        self._asked: dict[str, None] = {}  # without those watched
        self._asked_bytes = 0
        self._is_first_connection = True
        self._strange_until = 0.0  # Copies by subscriptions of an earlier life may come.

    # What is wanted

    @property
    def asked(self) -> Iterable[str]:
        return self._asked.keys()

    def claimed(self) -> tuple[str, ...]:
        """What the other carriers at the far broker are told of `asked`: more than fits is everything."""
        if len(self._asked) > MAX_FILTERS or self._asked_bytes > MAX_FILTER_BYTES:
            return ("#",)
        return tuple(self._asked)

    def find(self, topic_filter: str) -> FarFilter | None:
        return self._filters.get(topic_filter)

    def ask(self, topic_filter: str, qos: int, deliver: Deliver | None = None) -> FarFilter | None:
        """The filter if it is to be subscribed to now; None when there is nothing to do, or no room.

        One that is watched stays so. One that is leaving is subscribed to when it has left.
        """
        known = self._filters.get(topic_filter)
        if known is None:
            validate_filter(topic_filter)
            if len(self._by_identifier) >= self._max_filters:
                return None
            known = self._add(topic_filter, qos, deliver)
        elif known.standing is Standing.LEAVING:
            known.qos, known.deliver, known.is_wanted_again = qos, deliver, True
        elif (deliver, qos) == (known.deliver, known.qos) or (deliver is None and known.deliver is not None):
            return None
        else:
            known.qos, known.deliver = qos, deliver
        self._note_asked(known)
        self._matching.clear()
        return None if known.is_wanted_again else known

    def drop(self, topic_filter: str) -> FarFilter | None:
        """The filter if it is to be unsubscribed from; it stays until `left`."""
        known = self._filters.get(topic_filter)
        if known is None or known.deliver is not None:
            return None
        self._forget_asked(topic_filter)
        self._matching.clear()
        if known.standing is Standing.LEAVING:
            known.is_wanted_again = False
            return None
        if known.standing is Standing.REFUSED:
            self._forget(known)
            return None
        known.standing = Standing.LEAVING
        return known

    def standing(self) -> list[FarFilter]:
        """All that the far broker may have a subscription for."""
        return list(self._filters.values())

    # What the far broker answers

    def begin(self, is_first: bool, now: float) -> tuple[list[FarFilter], list[FarFilter]]:
        """A new connection: what to subscribe to, in this order, and what to unsubscribe from.

        `is_first`: the far broker knows of no subscriptions.
        """
        if self._is_first_connection and not is_first:
            self._strange_until = now + LEFT_S
        self._is_first_connection = False
        unwanted: list[FarFilter] = []
        for each in self.standing():
            if each.standing is Standing.REFUSED:
                each.order = self._next_order()  # Others have been there before it.
            elif each.standing is Standing.LEAVING and (is_first or each.is_wanted_again):
                self.left(each.topic_filter, now)
            elif each.standing is Standing.LEAVING:
                unwanted.append(each)
        wanted = [each for each in self.standing() if each.standing is not Standing.LEAVING]
        for each in wanted:
            each.is_new = each.is_new or is_first
        return sorted(wanted, key=lambda each: each.order), unwanted

    def subscribing(self, each: FarFilter, now: float) -> None:
        if each.is_new:
            each.told_until = now + TOLD_S

    def answered(self, topic_filter: str, reason_code: int) -> bool:
        """The far broker has answered SUBSCRIBE. Do messages come by other filters now?"""
        known = self._filters.get(topic_filter)
        if known is None:
            return False
        before = known.standing
        if reason_code < FAILURE:
            known.is_new = False
            if before is Standing.REFUSED:
                known.standing = Standing.ASKED
                self._tree.set(topic_filter, known.identifier, known)
        elif before is Standing.ASKED:
            known.standing = Standing.REFUSED
            self._tree.remove(topic_filter, known.identifier)
        self._matching.clear()
        return known.standing is not before

    def left(self, topic_filter: str, now: float) -> FarFilter | None:
        """The far broker has answered UNSUBSCRIBE. The filter if it is wanted again."""
        known = self._filters.get(topic_filter)
        if known is None or known.standing is not Standing.LEAVING:
            return None
        known.standing, known.left_at = Standing.LEFT, now
        self._left.append(known)
        del self._filters[topic_filter]
        self._matching.clear()
        return self._add(topic_filter, known.qos, known.deliver) if known.is_wanted_again else None

    def expire(self, now: float) -> None:
        while self._left and self._left[0].left_at + LEFT_S <= now:
            self._forget(self._left.popleft())

    # Messages

    def matching(self, topic: str) -> tuple[FarFilter, ...]:
        """Those that may bring it, the first one first."""
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) >= MAX_CACHED_TOPICS:
                self._matching.clear()
            matches = [each for _, each in self._tree.match(topic)]
            matches.sort(key=lambda each: (each.standing is Standing.LEFT, each.order))
            found = self._matching[topic] = tuple(matches)
        return found

    def settled(self, topic: str, now: float) -> tuple[FarFilter, ...]:
        """The same, while none of them has left and there are no others: then the first one's copies count,
        at QoS 0. Else nothing."""
        found = self.matching(topic)
        has_left = bool(found) and found[-1].standing is Standing.LEFT
        return () if has_left or now < self._strange_until else found

    def is_wanted(self, topic: str) -> bool:
        """Does it become a publication here?"""
        found = self.matching(topic)
        return any(each.standing is Standing.ASKED for each in found) and not self.watching(topic)

    def watching(self, topic: str) -> list[FarFilter]:
        return [each for each in self.matching(topic) if each.deliver is not None]

    def may_be_told(self, identifiers: Iterable[int], now: float) -> bool:
        """May this copy be a retained value, told to a new subscription?"""
        known = [self._by_identifier.get(each) for each in identifiers]
        return any(each is not None and each.told_until > now for each in known) or not known

    def counts(
        self, topic: str, payload: bytes, identifiers: Iterable[int], now: float, retain: bool = False
    ) -> bool:
        """Is this the copy that becomes a publication?"""
        came_by = set(identifiers)
        found = self.matching(topic)
        if not came_by or not found:
            return not (retain and self._was_told(topic, payload, now))
        if len(self.settled(topic, now)) == 1:
            return found[0].identifier in came_by  # Else by one that an earlier life left there for ever.
        print_ = fingerprint(Message(topic, payload))
        copies = self._copies.get(print_)
        if copies is not None and self._is_another(copies, came_by, now):
            copies.came_by |= came_by
            return False
        known = {each.identifier: each for each in found}
        is_first = found[0].identifier in came_by
        if not is_first and any(
            each in known and known[each].standing is not Standing.LEFT for each in came_by
        ):
            return False  # It comes by the first one, too, or did long ago.
        self._copies[print_] = _Copies(came_by, frozenset(known), now + COPIES_S)
        self._copies.move_to_end(print_)
        if len(self._copies) > MAX_COPIES:
            self._copies.popitem(last=False)
        return True

    def _was_told(self, topic: str, payload: bytes, now: float) -> bool:
        """Without identifiers: is it told to one more of the filters that are new?"""
        new = sum(each.told_until > now for each in self.matching(topic))
        print_ = fingerprint(Message(topic, payload))
        count, until = self._told.get(print_, (0, 0.0))
        was_told = until > now and count < new
        if new:
            self._told[print_] = (count + 1 if was_told else 1), now + TOLD_S
            self._told.move_to_end(print_)
        if len(self._told) > MAX_COPIES:
            self._told.popitem(last=False)
        return was_told

    def _is_another(self, copies: _Copies, came_by: set[int], now: float) -> bool:
        """Of the same message, and not of one that is alike."""
        if copies.until <= now or came_by & copies.came_by:
            return False
        return all(each in copies.awaited or each not in self._by_identifier for each in came_by)

    # The tables

    def _add(self, topic_filter: str, qos: int, deliver: Deliver | None) -> FarFilter:
        digest = blake2b(topic_filter.encode(), digest_size=4).digest()
        identifier = int.from_bytes(digest, "big") & self._max_identifier
        while identifier <= CONTROL_IDENTIFIER or identifier in self._by_identifier:
            identifier = (identifier + 1) & self._max_identifier
        added = FarFilter(topic_filter, qos, deliver, identifier, self._next_order())
        self._filters[topic_filter] = self._by_identifier[identifier] = added
        self._tree.set(topic_filter, identifier, added)
        self._matching.clear()
        return added

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _note_asked(self, each: FarFilter) -> None:
        if each.deliver is not None:
            self._forget_asked(each.topic_filter)
        elif each.topic_filter not in self._asked:
            self._asked[each.topic_filter] = None
            self._asked_bytes += len(each.topic_filter.encode())

    def _forget_asked(self, topic_filter: str) -> None:
        if topic_filter in self._asked:
            del self._asked[topic_filter]
            self._asked_bytes -= len(topic_filter.encode())

    def _forget(self, each: FarFilter) -> None:
        if self._filters.get(each.topic_filter) is each:
            del self._filters[each.topic_filter]
        del self._by_identifier[each.identifier]
        self._tree.remove(each.topic_filter, each.identifier)
        self._matching.clear()
