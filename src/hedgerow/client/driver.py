"""Keeps a `hedgerow.mqtt.client.Client` machine connected: where to, in which version, and again.

The driver connects a `Line`, and hands the machine's events on. When a connection is lost it makes the next
one, waiting longer each time, until it is closed or until the server refuses in a way that trying again
cannot mend.

With `follow` it goes where servers send it (`following.py`). Sent by a renewal of the extension, it connects
there by a second line with a machine of its own, and subscribes, while the first goes on; then the
application's calls go to the second, and the first is left when nothing of it is in flight any more. So at
every moment there is a connection, and what comes by both is given to the application once. MQTT 5 ends the
connection with the word where to go, so there the next one is made at once, by the same machine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable

from hedgerow.client.following import MAX_REDIRECTS, MIN_STAY_S, Guard, Whereabouts
from hedgerow.client.line import Line, Outcome
from hedgerow.client.options import DriverOptions
from hedgerow.client.transport import State, StateChange
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConnectError, HedgerowError
from hedgerow.message import Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.client import Client
from hedgerow.mqtt.client.events import (
    Connected,
    Disconnected,
    Event,
    MessageReceived,
    MessageRefused,
    Refused,
    Renewed,
    Subscribed,
)
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.reasons import FAILURE, Reason
from hedgerow.node.clock import SteadyClock

logger = logging.getLogger(__name__)

# A connection that lasted this long was a good one: the waiting times begin anew.
STABLE_S = 10.0

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


class ClientDriver:
    def __init__(
        self,
        address: BusUrl,
        options: DriverOptions,
        on_events: Callable[[list[Event]], None],
        on_state: Callable[[StateChange], None],
        on_failure: Callable[[HedgerowError], None],
    ) -> None:
        """`on_failure` gets the error after which the driver does not connect again."""
        self.clock = SteadyClock()
        self.client = Client(options.connect)
        """The machine for the application's calls."""
        self.line = self._make_line(self.client)
        """Its link. Both are others after a move to another server."""
        self.refused = 0
        """Messages whose content breaks a rule: the server was told so, and no application has them."""
        self._tell_refused_at = 1
        self._options = options
        self._on_events = on_events
        self._on_state = on_state
        self._on_failure = on_failure
        self._tls: ssl.SSLContext | None = options.tls.make_context() if address.scheme.tls else None
        self._loop = asyncio.get_running_loop()
        shows_password = options.connect.shows_password
        self._where = Whereabouts(address, Guard(options.follow_to, self._tls) if shows_password else None)
        version = options.connect.version
        may_fall = options.version_may_fall and version == packets.MQTT_5
        self._versions = (version, packets.MQTT_3_1_1) if may_fall else (version,)
        self._has_connected = False
        self._keeper: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # for the keeper: the line ended, or there is a renewal
        self._renewal: tuple[Line, Renewed] | None = None
        self._moved_at = self.clock()
        self._candidate: Line | None = None
        self._is_refused = False  # Has the candidate's server refused a subscription?
        self._leaving: dict[Line, asyncio.Task[None]] = {}

    def _make_line(self, client: Client) -> Line:
        return Line(client, self.clock, self._handle_connection, self._handle)

    @property
    def address(self) -> BusUrl:
        """Where we are connected, or were last."""
        return self._where.address

    # Connecting, and connecting again.

    async def open(self) -> None:
        """Make the first connection. A failure raises, unless the driver was told to keep trying."""
        attempt = 0
        while True:
            try:
                await self._connect(self._where.candidate(0))
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
            ended = await self._stay()
            reason = f"{self.address}: {ended.reason}"
            if ended.server_reference:
                reason += f" (see {ended.server_reference})"
            elsewhere = self._redirect(ended)
            is_refused = elsewhere is None and not self._where.is_barred
            is_permanent = is_refused and ended.reason_code in PERMANENT_REFUSALS
            if not self._options.reconnect or is_permanent:
                raise ConnectError(reason, ended.reason_code)
            if self.clock() - connected_at > STABLE_S:
                attempt = 0
            if elsewhere is not None and await self._go_to(elsewhere):
                continue
            first = attempt
            while True:
                await self._wait_before(attempt, reason)
                attempt += 1
                try:
                    await self._connect(self._where.candidate(attempt - first - 1))
                    break
                except ConnectError as error:
                    reason = str(error)
                    if error.reason_code in PERMANENT_REFUSALS:
                        raise

    async def _stay(self) -> Disconnected:
        """Until the connection is over; renewals that come meanwhile are followed."""
        while True:
            if self.line.ended.done():
                return self.line.ended.result()
            if self._renewal is None:
                self._news.clear()
                await self._news.wait()
                continue
            (line, renewal), self._renewal = self._renewal, None
            if line is self.line:  # and not one that we have left
                await self._move(renewal)

    def _redirect(self, outcome: Refused | Disconnected) -> BusUrl | None:
        if not self._options.follow:
            return None
        return self._where.redirect(outcome.reason_code, outcome.server_reference)

    async def _go_to(self, address: BusUrl) -> bool:
        """Connect where the server that has ended the connection sent us."""
        await self._stay_a_little()
        try:
            await self._connect(address)
        except ConnectError as error:
            logger.warning("%s", error)
            return False
        return True

    async def _stay_a_little(self) -> None:
        await asyncio.sleep(max(0.0, self._moved_at + MIN_STAY_S - self.clock()))
        self._moved_at = self.clock()

    async def _wait_before(self, attempt: int, reason: str) -> None:
        """Wait longer each time, and not all at once with everyone else who lost the same server."""
        options = self._options
        longest = min(options.max_delay_s, options.first_delay_s * 2.0 ** min(attempt, 30))
        delay = longest * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load, it guards nothing
        logger.warning("%s; connecting again in %.1f s", reason, delay)
        self._on_state(StateChange(State.WAITING, reason))
        await asyncio.sleep(delay)

    async def _connect(self, address: BusUrl) -> None:
        self._on_state(StateChange(State.CONNECTING))
        self._where.address = await self._attempt(self.line, address)
        self._has_connected = True

    async def _attempt(self, line: Line, address: BusUrl) -> BusUrl:
        """One connection, at this address or where its server sends us; ConnectError when there is none."""
        redirects = 0
        while True:
            logger.info("connecting to %s", address)
            outcome = await self._attempt_versions(line, address)
            if isinstance(outcome, Connected):
                return address
            elsewhere = self._redirect(outcome)
            if elsewhere is None or redirects == MAX_REDIRECTS:
                break
            redirects += 1
            logger.info("%s sends us to %s", address, elsewhere)
            address = elsewhere
        if isinstance(outcome, Disconnected):
            raise ConnectError(f"cannot connect to {address}: {outcome.reason}", outcome.reason_code)
        hint = f" (see {outcome.server_reference})" if outcome.server_reference else ""
        # Being sent on and on may end some day, and so may being sent where we do not go: failures as any.
        code = outcome.reason_code if elsewhere is None and not self._where.is_barred else None
        raise ConnectError(f"{address} refused the connection: {outcome.reason}{hint}", code)

    async def _attempt_versions(self, line: Line, address: BusUrl) -> Outcome:
        """One connection; a server that does not know a version gets another try in an older one."""
        options = line.client.options
        versions = (packets.MQTT_EXTENDED, *self._versions) if self._options.renewals else self._versions
        version, *older = versions
        while True:
            options.version = version
            outcome = await line.attempt(
                address, self._tls, self._options.dial_timeout_s, self._options.route
            )
            if not older or not self._may_be_older(line, outcome):
                break
            version = older.pop(0)
            logger.info("%s does not take this version of MQTT: trying %d", address, version)
        if isinstance(outcome, Disconnected):
            options.version = versions[0]  # it was something else
        elif isinstance(outcome, Connected) and version != packets.MQTT_EXTENDED:
            self._versions = (version,)  # It is part of the session from now on.
        return outcome

    def _may_be_older(self, line: Line, outcome: Outcome) -> bool:
        """3.1.1 asks a server to refuse versions that it does not know, but some hang up or say nothing."""
        if isinstance(outcome, Refused):
            return outcome.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION
        is_stranger = not self._has_connected or line is not self.line
        return isinstance(outcome, Disconnected) and is_stranger

    async def close(self, properties: Properties) -> None:
        """Say DISCONNECT, with these properties, and wait until the link is closed."""
        lines = self._lines()
        tasks = [task for task in (self._keeper, *self._leaving.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        ends = []
        for line in lines:
            line.client.disconnect(self.clock(), properties=properties if line is self.line else None)
            end = line.close()
            if end is not None:
                ends.append(end)
        if ends:
            await asyncio.wait(ends)

    # From one server to another, while connected.

    async def _move(self, renewal: Renewed) -> None:
        """Connect where a renewal says, and leave the server that said so; or stay, if that fails."""
        address = self._where.read(renewal.address)
        if address is None or address == self.address:
            return
        await self._stay_a_little()
        old = self.line
        client = old.client.successor(renewal.code == Renewal.RENEW_TOPICS, renewal.topics)
        new = self._candidate = self._make_line(client)
        self._is_refused = False
        try:
            address = await self._attempt(new, address)
            is_settled = await new.until(lambda: client.is_settled, self._options.dial_timeout_s)
            if not is_settled or self._is_refused:
                raise ConnectError(f"{address} does not take our subscriptions")
        except HedgerowError as error:
            logger.warning("%s; staying with %s", error, self.address)
            client.disconnect(self.clock())
            new.close()
            return
        finally:
            self._candidate = None
        events = client.take_over(old.client, self.clock())
        self.line, self.client = new, client
        self._on_events(events)
        new.flush()
        logger.info("moved from %s to %s", self.address, address)
        self._where.address = address
        self._on_state(StateChange(State.CONNECTED, session_present=new.session_present))
        self._leaving[old] = self._loop.create_task(self._leave(old), name="hedgerow leaves")

    async def _leave(self, old: Line) -> None:
        """Finish what is in flight at a server that another has taken over from."""
        try:
            if old.client.connected:
                # Its answer comes behind all that the server sent before the other one served us.
                old.set_reading(True)
                old.client.ping(self.clock())
                old.flush()
            await old.until(
                lambda: old.client.is_finished and not old.client.awaits_ping, self._options.leave_timeout_s
            )
            old.client.disconnect(self.clock())
            end = old.close()
            events = self.client.inherit(old.client, self.clock())
            self._on_events(events)
            self.line.flush()
            if end is not None:
                await asyncio.wait([end])
        finally:
            del self._leaving[old]

    def _lines(self) -> list[Line]:
        return [self.line, *([] if self._candidate is None else [self._candidate]), *self._leaving]

    # What the machines report.

    def _handle_connection(self, line: Line, event: Outcome) -> None:
        if isinstance(event, Connected):
            spoken = f"MQTT version {event.version}" + ", session resumed" * event.session_present
            logger.info("connected to %s as %s (%s)", line.address, event.client_id, spoken)
            if line is self.line:
                self._on_state(StateChange(State.CONNECTED, session_present=event.session_present))
        self._news.set()

    def _handle(self, line: Line, events: list[Event]) -> None:
        for event in events:
            if event.__class__ is MessageRefused:
                self._note_refused(event)
        if line.client.options.version == packets.MQTT_EXTENDED and self._options.follow:
            for event in events:
                if isinstance(event, Renewed):
                    self._handle_renewal(line, event)
        if line is self._candidate:
            # What it is not granted is a reason not to go there, and nothing that the application has lost.
            self._is_refused |= any(_is_refusal(event) for event in events)
            events = [event for event in events if isinstance(event, MessageReceived)]
        self._on_events(events)

    def _note_refused(self, event: MessageRefused) -> None:
        """With a line for the first, and then for every tenth, hundredth and so on."""
        self.refused += 1
        if self.refused == self._tell_refused_at:
            self._tell_refused_at *= 10
            text = "%s sent a message to %.200r that breaks a rule, and it was set aside (%d so far): %.200s"
            logger.warning(text, self.address, event.topic, self.refused, event.reason)

    def _handle_renewal(self, line: Line, event: Renewed) -> None:
        if event.code == Renewal.CONNECTION:
            self._where.set_supporter(event.address)
        elif line in (self.line, self._candidate):
            self._renewal = line, event
            self._news.set()

    # The application's side.

    @property
    def unanswered(self) -> bool:
        return any(line.client.unanswered for line in self._lines())

    def acknowledge(self, message: MessageReceived) -> None:
        """By whichever line it came."""
        for line in self._lines():
            line.client.acknowledge(message)
            line.flush_soon(4)

    def hold_acknowledgements(self, holding: bool) -> None:
        for line in self._lines():
            line.client.hold_acknowledgements(holding)


def _is_refusal(event: Event) -> bool:
    return isinstance(event, Subscribed) and max(event.reason_codes) >= FAILURE
