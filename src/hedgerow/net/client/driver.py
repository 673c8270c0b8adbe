"""Keeps a `hedgerow.mqtt.client.Client` machine connected: links, bytes, its timer, reconnection.

The driver opens a link, moves bytes between link and machine, and hands the machine's events on. When
a link is lost it opens the next one, waiting longer each time, until it is closed or until the server
refuses in a way that trying again cannot mend.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from hedgerow.errors import ConfigError, ConnectError, HedgerowError
from hedgerow.message import Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.client import Client
from hedgerow.mqtt.client.client import State as ClientState
from hedgerow.mqtt.client.events import Connected, ConnectOptions, Disconnected, Event, Refused
from hedgerow.mqtt.reasons import Reason
from hedgerow.net.client.bus import State, StateChange
from hedgerow.net.client.dial import TlsOptions, dial
from hedgerow.net.client.link import ClientLink
from hedgerow.net.client.urls import Address
from hedgerow.net.clock import SteadyClock

logger = logging.getLogger(__name__)

# A connection that lasted this long was a good one: the waiting times begin anew.
STABLE_S = 10.0

# Output that one turn of the event loop collects before it is written.
_FLUSH_BYTES = 64 * 1024

# What the same CONNECT would meet again, however often it is sent.
PERMANENT_REFUSALS = frozenset(
    {
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.NOT_AUTHORIZED,
        Reason.BANNED,
        Reason.BAD_AUTHENTICATION_METHOD,
        Reason.SERVER_MOVED,
        Reason.USE_ANOTHER_SERVER,
        # Whoever took the session over would lose it again, and take it again.
        Reason.SESSION_TAKEN_OVER,
    }
)


@dataclass(slots=True)
class DriverOptions:
    connect: ConnectOptions
    version_may_fall: bool = True
    """Speak MQTT 3.1.1 with a server that refuses MQTT 5."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    reconnect: bool = True
    keep_trying: bool = False
    """Wait for the first connection too, as for those after it."""
    first_delay_s: float = 0.5
    max_delay_s: float = 60.0
    dial_timeout_s: float = 10.0


class ClientDriver:
    def __init__(
        self,
        address: Address,
        options: DriverOptions,
        on_events: Callable[[list[Event]], None],
        on_state: Callable[[StateChange], None],
        on_failure: Callable[[HedgerowError], None],
    ) -> None:
        """`on_failure` gets the error after which the driver does not connect again."""
        self.address = address
        self.client = Client(options.connect)
        self.clock = SteadyClock()
        self._options = options
        self._on_events = on_events
        self._on_state = on_state
        self._on_failure = on_failure
        self._tls: ssl.SSLContext | None = options.tls.make_context() if address.scheme.tls else None
        self._loop = asyncio.get_running_loop()
        self._link: ClientLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[Connected | Refused | Disconnected] = self._loop.create_future()
        self._ended: asyncio.Future[Disconnected] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._unflushed = 0
        self._reading = True

    # Connecting, and connecting again.

    async def open(self) -> None:
        """Make the first connection. A failure raises, unless the driver was told to keep trying."""
        attempt = 0
        while True:
            try:
                await self._connect()
                break
            except ConnectError as error:
                if not self._options.keep_trying or error.reason_code in PERMANENT_REFUSALS:
                    raise
                await self._wait_before(attempt, str(error))
                attempt += 1
        self._keeper = self._loop.create_task(self._keep_connected(), name=f"hedgerow {self.address}")

    async def _keep_connected(self) -> None:
        try:
            await self._reconnect_until_refused()
        except HedgerowError as error:
            self._on_failure(error)

    async def _reconnect_until_refused(self) -> None:
        attempt = 0
        while True:
            connected_at = self.clock()
            ended = await self._ended
            reason = f"{self.address}: {ended.reason}"
            if ended.server_reference:
                reason += f" (see {ended.server_reference})"
            if not self._options.reconnect or ended.reason_code in PERMANENT_REFUSALS:
                raise ConnectError(reason, ended.reason_code)
            if self.clock() - connected_at > STABLE_S:
                attempt = 0
            while True:
                await self._wait_before(attempt, reason)
                attempt += 1
                try:
                    await self._connect()
                    break
                except ConnectError as error:
                    reason = str(error)
                    if error.reason_code in PERMANENT_REFUSALS:
                        raise

    async def _wait_before(self, attempt: int, reason: str) -> None:
        """Wait longer each time, and not all at once with everyone else who lost the same server."""
        options = self._options
        longest = min(options.max_delay_s, options.first_delay_s * 2.0 ** min(attempt, 30))
        delay = longest * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load, it guards nothing
        logger.warning("%s; connecting again in %.1f s", reason, delay)
        self._on_state(StateChange(State.WAITING, reason))
        await asyncio.sleep(delay)

    async def _connect(self) -> None:
        """One connection; a server that does not know MQTT 5 gets a second try in 3.1.1."""
        logger.info("connecting to %s", self.address)
        self._on_state(StateChange(State.CONNECTING))
        outcome = await self._attempt()
        if self._may_be_older(outcome):
            logger.info("%s does not take MQTT 5: trying 3.1.1", self.address)
            self._options.connect.version = packets.MQTT_3_1_1
            outcome = await self._attempt()
            if isinstance(outcome, Disconnected):
                self._options.connect.version = packets.MQTT_5  # it was something else
        match outcome:
            case Connected():
                self._options.version_may_fall = False  # The version is part of the session from now on.
            case Refused():
                elsewhere = f" (see {outcome.server_reference})" if outcome.server_reference else ""
                reason = f"{self.address} refused the connection: {outcome.reason}{elsewhere}"
                raise ConnectError(reason, outcome.reason_code)
            case Disconnected():
                reason = f"cannot connect to {self.address}: {outcome.reason}"
                raise ConnectError(reason, outcome.reason_code)

    def _may_be_older(self, outcome: Connected | Refused | Disconnected) -> bool:
        """3.1.1 asks a server to refuse versions that it does not know, but some hang up or say nothing."""
        if not self._options.version_may_fall or self._options.connect.version != packets.MQTT_5:
            return False
        if isinstance(outcome, Refused):
            return outcome.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION
        return isinstance(outcome, Disconnected)

    async def _attempt(self) -> Connected | Refused | Disconnected:
        self._outcome = self._loop.create_future()
        self._ended = self._loop.create_future()
        link = await dial(self.address, self._tls, self._options.dial_timeout_s, self._receive)
        self._link = link
        link.closed.add_done_callback(lambda closed: self._link_lost(link, closed.result()))
        self._reading = True
        try:
            self.client.connect(self.clock())
            self.flush()
            self._arm_timer()
            outcome = await self._outcome
        except ValueError as error:  # what was asked for cannot be said in this version
            link.abort()
            raise ConfigError(f"cannot connect to {self.address}: {error}") from None
        except BaseException:
            link.abort()
            raise
        if not isinstance(outcome, Connected):
            await asyncio.wait([link.closed])  # Whoever gives up waiting must not cancel it.
        return outcome

    async def close(self, properties: Properties) -> None:
        """Say DISCONNECT, with these properties, and wait until the link is closed."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._stop_timer()
        link = self._link
        self.client.disconnect(self.clock(), properties=properties)
        self.flush()
        if link is not None:
            link.close()
            await asyncio.wait([link.closed])

    # Between link and machine.

    def _receive(self, data: bytes) -> None:
        self._handle(self.client.receive_data(data, self.clock()))

    def _link_lost(self, link: ClientLink, reason: str) -> None:
        if link is self._link:  # and not an earlier one, which took its time to close
            self._handle(self.client.lost(self.clock(), reason))

    def _handle(self, events: list[Event]) -> None:
        if self.client.state is not ClientState.CONNECTED or not self._outcome.done():
            for event in events:
                if isinstance(event, Connected | Refused | Disconnected):
                    self._handle_connection(event)
        self._on_events(events)
        self.flush()

    def _handle_connection(self, event: Connected | Refused | Disconnected) -> None:
        if not self._outcome.done():
            self._outcome.set_result(event)
        self._arm_timer()
        match event:
            case Connected():
                spoken = f"MQTT version {event.version}" + ", session resumed" * event.session_present
                logger.info("connected to %s as %s (%s)", self.address, event.client_id, spoken)
                self._on_state(StateChange(State.CONNECTED, session_present=event.session_present))
            case Disconnected() if not self._ended.done():
                self._ended.set_result(event)

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
        if link is None or link.transport.is_closing() or reading is self._reading:
            return
        self._reading = reading
        if reading:
            link.transport.resume_reading()
        else:
            link.transport.pause_reading()
        self.client.set_reading(reading, self.clock())
        if reading:
            self._arm_timer()

    # Time.

    def _arm_timer(self) -> None:
        """One timer, set anew when it fires: what happens meanwhile mostly moves the deadline away."""
        self._stop_timer()
        deadline = self.client.deadline()
        if deadline is not None:
            self._timer = self._loop.call_later(deadline - self.clock(), self._handle_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle_timer(self) -> None:
        link = self._link
        self._handle(self.client.handle_timer(self.clock()))
        if self.client.closing and link is not None:
            link.abort()  # The link is dead: there is nobody to write to.
        self._arm_timer()
