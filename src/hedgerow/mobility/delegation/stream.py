"""One direction and the other of what two brokers write to each other: each once and in order, for ever.

The connection below may be cut silently, and its session may be lost at either end. So what is written is
numbered and kept until the other side has handled it. On each new connection both say HELLO: which stream
this is (epoch), the number of the connection, and what was received of the other's stream; what is missing is
sent again. A publication counts only on the connection for which it was sent, so one that a session kept
meanwhile and brings late is ignored.

Two things make an acknowledgement say more than "received":
- It is written into a publication when that is made and not changed when it is sent again, and it is heeded
  together with that publication, in order. So who sees n acknowledged knows that all that came before was
  made before n was handled, and all that comes after it was made afterwards.
- What is acknowledged has been handled, and whatever the other side wrote because of it stands before the
  acknowledgement.

Settled is more than acknowledged: none of the other side's clients waits for it any more. Until then a record
is kept here (`held`), to be done otherwise should the other side be lost. A side holds back what is not
settled by `hold` and `release`; what it does not hold is settled when it is acknowledged. It is written into
a publication as the acknowledgement is: what is handed back to this side comes before it is settled.

Who has lost its stream says another epoch; then both begin at 1, with what `begin_anew` is given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from hedgerow.message import Message
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.limits import (
    MAX_EPOCH,
    MAX_WAITING_BYTES,
    OWNER_WAITING,
    RECORD_BYTES,
    DelegationLimits,
)
from hedgerow.mobility.delegation.publications import (
    OF_GUESTS,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    HelloBody,
    PublicationKind,
    Registrations,
    StreamHeader,
)

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
        self.received = 0
        self.number = 0
        self.lives = 0
        """How often it began anew: numbers of another life mean nothing."""
        self.records: deque[Record] = deque()
        """Not acknowledged."""
        self.held: deque[Record] = deque()
        """Acknowledged, and not settled."""
        self.holding: dict[int, int] = {}
        """Numbers of the other side's that are not settled here, the lowest first: how many wait for each."""
        self.receipts_before = 0
        """What numbers are counted from in receipts: those of a stream that has ended do not come again."""
        self._waiting_bytes = 0
        self._together = together or Waiting()
        self.is_up = False
        self.is_open = False
        """Both have said HELLO on this connection."""
        self._domain = domain
        self._broker_id = broker_id
        self._counts = counts
        self._limits = limits or DelegationLimits()
        self._max_bytes = 0
        self._out: list[Message] = []
        self._owes_acknowledgement = False

    def has_room(self, message: Message) -> bool:
        size = message.size + RECORD_BYTES
        is_too_large = self._max_bytes and message.size + AROUND_AN_EVENT > self._max_bytes
        if message.size > self._limits.event_bytes or is_too_large:
            return False  # Refused by the other side, it would be the last that is read of the stream.
        waiting = len(self.records) + len(self.held)
        has_room = self._together.bytes + size <= OWNER_WAITING * MAX_WAITING_BYTES
        return has_room and waiting < self._limits.waiting and self.waiting_bytes + size <= MAX_WAITING_BYTES

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @waiting_bytes.setter
    def waiting_bytes(self, size: int) -> None:
        self._together.bytes += size - self._waiting_bytes
        self._waiting_bytes = size

    @property
    def is_full(self) -> bool:
        waiting = len(self.records) + len(self.held)
        return waiting >= self._limits.waiting or self.waiting_bytes >= MAX_WAITING_BYTES

    @property
    def is_overfull(self) -> bool:
        """More waits than events alone can be: the other side acknowledges nothing, or is away for long."""
        waiting = len(self.records) + len(self.held)
        if self._together.bytes > 2 * OWNER_WAITING * MAX_WAITING_BYTES:
            return True
        return waiting > 2 * self._limits.waiting or self.waiting_bytes > 2 * MAX_WAITING_BYTES

    def link_up(self, max_bytes: int = 0) -> None:
        """There is a new connection, and nothing was received on it yet. `max_bytes`: the largest packet that
        the other side takes; 0: any."""
        self._max_bytes = max_bytes
        self.link_down()
        self.link += 1
        self.is_up = True
        hello = HelloBody(self.peer_epoch, self.received)
        self._write(PublicationKind.HELLO, StreamHeader(self.epoch, 0, self.link, self.number, 0), hello)

    def link_down(self) -> None:
        self.is_up = self.is_open = self._owes_acknowledgement = False
        self._out.clear()

    def put(self, kind: PublicationKind, body: Body, now: float) -> Record:
        self.number += 1
        size = _size(body)
        record = Record(self.number, self.received, self._settled, kind, body, size)
        self.records.append(record)
        self.waiting_bytes += size
        if self.is_open:
            self._send(record, now)
        return record

    def receive_hello(self, header: StreamHeader, hello: HelloBody, now: float) -> bool | None:
        """True: the other side or this one is new to the other, and `begin_anew` is to be called. None: it is
        no HELLO of this connection."""
        if not self.is_up or self.is_open or (header.epoch, header.link) <= (self.peer_epoch, self.peer_link):
            self._counts.ignored += 1
            return None
        is_new = header.epoch != self.peer_epoch or hello.known_epoch != self.epoch
        self.peer_epoch, self.peer_link = header.epoch, header.link
        self.is_open = True
        # The last acknowledgement may have been lost, and HELLO is none: it is not in order.
        self._owes_acknowledgement = not is_new
        if not is_new:
            for record in self.records:
                if record.number > hello.received:
                    self._send(record, now)
        return is_new

    def begin_anew(self) -> list[Record]:
        """From 1 on. What was not acknowledged is given back; nothing of it is in the stream any more."""
        left = self.kept
        self.lives += 1
        self.receipts_before += self.received
        self.records.clear()
        self.held.clear()
        self.holding.clear()
        self.received = self.number = self.waiting_bytes = 0
        return left

    def start_over(self, epoch: int) -> None:
        """As another stream, when there is a connection again. Of what waits, events are kept, and what
        clients of the other side have asked for."""
        self.epoch = epoch
        kinds = {PublicationKind.EVENT, PublicationKind.NOTIFY, *OF_GUESTS}
        self.records = deque(record for record in self.records if record.kind in kinds)
        self.waiting_bytes = sum(record.size for record in self.kept)

    def accept(self, kind: PublicationKind, header: StreamHeader) -> bool:
        """Is it the next one? Then it is to be handled, now, and `acknowledged` to be called after that."""
        is_current = self.is_open and header[:3] == (self.peer_epoch, self.epoch, self.link)
        expected = self.received + (kind != PublicationKind.ACKNOWLEDGE)
        if not is_current or header.number != expected or header.acknowledged > self.number:
            self._counts.ignored += 1
            return False
        if kind != PublicationKind.ACKNOWLEDGE:
            self.received = header.number
            self._owes_acknowledgement = True
        return True

    @property
    def kept(self) -> list[Record]:
        """What is not settled, in order."""
        return [*self.held, *self.records]

    def acknowledged(self, header: StreamHeader) -> list[Record]:
        """What the other side is done with, and is kept no longer."""
        while self.records and self.records[0].number <= header.acknowledged:
            self.held.append(self.records.popleft())
        settled = []
        while self.held and self.held[0].number <= header.settled:
            record = self.held.popleft()
            self.waiting_bytes -= record.size
            settled.append(record)
        return settled

    def hold(self) -> int:
        """One more waits here for what was received last. The receipt is for `release`."""
        self.holding[self.received] = self.holding.get(self.received, 0) + 1
        if len(self.holding) > self._limits.held:
            # A client that never acknowledges must not keep the other side from forgetting for ever.
            del self.holding[next(iter(self.holding))]
            self._owes_acknowledgement = True
        return self.receipts_before + self.received

    def release(self, receipt: int) -> None:
        """One of those waits no more."""
        number = receipt - self.receipts_before
        waiting = self.holding.get(number)
        if waiting is None:
            return
        if waiting > 1:
            self.holding[number] = waiting - 1
            return
        is_first = next(iter(self.holding)) == number
        del self.holding[number]
        self._owes_acknowledgement |= is_first

    @property
    def _settled(self) -> int:
        return next(iter(self.holding)) - 1 if self.holding else self.received

    def take_publications(self) -> list[Message]:
        if self._owes_acknowledgement and self.is_open:
            self._write(
                PublicationKind.ACKNOWLEDGE,
                self._header(self.number, self.received, self._settled),
                EmptyBody(),
            )
            self._owes_acknowledgement = False
        out, self._out = self._out, []
        return out

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
        header = self._header(record.number, record.acknowledged, record.settled)
        publication = codec.write(self._domain, self._broker_id, kind, header, body)
        is_too_large = self._max_bytes and publication.size > self._max_bytes - AROUND_A_PAYLOAD
        if is_too_large and isinstance(body, EventBody):
            # It was put when the limit was not known, or has callbacks without end. The other side would
            # close, and be sent it again first thing on the next connection.
            nothing = PublicationKind.NOTHING
            publication = codec.write(self._domain, self._broker_id, nothing, header, EmptyBody())
            self._counts.overflowed += 1
        self._out.append(publication)
        if record.acknowledged == self.received and record.settled == self._settled:
            self._owes_acknowledgement = False

    def _header(self, number: int, acknowledged: int, settled: int) -> StreamHeader:
        return StreamHeader(self.epoch, self.peer_epoch, self.peer_link, number, acknowledged, settled)

    def _write(self, kind: PublicationKind, header: StreamHeader, body: Body) -> None:
        self._out.append(codec.write(self._domain, self._broker_id, kind, header, body))


def _size(body: Body) -> int:
    match body:
        case EventBody():
            return RECORD_BYTES + body.message.size
        case Registrations():
            return RECORD_BYTES + sum(
                RECORD_BYTES * (1 + len(entries)) + len(topic_filter) for topic_filter, entries in body.topics
            )
        case Filters():
            return RECORD_BYTES * (1 + len(body.topic_filters)) + sum(map(len, body.topic_filters))
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
