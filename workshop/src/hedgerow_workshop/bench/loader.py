"""The throughput driver: many messages through one broker, in a closed loop, at next to no cost of its own.

Everything that is sent was built beforehand, in chunks of hundreds of packets; everything that
arrives is counted by its size, since all packets of one kind are equally long. So a message costs
this process a share of two system calls and of a copy, not a step of the interpreter; `LoadMeasured.busy`
says how much of one core it took. Acknowledgements are made for a whole received chunk at once, with
strided slices (QoS 1) or two substitutions (QoS 2).

The loop is closed: at most `window` messages have been sent but not yet received by every subscriber
and, at QoS 1 and 2, acknowledged. Nothing can be dropped for want of room, so at the end of a run
every subscriber must have received exactly what was published; anything else is a `BenchError`, and
so is a broker from which nothing comes for `STALL_S`.
"""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.wire import PAYLOAD

STALL_S = 5.0
DRAIN_S = 30.0
"""However slowly: what is under way when the time is up must have arrived by then."""
_BUFFER_BYTES = 1 << 20
_POLL_S = 0.05
# A broker that writes every packet by itself (Mosquitto does) would wake this process for each of
# them. LoadMeasured against Mosquitto 2.0.11: the loader took 55 % of a core at QoS 0 and 97 % at QoS 2,
# and the wake-ups cost the broker a quarter of its QoS 0 throughput. Leaving small arrivals to pile
# up for a moment, with most of the window still under way, brings the loader to about 20 %.
_COALESCE_BYTES = 8_192
_COALESCE_S = 200e-6
_ACK_BYTES = 4
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP, _PUBLISH_QOS_2 = 0x40, 0x50, 0x62, 0x70, 0x34


class Connection:
    """A non-blocking socket whose unsent rest waits for room."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent = memoryview(b"")
        self.buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self._held = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.unsent:
            self.unsent = memoryview(b"".join((self.unsent, data)))
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.unsent = memoryview(data)[sent:]

    def flush(self) -> None:
        data, self.unsent = self.unsent, memoryview(b"")
        self.write(data)

    def receive(self) -> int:
        """Take what has arrived; the number of bytes."""
        try:
            size = self.socket.recv_into(self._view[self._held :])
        except BlockingIOError:
            return 0
        if size == 0:
            raise BenchError("closed a connection under load")
        filled = self._held + size
        used = self.take(filled)
        self._held = filled - used
        if self._held:
            self.buffer[: self._held] = self.buffer[used:filled]
        return size

    def take(self, filled: int) -> int:
        """Use whole packets of `buffer[:filled]`; how many bytes that was."""
        raise NotImplementedError


class Publisher(Connection):
    """Sends `packets` over and over, `chunk` of them at a time. QoS 0: nothing is acknowledged."""

    def __init__(self, connection: socket.socket, packets: Sequence[bytes], chunk: int) -> None:
        super().__init__(connection)
        if len(packets) % chunk:
            raise ValueError(f"{len(packets)} packets are no whole number of chunks of {chunk}")
        self._chunks = [
            memoryview(b"".join(packets[start : start + chunk])) for start in range(0, len(packets), chunk)
        ]
        self.chunk = chunk
        self._next = 0
        self.sent = 0

    @property
    def acknowledged(self) -> int:
        return self.sent

    def send_chunk(self) -> int:
        self.write(self._chunks[self._next])
        self._next = (self._next + 1) % len(self._chunks)
        self.sent += self.chunk
        return self.chunk

    def take(self, filled: int) -> int:
        return filled


class Qos1Publisher(Publisher):
    _acknowledged = 0

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    def take(self, filled: int) -> int:
        count = filled // _ACK_BYTES
        self._acknowledged += count
        return count * _ACK_BYTES


class Qos2Publisher(Qos1Publisher):
    def take(self, filled: int) -> int:
        """PUBREC and PUBCOMP come mixed; each PUBREC is answered with the PUBREL of its packet id."""
        count = filled // _ACK_BYTES
        used = count * _ACK_BYTES
        kinds = bytes(self.buffer[0:used:_ACK_BYTES])
        with memoryview(self.buffer) as view, view[:used].cast("I") as packets:
            received = array("I", list(compress(packets, map(_PUBREC.__eq__, kinds))))
        if received:
            answers = bytearray(received.tobytes())
            answers[0::_ACK_BYTES] = bytes((_PUBREL,)) * len(received)
            self.write(answers)
        self._acknowledged += kinds.count(_PUBCOMP)
        return used


class Subscriber(Connection):
    """Receives deliveries like `delivery`; `stray` is what may come between them unasked."""

    def __init__(self, connection: socket.socket, delivery: bytes, stray: bytes = b"") -> None:
        super().__init__(connection)
        self._size = len(delivery)
        self._stray = len(stray)
        self._bytes = 0

    @property
    def received(self) -> int:
        return self._bytes // self._size

    def take(self, filled: int) -> int:
        self._bytes += filled
        return filled

    def check(self, expected: int) -> None:
        """Once all has arrived: nothing more may have, but for strays."""
        surplus = self._bytes - expected * self._size
        if surplus % self._stray if self._stray else surplus:
            raise BenchError(f"delivered {surplus} bytes beyond the {expected} messages published")


class Qos1Subscriber(Subscriber):
    def __init__(self, connection: socket.socket, delivery: bytes, stray: bytes = b"") -> None:
        super().__init__(connection, delivery, stray)
        self._packet_id_at = self._size - len(PAYLOAD) - 2
        self._acks = bytearray(bytes((_PUBACK, 2, 0, 0)) * (_BUFFER_BYTES // self._size + 1))

    def take(self, filled: int) -> int:
        size, packet_id_at = self._size, self._packet_id_at
        count = filled // size
        used = count * size
        if count:
            acks = self._acks[: count * _ACK_BYTES]
            acks[2::_ACK_BYTES] = self.buffer[packet_id_at:used:size]
            acks[3::_ACK_BYTES] = self.buffer[packet_id_at + 1 : used : size]
            self.write(acks)
            self._bytes += used
        return used


class Qos2Subscriber(Subscriber):
    """PUBLISH and PUBREL come mixed and differ in length; their answers, PUBREC and PUBCOMP, do not.

    The payload and what precedes the packet id are constants: with the one deleted and the other
    replaced by PUBREC's first two bytes, a chunk has become four-byte packets, in order, of which
    only the PUBRELs' first byte is still to be changed to PUBCOMP's.
    """

    _answer = bytes.maketrans(bytes((_PUBREL,)), bytes((_PUBCOMP,)))

    def __init__(self, connection: socket.socket, delivery: bytes, stray: bytes = b"") -> None:
        super().__init__(connection, delivery, stray)
        self._head = delivery[: -len(PAYLOAD) - 2]
        self._released = 0

    @property
    def received(self) -> int:
        """Deliveries whose four-packet exchange is complete."""
        return min(self._released, self._bytes // self._size)

    def take(self, filled: int) -> int:
        used = self._whole(filled)
        if used:
            packets = bytes(self.buffer[:used]).replace(PAYLOAD, b"")
            answers = bytearray(packets.replace(self._head, bytes((_PUBREC, 2))))
            kinds = answers[0::_ACK_BYTES]
            answers[0::_ACK_BYTES] = kinds.translate(self._answer)
            self.write(answers)
            self._bytes += kinds.count(_PUBREC) * self._size
            self._released += kinds.count(_PUBREL)
        return used

    def _whole(self, filled: int) -> int:
        """Where the last whole packet ends: after the last payload come only PUBRELs, then a part."""
        last = self.buffer.rfind(PAYLOAD, 0, filled)
        start = 0 if last < 0 else last + len(PAYLOAD)
        part = self.buffer[start:filled:_ACK_BYTES].find(_PUBLISH_QOS_2)
        return start + (part if part >= 0 else (filled - start) // _ACK_BYTES) * _ACK_BYTES


PUBLISHERS: dict[int, type[Publisher]] = {0: Publisher, 1: Qos1Publisher, 2: Qos2Publisher}
SUBSCRIBERS: dict[int, type[Subscriber]] = {0: Subscriber, 1: Qos1Subscriber, 2: Qos2Subscriber}


@dataclass(frozen=True)
class LoadMeasured:
    messages: int
    seconds: float
    busy: float
    """The loader's own processor time as a share of the time that passed: below 1, it was waiting."""


class Load:
    """Publishers and subscribers of one broker; every subscriber receives what every publisher sends."""

    def __init__(
        self,
        publishers: Sequence[Publisher],
        subscribers: Sequence[Subscriber],
        window: int,
        stall_s: float = STALL_S,
    ) -> None:
        self._publishers = publishers
        self._subscribers = subscribers
        self._window = window
        self._stall_s = stall_s
        self._sent = 0
        self._turn = 0
        self._connections: dict[int, Connection] = {c.socket.fileno(): c for c in (*publishers, *subscribers)}
        self._waiting: set[int] = set()
        self._poll = select.epoll()
        for descriptor in self._connections:
            self._poll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for connection in self._connections.values():
            connection.socket.close()

    def run(self, seconds: float, messages: int | None = None) -> LoadMeasured:
        """Send for `seconds`, or so many `messages` (in whole chunks), and wait until all have arrived."""
        before = self._sent
        limit = None if messages is None else before + messages
        processor = time.process_time()
        started = heard_at = now = time.perf_counter()
        stop_at = started + seconds
        while True:
            if now < stop_at and (limit is None or self._sent < limit):
                self._send(limit)
            elif self._settled() == self._sent:
                break
            size = self._receive()
            if 0 < size < _COALESCE_BYTES:
                time.sleep(_COALESCE_S)
            now = time.perf_counter()
            if size:
                heard_at = now
            if now - heard_at > self._stall_s or now > stop_at + DRAIN_S:
                raise BenchError(self._stalled(before, now - heard_at))
        busy = (time.process_time() - processor) / (now - started)
        for subscriber in self._subscribers:
            subscriber.check(self._sent)
        return LoadMeasured(self._sent - before, now - started, busy)

    def _settled(self) -> int:
        """Messages that every subscriber has and that, at QoS 1 and 2, are acknowledged."""
        received = min(subscriber.received for subscriber in self._subscribers)
        return min(received, sum(publisher.acknowledged for publisher in self._publishers))

    def _send(self, limit: int | None) -> None:
        """One chunk from each publisher in turn, while the window has room."""
        may_reach = self._settled() + self._window
        if limit is not None:
            may_reach = min(may_reach, limit)
        blocked = 0
        while blocked < len(self._publishers) and self._sent + self._publishers[0].chunk <= may_reach:
            publisher = self._publishers[self._turn]
            self._turn = (self._turn + 1) % len(self._publishers)
            if publisher.unsent:
                blocked += 1
            else:
                self._sent += publisher.send_chunk()

    def _receive(self) -> int:
        """Wait for events and handle them; the number of bytes that came."""
        size = 0
        for descriptor, event in self._poll.poll(_POLL_S):
            connection = self._connections[descriptor]
            if event & select.EPOLLOUT:
                connection.flush()
            if event & ~select.EPOLLOUT:
                size += connection.receive()
        for descriptor, connection in self._connections.items():
            if bool(connection.unsent) != (descriptor in self._waiting):
                self._wait_for_room(descriptor, bool(connection.unsent))
        return size

    def _wait_for_room(self, descriptor: int, wait: bool) -> None:
        (self._waiting.add if wait else self._waiting.remove)(descriptor)
        self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wait else 0))

    def _stalled(self, before: int, silent_s: float) -> str:
        received = min(subscriber.received for subscriber in self._subscribers) - before
        acknowledged = sum(publisher.acknowledged for publisher in self._publishers) - before
        return (
            f"stalled: of {self._sent - before} messages sent, {acknowledged} were acknowledged "
            f"and {received} delivered to every subscriber; nothing came for {silent_s:.1f} s"
        )
