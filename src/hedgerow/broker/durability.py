"""What must survive a crash, and the packets that wait until it does.

The broker tells `Durability` of every change to a durable session and to the retained messages; the
shell takes the collected `Changes`, commits them, and says so. A packet that speaks of a change is
*held* until then: every acknowledgement to a publisher whose message was stored, and for QoS 2 also
the PUBLISH and PUBREL to a subscriber, since after a crash the same packet identifier must mean the
same message. A QoS 1 PUBLISH may leave at once: it may come twice anyway, and if it is acknowledged
before the batch is written, it need not be written at all. What is no packet, and must not happen
before the commit either, waits in the same row (`when_committed`). What an observer keeps counts as well
(`observer.py`): the shell says that all is committed when that is durable, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hedgerow.broker.changes import Changes, SubscriptionRecord
from hedgerow.broker.observer import Observer
from hedgerow.broker.session import Channel, Pause, Session
from hedgerow.broker.stats import Stats
from hedgerow.duplicates import DuplicateLog, PageKey
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import PUBACK, PUBCOMP

MAX_HELD_ACKNOWLEDGEMENTS = 4_096  # Of one connection, before we stop reading from it.
FINISHING = (PUBACK << 4, PUBCOMP << 4)  # First bytes of what lets the client send one more (§4.9).

Held = tuple[Channel, bytes, int] | Callable[[], None]
"""(connection, packets of one kind, how many of them are acknowledgements), or what is to be called."""


class Durability:
    def __init__(
        self,
        enabled: bool,
        stats: Stats,
        duplicates: DuplicateLog,
        observers: Sequence[Observer],
        identify: Callable[[Message], None],
    ) -> None:
        """`identify`: gives a message that is to be stored its id."""
        self.enabled = enabled
        self.changes = Changes()
        self.volatile_prefixes: tuple[str, ...] = ()  # Topics whose retained messages are not stored.
        self._stats = stats
        self._duplicates = duplicates
        self._observers = observers
        self._identify = identify
        self.change_count = 0  # grows with each change, here alone: whether something has to be stored
        self.discards = 0  # of sessions that were stored
        self.next_message_key = 1
        self.references: dict[int, int] = {}  # message key → deliveries that refer to it
        self._stored_last: tuple[Message | None, int] = (None, 0)
        self._held: list[Held] = []  # in order
        self._committing: list[Held] | None = None
        self.failures: list[Exception] = []  # of what was called when it was committed

    @property
    def is_behind(self) -> bool:
        """Is there anything that is not stored yet?"""
        if self.changes.must_precede or self._held or self._committing is not None:
            return True
        return any(observer.is_behind for observer in self._observers)

    # What the shell calls, through the broker

    def take_changes(self) -> Changes | None:
        if self._committing is not None or not (self.changes or self._held):
            return None
        changes, self.changes = self.changes, Changes()
        # As of now: where a disk is full it is written again later, and what is seen meanwhile is the next
        # batch's. A message that is known after a crash, and whose deliveries are not, is lost.
        changes.seen = {page: bits if bits is None else bytes(bits) for page, bits in changes.seen.items()}
        self._committing, self._held = self._held, []
        return changes

    def committed(self) -> list[Channel]:
        """All that was taken is durable: let go what was held. Connections to which more may go now."""
        committed, self._committing = self._committing or [], None
        answered: list[Channel] = []
        for held in committed:
            if not isinstance(held, tuple):
                try:
                    held()
                except Exception as error:  # What others wait for is behind it.
                    self.failures.append(error)
                continue
            connection, data, count = held
            if count:
                connection.held_acknowledgements -= count
                connection.held_publications -= count * (data[0] in FINISHING)
                if not connection.held_acknowledgements:
                    connection.resume(Pause.HELD)
            else:
                connection.held_packets -= 1
            if connection.is_connected:
                connection.send(data)
                if connection.backlog:
                    answered.append(connection)
        return answered

    # Packets that may have to wait

    def acknowledge(self, connection: Channel, data: bytes, must_wait: bool, count: int = 1) -> None:
        """Send acknowledgements of one kind, never before an earlier one that waits (MQTT-4.6.0-2)."""
        self._stats.packets_sent += count
        if not (must_wait or connection.held_acknowledgements):
            connection.send(data)
            return
        connection.held_acknowledgements += count
        connection.held_publications += count * (data[0] in FINISHING)
        self._held.append((connection, data, count))
        if connection.held_acknowledgements >= MAX_HELD_ACKNOWLEDGEMENTS:
            connection.pause(Pause.HELD)

    def send_exactly_once(self, connection: Channel, session: Session, data: bytes) -> None:
        """Send a QoS 2 PUBLISH or PUBREL, when the state that it tells of is stored."""
        if session.durable:
            connection.held_packets += 1
            self._held.append((connection, data, 0))
        else:
            connection.send(data)

    def hold_back(self, connection: Channel, clock: Callable[[], float]) -> None:
        """Nothing leaves for this client until all that changed is stored: as if it did not read."""
        connection.set_congested(True, clock())
        self._held.append(lambda: connection.set_congested(False, clock()))

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Call it when all that changed so far is stored; at once when it is, or nothing ever is."""
        if self.is_behind:
            self._held.append(callback)
        else:
            callback()

    # What changed

    def store_session(self, session: Session) -> None:
        if session.durable:
            self.changes.sessions[session.key] = session.record()
            self.change_count += 1

    def discard_session(self, session: Session) -> None:
        """What hangs on the session goes with it."""
        if session.durable:
            session.durable = False
            self.changes.sessions[session.key] = None
            self.change_count += 1
            self.discards += 1

    def store_subscription(
        self, session: Session, topic_filter: str, record: SubscriptionRecord | None
    ) -> None:
        if session.durable:
            self.changes.subscriptions[session.key, topic_filter] = record
            self.change_count += 1

    def store_received(self, session: Session, packet_id: int, received: bool) -> None:
        """A QoS 2 packet identifier of the client is in use, or free again."""
        if session.durable:
            self.changes.received[session.key, packet_id] = received
            self.change_count += 1

    def store_retained(self, topic: str, message: Message | None) -> None:
        if self.enabled and not (self.volatile_prefixes and topic.startswith(self.volatile_prefixes)):
            if message is not None:
                self._identify(message)
            self.changes.retained[topic] = message
            self.change_count += 1

    def store_seen(self, messages: Iterable[Message]) -> None:
        """Messages of other nodes were taken: they are known after a crash too, and not taken twice.

        Nothing waits for that: what is lost with the last commit's few milliseconds may come twice.
        """
        if not self.enabled:
            return
        last: object = None
        for message in messages:
            page = self._duplicates.page_of(message.id) if message.id is not None else None
            if page is not None and page.bits is not last:
                last = self.changes.seen[page.key] = page.bits

    def forget_seen(self, page: PageKey) -> None:
        if self.enabled:
            self.changes.seen[page] = None

    def keep(self, part: str, key: str, text: str | None) -> None:
        """What a part of the node has to find again after a restart (`Broker.kept`); None: no longer."""
        if self.enabled:
            self.changes.kept[part, key] = text
            self.change_count += 1

    def store_delivery(self, session: Session, delivery: Delivery) -> None:
        """The delivery is new, or its packet identifier or stage changed."""
        if not session.durable:
            return
        if not delivery.key:
            delivery.key = self._store_message(delivery.message)
        self.changes.deliveries[session.key, delivery.key] = delivery
        self.change_count += 1

    def _store_message(self, message: Message) -> int:
        """A place in the store for a message: one for all the sessions that it goes to, in a row."""
        stored, key = self._stored_last
        if stored is not message:
            self._identify(message)
            key = self.next_message_key
            self.next_message_key += 1
            self._stored_last = (message, key)
            self.references[key] = 0
            self.changes.messages[key] = message
        self.references[key] += 1
        return key

    def store_separately(self) -> None:
        """The next delivery may go to a session that has the same message already: a place of its own."""
        self._stored_last = (None, 0)

    def finish_delivery(self, session: Session, delivery: Delivery) -> None:
        """Acknowledged, expired or given up: the store need not keep it."""
        key = delivery.key
        if not key:
            return
        self.change_count += 1
        changes = self.changes
        is_last = self.references[key] == 1
        if is_last:
            del self.references[key]
            if self._stored_last[1] == key:
                self._stored_last = (None, 0)
        else:
            self.references[key] -= 1
        if key in changes.messages:
            # Stored in this very batch, which is not written yet: nothing need be.
            changes.deliveries.pop((session.key, key), None)
            if is_last:
                del changes.messages[key]
        else:
            changes.deliveries[session.key, key] = None
            if is_last:
                changes.messages[key] = None
