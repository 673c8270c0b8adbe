"""What a mobile broker has written to a fixed one and is not settled, over a crash of it.

- An event of QoS 1 or 2 that was published here, as a delivery of the session `EVENTS`, and the filters that
  are delegated as that session's subscriptions. Of who has only delegated subscriptions that match, nobody
  knows whether an unsettled event has come to them: after a crash they get it here, marked as one that may
  have come before, and it is written to the fixed broker again for those outside.
- What follows a client to the fixed broker, as a delivery of the client's own session. It is stored as one
  that was sent, without a packet identifier: after a crash it waits there, with the same mark.

Events that came from outside, and those that are settled, are known by their ids after a crash as well: the
fixed broker writes again what it does not know to be handled.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.broker.broker import Broker
from hedgerow.broker.log_reading import waiting
from hedgerow.broker.publishing import deliver_to
from hedgerow.broker.session import Session
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.limits import MAX_WAITING, MAX_WAITING_BYTES, RECORD_BYTES
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from hedgerow.mobility.delegation.stream import Record
from hedgerow.mobility.delegation.uplink import Unsettled
from hedgerow.mobility.kept import (
    EVENTS,
    Key,
    RecordReader,
    Stored,
    finish,
    open_session,
    store,
    store_filter,
    take_stored,
)


class KeptEvents:
    """`session_of`: the session of a callback."""

    def __init__(
        self, broker: Broker, machine: MobileSide, session_of: Callable[[str], Session | None]
    ) -> None:
        self.is_on = broker.durability.enabled
        self._broker = broker
        self._machine = machine
        self._session_of = session_of
        self._stored: dict[Key, Stored] = {}  # `number`: in the order in which they were stored
        self._count = 0
        self._unwritten: dict[MessageId, Message] = {}  # of an earlier life, or before there was a link
        self._unwritten_bytes = 0
        self._leaving: dict[str, int] = {}  # filters, and up to which of the stored ones they matter
        self._readers: dict[str, RecordReader] = {}
        if self.is_on:
            self._session = open_session(broker, EVENTS)
            self._session.expires_at = None
            self._take_up()

    def _take_up(self) -> None:
        """What an earlier life has left. Nothing is delegated yet."""
        broker = self._broker
        followed: set[Key] = set()
        for session in broker.sessions.values():
            if session is not self._session and session.stored is not None and session.stored.has_again:
                for delivery in waiting(broker, session):
                    if delivery.is_again:
                        followed.add((session.client_id, broker.identify_late(delivery.message)))
        delegated = set(self._session.subscriptions or ())
        for stored in take_stored(broker, self._session):
            message = stored.delivery.message
            self._unwritten[broker.identify_late(message)] = message
            self._unwritten_bytes += message.size + RECORD_BYTES
            self._put("", message, stored)
            self._deliver(message, delegated, followed)
        for topic_filter in delegated:
            store_filter(broker, self._session, topic_filter, False)

    def _deliver(self, message: Message, delegated: set[str], followed: set[Key]) -> None:
        """To those whom the fixed broker was to find, but for those whom it was to follow: it waits for
        them."""
        broker = self._broker
        route = broker.find_route(message.topic)
        for recipient in route.recipients:
            filters = (entry.topic_filter for entry in recipient.entries)
            has_it = (recipient.session.client_id, broker.identify_late(message)) in followed
            if recipient.session.role.is_movable and not has_it and delegated.issuperset(filters):
                broker.durability.store_separately()
                deliver_to(broker, recipient.session, message, route, message.qos, is_again=True)

    def _put(self, callback: str, message: Message, stored: Stored) -> None:
        assert message.id is not None
        self._count += 1
        stored.number = self._count
        self._stored[callback, message.id] = stored

    def write_again(self, now: float) -> None:
        """There is a fixed broker: for subscribers outside, if they have not had it. Those here have."""
        uplink = self._machine.current
        while self._unwritten and uplink is not None:
            message_id, message = next(iter(self._unwritten.items()))
            if not uplink.stream.has_room(message):
                return
            done = frozenset(self._machine.registries.match_all(message.topic))
            record = Record(0, 0, 0, PublicationKind.EVENT, EventBody(message, is_again=True), 0, done=done)
            self._machine.notifier.write_again(uplink, Unsettled(record, 0), now)
            del self._unwritten[message_id]
            self._unwritten_bytes -= message.size + RECORD_BYTES

    def set_delegated(self, topic_filter: str, is_delegated: bool) -> None:
        if not self.is_on:
            return
        self._leaving.pop(topic_filter, None)
        if not is_delegated and self._stored:
            # What was published until now is still the fixed broker's to match.
            self._leaving[topic_filter] = self._count
        else:
            store_filter(self._broker, self._session, topic_filter, is_delegated)

    def published(self, message: Message) -> None:
        self.note()
        if self._machine.current is None and self._has_room(message):
            # Nothing is delegated and all have got it here, but for those outside.
            self._unwritten[self._broker.identify_late(message)] = message
            self._put("", message, store(self._broker, self._session, message, message.qos))
            self._unwritten_bytes += message.size + RECORD_BYTES

    def _has_room(self, message: Message) -> bool:
        """As much as may wait in a stream."""
        size = self._unwritten_bytes + message.size + RECORD_BYTES
        return len(self._unwritten) < MAX_WAITING and size <= MAX_WAITING_BYTES

    def note(self) -> None:
        """What has been written to fixed brokers."""
        if not self.is_on:
            return
        for fixed_id, uplink in self._machine.uplinks.items():
            reader = self._readers.setdefault(fixed_id, RecordReader())
            for record in reader.take(uplink.stream):
                if (
                    record.kind == PublicationKind.EVENT
                    and record.event.message.qos
                    and not record.event.is_missed
                ):
                    self._store(record.event)

    def _store(self, event: EventBody) -> None:
        message, broker = event.message, self._broker
        assert message.id is not None
        if not event.is_handed_on and ("", message.id) not in self._stored:
            self._put("", message, store(broker, self._session, message, message.qos))
        for callback, qos in event.callbacks:
            session = self._session_of(callback)
            qos = min(qos, message.qos)
            if session is None or not session.durable or not qos or (callback, message.id) in self._stored:
                continue
            # The session may have it already, as a delivery of its own.
            broker.durability.store_separately()
            self._put(callback, message, store(broker, session, message, qos, is_again=True))
            self.mark(message)

    def mark(self, message: Message) -> None:
        """It has been here: should it come again after a crash, it is known."""
        if self.is_on and message.qos and message.id is not None:
            self._broker.duplicates.seen(message.id)
            self._broker.durability.store_seen((message,))

    def let_go(self) -> None:
        """What is settled, in the order in which it was stored."""
        stored = self._stored
        while stored:
            key, first = next(iter(stored.items()))
            if self._is_unsettled(*key):
                break
            del stored[key]
            finish(self._broker, first)
            if not key[0]:
                self.mark(first.delivery.message)
        oldest = next(iter(stored.values())).number if stored else self._count + 1
        for topic_filter in [name for name, number in self._leaving.items() if number < oldest]:
            del self._leaving[topic_filter]
            store_filter(self._broker, self._session, topic_filter, False)

    def _is_unsettled(self, callback: str, message_id: MessageId) -> bool:
        if message_id in self._unwritten:
            return True
        return any(
            message_id in uplink.unsettled or (message_id, callback) in uplink.handed_on
            for uplink in self._machine.uplinks.values()
        )
