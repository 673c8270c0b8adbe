"""Who is notified of an event by a mobile broker, and what of it goes to the fixed one.

Four ways lead here: an event was published at the mobile broker, the fixed broker writes of one, the fixed
broker is lost while one is unsettled, and a client has changed places while one waited for it. The package's
docstring says why each subscriber gets it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message
from hedgerow.mobility.delegation.events import DelegationStats, Notification
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from hedgerow.mobility.delegation.registries import Registries, subscribers
from hedgerow.mobility.delegation.uplink import Unsettled, Uplink

MAX_SETS = 1_000  # of clients


class Matched(NamedTuple):
    """Who has an active subscription that matches a topic. Made once for many events: see `generation`."""

    here: frozenset[str] = frozenset()
    """The broker has notified them itself."""
    served: tuple[str, ...] = ()
    """Those of them that have a delegated subscription too: the fixed broker is to leave them out."""
    there: tuple[tuple[str, int], ...] = ()
    """Callback and QoS: clients that are at a fixed broker."""


class Notifier:
    def __init__(self, accepted: DuplicateLog, stats: DelegationStats) -> None:
        self.accepted = accepted
        self.stats = stats
        self.registries = Registries()
        self.away: dict[str, Uplink] = {}
        """Clients that are at a fixed broker."""
        self.published = 0
        self.deliveries: list[Notification] = []
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self.reading = 0
        """Which event of the fixed broker's is being read."""

    def call_back(self, uplink: Uplink) -> None:
        """No client is there any more."""
        self.away = {callback: at for callback, at in self.away.items() if at is not uplink}
        self.registries.generation += 1

    def set_away(self, callback: str, uplink: Uplink) -> None:
        self.away[callback] = uplink
        uplink.ever_served.add(callback)
        self.registries.generation += 1

    def remove_away(self, callback: str) -> Uplink | None:
        uplink = self.away.pop(callback, None)
        self.registries.generation += uplink is not None
        return uplink

    def matched(self, topic: str, here: Iterable[str], there: Mapping[str, int]) -> Matched:
        names = frozenset(here)
        # The same clients have many topics, and each event that waits refers to its set.
        if len(self._sets) >= MAX_SETS:
            self._sets.clear()
        names = self._sets.setdefault(names, names)
        served = tuple(names.intersection(self.registries.match_delegated(topic)))
        return Matched(names, served, tuple(there.items()))

    def settle(self, uplink: Uplink, unsettled: Unsettled, only: str | None = None) -> bool:
        """Notify here whoever is not done, but for clients that are at the fixed broker."""
        record, published = unsettled
        event = record.event
        wanted = {**dict(event.callbacks), **self.registries.match_all(event.message.topic, published)}
        left = {
            callback: qos
            for callback, qos in wanted.items()
            if callback not in record.done
            and self.away.get(callback) is not uplink
            and only in (None, callback)
        }
        record.done |= left.keys()
        # If the fixed broker reads it yet, it is to know.
        there = tuple(pair for pair in event.callbacks if pair[0] not in left)
        record.body = event._replace(callbacks=there, served=(*event.served, *left))
        doubtful = uplink.ever_served if record.is_sent else set()
        for is_again in (False, True):
            due = {name: qos for name, qos in left.items() if (name in doubtful) == is_again}
            self._deliver(event.message, due, is_again)
        return bool(left)

    def reclaim(self, uplink: Uplink, only: str | None = None) -> None:
        """Deliver here what was to follow clients to a fixed broker that is lost."""
        for record in uplink.stream.content.kept:
            if record.kind != PublicationKind.EVENT or not record.event.is_handed_on:
                continue
            event = record.event
            mine = {name: qos for name, qos in event.callbacks if only in (None, name)}
            self._deliver(event.message, mine, is_again=record.is_sent or event.is_again)
            rest = tuple(pair for pair in event.callbacks if pair[0] not in mine)
            record.body = event._replace(callbacks=rest)
            assert event.message.id is not None
            for name in mine:
                # It may be sent back, if the client had gone before it came there.
                uplink.reclaimed.add((str(event.message.id), name))
                uplink.handed_on.pop((event.message.id, name), None)

    def publish(self, message: Message, matched: Matched, uplink: Uplink | None, now: float) -> None:
        """An event that was published here; the uplink is that to the fixed broker, if there is one."""
        if message.id is None:
            raise ValueError("an event has an id")
        if self.accepted.seen(message.id):
            self.stats.duplicates += 1
            return
        self.published += 1
        is_lasting = message.qos > 0 or (uplink is not None and uplink.stream.is_open)
        if uplink is None or not is_lasting or not uplink.stream.has_room(message):
            self.stats.overflowed += uplink is not None
            wanted = {**self.registries.match_delegated(message.topic), **dict(matched.there)}
            self._deliver(message, {name: qos for name, qos in wanted.items() if name not in matched.here})
            return
        there = matched.there
        done = matched.here
        if there:
            there = tuple(pair for pair in there if self.away.get(pair[0]) is uplink)
            done = done.union(name for name, _ in matched.there if self.away.get(name) is not uplink)
        record = uplink.stream.put(PublicationKind.EVENT, EventBody(message, there, matched.served), now)
        record.done = done
        uplink.unsettled[message.id] = Unsettled(record, self.published)
        for callback, qos in matched.there:
            if self.away.get(callback) is not uplink:
                self.hand_on(callback, qos, [message], now)

    def notify(
        self, uplink: Uplink, is_current: bool, event: EventBody, acknowledged: int, now: float
    ) -> None:
        message = event.message
        assert message.id is not None
        message.expire_from(now)
        if event.is_handed_on:
            self._take_back(uplink, event, acknowledged, now)
            return
        unsettled = uplink.unsettled.get(message.id)
        if unsettled is None and self.accepted.seen(message.id):
            self.stats.duplicates += 1
            return
        wanted = self._still_wanted(event)
        matched: dict[str, int] = {}
        # One that is being left does not know the latest topics, but its word may be the first.
        if event.is_to_match or not is_current:
            outside = map(self.registries.get, uplink.outside.match(message.topic))
            matched = subscribers(registry for registry in outside if registry is not None)
        done = frozenset(event.served)
        if unsettled is not None:
            # It came back by a second way, or these are those whom the fixed broker has matched.
            record = unsettled.record
            done |= record.done
            asked = dict(record.event.callbacks)
            matched = {name: qos for name, qos in matched.items() if name not in asked}
            record.done = record.done.union(wanted, matched)
        for callback, qos in matched.items():
            if callback in wanted or callback in done:
                continue
            if callback in self.away:
                self.hand_on(callback, qos, [message], now, event.is_again)
            else:
                wanted[callback] = qos
        if not done.isdisjoint(wanted):
            wanted = {name: qos for name, qos in wanted.items() if name not in done}
        self._deliver_or_hand_on(message, wanted, event.is_again, now)

    def _still_wanted(self, event: EventBody) -> dict[str, int]:
        wanted = self.registries.still_wanted(event.callbacks, event.message.topic)
        self.stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        return wanted

    def _take_back(self, uplink: Uplink, event: EventBody, acknowledged: int, now: float) -> None:
        """The fixed broker could not deliver it to clients that are gone from there."""
        message = event.message
        assert message.id is not None
        unsettled = uplink.unsettled.get(message.id)
        for name, qos in self._still_wanted(event).items():
            is_reclaimed = (str(message.id), name) in uplink.reclaimed
            followed = uplink.handed_on.get((message.id, name))
            is_again = event.is_again
            if followed is None:
                if is_reclaimed or (unsettled is not None and name in unsettled.record.done):
                    continue
            elif is_reclaimed and acknowledged < followed.number:
                continue  # It is the copy that was reclaimed, and another is on its way to the client.
            else:
                del uplink.handed_on[message.id, name]
                rest = tuple(pair for pair in followed.event.callbacks if pair[0] != name)
                followed.body = followed.event._replace(callbacks=rest)
                # Of two copies that were there, nobody can tell which this is: the client may have the other.
                is_again |= is_reclaimed or followed.event.is_again
            if unsettled is not None:
                unsettled.record.done |= {name}
            self._deliver_or_hand_on(message, {name: qos}, is_again, now)

    def _deliver_or_hand_on(
        self, message: Message, wanted: Mapping[str, int], is_again: bool, now: float
    ) -> None:
        """Some may have gone to a fixed broker since this was written: that is told ahead of it."""
        away = [name for name in wanted if name in self.away]
        for name in away:
            self.hand_on(name, wanted[name], [message], now, is_again)
        self._deliver(message, {name: wanted[name] for name in wanted if name not in away}, is_again)

    def _deliver(self, message: Message, wanted: Mapping[str, int], is_again: bool = False) -> None:
        if wanted:
            self.deliveries.append(
                Notification(message, tuple(wanted.items()), is_again, number=self.reading)
            )

    def hand_on(
        self, callback: str, qos: int, undelivered: Sequence[Message], now: float, is_again: bool = False
    ) -> None:
        """These waited here for a client that is at the fixed broker now."""
        uplink = self.away.get(callback)
        for message in undelivered:
            if uplink is None or not uplink.stream.has_room(message):
                self.stats.overflowed += uplink is not None
                self._deliver(message, {callback: qos}, is_again)
            else:
                handed_on = EventBody(message, ((callback, qos),), is_handed_on=True, is_again=is_again)
                assert message.id is not None
                uplink.handed_on[message.id, callback] = uplink.stream.put(
                    PublicationKind.EVENT, handed_on, now
                )

    def write_again(self, uplink: Uplink, unsettled: Unsettled, now: float) -> None:
        """To another fixed broker, or one that has forgotten: for others, as ours are done. Of those, who was
        there may have got it before that one was lost."""
        record, published = unsettled
        message = record.event.message
        assert message.id is not None
        is_again = record.is_sent or record.event.is_again
        fresh = uplink.stream.put(
            PublicationKind.EVENT, EventBody(message, served=tuple(record.done), is_again=is_again), now
        )
        fresh.done = record.done
        uplink.unsettled[message.id] = Unsettled(fresh, published)
