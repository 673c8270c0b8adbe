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

The log has a bound. Where it is full publishers wait for their acknowledgements, and all else is stored as
before: what readers finish makes room. `shares.py` says who waits first, and `log_pressure.py` makes room
where that is not enough. What other brokers pass on has a reserve beyond the bound: else two that are full of
what they have for each other would wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from hedgerow.broker.changes import Changes, SubscriptionRecord
from hedgerow.broker.limits import LogBounds
from hedgerow.broker.needed import NeededLog, NeededSegment
from hedgerow.broker.observer import Observer
from hedgerow.broker.placing import Placing
from hedgerow.broker.session import Channel, Pause, Session
from hedgerow.broker.shares import RESERVE_PART, Lines, ShareRuling, Shares
from hedgerow.broker.stats import Stats
from hedgerow.broker.stored import Chunk, StoredQueue
from hedgerow.broker.unwritten import (
    FINISHED,
    RELAYED,
    UNWRITTEN,
    Unwritten,
    UnwrittenMessage,
    UnwrittenRow,
)
from hedgerow.duplicates import DuplicateLog, PageKey
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import PUBACK, PUBCOMP

ENTRUSTED = "links"  # The store keeps under this name which links have no share of the log to hold,
PUBLISHED = "log"  # and under this one whose publications the segments have.
MAX_HELD_ACKNOWLEDGEMENTS = 4_096  # Of one connection, before we stop reading from it.
FINISHING = (PUBACK << 4, PUBCOMP << 4)  # First bytes of what lets the client send one more (§4.9).
# Of messages in one batch, about: a disk that is nearly full has room for it (`node/log_room.py`).
MAX_BATCH_BYTES = 4 * 1024 * 1024
# What waits to be written to a log that takes nothing: beyond it publications are not taken, and beyond twice
# as much what nobody could be told of is dropped.
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
STUCK_S = 10.0  # A batch that takes so long may take for ever.
MANY_HELD = 1_024
LOOKED_AT = 8  # Of a batch, about so many say how soon all are acknowledged.


@dataclass(slots=True)  # Not frozen: each acknowledgement makes one, and it would cost three times as much.
class HeldBack:
    """What waits for a commit: packets of one kind, or something to be called."""

    connection: Channel | None
    data: bytes
    count: int
    """How many of the packets are acknowledgements."""
    callback: Callable[[], None] | None = None
    own: int = 0
    """Up to this number, messages that were published here must be in the log before, or needed no more;"""
    relayed: int = 0
    """and so those that other brokers passed on."""
    delivery: Delivery | None = None
    """This one must have its place in the log before."""
    publisher: str | None = None
    """Of what is called: whose messages those are that must be in the log; None: anybody's."""


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
        # Clients whose sessions have ended, and are stored still; those of the batch under way.
        self._ended: set[str] = set()
        self._ending: set[str] = set()
        self.next_position = 1  # of the log
        self.written_position = 1  # Below it all is written, and may be read.
        # What is below this waits since this life began: a clock may have been set between two lives.
        self.restored_position = 1
        self.restored_at = 0.0
        self.has_disk = True  # the shell's word: there is room for the log on the disk,
        self.disk_bytes = float("inf")  # and for so much in one batch
        self.needed = NeededLog(self.bounds.bytes)
        self.shares = Shares(self.needed, self.bounds.bytes)
        self._own, self._relayed = Unwritten(), Unwritten()  # published here, or passed on by other brokers
        self.lines = Lines()  # of the former, what others need not wait for
        self.publisher = ""  # What is published at this moment counts for this owner.
        self.is_relaying = False  # It came from another broker,
        self.publication = 0  # and the number of that; 0: nothing is.
        self.publications = 0
        # Of `changes.received`: whether another broker has it, and which messages must be written before.
        self._received_behind: dict[tuple[int, int], tuple[bool, int, str]] = {}
        # And of `changes.kept`, where it must not be stored without what was left for sessions before.
        self._kept_behind: dict[tuple[str, str], int] = {}
        self._entries_made = 0  # messages that were to be written, from the start
        self._unneeded_entries = 0  # about how many of those that are to be written nobody needs any more
        self._last_entry: UnwrittenMessage | None = None
        self._unsent = 0  # of what is to be written, what nobody can acknowledge before
        self._looked_at: list[UnwrittenMessage | UnwrittenRow] = []  # some of the batch under way
        # Had most of the last batch been acknowledged by everyone before it was stored? None: it had nothing.
        self.was_prompt: bool | None = None
        self._behind: dict[
            Session, None
        ] = {}  # those for whom the batch under way leaves something in the log
        self._held: list[HeldBack] = []  # in order
        self._held_looked_at = MANY_HELD
        self._has_paused = False
        self._committing: list[HeldBack] | None = None
        self._committing_since = 0.0
        self._committing_position = 1
        self._takes_all = False  # Does what is being committed leave nothing that came before?
        self._stored_until = 0.0
        self.failures: list[Exception] = []  # of what was called when it was committed

    @property
    def is_behind(self) -> bool:
        """Is there anything that is not stored yet?"""
        if self.has_unwritten or self.changes.must_precede or self._held or self._committing is not None:
            return True
        return any(observer.is_behind for observer in self._observers)

    @property
    def is_full(self) -> bool:
        """Has the log no room for messages?"""
        limit = self.bounds.bytes
        return not self.has_disk or (limit is not None and self.log_bytes >= limit)

    @property
    def is_reserve_full(self) -> bool:
        """Has it none for what other brokers pass on either?"""
        limit = self.bounds.bytes
        return not self.has_disk or (limit is not None and self.needed.relayed_bytes >= limit // RESERVE_PART)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._own.entries or self._relayed.entries or len(self.lines))

    def takes_publications(self, now: float, most_bytes: int = MAX_UNWRITTEN_BYTES) -> bool:
        """Not where too much waits in memory for a log that takes nothing."""
        if self._own.bytes + self._relayed.bytes + self.lines.bytes <= most_bytes:
            return True
        is_stuck = self._committing is not None and self._committing_since + STUCK_S < now
        return not (is_stuck or self.is_full)

    def takes_from(self, publisher: str | None) -> bool:
        """The same of one publisher: not where more of it waits than it leaves to others."""
        lines = self.lines
        if not lines.bytes or publisher is None or publisher not in lines:
            return True
        size = self._own.bytes + self._relayed.bytes + lines.bytes
        return lines.bytes_of(publisher) <= MAX_UNWRITTEN_BYTES - size

    @property
    def needs_room(self) -> bool:
        """Does something wait for room in the log, and none is about to be made?"""
        return self.has_unwritten and self.is_full and self._committing is None

    def find_waiting(self) -> set[str]:
        """Whose publications the log has no room for."""
        self._drop_unneeded()
        waiting: set[str] = set()
        if self.shares.is_full:
            self.lines.sort(self._own, ShareRuling(self.needed, self.shares.left))
        if not self.has_disk or self.shares.left <= 0:
            waiting = {each.publisher for each in self._own.entries}
        if self._relayed.entries and self.is_reserve_full:
            waiting.add(RELAYED)
        return waiting | self.lines.publishers

    # What the shell calls, through the broker

    def stored_until(self, now: float) -> float:
        """What came before this time is stored, if it has to be."""
        return self._stored_until if self.is_behind else now

    def take_changes(self, now: float) -> Changes | None:
        if self._committing is not None:
            return None
        if self.is_full and self.has_unwritten:
            self._drop_unneeded()
        taken = self._take_unwritten()
        if taken:
            self._looked_at = taken[:: 1 + len(taken) // LOOKED_AT]
            self._write_entries(taken, now)
        going: list[HeldBack] = self._held
        staying: list[HeldBack] = []
        later = Changes()
        if self.has_unwritten:
            going, staying = self._split_held()
            later = self._defer()
        else:
            self._received_behind.clear()
            self._kept_behind.clear()
        if not (going or self.changes.must_precede or self.changes.seen):
            self.changes.seen, self.changes.received = later.seen, later.received
            self.changes.kept |= later.kept
            return None
        self.changes.removed += self.needed.take_unneeded(self.next_position, self.is_full)
        self._keep_notes()
        changes, self.changes = self.changes, later
        # As of now: where a disk is full it is written again later, and what is seen meanwhile is the next
        # batch's. A message that is known after a crash, and whose deliveries are not, is lost.
        changes.seen = {page: None if bits is None else bytes(bits) for page, bits in changes.seen.items()}
        self._committing_position = self.next_position
        self._held = staying
        self._committing = going
        self._ending, self._ended = self._ended, set()
        self._committing_since = now
        self._takes_all = not self.has_unwritten
        return changes

    @property
    def is_on_its_way(self) -> bool:
        """Is nothing to be stored but messages at QoS 1 that have left for all who get them?

        Then it may be waited a moment for their acknowledgements: what all have acknowledged is not written.
        """
        return not (
            self._unsent
            or self._relayed.entries
            or len(self.lines)
            or self.changes.must_precede
            or self.changes.seen
            or self.is_full
        )

    def may_let_go(self) -> bool:
        """Has everyone acknowledged what something is held for? That need not be written any more."""
        if not self._held or self._committing is not None:
            return False
        if self._own.drop_first():
            self._last_entry = None
        return self._may_go(self._held[0])

    def take_finished(self, now: float) -> Changes | None:
        """As `take_changes`, while `is_on_its_way`: what everyone has acknowledged, which is not stored. All
        else stays."""
        if not self.may_let_go():
            return None
        count, own, relayed = 0, self._own.done, self._relayed.done
        for held in self._held:
            if held.own > own or held.relayed > relayed or held.delivery is not None:
                break
            count += 1
        if not count:
            return None
        self._committing, self._held = self._held[:count], self._held[count:]
        self._committing_since = now
        self._takes_all = False
        self._committing_position = self.next_position
        return Changes()

    def done_until(self, number: int) -> bool:
        """Is nothing up to this number (`last_number`) to be written any more?"""
        return self._own.done >= number and self.lines.has_passed(None, number)

    @property
    def last_number(self) -> int:
        """Of what was published here."""
        return self._own.last

    def _take_unwritten(self) -> list[UnwrittenMessage | UnwrittenRow]:
        """What the log has room for, in order."""
        own: list[UnwrittenMessage | UnwrittenRow] = []
        relayed: list[UnwrittenMessage | UnwrittenRow] = []
        if not self.has_unwritten:
            return own
        limit = self.bounds.bytes
        if not self.is_full:
            room = MAX_BATCH_BYTES if limit is None else min(MAX_BATCH_BYTES, limit - self.log_bytes)
            own = self._take_own(room, None)
        elif limit is not None and self.has_disk and (self._own.entries or len(self.lines)):
            self._drop_unneeded()
            left = self.shares.left
            # Those first that have waited: what they may have is found anew for each batch.
            admission = ShareRuling(self.needed, left)
            own = self._take_own(min(MAX_BATCH_BYTES, left), admission)
        else:
            self._drop_unneeded()
        if self._relayed.entries and not (self.is_full and self.is_reserve_full):
            relayed = self._relayed.take(MAX_BATCH_BYTES, self.disk_bytes - sum([each.size for each in own]))
        return list(merge(own, relayed, key=_number)) if own and relayed else own or relayed

    def _take_own(self, room: int, admission: ShareRuling | None) -> list[UnwrittenMessage | UnwrittenRow]:
        """`admission`: of those that are admitted alone."""
        if not len(self.lines) and admission is None:
            return self._own.take(room, self.disk_bytes)
        if room <= 0:
            return []
        taken = self.lines.take(room, self.disk_bytes, admission)
        if admission is not None:
            self.lines.sort(self._own, admission)
        elif len(self.lines):
            return taken  # What is behind it is the next batch's.
        size = sum([each.size for each in taken])
        if size < room:
            taken += self._own.take(room - size, self.disk_bytes - size)
        taken.sort(key=_number)
        return taken

    def _split_held(self) -> tuple[list[HeldBack], list[HeldBack]]:
        """What may go, and what stays."""
        going: list[HeldBack] = []
        staying: list[HeldBack] = []
        own, relayed, first = self._own.done, self._relayed.done, self.lines.first
        for held in self._held:
            stays = held.own > own or held.relayed > relayed or self._is_in_line(held, first)
            (staying if stays else going).append(held)
        return going, staying

    def _is_in_line(self, held: HeldBack, first: int) -> bool:
        """Does it wait for something that others need not wait for? `first`: the number of the first such."""
        if held.delivery is not None and held.delivery.position == UNWRITTEN:
            return True
        return held.own >= first and not self.lines.has_passed(_publisher_of(held), held.own)

    def _may_go(self, held: HeldBack) -> bool:
        if held.own > self._own.done or held.relayed > self._relayed.done:
            return False
        return not self._is_in_line(held, self.lines.first)

    def _defer(self) -> Changes:
        """What is known, and what a client's packet identifier means, must not survive without the
        message."""
        later, changes = Changes(), self.changes
        if self._relayed.entries:
            later.seen, changes.seen = changes.seen, {}
        received, behind = changes.received, self._received_behind
        changes.received, self._received_behind = {}, {}
        gone = {key for key, record in changes.sessions.items() if record is None}
        for place, each in received.items():
            is_relayed, number, publisher = behind.get(place, (False, 0, ""))
            if number <= (self._relayed if is_relayed else self._own).done and (
                is_relayed or self.lines.has_passed(publisher, number)
            ):
                changes.received[place] = each
            elif place[0] not in gone:
                later.received[place] = each
                self._received_behind[place] = is_relayed, number, publisher
        behind_own, self._kept_behind = self._kept_behind, {}
        for name, number in behind_own.items():
            if not self.done_until(number):
                later.kept[name] = changes.kept.pop(name)
                self._kept_behind[name] = number
        return later

    def _drop_unneeded(self) -> None:
        """Where the log is full: what was finished before it was written, and what was held for connections
        that are no more. Who could make room is heard."""
        self._last_entry = None
        for unwritten in self._own, self._relayed:
            unwritten.drop_first()
        self.lines.drop(everywhere=False)
        if self._unneeded_entries > (len(self._own.entries) + len(self._relayed.entries)) // 2:
            self._unneeded_entries = 0
            for unwritten in self._own, self._relayed:
                unwritten.drop_all()
            self.lines.drop(everywhere=True)
        if len(self._held) > self._held_looked_at:
            self._held = [
                held for held in self._held if held.connection is None or held.connection.is_connected
            ]
            self._held_looked_at = MANY_HELD + 2 * len(self._held)
        if self._has_paused:
            self._has_paused = False
            for held in self._held:
                if held.connection is not None and held.count:
                    held.connection.resume(Pause.HELD)

    def committed(self) -> list[Channel]:
        """All that was taken is durable: let go what was held. Connections to which more may go now."""
        committed, self._committing = self._committing or [], None
        self._ending = set()
        self.written_position = self._committing_position
        if self._takes_all:
            self._stored_until = self._committing_since
        looked_at, self._looked_at = self._looked_at, []
        self.was_prompt = None
        if looked_at:
            self.was_prompt = 4 * sum([each.is_finished for each in looked_at]) >= 3 * len(looked_at)
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

    def _write_entries(self, entries: list[UnwrittenMessage | UnwrittenRow], now: float) -> None:
        """Give what is still wanted its positions."""
        self._last_entry = None
        if not self.has_unwritten:
            self._unneeded_entries = self._unsent = 0
        first = self.next_position
        placing = Placing(self.changes, self._behind, now)
        placing.place(entries, first)
        count = len(self.changes.messages)
        if not count:
            return
        self.changes.at = now
        self.changes.first_position = first
        self.next_position = first + count
        self.changes.begins_segment |= self.needed.append(
            first,
            placing.size,
            placing.references,
            placing.holders,
            placing.published,
            placing.relayed,
            self.is_full,
        )

    def _keep_notes(self) -> None:
        """Who published what of the log."""
        notes, self.needed.notes = self.needed.notes, {}
        for first, note in notes.items():
            self.keep(PUBLISHED, first, note)

    # Packets that may have to wait

    def acknowledge(
        self,
        connection: Channel,
        data: bytes,
        must_wait: bool,
        count: int = 1,
        is_of_messages: bool = True,
        is_late: bool = False,
    ) -> None:
        """Send acknowledgements of one kind, never before an earlier one that waits (MQTT-4.6.0-2).

        `is_of_messages`: they wait until the log has room for these. `is_late`: others were published
        meanwhile.
        """
        self._stats.packets_sent += count
        if not (must_wait or connection.held_acknowledgements):
            connection.send(data)
            return
        connection.held_acknowledgements += count
        connection.held_publications += count * (data[0] in FINISHING)
        session = connection.session
        is_relayed = session is not None and session.gives_ids
        own = self._own.last if is_of_messages and (is_late or not is_relayed) else 0
        relayed = self._relayed.last if is_of_messages and (is_late or is_relayed) else 0
        self._held.append(HeldBack(connection, data, count, None, own, relayed))
        # Where the log is full, what a client has read makes room: then it has to be heard.
        if connection.held_acknowledgements >= MAX_HELD_ACKNOWLEDGEMENTS and not self.is_full:
            self._has_paused = True
            connection.pause(Pause.HELD)

    def hold(self, connection: Channel, data: bytes) -> None:
        """As `acknowledge`, of one publication at QoS 1 that must wait, where nothing of the connection waits
        yet, and that no other broker passed on."""
        self._stats.packets_sent += 1
        connection.held_acknowledgements = connection.held_publications = 1
        self._held.append(HeldBack(connection, data, 1, None, self._own.last))

    def send_exactly_once(
        self, connection: Channel, session: Session, data: bytes, delivery: Delivery | None = None
    ) -> None:
        """Send a QoS 2 PUBLISH or PUBREL, when the state that it tells of is stored."""
        if session.durable:
            connection.held_packets += 1
            self._held.append(HeldBack(connection, data, 0, delivery=delivery))
        else:
            connection.send(data)

    def hold_back(self, connection: Channel, clock: Callable[[], float]) -> None:
        """Nothing leaves for this client until all that changed is stored: as if it did not read."""
        connection.set_congested(True, clock())
        self._held.append(HeldBack(None, b"", 0, lambda: connection.set_congested(False, clock())))

    def has_ended(self, client_id: str) -> bool:
        """Would a crash bring back a session that this client had?"""
        return client_id in self._ended or client_id in self._ending

    def when_committed(self, callback: Callable[[], None], publisher: str | None = None) -> None:
        """Call it when all that changed so far is stored; at once when it is, or nothing ever is.

        `publisher`: whose messages are waited for, where others' have no room in the log; None: everybody's.
        """
        if self.is_behind:
            held = HeldBack(None, b"", 0, callback, self._own.last, self._relayed.last, None, publisher)
            self._held.append(held)
        else:
            callback()

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call it when the batch that is being written is stored, before the next is taken."""
        assert self._committing is not None
        self._committing.append(HeldBack(None, b"", 0, callback))

    # What changed

    def store_session(self, session: Session) -> None:
        if session.durable:
            if session.stored is None:
                session.stored = StoredQueue(session.owner or "")
            self.changes.sessions[session.key] = session.record()
            self.change_count += 1

    def entrust(self, session: Session, is_proven: bool) -> None:
        """Count what waits for this link for nobody, since it proved to be of this fabric; or for its owner
        again."""
        queue = session.stored
        owner = "" if is_proven else session.owner or ""
        if queue is None or queue.owner == owner:
            return
        for chunk in queue.chunks:
            for first, count in chunk.runs_from(0):
                self.needed.change(first, count, owner)
                self.needed.change(first, -count, queue.owner)
            chunk.owner = owner
        queue.owner = owner
        self.keep(ENTRUSTED, str(session.key), "" if is_proven else None)

    def discard_session(self, session: Session) -> None:
        """What hangs on the session goes with it."""
        if session.durable and session.role.is_link:
            self.keep(ENTRUSTED, str(session.key), None)
        if session.durable:
            session.durable = False
            queue, session.stored = session.stored, None
            for chunk in queue.chunks if queue is not None else ():
                if chunk.group is None:  # Another member is to get it: see `session_end`.
                    self.release(chunk)
            self.changes.sessions[session.key] = None
            self.change_count += 1
            self._ended.add(session.client_id)

    def store_subscription(
        self, session: Session, topic_filter: str, record: SubscriptionRecord | None
    ) -> None:
        if session.durable:
            self.changes.subscriptions[session.key, topic_filter] = record
            self.change_count += 1

    def store_received(self, session: Session, packet_id: int, received: bool) -> None:
        """A QoS 2 packet identifier of the client is in use, or free again."""
        if session.durable:
            place = session.key, packet_id
            self.changes.received[place] = received
            last = (self._relayed if session.gives_ids else self._own).last
            self._received_behind[place] = session.gives_ids, last, session.share or ""
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
            self._kept_behind.pop((part, key), None)
            self.change_count += 1

    def keep_behind(self, part: str, key: str, text: str) -> None:
        """As `keep`, and not before what the node has left for sessions so far: after a crash both are there,
        or neither."""
        if self.enabled:
            self.keep(part, key, text)
            self._kept_behind[part, key] = self._own.last

    @property
    def room_at_once(self) -> float:
        """How many bytes more, with all that waits, would be in the log with the next batch."""
        if self.is_full or len(self.lines):
            return 0
        limit = self.bounds.bytes
        room = MAX_BATCH_BYTES if limit is None else min(MAX_BATCH_BYTES, limit - self.log_bytes)
        return min(room, self.disk_bytes) - self._own.bytes

    # What waits for a session

    def store_delivery(self, session: Session, delivery: Delivery) -> None:
        """The delivery is new, or its packet identifier or stage changed."""
        if session.stored is None:
            return
        self.change_count += 1
        if not delivery.position:
            delivery.position = UNWRITTEN
            self._entry(delivery.message, delivery.size).deliveries.append((session, delivery))
            if delivery.qos == 2 or not delivery.packet_id:
                self._unsent += 1
        elif delivery.position > 0 and delivery.qos == 2 and delivery.packet_id:
            self.changes.deliveries[session.key, delivery.position] = delivery

    def store_run(self, session: Session, deliveries: list[Delivery]) -> None:
        """New deliveries in a row, at QoS 1 and on their way: as `store_delivery` for each."""
        for delivery in deliveries:
            delivery.position = UNWRITTEN
        self.change_count += 1
        self._row([each.message for each in deliveries]).on_their_way.append((session, deliveries))

    def _row(self, messages: Sequence[Message]) -> UnwrittenRow:
        """A place in the log for messages in a row: one for all sessions that they go to together."""
        entries = self._unwritten.entries
        row = entries[-1] if entries else None
        if not isinstance(row, UnwrittenRow) or not row.is_of(messages):
            row = UnwrittenRow(
                messages, self._entries_made + 1, RELAYED if self.is_relaying else self.publisher
            )
            self._unwritten.add(row)
            self._entries_made += len(messages)
            self._last_entry = None
        return row

    def leave(self, session: Session, delivery: Delivery) -> None:
        """The session is to read this from the log when it comes to it; nothing of it stays in memory."""
        queue = session.stored
        assert queue is not None
        self.change_count += 1
        queue.pending += 1
        self._unsent += 1
        delivery.position = UNWRITTEN
        self._entry(delivery.message, delivery.size).left.append((session, delivery))

    def leave_run(self, session: Session, messages: Sequence[Message]) -> None:
        """As `leave` for each, at QoS 1."""
        queue = session.stored
        assert queue is not None
        self.change_count += 1
        queue.pending += len(messages)
        self._unsent += 1
        self._row(messages).left[session] = None

    def unwritten_entries(self) -> Iterable[UnwrittenMessage | UnwrittenRow]:
        """What is not in the log yet, in order."""
        return merge(
            self._own.entries,
            self._relayed.entries,
            *[line.entries for line in self.lines],
            key=_number,
        )

    def unwritten(self, session: Session) -> list[Delivery]:
        """What was left for a session, and is not in the log yet."""
        return [
            delivery
            for entry in self.unwritten_entries()
            for delivery in entry.unwritten_for(session)
            if delivery.position == UNWRITTEN
        ]

    def _entry(self, message: Message, size: int) -> UnwrittenMessage:
        """A place in the log for a message: one for all the sessions that it goes to, in a row."""
        entry = self._last_entry
        if entry is None or entry.message is not message:
            self._identify(message)
            self._entries_made += 1
            entry = self._last_entry = UnwrittenMessage(
                message,
                size,
                self._entries_made,
                self.publication,
                RELAYED if self.is_relaying else self.publisher,
            )
            self._unwritten.add(entry)
        return entry

    @property
    def _unwritten(self) -> Unwritten:
        return self._relayed if self.is_relaying else self._own

    def store_separately(self) -> None:
        """The next delivery may go to a session that has the same message already: a place of its own."""
        self._last_entry = None

    def finish_delivery(self, session: Session, delivery: Delivery, is_acknowledged: bool = False) -> None:
        """Acknowledged, expired or given up: the store need not keep it."""
        position = delivery.position
        if not position:
            return
        self.change_count += 1
        delivery.position = FINISHED
        if position == UNWRITTEN:
            self._unneeded_entries += 1
            if (
                not is_acknowledged
            ):  # Another may get it instead, and has to have it before it is answered for.
                self._unsent += 1
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
                self._unneeded_entries += position == UNWRITTEN
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
        if self.needed.segments:
            self.needed.note_publishers(self.needed.segments[-1])
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
            for first, length in runs:
                self.needed.change(first, -length, chunk.owner)

    # The log's segments

    @property
    def segments(self) -> list[NeededSegment]:
        return self.needed.segments

    @property
    def log_bytes(self) -> int:
        """About, of all segments."""
        return self.needed.bytes

    @property
    def references(self) -> int:
        """How much waits in the log, for all sessions together."""
        return self.needed.references

    def restore_log(
        self,
        segments: Sequence[tuple[int, int]],
        next_position: int,
        now: float,
        kept: Mapping[tuple[str, str], str],
    ) -> None:
        """As it was found; `restore_chunk` says who needs what of it."""
        self.restored_at = now
        self.restored_position = next_position
        self.needed.restore(segments, {key: text for (part, key), text in kept.items() if part == PUBLISHED})
        self.next_position = self.written_position = self._committing_position = next_position

    def restore_chunk(self, session: Session, chunk: Chunk) -> None:
        assert session.stored is not None
        chunk.began_at = chunk.at = self.restored_at
        session.stored.restore(chunk)
        for first, count in chunk.runs_from(0):
            self.needed.change(first, count, chunk.owner)

    def log_restored(self) -> None:
        """All that is needed has been said."""
        self.needed.restored(self.next_position)

    def release(self, chunk: Chunk) -> None:
        """Of a session that is no more."""
        for first, count in chunk.runs_from(0):
            self.needed.change(first, -count, chunk.owner)


def _publisher_of(held: HeldBack) -> str | None:
    connection = held.connection
    if connection is None or connection.session is None:
        return held.publisher
    return connection.session.owner or connection.session.share or ""


_number = attrgetter("number")
