"""The receiver's half: what one member knows of another, and of each of its streams.

A stream's frames are given on in order. Behind a gap they wait; the gap is asked for, by one of those who
have it, and given up when nobody answers. What was published before we listened is not asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.multicast.keys import ReplayWindow
from hedgerow.multicast.peers import PeerAddress


class Arrived(NamedTuple):
    """A frame of a stream."""

    flags: int
    """VOID for one from before we listened: it has its place in the order, and goes no further."""
    message_sequence: int
    body: bytes


VOID = -1


class Listening:
    """One topic that this member listens to."""

    __slots__ = ("crc", "heard_at", "is_acknowledged", "is_exact", "publishers", "since", "topic")

    def __init__(self, topic: str, crc: int, is_exact: bool, since: float, now: float) -> None:
        self.topic = topic
        self.crc = crc
        self.is_exact = is_exact
        """Subscribed to by its name, and not only because a wildcard matches it."""
        self.since = since
        self.is_acknowledged = False
        """Somebody here wants it at QoS 1 or 2: its senders wait for us."""
        self.heard_at = now
        self.publishers: set[bytes] = set()
        """Members that announced it. Some may be missing."""


FRAME_BYTES = 200  # What a frame that waits takes beside its body: empty ones are not nothing.
MAX_FLOORS = 1_024  # topics of one sender that were left, and may be joined again
MAX_MISSING = 0xFFFF  # The largest gap that is asked for; one that is larger is a stream joined late.


class IncomingStream:
    """What comes of one topic from one sender."""

    __slots__ = (
        "acknowledged",
        "acknowledged_bytes",
        "ask_at",
        "asked_at",
        "asked_to",
        "bytes",
        "delivered_sequence",
        "expected",
        "floor",
        "gap_at",
        "given_bytes",
        "highest",
        "is_settled",
        "listening",
        "piece_count",
        "pieces",
        "pieces_of",
        "sender",
        "since",
        "stuck_at",
        "suppressed",
        "tries",
        "waiting",
        "window",
    )

    def __init__(self, sender: SendingMember, listening: Listening) -> None:
        self.sender = sender
        self.listening = listening
        self.since = listening.since
        """Only what was published after this is asked for."""
        self.window = ReplayWindow()
        """Of message sequences outside of the stream (QoS 0)."""
        self.floor = sender.floors.pop(listening.topic, 0)
        """Message sequences up to this have been here before, in a stream that was forgotten."""
        self.delivered_sequence = self.floor
        self.is_settled = False
        """Where it begins for us is known: what was asked for from before has come, or will not."""
        self.gap_at = 0.0
        """When it was noticed that something is missing."""
        self.stuck_at = 0.0
        """Since when nothing of what is missing has come."""
        self.expected = 1
        """The next frame to give on."""
        self.highest = 0
        """The last one known to exist."""
        self.waiting: dict[int, Arrived] = {}
        self.bytes = 0
        self.given_bytes = 0
        """Of frames that have had their turn, as windows count them."""
        self.acknowledged: int | None = None
        """The last frame that the application is done with, as are all before it; None: nothing is told."""
        self.acknowledged_bytes = 0
        self.ask_at: float | None = None
        self.asked_at = 0.0
        self.asked_to = 0
        """The last frame that the last request could bring."""
        self.tries = 0
        self.suppressed = 0
        # A message in pieces, of which these have come.
        self.pieces = bytearray()
        self.piece_count = 0
        self.pieces_of: tuple[int, int] | None = None

    def put(self, sequence: int, arrived: Arrived) -> bool:
        """Keep a frame until its turn. False when it was there already."""
        if sequence < self.expected or sequence in self.waiting:
            return False
        self.waiting[sequence] = arrived
        self.bytes += len(arrived.body) + FRAME_BYTES
        return True

    def take(self) -> Arrived | None:
        """The next frame in order, if it has come."""
        arrived = self.waiting.pop(self.expected, None)
        if arrived is not None:
            self.expected += 1
            self.bytes -= len(arrived.body) + FRAME_BYTES
            self.tries = 0
        return arrived

    def take_out(self, sequence: int) -> int:
        """Have a frame sent again later; how many bytes that frees."""
        size = len(self.waiting.pop(sequence).body) + FRAME_BYTES
        self.bytes -= size
        return size

    def skip_to(self, sequence: int) -> int:
        """Give up what is before `sequence`; how many frames that are."""
        if sequence <= self.expected:
            return 0
        given_up = sequence - self.expected
        # The shorter of two ways: a stream of tens of thousands of gaps is given up gap by gap.
        passed = range(self.expected, sequence) if given_up < len(self.waiting) else list(self.waiting)
        for old in passed:
            if old < sequence and old in self.waiting:
                self.bytes -= len(self.waiting.pop(old).body) + FRAME_BYTES
                given_up -= 1
        self.expected = sequence
        self.tries = 0
        return given_up

    @property
    def has_gap(self) -> bool:
        return self.expected <= self.highest

    def missing(self, max_ranges: int) -> list[tuple[int, int]]:
        """(first, count) of what has not come, the oldest first."""
        ranges = []
        first = self.expected
        for sequence in [*sorted(self.waiting), self.highest + 1]:
            if sequence > first:
                ranges.append((first, sequence - first))
                if len(ranges) == max_ranges:
                    break
            first = sequence + 1
        return ranges

    def add_piece(self, index: int, count: int, piece: bytes, message_sequence: int) -> bytes | None:
        """The whole content when this was its last piece."""
        if index == 0:
            self.drop_pieces()
            self.pieces_of = (message_sequence, count)
        if self.pieces_of != (message_sequence, count) or index != self.piece_count:
            self.drop_pieces()  # We joined in the middle, or gave up one of them.
            return None
        self.pieces += piece
        self.piece_count += 1
        if index + 1 < count:
            return None
        content = bytes(self.pieces)
        self.drop_pieces()
        return content

    def drop_pieces(self) -> None:
        self.pieces = bytearray()
        self.piece_count = 0
        self.pieces_of = None


class SendingMember:
    """Another member."""

    __slots__ = (
        "address",
        "answer_s",
        "floors",
        "heard_at",
        "id",
        "multicast_at",
        "origin",
        "presence_counter",
        "relayed",
        "stale",
        "streams",
        "tell_at",
        "untold",
        "untold_bytes",
        "window",
    )

    def __init__(self, sender_id: bytes, now: float) -> None:
        self.id = sender_id
        self.origin = sender_id.hex()
        self.heard_at = now
        self.multicast_at = float("-inf")
        """When its multicast was last heard."""
        self.address: PeerAddress | None = None
        """Where single datagrams reach it."""
        self.streams: dict[str, IncomingStream] = {}
        self.floors: dict[str, int] = {}
        """By topic, of streams that are forgotten: message sequences up to this have been here."""
        self.window = ReplayWindow()
        """Of the counters of its sealed control frames."""
        self.stale = 0
        """Frames sealed up to this one are recordings: the presence before the last has come since."""
        self.presence_counter = 0
        self.answer_s = 0.0
        """How long its answers to our requests for repair take."""
        self.untold: dict[IncomingStream, None] = {}
        """Those of which it is to hear how far we are,"""
        self.untold_bytes = 0
        self.tell_at: float | None = None
        """and when."""
        self.relayed = False
        """A gateway brought one of its messages, which may come from itself again."""

    def forget(self, topic: str) -> IncomingStream | None:
        stream = self.streams.pop(topic, None)
        if stream is not None:
            if len(self.floors) >= MAX_FLOORS:
                del self.floors[next(iter(self.floors))]
            self.floors[topic] = stream.delivered_sequence
        return stream
