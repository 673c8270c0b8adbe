"""The subscriptions of a mobile broker: one registry for each topic filter, active or delegated.

A registry is the record of whose the subscriptions are. Most are packed: `get` makes them anew from bytes, so
that what changes in one is set again (`_keep`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.limits import ENTRIES_PER_DELEGATION
from hedgerow.mobility.delegation.publications import Registration
from hedgerow.packed import PartlyPacked
from hedgerow.topics import FilterMap, is_wildcard, matches

MAX_PACKED = 64  # subscribers of one filter: of more, to ask for one would unpack too many

_HEAD = Struct("<BBH")  # of a packed registry: is it delegated, was that told, and how many delegations
_NUMBER = Struct("<Q")  # of a delegation
_ENTRY = Struct("<QH")  # QoS and `since` in one number, and the length of the callback


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
        self._entries: dict[str, int] = {}  # callback → QoS and `since` in one number

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def callbacks(self) -> Sequence[str]:
        return tuple(self._entries)

    def items(self) -> Iterator[tuple[str, RegistryEntry]]:
        for callback, number in self._entries.items():
            yield callback, RegistryEntry(number & 3, number >> 2)

    def __contains__(self, callback: object) -> bool:
        return callback in self._entries

    def get(self, callback: str) -> RegistryEntry | None:
        number = self._entries.get(callback)
        return None if number is None else RegistryEntry(number & 3, number >> 2)

    def set(self, callback: str, entry: RegistryEntry) -> None:
        self._entries[callback] = entry.qos | entry.since << 2

    def pop(self, callback: str) -> bool:
        return self._entries.pop(callback, None) is not None

    def delegate(self, number: int) -> None:
        self.is_delegated, self.delegations = True, (number,)

    def activate(self) -> None:
        self.is_delegated, self.is_told, self.delegations = False, False, ()

    def pack(self) -> bytes:
        pieces = [_HEAD.pack(self.is_delegated, self.is_told, len(self.delegations))]
        pieces += map(_NUMBER.pack, self.delegations)
        for callback, number in self._entries.items():
            name = callback.encode()
            pieces += [_ENTRY.pack(number, len(name)), name]
        return b"".join(pieces)

    @classmethod
    def unpack(cls, topic_filter: str, data: bytes) -> Registry:
        made = cls(topic_filter)
        is_delegated, is_told, count = _HEAD.unpack_from(data)
        made.is_delegated, made.is_told = bool(is_delegated), bool(is_told)
        at = _HEAD.size + count * _NUMBER.size
        made.delegations = tuple(number for (number,) in _NUMBER.iter_unpack(data[_HEAD.size : at]))
        while at < len(data):
            number, length = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size + length
            made._entries[data[at - length : at].decode()] = number
        return made

    def as_registration(self) -> Registration:
        return Registration(
            self.topic_filter, tuple((callback, entry.qos) for callback, entry in self.items())
        )

    def as_own(self, broker_id: str) -> Registration:
        """The mobile broker is its only subscriber at the fixed one."""
        return Registration(self.topic_filter, ((addresses.of_broker(broker_id), 2),))


class Registries:
    def __init__(self) -> None:
        self._exact = PartlyPacked(Registry.pack, Registry.unpack)
        self.by_filter: FilterMap[Registry] = FilterMap(self._exact)
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

    def _keep(self, registry: Registry) -> None:
        """As it is now."""
        is_small = len(registry) <= MAX_PACKED
        if not is_small:
            self._exact.unpack(registry.topic_filter)
        self.by_filter.set(registry.topic_filter, registry)
        if is_small:
            self._exact.pack(registry.topic_filter)

    def add(self, registry: Registry, callback: str, qos: int, published: int) -> None:
        self.generation += 1
        callback = self._names.setdefault(callback, callback)
        before = registry.get(callback)
        registry.set(callback, RegistryEntry(qos, before.since if before else published))
        self._keep(registry)
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
        if len(registry):
            self._keep(registry)
        else:
            self.by_filter.remove(registry.topic_filter)
            self._changed[registry.topic_filter] = None
        return True

    def deactivate(self, registry: Registry, number: int) -> None:
        self.generation += 1
        registry.delegate(number)
        self._keep(registry)
        self._changed[registry.topic_filter] = None

    def renew(self, registry: Registry, number: int) -> None:
        """Who subscribes to what is delegated was written again."""
        registry.delegations += (number,)
        self._keep(registry)

    def set_told(self, topic_filter: str, is_told: bool = True) -> bool:
        """The fixed broker has handled the delegation, or has refused it. True: that is news."""
        registry = self.by_filter.get(topic_filter)
        if registry is None or not registry.is_delegated or registry.is_told == is_told:
            return False
        registry.is_told = is_told
        self._keep(registry)
        return True

    def is_delegated(self, topic_filter: str) -> bool:
        registry = self.by_filter.get(topic_filter)
        return registry is not None and registry.is_delegated

    def is_told(self, topic_filter: str) -> bool:
        registry = self.by_filter.get(topic_filter)
        return registry is not None and registry.is_told

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
                self._keep(registry)
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

    def still_wanted(self, callbacks: Iterable[tuple[str, int]], topic: str) -> dict[str, int]:
        """Those of them that are subscribers. A question about these, which takes no matching of others."""
        registry = self.by_filter.exact(topic)
        exact = () if registry is None else registry
        return {
            name: qos
            for name, qos in callbacks
            if name in exact or any(matches(each, topic) for each in self._wild.get(name, ()))
        }

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
