"""A `Bus` with no server: `multicast://`, whose options `multicast/io/options.py` reads.

QoS 0 is sent once. QoS 1 and 2 are sent no faster than receivers take them, kept for a while, and sent again
to whoever missed them; a publication at QoS 1 or 2 has ended when it was sent, since nobody knows who
should acknowledge it. What needs a server (sessions, wills, user names, shared subscriptions) is refused
in words.

A subscription that is full: with QoS 0, further messages are dropped and counted. With QoS 1 or 2 the bus
stops reading, and what the system drops meanwhile is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from hedgerow.client.bus import Bus, State, StateChange, Subscription, settle
from hedgerow.client.bus_options import BusOptions
from hedgerow.client.urls import BusUrl
from hedgerow.errors import HedgerowError, RefusedError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast.io.endpoint import MulticastEndpoint
from hedgerow.multicast.io.options import MulticastOptions, read_options
from hedgerow.topics import split_shared

# Publications at QoS 1 and 2 that may wait for their turn: beyond them `publish` waits.
MAX_WAITING = 100_000
MAX_WAITING_BYTES = 64 * 1024 * 1024  # as much as the member then keeps of them for repairs
WAITING_BYTES = 400  # what a message takes beside its bytes

# What was published without waiting gets this long to leave when the bus is closed.
CLOSE_TIMEOUT_S = 5.0

LACKING = {
    "name": "user names and passwords; a key file (?key=FILE) keeps others out",
    "will": "wills",
    "session": "sessions",
    "tls": "TLS; a key file (?key=FILE) encrypts",
    "properties": "properties of CONNECT",
    "origin": "ids of an origin: each member gives its own",
}


async def open_bus(address: BusUrl, options: BusOptions) -> Bus:
    options.refuse(LACKING, "multicast has no server, and so no")
    bus = MulticastBus(read_options(address.host, address.port, address.rest), options.on_state)
    await bus.open()
    return bus


class MulticastBus(Bus):
    def __init__(
        self, options: MulticastOptions, on_state: Callable[[StateChange], None] | None = None
    ) -> None:
        super().__init__(on_state)
        self.overflowing = True  # Nobody can be stopped, only not listened to.
        self.endpoint = MulticastEndpoint(options)
        self.endpoint.on_messages = self._receive
        self.endpoint.on_held = self._receive_held
        self._waiting: deque[tuple[Message, asyncio.Future[None]]] = deque()
        self._waiting_bytes = 0
        self._full: set[Subscription] = set()
        self._has_no_local = False

    # From open to closed.

    async def open(self) -> None:
        self.set_state(StateChange(State.CONNECTING))
        try:
            await self.endpoint.start()
        except BaseException as error:
            self._finish(str(error))
            raise
        self.set_state(StateChange(State.CONNECTED))

    async def close(self) -> None:
        await self._close(CLOSE_TIMEOUT_S)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(CLOSE_TIMEOUT_S if error is None else 0.0)

    async def _close(self, timeout_s: float) -> None:
        if self.closed:
            return
        try:
            if self._waiting and timeout_s:
                await asyncio.wait([result for _, result in self._waiting], timeout=timeout_s)
        finally:
            self._finish("")
            await self.endpoint.stop()

    def _finish(self, reason: str) -> None:
        for _, result in self._waiting:
            settle(result, HedgerowError("the bus was closed"))
        self._waiting.clear()
        self._waiting_bytes = 0
        self.finish(reason=reason)

    # Publishing.

    async def send(self, message: Message) -> None:
        if message.qos == 0:
            self.check_open()
            self.endpoint.publish(message)
        else:
            while not self._has_room(message):
                await asyncio.wait([self._waiting[0][1]])
            await self.send_nowait(message)
        if self.is_turn_over():
            await asyncio.sleep(0)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        self.check_open()
        if message.qos == 0 or not (self._waiting or self._wait_s > 0):
            self.endpoint.publish(message)
            return self._done
        if not self._has_room(message):
            raise HedgerowError(f"{len(self._waiting)} publications wait for their turn: no room")
        self.endpoint.member.check(message)
        result: asyncio.Future[None] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_later(self._wait_s, self._publish_waiting)
        self._waiting.append((message, result))
        self._waiting_bytes += message.size + WAITING_BYTES
        return result

    def _has_room(self, message: Message) -> bool:
        """The first always has."""
        waiting_bytes = self._waiting_bytes + message.size + WAITING_BYTES
        fits = len(self._waiting) < MAX_WAITING and waiting_bytes <= MAX_WAITING_BYTES
        return fits or not self._waiting

    @property
    def _wait_s(self) -> float:
        """Until receivers are thought to be ready for more."""
        return self.endpoint.member.ready_at - self.endpoint.clock()

    def _publish_waiting(self) -> None:
        waiting = self._waiting
        while waiting and (wait_s := self._wait_s) <= 0:
            message, result = waiting.popleft()
            self._waiting_bytes -= message.size + WAITING_BYTES
            try:
                self.endpoint.publish(message)
            except HedgerowError as error:
                settle(result, error)
            else:
                settle(result, None)
        if waiting:
            self._loop.call_later(wait_s, self._publish_waiting)

    # Subscribing.

    async def open_subscription(self, subscription: Subscription) -> None:
        self.check_open()
        for topic_filter in subscription.topic_filters:
            if split_shared(topic_filter)[0] is not None:
                raise RefusedError(
                    f"{topic_filter}: nobody shares messages out by multicast",
                    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                )
        self.add_route(subscription)
        self._has_no_local |= subscription.options.no_local
        member, now = self.endpoint.member, self.endpoint.clock()
        for topic_filter in dict.fromkeys(subscription.topic_filters):
            member.subscribe(topic_filter, now)
        # Those that this member has already are for the new subscription alone.
        for message in {each.topic: each for each in member.take_held()}.values():
            self._give_held(subscription, message)
        self.endpoint.flush()

    def close_subscription(self, subscription: Subscription, left: list[Message]) -> None:
        if subscription not in self.subscriptions:
            return
        self.remove_route(subscription)
        member, now = self.endpoint.member, self.endpoint.clock()
        for topic_filter in dict.fromkeys(subscription.topic_filters):
            member.unsubscribe(topic_filter, now)
        self._full.discard(subscription)
        self.endpoint.set_reading(not self._full)
        self.endpoint.flush()

    async def unsubscribe(self, topic_filter: str) -> None:
        self.check_open()
        for subscription in [each for each in self.subscriptions if topic_filter in each.topic_filters]:
            self.close_subscription(subscription, [])
            subscription.end(None)

    def full_changed(self, subscription: Subscription) -> None:
        if subscription.full and subscription.options.qos:
            self._full.add(subscription)
        else:
            self._full.discard(subscription)
        self.endpoint.set_reading(not self._full)

    # What arrives.

    def _receive(self, messages: list[Message]) -> None:
        topic, qos = messages[0].topic, messages[0].qos
        alike: list[Message] = []  # What comes by multicast comes in runs: each is queued at once.
        for message in messages:
            if message.topic != topic or message.qos != qos:
                self._receive_alike(topic, qos, alike)
                topic, qos, alike = message.topic, message.qos, []
            if message.retain or self._has_no_local:
                self._receive_alike(topic, qos, alike)
                alike = []
                for subscription in self.find_route(topic):
                    self._give(subscription, message)
            else:
                alike.append(message)
        self._receive_alike(topic, qos, alike)

    def _receive_alike(self, topic: str, qos: int, messages: list[Message]) -> None:
        """Messages of one topic and QoS, to be had as they are unless a subscription's QoS is lower."""
        if messages:
            for subscription in self.find_route(topic):
                if qos <= subscription.options.qos:
                    subscription.put_all(messages)
                else:
                    for message in messages:
                        self._give(subscription, message)

    def _give(self, subscription: Subscription, message: Message) -> None:
        options = subscription.options
        if options.no_local and message.id is not None and message.id.origin == self.endpoint.member.origin:
            return
        retain = message.retain and options.retain_as_published
        if message.qos > options.qos or message.retain is not retain:
            message = replace(message, qos=min(message.qos, options.qos), retain=retain)
        subscription.put(message)

    def _receive_held(self, messages: list[Message]) -> None:
        for message in messages:
            for subscription in self.find_route(message.topic):
                self._give_held(subscription, message)

    def _give_held(self, subscription: Subscription, message: Message) -> None:
        options = subscription.options
        if options.retain_handling != 2 and message.payload:
            qos = min(message.qos, options.qos)
            subscription.put(message if message.qos == qos else replace(message, qos=qos))
