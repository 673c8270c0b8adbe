"""A `Client` machine on a link: bytes, its timer, and what became of its connection.

A `Line` has one link at a time and may have several one after the other, as the machine may. It decides
nothing: `driver.py` says where to connect and when, and is told every event.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from hedgerow.client.dial import dial
from hedgerow.client.link import ClientLink
from hedgerow.client.options import ServerRoute
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConfigError
from hedgerow.mqtt.client.client import Client, ClientState
from hedgerow.mqtt.client.events import Connected, Disconnected, Event, Refused
from hedgerow.node.clock import SteadyClock

Outcome = Connected | Refused | Disconnected

# Output that one turn of the event loop collects before it is written.
_FLUSH_BYTES = 64 * 1024


class Line:
    def __init__(
        self,
        client: Client,
        clock: SteadyClock,
        on_connection: Callable[[Line, Outcome], None],
        on_events: Callable[[Line, list[Event]], None],
    ) -> None:
        """`on_connection` gets what begins and ends connections, before `on_events` gets all events."""
        self.client = client
        self._link: ClientLink | None = None
        self.address: BusUrl | None = None  # of the last attempt
        self.session_present = False
        self._clock = clock
        self._on_connection = on_connection
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self.ended: asyncio.Future[Disconnected] = self._loop.create_future()
        self._news = asyncio.Event()
        """Set with everything that comes, where someone waits for something in particular."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._unflushed = 0
        self._reading = True

    # From a connection's begin to its end.

    async def attempt(
        self, address: BusUrl, tls: ssl.SSLContext | None, timeout_s: float, route: ServerRoute
    ) -> Outcome:
        """Open a link and connect. What became of it; ConnectError when there is no link."""
        self._outcome = self._loop.create_future()
        self.ended = self._loop.create_future()
        self.address = address
        link = await dial(address, tls, timeout_s, self._receive, route)
        self._link = link
        link.closed.add_done_callback(lambda closed: self._link_lost(link, closed.result()))
        self._reading = True
        try:
            self.client.connect(self._clock())
            self.flush()
            self._arm_timer()
            outcome = await self._outcome
        except ValueError as error:  # what was asked for cannot be said in this version
            link.abort()
            raise ConfigError(f"cannot connect to {address}: {error}") from None
        except BaseException:
            link.abort()
            raise
        if not isinstance(outcome, Connected):
            await asyncio.wait([link.closed])  # Whoever gives up waiting must not cancel it.
        return outcome

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that the machine is to hear; False when it will not, or not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self.ended.done():
                        return False
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> asyncio.Future[str] | None:
        """End the connection, and write what is left; the link's end, if there is a link."""
        self._stop_timer()
        link = self._link
        self.flush()
        if link is None:
            return None
        link.close()
        return link.closed

    # Between link and machine.

    def _receive(self, data: bytes) -> None:
        self._handle(self.client.receive_data(data, self._clock()))

    def _link_lost(self, link: ClientLink, reason: str) -> None:
        if link is self._link:  # and not an earlier one, which took its time to close
            self._handle(self.client.lost(self._clock(), reason))

    def _handle(self, events: list[Event]) -> None:
        if self.client.state is not ClientState.CONNECTED or not self._outcome.done():
            for event in events:
                if isinstance(event, Connected | Refused | Disconnected):
                    self._handle_connection(event)
        self._on_events(self, events)
        self.flush()
        self._news.set()

    def _handle_connection(self, event: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(event)
        self._arm_timer()
        self._on_connection(self, event)
        if isinstance(event, Connected):
            self.session_present = event.session_present
        elif isinstance(event, Disconnected) and not self.ended.done():
            self.ended.set_result(event)

    def flush(self) -> None:
        """Write what the machine has to say, and close the link when it is of no more use."""
        self._unflushed = 0
        data = self.client.take_output()
        link = self._link
        if link is None:
            return
        if data:
            link.write(data)
        if self.client.closing:
            self._link = None
            link.close()

    def flush_soon(self, size: int) -> None:
        """Write the first output of this turn of the event loop at once, and what follows together."""
        self._unflushed += size
        if self._flushing is None:
            self.flush()
            self._flushing = self._loop.call_soon(self._flush_turn)
        elif self._unflushed > _FLUSH_BYTES:
            self.flush()

    def _flush_turn(self) -> None:
        self._flushing = None
        self.flush()

    @property
    def writable(self) -> asyncio.Event | None:
        """Set while the link takes more without buffering it; None while there is no connection."""
        link = self._link
        return link.writable if link is not None and self.client.connected else None

    def set_reading(self, reading: bool) -> None:
        """Stop, or go on, reading from the link."""
        link = self._link
        if link is None or reading is self._reading or not link.set_reading(reading):
            return
        self._reading = reading
        self.client.set_reading(reading, self._clock())
        if reading:
            self._arm_timer()

    # Time.

    def _arm_timer(self) -> None:
        """One timer, set anew when it fires: what happens meanwhile mostly moves the deadline away."""
        self._stop_timer()
        deadline = self.client.deadline()
        if deadline is not None:
            self._timer = self._loop.call_later(deadline - self._clock(), self._handle_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle_timer(self) -> None:
        link = self._link
        self._handle(self.client.handle_timer(self._clock()))
        if self.client.closing and link is not None:
            link.abort()  # The link is dead: there is nobody to write to.
        self._arm_timer()
