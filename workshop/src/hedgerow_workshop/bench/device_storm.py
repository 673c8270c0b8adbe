"""Thousands of clients that connect at once: how fast a broker lets them in.

At most `at_once` of them are between their SYN and their last answer. Each sends its packets one after the
other, the next one when the last is answered.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.device_loader import Socket

# The kernel drops what is beyond a listener's backlog, and tries again a second later. Mosquitto's is 100.
AT_ONCE = 64
STALL_S = 20.0
_MAX_EVENTS = 1_024
_RECEIVE_BYTES = 4_096


class Storm:
    """`packets[i]` is what client i sends, each with the first bytes of its answer.

    `on_open` is given each socket when all is answered, and what else came with the last answer.
    """

    def __init__(
        self,
        port: int,
        packets: Sequence[Sequence[tuple[bytes, bytes]]],
        on_open: Callable[[int, Socket, bytes], None],
        *,
        context: ssl.SSLContext | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._port = port
        self._packets = packets
        self._on_open = on_open
        self._context = context
        self._at_once = at_once
        self._poll = select.epoll()
        self._opening: dict[int, _Opening] = {}
        self._next = 0
        self.opened = 0

    @property
    def is_over(self) -> bool:
        return self.opened == len(self._packets)

    def run(self) -> float:
        """Until all are in; how many seconds that took."""
        started = heard_at = time.perf_counter()
        try:
            while not self.is_over:
                if self.turn(0.05):
                    heard_at = time.perf_counter()
                elif time.perf_counter() - heard_at > STALL_S:
                    raise BenchError(f"stalled: {self.opened} of {len(self._packets)} clients were let in")
            return time.perf_counter() - started
        finally:
            self.close()

    def close(self) -> None:
        self._poll.close()
        for opening in self._opening.values():
            opening.connection.close()
        self._opening.clear()

    def turn(self, timeout_s: float) -> int:
        while self._next < len(self._packets) and len(self._opening) < self._at_once:
            self._open(self._next)
            self._next += 1
        events = self._poll.poll(timeout_s, _MAX_EVENTS)
        for descriptor, _ in events:
            opening = self._opening[descriptor]
            wanted = opening.go_on()
            if wanted:
                self._poll.modify(descriptor, wanted)
            else:
                self._poll.unregister(descriptor)
                del self._opening[descriptor]
                self.opened += 1
                self._on_open(opening.number, opening.connection, opening.surplus)
        return len(events)

    def _open(self, number: int) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = connection.connect_ex(("127.0.0.1", self._port))
        if error not in (0, errno.EINPROGRESS):
            connection.close()
            raise BenchError(f"refused a connection: {errno.errorcode.get(error, error)}")
        opening = _Opening(number, connection, self._packets[number], self._context)
        self._opening[connection.fileno()] = opening
        self._poll.register(connection.fileno(), select.EPOLLOUT)


class _Opening:
    """One client on its way in."""

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        packets: Sequence[tuple[bytes, bytes]],
        context: ssl.SSLContext | None,
    ) -> None:
        self.number = number
        self.connection: Socket = connection
        self.surplus = b""
        self._packets = packets
        self._context = context
        self._sent = 0

    def go_on(self) -> int:
        """What to wait for next; 0: it is open."""
        if self._sent == 0:
            if self._context is not None:
                wanted = self._shake_hands(self._context)
                if wanted:
                    return wanted
            return self._send()
        try:
            received = self.connection.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return select.EPOLLIN
        except OSError as error:
            raise BenchError(f"let nobody in: {error}") from None
        expected = self._packets[self._sent - 1][1]
        received = self.surplus + received
        if len(received) < len(expected) and received:
            self.surplus = received
            return select.EPOLLIN
        if not received.startswith(expected):
            raise BenchError(f"answered {received[:20]!r} instead of {expected!r}")
        self.surplus = received[len(expected) :]
        return self._send() if self._sent < len(self._packets) else 0

    def _send(self) -> int:
        try:
            self.connection.send(self._packets[self._sent][0])
        except OSError as error:
            raise BenchError(f"let nobody in: {error}") from None
        self._sent += 1
        return select.EPOLLIN

    def _shake_hands(self, context: ssl.SSLContext) -> int:
        if not isinstance(self.connection, ssl.SSLSocket):
            self.connection = context.wrap_socket(self.connection, do_handshake_on_connect=False)
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return select.EPOLLIN
        except ssl.SSLWantWriteError:
            return select.EPOLLOUT
        except OSError as error:
            raise BenchError(f"the TLS handshake failed: {error}") from None
        return 0
