"""What a mobile broker knows of one fixed broker: the stream, and what that one matches for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.message import MessageId
from hedgerow.mobility.delegation.postponed import Postponed
from hedgerow.mobility.delegation.publications import PublicationKind, Registrations
from hedgerow.mobility.delegation.registries import Registries
from hedgerow.mobility.delegation.stream import Record, Stream
from hedgerow.packed import PartlyPacked
from hedgerow.topics import FilterMap

MIN_GONE = 16  # subscribers that are gone, before the fixed broker is told


class FilterSet:
    """Topic filters, those without wildcards packed."""

    def __init__(self, topic_filters: Iterable[str] = ()) -> None:
        self._exact: PartlyPacked[bool] = PartlyPacked(lambda value: b"", lambda topic_filter, data: True)
        self._filters: FilterMap[bool] = FilterMap(self._exact)
        for topic_filter in topic_filters:
            self.add(topic_filter)

    def add(self, topic_filter: str) -> None:
        self._filters.set(topic_filter, True)
        self._exact.pack(topic_filter)

    def remove(self, topic_filter: str) -> None:
        self._filters.remove(topic_filter)

    def match(self, topic: str) -> list[str]:
        return self._filters.match_filters(topic)


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
    outside: FilterSet = field(default_factory=FilterSet)
    """What is matched here of the events that come from there, as the fixed broker sees it."""
    fresh: list[str] = field(default_factory=list)
    """Filters of which it is to hear with whatever is written next."""
    addresses: dict[str, None] = field(default_factory=dict)
    """Subscribers that the fixed broker was told of, in this life of the stream."""
    passed: int = 0
    """What of the process plane the fixed broker had handled when it wrote the event that was read last."""
    ahead: tuple[int, int] = 0, 0
    """Of what was agreed last: how many events were written there before it, and what it acknowledged."""
    _effects: list[tuple[int, str, bool]] = field(default_factory=list)
    """Number, topic filter, and whether it is matched here from that on: what events have yet to pass."""
    unsettled: dict[MessageId, Unsettled] = field(default_factory=dict)
    handed_on: dict[tuple[MessageId, str], Record] = field(default_factory=dict)
    """What follows clients there and is not settled: some of it may be sent back."""
    ever_served: set[str] = field(default_factory=set)
    """Clients that were there while something was unsettled: it may have been delivered to them there."""
    reclaimed: set[tuple[str, str]] = field(default_factory=set)
    """Events (ids) that were to follow these clients there, and were delivered here after all."""
    postponed: Postponed = field(default_factory=Postponed)
    """What it said of sessions, and events are yet to come that it wrote before."""
    down_at: float | None = None
    is_lost: bool = False
    introduced: int | None = None
    """When this is acknowledged, the fixed broker knows every topic."""
    deactivated: int | None = None
    """When this is acknowledged, everything is recovered from there, to leave it."""
    farewell: int | None = None

    @property
    def handled(self) -> int:
        """How much of what was agreed the fixed broker has handled."""
        return self.stream.process.handled

    def has_handled(self, number: int | None) -> bool:
        return number is not None and self.handled >= number

    def change_addresses(
        self, names: Iterable[str], registries: Registries
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The fixed broker is to know these: those that it does not yet, and those that are gone."""
        # One that is gone is not worth a publication.
        is_shrunk = len(self.addresses) > 2 * len(registries) + MIN_GONE
        gone = [name for name in self.addresses if not registries.knows(name)] if is_shrunk else []
        for name in gone:
            del self.addresses[name]
        added = sorted(name for name in names if name not in self.addresses)
        self.addresses.update(dict.fromkeys(added))
        return tuple(added), tuple(gone)

    def note(self, record: Record) -> None:
        """These topics were written there: who matches them changes when the fixed broker has read it."""
        assert isinstance(record.body, Registrations)
        for topic_filter, entries, _ in record.body.topics:
            is_own = any(name == self.own for name, _ in entries)
            self._effects.append((record.number, topic_filter, is_own))

    def given_back(self, topic_filter: str, cause: int) -> None:
        """From `cause` on, the fixed broker has this matched here."""
        effects = self._effects
        at = len(effects)
        while at and effects[at - 1][0] > cause:
            at -= 1
        effects.insert(at, (cause, topic_filter, True))

    def told(self, acknowledged: int, registries: Registries) -> list[str]:
        """Which topics the fixed broker matches newly, now that it has handled this much.

        Before the records are taken out of the stream: they are all that is new.
        """
        fresh: list[str] = []
        for record in self.stream.process.records:
            if record.number > acknowledged:
                break
            topics = record.body.topics if isinstance(record.body, Registrations) else ()
            fresh += [each.topic_filter for each in topics if registries.set_told(each.topic_filter)]
        return fresh

    def advance(self, acknowledged: int, registries: Registries) -> None:
        """What comes from now on was written when the fixed broker had handled this much."""
        self.passed = max(self.passed, acknowledged)
        effects = self._effects
        done = 0
        for number, topic_filter, is_own in effects:
            if number > self.passed:
                break
            done += 1
            if is_own and topic_filter in registries.by_filter:
                self.outside.add(topic_filter)
            elif not is_own:
                self.outside.remove(topic_filter)
        del effects[:done]

    def forget(self, record: Record, away: Mapping[str, Uplink]) -> None:
        """It is settled."""
        if record.kind == PublicationKind.EVENT and not record.event.is_missed:
            event = record.event
            assert event.message.id is not None
            if not event.is_handed_on:
                self.unsettled.pop(event.message.id, None)
            for callback, _ in event.callbacks if event.is_handed_on else ():
                if self.handed_on.get((event.message.id, callback)) is record:
                    del self.handed_on[event.message.id, callback]
                    self.reclaimed.discard((str(event.message.id), callback))
        if not self.stream.content.records and not self.stream.content.held:
            self.ever_served = {name for name, at in away.items() if at is self}
            self.reclaimed.clear()

    def know_nothing(self, registries: Registries) -> None:
        """The fixed broker has no topics yet: all is matched here."""
        self._effects.clear()
        self.passed, self.ahead = 0, (0, 0)
        self.addresses.clear()
        self.outside = FilterSet(registries.by_filter)
        self.handed_on.clear()
