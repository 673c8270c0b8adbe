"""The receiver's word on how far it is, by which senders know how far they may run ahead (`flow.py`).

What was given to the application is acknowledged when the application is done with it: `take_receipt` says
what that is, `acknowledge` that it is so. A sender hears of it when a quarter of its window has come, or a
little later; at once where a stream is new to us, so that the sender knows that somebody listens, and when
the sender asks.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.multicast.frame import (
    CEASED,
    MAX_ACKNOWLEDGED,
    Acknowledgement,
    FrameKind,
    pack_acknowledgement,
)
from hedgerow.multicast.groups import topic_hash
from hedgerow.multicast.incoming import IncomingStream, SendingMember
from hedgerow.multicast.limits import (
    ACKNOWLEDGE_AT_MOST_S,
    ACKNOWLEDGE_WITHIN_S,
    ANSWER_WITHIN_S,
    INTERVAL_S,
    MIN_WINDOW_BYTES,
    MulticastLimits,
)
from hedgerow.multicast.random import Random
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter

_COUNT_AGAIN_S = 1.0
_FOR_EACH_MEMBER_S = 0.01


class StreamReceipt(NamedTuple):
    """All that was taken of a stream, and is the application's."""

    stream: IncomingStream
    sequence: int
    bytes: int


class Acknowledger:
    def __init__(
        self,
        limits: MulticastLimits,
        transmitter: Transmitter,
        timers: Timers,
        stats: MulticastStats,
        random: Random,
        senders: dict[bytes, SendingMember],
    ) -> None:
        self.receive_buffer_bytes = limits.waiting_bytes
        """What the system keeps of what has arrived, for one topic."""
        self._limits = limits
        self._transmitter = transmitter
        self._timers = timers
        self._stats = stats
        self._random = random
        self._senders = senders
        self._given: dict[IncomingStream, None] = {}
        self._active: dict[bytes, float] = {}  # senders, and when they were last told
        self._count_again_at = 0.0
        self.window_bytes = limits.window_bytes

    # From the streams to the application, and back

    def begin(self, stream: IncomingStream, now: float) -> None:
        """It is known where the stream begins for us."""
        if stream.acknowledged in (None, CEASED) and stream.listening.is_acknowledged:
            stream.acknowledged = stream.expected - 1
            self._tell_later(stream, now)

    def give(self, stream: IncomingStream, size: int) -> None:
        """A frame has had its turn."""
        if stream.acknowledged is not None:
            stream.given_bytes += size
            self._given[stream] = None

    def take_receipt(self) -> list[StreamReceipt]:
        given, self._given = self._given, {}
        return [StreamReceipt(stream, stream.expected - 1, stream.given_bytes) for stream in given]

    def acknowledge(self, receipt: list[StreamReceipt], now: float) -> None:
        within_s = ACKNOWLEDGE_WITHIN_S + _FOR_EACH_MEMBER_S * len(self._senders)
        later = now + min(within_s, ACKNOWLEDGE_AT_MOST_S)
        for stream, sequence, given_bytes in receipt:
            sender = stream.sender
            if stream.acknowledged is None or sequence <= stream.acknowledged:
                continue
            sender.untold_bytes += given_bytes - stream.acknowledged_bytes
            stream.acknowledged, stream.acknowledged_bytes = sequence, given_bytes
            is_much = 4 * sender.untold_bytes >= self.window_bytes
            self._tell_later(stream, now if is_much else later)

    def cease(self, stream: IncomingStream, now: float) -> None:
        """We do not listen any longer, or not at QoS 1."""
        if stream.acknowledged is not None:
            stream.acknowledged = CEASED
            self._tell_later(stream, now)

    def answer(self, sender: SendingMember, now: float) -> None:
        """The sender asks."""
        at = now + ANSWER_WITHIN_S * self._random.random()
        for stream in sender.streams.values():
            if stream.acknowledged is not None:
                self._tell_later(stream, at)

    # To the senders

    def _tell_later(self, stream: IncomingStream, at: float) -> None:
        sender = stream.sender
        sender.untold[stream] = None
        if sender.tell_at is None or at < sender.tell_at:
            sender.tell_at = at
            self._timers.at(at, lambda now: self._tell(sender, at, now))

    def _tell(self, sender: SendingMember, planned_at: float, now: float) -> None:
        if sender.tell_at != planned_at or self._senders.get(sender.id) is not sender:
            return
        sender.tell_at = None
        sender.untold_bytes = 0
        untold, sender.untold = list(sender.untold), {}
        self._active[sender.id] = now
        self._count_active(now)
        for first in range(0, len(untold), MAX_ACKNOWLEDGED):
            streams = [
                (topic_hash(each.listening.topic), each.acknowledged)
                for each in untold[first : first + MAX_ACKNOWLEDGED]
                if each.acknowledged is not None
            ]
            body = pack_acknowledgement(Acknowledgement(sender.id, self.window_bytes, streams))
            self._stats.acknowledgements_sent += 1
            if sender.address is None:
                self._transmitter.send_to_all(FrameKind.ACKNOWLEDGEMENT, body)
            else:
                self._transmitter.send_to_peer(sender.address, FrameKind.ACKNOWLEDGEMENT, body)
        for stream in untold:
            if stream.acknowledged == CEASED:
                stream.acknowledged = None

    def _count_active(self, now: float) -> None:
        """What there is room for is shared by those who send."""
        if now >= self._count_again_at:
            self._count_again_at = now + _COUNT_AGAIN_S
            self._active = {each: at for each, at in self._active.items() if at > now - INTERVAL_S}
        room = min(self._limits.waiting_bytes // 2, self.receive_buffer_bytes) // max(len(self._active), 1)
        self.window_bytes = max(min(room, self._limits.window_bytes), MIN_WINDOW_BYTES)
