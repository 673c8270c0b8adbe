"""What a fixed broker has yet to do for mobile brokers, over a crash of it.

- An event from outside for which something was written to a mobile broker, until that one has handled it. One
  that a mobile broker brought itself is kept by that one.
- The topic filters of a mobile broker. After a crash it has to tell them anew; until it has, and whenever it
  begins anew, the session is subscribed to them and what is published meanwhile waits in its queue.
- What a guest has not acknowledged, unless its own mobile broker keeps it: in a session for each guest.
"""

from __future__ import annotations

from collections import Counter, deque

from hedgerow.broker.broker import Broker
from hedgerow.broker.log_reading import load_all
from hedgerow.broker.session import Session
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.publications import EventBody
from hedgerow.mobility.kept import (
    FOR_GUEST,
    FOR_MOBILE,
    Key,
    RecordReader,
    Stored,
    finish,
    open_session,
    store,
    store_filter,
    take_stored,
)
from hedgerow.mobility.sessions import end_session, is_finished
from hedgerow.mqtt.outbox import Delivery, Outbox
from hedgerow.topics import TopicTree

SWEEP_S = 60.0  # for a mobile broker to tell its topics again
LOOK_S = 0.01
LONGEST_LOOK_S = 1.0


class _Support:
    """What is kept for one mobile broker."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stored: dict[Key, Stored] = {}
        self.written: deque[tuple[int, Key]] = deque()
        """Numbers in its stream."""
        self.reader = RecordReader()
        self.is_anew = False
        self.awaited: set[str] = set()
        """Topic filters that it had told, and has yet to tell again."""
        self.told: set[str] = set()
        """Those that it has told just now."""
        self.sweep_at = float("inf")
        self.guests: dict[str, Session] = {}
        """By callback, of those for whom something is kept."""
        self.counts: Counter[str] = Counter()


class KeptForMobiles:
    def __init__(self, broker: Broker, machine: FixedSide) -> None:
        self.is_on = broker.durability.enabled
        self._broker = broker
        self._machine = machine
        self._supports: dict[str, _Support] = {}
        self._waiting: dict[str, deque[tuple[Key, Session, Delivery]]] = {}  # by guest: what it is to get
        self._look_at = float("inf")
        self._look_s = LOOK_S
        for session in list(broker.sessions.values()) if self.is_on else ():
            if session.role.is_own and session.client_id.startswith(FOR_MOBILE):
                support = self._support(session.client_id.removeprefix(FOR_MOBILE))
                taken = load_all(broker, session)
                outbox = session.outbox = Outbox()
                for delivery in taken:
                    delivery.is_again = True
                    outbox.push(delivery)
                for topic_filter in session.subscriptions or ():
                    self._await(support, topic_filter)
            elif session.role.is_own and session.client_id.startswith(FOR_GUEST):
                callback = session.client_id.removeprefix(FOR_GUEST)
                self._support(addresses.owner_of(callback) or "").guests[callback] = session

    def _support(self, mobile_id: str) -> _Support:
        support = self._supports.get(mobile_id)
        if support is None or not support.session.durable:
            session = open_session(self._broker, FOR_MOBILE + mobile_id)
            session.far_origin = mobile_id
            support = self._supports[mobile_id] = _Support(session)
        return support

    # Topic filters

    def registered(self, mobile_id: str, topic_filter: str) -> None:
        if not self.is_on:
            return
        support = self._support(mobile_id)
        support.session.expires_at = None
        support.told.add(topic_filter)
        store_filter(self._broker, support.session, topic_filter, True)
        if topic_filter in support.awaited:
            support.awaited.discard(topic_filter)
            self._broker.subscriptions.remove(support.session, topic_filter)
        if support.awaited or support.session.outbox is not None:
            support.sweep_at = self._broker.now + SWEEP_S

    def unregistered(self, mobile_id: str, topic_filter: str) -> None:
        support = self._supports.get(mobile_id)
        if support is None or not self.is_on:
            return
        support.told.discard(topic_filter)
        if support.is_anew:
            self._await(support, topic_filter)
            support.sweep_at = self._broker.now + SWEEP_S
        else:
            store_filter(self._broker, support.session, topic_filter, False)

    def _await(self, support: _Support, topic_filter: str) -> None:
        held = support.session.subscriptions or {}
        if topic_filter in held:
            support.awaited.add(topic_filter)
            self._broker.subscriptions.add(support.session, held[topic_filter].subscription, None)

    def forgotten(self, mobile_id: str) -> None:
        """It did not come back, or took its leave."""
        support = self._supports.pop(mobile_id, None)
        if support is None:
            return
        for stored in support.stored.values():
            finish(self._broker, stored)
        for session in (support.session, *support.guests.values()):
            end_session(self._broker, session)

    # Events

    def note(self, stores: bool = False, but: str = "") -> None:
        """What has been written to mobile brokers; `stores`: events from outside, but for this one."""
        if not self.is_on:
            return
        for mobile_id, mobile in self._machine.mobiles.items():
            support = self._support(mobile_id)
            if support.reader.is_anew(mobile.stream):
                support.is_anew = True
                support.written.clear()
            for record in support.reader.take(mobile.stream):
                event = record.body
                if isinstance(event, EventBody) and event.message.qos and not event.is_missed:
                    self._note_event(support, event, record.number, stores and mobile_id != but)

    def _note_event(self, support: _Support, event: EventBody, number: int, stores: bool) -> None:
        assert event.message.id is not None
        names = [name for name, _ in event.callbacks] if event.is_handed_on else [""]
        for name in names:
            key = name, event.message.id
            stored = support.stored.get(key)
            if stored is None and stores and not event.is_handed_on:
                stored = support.stored[key] = store(
                    self._broker, support.session, event.message, event.message.qos
                )
            if stored is not None:
                stored.number = number
                support.written.append((number, key))

    def serve(self, now: float) -> None:
        """After what mobile brokers said was handled."""
        if not self.is_on:
            return
        for mobile_id, support in self._supports.items():
            support.is_anew = False
            if support.told:
                self._offer(mobile_id, support, now)
        self.note()
        for mobile_id, mobile in self._machine.mobiles.items():
            support = self._supports[mobile_id]
            handled = mobile.stream.content.handled
            written = support.written
            while written and written[0][0] <= handled:
                number, key = written.popleft()
                if key in support.stored and support.stored[key].number == number:
                    self._let_go(support, key)

    def _offer(self, mobile_id: str, support: _Support, now: float) -> None:
        """What waited for a mobile broker, or for clients that were its guests, goes there."""
        told: TopicTree[str, None] = TopicTree()
        for topic_filter in support.told:
            told.set(topic_filter, topic_filter, None)
        support.told.clear()
        outbox = support.session.outbox
        if outbox is not None:
            wanted = {delivery for delivery in outbox.queue if told.match(delivery.message.topic)}
            for delivery in outbox.remove(wanted):
                self._take(support, "", Stored(support.session, delivery))
                self._machine.make_up(mobile_id, delivery.message, delivery.is_again, now)
        for callback, session in list(support.guests.items()):
            session.expires_at = None
            for stored in take_stored(self._broker, session):
                self._take(support, callback, stored)
                undelivered = [(stored.delivery.message, stored.delivery.qos)]
                self._machine.client_left(callback, undelivered, now, is_again=True)

    def _take(self, support: _Support, callback: str, stored: Stored) -> None:
        message_id = self._broker.identify_late(stored.delivery.message)
        before = support.stored.pop((callback, message_id), None)
        if before is not None:
            finish(self._broker, before)
        support.stored[callback, message_id] = stored
        support.counts[callback] += before is None

    def _let_go(self, support: _Support, key: Key) -> None:
        stored = support.stored.pop(key)
        finish(self._broker, stored)
        callback = key[0]
        if callback:
            support.counts[callback] -= 1
            if not support.counts[callback] and callback not in self._machine.attached:
                del support.counts[callback]
                end_session(self._broker, support.guests.pop(callback))

    # Guests

    def delivered(self, callback: str, session: Session, delivery: Delivery) -> None:
        """To a guest, and nobody else keeps it until it is acknowledged."""
        owner = addresses.owner_of(callback)
        if not self.is_on or owner is None:
            return
        support = self._support(owner)
        kept = support.guests.get(callback)
        if kept is None or not kept.durable:
            kept = support.guests[callback] = open_session(self._broker, FOR_GUEST + callback)
        self._take(support, callback, store(self._broker, kept, delivery.message, delivery.qos))
        assert delivery.message.id is not None
        key = callback, delivery.message.id
        self._waiting.setdefault(callback, deque()).append((key, session, delivery))
        self._look_s = LOOK_S
        self._look_at = min(self._look_at, self._broker.now + LOOK_S)

    def left(self, callback: str) -> None:
        """It is gone, and what it did not get is on its way to its mobile broker."""
        self.note()
        waiting = self._waiting.pop(callback, None)
        support = self._supports.get(addresses.owner_of(callback) or "")
        for key, _, _ in waiting or ():
            if support is not None and key in support.stored and not support.stored[key].number:
                self._let_go(support, key)

    @property
    def deadline(self) -> float:
        sweep_at = min((support.sweep_at for support in self._supports.values()), default=float("inf"))
        return min(self._look_at, sweep_at)

    def handle_timer(self, now: float) -> None:
        if self._look_at <= now:
            self._look(now)
        for mobile_id, support in self._supports.items():
            if support.sweep_at <= now:
                mobile = self._machine.mobiles.get(mobile_id)
                is_here = mobile is not None and mobile.stream.is_open
                support.sweep_at = float("inf") if is_here else now + SWEEP_S
                if is_here:
                    self._sweep(support)

    def _sweep(self, support: _Support) -> None:
        """What it has not told again it wants no more."""
        for topic_filter in support.awaited:
            self._broker.subscriptions.remove(support.session, topic_filter)
            store_filter(self._broker, support.session, topic_filter, False)
        support.awaited.clear()
        for stored in take_stored(self._broker, support.session):
            finish(self._broker, stored)

    def _look(self, now: float) -> None:
        is_news = False
        for callback, waiting in list(self._waiting.items()):
            support = self._supports.get(addresses.owner_of(callback) or "")
            while waiting and is_finished(*waiting[0][1:]):
                key = waiting.popleft()[0]
                is_news = True
                if support is not None and key in support.stored:
                    self._let_go(support, key)
            if not waiting:
                del self._waiting[callback]
        self._look_s = LOOK_S if is_news else min(2 * self._look_s, LONGEST_LOOK_S)
        self._look_at = now + self._look_s if self._waiting else float("inf")
