"""One accepted connection: bytes between a transport and its `Connection` machine, nothing more.

A `Link` reads chunks into the machine and writes what the machine has to say, once per flush. It has
no task, timer or buffer of its own, because an idle node is ten thousand of these. One that the machine
closes lingers (see `open_sockets`).
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from typing import TYPE_CHECKING, Protocol, cast

from hedgerow.compiling import mypyc_attr

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection
    from hedgerow.node.part import NodeContext

# What a transport buffers before the machine is told to hold back and queue (and count, and drop)
# within its own limits. Each slow reader costs this much beside its queue.
WRITE_HIGH_WATER = 128 * 1024
WRITE_LOW_WATER = 32 * 1024

# uvloop reads 256,000 bytes at once, and when that much was there it reads the same socket again, up
# to 32 times, before it looks at another: a publisher that is never done kept others waiting for
# 85 ms. A link that filled its read therefore rests until the others had their turn, after 1 ms.
FULL_READ = 200_000

# Of Linux's struct tcp_info: 8 bytes, 11 numbers, and `tcpi_last_data_recv`.
_TCP_INFO = struct.Struct("=52xI")


class Entrance(Protocol):
    """Where a connection was accepted: what holds for it."""

    scheme: str
    anonymous: bool
    use_identity_as_username: bool
    use_subject_as_username: bool
    loopback: bool


@mypyc_attr(allow_interpreted_subclasses=True)  # links that fail, in tests
class Link(asyncio.Protocol):
    """MQTT straight over TCP or TLS."""

    __slots__ = ("address", "connection", "listener", "node", "paused", "resting", "transport")

    connection: Connection
    transport: asyncio.Transport

    def __init__(self, node: NodeContext, listener: Entrance, address: str) -> None:
        self.node = node
        self.listener = listener
        self.address = address
        self.paused = False
        self.resting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        node, listener = self.node, self.listener
        node.sockets.opened()
        self.connection = node.broker.open(
            node.clock(),
            self.address,
            listener.anonymous,
            user_of(transport, listener.use_identity_as_username, listener.use_subject_as_username),
            listener.scheme,
        )
        self.connection.link = self
        node.flush_soon()

    def data_received(self, data: bytes) -> None:
        node = self.node
        self.take(data, node.clock())
        node.flush_soon()
        if len(data) >= FULL_READ:
            self.rest()

    def take(self, data: bytes, now: float) -> None:
        """What was read goes to the machine; whoever calls this has the node flush."""
        try:
            self.connection.receive_data(data, now)
        except Exception as error:  # a mistake of ours, and a stranger chose the bytes
            self.connection.fail(error)

    def rest(self) -> None:
        """Read no more in this turn of the loop."""
        if not self.paused and not self.resting:
            self.resting = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Read again, unless the machine wishes otherwise."""
        self.resting = False
        if not self.paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def transmit(self) -> None:
        """Write what the machine has to say and follow its wishes; called for each dirty connection."""
        connection = self.connection
        data = connection.take_output()
        if data:
            self.transport.write(data)
        if connection.closing or connection.paused is not self.paused:
            self.follow(connection)

    def follow(self, connection: Connection) -> None:
        """Close, or stop or go on reading, as the machine wishes."""
        if connection.closing:
            self.close()
        elif connection.paused is not self.paused:
            self.paused = connection.paused
            if self.paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.connection.set_congested(True, self.node.clock())

    def resume_writing(self) -> None:
        node = self.node
        try:
            self.connection.set_congested(False, node.clock())
        except Exception as error:
            self.connection.fail(error)
        node.flush_soon()

    def silent_s(self) -> float:
        """How long ago the other end's last bytes came, though nobody may have read them yet."""
        opened = self.transport.get_extra_info("socket")
        try:
            told = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            (milliseconds,) = _TCP_INFO.unpack(told)
        except (OSError, AttributeError, struct.error):  # closed in this very moment, or not Linux
            return math.inf
        return float(milliseconds) / 1_000

    def close(self) -> None:
        """End the link for the machine now, and for the peer when it has read its last bytes."""
        self.detach()
        self.node.sockets.linger(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        # Mosquitto resets a connection on which it was sent a packet larger than its max_packet_size.
        self.detach(was_closed=error is None or isinstance(error, ConnectionError))
        self.node.sockets.closed()
        self.node.flush_soon()

    def detach(self, was_closed: bool = False) -> None:
        self.connection.link = None
        self.connection.lost(self.node.clock(), was_closed)


def user_of(transport: asyncio.BaseTransport, by_name: bool, by_subject: bool) -> str | None:
    """Whom the certificate proves, if it is asked."""
    if by_subject:
        return certificate_subject(transport)
    return certificate_name(transport) if by_name else None


def certificate_subject(transport: asyncio.BaseTransport) -> str | None:
    """The whole subject of the client certificate that the handshake verified, in the words of RFC 2253."""
    certificate = transport.get_extra_info("peercert")
    if not certificate or not certificate["subject"]:
        return None
    from hedgerow.node.subjects import write_subject

    return write_subject(certificate["subject"])


def certificate_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name of the client certificate that the handshake verified, if there was one."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
    return names[-1] if names else None
