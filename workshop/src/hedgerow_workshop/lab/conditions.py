"""What a link does to what it carries, without I/O: `Conditions`, and `Direction`, which applies them.

It is told the time and given the chances; `links` puts it between sockets. What enters first waits for the
bandwidth, which everyone on the link shares, then travels for delay and jitter. All conditions may change
meanwhile.

Of a stream every byte arrives once and in order, whatever the conditions. A lost segment is one that comes
late, with all that follows it, by the time that a real sender takes to send it again: a round trip when three
more segments came right behind it (fast retransmit, RFC 5681 §3.2), else a retransmission timeout, doubled
each time that it is lost again. Datagrams are lost, held back so that others overtake them, dropped beyond
the bounds (tail drop), and dropped by a cut, those on their way too.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random

MAX_HELD_BYTES = 16 << 20  # on their way in one direction: 160 MB/s for 100 ms
MAX_HELD_PIECES = 65_536  # datagrams may be empty
SEGMENT_BYTES = 1_460  # Ethernet's 1,500 without the headers of IP and TCP
FAST_RETRANSMIT_SEGMENTS = 3
MIN_TIMEOUT_S = 0.2  # Linux waits a round trip and at least this (TCP_RTO_MIN)
MAX_TIMEOUTS = 6
PIECE_S = 0.005  # bytes that wait for the bandwidth leave in pieces of this long, not in bursts of a read


class Ending(enum.Enum):
    """How a TCP stream ends; it travels behind the bytes."""

    FINISHED = "FIN"
    RESET = "RST"


Data = bytes | memoryview | Ending


@dataclass(slots=True, frozen=True, kw_only=True)
class Conditions:
    """What one direction of a link does to what it carries."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """On top of the delay, from 0 to this, evenly. It keeps the order."""
    loss: float = 0.0
    """The share of datagrams, or of TCP segments, that is lost."""
    bandwidth_bits_per_s: float = math.inf
    reorder: float = 0.0
    """The share of datagrams that is held back for `reorder_s`, while others pass. Not for TCP."""
    reorder_s: float = 0.01
    queue_bytes: int = 256 << 10
    """How much may wait for the bandwidth."""

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s", "reorder_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is a time from 0, not {getattr(self, name)}")
        for name in ("loss", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {getattr(self, name)}")
        if not self.bandwidth_bits_per_s > 0 or self.queue_bytes <= 0:
            raise ValueError("bandwidth and queue are more than 0; cut() lets nothing pass")


@dataclass(slots=True)
class Counters:
    """Of one direction, since it began."""

    bytes: int = 0
    """Delivered."""
    datagrams: int = 0
    """Delivered."""
    dropped: int = 0
    """Datagrams that were not: by loss, by a full queue, by a cut, by the far side's socket."""
    retransmitted: int = 0
    """TCP segments that came late."""


class Flow:
    """What keeps an order in one direction: the bytes of a TCP connection, or a UDP client's datagrams."""

    __slots__ = ("deliver", "last_at", "loss", "passing", "random", "resume")

    def __init__(self, deliver: Callable[[Data], bool], random: Random) -> None:
        self.deliver = deliver
        self.resume: Callable[[], None] | None = None
        self.random = random
        self.last_at = 0.0
        self.loss = 0.0
        self.passing = math.inf  # segments before the next one that is lost, while `loss` stays as it is


@dataclass(slots=True)
class Piece:
    flow: Flow
    data: Data
    size: int
    entered_at: float
    late_s: float
    in_order: bool = True


class Direction:
    """One way through a link. It is told the time, and reads no socket itself."""

    def __init__(self, conditions: Conditions, is_stream: bool) -> None:
        self.conditions = conditions
        self.counters = Counters()
        self.is_cut = False
        self.held_bytes = 0
        self.waiting: dict[Flow, None] = {}  # flows that are not read while it is full, in their order
        self._is_stream = is_stream
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._free_at = 0.0  # when the last piece had left
        self._travelling: list[tuple[float, int, Piece]] = []
        self._number = 0

    @property
    def is_full(self) -> bool:
        return (
            self.is_cut
            or self._queued_bytes >= self.conditions.queue_bytes
            or self.held_bytes >= MAX_HELD_BYTES
            or len(self._queue) + len(self._travelling) >= MAX_HELD_PIECES
        )

    def enter(self, flow: Flow, data: Data, now: float, round_trip_s: float) -> None:
        if self._is_stream:
            for part, late_s in self._parts(flow, data, round_trip_s):
                self._append(Piece(flow, part, _size(part), now, late_s))
            return
        conditions = self.conditions
        # Always the same draws for a datagram, so that one condition does not change what another does.
        lost, jitter, held_back = flow.random.random(), flow.random.random(), flow.random.random()
        if lost < conditions.loss or self.is_full:
            self.counters.dropped += 1
            return
        late_s, in_order = jitter * conditions.jitter_s, True
        if held_back < conditions.reorder:
            late_s, in_order = late_s + conditions.reorder_s, False
        self._append(Piece(flow, data, _size(data), now, late_s, in_order))

    def _append(self, piece: Piece) -> None:
        self._queue.append(piece)
        self._queued_bytes += piece.size
        self.held_bytes += piece.size

    def _parts(self, flow: Flow, data: Data, round_trip_s: float) -> Iterator[tuple[Data, float]]:
        """Cut where a segment is lost, and small enough for the bandwidth; with what each is late by."""
        conditions = self.conditions
        jitter_s = flow.random.random() * conditions.jitter_s
        if isinstance(data, Ending):
            yield data, jitter_s
            return
        if flow.loss != conditions.loss:
            flow.loss = conditions.loss
            flow.passing = _draw_passing(flow)
        most = max(conditions.bandwidth_bits_per_s / 8 * PIECE_S // SEGMENT_BYTES, 1)
        view, start = memoryview(data), 0
        while start < len(data):
            left = math.ceil((len(data) - start) / SEGMENT_BYTES)
            if flow.passing:
                segments, late_s = int(min(left, most, flow.passing)), 0.0
                flow.passing -= segments
            else:
                segments, late_s = 1, _retransmission_s(flow, left - 1, round_trip_s)
                flow.passing = _draw_passing(flow)
                self.counters.retransmitted += 1
            end = start + segments * SEGMENT_BYTES
            yield view[start:end], jitter_s + late_s
            start = end

    def advance(self, now: float) -> float | None:
        """Deliver what is due; returns when there is more to do."""
        if self.is_cut:
            return None
        leaves_at = self._leave(now)
        while self._travelling and self._travelling[0][0] <= now:
            _, _, piece = heappop(self._travelling)
            self.held_bytes -= piece.size
            if not piece.flow.deliver(piece.data):
                self.counters.dropped += not self._is_stream
                continue
            self.counters.bytes += piece.size
            self.counters.datagrams += not self._is_stream
        if self.waiting and not self.is_full:
            waiting, self.waiting = self.waiting, {}
            for flow in waiting:
                if flow.resume is not None:
                    flow.resume()
        times = [at for at in (leaves_at, self._travelling[0][0] if self._travelling else None) if at]
        return min(times, default=None)

    def _leave(self, now: float) -> float | None:
        """Let go what the bandwidth has let through by now; returns when the next piece will be."""
        conditions = self.conditions
        while self._queue:
            piece = self._queue[0]
            left_at = max(self._free_at, piece.entered_at)
            left_at += piece.size * 8 / conditions.bandwidth_bits_per_s
            if left_at > now:
                return left_at
            self._queue.popleft()
            self._queued_bytes -= piece.size
            self._free_at = left_at
            at = left_at + conditions.delay_s + piece.late_s
            if piece.in_order:
                at = piece.flow.last_at = max(at, piece.flow.last_at)
            self._number += 1
            heappush(self._travelling, (at, self._number, piece))
        return None

    def cut(self) -> None:
        self.is_cut = True
        if self._is_stream:
            return
        self.counters.dropped += len(self._queue) + len(self._travelling)
        for _, _, piece in self._travelling:
            piece.flow.last_at = 0.0  # nobody waits behind what is gone
        self._queue.clear()
        self._travelling.clear()
        self._queued_bytes = self.held_bytes = 0

    def restore(self, now: float) -> None:
        """Bytes that were held travel the whole way from now on: their sender sends them again."""
        self.is_cut = False
        self._free_at = max(self._free_at, now)
        again_at = now + self.conditions.delay_s
        self._travelling = [(max(at, again_at), number, piece) for at, number, piece in self._travelling]
        heapify(self._travelling)
        for _, _, piece in self._travelling:
            piece.flow.last_at = max(piece.flow.last_at, again_at)


def _size(data: Data) -> int:
    return 0 if isinstance(data, Ending) else len(data)


def _draw_passing(flow: Flow) -> float:
    """How many segments pass before one is lost: the geometric distribution, in one draw."""
    if flow.loss in (0, 1):
        return math.inf if flow.loss == 0 else 0
    return math.log(1 - flow.random.random()) // math.log(1 - flow.loss)


def _retransmission_s(flow: Flow, segments_behind: int, round_trip_s: float) -> float:
    timeout_s = round_trip_s + MIN_TIMEOUT_S
    late_s = round_trip_s
    if segments_behind < FAST_RETRANSMIT_SEGMENTS:
        late_s, timeout_s = timeout_s, 2 * timeout_s
    for _ in range(MAX_TIMEOUTS):
        if flow.random.random() >= flow.loss:
            break
        late_s, timeout_s = late_s + timeout_s, 2 * timeout_s
    return late_s
