"""What a member publishes: gathering, pieces, streams, and repairs of them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import islice

from hedgerow.errors import RefusedError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast import frame
from hedgerow.multicast.flow import Flow
from hedgerow.multicast.frame import (
    AGE,
    BATCH,
    FRAGMENT,
    FRAGMENT_BYTES,
    HEADER_BYTES,
    HELD,
    MAX_TOPIC_BYTES,
    QOS_SHIFT,
    SEAL_BYTES,
    FrameKind,
    Gone,
    RepairRequest,
)
from hedgerow.multicast.groups import topic_crc
from hedgerow.multicast.limits import (
    HEARTBEAT_FIRST_S,
    HEARTBEATS_AT_ONCE,
    HEARTBEATS_PER_S,
    INTERVAL_S,
    MAX_REPAIRS,
    REPAIR_PAUSE_S,
    REPAIR_SLACK_S,
    REPAIRS_PER_S,
    MulticastLimits,
)
from hedgerow.multicast.outgoing import FrameHistory, OutgoingTopic, Pace, SentFrame
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter
from hedgerow.multicast.values import LastValue, LastValues
from hedgerow.rates import Allowance
from hedgerow.topics import TopicTree, validate_name

_SPARE_TOPIC_BYTES = 96  # The topic of a copy may make a datagram larger by this.
_LENGTH_BYTES = 2  # before each payload of a batch


class Publisher:
    def __init__(
        self,
        limits: MulticastLimits,
        transmitter: Transmitter,
        timers: Timers,
        values: LastValues,
        stats: MulticastStats,
    ) -> None:
        self.outgoing: dict[str, OutgoingTopic] = {}
        self.names: TopicTree[str, OutgoingTopic] = TopicTree()
        self.new_topics: list[str] = []
        """To be announced."""
        self.publishing: list[tuple[str, bool]] = []
        self.pace = Pace()
        self.sequence = 0
        """Of the last message id that was given."""
        self.sent_at = float("-inf")
        """When something was last sent that others may ask for again."""
        self._origin = transmitter.sender.hex()
        self._limits = limits
        self._datagram_bytes = limits.datagram_bytes
        self._transmitter = transmitter
        self._timers = timers
        self._values = values
        self._stats = stats
        self.history = FrameHistory(limits.history_bytes, limits.history_s)
        self._by_crc: dict[int, list[OutgoingTopic]] = {}
        self._by_hash: dict[bytes, OutgoingTopic] = {}
        self.flow = Flow(limits, timers, stats, self.history, self._by_hash, self._ask)
        self._gathering: list[OutgoingTopic] = []
        # A topic that comes back must not use its old numbers again. If even those are forgotten, it goes on
        # behind the highest of any that is.
        self._closed: dict[str, int] = {}
        self._last_closed = 0
        self._look_for_idle_at = 0.0
        self._repairs = Allowance(REPAIRS_PER_S, 0.05)
        self._beating: dict[OutgoingTopic, None] = {}  # topics whose heartbeat is due

    # Publishing

    def check(self, message: Message) -> None:
        """RefusedError for what cannot travel by multicast, TopicError for what is no topic name."""
        topic, limit = message.topic, self._limits.payload_bytes
        if len(message.payload) > limit:
            text = f"a payload of {len(message.payload)} bytes; at most {limit} go by multicast (max_payload)"
            raise RefusedError(text, Reason.PACKET_TOO_LARGE)
        if topic not in self.outgoing:
            validate_name(topic)
            if topic[:1] == "$":
                text = "topics that begin with $ do not travel by multicast"
                raise RefusedError(text, Reason.TOPIC_NAME_INVALID)
            if len(topic.encode()) > MAX_TOPIC_BYTES:
                text = f"a topic of more than {MAX_TOPIC_BYTES} bytes does not go by multicast"
                raise RefusedError(text, Reason.TOPIC_NAME_INVALID)

    def publish(self, message: Message, now: float) -> MessageId:
        self.check(message)
        payload = message.payload
        outgoing = self.outgoing.get(message.topic) or self._open(message.topic, now)
        if not outgoing.is_announced:
            outgoing.is_announced = True
            self.names.set(message.topic, message.topic, outgoing)
            self.new_topics.append(message.topic)
        outgoing.used_at = now
        self._stats.published += 1
        self.sequence += 1
        sequence = self.sequence
        message_id = message.id
        is_plain = message_id is None and not message.retain and not message.properties
        if message_id is None:
            message_id = MessageId(self._origin, 0, sequence)
        size = len(payload) + _LENGTH_BYTES
        if not is_plain or size > outgoing.room:
            self._flush_topic(outgoing, now)
            message = replace(message, id=message_id)
            message.expire_from(now)
            self._publish_alone(outgoing, message, sequence, now)
            return message_id
        flags = message.qos << QOS_SHIFT
        gathered = outgoing.gathered
        if gathered and (
            flags != outgoing.gathered_flags
            or sequence != outgoing.gathered_sequence + len(gathered)
            or outgoing.gathered_bytes + size > outgoing.room
        ):
            self._flush_topic(outgoing, now)
            gathered = outgoing.gathered
        if not gathered:
            self._gathering.append(outgoing)
            outgoing.gathered_flags = flags
            outgoing.gathered_sequence = sequence
        gathered.append(payload)
        outgoing.gathered_bytes += size
        return message_id

    def _open(self, topic: str, now: float) -> OutgoingTopic:
        if len(self.outgoing) >= self._limits.topics:
            if now >= self._look_for_idle_at:  # It is a walk over all of them.
                self._look_for_idle_at = now + 1.0
                self.close_idle(now - INTERVAL_S, now)
            if len(self.outgoing) >= self._limits.topics:
                text = f"{self._limits.topics} topics are published to already"
                raise RefusedError(text, Reason.QUOTA_EXCEEDED)
        sequence = self._closed.pop(topic, self._last_closed)
        outgoing = OutgoingTopic(topic, self._room_of(topic), sequence, now + self._limits.new_topic_s, now)
        self.outgoing[topic] = outgoing
        self._by_crc.setdefault(outgoing.crc, []).append(outgoing)
        self._by_hash[outgoing.hash] = outgoing
        self.publishing.append((topic, True))
        return outgoing

    def _room_of(self, topic: str) -> int:
        """The largest body of a frame of this topic, also of a copy that carries it."""
        return (
            self._datagram_bytes
            - HEADER_BYTES
            - SEAL_BYTES
            - max(0, len(topic.encode()) - _SPARE_TOPIC_BYTES)
        )

    def set_datagram_bytes(self, size: int) -> None:
        self._datagram_bytes = size
        for topic, outgoing in self.outgoing.items():
            outgoing.room = self._room_of(topic)

    @property
    def ready_at(self) -> float:
        return max(self.pace.ready_at, self.history.ready_at, self.flow.ready_at)

    def flush(self, now: float) -> None:
        if self._gathering:
            gathering, self._gathering = self._gathering, []
            for outgoing in gathering:
                self._flush_topic(outgoing, now)

    def _flush_topic(self, outgoing: OutgoingTopic, now: float) -> None:
        payloads = outgoing.gathered
        if not payloads:
            return
        outgoing.gathered = []
        outgoing.gathered_bytes = 0
        flags, body = outgoing.gathered_flags, payloads[0]
        if len(payloads) > 1:
            flags, body = flags | BATCH, frame.pack_batch(payloads)
        in_stream = flags & ~BATCH != 0
        self._send(outgoing, flags, outgoing.gathered_sequence, body, now, in_stream, len(payloads))

    def _publish_alone(self, outgoing: OutgoingTopic, message: Message, sequence: int, now: float) -> None:
        published_at = self._values.stamp(message.topic, now) if message.retain else None
        flags, content = frame.pack_content(message, self._origin, published_at)
        if published_at is not None:
            message.published_at = published_at
            self._values.set(message, published_at)
        self._send_content(outgoing, flags, sequence, content, now, in_stream=message.qos > 0)

    def _send_content(
        self, outgoing: OutgoingTopic, flags: int, sequence: int, content: bytes, now: float, in_stream: bool
    ) -> None:
        if len(content) <= outgoing.room:
            self._send(outgoing, flags, sequence, content, now, in_stream)
            return
        # In a stream whatever its QoS: of a message in 200 pieces, one is lost as a rule.
        step = outgoing.room - FRAGMENT_BYTES
        count = -(-len(content) // step)
        for index in range(count):
            piece = frame.pack_fragment(index, count, content[index * step : (index + 1) * step])
            self._send(outgoing, flags | FRAGMENT, sequence, piece, now, True, int(index + 1 == count))

    def _send(
        self,
        outgoing: OutgoingTopic,
        flags: int,
        sequence: int,
        body: bytes,
        now: float,
        in_stream: bool,
        messages: int = 1,
    ) -> None:
        stream_sequence = 0
        if in_stream:
            outgoing.sequence += 1
            stream_sequence = outgoing.sequence
            sent = SentFrame(stream_sequence, flags, sequence, body, messages, now)
            self.history.add(outgoing, sent, now)
            self.flow.sent(outgoing, sent, now)
            self.pace.sent(now, len(body))
            self.sent_at = now
            outgoing.heartbeat_s = HEARTBEAT_FIRST_S
            if now + HEARTBEAT_FIRST_S < outgoing.heartbeat_at:
                self._beat_at(outgoing, now + HEARTBEAT_FIRST_S)
        self._transmitter.send_to_topic(outgoing, FrameKind.DATA, flags, stream_sequence, sequence, body, now)

    def send_value(self, value: LastValue, now: float) -> None:
        """Tell a last value to someone who asked. To all: others who asked need not be told apart."""
        message = value.message
        # As anyone's message, with its whole id: the frame is numbered as what it is, a new one.
        flags, content = frame.pack_content(message, "", value.published_at)
        flags |= HELD
        self.sequence += 1
        topic = frame.pack_topic(message.topic)
        if len(topic) + len(content) + HEADER_BYTES + SEAL_BYTES <= self._datagram_bytes:
            crc = topic_crc(message.topic)
            self._transmitter.send_to_all(
                FrameKind.DATA, topic + content, flags | frame.TOPIC, crc, self.sequence
            )
            return
        try:
            outgoing = self.outgoing.get(message.topic) or self._open(message.topic, now)
        except RefusedError:
            self._stats.dropped += 1
            return
        outgoing.new_until = max(outgoing.new_until, now + self._limits.new_topic_s)
        self._send_content(outgoing, flags, self.sequence, content, now, in_stream=True)

    def finish(self, now: float) -> None:
        """Nothing more is published. Those who may not even have heard of a topic hear of it once more."""
        self.flush(now)
        self.flow.finish(now)
        if not self.flow.receivers:
            return
        for topic, outgoing in self.outgoing.items():
            if outgoing.history and outgoing.needed > outgoing.sequence:
                outgoing.heartbeat_s = HEARTBEAT_FIRST_S
                self._beat_at(outgoing, now)
                self.new_topics.append(topic)
                self.sent_at = now

    # Streams

    def _beat_at(self, outgoing: OutgoingTopic, at: float) -> None:
        outgoing.heartbeat_at = at
        self._timers.at(at, lambda now: self._beat(outgoing, at, now))

    def _beat(self, outgoing: OutgoingTopic, planned_at: float, now: float) -> None:
        if outgoing.heartbeat_at != planned_at:
            return  # Something was sent meanwhile, and has its own.
        self.history.trim(now)
        if not outgoing.history:
            outgoing.heartbeat_at = float("inf")
            return
        quiet_at = outgoing.history[-1].sent_at + HEARTBEAT_FIRST_S
        if quiet_at > now:
            self._beat_at(outgoing, quiet_at)
            return
        if not self._beating:
            self._timers.at(now, self._beat_in_turn)
        self._beating[outgoing] = None

    def _beat_in_turn(self, now: float) -> None:
        """As many as may be sent now. The others come first the next time."""
        for outgoing in list(islice(self._beating, HEARTBEATS_AT_ONCE)):
            del self._beating[outgoing]
            body = frame.pack_heartbeat(outgoing.oldest)
            self._transmitter.send_to_topic(outgoing, FrameKind.HEARTBEAT, 0, outgoing.sequence, 0, body, now)
            outgoing.heartbeat_s = min(2 * outgoing.heartbeat_s, INTERVAL_S)
            self._beat_at(outgoing, now + outgoing.heartbeat_s)
        if self._beating:
            self._timers.at(now + HEARTBEATS_AT_ONCE / HEARTBEATS_PER_S, self._beat_in_turn)

    def receive_repair(self, repair: RepairRequest, crc: int, asker: bytes, now: float) -> None:
        """Someone misses frames of ours."""
        self.sent_at = now
        # The request travelled, and we may have been busy: what is near the asker's beginning is sent with
        # its age, by which the asker decides.
        since = now - repair.newer_than_ms / 1000 - REPAIR_SLACK_S
        room = MAX_REPAIRS
        before = self._stats.repairs_sent
        for outgoing in self._by_crc.get(crc, ()):
            oldest = outgoing.oldest
            # The history is in the order of time: what is older than its subscription is not for the asker.
            eligible = oldest + bisect_left(outgoing.history, since, key=lambda each: each.sent_at)
            for first, count in repair.ranges:
                start = max(first, eligible)
                for each in outgoing.find(start, min(first + count - start, room)):
                    room -= 1
                    self._send_again(outgoing, each, now)
            asked = min((first for first, _ in repair.ranges), default=eligible)
            if asked < oldest:
                missed = self.flow.count_missed(asker, outgoing, asked)
                self._tell_gone(outgoing, Gone(asker if missed else frame.EVERYONE, oldest - 1, missed), now)
            elif asked < eligible:
                self._tell_gone(outgoing, Gone(asker, eligible - 1), now)
        self.pace.sent_again(self._stats.repairs_sent - before, now)

    def _ask(self) -> None:
        self._transmitter.send_to_all(FrameKind.ASK)

    def _send_again(self, outgoing: OutgoingTopic, each: SentFrame, now: float) -> None:
        if each.sent_again_at > now - REPAIR_PAUSE_S:
            return
        if not self._repairs.take(now):
            self._stats.repairs_refused += 1
            return
        each.sent_again_at = now
        self._stats.repairs_sent += 1
        body = frame.pack_age(now - each.sent_at) + each.body
        self._transmitter.send_to_topic(
            outgoing, FrameKind.DATA, each.flags | AGE, each.sequence, each.message_sequence, body, now
        )

    def _tell_gone(self, outgoing: OutgoingTopic, gone: Gone, now: float) -> None:
        """What was asked for and cannot be had is not to be waited for."""
        if not self._repairs.take(now):
            self._stats.repairs_refused += 1
            return
        self._transmitter.send_to_topic(
            outgoing, FrameKind.GONE, 0, outgoing.sequence, 0, frame.pack_gone(gone), now
        )

    # Upkeep

    def forget_copies(self) -> None:
        """The peers that get copies have changed."""
        for outgoing in self.outgoing.values():
            outgoing.copy_to = None

    def close_idle(self, idle_since: float, now: float) -> None:
        """Topics that have not been published to for long are ours no more."""
        self.history.trim(now)
        for topic, outgoing in list(self.outgoing.items()):
            if outgoing.used_at < idle_since and not outgoing.history and not outgoing.gathered:
                del self.outgoing[topic]
                if len(self._closed) >= self._limits.topics:
                    self._last_closed = max(self._last_closed, self._closed.pop(next(iter(self._closed))))
                self._closed[topic] = outgoing.sequence
                self.names.remove(topic, topic)
                self.flow.close(outgoing)
                del self._by_hash[outgoing.hash]
                same_crc = self._by_crc[outgoing.crc]
                same_crc.remove(outgoing)
                if not same_crc:
                    del self._by_crc[outgoing.crc]
                self.publishing.append((topic, False))
