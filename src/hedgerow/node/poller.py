"""The plain TCP sockets of a node, all in one epoll.

Hundreds of devices that each say little are hundreds of reads a turn, and a transport of the event loop does
as much around each read as the broker does with the message. So the sockets of a `Poller` are in an epoll of
their own, which the event loop watches as if it were one socket. When any of them is ready, one call lists
all that are, and one loop reads each, gives its `Link` what came, and has the node flush once.

A `PolledSocket` is the transport of such a `Link`, with those methods of asyncio's that are used here.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from hedgerow.node.link import WRITE_HIGH_WATER, WRITE_LOW_WATER, Link
from hedgerow.node.server import FLUSH_BYTES, FLUSH_WORK

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

logger = logging.getLogger(__name__)

MOST_READY: Final = 1_024  # in a turn; the others come first in the next
# Most reads bring one small packet, and whoever fills such a read gets more room in the next turns, one read
# in each. A stream that is cut often has more writes at all who get it, and more packets in two pieces: with
# 64 KiB one publisher to ten subscribers took a third more of the processor.
SMALL_READ: Final = 4 * 1024
LARGE_READ: Final = 256_000
# The pieces of a stream are freed as fast as they are made. The C library gives free memory at the end of its
# heap back beyond twice the largest piece that was ever mapped by itself and freed, so that all pages of each
# chunk were faulted in anew: two fifths of what a stream took. One such piece ends that.
LARGE_PIECE: Final = 1024 * 1024

# A loop that is woken for every few of many sockets spends more time on falling asleep, on being woken and on
# small writes than on messages, and so does whoever wakes it. Then it rests until there are more of them.
BUSY_PER_S: Final = 40_000.0  # Reads a second. With fewer nobody waits for others. Half of it ends the rests.
MOST_EACH_PER_S: Final = 1_000.0  # Reads of one socket. Few fast clients may each wait for our answer.
FEW: Final = 32  # in a turn: with more there is no need to rest
REST_S: Final = 0.0002
WINDOW_S: Final = 0.02  # in which reads and their sockets are counted

EPOLLIN: Final = 1
EPOLLOUT: Final = 4


def can_poll() -> bool:
    """Has this system epoll? Without, sockets are left to the event loop."""
    return hasattr(select, "epoll")


class Poller:
    """Reads what has come for all of its sockets, turn by turn of the event loop."""

    def __init__(self, node: NodeContext) -> None:
        self.loop = asyncio.get_running_loop()
        self.sockets: dict[int, PolledSocket] = {}
        self._node = node
        self.epoll: Any = select.epoll()
        self._pace = ReadPace()
        self._buffer: memoryview | None = None  # for large reads, of all sockets
        self.loop.add_reader(self.epoll.fileno(), self.turn)

    def add(self, accepted: socket.SocketType, link: Link) -> None:
        """Serve a connected socket that does not block."""
        polled = PolledSocket(self, accepted, link)
        self.sockets[polled.descriptor] = polled
        try:
            link.connection_made(polled)  # type: ignore[arg-type]
        except BaseException:
            self.sockets.pop(polled.descriptor, None)
            raise
        try:
            polled.resume_reading()
        except BaseException:  # The system watches no more. Whoever called closes the socket, too.
            polled.abort()
            raise

    @property
    def buffer(self) -> memoryview:
        """Where large reads go before their size is known; made for the first stream."""
        if self._buffer is None:
            bytearray(LARGE_PIECE)  # Compiled code makes no bytes of a number.
            self._buffer = memoryview(bytearray(LARGE_READ))
        return self._buffer

    def close(self) -> None:
        """When there are no sockets any more."""
        if not self.epoll.closed:
            self.loop.remove_reader(self.epoll.fileno())
            self.epoll.close()

    def turn(self) -> None:
        """Read from every socket that is ready, and flush. Called by the event loop."""
        node, sockets = self._node, self.sockets
        broker = node.broker
        stats = broker.stats
        pace = self._pace
        window = pace.window
        now = node.clock()
        ready: list[tuple[int, int]] = self.epoll.poll(0, MOST_READY)
        most_work, most_bytes = broker.work + FLUSH_WORK, stats.bytes_received + FLUSH_BYTES
        for descriptor, event in ready:
            polled = sockets.get(descriptor)
            if polled is None:
                continue  # It ended in this turn.
            if polled.window != window:
                polled.window = window
                pace.sockets += 1
            try:
                if event == EPOLLIN or polled.handle_writable(event):
                    polled.read(now)
            except Exception:  # a mistake of ours in one socket must not keep the others waiting
                logger.exception("serving a socket failed")
                polled.abort()
            if broker.work > most_work or stats.bytes_received > most_bytes:
                node.flush()
                now = node.clock()
                most_work, most_bytes = broker.work + FLUSH_WORK, stats.bytes_received + FLUSH_BYTES
        node.flush()
        if pace.is_to_rest(now, len(ready)):
            time.sleep(REST_S)


class ReadPace:
    """Whether a loop should rest before it looks for the next that are ready."""

    __slots__ = ("_began_at", "_reads", "_rests", "sockets", "window")

    def __init__(self) -> None:
        self.window = 1  # its number; each socket knows when it was last read
        self.sockets = 0  # that were read in it
        self._began_at = 0.0
        self._reads = 0
        self._rests = False

    def is_to_rest(self, now: float, reads: int) -> bool:
        """After a turn of so many reads."""
        self._reads += reads
        passed_s = now - self._began_at
        if passed_s >= WINDOW_S:
            enough = BUSY_PER_S / 2 if self._rests else BUSY_PER_S
            self._rests = enough * passed_s < self._reads < MOST_EACH_PER_S * passed_s * self.sockets
            self._began_at = now
            self._reads = self.sockets = 0
            self.window += 1
        return self._rests and reads < FEW


class PolledSocket:
    """A transport. Its protocol is a `Link`, and in the end a `Lingering`."""

    __slots__ = (
        "_congested",
        "_ends",
        "_is_closing",
        "_is_lost",
        "_is_reading",
        "_link",
        "_poller",
        "_protocol",
        "_room",
        "_socket",
        "_unsent",
        "_watched",
        "descriptor",
        "window",
    )

    def __init__(self, poller: Poller, opened: socket.SocketType, link: Link) -> None:
        self._poller = poller
        self._socket = opened
        self._link: Link | None = link
        self._protocol: asyncio.Protocol = link
        self.descriptor = opened.fileno()
        self.window = 0  # in which it was last read
        self._room = SMALL_READ
        self._unsent: bytearray | None = None
        self._watched = 0  # what epoll looks for; 0: it does not know the socket
        self._congested = False
        self._ends = False  # for the peer, when all is sent
        self._is_reading = False
        self._is_closing = False
        self._is_lost = False

    # In

    def read(self, now: float) -> None:
        """Take what has come; if there is more, epoll lists the socket again."""
        if not self._is_reading:
            return
        room = self._room
        try:
            data: bytes
            if room == SMALL_READ:
                data = self._socket.recv(SMALL_READ)
            else:
                buffer = self._poller.buffer
                # A step of its own: within the slice, compiled code reads twice, and what came first is lost.
                size: int = self._socket.recv_into(buffer)
                data = buffer[:size].tobytes()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self.close()
            return
        link = self._link
        if link is not None:
            link.take(data, now)
        else:
            self._protocol.data_received(data)
        if len(data) == room:
            self._room = LARGE_READ
        elif len(data) < SMALL_READ:
            self._room = SMALL_READ

    def pause_reading(self) -> None:
        self._is_reading = False
        self._watch()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._watch()

    def _watch(self) -> None:
        """Have epoll look for what there is to do."""
        if self._is_lost:
            return
        wanted = (EPOLLIN if self._is_reading else 0) | (0 if self._unsent is None else EPOLLOUT)
        watched = self._watched
        if wanted == watched:
            return
        if not watched:
            self._poller.epoll.register(self.descriptor, wanted)
        elif wanted:
            self._poller.epoll.modify(self.descriptor, wanted)
        else:
            self._poller.epoll.unregister(self.descriptor)
        self._watched = wanted

    # Out

    def write(self, data: bytes) -> None:
        if self._is_closing or self._ends:
            return
        if self._unsent is not None:
            self._unsent += data
        else:
            try:
                sent: int = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            self._unsent = bytearray(data[sent:])
            self._watch()
        if not self._congested and len(self._unsent) > WRITE_HIGH_WATER:
            self._congested = True
            self._protocol.pause_writing()

    def handle_writable(self, event: int) -> bool:
        """Send more, if there is any. True: there is something to read as well, or an error in its place."""
        unsent = self._unsent
        if unsent is not None and event != EPOLLIN:
            try:
                sent: int = self._socket.send(unsent)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return False
            del unsent[:sent]
            if self._congested and len(unsent) <= WRITE_LOW_WATER:
                self._congested = False
                self._protocol.resume_writing()
            if not unsent and not self._is_lost:
                self._unsent = None
                self._sent_all()
        return event != EPOLLOUT

    def _sent_all(self) -> None:
        if self._is_closing:
            self._lose(None)
            return
        self._watch()
        if self._ends:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._lose(error)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ends and not self._is_closing:
            self._ends = True
            if self._unsent is None:
                self._socket.shutdown(socket.SHUT_WR)

    def get_write_buffer_size(self) -> int:
        return 0 if self._unsent is None else len(self._unsent)

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """When all is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            if self._unsent is None:
                self._lose(None)
            else:
                self._watch()

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_reading = False
        self._unsent = None
        self._watch()
        self._is_lost = self._is_closing = True
        self._poller.sockets.pop(self.descriptor, None)
        self._poller.loop.call_soon(self._handle_lost, error)

    def _handle_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()

    # What else links and lingering sockets ask for

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._link = protocol if isinstance(protocol, Link) else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """They are a `Link`'s for all."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "sockname":
            return self._socket.getsockname()
        return self._socket.getpeername() if name == "peername" else default
