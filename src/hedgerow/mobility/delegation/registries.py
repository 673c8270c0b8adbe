"""The subscriptions of a mobile broker: one registry for each topic filter, active or delegated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.limits import ENTRIES_PER_DELEGATION
from hedgerow.mobility.delegation.publications import Registration
from hedgerow.topics import TopicTree, matches


class RegistryEntry(NamedTuple):
    qos: int
    since: int
    """How many events had been published here when it began: it is for those after them."""


@dataclass(slots=True)
class Registry:
    """The subscribers of one topic filter, all of them this mobile broker's own."""

    topic_filter: str
    entries: dict[str, RegistryEntry] = field(default_factory=dict)
    is_delegated: bool = False
    """The fixed broker matches it, for all that is written to it from now on."""
    delegations: list[int] = field(default_factory=list)
    """The numbers by which that was written, or who subscribes since: each may be refused."""

    def as_registration(self) -> Registration:
        entries = self.entries.items()
        return Registration(self.topic_filter, tuple((callback, entry.qos) for callback, entry in entries))

    def as_own(self, broker_id: str) -> Registration:
        """The mobile broker is its only subscriber at the fixed one."""
        return Registration(self.topic_filter, ((addresses.of_broker(broker_id), 2),))


class Registries:
    def __init__(self) -> None:
        self.by_filter: dict[str, Registry] = {}
        self.generation = 0
        """Grows with each change of who subscribes to what, and of what is delegated."""
        self.recalls = 0
        """How often everything was activated, cold as it may be: who delegates has to look at all again."""
        self._filters: dict[str, set[str]] = {}  # by callback
        self._delegated: set[str] = set()
        self._tree: TopicTree[str, Registry] = TopicTree()  # of those that are delegated

    def __iter__(self) -> Iterator[Registry]:
        return iter(self.by_filter.values())

    def get(self, topic_filter: str) -> Registry | None:
        return self.by_filter.get(topic_filter)

    def create(self, topic_filter: str) -> Registry:
        registry = self.by_filter[topic_filter] = Registry(topic_filter)
        return registry

    def add(self, registry: Registry, callback: str, qos: int, published: int) -> None:
        self.generation += 1
        before = registry.entries.get(callback)
        registry.entries[callback] = RegistryEntry(qos, before.since if before else published)
        self._filters.setdefault(callback, set()).add(registry.topic_filter)

    def remove(self, registry: Registry, callback: str) -> bool:
        """False: it was no subscriber. With its last one a registry is gone."""
        if registry.entries.pop(callback, None) is None:
            return False
        self.generation += 1
        filters = self._filters[callback]
        filters.discard(registry.topic_filter)
        if not filters:
            del self._filters[callback]
        if not registry.entries:
            del self.by_filter[registry.topic_filter]
            self._delegated.discard(registry.topic_filter)
            self._tree.remove(registry.topic_filter, registry.topic_filter)
        return True

    def deactivate(self, registry: Registry, number: int) -> None:
        self.generation += 1
        registry.is_delegated = True
        registry.delegations = [number]
        self._delegated.add(registry.topic_filter)
        self._tree.set(registry.topic_filter, registry.topic_filter, registry)

    def activate(self, topic_filters: Iterable[str] | None = None) -> list[str]:
        """Those of them (or of all) that were delegated."""
        self.recalls += topic_filters is None
        chosen = []
        for topic_filter in list(self.by_filter if topic_filters is None else topic_filters):
            registry = self.by_filter.get(topic_filter)
            if registry is not None and registry.is_delegated:
                registry.is_delegated = False
                registry.delegations = []
                self._delegated.discard(topic_filter)
                self._tree.remove(topic_filter, topic_filter)
                chosen.append(topic_filter)
        self.generation += bool(chosen)
        return chosen

    def match_delegated(self, topic: str) -> dict[str, int]:
        return subscribers(registry for _, registry in self._tree.match(topic))

    def match_all(self, topic: str, published: int | None = None) -> dict[str, int]:
        """Active and delegated: seldom, so there is no tree of all. Of those who had subscribed when
        event number `published` was, if that is given."""
        wanted: dict[str, int] = {}
        for registry in self:
            if matches(registry.topic_filter, topic):
                for callback, entry in registry.entries.items():
                    if published is None or entry.since < published:
                        wanted[callback] = max(entry.qos, wanted.get(callback, 0))
        return wanted

    def knows(self, callback: str) -> bool:
        return callback in self._filters

    def wants(self, callback: str, topic: str) -> bool:
        return any(matches(topic_filter, topic) for topic_filter in self._filters.get(callback, ()))

    @property
    def delegated(self) -> Set[str]:
        """Topic filters."""
        return self._delegated

    def filters_of(self, callback: str) -> Set[str]:
        return self._filters.get(callback, set())

    def has_delegated(self, callback: str) -> bool:
        return not self._delegated.isdisjoint(self._filters.get(callback, ()))


def subscribers(registries: Iterable[Registry]) -> dict[str, int]:
    """Each once, at the highest QoS of its subscriptions."""
    wanted: dict[str, int] = {}
    for registry in registries:
        for callback, entry in registry.entries.items():
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
