"""The latency driver: how long one message takes from the publisher's send to the subscriber's receive.

Publisher and subscriber are two blocking sockets of this process, so both times are read from one
clock. `one_at_a_time` sends the next message when the last has arrived. `paced` sends by an absolute
schedule, whether or not earlier messages have arrived, so a broker that pauses is charged for every
message that it kept waiting.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque

from hedgerow_workshop.bench import BenchError

STALL_S = 5.0
_RECEIVE_BYTES = 65_536


class LatencyPair:
    """One publisher and one subscriber; `delivery` is what arrives for each `packet` sent."""

    def __init__(
        self,
        publisher: socket.socket,
        subscriber: socket.socket,
        packet: bytes,
        delivery: bytes,
        stray: bytes,
        stall_s: float = STALL_S,
    ) -> None:
        publisher.settimeout(None)
        subscriber.settimeout(None)
        # The kernel's own time limit: Python's would add a poll() to every receive.
        limit = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
        subscriber.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.publisher = publisher
        self.subscriber = subscriber
        self._packet = packet
        self._delivery = delivery
        self._stray = stray
        self._partial = b""
        self._stall_s = stall_s

    def one_at_a_time(self, seconds: float) -> list[int]:
        """Latencies in nanoseconds."""
        clock, send, packet = time.perf_counter_ns, self.publisher.send, self._packet
        latencies = []
        stop_at = clock() + int(seconds * 1e9)
        sent_at = clock()
        while sent_at < stop_at:
            send(packet)
            while self.receive() == 0:
                pass
            now = clock()
            latencies.append(now - sent_at)
            sent_at = clock()
        return latencies

    def paced(self, seconds: float, rate: int) -> list[int]:
        """Latencies in nanoseconds, of `rate` messages a second."""
        clock = time.perf_counter_ns
        interval = 1_000_000_000 // rate
        latencies: list[int] = []
        under_way: deque[int] = deque()
        next_at = clock()
        left = int(seconds * rate)
        heard_at = next_at
        while left or under_way:
            now = clock()
            if left and now >= next_at:
                under_way.append(clock())
                self.publisher.send(self._packet)
                left -= 1
                next_at += interval
                continue
            # select() because its timeout is in microseconds, epoll's in milliseconds.
            wait_s = (next_at - now) / 1e9 if left else self._stall_s
            readable, _, _ = select.select((self.subscriber,), (), (), wait_s)
            if readable:
                count = self.receive()
                heard_at = clock()
                latencies.extend(heard_at - under_way.popleft() for _ in range(count))
            elif under_way and clock() - heard_at > self._stall_s * 1e9:
                raise BenchError(
                    f"stalled: {len(under_way)} messages under way, nothing came for {self._stall_s:g} s"
                )
        return latencies

    def receive(self) -> int:
        """Wait for bytes; the number of deliveries that they complete."""
        try:
            data = self.subscriber.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            raise BenchError(f"stalled: a message did not arrive within {self._stall_s:g} s") from None
        if data == self._delivery:
            return 1
        if not data:
            raise BenchError("closed a connection between two messages")
        data = self._partial + data
        if self._stray:
            data = data.replace(self._stray, b"")
        count, rest = divmod(len(data), len(self._delivery))
        if data[: len(data) - rest] != self._delivery * count:
            raise BenchError(f"delivered something other than what was published: {data[:100]!r}")
        self._partial = data[len(data) - rest :]
        return count
