"""What a member listens to: topics, streams of other members, and what is given to the application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId, Properties
from hedgerow.multicast import frame
from hedgerow.multicast.acknowledging import Acknowledger
from hedgerow.multicast.frame import (
    AGE,
    ANY_AGE,
    BATCH,
    FOREIGN,
    FRAGMENT,
    HELD,
    MAX_RANGES,
    PROPERTIES,
    QOS_SHIFT,
    RETAIN,
    SENDER_BYTES,
    TIME,
    FrameError,
    FrameKind,
    Gone,
    RepairRequest,
)
from hedgerow.multicast.groups import topic_crc
from hedgerow.multicast.incoming import (
    FRAME_BYTES,
    MAX_MISSING,
    VOID,
    Arrived,
    IncomingStream,
    Listening,
    SendingMember,
)
from hedgerow.multicast.limits import (
    GONE_AFTER_S,
    MAX_PUBLISHERS,
    MAX_REPAIRS,
    MAX_SENDERS,
    MAX_STREAMS,
    REPAIR_AGAIN_S,
    REPAIR_AT_LATEST_S,
    REPAIR_AT_MOST_S,
    REPAIR_SLACK_S,
    REPAIR_SUPPRESSIONS,
    REPAIR_TRIES,
    REPAIR_UNHEARD_S,
    REPAIR_WITHIN_S,
    WINDOW_FRAME_BYTES,
    MulticastLimits,
)
from hedgerow.multicast.random import Random
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter
from hedgerow.multicast.values import LastValue, LastValues
from hedgerow.topics import TopicTree, is_wildcard

_NO_PROPERTIES: Properties = {}
_IN_CONTENT = FOREIGN | TIME | PROPERTIES | RETAIN | HELD  # A message with more to it than its payload.
_NOT_IN_BATCH = _IN_CONTENT | FRAGMENT
_MAX_SHARE = 2  # One stream may use this part of what may wait.
_DUPLICATES_BYTES = 8 * 1024 * 1024
MAX_MISSED_TOPICS = 1_024  # between two looks at them
_CONTENT_BYTES = 65_536  # A message's properties and id, beside its payload.


class Subscriber:
    def __init__(
        self,
        limits: MulticastLimits,
        transmitter: Transmitter,
        timers: Timers,
        values: LastValues,
        stats: MulticastStats,
        random: Random,
    ) -> None:
        self.filters: dict[str, int] = {}
        self.listening: dict[str, Listening] = {}
        self.memberships: list[tuple[str, bool]] = []
        self.messages: list[Message] = []
        self.held: list[Message] = []
        self.senders: dict[bytes, SendingMember] = {}
        self.on_value: Callable[[str], None] = lambda topic: None
        """Somebody told a last value that is as new as ours."""
        self.missed: Counter[tuple[str, str]] = Counter()
        """Messages, by topic and origin, that will not come."""
        self.acknowledger = Acknowledger(limits, transmitter, timers, stats, random, self.senders)
        self.is_paused = False
        """The application takes nothing at present."""
        self.waiting_bytes = 0
        self.stream_count = 0
        self._limits = limits
        self._transmitter = transmitter
        self._timers = timers
        self._values = values
        self._stats = stats
        self._random = random
        self._tree: TopicTree[str, float] = TopicTree()  # filters, and since when
        self._acknowledged: Counter[str] = Counter()  # filters at QoS 1 and 2
        self._by_crc: dict[int, list[Listening]] = {}
        self._assembling: dict[
            IncomingStream, None
        ] = {}  # those with messages in pieces, in the order of beginning
        self._duplicates = DuplicateLog(_DUPLICATES_BYTES)
        self._relayed_origins: set[str] = set()

    # Topics

    def subscribe(self, topic_filter: str, qos: int, now: float) -> None:
        count = self.filters.get(topic_filter, 0)
        self.filters[topic_filter] = count + 1
        self._acknowledged[topic_filter] += qos > 0
        if not count:
            self._tree.set(topic_filter, topic_filter, now)
            if not is_wildcard(topic_filter):
                self.listen(topic_filter, now, is_exact=True)
        if qos:
            self._see_who_acknowledges(topic_filter, now)

    def unsubscribe(self, topic_filter: str, qos: int, now: float) -> None:
        count = self.filters.get(topic_filter, 0)
        if not count:
            return
        self._acknowledged[topic_filter] -= qos > 0
        if count > 1:
            self.filters[topic_filter] = count - 1
        else:
            del self.filters[topic_filter]
            del self._acknowledged[topic_filter]
            self._tree.remove(topic_filter, topic_filter)
            if topic_filter in self.listening:
                self.listening[topic_filter].is_exact = False
            for topic in [each for each in self.listening if not self.wants(each)]:
                self.cease(topic, now)
        if qos:
            self._see_who_acknowledges(topic_filter, now)

    def _see_who_acknowledges(self, topic_filter: str, now: float) -> None:
        """A filter at QoS 1 or 2 has come, or is gone."""
        own = self.listening.get(topic_filter)
        exact = [] if own is None else [own]
        for listening in list(self.listening.values()) if is_wildcard(topic_filter) else exact:
            before = listening.is_acknowledged
            listening.is_acknowledged = self._is_acknowledged(listening.topic)
            if listening.is_acknowledged is before:
                continue
            for sender in self.senders.values():
                stream = sender.streams.get(listening.topic)
                if stream is not None and before:
                    self.acknowledger.cease(stream, now)
                elif stream is not None and stream.is_settled:
                    self.acknowledger.begin(stream, now)

    def _is_acknowledged(self, topic: str) -> bool:
        return any(self._acknowledged[topic_filter] for topic_filter, _ in self._tree.match(topic))

    def wants(self, topic: str) -> bool:
        return bool(self._tree.match(topic))

    def listen(self, topic: str, now: float, is_exact: bool = False) -> Listening | None:
        """Join a topic's group. None when wildcards have joined as many as they may."""
        listening = self.listening.get(topic)
        if listening is None:
            if not is_exact and len(self.listening) >= self._limits.groups:
                self._stats.dropped += 1
                return None
            # Whoever subscribed to "a/#" did so to this topic too, though nobody knew of it then.
            since = min((since for _, since in self._tree.match(topic)), default=now)
            listening = Listening(topic, topic_crc(topic), is_exact, since, now)
            listening.is_acknowledged = self._is_acknowledged(topic)
            self.listening[topic] = listening
            self._by_crc.setdefault(listening.crc, []).append(listening)
            self.memberships.append((topic, True))
        listening.is_exact |= is_exact
        return listening

    def cease(self, topic: str, now: float) -> None:
        listening = self.listening.pop(topic)
        same_crc = self._by_crc[listening.crc]
        same_crc.remove(listening)
        if not same_crc:
            del self._by_crc[listening.crc]
        self.memberships.append((topic, False))
        for sender in self.senders.values():
            if topic in sender.streams:
                self.acknowledger.cease(sender.streams[topic], now)
            self._forget_stream(sender, topic)

    # Senders

    def meet(self, sender_id: bytes, now: float) -> SendingMember:
        sender = self.senders.get(sender_id)
        if sender is None:
            if len(self.senders) >= MAX_SENDERS:
                self._forget_senders()
            sender = self.senders[sender_id] = SendingMember(sender_id, now)
            sender.relayed = sender.origin in self._relayed_origins
        return sender

    def _forget_senders(self) -> None:
        """Those not heard for longest; many at once, so that a flood of names costs little each."""
        by_age = sorted(self.senders.values(), key=lambda sender: sender.heard_at)
        for sender in by_age[: MAX_SENDERS // 4]:
            for topic in list(sender.streams):
                self._forget_stream(sender, topic)
            del self.senders[sender.id]

    def multicast_at(self, sender_id: bytes) -> float:
        sender = self.senders.get(sender_id)
        return float("-inf") if sender is None else sender.multicast_at

    def _stream(self, sender: SendingMember, listening: Listening) -> IncomingStream | None:
        stream = sender.streams.get(listening.topic)
        if stream is None:
            if self.stream_count >= MAX_STREAMS:
                self._stats.dropped += 1
                return None
            self.stream_count += 1
            stream = sender.streams[listening.topic] = IncomingStream(sender, listening)
            if len(listening.publishers) < MAX_PUBLISHERS:
                listening.publishers.add(sender.id)  # Its announcement may have been lost.
        return stream

    def _forget_stream(self, sender: SendingMember, topic: str) -> None:
        stream = sender.forget(topic)
        if stream is not None:
            self.stream_count -= 1
            self._drop_pieces(stream)
            self.waiting_bytes -= stream.bytes
            stream.ask_at = None

    # Frames

    def receive_data(
        self,
        sender: SendingMember,
        listening: Listening,
        flags: int,
        stream_sequence: int,
        message_sequence: int,
        body: bytes,
        now: float,
    ) -> None:
        listening.heard_at = now
        stream = self._stream(sender, listening)
        if stream is None:
            return
        if not stream_sequence:
            if flags & (FRAGMENT | AGE):
                raise FrameError(f"flags {flags:#x} outside of a stream")
            if message_sequence <= stream.floor or not stream.window.accepts(message_sequence):
                self._stats.duplicates += 1
                return
            self._give(stream, flags, message_sequence, body, now)
            return
        if flags & AGE:
            age_s, body = frame.parse_age(body)
            flags &= ~AGE
            self._note_answer(stream, stream_sequence, now)
            if now - age_s < stream.since:
                flags, body = VOID, b""  # Somebody else asked for it, who was here before us.
        if stream_sequence == stream.expected and not stream.waiting:
            # The common case: nothing is missing.
            self._know_of(stream, stream_sequence, now)
            if not stream.is_settled:
                self._settle(stream, now)
            stream.expected += 1
            self.acknowledger.give(stream, len(body) + WINDOW_FRAME_BYTES)
            self._give_in_order(stream, Arrived(flags, message_sequence, body), now)
            if stream.expected <= stream.highest:
                stream.tries = 0
                self._expect_repair(stream, now)
            return
        self._know_of(stream, stream_sequence, now)
        before = stream.bytes
        if not stream.put(stream_sequence, Arrived(flags, message_sequence, body)):
            self._stats.duplicates += 1
            return
        self.waiting_bytes += stream.bytes - before
        self._advance(stream, now)
        if self._is_over(stream) and stream_sequence in stream.waiting:
            # It can be had again. The gap before it stays one that is asked for: nothing is given up.
            self.waiting_bytes -= stream.take_out(stream_sequence)
            self._stats.dropped += 1

    def receive_heartbeat(
        self, sender: SendingMember, listening: Listening, last: int, oldest: int, now: float
    ) -> None:
        listening.heard_at = now
        stream = self._stream(sender, listening)
        if stream is None or not 0 < oldest <= last + 1:
            return
        self._know_of(stream, last, now)
        if oldest > stream.expected and stream.acknowledged is None:
            # Whoever acknowledges asks, and is told how many messages are gone.
            self._skip(stream, oldest, now)
        self._advance(stream, now)

    def receive_gone(self, sender: SendingMember, listening: Listening, gone: Gone, now: float) -> None:
        stream = sender.streams.get(listening.topic)
        if stream is None or gone.member not in (frame.EVERYONE, self._transmitter.sender):
            return
        if gone.last > stream.highest:
            return
        self._skip(stream, gone.last + 1, now, gone.messages)
        self._advance(stream, now)

    def receive_leave(self, sender: SendingMember, now: float) -> None:
        """Nobody will repair its streams any more."""
        for topic, stream in list(sender.streams.items()):
            for sequence in sorted(stream.waiting):
                self._skip(stream, sequence, now)
                self._drain(stream, now)
            self._skip(stream, stream.highest + 1, now)
            self._forget_stream(sender, topic)

    def forget_silent(self, silent_since: float) -> None:
        """Members that went without a word leave nothing behind but what they said last."""
        for sender in self.senders.values():
            if sender.streams and sender.heard_at < silent_since:
                for topic in list(sender.streams):
                    self._forget_stream(sender, topic)

    def _know_of(self, stream: IncomingStream, sequence: int, now: float) -> None:
        """A frame or a heartbeat says that the stream has come so far."""
        if sequence > stream.highest:
            stream.highest = sequence
            if sequence - MAX_MISSING > stream.expected:
                self._pass_over(stream, sequence - MAX_MISSING, 0)

    def _settle(self, stream: IncomingStream, now: float) -> None:
        stream.is_settled = True
        self.acknowledger.begin(stream, now)

    def _skip(self, stream: IncomingStream, sequence: int, now: float, messages: int = 0) -> None:
        """What is before this will not come: so many messages, if that is known."""
        self._pass_over(stream, sequence, messages)
        if not stream.is_settled:
            self._settle(stream, now)

    def _pass_over(self, stream: IncomingStream, sequence: int, messages: int) -> None:
        if sequence <= stream.expected:
            return
        self._drop_pieces(stream)
        before = stream.bytes
        lost = min(stream.skip_to(sequence), MAX_MISSING)
        self.waiting_bytes += stream.bytes - before
        if not stream.is_settled:
            lost = 0  # It may be from before we came. What is not, the sender knows.
        self._stats.lost += lost
        missed = messages or lost
        self._stats.missed += missed
        if missed and len(self.missed) < MAX_MISSED_TOPICS:
            self.missed[stream.listening.topic, stream.sender.origin] += missed
        self.acknowledger.give(stream, 0)

    def _advance(self, stream: IncomingStream, now: float) -> None:
        """Give on what is next in order; see to what is missing."""
        self._drain(stream, now)
        if stream.has_gap:
            self._expect_repair(stream, now)

    def _is_over(self, stream: IncomingStream) -> bool:
        limit = self._limits.waiting_bytes
        return self.waiting_bytes > limit or stream.bytes > limit // _MAX_SHARE

    def _drain(self, stream: IncomingStream, now: float) -> None:
        while (arrived := stream.take()) is not None:
            self.waiting_bytes -= len(arrived.body) + FRAME_BYTES
            if not stream.is_settled:
                stream.expected -= 1
                self._settle(stream, now)
                stream.expected += 1
            self.acknowledger.give(stream, len(arrived.body) + WINDOW_FRAME_BYTES)
            stream.stuck_at = now
            self._give_in_order(stream, arrived, now)

    def _give_up(self, stream: IncomingStream, now: float) -> None:
        """The first gap stays one."""
        self._skip(stream, min(stream.waiting, default=stream.highest + 1), now)
        self._drain(stream, now)

    # Repair

    def _expect_repair(self, stream: IncomingStream, now: float) -> None:
        again_s = REPAIR_AGAIN_S * (1 + self._random.random())
        within_s = max(REPAIR_WITHIN_S, min(0.001 * len(self.senders), REPAIR_AT_MOST_S))
        if stream.ask_at is None:
            stream.gap_at = now if stream.is_settled else stream.since
            stream.stuck_at = now
            self._ask_later(stream, now + within_s * self._random.random())
        elif stream.expected > stream.asked_to and stream.ask_at > now + within_s:
            # All that one request brings has come: ask for more.
            self._ask_later(stream, now + within_s * self._random.random())
        elif stream.ask_at > now + 2 * REPAIR_AGAIN_S and not stream.tries:
            self._ask_later(stream, now + again_s)  # It goes on: no need to wait as long as for the dead.

    def _note_answer(self, stream: IncomingStream, sequence: int, now: float) -> None:
        """Others may have asked for it too, so that the longest counts, and is forgotten slowly."""
        sender = stream.sender
        if stream.expected <= sequence <= stream.asked_to and sequence not in stream.waiting:
            took_s = min(now - stream.asked_at, REPAIR_AT_LATEST_S)
            sender.answer_s = max(took_s, 0.9 * sender.answer_s)

    def _ask_later(self, stream: IncomingStream, at: float) -> None:
        stream.ask_at = at
        self._timers.at(at, lambda now: self._ask(stream, at, now))

    def _ask(self, stream: IncomingStream, planned_at: float, now: float) -> None:
        if stream.ask_at != planned_at:
            return
        stream.ask_at = None
        if not stream.has_gap:
            return
        if self.is_paused:  # The answer would not be read either.
            self._ask_later(stream, now + REPAIR_UNHEARD_S)
            return
        # A try counts when it could have been heard. Who is away is waited for, while it keeps what it sent.
        is_heard = stream.sender.heard_at > stream.asked_at
        stream.tries += is_heard
        # A sender that waits for us keeps what we lack: if it does not, it says so.
        is_hopeless = stream.tries > REPAIR_TRIES and stream.acknowledged is None
        if is_hopeless or stream.stuck_at < now - self._limits.history_s - REPAIR_SLACK_S:
            self._give_up(stream, now)
            self._advance(stream, now)
            return
        newer_than_ms = ANY_AGE
        if not stream.is_settled:
            newer_than_ms = min(int((now - stream.since) * 1000) + 1, ANY_AGE)
        missing = stream.missing(MAX_RANGES)
        # No more than there is room for: what does not fit is asked for all over again.
        count = min(MAX_REPAIRS, self.acknowledger.window_bytes // self._limits.datagram_bytes)
        repair = RepairRequest(stream.sender.id, newer_than_ms, _first_of(missing, count))
        stream.asked_to = _last_of(missing, count)
        crc = stream.listening.crc
        self._transmitter.send_to_all(FrameKind.REPAIR, frame.pack_repair(repair), crc=crc)
        self._stats.repairs_requested += 1
        wait_s = REPAIR_UNHEARD_S
        if is_heard:
            tries = min(max(stream.tries - 1, 0), REPAIR_TRIES)
            wait_s = max(min(REPAIR_AGAIN_S * 2**tries, 1.0), 1.5 * stream.sender.answer_s)
        stream.asked_at = now
        stream.suppressed = 0
        self._ask_later(stream, now + wait_s * (0.75 + 0.5 * self._random.random()))

    def hear_repair(self, repair: RepairRequest, crc: int, now: float) -> None:
        """Another member asks: if it is for what we miss too, we need not."""
        sender = self.senders.get(repair.sender)
        if sender is None:
            return
        for listening in self._by_crc.get(crc, ()):
            stream = sender.streams.get(listening.topic)
            if stream is None or stream.ask_at is None or not stream.has_gap:
                continue
            if stream.suppressed >= REPAIR_SUPPRESSIONS:
                continue
            if repair.newer_than_ms < (now - stream.gap_at + REPAIR_AGAIN_S) * 1000:
                continue
            missing = stream.missing(MAX_RANGES)
            if _covers(repair.ranges, missing):
                stream.suppressed += 1
                stream.asked_to = _last_of(missing, MAX_REPAIRS)
                self._stats.repairs_suppressed += 1
                self._ask_later(stream, now + REPAIR_AGAIN_S * (1 + self._random.random()))

    # To the application

    def _give_in_order(self, stream: IncomingStream, arrived: Arrived, now: float) -> None:
        """A frame whose turn it is. A wrong one does not stop those behind it."""
        try:
            if arrived.flags == VOID or arrived.message_sequence <= stream.floor:
                self._stats.duplicates += 1
            elif arrived.flags & FRAGMENT:
                self._give_piece(stream, arrived, now)
            else:
                self._give(stream, arrived.flags, arrived.message_sequence, arrived.body, now)
        except FrameError:
            self._stats.malformed += 1

    def _give_piece(self, stream: IncomingStream, arrived: Arrived, now: float) -> None:
        if arrived.flags & BATCH:
            raise FrameError("a batch in pieces")
        index, count, piece = frame.parse_fragment(arrived.body)
        before = len(stream.pieces)
        if before + len(piece) > self._limits.payload_bytes + _CONTENT_BYTES:
            self._drop_pieces(stream)
            self._stats.too_large += 1
            return
        content = stream.add_piece(index, count, piece, arrived.message_sequence)
        self.waiting_bytes += len(stream.pieces) - before
        if content is not None:
            self._assembling.pop(stream, None)
            self._give(stream, arrived.flags & ~FRAGMENT, arrived.message_sequence, content, now)
        elif not stream.pieces:
            self._assembling.pop(stream, None)
            self._stats.fragments_discarded += 1
        else:
            self._assembling[stream] = None
            while self.waiting_bytes > self._limits.waiting_bytes and self._assembling:
                # The longest begun: what never completes goes before what is just coming.
                self._drop_pieces(next(iter(self._assembling)))
                self._stats.fragments_discarded += 1

    def _drop_pieces(self, stream: IncomingStream) -> None:
        self.waiting_bytes -= len(stream.pieces)
        stream.drop_pieces()
        self._assembling.pop(stream, None)

    def _give(
        self, stream: IncomingStream, flags: int, message_sequence: int, content: bytes, now: float
    ) -> None:
        topic, sender = stream.listening.topic, stream.sender
        stream.delivered_sequence = max(stream.delivered_sequence, message_sequence)
        origin = sender.origin
        if flags & BATCH:
            if flags & _NOT_IN_BATCH:
                raise FrameError(f"flags {flags:#x} in a batch")
            qos = flags >> QOS_SHIFT & 3
            new = tuple.__new__  # MessageId(…) goes through a function in Python, and takes twice as long.
            messages = [
                Message(topic, payload, qos, False, _NO_PROPERTIES, new(MessageId, (origin, 0, sequence)))
                for sequence, payload in enumerate(frame.parse_batch(content), message_sequence)
            ]
            if qos == 3:
                raise FrameError("QoS 3")
            if sender.relayed:
                messages = [each for each in messages if not self._was_relayed(each)]
            self.messages += messages
            self._stats.delivered += len(messages)
            return
        message_id = MessageId(origin, 0, message_sequence)
        if flags & _IN_CONTENT or flags >> QOS_SHIFT & 3 == 3:
            message = frame.parse_content(topic, flags, message_id, content)
        else:  # as almost always
            message = Message(topic, content, flags >> QOS_SHIFT & 3, False, _NO_PROPERTIES, message_id)
        if len(message.payload) > self._limits.payload_bytes:
            self._stats.too_large += 1
            return
        message.expire_from(now)
        if flags & HELD:
            self.receive_value(message)
            return
        if (flags & FOREIGN and self._is_known_otherwise(message, now)) or (
            sender.relayed and self._was_relayed(message)
        ):
            self._stats.duplicates += 1
            return
        if message.retain:
            self._values.set(message, now if message.published_at is None else message.published_at)
        self.messages.append(message)
        self._stats.delivered += 1

    def receive_value(self, message: Message) -> None:
        """A last value, told to whoever asked; for us if it is news."""
        published_at = message.published_at
        if published_at is None or not message.retain:
            raise FrameError("a last value without its time")
        known = self._values.get(message.topic)
        if known is None or LastValue(message, published_at).age_key >= known.age_key:
            self.on_value(message.topic)
        if not self._values.set(message, published_at):
            self._stats.duplicates += 1
        else:
            self.held.append(message)
            self._stats.delivered += bool(message.payload)

    def hold_again(self, value: LastValue) -> None:
        """A last value that we had when the application subscribed."""
        if value.message.payload:
            self.held.append(value.message)

    def _is_known_otherwise(self, message: Message, now: float) -> bool:
        """A message that a gateway brought: of ourselves, of a member that we hear, or here before?"""
        assert message.id is not None
        origin = message.id.origin
        if origin == self._transmitter.sender.hex():
            return True
        if len(origin) == 2 * SENDER_BYTES:
            try:
                sender = self.senders.get(bytes.fromhex(origin))
            except ValueError:
                sender = None
            if sender is not None and sender.heard_at > now - GONE_AFTER_S:
                return True  # Its own copy comes, or came, by itself.
            if len(self._relayed_origins) < MAX_SENDERS:
                self._relayed_origins.add(origin)
            if sender is not None:
                sender.relayed = True
        return self._duplicates.seen(message.id)

    def _was_relayed(self, message: Message) -> bool:
        return message.id is not None and self._duplicates.seen(message.id)


def _last_of(ranges: list[tuple[int, int]], count: int) -> int:
    """The last of the first `count` frames of these ranges."""
    last = 0
    for first, length in ranges:
        if count > 0:
            last = first + min(length, count) - 1
            count -= length
    return last


def _first_of(ranges: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """The first `count` frames of these ranges."""
    found = []
    for first, length in ranges:
        if count > 0:
            found.append((first, min(length, count)))
            count -= length
    return found


def _covers(asked: list[tuple[int, int]], missing: list[tuple[int, int]]) -> bool:
    """Is all that we miss asked for?"""
    return all(
        any(first <= start and start + count <= first + asked_count for first, asked_count in asked)
        for start, count in missing
    )
