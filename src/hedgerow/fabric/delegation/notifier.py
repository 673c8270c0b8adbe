"""Who is notified of an event by a mobile broker, and what of it goes to the fixed one.

Four ways lead here: an event was published at the mobile broker, the fixed broker writes of one, the fixed
broker is lost while one is unsettled, and a client has changed places while one waited for it. The package's
docstring says why each subscriber gets it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hedgerow.duplicates import DuplicateLog
from hedgerow.fabric.delegation.codec import Event, Kind
from hedgerow.fabric.delegation.events import Delivery, Stats
from hedgerow.fabric.delegation.registries import Registries, subscribers
from hedgerow.fabric.delegation.uplink import Unsettled, Uplink
from hedgerow.message import Message


class Notifier:
    def __init__(self, accepted: DuplicateLog, stats: Stats) -> None:
        self.accepted = accepted
        self.stats = stats
        self.registries = Registries()
        self.away: dict[str, Uplink] = {}
        """Clients that are at a fixed broker."""
        self.published = 0
        self.deliveries: list[Delivery] = []

    def call_back(self, uplink: Uplink) -> None:
        """No client is there any more."""
        self.away = {callback: at for callback, at in self.away.items() if at is not uplink}

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
        record.done.update(left)
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
        for record in uplink.stream.records:
            if record.kind != Kind.EVENT or not record.event.is_handed_on:
                continue
            event = record.event
            mine = {name: qos for name, qos in event.callbacks if only in (None, name)}
            self._deliver(event.message, mine, is_again=record.is_sent)
            rest = tuple(pair for pair in event.callbacks if pair[0] not in mine)
            record.body = event._replace(callbacks=rest)
            # It may be sent back, if the client had gone before it came there.
            uplink.reclaimed.update((str(event.message.id), name) for name in mine)

    def publish(self, message: Message, uplink: Uplink | None, now: float) -> None:
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
            self._deliver(message, self.registries.match_all(message.topic))
            return
        wanted = self.registries.match_active(message.topic)
        there = {callback: qos for callback, qos in wanted.items() if self.away.get(callback) is uplink}
        elsewhere = {name: qos for name, qos in wanted.items() if name in self.away and name not in there}
        here = {callback: qos for callback, qos in wanted.items() if callback not in self.away}
        served = tuple(callback for callback in here if self.registries.has_delegated(callback))
        record = uplink.stream.put(Kind.EVENT, Event(message, tuple(there.items()), served), now)
        record.done.update(here, elsewhere)
        uplink.unsettled[message.id] = Unsettled(record, self.published)
        for callback, qos in elsewhere.items():
            self.hand_on(callback, qos, [message], now)
        self._deliver(message, here)

    def notify(self, uplink: Uplink, is_current: bool, event: Event, now: float) -> None:
        message = event.message
        assert message.id is not None
        message.expire_from(now)
        wanted = {name: qos for name, qos in event.callbacks if self.registries.wants(name, message.topic)}
        self.stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        if event.is_handed_on:
            text = str(message.id)
            self._deliver(message, {n: qos for n, qos in wanted.items() if (text, n) not in uplink.reclaimed})
            return
        unsettled = uplink.unsettled.get(message.id)
        if unsettled is None and self.accepted.seen(message.id):
            self.stats.duplicates += 1
            return
        matched: dict[str, int] = {}
        # One that is being left does not know the latest topics, but its word may be the first.
        if event.is_to_match or not is_current:
            matched = subscribers(registry for _, registry in uplink.outside.match(message.topic))
        done = set(event.served)
        if unsettled is not None:
            # It came back by a second way, or these are those whom the fixed broker has matched.
            done |= unsettled.record.done
            asked = dict(unsettled.record.event.callbacks)
            matched = {name: qos for name, qos in matched.items() if name not in asked}
            unsettled.record.done.update(wanted, matched)
        for callback, qos in matched.items():
            if callback in wanted or callback in done:
                continue
            if callback in self.away:
                self.hand_on(callback, qos, [message], now)
            else:
                wanted[callback] = qos
        self._deliver(message, {name: qos for name, qos in wanted.items() if name not in done})

    def _deliver(self, message: Message, wanted: Mapping[str, int], is_again: bool = False) -> None:
        if wanted:
            self.deliveries.append(Delivery(message, tuple(wanted.items()), is_again))

    def hand_on(self, callback: str, qos: int, undelivered: Sequence[Message], now: float) -> None:
        """These waited here for a client that is at the fixed broker now."""
        uplink = self.away.get(callback)
        for message in undelivered:
            if uplink is None or not uplink.stream.has_room(message):
                self.stats.overflowed += uplink is not None
                self._deliver(message, {callback: qos})
            else:
                handed_on = Event(message, ((callback, qos),), is_handed_on=True)
                uplink.stream.put(Kind.EVENT, handed_on, now)

    def write_again(self, uplink: Uplink, unsettled: Unsettled, now: float) -> None:
        """To another fixed broker, or one that has forgotten: for others, as ours are done."""
        record, published = unsettled
        message = record.event.message
        assert message.id is not None
        fresh = uplink.stream.put(Kind.EVENT, Event(message, served=tuple(record.done)), now)
        fresh.done.update(record.done)
        uplink.unsettled[message.id] = Unsettled(fresh, published)
