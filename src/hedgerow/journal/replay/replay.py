"""One replay: a subscription that reads the journal from its own position on, and hands out what it finds.

It takes a slice of the journal when its client has read the one before and has room in its window: what waits
for a client is bounded however much the journal has, and whoever is live waits for one slice at most.
What it hands out at QoS 1 and 2 is a delivery of the session as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hedgerow.broker.access import Access
from hedgerow.broker.batch import Batch, encode_plain
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.broker.publishing import deliver_batch
from hedgerow.broker.recipients import Entry, Recipient
from hedgerow.broker.sending_runs import PLAIN_FORMS
from hedgerow.broker.session import Session, WireForm
from hedgerow.broker.unwritten import UNWRITTEN_BYTES
from hedgerow.journal.replay.pages import RETAIN, FrameRuns, Place
from hedgerow.message import Message, MessageId
from hedgerow.topics import matches

# Of what one replay hands out before others are heard: bytes, messages at QoS 1 and 2, and units of work of
# about half a microsecond. All others wait for one slice at most, so it is to take about 0.1 ms.
SLICE_BYTES: Final = 16 * 1024
SLICE_MESSAGES: Final = 64
SLICE_WORK: Final = 200
LOOK_WORK: Final = 1  # at a run
BATCH_WORK: Final = 2  # for a message at QoS 1 or 2, of which there are few
BYTES_PER_WORK: Final = 4_096  # that leave as they are
PER_WORK: Final = 4  # payloads that are cut out
MAX_TOPICS = 4_096  # of which it is remembered whether they are wanted


class Replay:
    def __init__(
        self, session: Session, record: SubscriptionRecord, topic_filter: str, position: int | None
    ) -> None:
        self.session = session
        self.name = record.subscription.topic_filter
        self.topic_filter = topic_filter
        self.position = position
        """Of the next message; None: it is being found."""
        self.place: Place | None = None
        self.is_in_line = False
        self.kept_at = 0.0
        """When the store was last told of the position,"""
        self.kept_position = position
        """which was this."""
        self.set_options(record)
        self._topics: dict[str, bool] = {}
        self._access: Access | None = None
        self._runs: FrameRuns | None = None
        self._wanted: dict[int, bool] = {}  # topics of that frame, by their number
        self._heads: dict[tuple[str, int], bytes] = {}  # of packets, by topic and size

    def set_options(self, record: SubscriptionRecord) -> None:
        subscription = record.subscription
        entry = Entry(self.session, self.topic_filter, subscription, record.subscription_identifier, ALWAYS)
        self.recipient = Recipient(self.session, [entry])
        self.qos = subscription.qos

    def is_ready(self, broker: BrokerCore) -> bool:
        """Has its client read what there was, and is there room for more?"""
        session = self.session
        connection = session.connection
        if connection is None or connection.congested or connection.out or connection.resending:
            return False
        if not self.qos:
            return True
        outbox, stored = session.outbox, session.stored
        if outbox is not None and (outbox.queue or outbox.is_full):
            return False
        return stored is None or not (stored.is_behind or broker.durability.room_at_once <= 0)

    def feed(self, broker: BrokerCore, place: Place) -> int:
        """Hand out a slice; how much of it is to be acknowledged."""
        out = _Slice(broker, self)
        most, outbox = SLICE_MESSAGES, self.session.outbox
        if outbox is not None:
            most = min(most, outbox.window - len(outbox.in_flight))
        # All of a slice is stored with the position behind it, or nothing.
        room = float(SLICE_BYTES) if self.session.stored is None else broker.durability.room_at_once
        while out.work < SLICE_WORK and out.bytes < SLICE_BYTES and (runs := place.runs) is not None:
            run, wants = place.run, self._wants_of(broker.access, runs)
            qos = min(runs.column("flags")[run] & 3, self.qos)
            if not (qos or place.shift) and out.is_plain and out.take_singles(runs, place, wants):
                continue
            count = runs.column("rows")[run] - place.shift
            out.work += LOOK_WORK
            if not wants(runs.column("topic")[run]):
                place.advance(count, runs.size(run, place.row, count))
                continue
            if qos:
                count, size = _rows_within(runs, place, min(count, most - out.acknowledged), room)
                if out.acknowledged and (not count or size > room):
                    break
                room -= size
                out.acknowledged += count
            else:
                count = min(count, _rows_for(runs, place, SLICE_BYTES - out.bytes))
            out.take(runs, place, count, qos)
        out.end()
        self.position = place.position
        return out.acknowledged

    def _wants_of(self, access: Access, runs: FrameRuns) -> Callable[[int], bool]:
        """Of a frame: whether the topic of this number is wanted."""
        if runs is not self._runs or access is not self._access:
            if access is not self._access or len(self._topics) > MAX_TOPICS:
                self._topics.clear()
            self._access, self._runs = access, runs
            self._wanted = {}
        return self._wants

    def _wants(self, number: int) -> bool:
        runs, access = self._runs, self._access
        assert runs is not None
        assert access is not None
        wanted = self._wanted.get(number)
        if wanted is None:
            topic = runs.texts[number]
            wanted = self._topics.get(topic)
            if wanted is None:
                wanted = matches(self.topic_filter, topic) and self.session.may_read(access, topic)
                self._topics[topic] = wanted
            self._wanted[number] = wanted
        return wanted

    def head(self, topic: str, after: bytes, size: int) -> bytes:
        """What stands before a payload of this size, of a packet at QoS 0."""
        key = topic, size
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= MAX_TOPICS:
                self._heads.clear()
            head = self._heads[key] = encode_plain(topic, (bytes(size),), after)[: -size or None]
        return head


class _Slice:
    """What one replay hands out in one turn, in order."""

    def __init__(self, broker: BrokerCore, replay: Replay) -> None:
        self.work = 0
        self.bytes = 0
        self.acknowledged = 0
        """How much of it is to be."""
        self._broker = broker
        self._replay = replay
        self._recipient = recipient = replay.recipient
        form = replay.session.wire_form
        self.is_plain = form in PLAIN_FORMS and not recipient.identifiers
        """Does its client take QoS 0 as others do?"""
        self._after = b"\0" if form == WireForm.MQTT_5 else b""
        self._chunks: list[bytes | memoryview] = []
        self._chunk_count = 0
        # Messages in a row that make a batch: what they have in common, and what each has.
        self._common: tuple[str, int, str, int] | None = None
        self._payloads: list[bytes] = []
        self._sequences: list[int] = []

    def take_singles(self, runs: FrameRuns, place: Place, wants: Callable[[int], bool]) -> bool:
        """Messages that are each a run, at QoS 0 and with nothing unusual, for as long as there are any: the
        same as below, at a fifth of the cost. False: there was none."""
        rows, topics, flags = runs.column("rows"), runs.column("topic"), runs.column("flags")
        properties, heads = runs.column("properties"), runs.column("head")
        lengths, payloads, texts = runs.lengths, runs.payloads, runs.texts
        chunks, head_of, after = self._chunks, self._replay.head, self._after
        highest, keeps_retain = self._recipient.qos, self._recipient.retain_as_published
        first = run = place.run
        row, offset = place.row, place.offset
        most = run + min(runs.frame.runs - run, SLICE_WORK - self.work)
        room = SLICE_BYTES - self.bytes
        count = 0
        while run < most and room > 0 and rows[run] == 1:
            begin = offset + heads[run]
            end = begin + lengths[row]
            number = topics[run]
            if wants(number):
                flag = flags[run]
                if (flag & 3 and highest) or properties[run] or (flag & RETAIN and keeps_retain):
                    break
                chunks += (head_of(texts[number], after, end - begin), payloads[begin:end])
                room -= end - begin
                count += 1
            run += 1
            row += 1
            offset = end
        if run == first:
            return False
        if count and self._payloads:
            self._end_batch()
        self._chunk_count += count
        self.bytes = SLICE_BYTES - room
        self.work += run - first
        place.skip_singles(run - first, offset)
        return True

    def take(self, runs: FrameRuns, place: Place, count: int, qos: int) -> None:
        run = place.run
        flags = runs.column("flags")[run]
        size = runs.size(run, place.row, count)
        self.bytes += size
        is_usual = not runs.column("properties")[run] and not (
            flags & RETAIN and self._recipient.retain_as_published
        )
        if is_usual and not qos and self.is_plain:
            self._take_plain(runs, place, count, size)
        elif is_usual and runs.column("origin")[run]:
            self._take_rows(runs, place, count, qos)
        else:
            self._take_messages(runs, place, count)
        place.advance(count, size)

    def _take_plain(self, runs: FrameRuns, place: Place, count: int, size: int) -> None:
        if self._payloads:
            self._end_batch()
        run, row, offset = place.run, place.row, place.offset
        topic = runs.texts[runs.column("topic")[run]]
        head_size = runs.column("head")[run]
        length = runs.lengths[row]
        head = self._replay.head(topic, self._after, length)
        payloads = runs.payloads
        if head_size == len(head) and payloads[offset : offset + head_size] == head:
            self._chunks.append(payloads[offset : offset + size])  # the very packets that came
            self.work += size // BYTES_PER_WORK
        elif count == 1:
            offset += head_size
            self._chunks += (head, payloads[offset : offset + length])
        else:
            cut = runs.cut(offset, head_size, row, count)
            self._chunks.append(encode_plain(topic, cut, self._after))
            self.work += count // PER_WORK
        self._chunk_count += count

    def _take_rows(self, runs: FrameRuns, place: Place, count: int, qos: int) -> None:
        if self._chunks:
            self._end_chunks()
        run = place.run
        message_id = runs.message_id(run, place.shift)
        assert message_id is not None
        common = runs.texts[runs.column("topic")[run]], qos, message_id.origin, message_id.epoch
        if common != self._common:
            self._end_batch()
            self._common = common
        self._payloads += runs.cut(place.offset, runs.column("head")[run], place.row, count)
        self._sequences += range(message_id.sequence, message_id.sequence + count)
        self.work += BATCH_WORK * count

    def _take_messages(self, runs: FrameRuns, place: Place, count: int) -> None:
        """With whatever they carry."""
        self.end()
        now = self._broker.now
        payloads = runs.cut(place.offset, runs.column("head")[place.run], place.row, count)
        for shift, payload in enumerate(payloads, place.shift):
            message = runs.message(place.run, shift, payload)
            self.work += BATCH_WORK
            if message.expires_at is None or message.expires_at > now:
                self._broker.identify_late(message)
                self._deliver(Batch.of_message(None, message))

    def end(self) -> None:
        self._end_chunks()
        self._end_batch()

    def _end_chunks(self) -> None:
        if self._chunks:
            connection = self._replay.session.connection
            if connection is not None:
                connection.send_at_most_once(b"".join(self._chunks), self._chunk_count)
            self._chunks, self._chunk_count = [], 0

    def _end_batch(self) -> None:
        if self._payloads:
            assert self._common is not None
            topic, qos, origin, epoch = self._common
            payloads, sequences = self._payloads, self._sequences
            self._payloads, self._sequences = [], []
            if len(payloads) == 1:
                message = Message(topic, payloads[0], qos, id=MessageId(origin, epoch, sequences[0]))
                self._deliver(Batch.of_message(None, message))
            else:
                self._deliver(Batch(topic, None, qos, payloads, len(payloads), origin, epoch, sequences))
        self._common = None

    def _deliver(self, batch: Batch) -> None:
        self._broker.durability.store_separately()
        deliver_batch(self._broker, self._recipient, batch)


def _rows_within(runs: FrameRuns, place: Place, most: int, room: float) -> tuple[int, float]:
    """How many messages of the run, one at least, take so many bytes of the log, and how many these are."""
    beside = len(runs.text("topic", place.run) or "") + UNWRITTEN_BYTES
    size = count = 0
    for length in runs.lengths[place.row : place.row + most]:
        if count and size + length + beside > room:
            break
        count += 1
        size += length + beside
    return count, size


def _rows_for(runs: FrameRuns, place: Place, room: int) -> int:
    """How many messages of the run are so many bytes, one at least."""
    lengths: Sequence[int] = runs.lengths
    each = lengths[place.row] + runs.column("head")[place.run]
    return max(1, room // max(1, each))
