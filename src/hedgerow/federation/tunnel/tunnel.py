"""One tunnel: what is written at one end comes out at the other, in order and once, or the tunnel closes.

There are no repetitions: the broker keeps the order, so a sequence that leaps is a loss, and a loss ends the
tunnel. Nothing behind a gap is ever given on; what a stream lost, the MQTT sessions at both ends send again
over the next tunnel. Whether the other end lives is asked by the MQTT inside.

At most `WINDOW_BYTES` and `WINDOW_FRAMES` are on their way unacknowledged: a full queue at the broker in
between means loss. What has to wait leaves in larger frames. An acknowledgement rides on DATA; only where
none goes the other way for `ACK_S`, or where `ACK_BYTES` or `ACK_FRAMES` have gathered, is it a frame of its
own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from hedgerow.federation.tunnel.frames import (
    MAX_DATA_BYTES,
    NUMBERS,
    PROOF_BYTES,
    Seal,
    TunnelFrame,
    TunnelFrameKind,
    TunnelSession,
    encode,
    head,
)

WINDOW_BYTES = 256 * 1024
# Mosquitto drops QoS 0 behind 1,000 packets that wait for a connection (`max_queued_messages`), and a
# federator has one connection for all its diallers.
WINDOW_FRAMES = 64
ACK_BYTES = 64 * 1024
ACK_FRAMES = 16
ACK_S = 0.02  # A PUBACK inside, for which the other end may have to wait for its disk, takes it along.

# More than the window, so that a writer that stops when congested leaves enough to keep it full.
HIGH_WATER_BYTES = 384 * 1024
LOW_WATER_BYTES = 128 * 1024


class Tunnel:
    """`Tunnels` makes it, gives it frames and takes its frames; others write, read, and close it.

    What is written before it is open waits.
    """

    __slots__ = (
        "_acknowledged",
        "_announced",
        "_data_head",
        "_delivered",
        "_from_federator",
        "_held",
        "_in_flight",
        "_is_acknowledgement_due",
        "_is_close_due",
        "_is_congested",
        "_is_reading",
        "_me",
        "_on_output",
        "_opening_seal",
        "_owed_frames",
        "_position",
        "_received",
        "_seal",
        "_sent",
        "_waiting",
        "_waiting_bytes",
        "closed_because",
        "id",
        "ignored",
        "is_open",
        "number",
        "peer",
    )

    def __init__(
        self,
        tunnel_id: int,
        me: str,
        *,
        from_federator: bool,
        opening_seal: Seal,
        on_output: Callable[[Tunnel], None],
        ignored: Counter[str],
    ) -> None:
        """`on_output` is called when there may be frames to take; what is ignored is counted in `ignored`."""
        self.id = tunnel_id
        self.peer = ""
        """The node id of the other end; empty at a dialler before it is open."""
        self.number = tunnel_id
        self.is_open = False
        self.closed_because: str | None = None
        self.ignored = ignored
        self._me = me
        self._from_federator = from_federator
        self._opening_seal = opening_seal
        self._on_output = on_output
        self._seal = opening_seal
        self._data_head = b""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._position = 0  # in the first of those waiting
        self._sent = 0
        self._in_flight: deque[int] = deque()  # where each frame ends that is not acknowledged
        self._acknowledged = 0  # by the other end
        self._received = 0
        self._delivered = 0
        self._announced = 0  # what we have acknowledged
        self._owed_frames = 0
        self._held: list[bytes] = []
        self._is_reading = True
        self._is_congested = False
        self._is_acknowledgement_due = False
        self._is_close_due = False

    # What the two ends do

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, as soon as the window allows. After the end of the tunnel it goes nowhere."""
        if not data or self.closed_because is not None:
            return
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(self._waiting[-1])
        if self.unacknowledged_bytes > HIGH_WATER_BYTES:
            self._is_congested = True
        self._on_output(self)

    def close(self, reason: str) -> None:
        """What was written still leaves, as far as the window allows, then CLOSE. No event tells of it."""
        if self.closed_because is None:
            self.closed_because = reason
            self._is_close_due = True
            self._on_output(self)

    def pause_reading(self) -> None:
        """Keep what arrives, and do not acknowledge it: when the window is full the other end stops."""
        self._is_reading = False

    def resume_reading(self) -> bytes:
        """What has arrived since `pause_reading`."""
        held, self._held = b"".join(self._held), []
        self._is_reading = True
        self._delivered += len(held)
        if held:
            self.acknowledge()
        return held

    @property
    def is_congested(self) -> bool:
        """From more than `HIGH_WATER_BYTES` under way or waiting, until less than `LOW_WATER_BYTES` are."""
        return self._is_congested

    @property
    def unacknowledged_bytes(self) -> int:
        """What was written and has not arrived at the other end, as far as is known."""
        return self._sent - self._acknowledged + self._waiting_bytes

    # What Tunnels does

    def begin(self, peer: str, session: TunnelSession) -> None:
        """The handshake has come so far that frames of the session may come, and at a dialler go."""
        self.peer = peer
        self.number, self._seal = session
        self._data_head = head(TunnelFrameKind.DATA, self._from_federator, self.number, self._me, self._seal)

    def open(self) -> None:
        self.is_open = True
        self._on_output(self)

    def end(self, reason: str) -> None:
        """The other end has closed it, or is out of reach: there is nobody to tell."""
        self.closed_because = reason
        self._is_close_due = False
        self._forget_waiting()

    def break_off(self, reason: str) -> None:
        """Close, and nothing of what waits may leave."""
        self._forget_waiting()
        self.close(reason)

    def accepts(self, payload: bytes) -> bool:
        """Is this frame of the session from the other end?"""
        return self._seal.accepts(payload)

    def acknowledge(self) -> None:
        """The next `take_frames` acknowledges what has arrived, alone if nothing else leaves."""
        self._is_acknowledgement_due = True
        self._on_output(self)

    @property
    def owed_bytes(self) -> int:
        """What has arrived and is not acknowledged."""
        return self._delivered - self._announced

    @property
    def owes_much(self) -> bool:
        """Does the other end need an acknowledgement now, to go on?"""
        return self.owed_bytes >= ACK_BYTES or (self._owed_frames >= ACK_FRAMES and self.owed_bytes > 0)

    def receive(self, frame: TunnelFrame) -> bytes:
        """What a DATA or ACK brings that is new and in order. A gap closes the tunnel."""
        if frame.acknowledged > self._sent:
            self.ignored["acknowledgement"] += 1
            return b""
        if frame.sequence < self._received:
            self.ignored["duplicate"] += 1
            return b""
        if frame.sequence > self._received:
            self.break_off(f"{frame.sequence - self._received} bytes were lost on their way")
            return b""
        self._note_acknowledged(frame.acknowledged)
        return self._deliver(frame.data) if frame.data else b""

    def take_frames(self, max_frame_bytes: int) -> list[bytes]:
        """All that may leave now."""
        frames: list[bytes] = []
        if self.is_open:
            around = len(self._data_head) + NUMBERS.size + PROOF_BYTES
            full = min(MAX_DATA_BYTES, max_frame_bytes - around)
            room = WINDOW_BYTES - (self._sent - self._acknowledged)
            # What is left of the window is not filled with a small frame: each is a publication.
            while (size := min(self._waiting_bytes, full)) and size <= room and self._may_send():
                frames.append(self._take_data(size))
                room -= size
            if not frames and self._is_acknowledgement_due and self.closed_because is None:
                frames.append(self._take_acknowledgement())
        if self._is_close_due:
            self._is_close_due = False
            self._forget_waiting()
            reason = self.closed_because or ""
            closing = TunnelFrame(
                TunnelFrameKind.CLOSE, self._from_federator, self.number, self._me, reason=reason
            )
            frames.append(encode(closing, self._opening_seal))
        return frames

    def _note_acknowledged(self, position: int) -> None:
        self._acknowledged = max(self._acknowledged, position)
        while self._in_flight and self._in_flight[0] <= self._acknowledged:
            self._in_flight.popleft()
        if self._is_congested and self.unacknowledged_bytes < LOW_WATER_BYTES:
            self._is_congested = False
        if self._waiting:
            self._on_output(self)

    def _deliver(self, data: bytes) -> bytes:
        self._received += len(data)
        self._owed_frames += 1
        if self._is_reading:
            self._delivered += len(data)
            return data
        self._held.append(data)
        if self._received - self._delivered > WINDOW_BYTES or len(self._held) > WINDOW_FRAMES:
            self.break_off("the other end sends more than the window")
        return b""

    def _may_send(self) -> bool:
        return len(self._in_flight) < WINDOW_FRAMES

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = self._position = 0

    def _take_data(self, size: int) -> bytes:
        parts: list[bytes | memoryview] = [
            self._data_head,
            NUMBERS.pack(self._sent, self._delivered),
            *self._take_waiting(size),
        ]
        self._sent += size
        self._in_flight.append(self._sent)
        self._announce()
        return self._seal.close(parts)

    def _take_waiting(self, size: int) -> list[bytes | memoryview]:
        """The first `size` bytes of those waiting, which are not copied here."""
        parts: list[bytes | memoryview] = []
        self._waiting_bytes -= size
        while size:
            first, begin = self._waiting[0], self._position
            end = min(len(first), begin + size)
            parts.append(first if end - begin == len(first) else memoryview(first)[begin:end])
            size -= end - begin
            self._position = end
            if end == len(first):
                self._waiting.popleft()
                self._position = 0
        return parts

    def _take_acknowledgement(self) -> bytes:
        self._announce()
        numbers = TunnelFrame(
            TunnelFrameKind.ACK, self._from_federator, self.number, self._me, self._sent, self._delivered
        )
        return encode(numbers, self._seal)

    def _announce(self) -> None:
        self._announced = self._delivered
        self._owed_frames = 0
        self._is_acknowledgement_due = False
