"""A client's end of an open TCP or TLS connection: bytes in, bytes out, and why it ended.

It knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from hedgerow.errors import ConnectError
from hedgerow.node.link_errors import explain

WRITE_HIGH_WATER = 256 * 1024
WRITE_LOW_WATER = 64 * 1024

# A link that was closed with bytes still to write gets this long; a dead peer would hold it for ever.
CLOSE_TIMEOUT_S = 2.0


class ClientLink(asyncio.Protocol):
    """`on_data` gets every chunk; `opened` and `closed` are what they say, `closed` with the reason."""

    transport: asyncio.Transport

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        self.begin()

    def begin(self) -> None:
        """The transport is there; what else has to happen until bytes may flow?"""
        self.opened.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():  # uvloop raises, and the loss is about to be told anyway
            self.transport.write(data)

    def set_reading(self, reading: bool) -> bool:
        """Read on, or leave what arrives to the network. False: the link is about to end."""
        if self.transport.is_closing():
            return False
        if reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
        return True

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        reason = explain(error) if error is not None else "the server closed the link"
        self.writable.set()
        if not self.opened.done():
            self.opened.set_exception(ConnectError(reason))
            self.opened.exception()  # seen: the one who waits for it may have given up
        self.closed.set_result(reason)

    def close(self) -> None:
        """Write what is left, and end.

        Closing a socket with unread input resets it, and the reset can overtake our last bytes: the
        server would take a clean DISCONNECT for a lost link and publish the will. So only the sending
        side is shut, and what still arrives is thrown away until the server closes its side.
        """
        self._on_data = _discard
        if self._giving_up is not None or self.transport.is_closing():
            return
        self._giving_up = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.transport.abort)
        try:
            if self.transport.can_write_eof():
                self.transport.resume_reading()
                self.transport.write_eof()
            else:
                self.transport.close()  # TLS: says so to the server, and discards until its answer
        except OSError:  # reset in this very moment
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()


def _discard(data: bytes) -> None:
    pass
