"""What must survive a crash, and the packets that wait until it does.

The broker tells `Durability` of every change to a durable session and to the retained messages; the
shell takes the collected `Changes`, commits them, and says so. A packet that speaks of a change is
*held* until then: every acknowledgement to a publisher whose message was stored, and for QoS 2 also
the PUBLISH and PUBREL to a subscriber, since after a crash the same packet identifier must mean the
same message. A QoS 1 PUBLISH may leave at once: it may come twice anyway. What is no packet, and must not
happen before the commit either, waits in the same row (`when_committed`). What an observer keeps counts as
well (`observer.py`): the shell says that all is committed when that is durable, too.

A message that waits for durable sessions is written to the log once, when its batch is taken, unless all of
them have acknowledged it by then. Each of these sessions has the message's position in its `StoredQueue`
until it is finished. Of a segment of the log it is counted how many such positions there are: without any
it is removed.

The log has a bound. Where it is full nothing more is written to it, so that publishers wait for their
acknowledgements, and all else is stored as before: what readers finish makes room. Or else the oldest segment
goes, whoever needs it (`LogBounds.drops_oldest`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hedgerow.broker.changes import Changes, SubscriptionRecord
from hedgerow.broker.limits import LogBounds
from hedgerow.broker.observer import Observer
from hedgerow.broker.session import Channel, Pause, Session
from hedgerow.broker.stats import Stats
from hedgerow.broker.stored import AGAIN_BIT, MAX_SPAN, RETAIN_BIT, Chunk, StoredQueue
from hedgerow.duplicates import DuplicateLog, PageKey
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import PUBACK, PUBCOMP

MAX_HELD_ACKNOWLEDGEMENTS = 4_096  # Of one connection, before we stop reading from it.
FINISHING = (PUBACK << 4, PUBCOMP << 4)  # First bytes of what lets the client send one more (§4.9).
SEGMENT_BYTES = 8 * 1024 * 1024  # How much of the log goes at once.
SEGMENTS_OF_BOUND = 16
TIB = 2**40
ENTRY_BYTES = 64  # What a message takes in the log beside topic and payload, at most
MAX_POSITION = 2**63 - 1
UNWRITTEN = -1  # The position of a delivery whose message waits to be written,
FINISHED = -2  # and of one that was finished before.


@dataclass(slots=True, frozen=True)
class Held:
    """What waits for a commit: packets of one kind, or something to be called."""

    connection: Channel | None
    data: bytes
    count: int
    """How many of the packets are acknowledgements."""
    callback: Callable[[], None] | None
    entries: int
    """So many messages must have been written to the log before, counted from the start."""


class Entry:
    """A message that is to be written to the log, and for whom."""

    __slots__ = ("deliveries", "left", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries: list[tuple[Session, Delivery]] = []  # which are in outboxes
        self.left: list[
            tuple[Session, Delivery]
        ] = []  # for sessions that read it from the log when they come to it


class Segment:
    """A part of the log, as long as somebody needs something of it."""

    __slots__ = ("bytes", "first", "references")

    def __init__(self, first: int, size: int = 0) -> None:
        self.first = first
        self.bytes = size
        self.references = 0


class Durability:
    def __init__(
        self,
        enabled: bool,
        stats: Stats,
        duplicates: DuplicateLog,
        observers: Sequence[Observer],
        identify: Callable[[Message], None],
        bounds: LogBounds | None = None,
    ) -> None:
        """`identify`: gives a message that is to be stored its id."""
        self.enabled = enabled
        self.bounds = bounds or LogBounds()
        self.changes = Changes()
        self.volatile_prefixes: tuple[str, ...] = ()  # Topics whose retained messages are not stored.
        self._stats = stats
        self._duplicates = duplicates
        self._observers = observers
        self._identify = identify
        self.change_count = 0  # grows with each change, here alone: whether something has to be stored
        self.discards = 0  # of sessions that were stored
        self.next_position = 1  # of the log
        self.written_position = 1  # Below it all is written, and may be read.
        # What is below this waits since this life began: a clock may have been set between two lives.
        self.restored_position = 1
        self.restored_at = 0.0
        self.log_bytes = 0  # about, of all segments
        self.has_disk = True  # the shell's word: there is room for the log on the disk
        self._segments: list[Segment] = []
        self._unneeded: dict[Segment, None] = {}
        # Several, where there is a bound: else nothing would go before all is read.
        self._segment_bytes = min(SEGMENT_BYTES, (self.bounds.bytes or TIB) // SEGMENTS_OF_BOUND)
        self._is_appending = False  # The newest segment was begun in this life.
        self._needed: tuple[Segment, int] | None = None  # the one that was looked for last, and its end
        self._entries: list[Entry | tuple[Session, list[Delivery]]] = []  # in order; the latter: one each
        self._entries_made = 0  # messages that were to be written, from the start, and
        self._entries_taken = 0  # those of them that no longer are
        self._last_entry: Entry | None = None
        self._behind: dict[
            Session, None
        ] = {}  # those for whom the batch under way leaves something in the log
        self._held: list[Held] = []  # in order
        self._committing: list[Held] | None = None
        self._committing_position = 1
        self.failures: list[Exception] = []  # of what was called when it was committed

    @property
    def is_behind(self) -> bool:
        """Is there anything that is not stored yet?"""
        if self._entries or self.changes.must_precede or self._held or self._committing is not None:
            return True
        return any(observer.is_behind for observer in self._observers)

    @property
    def is_full(self) -> bool:
        """Has the log no room for messages?"""
        limit = self.bounds.bytes
        return not self.has_disk or (limit is not None and self.log_bytes >= limit)

    @property
    def needs_room(self) -> bool:
        """Does something wait for room in the log, and none is about to be made?"""
        return bool(self._entries) and self.is_full and self._committing is None

    # What the shell calls, through the broker

    def take_changes(self, now: float) -> Changes | None:
        if self._committing is not None:
            return None
        may_write = not (self._entries and self.is_full)
        going = (
            self._held if may_write else [held for held in self._held if held.entries <= self._entries_taken]
        )
        if not (going or self.changes.must_precede or (may_write and (self._entries or self.changes.seen))):
            return None
        later = Changes()
        if not may_write:
            # What is known, and what a client's packet identifier means, must not survive without the
            # message.
            later.seen, self.changes.seen = self.changes.seen, {}
            later.received, self.changes.received = self.changes.received, {}
            if not (going or self.changes.must_precede):
                self.changes.seen, self.changes.received = later.seen, later.received
                return None
        self._write_entries(now) if may_write else None
        self._take_unneeded()
        changes, self.changes = self.changes, later
        gone = {key for key, record in changes.sessions.items() if record is None}
        if gone and later.received:
            later.received = {place: each for place, each in later.received.items() if place[0] not in gone}
        # As of now: where a disk is full it is written again later, and what is seen meanwhile is the next
        # batch's. A message that is known after a crash, and whose deliveries are not, is lost.
        changes.seen = {page: bits if bits is None else bytes(bits) for page, bits in changes.seen.items()}
        self._committing_position = self.next_position
        self._held = [] if may_write else [held for held in self._held if held.entries > self._entries_taken]
        self._committing = going
        return changes

    def committed(self) -> list[Channel]:
        """All that was taken is durable: let go what was held. Connections to which more may go now."""
        committed, self._committing = self._committing or [], None
        self.written_position = self._committing_position
        answered: list[Channel] = []
        for held in committed:
            connection, data, count = held.connection, held.data, held.count
            if connection is None:
                assert held.callback is not None
                try:
                    held.callback()
                except Exception as error:  # What others wait for is behind it.
                    self.failures.append(error)
                continue
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
        behind, self._behind = self._behind, {}
        answered += [each.connection for each in behind if each.connection is not None]
        return answered

    def _write_entries(self, now: float) -> None:
        """Give what is still wanted its positions."""
        entries, self._entries = self._entries, []
        self._last_entry = None
        self._entries_taken = self._entries_made
        first, references, size = self.next_position, 0, 0
        messages = self.changes.messages
        for entry in entries:
            position = first + len(messages)
            if isinstance(entry, tuple):
                session, deliveries = entry
                count, taken = self._put_run(session, deliveries, position, now)
            else:
                count, taken = self._put(entry, position, now)
            references += count
            size += taken
        if not messages:
            return
        self.changes.at = now
        self.changes.first_position = first
        self.next_position = first + len(messages)
        if not self._is_appending or self._segments[-1].bytes >= self._segment_bytes:
            if self._segments and not self._segments[-1].references:
                self._unneeded[self._segments[-1]] = None
            self.changes.begins_segment = self._is_appending = True
            self._segments.append(Segment(first))
        segment = self._segments[-1]
        segment.references += references
        size += ENTRY_BYTES * len(messages)
        segment.bytes += size
        self.log_bytes += size

    def _put(self, entry: Entry, position: int, now: float) -> tuple[int, int]:
        """For how many sessions it is, and its bytes; none: all of them are done with it."""
        changes, message = self.changes, entry.message
        size = message.size
        count = 0
        for session, delivery in entry.deliveries:
            if delivery.position != UNWRITTEN or session.stored is None:
                continue
            delivery.position = position
            queue = session.stored
            chunk = self._add(session, queue, delivery, size, now)
            if queue.unloaded:  # It is in memory, and behind some that are not.
                queue.unloaded += 1
                queue.ahead.add(position)
            if delivery.packet_id:
                chunk.sent = position
                if delivery.qos == 2:
                    changes.deliveries[session.key, position] = delivery
            count += 1
        for session, delivery in entry.left:
            left = session.stored
            if left is None:
                continue
            left.pending -= 1
            if delivery.position != UNWRITTEN:
                continue
            delivery.position = position
            self._add(session, left, delivery, size, now)
            if not left.unloaded:
                left.cursor = position
            left.unloaded += 1
            self._behind[session] = None
            count += 1
        if not count:
            return 0, 0
        changes.messages.append(message)
        return count, size

    def _add(self, session: Session, queue: StoredQueue, delivery: Delivery, size: int, now: float) -> Chunk:
        flags = delivery.qos | delivery.retain * RETAIN_BIT | delivery.is_again * AGAIN_BIT
        identifiers, group = delivery.subscription_identifiers, delivery.group
        chunk = queue.add(delivery.position, 1, flags, identifiers, group, size, now)
        self.changes.chunks[session.key, chunk.number] = chunk
        return chunk

    def _put_run(
        self, session: Session, deliveries: list[Delivery], position: int, now: float
    ) -> tuple[int, int]:
        """The same for deliveries of one session in a row, at QoS 1 and on their way to it."""
        waiting = [each for each in deliveries if each.position == UNWRITTEN]
        if not waiting or session.stored is None:
            return 0, 0
        size = 0
        for number, delivery in enumerate(waiting, position):
            delivery.position = number
            size += delivery.size
        count = len(waiting)
        at = position
        while at < position + count:
            part = min(position + count - at, MAX_SPAN - 1)
            chunk = session.stored.add(at, part, 1, (), None, size * part // count, now)
            at += part
            chunk.sent = at - 1
            self.changes.chunks[session.key, chunk.number] = chunk
        self.changes.messages += [each.message for each in waiting]
        return count, size

    def _take_unneeded(self) -> None:
        """Segments that nobody needs: removed when what says so is stored."""
        newest = self._segments[-1] if self._segments else None
        if newest and not newest.references and (newest.bytes >= self._segment_bytes or self.is_full):
            self._unneeded[newest] = None
        for segment in self._unneeded:
            at = self._segments.index(segment)
            is_last = at + 1 == len(self._segments)
            self.changes.removed.append(
                (segment.first, self.next_position if is_last else self._segments[at + 1].first)
            )
            del self._segments[at]
            self._is_appending = self._is_appending and not is_last
            self.log_bytes -= segment.bytes
        self._unneeded.clear()
        self._needed = None

    # Packets that may have to wait

    def acknowledge(
        self, connection: Channel, data: bytes, must_wait: bool, count: int = 1, is_of_messages: bool = True
    ) -> None:
        """Send acknowledgements of one kind, never before an earlier one that waits (MQTT-4.6.0-2).

        `is_of_messages`: they wait until the log has room for these.
        """
        self._stats.packets_sent += count
        if not (must_wait or connection.held_acknowledgements):
            connection.send(data)
            return
        connection.held_acknowledgements += count
        connection.held_publications += count * (data[0] in FINISHING)
        self._held.append(Held(connection, data, count, None, self._entries_made if is_of_messages else 0))
        if connection.held_acknowledgements >= MAX_HELD_ACKNOWLEDGEMENTS:
            connection.pause(Pause.HELD)

    def send_exactly_once(
        self, connection: Channel, session: Session, data: bytes, delivery: Delivery | None = None
    ) -> None:
        """Send a QoS 2 PUBLISH or PUBREL, when the state that it tells of is stored."""
        if session.durable:
            connection.held_packets += 1
            is_unwritten = delivery is not None and delivery.position == UNWRITTEN
            self._held.append(Held(connection, data, 0, None, self._entries_made if is_unwritten else 0))
        else:
            connection.send(data)

    def hold_back(self, connection: Channel, clock: Callable[[], float]) -> None:
        """Nothing leaves for this client until all that changed is stored: as if it did not read."""
        connection.set_congested(True, clock())
        self._held.append(Held(None, b"", 0, lambda: connection.set_congested(False, clock()), 0))

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Call it when all that changed so far is stored; at once when it is, or nothing ever is."""
        if self.is_behind:
            self._held.append(Held(None, b"", 0, callback, self._entries_made))
        else:
            callback()

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call it when the batch that is being written is stored, before the next is taken."""
        assert self._committing is not None
        self._committing.append(Held(None, b"", 0, callback, 0))

    # What changed

    def store_session(self, session: Session) -> None:
        if session.durable:
            if session.stored is None:
                session.stored = StoredQueue()
            self.changes.sessions[session.key] = session.record()
            self.change_count += 1

    def discard_session(self, session: Session) -> None:
        """What hangs on the session goes with it."""
        if session.durable:
            session.durable = False
            queue, session.stored = session.stored, None
            for chunk in queue.chunks if queue is not None else ():
                if chunk.group is None:  # Another member is to get it: see `session_end`.
                    self.release(chunk)
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

    # What waits for a session

    def store_delivery(self, session: Session, delivery: Delivery) -> None:
        """The delivery is new, or its packet identifier or stage changed."""
        if session.stored is None:
            return
        self.change_count += 1
        if not delivery.position:
            delivery.position = UNWRITTEN
            self._entry(delivery.message).deliveries.append((session, delivery))
        elif delivery.position > 0 and delivery.qos == 2 and delivery.packet_id:
            self.changes.deliveries[session.key, delivery.position] = delivery

    def store_run(self, session: Session, deliveries: list[Delivery]) -> None:
        """New deliveries in a row, at QoS 1 and on their way: as `store_delivery` for each."""
        for delivery in deliveries:
            delivery.position = UNWRITTEN
        self.change_count += 1
        self._entries_made += len(deliveries)
        self._entries.append((session, deliveries))
        self._last_entry = None

    def leave(self, session: Session, delivery: Delivery) -> None:
        """The session is to read this from the log when it comes to it; nothing of it stays in memory."""
        queue = session.stored
        assert queue is not None
        self.change_count += 1
        queue.pending += 1
        delivery.position = UNWRITTEN
        self._entry(delivery.message).left.append((session, delivery))

    def unwritten(self, session: Session) -> list[Delivery]:
        """What was left for a session, and is not in the log yet."""
        return [
            delivery
            for entry in self._entries
            if isinstance(entry, Entry)
            for owner, delivery in entry.left
            if owner is session and delivery.position == UNWRITTEN
        ]

    def _entry(self, message: Message) -> Entry:
        """A place in the log for a message: one for all the sessions that it goes to, in a row."""
        entry = self._last_entry
        if entry is None or entry.message is not message:
            self._identify(message)
            entry = self._last_entry = Entry(message)
            self._entries.append(entry)
            self._entries_made += 1
        return entry

    def store_separately(self) -> None:
        """The next delivery may go to a session that has the same message already: a place of its own."""
        self._last_entry = None

    def finish_delivery(self, session: Session, delivery: Delivery) -> None:
        """Acknowledged, expired or given up: the store need not keep it."""
        position = delivery.position
        if not position:
            return
        self.change_count += 1
        delivery.position = FINISHED
        if position > 0:
            self._finish(session, position, 1)
            if delivery.qos == 2 and delivery.packet_id and session.stored is not None:
                self.changes.deliveries[session.key, position] = None

    def finish_run(self, session: Session, deliveries: list[Delivery]) -> None:
        """As `finish_delivery` for each, at QoS 1."""
        if session.stored is None:
            return
        self.change_count += 1
        first = count = 0
        for delivery in deliveries:
            position = delivery.position
            delivery.position = FINISHED
            if position <= 0:
                continue
            if position == first + count:
                count += 1
                continue
            if count:
                self._finish(session, first, count)
            first, count = position, 1
        if count:
            self._finish(session, first, count)

    def store_in_flight(self, sessions: Iterable[Session]) -> None:
        """The node ends as it should: what is in flight at QoS 1 keeps its packet identifiers, too."""
        for session in sessions:
            if session.stored is not None and session.outbox is not None:
                for delivery in session.outbox.in_flight.values():
                    if delivery.position in session.stored:
                        self.changes.deliveries[session.key, delivery.position] = delivery

    def forget_delivery(self, session: Session, position: int) -> None:
        """What the store had of one that is in no queue."""
        self.changes.deliveries[session.key, position] = None

    def restore_delivery(self, session: Session, position: int, qos: int) -> None:
        """It is in flight. At QoS 1 that was written as the last life ended, and is not kept up to date in
        the next."""
        if qos == 1:
            self.changes.deliveries[session.key, position] = None

    def give_up(self, session: Session, first: int, end: int) -> int:
        """The session goes without what it has there; how many of these were in the log alone."""
        queue = session.stored
        if queue is None or not queue.count:
            return 0
        before = queue.unloaded - len(queue.ahead)
        self._finish(session, first, end - first)
        self.change_count += 1
        return before - queue.unloaded + len(queue.ahead)

    def mark_sent(self, session: Session, chunk: Chunk, position: int) -> None:
        """What the chunk has up to there may reach the client from now on."""
        chunk.sent = max(chunk.sent, position)
        self.changes.chunks[session.key, chunk.number] = chunk

    def _finish(self, session: Session, first: int, count: int) -> None:
        queue = session.stored
        if queue is None:
            return
        for chunk, runs in queue.remove(first, count):
            self.changes.chunks[session.key, chunk.number] = chunk
            for run in runs:
                self._release(*run)

    # The log's segments

    @property
    def references(self) -> int:
        """How much waits in the log, for all sessions together."""
        return sum(segment.references for segment in self._segments)

    @property
    def oldest_segment(self) -> tuple[int, int] | None:
        """From where to where."""
        segments = self._segments
        if not segments:
            return None
        return segments[0].first, segments[1].first if len(segments) > 1 else self.next_position

    def restore_log(self, segments: Sequence[tuple[int, int]], next_position: int, now: float) -> None:
        """As it was found; `restore_chunk` says who needs what of it."""
        self.restored_at = now
        self.restored_position = next_position
        self._segments = [Segment(first, size) for first, size in segments]
        self.log_bytes = sum(size for _, size in segments)
        self.next_position = self.written_position = self._committing_position = next_position

    def restore_chunk(self, session: Session, chunk: Chunk) -> None:
        assert session.stored is not None
        chunk.began_at = chunk.at = self.restored_at
        session.stored.restore(chunk)
        for first, count in chunk.runs_from(0):
            self._change_references(first, count)

    def log_restored(self) -> None:
        """All that is needed has been said."""
        self._unneeded.update((segment, None) for segment in self._segments if not segment.references)

    def release(self, chunk: Chunk) -> None:
        """Of a session that is no more."""
        for first, count in chunk.runs_from(0):
            self._release(first, count)

    def _release(self, first: int, count: int) -> None:
        self._change_references(first, -count)

    def _change_references(self, first: int, count: int) -> None:
        """`count`: of positions in a row, negative where they are needed no longer."""
        segments = self._segments
        sign = 1 if count > 0 else -1
        left = abs(count)
        while left:
            segment, end = self._segment_of(first)
            part = min(left, end - first)
            segment.references += sign * part
            if not segment.references and sign < 0 and segment is not segments[-1]:
                self._unneeded[segment] = None
            first += part
            left -= part

    def _segment_of(self, position: int) -> tuple[Segment, int]:
        """And where it ends."""
        if self._needed is not None and self._needed[0].first <= position < self._needed[1]:
            return self._needed
        segments = self._segments
        at = bisect_right(segments, position, key=_first) - 1
        if at + 1 == len(segments):
            return segments[at], MAX_POSITION
        self._needed = segments[at], segments[at + 1].first
        return self._needed


def _first(segment: Segment) -> int:
    return segment.first
