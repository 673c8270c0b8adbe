"""A `Bus` over MQTT, which keeps its connection.

`MqttBus` drives one `hedgerow.mqtt.client.Client` machine: it opens a link, moves bytes between link
and machine, turns the machine's events into results of the application's calls, and opens the next
link when one is lost, waiting longer each time. A publication at QoS 1 or 2 ends when the server has
acknowledged it, over as many connections as that takes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from hedgerow.errors import ConfigError, ConnectError, HedgerowError, RefusedError
from hedgerow.message import Message, Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client import Client
from hedgerow.mqtt.client_events import (
    Connected,
    ConnectOptions,
    Disconnected,
    Event,
    MessageReceived,
    Published,
    Refused,
    Subscribed,
    Unsubscribed,
)
from hedgerow.mqtt.reasons import Reason, describe
from hedgerow.net.bus import Bus, State, StateChange, Subscription
from hedgerow.net.client_link import ClientLink
from hedgerow.net.clock import SteadyClock
from hedgerow.net.dial import TlsOptions, dial
from hedgerow.net.urls import Address

log = logging.getLogger(__name__)

# A connection that lasted this long was a good one: the waiting times begin anew.
STABLE_S = 10.0

# Output that one turn of the event loop collects before it is written.
_FLUSH_BYTES = 64 * 1024
# Publications after which `publish` lets others run, when nothing else makes it wait.
_YIELD_EVERY = 256

# Messages of a session that an earlier process left, kept until someone subscribes to them.
MAX_UNCLAIMED = 10_000

_FAILURE = 0x80  # reason codes from here on

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
class BusOptions:
    """What `connect` was asked for, beside the address."""

    connect: ConnectOptions
    version_may_fall: bool = True
    """Speak MQTT 3.1.1 with a server that refuses MQTT 5."""
    session_is_implied: bool = True
    tls: TlsOptions = field(default_factory=TlsOptions)
    reconnect: bool = True
    keep_trying: bool = False
    first_delay_s: float = 0.5
    max_delay_s: float = 60.0
    dial_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    queued_publications: int = 100_000
    on_state: Callable[[StateChange], None] | None = None


async def open_bus(address: Address, options: BusOptions) -> Bus:
    if address.rest not in ("", "/") and not address.scheme.websocket:
        raise ConfigError(f'"{address.rest}" after {address}: {address.scheme.name}:// takes no path')
    bus = MqttBus(address, options)
    await bus.open()
    return bus


class MqttBus(Bus):
    def __init__(self, address: Address, options: BusOptions) -> None:
        super().__init__()
        self.address = address
        self.options = options
        self._tls: ssl.SSLContext | None = options.tls.make_context() if address.scheme.tls else None
        self._clock = SteadyClock()
        self._loop = asyncio.get_running_loop()
        self._client = Client(options.connect)
        self._link: ClientLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[Connected | Refused | Disconnected] | None = None
        self._ended: asyncio.Future[Disconnected] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: HedgerowError | None = None
        self._changed = asyncio.Event()  # for those who wait to publish
        self._waiting = 0
        self._results: dict[int, asyncio.Future[Any]] = {}
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.set_result(None)
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._unflushed = 0
        self._since_yield = 0
        self._full: set[Subscription] = set()
        self._paused = False
        self._unclaimed: deque[Message] = deque(maxlen=MAX_UNCLAIMED)
        self._claiming = False

    @property
    def client_id(self) -> str:
        """Our name at the server, which may have assigned it."""
        return self._client.client_id

    @property
    def version(self) -> int:
        """The protocol version that is spoken: 5, 4 (3.1.1) or 3 (3.1)."""
        return self.options.connect.version

    # Connecting, and connecting again.

    async def open(self) -> None:
        """Make the first connection. A failure raises, unless the bus was told to keep trying."""
        attempt = 0
        while True:
            try:
                await self._connect()
                break
            except ConnectError as error:
                if not self.options.keep_trying or error.reason_code in PERMANENT_REFUSALS:
                    self._finish(error)
                    raise
                await self._wait_before(attempt, str(error))
                attempt += 1
            except BaseException:
                self._finish(None)
                raise
        self._keeper = self._loop.create_task(self._keep_connected(), name=f"hedgerow {self.address}")

    async def _connect(self) -> None:
        """One connection, over a second link when the server knows only an older version."""
        self._set_state(State.CONNECTING)
        outcome = await self._attempt()
        connect = self.options.connect
        if (
            isinstance(outcome, Refused)
            and outcome.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION
            and self.options.version_may_fall
            and connect.version == packets.MQTT_5
        ):
            log.info("%s refuses MQTT 5: trying 3.1.1", self.address)
            connect.version = packets.MQTT_3_1_1
            outcome = await self._attempt()
        match outcome:
            case Refused():
                elsewhere = f" (see {outcome.server_reference})" if outcome.server_reference else ""
                reason = f"{self.address} refused the connection: {outcome.reason}{elsewhere}"
                raise ConnectError(reason, outcome.reason_code)
            case Disconnected():
                reason = f"cannot connect to {self.address}: {outcome.reason}"
                raise ConnectError(reason, outcome.reason_code)

    async def _attempt(self) -> Connected | Refused | Disconnected:
        self._outcome = self._loop.create_future()
        self._ended = self._loop.create_future()
        link = await dial(
            self.address, self._tls, self.options.dial_timeout_s, self._receive, self._link_lost
        )
        self._link = link
        self._paused = False
        try:
            self._client.connect(self._clock())
            self._flush()
            self._arm_timer()
            outcome = await self._outcome
        except ValueError as error:  # what was asked for cannot be said in this version
            link.abort()
            raise ConfigError(f"cannot connect to {self.address}: {error}") from None
        except BaseException:
            link.abort()
            raise
        if not isinstance(outcome, Connected):
            await link.closed
        return outcome

    async def _keep_connected(self) -> None:
        try:
            await self._reconnect_until_refused()
        except HedgerowError as error:
            self._finish(error)

    async def _reconnect_until_refused(self) -> None:
        attempt = 0
        while True:
            connected_at = self._clock()
            ended = await self._ended
            reason = f"{self.address}: {ended.reason}"
            if ended.server_reference:
                reason += f" (see {ended.server_reference})"
            if not self.options.reconnect or ended.reason_code in PERMANENT_REFUSALS:
                raise ConnectError(reason, ended.reason_code)
            if self._clock() - connected_at > STABLE_S:
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
        options = self.options
        longest = min(options.max_delay_s, options.first_delay_s * 2.0 ** min(attempt, 30))
        delay = longest * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load, it guards nothing
        log.warning("%s; connecting again in %.1f s", reason, delay)
        self._set_state(State.WAITING, reason)
        await asyncio.sleep(delay)

    def _set_state(self, state: State, reason: str = "", session_present: bool = False) -> None:
        if self.state is state and not reason:
            return
        self.state = state
        self._wake()
        if self.options.on_state is not None:
            self._loop.call_soon(self.options.on_state, StateChange(state, reason, session_present))

    def _finish(self, error: HedgerowError | None) -> None:
        """The bus is over: everyone who waits is told."""
        if self._closed.done():
            return
        self._error = error
        self._closed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        failure = error or HedgerowError("the bus was closed")
        for result in self._results.values():
            if not result.done():
                result.set_exception(failure)
                result.exception()  # seen: nobody may be waiting for this one
        self._results.clear()
        for subscription in list(self.subscriptions):
            subscription.end(error)
            self.remove_route(subscription)
        self._set_state(State.CLOSED, str(error) if error else "closed")

    async def close(self) -> None:
        if not self._closed.done():
            await self._drain()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        link, client = self._link, self._client
        properties = Properties()
        if self.options.session_is_implied and self.options.connect.session_expiry_s:
            properties["session_expiry_interval"] = 0
        client.disconnect(self._clock(), properties=properties)
        self._flush()
        self._finish(None)
        if link is not None and not link.closed.done():
            link.close()
            await link.closed

    async def _drain(self) -> None:
        """Give what was published without waiting the time to be acknowledged."""
        waiting = [result for result in self._results.values() if not result.done()]
        if waiting and self._client.connected:
            await asyncio.wait(waiting, timeout=self.options.close_timeout_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.options.close_timeout_s = 0.0
        await self.close()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)
        if self._error is not None:
            raise self._error

    # Between link and machine.

    def _receive(self, data: bytes) -> None:
        events = self._client.receive_data(data, self._clock())
        self._handle(events)
        self._flush()
        if self._full:
            self._update_reading()
        if self._waiting:
            self._wake()

    def _link_lost(self, reason: str) -> None:
        self._handle(self._client.lost(self._clock(), reason))
        self._wake()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if event.__class__ is MessageReceived:
                if not self.deliver(event):
                    self._keep_unclaimed(event)
            elif isinstance(event, Published):
                self._settle(event.handle, event.reason_code, event.reason)
            else:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        match event:
            case Connected():
                if self._keeper is None:
                    self._claiming = event.session_present
                self._settle_outcome(event)
                self._set_state(State.CONNECTED, session_present=event.session_present)
                log.info("connected to %s as %s", self.address, event.client_id)
                self._arm_timer()
                self._update_reading()
            case Refused():
                self._settle_outcome(event)
            case Disconnected():
                self._settle_outcome(event)
                if not self._ended.done():
                    self._ended.set_result(event)
            case Subscribed():
                self._handle_subscribed(event)
            case Unsubscribed():
                self._settle(event.handle, max(event.reason_codes), event.reason)

    def _settle_outcome(self, event: Connected | Refused | Disconnected) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(event)

    def _settle(self, handle: int, reason_code: int, reason: str) -> None:
        result = self._results.pop(handle, None)
        if result is None or result.done():
            return
        if reason_code >= _FAILURE:
            result.set_exception(RefusedError(f"refused: {reason or describe(reason_code)}", reason_code))
            result.exception()  # seen: nobody may be waiting for this one
        else:
            result.set_result(None)

    def _handle_subscribed(self, event: Subscribed) -> None:
        result = self._results.pop(event.handle, None)
        if result is not None and not result.done():
            result.set_result((event.reason_codes[0], event.reason))
        if event.handle:
            return
        # Made again by the machine after the server lost the session; nobody waits for this answer.
        for asked, reason_code in zip(event.subscriptions, event.reason_codes, strict=True):
            if reason_code >= _FAILURE:
                reason = f"{asked.topic_filter}: {event.reason or describe(reason_code)}"
                for subscription in [s for s in self.subscriptions if s.topic_filter == asked.topic_filter]:
                    self.remove_route(subscription)
                    subscription.end(RefusedError(reason, reason_code))

    def _flush(self) -> None:
        self._unflushed = 0
        link = self._link
        data = self._client.take_output()
        if link is None:
            return
        if data:
            link.write(data)
        if self._client.closing:
            self._link = None
            link.close()

    def _flush_soon(self, size: int) -> None:
        """Write the first output of this turn of the event loop at once, and what follows together."""
        self._unflushed += size
        if self._flushing is None:
            self._flush()
            self._flushing = self._loop.call_soon(self._flush_turn)
        elif self._unflushed > _FLUSH_BYTES:
            self._flush()

    def _flush_turn(self) -> None:
        self._flushing = None
        self._flush()

    def _arm_timer(self) -> None:
        """One timer, set anew when it fires: what happens meanwhile only moves the deadline away."""
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._client.deadline()
        if deadline is not None:
            self._timer = self._loop.call_later(deadline - self._clock(), self._handle_timer)

    def _handle_timer(self) -> None:
        link = self._link
        self._handle(self._client.handle_timer(self._clock()))
        self._flush()
        if self._client.closing and link is not None:
            link.abort()  # The link is dead: there is nobody to write to.
        self._arm_timer()

    # Back-pressure from full subscriptions.

    def full_changed(self, subscription: Subscription) -> None:
        if subscription.full:
            self._full.add(subscription)
        else:
            self._full.discard(subscription)
        self._update_reading()

    def _update_reading(self) -> None:
        """Stop the server while a subscription is full.

        QoS 1 and 2 stop by themselves when their acknowledgements are held back. The rest is stopped
        by not reading, but only while nothing waits for an answer of the server: a loop over a full
        subscription may be waiting for just that one.
        """
        full = bool(self._full)
        self._client.hold_acknowledgements(full)
        pause = full and self._client.connected and not self._client.unanswered
        link = self._link
        if link is not None and pause is not self._paused:
            self._paused = pause
            if pause:
                link.transport.pause_reading()
            else:
                link.transport.resume_reading()
            self._client.set_reading(not pause, self._clock())
        if not full:
            self._flush()

    # Publishing.

    async def send(self, message: Message) -> None:
        client = self._client
        if message.qos == 0:
            while not client.connected or not (self._link and self._link.writable.is_set()):
                await self._wait_for_change()
            client.publish(message, self._clock())
            self._flush_soon(len(message.payload) + len(message.topic))
        else:
            while client.unacknowledged >= self.options.queued_publications:
                await self._wait_for_change()
            await self.send_nowait(message)
        self._since_yield += 1
        if self._since_yield >= _YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        self._check_open()
        client = self._client
        if message.qos == 0 and not client.connected:
            raise ConnectError(f"{self.address}: not connected, and QoS 0 does not wait")
        if client.unacknowledged >= self.options.queued_publications:
            raise HedgerowError(f"{client.unacknowledged} publications wait for {self.address}: no room")
        handle = client.publish(message, self._clock())
        self._flush_soon(len(message.payload) + len(message.topic))
        if not handle:
            return self._done
        return self._expect(handle)

    def _expect(self, handle: int) -> asyncio.Future[Any]:
        result: asyncio.Future[Any] = self._loop.create_future()
        self._results[handle] = result
        if self._paused:
            self._update_reading()
        return result

    def _check_open(self) -> None:
        if self._closed.done():
            raise self._error or HedgerowError("the bus is closed")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_change(self) -> None:
        self._check_open()
        link = self._link
        self._waiting += 1
        try:
            if link is not None and self._client.connected and not link.writable.is_set():
                await link.writable.wait()
            else:
                await self._changed.wait()
        finally:
            self._waiting -= 1
        self._check_open()

    # Subscribing.

    async def open_subscription(self, subscription: Subscription) -> None:
        self._check_open()
        same = [each for each in self.subscriptions if each.topic_filter == subscription.topic_filter]
        asked = packets.Subscription(
            subscription.topic_filter,
            max([subscription.qos, *(each.qos for each in same)]),
            subscription.no_local,
            subscription.retain_as_published,
            subscription.retain_handling,
        )
        handle = self._client.subscribe([asked], self._clock(), subscription.properties)
        self.add_route(subscription)
        self._claim(subscription)
        self._flush()
        reason_code, reason = await self._expect(handle)
        if reason_code >= _FAILURE:
            why = reason or describe(reason_code)
            raise RefusedError(f"{subscription.topic_filter} was refused: {why}", reason_code)

    def close_subscription(self, subscription: Subscription, left: list[Message]) -> None:
        if subscription not in self.subscriptions:
            return
        self.remove_route(subscription)
        for message in left:
            self.acknowledge(message)
        self._full.discard(subscription)
        shared = any(each.topic_filter == subscription.topic_filter for each in self.subscriptions)
        if not shared and not subscription.keep:
            self._client.unsubscribe([subscription.topic_filter], self._clock())
        self._flush()
        self._update_reading()

    async def unsubscribe(self, topic_filter: str) -> None:
        self._check_open()
        handle = self._client.unsubscribe([topic_filter], self._clock())
        for subscription in [each for each in self.subscriptions if each.topic_filter == topic_filter]:
            self.remove_route(subscription)
            self._full.discard(subscription)
            subscription.end(None)
        self._flush()
        await self._expect(handle)

    def acknowledge(self, message: Message) -> None:
        """With `manual_acknowledgement`: the application is done with a QoS 1 or 2 message."""
        if isinstance(message, MessageReceived):
            self._client.acknowledge(message)
            self._flush_soon(4)

    def _keep_unclaimed(self, message: MessageReceived) -> None:
        """A message that no subscription here matches. After a restart the server's session has
        subscriptions that this process has yet to make; otherwise someone has just left."""
        if not self._claiming:
            self._client.acknowledge(message)
            return
        if len(self._unclaimed) == MAX_UNCLAIMED:
            oldest = self._unclaimed.popleft()
            self.acknowledge(oldest)
            log.warning("nobody subscribed to %s: dropped the oldest of %d", oldest.topic, MAX_UNCLAIMED)
        self._unclaimed.append(message)

    def _claim(self, subscription: Subscription) -> None:
        waiting = list(self._unclaimed)
        self._unclaimed.clear()
        for message in waiting:
            if not self.deliver(message):
                self._unclaimed.append(message)
