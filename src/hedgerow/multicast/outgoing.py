"""The sender's half: what one member publishes to one topic, and what it can still send again.

Messages of one turn are gathered and leave in one datagram, as many as fit. What must arrive (QoS 1 and
2, and every message in pieces, since all of them have to arrive) is numbered: the frames of a topic are a
*stream*, numbered from 1, kept in the history until it is full or they are old.
"""

from __future__ import annotations

from collections import deque

from hedgerow.multicast.groups import topic_crc, topic_hash
from hedgerow.multicast.limits import (
    DATAGRAM_BYTES,
    HISTORY_AT_LEAST_S,
    MIN_WINDOW_BYTES,
    WINDOW_FRAME_BYTES,
)
from hedgerow.multicast.peers import PeerAddress

FRAME_BYTES = 340  # that a frame takes beside its body, with its places in histories; 338 were measured


class SentFrame:
    """A frame of a stream."""

    __slots__ = (
        "body",
        "bytes_up_to",
        "flags",
        "message_sequence",
        "messages",
        "messages_up_to",
        "sent_again_at",
        "sent_at",
        "sequence",
    )

    def __init__(
        self, sequence: int, flags: int, message_sequence: int, body: bytes, messages: int, now: float
    ) -> None:
        self.sequence = sequence
        self.flags = flags
        self.message_sequence = message_sequence
        self.body = body
        self.messages = messages
        """That end in it: a message in pieces ends in its last one."""
        self.bytes_up_to = 0
        """Of the stream, up to the end of this frame, as windows count them."""
        self.messages_up_to = 0
        """And messages."""
        self.sent_at = now
        self.sent_again_at = float("-inf")

    @property
    def size(self) -> int:
        """As windows count it."""
        return len(self.body) + WINDOW_FRAME_BYTES

    @property
    def memory_bytes(self) -> int:
        return len(self.body) + FRAME_BYTES


class StreamReceiver:
    """A member that acknowledges streams of ours."""

    __slots__ = ("id", "is_left_behind", "outstanding", "progresses", "window")

    def __init__(self, member: bytes) -> None:
        self.id = member
        self.window = MIN_WINDOW_BYTES
        self.outstanding = 0
        """Bytes that it has not acknowledged, of all its streams."""
        self.is_left_behind = False
        self.progresses: dict[OutgoingTopic, StreamProgress] = {}


class StreamProgress:
    """How far one receiver is in one stream."""

    __slots__ = ("bytes", "messages", "sequence", "told")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.bytes = 0
        self.messages = 0
        self.told = 0
        """Messages that it was told to have missed from here on."""


NOBODY = float("inf")


class OutgoingTopic:
    """One topic that this member publishes to."""

    __slots__ = (
        "announced_at",
        "copy_to",
        "crc",
        "gathered",
        "gathered_bytes",
        "gathered_flags",
        "gathered_sequence",
        "hash",
        "heartbeat_at",
        "heartbeat_s",
        "history",
        "is_announced",
        "needed",
        "new_until",
        "receivers",
        "room",
        "sent_bytes",
        "sent_messages",
        "sequence",
        "topic",
        "used_at",
    )

    def __init__(self, topic: str, room: int, sequence: int, new_until: float, now: float) -> None:
        self.topic = topic
        self.crc = topic_crc(topic)
        self.hash = topic_hash(topic)
        self.room = room
        """The largest body of a frame of this topic."""
        self.new_until = new_until
        self.is_announced = False
        """We publish to it, and not only answer with its last value."""
        self.announced_at = float("-inf")
        self.used_at = now
        self.sequence = sequence
        """Of the last frame of the stream."""
        self.history: deque[SentFrame] = deque()
        self.sent_bytes = 0
        """Of the stream, as windows count them."""
        self.sent_messages = 0
        self.receivers: dict[StreamReceiver, StreamProgress] = {}
        """Those who acknowledge this stream."""
        self.needed: float = NOBODY
        """Frames beyond this sequence are not acknowledged yet by somebody who is waited for."""
        self.heartbeat_s = 0.0
        self.heartbeat_at = float("inf")
        self.copy_to: tuple[PeerAddress, ...] | None = None
        """The peers that get copies; None: to be found again."""
        # Payloads that wait for the end of the turn: consecutive ids, the same flags.
        self.gathered: list[bytes] = []
        self.gathered_bytes = 0
        self.gathered_flags = 0
        self.gathered_sequence = 0

    @property
    def oldest(self) -> int:
        """The first sequence that can still be had; one more than the last when none can."""
        return self.history[0].sequence if self.history else self.sequence + 1

    def add(self, frame: SentFrame) -> None:
        self.history.append(frame)
        self.sent_bytes += frame.size
        self.sent_messages += frame.messages
        frame.bytes_up_to, frame.messages_up_to = self.sent_bytes, self.sent_messages

    def sent_up_to(self, sequence: int, known: StreamProgress | None = None) -> tuple[int, int]:
        """Bytes and messages of the stream up to the end of this frame. Where the history does not go back so
        far, what lies between its beginning and what is `known` counts in equal parts."""
        if not self.history:
            end = self.sent_bytes, self.sent_messages
        elif sequence >= self.history[0].sequence:
            frame = self.history[sequence - self.history[0].sequence]
            return frame.bytes_up_to, frame.messages_up_to
        else:
            first = self.history[0]
            end = first.bytes_up_to - first.size, first.messages_up_to - first.messages
        frames = self.oldest - 1 - known.sequence if known is not None else 0
        if known is None or frames <= 0:
            return end
        share = (sequence - known.sequence) / frames
        return (
            round(known.bytes + share * (end[0] - known.bytes)),
            round(known.messages + share * (end[1] - known.messages)),
        )

    def look_again(self) -> None:
        """Somebody has got further, or is not waited for any longer."""
        self.needed = min(
            (each.sequence for receiver, each in self.receivers.items() if not receiver.is_left_behind),
            default=NOBODY,
        )

    def find(self, first: int, count: int) -> list[SentFrame]:
        """The frames of this range that are in the history, which has no gaps."""
        if not self.history:
            return []
        start = max(first - self.history[0].sequence, 0)
        stop = min(first + count - self.history[0].sequence, len(self.history))
        return [self.history[index] for index in range(start, stop)]


class FrameHistory:
    """Bounds the histories of all topics together: the oldest frame goes first, whosever it is.

    A frame that somebody has to acknowledge stays, and whoever publishes at QoS 1 or 2 waits for that. Others
    do not wait (a large message at QoS 0 is a stream too): for them there is some room beyond the bound.
    """

    def __init__(self, max_bytes: int, max_age_s: float) -> None:
        self.bytes = 0
        self.max_bytes = max_bytes
        self._max_age_s = max_age_s
        # Two rows: a tuple for each frame took 120 bytes more.
        self._topics: deque[OutgoingTopic] = deque()
        self._frames: deque[SentFrame] = deque()

    def add(self, outgoing: OutgoingTopic, frame: SentFrame, now: float) -> None:
        outgoing.add(frame)
        self._topics.append(outgoing)
        self._frames.append(frame)
        self.bytes += frame.memory_bytes
        self.trim(now)

    @property
    def first(self) -> OutgoingTopic:
        """Whose frame is the oldest."""
        return self._topics[0]

    @property
    def _is_full(self) -> bool:
        """Another frame like the last pushes out the oldest."""
        frames = self._frames
        return bool(frames) and self.bytes + frames[-1].memory_bytes > self.max_bytes

    @property
    def is_held(self) -> bool:
        """It is full, and somebody has to acknowledge the oldest frame yet."""
        return self._is_full and self._is_needed(self._topics[0])

    @staticmethod
    def _is_needed(outgoing: OutgoingTopic) -> bool:
        return outgoing.needed < outgoing.oldest

    @property
    def ready_at(self) -> float:
        """When another frame like the last pushes out none that is too young."""
        return self._frames[0].sent_at + HISTORY_AT_LEAST_S if self._is_full else 0.0

    def trim(self, now: float) -> None:
        frames = self._frames
        while frames and (self.bytes > self.max_bytes or frames[0].sent_at < now - self._max_age_s):
            outgoing = self._topics[0]
            if self._is_needed(outgoing) and self.bytes <= 1.25 * self.max_bytes:
                return
            self._topics.popleft()
            outgoing.history.popleft()
            self.bytes -= frames.popleft().memory_bytes


class Pace:
    """How fast streams may be sent: faster while little is missed, slower when much is.

    UDP has nothing that would stop a sender that is faster than its receivers, and repairing what they
    could not take makes it worse. But a receiver on a bad link misses a share at any pace, and slowing down
    for it would only make everyone wait: what counts is how much of what was sent has to be sent again. A
    larger frame counts as so many of `DATAGRAM_BYTES`.
    """

    MIN_PER_S = 500.0
    FIRST_PER_S = 20_000.0
    MAX_PER_S = 100_000.0
    BURST_S = 0.01
    STEP_S = 0.1
    MAX_SHARE = 0.25  # Beyond it, slower. Fifty receivers that each miss 0.5 % come near it.
    BURST_FRAMES = 32  # So many at once were missed by a receiver that could not keep up,
    PAUSE_S = 0.03  # which then gets time to.

    def __init__(self) -> None:
        self.per_s = self.FIRST_PER_S
        self._next_at = 0.0  # when the last frame would have left at exactly this pace
        self._step_ends_at = 0.0
        self._sent = 0
        self._sent_again = 0
        self._may_pause_at = 0.0

    @property
    def ready_at(self) -> float:
        return self._next_at - self.BURST_S

    def sent(self, now: float, size: int) -> None:
        self._next_at = max(self._next_at, now) + max(1.0, size / DATAGRAM_BYTES) / self.per_s
        self._sent += 1
        if now >= self._step_ends_at:
            self._step(now)

    def sent_again(self, frames: int, now: float) -> None:
        self._sent_again += frames
        # What is missed goes first. Without a pause, what follows a gap piles up at the receiver, which gives
        # the gap up when it can keep no more. Not without end: whoever asks all the time must not silence us.
        if frames >= self.BURST_FRAMES and now >= self._may_pause_at:
            self._next_at = max(self._next_at, now + self.BURST_S + self.PAUSE_S)
            self._may_pause_at = now + 2 * self.PAUSE_S

    def _step(self, now: float) -> None:
        if self._sent_again > self.MAX_SHARE * self._sent:
            self.per_s = max(self.per_s * 0.7, self.MIN_PER_S)
        else:
            self.per_s = min(self.per_s * 1.1, self.MAX_PER_S)
        self._sent = self._sent_again = 0
        self._step_ends_at = now + self.STEP_S
