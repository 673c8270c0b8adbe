"""What a mobile broker knows of one fixed broker: the stream, and what that one matches for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.message import MessageId
from hedgerow.mobility.delegation.publications import PublicationKind, Registrations
from hedgerow.mobility.delegation.registries import Registries, Registry
from hedgerow.mobility.delegation.stream import Record, Stream
from hedgerow.topics import FilterMap


class Unsettled(NamedTuple):
    """An event published here, until the fixed broker has done its part."""

    record: Record
    published: int
    """The event's number among those of this broker."""


@dataclass(slots=True)
class Uplink:
    fixed_id: str
    stream: Stream
    own: str
    """This mobile broker's own callback."""
    outside: FilterMap[Registry] = field(default_factory=FilterMap)
    """What is matched here of the events that come from there, as the fixed broker sees it."""
    unsettled: dict[MessageId, Unsettled] = field(default_factory=dict)
    handed_on: dict[tuple[MessageId, str], Record] = field(default_factory=dict)
    """What follows clients there and is not settled: some of it may be sent back."""
    ever_served: set[str] = field(default_factory=set)
    """Clients that were there while something was unsettled: it may have been delivered to them there."""
    reclaimed: set[tuple[str, str]] = field(default_factory=set)
    """Events (ids) that were to follow these clients there, and were delivered here after all."""
    down_at: float | None = None
    is_lost: bool = False
    introduced: int | None = None
    """When this is acknowledged, the fixed broker knows every topic."""
    deactivated: int | None = None
    """When this is acknowledged, everything is recovered from there, to leave it."""
    farewell: int | None = None

    @property
    def handled(self) -> int:
        """How much of the stream the fixed broker has handled."""
        records = self.stream.records
        return records[0].number - 1 if records else self.stream.number

    def has_handled(self, number: int | None) -> bool:
        return number is not None and self.handled >= number

    def advance(self, acknowledged: int, registries: Registries) -> list[str]:
        """What the fixed broker sees now that it has handled this much. Which topics it matches newly.

        Before the records are taken out of the stream: they are all that is new.
        """
        fresh: list[str] = []
        for record in self.stream.records:
            if record.number > acknowledged:
                break
            match record.body:
                case Registrations():
                    for topic_filter, entries in record.body.topics:
                        is_own = any(name == self.own for name, _ in entries)
                        if self._set(topic_filter, is_own, registries):
                            fresh.append(topic_filter)
        return fresh

    def _set(self, topic_filter: str, is_own: bool, registries: Registries) -> bool:
        registry = registries.get(topic_filter)
        if is_own:
            self.take_back(topic_filter, registry)
            return False
        self.outside.remove(topic_filter)
        if registry is None or registry.is_told or not registry.is_delegated:
            return False
        registry.is_told = True
        return True

    def forget(self, record: Record, away: Mapping[str, Uplink]) -> None:
        """It is settled."""
        if record.kind == PublicationKind.EVENT:
            event = record.event
            assert event.message.id is not None
            if not event.is_handed_on:
                self.unsettled.pop(event.message.id, None)
            for callback, _ in event.callbacks if event.is_handed_on else ():
                if self.handed_on.get((event.message.id, callback)) is record:
                    del self.handed_on[event.message.id, callback]
                    self.reclaimed.discard((str(event.message.id), callback))
        if not self.stream.records and not self.stream.held:
            self.ever_served = {name for name, at in away.items() if at is self}
            self.reclaimed.clear()

    def take_back(self, topic_filter: str, registry: Registry | None) -> None:
        """From where the stream is now, this is matched here."""
        if registry is not None:
            self.outside.set(topic_filter, registry)

    def know_nothing(self, registries: Registries) -> None:
        """The fixed broker has no topics yet: all is matched here."""
        self.outside = FilterMap()
        for registry in registries:
            self.outside.set(registry.topic_filter, registry)
        self.handed_on.clear()
