"""The topics that mobile brokers have told a fixed broker, and what matches an event."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from hedgerow.broker.owners import filter_bytes
from hedgerow.broker.pool import Pool
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import DelegationEvent, Registered, Unregistered
from hedgerow.mobility.delegation.limits import MIN_TOPIC_BYTES
from hedgerow.mobility.delegation.postponed import Postponed
from hedgerow.mobility.delegation.stream import Stream
from hedgerow.topics import FilterMap, TopicTree

Key = tuple[str, str]
"""Mobile broker and topic filter."""

ENTRY_BYTES = 150  # What a subscriber takes beside its callback.


def topic_bytes(topic_filter: str, entries: Mapping[str, int]) -> int:
    """About the memory that a topic takes, with its subscribers. Its name is here, in trees and in a port."""
    size = filter_bytes(topic_filter) + 2 * len(topic_filter)
    return size + sum(ENTRY_BYTES + len(name) for name in entries)


class Undone:
    """Who was registered before, for events that were written earlier than a change and are read later."""

    def __init__(self) -> None:
        self._order: deque[tuple[int, str]] = deque()  # number of the process plane, and topic filter
        self._before: FilterMap[deque[tuple[int, dict[str, int]]]] = FilterMap()
        """By topic filter, the oldest first: the number of a change, and who was registered before it."""

    def __len__(self) -> int:
        return len(self._order)

    def note(self, number: int, topic_filter: str, before: dict[str, int]) -> None:
        self._order.append((number, topic_filter))
        changes = self._before.get(topic_filter)
        if changes is None:
            changes = deque()
            self._before.set(topic_filter, changes)
        changes.append((number, before))

    def forget_before(self, number: int) -> None:
        """No event comes any more that was written before this."""
        order = self._order
        while order and order[0][0] <= number:
            topic_filter = order.popleft()[1]
            changes = self._before[topic_filter]
            changes.popleft()
            if not changes:
                self._before.remove(topic_filter)

    def as_of(self, topic: str, version: int) -> dict[str, dict[str, int]]:
        """By topic filter, what was registered then and differs from now, of those that match."""
        return {
            topic_filter: next(before for number, before in changes if number > version)
            for topic_filter, changes in self._before.match(topic)
            if changes[-1][0] > version
        }


@dataclass(slots=True)
class Mobile:
    """What is known of one mobile broker."""

    broker_id: str
    stream: Stream
    whose: str = ""
    """The user or address that it is of."""
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    """Topic filter → callback → QoS."""
    entries: int = 0
    gone_at: float | None = None
    is_lost: bool = False
    """It is away for so long that its clients were called back."""
    has_left: bool = False
    own: str = ""
    addresses: dict[str, None] = field(default_factory=dict)
    """Its subscribers, of whom its registrations speak."""
    undone: Undone = field(default_factory=Undone)
    postponed: Postponed = field(default_factory=Postponed)
    """What it said of sessions, and events are yet to come that it wrote before."""

    def __post_init__(self) -> None:
        self.own = addresses.of_broker(self.broker_id)

    @property
    def delegated(self) -> list[str]:
        return [name for name, entries in self.topics.items() if self.own not in entries]


@dataclass(slots=True)
class MatchedRegistries:
    """What one mobile broker has registered that matches an event."""

    registries: list[dict[str, int]] = field(default_factory=list)
    """Callback → QoS, of topics that it has delegated."""
    is_to_match: bool = False
    """It matches a topic of it on its own."""
    here: dict[str, int] = field(default_factory=dict)
    """Subscribers whose clients are at this broker."""
    beyond: tuple[tuple[str, int], ...] = ()
    """Those whom this broker cannot reach."""

    def divide(self, names: Set[str]) -> int:
        """These are at this broker. How many subscribers there are."""
        wanted = _highest(self.registries)
        self.here = {name: wanted[name] for name in wanted.keys() & names}
        self.beyond = tuple(pair for pair in wanted.items() if pair[0] not in self.here)
        self.registries = []
        return len(wanted)


def _highest(registries: Sequence[dict[str, int]]) -> dict[str, int]:
    """Each subscriber once, at the highest QoS of its subscriptions."""
    wanted = dict(registries[0]) if registries else {}
    for entries in registries[1:]:
        for name, qos in entries.items():
            wanted[name] = max(qos, wanted.get(name, 0))
    return wanted


class Topics:
    """`max_bytes`: of those of all mobile brokers."""

    def __init__(self, events: list[DelegationEvent], max_bytes: int) -> None:
        self._tree: TopicTree[Key, dict[str, int]] = TopicTree()
        self._events = events
        self._bytes = Pool(max_bytes, MIN_TOPIC_BYTES, 1)
        self.generation = 0
        """Grows with each change."""

    @property
    def bytes(self) -> int:
        return self._bytes.used

    def has_room(self, mobile: Mobile, topic_filter: str, entries: Mapping[str, int]) -> bool:
        before = mobile.topics.get(topic_filter)
        known = topic_bytes(topic_filter, before) if before is not None else 0
        return self._bytes.has_room(mobile.whose, topic_bytes(topic_filter, entries) - known)

    def add_addresses(self, mobile: Mobile, added: Sequence[str]) -> bool:
        """False: there is no room."""
        fresh = [name for name in added if name not in mobile.addresses]
        size = sum(ENTRY_BYTES + len(name) for name in fresh)
        if not self._bytes.has_room(mobile.whose, size):
            return False
        self._bytes.change(mobile.whose, size)
        mobile.addresses.update(dict.fromkeys(fresh))
        return True

    def remove_addresses(self, mobile: Mobile, removed: Sequence[str]) -> None:
        known = [name for name in removed if name in mobile.addresses]
        self._bytes.change(mobile.whose, -sum(ENTRY_BYTES + len(name) for name in known))
        for name in known:
            del mobile.addresses[name]

    def set(self, mobile: Mobile, topic_filter: str, entries: dict[str, int]) -> None:
        """No entries: it is gone."""
        self.generation += 1
        before = mobile.topics.pop(topic_filter, None)
        mobile.undone.note(mobile.stream.process.received, topic_filter, before or {})
        mobile.entries += len(entries) - len(before or ())
        sizes = [topic_bytes(topic_filter, each) if each else 0 for each in (entries, before)]
        self._bytes.change(mobile.whose, sizes[0] - sizes[1])
        key = mobile.broker_id, topic_filter
        if entries:
            mobile.topics[topic_filter] = entries
            self._tree.set(topic_filter, key, entries)
            if before is None:
                self._events.append(Registered(*key))
        elif before is not None:
            self._tree.remove(topic_filter, key)
            self._events.append(Unregistered(*key))

    def clear(self, mobile: Mobile) -> None:
        for topic_filter in list(mobile.topics):
            self.set(mobile, topic_filter, {})

    def match_as_of(self, mobile: Mobile, topic: str, version: int) -> MatchedRegistries | None:
        """Of this mobile broker, as it was then; None: as it is now."""
        changed = mobile.undone.as_of(topic, version)
        if not changed:
            return None
        found = {
            name: each for (mobile_id, name), each in self._tree.match(topic) if mobile_id == mobile.broker_id
        }
        entries = [each for each in {**found, **changed}.values() if each and mobile.own not in each]
        return MatchedRegistries(entries)

    def match(self, topic: str) -> dict[str, MatchedRegistries]:
        """By mobile broker."""
        found: dict[str, MatchedRegistries] = {}
        for (mobile_id, _), entries in self._tree.match(topic):
            each = found.get(mobile_id)
            if each is None:
                each = found[mobile_id] = MatchedRegistries()
            own = f"@{mobile_id}"
            if own not in entries:
                each.registries.append(entries)
            else:
                each.is_to_match = True
                if len(entries) > 1:
                    each.registries.append({name: qos for name, qos in entries.items() if name != own})
        return found
