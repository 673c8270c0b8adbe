"""One direction and the other of what two brokers write to each other: each once and in order, for ever.

There are two *planes*, as in the document: the process plane has what the brokers agree on, the content plane
events. Each has numbers and a queue of its own. What is written to the process plane is sent at once. Of the
content plane no more than `window_bytes` are under way at a time, a quarter where these take long to arrive,
and the rest waits: so a delegation never waits for the events of a full queue. What is written says how far
the other plane was (`other`), and how far the other side's other plane had been handled
(`other_acknowledged`). The process plane may be ahead of the content plane, never behind it: an event is read
after all that was agreed before it was written.

The connection below may be cut silently, and its session may be lost at either end. So what is written is
numbered and kept until the other side has handled it. On each new connection both say HELLO: which stream
this is (epoch), the number of the connection, and what was received of the other's planes; what is missing is
sent again. A publication counts only on the connection for which it was sent, so one that a session kept
meanwhile and brings late is ignored.

Two things make an acknowledgement say more than "received":
- It is written into a publication when that is made and not changed when it is sent again, and it is heeded
  together with that publication, in the order of its plane. So who sees n acknowledged knows that all that
  came before was made before n was handled, and all that comes after it was made afterwards.
- What is acknowledged has been handled, and whatever the other side wrote because of it stands before the
  acknowledgement.

Events that nobody waits for (QoS 0) are acknowledged a few at a time, and a little later.

What the process plane says of events that were received (`other_acknowledged`) only lets more of them be
sent: else two sides, each with a full window, would wait for the other.

Settled is more than acknowledged: none of the other side's clients waits for it any more. Until then a record
is kept here (`held`), to be done otherwise should the other side be lost. A side holds back what is not
settled by `hold` and `release`; what it does not hold is settled when it is acknowledged. It is written into
a publication as the acknowledgement is: what is handed back to this side comes before it is settled.

Who has lost its stream says another epoch; then both begin at 1, with what `begin_anew` is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hedgerow.message import Message
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.limits import (
    ACKNOWLEDGE_AFTER_S,
    ACKNOWLEDGE_EVERY,
    LEAST_WINDOW_BYTES,
    MAX_EPOCH,
    MAX_WAITING_BYTES,
    OWNER_WAITING,
    RECORD_BYTES,
    SLOW_S,
    SMALL_EVENT_BYTES,
    DelegationLimits,
)
from hedgerow.mobility.delegation.publications import (
    ACKNOWLEDGEMENTS,
    CONTENT,
    OF_GUESTS,
    AddressChanges,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    HelloBody,
    PublicationKind,
    Registrations,
    Roaming,
    StreamHeader,
)

MAX_TOLD_DONE = 64  # Each is in the packet.
AROUND_A_PAYLOAD = 1_024  # the header of a PUBLISH, and the topic
AROUND_AN_EVENT = 2 * AROUND_A_PAYLOAD  # its own header, id and a few callbacks too


@dataclass(slots=True)
class Record:
    """What was written and is not settled."""

    number: int
    acknowledged: int
    settled: int
    kind: PublicationKind
    body: Body
    size: int
    other: int = 0
    """How far the other plane was when it was put."""
    other_acknowledged: int = 0
    is_sent: bool = False
    """At least once: the other side may have handled it."""
    done: frozenset[str] = frozenset()
    """Callbacks that this side has notified of the event in it. Many records share one."""

    @property
    def event(self) -> EventBody:
        assert isinstance(self.body, EventBody)
        return self.body


class Counts(Protocol):
    ignored: int
    expired: int
    overflowed: int


@dataclass(slots=True)
class Waiting:
    """What waits in several streams, whose other sides are of one owner."""

    bytes: int = 0


class Plane:
    """One of the two, in both directions."""

    __slots__ = (
        "held",
        "holding",
        "number",
        "owes_acknowledgement",
        "receipts_before",
        "received",
        "records",
    )

    def __init__(self) -> None:
        self.number = 0
        self.received = 0
        self.records: deque[Record] = deque()
        """Not acknowledged."""
        self.held: deque[Record] = deque()
        """Acknowledged, and not settled."""
        self.holding: dict[int, int] = {}
        """Numbers of the other side's that are not settled here, the lowest first: how many wait for each."""
        self.receipts_before = 0
        """What numbers are counted from in receipts: those of a stream that has ended do not come again."""
        self.owes_acknowledgement = False

    @property
    def handled(self) -> int:
        """How much the other side has handled."""
        return self.records[0].number - 1 if self.records else self.number

    @property
    def settled(self) -> int:
        return next(iter(self.holding)) - 1 if self.holding else self.received

    @property
    def kept(self) -> list[Record]:
        """What is not settled, in order."""
        return [*self.held, *self.records]

    def begin_anew(self) -> list[Record]:
        left = self.kept
        self.receipts_before += self.received
        self.records.clear()
        self.held.clear()
        self.holding.clear()
        self.received = self.number = 0
        return left


class Stream:
    """`together`: with what else its bytes are bounded."""

    def __init__(
        self,
        domain: str,
        broker_id: str,
        epoch: int,
        counts: Counts,
        limits: DelegationLimits | None = None,
        together: Waiting | None = None,
    ) -> None:
        if not 0 < epoch <= MAX_EPOCH:
            raise ValueError(f"an epoch of {epoch} is not within 1 to {MAX_EPOCH}")
        self.epoch = epoch
        self.link = 0
        self.peer_epoch = 0
        self.peer_link = 0
        self.process = Plane()
        self.content = Plane()
        self.lives = 0
        """How often it began anew: numbers of another life mean nothing."""
        self._waiting_bytes = 0
        self._together = together or Waiting()
        self.is_up = False
        self.is_open = False
        """Both have said HELLO on this connection."""
        self.ahead: Callable[[], None] | None = None
        """Puts what was saved up to be one publication, ahead of whatever is put or taken next."""
        self.domain = domain
        self._broker_id = broker_id
        self._counts = counts
        self._limits = limits or DelegationLimits()
        self._max_bytes = 0
        self._out: list[Message] = []
        self._sent = 0  # of the content plane, on this connection
        self._under_way: deque[tuple[int, int, float]] = deque()
        """Of that, number, size and time of what may not be there."""
        self._under_way_bytes = 0
        self._window = self._least_window
        self._quickest_s = float("inf")  # that an event took to be acknowledged, on this connection
        self._shrunk_at = 0  # how much was sent when the window shrank last
        self._acknowledge_at = 0.0  # if that is owed for events
        self._acknowledged = 0  # of the other side's events
        self._now = 0.0

    @property
    def _least_window(self) -> int:
        return min(LEAST_WINDOW_BYTES, self._limits.window_bytes)

    @property
    def records(self) -> list[Record]:
        """Not acknowledged, of both planes."""
        return [*self.process.records, *self.content.records]

    @property
    def held(self) -> deque[Record]:
        return self.content.held

    @property
    def waiting(self) -> int:
        return len(self.process.records) + len(self.content.records) + len(self.content.held)

    def has_room(self, message: Message) -> bool:
        size = message.size + RECORD_BYTES
        is_too_large = self._max_bytes and message.size + AROUND_AN_EVENT > self._max_bytes
        if message.size > self._limits.event_bytes or is_too_large:
            return False  # Refused by the other side, it would be the last that is read of the stream.
        has_room = self._together.bytes + size <= OWNER_WAITING * MAX_WAITING_BYTES
        return (
            has_room
            and self.waiting < self._limits.waiting
            and self.waiting_bytes + size <= MAX_WAITING_BYTES
        )

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @waiting_bytes.setter
    def waiting_bytes(self, size: int) -> None:
        self._together.bytes += size - self._waiting_bytes
        self._waiting_bytes = size

    @property
    def is_full(self) -> bool:
        return self.waiting >= self._limits.waiting or self.waiting_bytes >= MAX_WAITING_BYTES

    @property
    def is_overfull(self) -> bool:
        """More waits than events alone can be: the other side acknowledges nothing, or is away for long."""
        if self._together.bytes > 2 * OWNER_WAITING * MAX_WAITING_BYTES:
            return True
        return self.waiting > 2 * self._limits.waiting or self.waiting_bytes > 2 * MAX_WAITING_BYTES

    def link_up(self, max_bytes: int = 0) -> None:
        """There is a new connection, and nothing was received on it yet. `max_bytes`: the largest packet that
        the other side takes; 0: any."""
        self._max_bytes = max_bytes
        self.link_down()
        self.link += 1
        self.is_up = True
        hello = HelloBody(self.peer_epoch, self.process.received, self.content.received)
        header = StreamHeader(self.epoch, 0, self.link, self.process.number, 0)
        self._write(PublicationKind.HELLO, header, hello)

    def link_down(self) -> None:
        self.is_up = self.is_open = False
        self.process.owes_acknowledgement = self.content.owes_acknowledgement = False
        self._out.clear()

    def _planes(self, kind: PublicationKind) -> tuple[Plane, Plane]:
        """That of this kind, and the other."""
        return (self.content, self.process) if kind in CONTENT else (self.process, self.content)

    def put(self, kind: PublicationKind, body: Body, now: float) -> Record:
        self._put_ahead()
        plane, other = self._planes(kind)
        plane.number += 1
        self._now = now
        size = _size(body)
        record = Record(
            plane.number, plane.received, plane.settled, kind, body, size, other.number, other.received
        )
        plane.records.append(record)
        self.waiting_bytes += size
        if self.is_open and plane is self.process:
            self._send(record, now)
        elif self.is_open:
            self._send_content()
        return record

    def _put_ahead(self) -> None:
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead()

    def _send_content(self) -> None:
        """As much as may be under way."""
        content = self.content
        while self._sent < content.number:
            if self._under_way and self._under_way_bytes >= self._window:
                return
            record = content.records[self._sent + 1 - content.records[0].number]
            self._sent = record.number
            self._under_way.append((record.number, record.size, self._now))
            self._under_way_bytes += record.size
            self._send(record, self._now)

    def _arrived(self, number: int) -> None:
        """The other side has this much of the content plane."""
        arrived, sent_at = 0, self._now
        while self._under_way and self._under_way[0][0] <= number:
            _, size, sent_at = self._under_way.popleft()
            arrived += size
        self._under_way_bytes -= arrived
        if arrived:
            self._adapt(arrived, self._now - sent_at, number)
        if self.is_open:
            self._send_content()

    def _adapt(self, arrived: int, took_s: float, number: int) -> None:
        """The window: a quick link is to be full of events, and in front of a slow one few are to wait."""
        self._quickest_s = min(self._quickest_s, took_s)
        if took_s <= self._quickest_s + SLOW_S:
            self._window = min(self._window + arrived, self._limits.window_bytes)
        elif number > self._shrunk_at:  # Those that were sent before it shrank say nothing new.
            self._window, self._shrunk_at = max(self._window // 2, self._least_window), self._sent

    def receive_hello(self, header: StreamHeader, hello: HelloBody, now: float) -> bool | None:
        """True: the other side or this one is new to the other, and `begin_anew` is to be called. None: it is
        no HELLO of this connection."""
        if not self.is_up or self.is_open or (header.epoch, header.link) <= (self.peer_epoch, self.peer_link):
            self._counts.ignored += 1
            return None
        content = self.content
        is_new = header.epoch != self.peer_epoch or hello.known_epoch != self.epoch
        if not is_new and not content.handled <= hello.content_received <= content.number:
            self._counts.ignored += 1  # It has what was never written, or has lost what it had handled.
            return None
        self.peer_epoch, self.peer_link = header.epoch, header.link
        self.is_open, self._now = True, now
        # The last acknowledgement may have been lost, and HELLO is none: it is not in order.
        self.process.owes_acknowledgement = content.owes_acknowledgement = not is_new
        self._acknowledge_at, self._acknowledged = 0.0, content.received
        self._under_way.clear()
        self._under_way_bytes, self._sent = 0, hello.content_received
        self._window, self._quickest_s, self._shrunk_at = self._least_window, float("inf"), 0
        if not is_new:
            for record in self.process.records:
                if record.number > hello.received:
                    self._send(record, now)
            self._send_content()
        return is_new

    def begin_anew(self) -> list[Record]:
        """From 1 on. What was not acknowledged is given back; nothing of it is in the stream any more."""
        self.lives += 1
        left = [*self.process.begin_anew(), *self.content.begin_anew()]
        self._under_way.clear()
        self._under_way_bytes = self._sent = self.waiting_bytes = 0
        return left

    def start_over(self, epoch: int) -> None:
        """As another stream, when there is a connection again. Of what waits, events are kept, and what
        clients of the other side have asked for."""
        self.epoch = epoch
        process = self.process
        process.records = deque(record for record in process.records if record.kind in OF_GUESTS)
        self.waiting_bytes = sum(record.size for record in self.kept)

    def accept(self, kind: PublicationKind, header: StreamHeader, body: Body, now: float) -> bool:
        """Is it the next one of its plane? Then it is to be handled, now, and `acknowledged` to be called
        after that."""
        self._now = max(self._now, now)
        is_current = self.is_open and header[:3] == (self.peer_epoch, self.epoch, self.link)
        plane, other = self._planes(kind)
        expected = plane.received + (kind not in ACKNOWLEDGEMENTS)
        is_known = header.acknowledged <= self._written(plane)
        is_known = is_known and header.other_acknowledged <= self._written(other)
        # An event is never before what was agreed when it was written.
        is_in_order = plane is self.process or header.other <= other.received
        if not is_current or header.number != expected or not is_known or not is_in_order:
            self._counts.ignored += 1
            return False
        if kind not in ACKNOWLEDGEMENTS:
            plane.received = header.number
            if plane is self.content:
                self._owe(now + ACKNOWLEDGE_AFTER_S if _may_wait(body) else 0.0)
            plane.owes_acknowledgement = True
        return True

    def _owe(self, acknowledge_at: float = 0.0) -> None:
        """For events, by then."""
        if self.content.owes_acknowledgement:
            acknowledge_at = min(acknowledge_at, self._acknowledge_at)
        self.content.owes_acknowledgement, self._acknowledge_at = True, acknowledge_at

    @property
    def deadline(self) -> float:
        """When there is an acknowledgement to be written."""
        is_owed = self.is_open and self.content.owes_acknowledgement
        return self._acknowledge_at if is_owed else float("inf")

    def _written(self, plane: Plane) -> int:
        """How much the other side may have."""
        return plane.number if plane is self.process else self._sent

    @property
    def kept(self) -> list[Record]:
        """What is not settled, in the order of each plane."""
        return [*self.process.kept, *self.content.kept]

    def acknowledged(self, kind: PublicationKind, header: StreamHeader) -> list[Record]:
        """What the other side is done with, and is kept no longer."""
        plane, _ = self._planes(kind)
        while plane.records and plane.records[0].number <= header.acknowledged:
            plane.held.append(plane.records.popleft())
        settled = []
        while plane.held and plane.held[0].number <= header.settled:
            record = plane.held.popleft()
            self.waiting_bytes -= record.size
            settled.append(record)
        self._arrived(header.other_acknowledged if plane is self.process else header.acknowledged)
        return settled

    def hold(self) -> int:
        """One more waits here for what was received last. The receipt is for `release`."""
        content = self.content
        content.holding[content.received] = content.holding.get(content.received, 0) + 1
        if len(content.holding) > self._limits.held:
            # A client that never acknowledges must not keep the other side from forgetting for ever.
            del content.holding[next(iter(content.holding))]
            self._owe()
        return content.receipts_before + content.received

    def release(self, receipt: int) -> None:
        """One of those waits no more."""
        content = self.content
        number = receipt - content.receipts_before
        waiting = content.holding.get(number)
        if waiting is None:
            return
        if waiting > 1:
            content.holding[number] = waiting - 1
            return
        is_first = next(iter(content.holding)) == number
        del content.holding[number]
        if is_first:
            self._owe()

    def take_publications(self, now: float = float("inf")) -> list[Message]:
        self._put_ahead()
        if self.is_open:
            self._acknowledge(now)
        out, self._out = self._out, []
        return out

    def _acknowledge(self, now: float) -> None:
        process, content = self.process, self.content
        is_behind = self._sent < content.number
        is_due = self._acknowledge_at <= now or content.received - self._acknowledged >= ACKNOWLEDGE_EVERY
        owes_for_events = content.owes_acknowledgement and is_due
        if owes_for_events and not is_behind:
            self._acknowledged = content.received
            header = self._header(content, content.number, content.received, content.settled, process)
            self._write(PublicationKind.EVENTS_ACKNOWLEDGE, header, EmptyBody())
        if process.owes_acknowledgement or (owes_for_events and is_behind):
            header = self._header(process, process.number, process.received, process.settled, content)
            self._write(PublicationKind.ACKNOWLEDGE, header, EmptyBody())
        process.owes_acknowledgement = False
        content.owes_acknowledgement = content.owes_acknowledgement and (is_behind or not is_due)
        if content.owes_acknowledgement and is_due:
            self._acknowledge_at = now + ACKNOWLEDGE_AFTER_S

    def _header(
        self, plane: Plane, number: int, acknowledged: int, settled: int, other: Plane
    ) -> StreamHeader:
        return StreamHeader(
            self.epoch,
            self.peer_epoch,
            self.peer_link,
            number,
            acknowledged,
            settled,
            other.number,
            other.received,
        )

    def _send(self, record: Record, now: float) -> None:
        record.is_sent = True
        kind, body = record.kind, record.body
        if isinstance(body, EventBody) and (expires_at := body.message.expires_at) is not None:
            if expires_at <= now:
                # Its number is used all the same: streams have no gaps.
                kind, body = PublicationKind.NOTHING, EmptyBody()
                self._counts.expired += 1
            else:
                body = body._replace(message=_with_remaining_interval(body.message, now))
        if isinstance(body, EventBody) and 0 < len(record.done) <= MAX_TOLD_DONE:
            # It has waited for a link: who had it here may be elsewhere by now.
            body = body._replace(served=tuple({*body.served, *record.done}))
        header = StreamHeader(
            self.epoch,
            self.peer_epoch,
            self.peer_link,
            record.number,
            record.acknowledged,
            record.settled,
            record.other,
            record.other_acknowledged,
        )
        publication = codec.write(self.domain, self._broker_id, kind, header, body)
        is_too_large = self._max_bytes and publication.size > self._max_bytes - AROUND_A_PAYLOAD
        if is_too_large and isinstance(body, EventBody):
            # It was put when the limit was not known, or has callbacks without end. The other side would
            # close, and be sent it again first thing on the next connection.
            nothing = PublicationKind.NOTHING
            publication = codec.write(self.domain, self._broker_id, nothing, header, EmptyBody())
            self._counts.overflowed += 1
        self._out.append(publication)
        plane, _ = self._planes(record.kind)
        if record.acknowledged == plane.received and record.settled == plane.settled:
            plane.owes_acknowledgement = False
            if plane is self.content:
                self._acknowledged = plane.received

    def _write(self, kind: PublicationKind, header: StreamHeader, body: Body) -> None:
        self._out.append(codec.write(self.domain, self._broker_id, kind, header, body))


def _may_wait(body: Body) -> bool:
    if not isinstance(body, EventBody) or body.is_missed:
        return False
    return not body.message.qos and body.message.size <= SMALL_EVENT_BYTES


def _size(body: Body) -> int:
    match body:
        case EventBody():
            return RECORD_BYTES + body.message.size
        case Registrations():
            return RECORD_BYTES + sum(
                RECORD_BYTES * (1 + len(each.entries) + len(each.members)) + len(each.topic_filter)
                for each in body.topics
            )
        case AddressChanges():
            return RECORD_BYTES * (1 + len(body.added) + len(body.removed))
        case Filters():
            return RECORD_BYTES * (1 + len(body.topic_filters)) + sum(map(len, body.topic_filters))
        case Roaming():
            filters = (each.topic_filter for each in body.subscriptions)
            return RECORD_BYTES * (1 + len(body.subscriptions) + len(body.had)) + sum(map(len, filters))
    return RECORD_BYTES


def _with_remaining_interval(message: Message, now: float) -> Message:
    interval = message.remaining_interval(now)
    return Message(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        {**message.properties, "message_expiry_interval": interval},
        message.id,
    )
