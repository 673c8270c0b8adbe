"""What a mobile broker knows of one fixed broker: the stream, and what that one matches for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.message import MessageId
from hedgerow.mobility.delegation.limits import MAX_NOTIFIED
from hedgerow.mobility.delegation.publications import PublicationKind, Registrations, Unsubscription
from hedgerow.mobility.delegation.registries import Registries, Registry
from hedgerow.mobility.delegation.stream import Record, Stream
from hedgerow.topics import TopicTree


class Notified(NamedTuple):
    """The subscribers that the fixed broker has matched for events of one topic."""

    names: frozenset[str]
    callbacks: tuple[tuple[str, int], ...]


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
    outside: TopicTree[str, Registry] = field(default_factory=TopicTree)
    """What is matched here of the events that come from there, as the fixed broker sees it."""
    delegated: TopicTree[str, dict[str, int]] = field(default_factory=TopicTree)
    """What is matched there, as the fixed broker sees it: callback → QoS."""
    notified: dict[str, Notified] = field(default_factory=dict)
    """By topic, so that an event costs little however many subscribers it has; as long as nothing changes."""
    notified_but: dict[str, tuple[tuple[str, ...], Notified]] = field(default_factory=dict)
    """The same without those who were served last time: mostly they are the same this time."""
    generation: int = 0
    """Of the registries, when that was found."""
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
                    self._forget_notified()
                    for topic_filter, entries in record.body.topics:
                        if self._set(topic_filter, dict(entries), registries):
                            fresh.append(topic_filter)
                case Unsubscription(topic_filter, callback) if (
                    record.kind == PublicationKind.UNSUBSCRIPTION_SINGLE
                ):
                    self._forget_notified()
                    before = self.delegated.get(topic_filter, topic_filter)
                    if before is not None and before.pop(callback, None) is not None and not before:
                        self.delegated.remove(topic_filter, topic_filter)
        return fresh

    def _set(self, topic_filter: str, entries: dict[str, int], registries: Registries) -> bool:
        registry = registries.get(topic_filter)
        if self.own in entries:
            self.take_back(topic_filter, registry)
            return False
        is_fresh = self.delegated.get(topic_filter, topic_filter) is None
        self.delegated.set(topic_filter, topic_filter, entries)
        self.outside.remove(topic_filter, topic_filter)
        return is_fresh and registry is not None

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
        self._forget_notified()
        self.delegated.remove(topic_filter, topic_filter)
        if registry is not None:
            self.outside.set(topic_filter, topic_filter, registry)

    def matched_there(self, topic: str, registries: Registries, but: tuple[str, ...] = ()) -> Notified:
        """All whom the fixed broker has matched, and who have not unsubscribed since it was told of them."""
        if self.generation != registries.generation or len(self.notified) >= MAX_NOTIFIED:
            self._forget_notified()
            self.generation = registries.generation
        known = self.notified.get(topic)
        if known is None:
            wanted: dict[str, int] = {}
            for _, entries in self.delegated.match(topic):
                for name, qos in entries.items():
                    if registries.wants(name, topic):
                        wanted[name] = max(qos, wanted.get(name, 0))
            known = self.notified[topic] = Notified(frozenset(wanted), tuple(wanted.items()))
        if not but:
            return known
        last = self.notified_but.get(topic)
        if last is None or last[0] != but:
            names = known.names.difference(but)
            fewer = Notified(names, tuple(pair for pair in known.callbacks if pair[0] in names))
            last = self.notified_but[topic] = but, fewer
        return last[1]

    def _forget_notified(self) -> None:
        self.notified.clear()
        self.notified_but.clear()

    def know_nothing(self, registries: Registries) -> None:
        """The fixed broker has no topics yet: all is matched here."""
        self._forget_notified()
        self.delegated = TopicTree()
        self.outside = TopicTree()
        for registry in registries:
            self.outside.set(registry.topic_filter, registry.topic_filter, registry)
        self.handed_on.clear()
