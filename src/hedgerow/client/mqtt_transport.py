"""Publishing and subscribing over MQTT.

`MqttTransport` turns the application's calls into those of a `Client` machine, which a `ClientDriver` keeps
connected, and the machine's events into the results of these calls. A publication at QoS 1 or 2 ends
when the server has acknowledged it, over as many connections as that takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hedgerow.client.driver import ClientDriver
from hedgerow.client.options import BusOptions
from hedgerow.client.overlaps import SubscriptionIdentifiers
from hedgerow.client.transport import Inbox, State, StateChange, SubscribeOptions, Transport, settle
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConfigError, ConnectError, HedgerowError, RefusedError
from hedgerow.message import Message, Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.client import Client
from hedgerow.mqtt.client.events import (
    Event,
    MessageReceived,
    Published,
    Subscribed,
    Unsubscribed,
)
from hedgerow.mqtt.ids import AGE_SLACK_S, is_held_deletion
from hedgerow.mqtt.reasons import FAILURE, Reason, describe
from hedgerow.topics import split_shared

logger = logging.getLogger(__name__)

# What was published without waiting gets this long to be acknowledged when the bus is closed.
CLOSE_TIMEOUT_S = 5.0

# Publications that may wait for a server that is slow, or away: beyond them `publish` waits.
MAX_UNACKNOWLEDGED = 100_000

# Messages of a session that an earlier process left, kept until someone subscribes to them.
MAX_UNCLAIMED = 10_000


async def open_transport(address: BusUrl, options: BusOptions) -> Transport:
    if address.rest not in ("", "/") and not address.scheme.websocket:
        raise ConfigError(f'"{address.rest}" after {address}: {address.scheme.name}:// takes no path')
    if options.driver.tls.needs_tls and not address.scheme.tls:
        raise ConfigError(f"{address} is without TLS; write {address.scheme.name}s://")
    transport = MqttTransport(address, options)
    await transport.open()
    return transport


class MqttTransport(Transport):
    def __init__(
        self, address: BusUrl, options: BusOptions, max_unacknowledged: int = MAX_UNACKNOWLEDGED
    ) -> None:
        super().__init__(options.on_state)
        self.address = address
        self.origin = options.driver.connect.origin
        self._options = options
        self._max_unacknowledged = max_unacknowledged
        self._driver = ClientDriver(address, options.driver, self._handle, self._change_state, self._finish)
        self._clock = self._driver.clock
        self._results: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()  # for those who wait to publish
        self._waiting = 0
        self._identifiers = SubscriptionIdentifiers()
        self._unclaimed: deque[Message] = deque()
        self._claiming: bool | None = None  # None until the first connection
        self._since: dict[Inbox, float] = {}  # of those that are new to the server's session

    @property
    def _client(self) -> Client:
        """The machine of today: another one after a move to another server."""
        return self._driver.client

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def version(self) -> int:
        version = self._client.options.version
        return packets.MQTT_3_1_1 if version == packets.MQTT_EXTENDED else version

    @property
    def broker_name(self) -> str | None:
        return self._client.far_node

    # From open to closed.

    async def open(self) -> None:
        try:
            await self._driver.open()
        except ConnectError as error:
            if self.origin is not None and error.reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION:
                error = ConnectError(f"{error}; the ids of an origin need MQTT 5", error.reason_code)
            self._finish(error)
            raise error from None
        except BaseException as error:
            self._finish(error if isinstance(error, HedgerowError) else None)
            raise

    async def close(self, *, at_once: bool = False) -> None:
        if self._client.connected and not at_once:
            await self._drain()
        properties: Properties = {}
        if self._options.session_is_implied and self.version == packets.MQTT_5:
            properties["session_expiry_interval"] = 0
        self._finish(None)
        await self._driver.close(properties)

    async def _drain(self) -> None:
        """Give what was published without waiting the time to be acknowledged."""
        waiting = [result for result in self._results.values() if not result.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_TIMEOUT_S)

    def _finish(self, error: HedgerowError | None) -> None:
        """The bus is over: everyone who waits is told."""
        if self._over.done():
            return
        failure = error or HedgerowError("the bus was closed")
        for result in self._results.values():
            settle(result, failure)
        self._results.clear()
        self.finish(error)
        self._wake()

    def _change_state(self, change: StateChange) -> None:
        self.set_state(change)
        if change.state is State.CONNECTED:
            if self._claiming is None:
                self._claiming = change.session_present
            self.regulate()
        self._wake()

    # What the machine reports.

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if event.__class__ is MessageReceived:
                if not self.deliver(event):
                    self._keep_unclaimed(event)
            elif isinstance(event, Published | Unsubscribed):
                self._handle_answer(event)
            elif isinstance(event, Subscribed):
                self._handle_subscribed(event)
        if self._full:
            self.regulate()
        if self._waiting:
            self._wake()

    def _handle_answer(self, event: Published | Unsubscribed) -> None:
        result = self._results.pop(event.handle, None)
        if result is None:
            return
        reason_code = event.reason_code if isinstance(event, Published) else max(event.reason_codes)
        if reason_code >= FAILURE:
            reason = event.reason or describe(reason_code)
            settle(result, RefusedError(f"the server refused: {reason}", reason_code))
        else:
            settle(result)

    def _handle_subscribed(self, event: Subscribed) -> None:
        """Each call subscribes to one filter; the machine alone, after the server lost the session,
        subscribes to many, and then the subscriptions themselves hear of a refusal."""
        for asked, reason_code in zip(event.subscriptions, event.reason_codes, strict=True):
            error: RefusedError | None = None
            if reason_code >= FAILURE:
                reason = event.reason or describe(reason_code)
                text = f"the server refused the subscription to {asked.topic_filter}: {reason}"
                error = RefusedError(text, reason_code)
            if event.handle:
                result = self._results.pop(event.handle, None)
                if result is not None:
                    settle(result, error)
            elif error is not None:
                self._end_subscriptions(asked.topic_filter, error)

    def _end_subscriptions(self, topic_filter: str, error: HedgerowError | None) -> None:
        """The server has no such subscription any more: whoever had it, has ended."""
        self._identifiers.remove(topic_filter)
        for inbox in [each for each in self.inboxes if topic_filter in each.topic_filters]:
            self.remove_route(inbox)
            self._since.pop(inbox, None)
            self._leave(set(inbox.topic_filters) - {topic_filter})
            inbox.end(error)

    def _leave(self, topic_filters: Iterable[str]) -> None:
        """Unsubscribe from those filters that no other subscription has."""
        wanted = {each for inbox in self.inboxes for each in inbox.topic_filters}
        for topic_filter in dict.fromkeys(topic_filters):
            if topic_filter not in wanted:
                self._client.unsubscribe([topic_filter], self._clock())
                self._identifiers.remove(topic_filter)

    # Back-pressure from full subscriptions.

    def regulate(self) -> None:
        """Stop the server while a subscription is full.

        QoS 1 and 2 stop by themselves when their acknowledgements are held back. The rest is stopped
        by not reading, but only while nothing waits for an answer of the server: a loop over a full
        subscription may be waiting for just that one.
        """
        full = bool(self._full)
        self._driver.hold_acknowledgements(full)
        self.overflowing = full and self._driver.unanswered
        self._driver.line.set_reading(not full or self.overflowing or not self._client.connected)
        if not full:
            self._driver.line.flush()

    # Publishing.

    async def send(self, message: Message) -> None:
        driver = self._driver
        if message.qos == 0:
            while (writable := driver.line.writable) is None or not writable.is_set():
                await self._wait_to_publish(writable)
            driver.client.publish(message, self._clock())
            driver.line.flush_soon(len(message.payload) + len(message.topic))
        else:
            while driver.client.unacknowledged >= self._max_unacknowledged:
                await self._wait_to_publish(None)
            await self.send_nowait(message)
        if self.is_turn_over():
            await asyncio.sleep(0)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        self.check_open()
        client = self._driver.client
        if message.qos == 0 and not client.connected:
            raise ConnectError(f"{self.address}: not connected, and QoS 0 does not wait")
        if client.unacknowledged >= self._max_unacknowledged:
            raise HedgerowError(f"{client.unacknowledged} publications wait for {self.address}: no room")
        handle = client.publish(message, self._clock())
        self._driver.line.flush_soon(len(message.payload) + len(message.topic))
        return self._expect(handle) if handle else self._done

    def _expect(self, handle: int) -> asyncio.Future[Any]:
        """The result that the machine's event with this handle will settle."""
        result: asyncio.Future[Any] = self._loop.create_future()
        self._results[handle] = result
        if self._full:
            self.regulate()
        return result

    async def _wait_to_publish(self, writable: asyncio.Event | None) -> None:
        self.check_open()
        self._waiting += 1
        try:
            await (self._changed if writable is None else writable).wait()
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Subscribing.

    async def open_subscription(self, inbox: Inbox) -> None:
        self.check_open()
        if self.origin is not None and not self._claiming:
            self._since[inbox] = self._clock()
        results = [self._subscribe(inbox, each) for each in inbox.topic_filters]
        self.add_route(inbox)
        self._claim()
        self._driver.line.flush()
        await asyncio.gather(*results)

    def _subscribe(self, inbox: Inbox, topic_filter: str) -> asyncio.Future[Any]:
        options = inbox.options
        # Of several subscriptions with one filter, the highest QoS stands at the server.
        standing = {topic_filter: options}
        for each in [*self.inboxes, inbox]:
            for other in each.topic_filters:
                if other not in standing or standing[other].qos < each.options.qos:
                    standing[other] = each.options
        if "subscription_identifier" in options.properties:
            self._identifiers.set(topic_filter, options.properties["subscription_identifier"][0])
        elif self._client.identifies_subscriptions:
            for other in self._identifiers.add(topic_filter, standing)[:-1]:
                # Nothing changes for this one but its identifier, so no retained messages again.
                self._ask(other, replace(standing[other], retain_handling=2))
        return self._expect(self._ask(topic_filter, replace(options, qos=standing[topic_filter].qos)))

    def _ask(self, topic_filter: str, options: SubscribeOptions) -> int:
        identifier = self._identifiers.get(topic_filter)
        properties = options.properties
        if identifier is not None:
            properties = properties | Properties(subscription_identifier=(identifier,))
        # A node does not send back what has our name in its id, so that is so at other servers too. On a
        # shared subscription it is an error (MQTT-3.8.3-4).
        no_local = self.origin is not None and split_shared(topic_filter)[0] is None
        asked = packets.Subscription(
            topic_filter,
            options.qos,
            options.no_local or no_local,
            options.retain_as_published,
            options.retain_handling,
        )
        return self._client.subscribe([asked], self._clock(), properties)

    def deliver(self, message: Message) -> bool:
        if self.origin is not None:
            if message.properties and is_held_deletion(message):
                self.acknowledge(message)
                return True
            if message.first_at is not None and self._since:
                return self._deliver_late(message, message.first_at)
        if not (self._identifiers and isinstance(message, MessageReceived)):
            return super().deliver(message)
        route = self.find_route(message.topic)
        for inbox in self._identifiers.choose(route, message.subscription_identifiers):
            inbox.put(message)
        return bool(route)

    def _deliver_late(self, message: Message, first_at: float) -> bool:
        """What a node sends to one that may have missed it is for those who were subscribed then."""
        route = self.find_route(message.topic)
        meant = [each for each in route if self._since.get(each, first_at) <= first_at + AGE_SLACK_S]
        for inbox in meant:
            inbox.put(message)
        if route and not meant:
            self.acknowledge(message)
        return bool(route)

    def close_subscription(self, inbox: Inbox, left: list[Message]) -> None:
        if inbox not in self.inboxes:
            return
        self.remove_route(inbox)
        self._since.pop(inbox, None)
        if not inbox.options.keep:
            for message in left:
                self.acknowledge(message)
            self._leave(inbox.topic_filters)
        self._driver.line.flush()
        self.regulate()

    async def unsubscribe(self, topic_filter: str) -> None:
        self.check_open()
        handle = self._client.unsubscribe([topic_filter], self._clock())
        self._end_subscriptions(topic_filter, None)
        self._driver.line.flush()
        await self._expect(handle)

    def acknowledge(self, message: Message) -> None:
        """With `manual_acknowledgement`: the application is done with a QoS 1 or 2 message."""
        if isinstance(message, MessageReceived):
            self._driver.acknowledge(message)

    def _keep_unclaimed(self, message: MessageReceived) -> None:
        """A message that no subscription here matches. After a restart the server's session has
        subscriptions that this process has yet to make; otherwise someone has just left."""
        if not self._claiming:
            self._driver.acknowledge(message)
            return
        if len(self._unclaimed) == MAX_UNCLAIMED:
            oldest = self._unclaimed.popleft()
            self.acknowledge(oldest)
            logger.warning("nobody subscribed to %s: dropped the oldest of %d", oldest.topic, MAX_UNCLAIMED)
        self._unclaimed.append(message)

    def _claim(self) -> None:
        """Someone subscribed: are those the messages that waited?"""
        waiting = list(self._unclaimed)
        self._unclaimed.clear()
        for message in waiting:
            if not self.deliver(message):
                self._unclaimed.append(message)
