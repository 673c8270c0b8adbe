"""The subscriptions of a mobile broker: one registry for each topic filter, active or delegated.

A registry is the record of whose the subscriptions are. While it is delegated nothing is matched by it: it
is found by its filter, packed, and unpacked when it is active again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.limits import ENTRIES_PER_DELEGATION
from hedgerow.mobility.delegation.publications import Registration
from hedgerow.topics import FilterMap, is_wildcard, matches

MAX_PACKED = 8  # A dictionary of so few entries takes three times the memory of a tuple.


class RegistryEntry(NamedTuple):
    qos: int
    since: int
    """How many events had been published here when it began: it is for those after them."""


class Registry:
    """The subscribers of one topic filter, all of them this mobile broker's own."""

    __slots__ = ("_entries", "delegations", "is_delegated", "is_told", "topic_filter")

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.is_delegated = False
        """The fixed broker matches it, for all that is written to it from now on."""
        self.is_told = False
        """The fixed broker has handled the delegation."""
        self.delegations: tuple[int, ...] = ()
        """The numbers by which that was written, or who subscribes since: each may be refused."""
        # Callback → QoS and `since` in one number; where they are few and delegated, one behind the other.
        self._entries: dict[str, int] | tuple[str | int, ...] = {}

    def __len__(self) -> int:
        entries = self._entries
        return len(entries) if isinstance(entries, dict) else len(entries) // 2

    @property
    def callbacks(self) -> Sequence[str]:
        entries = self._entries
        return tuple(entries) if isinstance(entries, dict) else cast("tuple[str, ...]", entries[::2])

    def items(self) -> Iterator[tuple[str, RegistryEntry]]:
        entries = self._entries
        if isinstance(entries, dict):
            pairs: Iterable[tuple[str, int]] = entries.items()
        else:
            pairs = cast("Iterable[tuple[str, int]]", zip(entries[::2], entries[1::2], strict=True))
        for callback, packed in pairs:
            yield callback, RegistryEntry(packed & 3, packed >> 2)

    def __contains__(self, callback: object) -> bool:
        entries = self._entries
        return callback in (entries if isinstance(entries, dict) else entries[::2])

    def get(self, callback: str) -> RegistryEntry | None:
        packed = self._unpacked().get(callback)
        return None if packed is None else RegistryEntry(packed & 3, packed >> 2)

    def set(self, callback: str, entry: RegistryEntry) -> None:
        entries = self._unpacked()
        entries[callback] = entry.qos | entry.since << 2
        self._pack(entries)

    def pop(self, callback: str) -> bool:
        entries = self._unpacked()
        was_there = entries.pop(callback, None) is not None
        self._pack(entries)
        return was_there

    def delegate(self, number: int) -> None:
        self.is_delegated, self.delegations = True, (number,)
        self._pack(self._unpacked())

    def activate(self) -> None:
        self.is_delegated, self.is_told, self.delegations = False, False, ()
        self._entries = self._unpacked()

    def _unpacked(self) -> dict[str, int]:
        entries = self._entries
        if isinstance(entries, dict):
            return entries
        return dict(cast("Iterable[tuple[str, int]]", zip(entries[::2], entries[1::2], strict=True)))

    def _pack(self, entries: dict[str, int]) -> None:
        is_small = self.is_delegated and len(entries) <= MAX_PACKED
        self._entries = tuple(part for pair in entries.items() for part in pair) if is_small else entries

    def as_registration(self) -> Registration:
        return Registration(
            self.topic_filter, tuple((callback, entry.qos) for callback, entry in self.items())
        )

    def as_own(self, broker_id: str) -> Registration:
        """The mobile broker is its only subscriber at the fixed one."""
        return Registration(self.topic_filter, ((addresses.of_broker(broker_id), 2),))


class Registries:
    def __init__(self) -> None:
        self.by_filter: FilterMap[Registry] = FilterMap()
        self.generation = 0
        """Grows with each change of who subscribes to what, and of what is delegated."""
        self.recalls = 0
        """How often everything was activated, cold as it may be: who delegates has to look at all again."""
        self._names: dict[str, str] = {}  # the one copy of each callback
        self._counts: dict[str, int] = {}  # of filters, by callback
        self._wild: dict[str, set[str]] = {}  # by callback, of those that have wildcards
        self._changed: dict[str, None] = {}  # filters that were delegated, or are so no more

    def __len__(self) -> int:
        """Subscribers."""
        return len(self._counts)

    def __iter__(self) -> Iterator[Registry]:
        return self.by_filter.values()

    def get(self, topic_filter: str) -> Registry | None:
        return self.by_filter.get(topic_filter)

    def create(self, topic_filter: str) -> Registry:
        registry = Registry(topic_filter)
        self.by_filter.set(topic_filter, registry)
        return registry

    def add(self, registry: Registry, callback: str, qos: int, published: int) -> None:
        self.generation += 1
        callback = self._names.setdefault(callback, callback)
        before = registry.get(callback)
        registry.set(callback, RegistryEntry(qos, before.since if before else published))
        self._counts[callback] = self._counts.get(callback, 0) + (before is None)
        if is_wildcard(registry.topic_filter):
            self._wild.setdefault(callback, set()).add(registry.topic_filter)

    def remove(self, registry: Registry, callback: str) -> bool:
        """False: it was no subscriber. With its last one a registry is gone."""
        if not registry.pop(callback):
            return False
        self.generation += 1
        self._wild.get(callback, set()).discard(registry.topic_filter)
        self._counts[callback] -= 1
        if not self._counts[callback]:
            del self._counts[callback], self._names[callback]
            self._wild.pop(callback, None)
        if not len(registry):
            self.by_filter.remove(registry.topic_filter)
            self._changed[registry.topic_filter] = None
        return True

    def deactivate(self, registry: Registry, number: int) -> None:
        self.generation += 1
        registry.delegate(number)
        self._changed[registry.topic_filter] = None

    def is_delegated(self, topic_filter: str) -> bool:
        registry = self.by_filter.get(topic_filter)
        return registry is not None and registry.is_delegated

    def take_changed(self) -> Iterable[str]:
        """Filters that have become delegated, or active, since this was asked last; or both."""
        changed, self._changed = self._changed, {}
        return changed

    def activate(self, topic_filters: Iterable[str] | None = None) -> list[str]:
        """Those of them (or of all) that were delegated."""
        self.recalls += topic_filters is None
        chosen = []
        for topic_filter in list(self.by_filter if topic_filters is None else topic_filters):
            registry = self.by_filter.get(topic_filter)
            if registry is not None and registry.is_delegated:
                registry.activate()
                self._changed[topic_filter] = None
                chosen.append(topic_filter)
        self.generation += bool(chosen)
        return chosen

    def match_delegated(self, topic: str) -> dict[str, int]:
        return subscribers(each for _, each in self.by_filter.match(topic) if each.is_delegated)

    def match_all(self, topic: str, published: int | None = None) -> dict[str, int]:
        """Active and delegated. Of those who had subscribed when event number `published` was, if that is
        given."""
        wanted: dict[str, int] = {}
        for _, registry in self.by_filter.match(topic):
            for callback, entry in registry.items():
                if published is None or entry.since < published:
                    wanted[callback] = max(entry.qos, wanted.get(callback, 0))
        return wanted

    def knows(self, callback: str) -> bool:
        return callback in self._counts

    def wants(self, callback: str, topic: str) -> bool:
        """Is it a subscriber? A question about one, which takes no matching of the others."""
        registry = self.by_filter.exact(topic)
        if registry is not None and callback in registry:
            return True
        return any(matches(topic_filter, topic) for topic_filter in self._wild.get(callback, ()))

    def candidates(self, callback: str, topic: str) -> Iterable[str]:
        """The filters of this subscriber among which those are that match."""
        return (topic, *self._wild.get(callback, ()))


def subscribers(registries: Iterable[Registry]) -> dict[str, int]:
    """Each once, at the highest QoS of its subscriptions."""
    wanted: dict[str, int] = {}
    for registry in registries:
        for callback, entry in registry.items():
            wanted[callback] = max(entry.qos, wanted.get(callback, 0))
    return wanted


def rows(registrations: Sequence[Registration]) -> Iterator[tuple[Registration, ...]]:
    """As many at a time as one publication is to carry."""
    row: list[Registration] = []
    size = 0
    for registration in registrations:
        if row and size + len(registration.entries) >= ENTRIES_PER_DELEGATION:
            yield tuple(row)
            row, size = [], 0
        row.append(registration)
        size += 1 + len(registration.entries)
    if row:
        yield tuple(row)
