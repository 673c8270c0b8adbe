"""The link of a connection that this node dialled: to a bridge's far broker, a neighbour or a fixed broker.

It is like the link of a client that connected here, once it is open: bytes go to its machine, and what the
machine has to say is written when the node flushes.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from hedgerow.broker.dialled import DialledConnection
from hedgerow.node.link import WRITE_HIGH_WATER, WRITE_LOW_WATER, Link
from hedgerow.node.link_errors import explain

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

# A kernel takes megabytes for a slow link. Behind them a live message waited for the whole of a backlog of
# 1.4 MB; what the kernel does not take waits in the session, and what is live goes before it.
UNSENT_BYTES = 128 * 1024
UNSENT_BYTES_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", 12)  # Linux; elsewhere setting it fails, and costs 40 ms


class FarLink(Link):
    """`open_connection(link, now)` makes its machine."""

    __slots__ = ("_is_lost", "_open_connection")

    def __init__(
        self, node: NodeContext, address: str, open_connection: Callable[[FarLink, float], DialledConnection]
    ) -> None:
        self.node = node
        self.address = address
        self.paused = False
        self.resting = False
        self._open_connection = open_connection
        self._is_lost = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        if UNSENT_BYTES_OPTION is not None:
            opened = transport.get_extra_info("socket")
            opened.setsockopt(socket.IPPROTO_TCP, UNSENT_BYTES_OPTION, UNSENT_BYTES)
        self._is_lost = False
        self.node.sockets.opened()
        self.connection = self._open_connection(self, self.node.clock())
        self.connection.link = self
        self.node.flush_soon()

    def unacknowledged_bytes(self) -> int:
        """What was written and the far host's kernel has not taken yet."""
        waiting = self.transport.get_write_buffer_size()
        opened = self.transport.get_extra_info("socket")
        try:
            answer = fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except (OSError, AttributeError, ValueError):  # closed in this very moment
            return waiting
        (unsent,) = struct.unpack("i", answer)
        return waiting + int(unsent)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        connection = self.connection
        if isinstance(connection, DialledConnection) and connection.is_hurried:
            with suppress(OSError):
                opened = self.transport.get_extra_info("socket")
                opened.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)

    async def open(self, host: str, port: int, **options: Any) -> None:
        """Dial, as `create_connection` does. Who is cancelled meanwhile leaves nothing open."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, host, port, **options)
        except asyncio.CancelledError:
            # In the moment in which the link was opened, uvloop (0.23) closes it and does not say so.
            self.connection_lost(None)
            raise

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if isinstance(error, ssl.SSLError):
            # TLS 1.3 tells a client that it lacks a certificate when its handshake is done already.
            self.node.broker.now = self.node.clock()
            self.connection.end(explain(error))
        super().connection_lost(error)
