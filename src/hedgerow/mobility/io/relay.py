"""The transparent gateway of a mobile broker: bytes of clients to its fixed broker and back, unread.

Clients that cannot reach the fixed broker are sent to an address of the mobile one, where this listens. Each
connection is one more to the fixed broker, as it is at that moment. What one side does not take, the other is
not read for: nothing gathers here beyond the buffers of two sockets. A side that has said its last
(a half-close) may still be answered; when both have, or one breaks, both are closed. Connections count among
the node's open sockets, two each, and are admitted as its own clients are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, ClassVar, cast

from hedgerow.node.authority import authority
from hedgerow.node.dialling import DIAL_ERRORS, dial, explain_dial
from hedgerow.node.link import WRITE_HIGH_WATER, WRITE_LOW_WATER
from hedgerow.node.listener import Listener, bind, keep_alive
from hedgerow.node.lookups import Lookups
from hedgerow.node.values import Address

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

MAX_RELAYED = 1_000  # connections: a socket to the fixed broker for each would otherwise be anybody's to take
CLOSE_S = 30.0  # for last bytes, when one side has closed, to a client on a slow link
STOP_S = 2.0


@dataclass(slots=True)
class RelayFailed:
    level: ClassVar[int] = logging.WARNING
    address: str
    reason: str

    def __str__(self) -> str:
        return f"a client at {self.address} was not passed on to the fixed broker: {self.reason}"


class Relay:
    """`target()` is host and port of the fixed broker, or None while there is none."""

    def __init__(
        self,
        node: NodeContext,
        address: Address,
        target: Callable[[], tuple[str, int] | None],
        max_relayed: int = MAX_RELAYED,
    ) -> None:
        """Binds. Raises ConfigError."""
        self.node = node
        self.passed: set[Passage] = set()
        self._target = target
        self._max_relayed = max_relayed
        self._left = asyncio.Event()
        self._lookups = Lookups()
        self._dialling: set[asyncio.Task[None]] = set()
        self._listener = Listener(node, "relay", bind(address, "relay"), self._accepted)
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.address = authority(host, port)

    def start(self) -> None:
        self._listener.start()

    async def stop(self) -> None:
        """Nothing is left when it returns."""
        await self._listener.stop()
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for passage in list(self.passed):
            passage.abort()
        if self.passed:  # The loop tells them in its next turn.
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._left.wait()

    def _accepted(self, listener: Listener, address: str) -> End:
        return Passage(self, address).near

    def enter(self, passage: Passage) -> None:
        self.passed.add(passage)
        self._left.clear()
        self._begin(passage)

    def leave(self, passage: Passage) -> None:
        """Both of its sockets are closed."""
        self.passed.discard(passage)
        if not self.passed:
            self._left.set()

    def _begin(self, passage: Passage) -> None:
        target = self._target()
        if target is None:
            self._fail(passage, "no fixed broker is linked")
        elif len(self.passed) > self._max_relayed:
            self._fail(passage, f"{self._max_relayed:,} are passed on already")
        else:
            task = asyncio.get_running_loop().create_task(self._dial(passage, *target))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self, passage: Passage, host: str, port: int) -> None:
        async def open_to(found: str) -> None:
            if not self._listener.loopback and _is_own_machine(found):
                # A broker there may let everyone in, since only this machine reaches it. The configuration
                # cannot tell where a name leads (`_check_relay`), which may change at any time.
                raise ConnectionError(f"{host} is for clients of this machine alone, and the relay is not")
            try:
                await asyncio.get_running_loop().create_connection(lambda: passage.far, found, port)
            except asyncio.CancelledError:
                # In the moment in which it was opened, uvloop (0.23) closes it and does not say so.
                passage.far.connection_lost(None)
                raise

        try:
            await dial(self._lookups, host, open_to)
        except DIAL_ERRORS as error:
            self._fail(passage, explain_dial(error))
        except asyncio.CancelledError:
            passage.abort()
            raise

    def _fail(self, passage: Passage, reason: str) -> None:
        self.node.event_log.write(RelayFailed(passage.address, reason), self.node.clock())
        passage.abort()


def _is_own_machine(address: str) -> bool:
    """Linux takes the unspecified address for the loopback one."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    return found.is_loopback or found.is_unspecified


class Passage:
    """One client and its connection to the fixed broker."""

    def __init__(self, relay: Relay, address: str) -> None:
        self.relay = relay
        self.address = address
        self.near = End(self)
        self.far = End(self)
        self.near.other, self.far.other = self.far, self.near
        self._closing: asyncio.TimerHandle | None = None

    def opened(self, end: End) -> None:
        self.relay.node.sockets.opened()
        if end is self.near:
            self.relay.enter(self)
        elif self.near.is_open:
            self.near.pass_on()
        else:
            end.abort()  # The client has left meanwhile.

    def lost(self, end: End) -> None:
        self.relay.node.sockets.closed()
        if end.other.is_open:
            self.close()
        else:
            if self._closing is not None:
                self._closing.cancel()
            self.relay.leave(self)

    def close(self) -> None:
        """What was passed on still leaves, unless its reader takes too long."""
        for end in (self.near, self.far):
            end.close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        self.near.abort()
        self.far.abort()


class End(asyncio.Protocol):
    """One of the two sockets."""

    __slots__ = ("_early", "_passage", "has_ended", "is_open", "other", "transport")

    other: End
    transport: asyncio.Transport

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.is_open = False
        self.has_ended = False
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        keep_alive(transport.get_extra_info("socket"))
        self.is_open = True
        self._passage.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.other.is_open:
            self.other.transport.write(data)
        elif self is self._passage.near:
            # Before the fixed broker has answered. uvloop starts to read whatever one says to it before.
            self._early += data
            self.pause_reading()

    def pass_on(self) -> None:
        """The other side is there."""
        self.resume_reading()
        if self._early:
            self.other.transport.write(self._early)
            self._early = b""
        if self.has_ended:
            self._end_other()

    def eof_received(self) -> bool:
        """The transport stays open, for what the other side still says."""
        self.has_ended = True
        if self.other.has_ended:
            self._passage.close()
        elif self.other.is_open:
            self._end_other()
        return True

    def _end_other(self) -> None:
        transport = self.other.transport
        if not transport.is_closing():
            with suppress(OSError, RuntimeError):  # reset in this very moment; uvloop has its own words
                transport.write_eof()

    def pause_writing(self) -> None:
        if self.other.is_open:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other.is_open:
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._passage.lost(self)

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        if self.is_open:
            self.transport.close()

    def abort(self) -> None:
        if self.is_open:
            self.transport.abort()
