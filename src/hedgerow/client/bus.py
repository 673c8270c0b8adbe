"""What every transport offers to an application: a `Bus`, and the `Subscription`s made on it.

An application written against these runs over any transport. A transport implements the abstract
methods and calls `deliver` for every message that arrives; the routing to subscriptions, their queues
and what happens when they are full are here.

A subscription's queue is bounded. When it is full the transport is told (`full_changed`) and stops
its peer by the means it has. Only while it has none, which it says with `overflowing`, are messages of
QoS 0 dropped, and counted (`dropped`). A message of QoS 1 or 2 is never dropped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.message import MAX_NUMBER, Message, MessageId, Properties
from hedgerow.mqtt.ids import may_bear
from hedgerow.topics import TopicTree, split_shared, validate_filter

QUEUE_MESSAGES = 10_000
QUEUE_BYTES = 16 * 1024 * 1024

# A full queue may grow to this many times its limit before QoS 0 is dropped.
_OVERFLOW = 4

_YIELD_EVERY = 256  # publications

MAX_CACHED_ROUTES = 16_384  # A peer may publish each message on a new topic.


class State(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"  # to connect again
    CLOSED = "closed"


@dataclass(slots=True, frozen=True)
class StateChange:
    """What `on_state` is told. `session_present`: the server still knew this client's session."""

    state: State
    reason: str = ""
    session_present: bool = False


@dataclass(slots=True, frozen=True)
class SubscribeOptions:
    qos: int = 0
    """The highest QoS at which messages are to arrive."""
    no_local: bool = False
    """Not what this bus itself publishes."""
    retain_as_published: bool = False
    """`Message.retain` as the publisher set it, not only for messages that were kept."""
    retain_handling: int = 0
    """Retained messages: 0 always, 1 if the subscription is new to the server's session, 2 never."""
    properties: Properties = field(default_factory=Properties)
    keep: bool = False
    """Leave the subscription to the server's session when the loop is left."""
    queue_messages: int = QUEUE_MESSAGES
    queue_bytes: int = QUEUE_BYTES

    def __post_init__(self) -> None:
        if self.qos not in (0, 1, 2):
            raise ValueError(f"QoS is {self.qos}")
        if self.retain_handling not in (0, 1, 2):
            raise ValueError(f"retain handling is {self.retain_handling}")


class Subscription:
    """The messages that match one or more topic filters, each once, in the order of their arrival.

    `async for message in bus.subscribe(…)` subscribes when the loop begins and unsubscribes when it
    is left. `async with bus.subscribe(…) as messages` subscribes before the block is entered, which
    is what a program needs that publishes and wants the answer.
    """

    def __init__(self, bus: Bus, topic_filters: tuple[str, ...], options: SubscribeOptions) -> None:
        if not topic_filters:
            raise ValueError("a subscription has at least one topic filter")
        for topic_filter in topic_filters:
            validate_filter(topic_filter)
            split_shared(topic_filter)
        self.bus = bus
        self.topic_filters = topic_filters
        self.options = options
        self.dropped = 0
        """QoS 0 messages that were dropped because this subscription did not keep up."""
        self.full = False
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._limits = options.queue_messages, options.queue_bytes
        self._arrived = asyncio.Event()
        self._opened = False
        self._ended = False
        self._error: HedgerowError | None = None

    async def __aenter__(self) -> Subscription:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        opened_here = await self._open()
        queue = self._queue
        try:
            while await self._wait():
                while queue:
                    message = queue.popleft()
                    self._queued_bytes -= len(message.payload)
                    if self.full:
                        self._check_relief()
                    yield message
        finally:
            if opened_here:
                self.close()

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """The same messages in lists of all that have arrived, for those who write them in bulk."""
        opened_here = await self._open()
        try:
            while await self._wait():
                batch = list(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                if self.full:
                    self._check_relief()
                yield batch
        finally:
            if opened_here:
                self.close()

    async def _open(self) -> bool:
        """Subscribe, unless that is done. Whether it was done here."""
        if self._opened:
            return False
        self._opened = True
        try:
            await self.bus.open_subscription(self)
        except BaseException:
            self.close()
            raise
        return True

    async def _wait(self) -> bool:
        """Wait for messages; False when there will be no more."""
        while not self._queue:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    def close(self) -> None:
        """Unsubscribe, unless `keep` was asked for. The loops over this subscription end."""
        if self._ended:
            return
        self.end(None)
        left = list(self._queue)
        self._queue.clear()
        self.bus.close_subscription(self, left)

    def end(self, error: HedgerowError | None) -> None:
        """The transport's word that no more will come; an error leaves the loop as an exception."""
        self._ended = True
        self._error = error
        self._arrived.set()

    def put(self, message: Message) -> None:
        """The transport's delivery of one message."""
        queue = self._queue
        most, most_bytes = self._limits
        if (
            self.full
            and self.bus.overflowing
            and message.qos == 0
            and (len(queue) >= _OVERFLOW * most or self._queued_bytes >= _OVERFLOW * most_bytes)
        ):
            self.dropped += 1
            return
        queue.append(message)
        self._queued_bytes += len(message.payload)
        if len(queue) == 1:
            self._arrived.set()
        if (len(queue) >= most or self._queued_bytes >= most_bytes) and not self.full:
            self.full = True
            self.bus.full_changed(self)

    def put_all(self, messages: list[Message]) -> None:
        """`put` for messages that arrived together, at a third of its price when all of them fit."""
        queue = self._queue
        most, most_bytes = self._limits
        size = sum([len(message.payload) for message in messages])
        if self.full or len(queue) + len(messages) >= most or self._queued_bytes + size >= most_bytes:
            for message in messages:
                self.put(message)
            return
        queue.extend(messages)
        self._queued_bytes += size
        self._arrived.set()

    def _check_relief(self) -> None:
        most, most_bytes = self._limits
        if len(self._queue) <= most // 2 and self._queued_bytes <= most_bytes // 2:
            self.full = False
            self.bus.full_changed(self)


Route = dict[Subscription, list[str]]


class Bus(ABC):
    """A place to publish to and subscribe at. Transports derive from it; `hedgerow.connect` makes one.

    To be made on a running loop. `on_state` is told of every change of `state`.
    """

    def __init__(self, on_state: Callable[[StateChange], None] | None = None) -> None:
        self.state = State.CONNECTING
        self.subscriptions: set[Subscription] = set()
        self.overflowing = False
        """A subscription is full, and the transport cannot stop its peer."""
        self.origin: str | None = None
        """The name under which this bus gives ids to what it publishes, if it does."""
        self._tree: TopicTree[tuple[int, str], Subscription] = TopicTree()
        self._routes: dict[str, Route] = {}
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._error: HedgerowError | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.set_result(None)
        self._since_yield = 0

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        id: MessageId | None = None,  # noqa: A002 - as `Message.id`
    ) -> None:
        """Publish a message. Returns when the transport has taken it: at QoS 1 and 2 when the other
        side has acknowledged it, which may be after a reconnection. RefusedError when it will not.

        `id` is for a bus that gives ids (`connect(…, origin=…)`): this one, not the next of its own."""
        if id is not None:
            self.check_id(id)
        await self.send(make_message(topic, payload, qos, retain, properties, id))

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        id: MessageId | None = None,  # noqa: A002 - as `Message.id`
    ) -> asyncio.Future[None]:
        """Publish without waiting; the future ends as `publish` would. Raises when there is no room."""
        if id is not None:
            self.check_id(id)
        return self.send_nowait(make_message(topic, payload, qos, retain, properties, id))

    def check_id(self, message_id: MessageId) -> None:
        """Raise for an id that a message of this bus cannot have."""
        if self.origin is None:
            raise ConfigError("this bus gives no ids: connect with origin=NAME, over MQTT 5")
        origin, epoch, sequence = message_id
        if not may_bear(origin) or not (0 <= epoch <= MAX_NUMBER and 0 <= sequence <= MAX_NUMBER):
            raise ValueError(f"no id that the fabric has: {message_id!r}")

    def subscribe(
        self,
        *topic_filters: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        properties: Properties | None = None,
        keep: bool = False,
        queue_messages: int = QUEUE_MESSAGES,
        queue_bytes: int = QUEUE_BYTES,
    ) -> Subscription:
        """A subscription, active once a loop over it begins or `async with` is entered.

        `SubscribeOptions` says what each option means.
        """
        options = SubscribeOptions(
            qos,
            no_local,
            retain_as_published,
            retain_handling,
            properties or {},
            keep,
            queue_messages,
            queue_bytes,
        )
        return Subscription(self, topic_filters, options)

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Publish a ready-made message; see `publish`."""

    @abstractmethod
    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        """Publish a ready-made message without waiting; see `publish_nowait`."""

    def acknowledge(self, message: Message) -> None:  # noqa: B027 - most transports have nothing to do
        """With manual acknowledgement: the application is done with a message of QoS 1 or 2."""

    @abstractmethod
    async def unsubscribe(self, topic_filter: str) -> None:
        """End every subscription with this filter, here and at the other side."""

    @abstractmethod
    async def close(self) -> None:
        """Send what was published, end every subscription, and leave."""

    async def wait_closed(self) -> None:
        """Return when the bus is closed; raises what closed it, if that was an error."""
        await asyncio.shield(self._over)
        if self._error is not None:
            raise self._error

    @abstractmethod
    async def open_subscription(self, subscription: Subscription) -> None:
        """Make the subscription at the other side; returns when it is active."""

    @abstractmethod
    def close_subscription(self, subscription: Subscription, left: list[Message]) -> None:
        """A subscription was left; `left` are the messages that it did not take."""

    @abstractmethod
    def full_changed(self, subscription: Subscription) -> None:
        """A subscription's queue became full, or has room again."""

    async def __aenter__(self) -> Bus:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # From open to closed, for the transports.

    def set_state(self, change: StateChange) -> None:
        self.state = change.state
        if self._on_state is not None:
            # Not from here: what the application does wrong in it must not break the bus.
            self._loop.call_soon(self._on_state, change)

    def check_open(self) -> None:
        if self._over.done():
            raise self._error or HedgerowError("the bus is closed")

    def finish(self, error: HedgerowError | None = None, reason: str = "") -> None:
        """The bus is over: its subscriptions end, and whoever waits for that is told."""
        if self._over.done():
            return
        self._error = error
        self._over.set_result(None)
        for subscription in list(self.subscriptions):
            subscription.end(error)
            self.remove_route(subscription)
        self.set_state(StateChange(State.CLOSED, reason or str(error or "")))

    def is_turn_over(self) -> bool:
        """To be asked after each publication: whether to let others run, when nothing else does."""
        self._since_yield += 1
        if self._since_yield < _YIELD_EVERY:
            return False
        self._since_yield = 0
        return True

    # Routing, for the transports.

    def add_route(self, subscription: Subscription) -> None:
        self.subscriptions.add(subscription)
        for topic_filter in subscription.topic_filters:
            self._tree.set(split_shared(topic_filter)[1], (id(subscription), topic_filter), subscription)
        self._routes.clear()

    def remove_route(self, subscription: Subscription) -> None:
        self.subscriptions.discard(subscription)
        for topic_filter in subscription.topic_filters:
            self._tree.remove(split_shared(topic_filter)[1], (id(subscription), topic_filter))
        self._routes.clear()

    def deliver(self, message: Message) -> bool:
        """Queue a message at each subscription that it matches; False when there is none."""
        route = self.find_route(message.topic)
        for subscription in route:
            subscription.put(message)
        return bool(route)

    def find_route(self, topic: str) -> Route:
        """The subscriptions that match a topic name, each with those of its filters that do."""
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[topic] = {}
            for (_, topic_filter), subscription in self._tree.match(topic):
                route.setdefault(subscription, []).append(topic_filter)
        return route


def settle(result: asyncio.Future[Any], error: HedgerowError | None = None) -> None:
    """End what someone may be waiting for, unless it has ended."""
    if result.done():
        return
    if error is None:
        result.set_result(None)
    else:
        result.set_exception(error)
        result.exception()  # seen: nobody may be waiting for this one


def make_message(
    topic: str,
    payload: bytes | str,
    qos: int,
    retain: bool,
    properties: Properties | None,
    message_id: MessageId | None = None,
) -> Message:
    data = payload.encode() if isinstance(payload, str) else bytes(payload)
    return Message(topic, data, qos, retain, properties if properties is not None else {}, message_id)
