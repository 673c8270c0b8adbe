"""What every transport implements, and what they share: `Transport`, and an `Inbox` for each subscription.

An application sees neither: its `Bus` and `Subscription` stand in front of them (`bus.py`). A transport
implements the abstract methods and calls `deliver` for every message that arrives; the routing to inboxes,
their limits and what happens when they are full are here.

An inbox is bounded. When it is full the transport is told (`regulate`) and stops its peer by the means it
has. Only while it has none, which it says with `overflowing`, are messages of QoS 0 dropped, and counted
(`dropped`). A message of QoS 1 or 2 is never dropped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hedgerow.errors import HedgerowError
from hedgerow.message import Message, Properties
from hedgerow.topics import REPLAY, TopicTree, validate_filter, wanted_topics

QUEUE_MESSAGES = 10_000
QUEUE_BYTES = 16 * 1024 * 1024

# A full inbox may grow to this many times its limit before QoS 0 is dropped.
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
    """As `Bus.subscribe` explains them."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    properties: Properties = field(default_factory=Properties)
    keep: bool = False
    queue_messages: int = QUEUE_MESSAGES
    queue_bytes: int = QUEUE_BYTES
    since: str | None = None
    """As the server is asked."""

    def __post_init__(self) -> None:
        if self.qos not in (0, 1, 2):
            raise ValueError(f"QoS is {self.qos}")
        if self.retain_handling not in (0, 1, 2):
            raise ValueError(f"retain handling is {self.retain_handling}")


class Inbox:
    """The messages of one subscription, from the transport that puts them in to the loop that takes them."""

    def __init__(
        self, transport: Transport, topic_filters: tuple[str, ...], options: SubscribeOptions
    ) -> None:
        if not topic_filters:
            raise ValueError("a subscription has at least one topic filter")
        for topic_filter in topic_filters:
            validate_filter(topic_filter)
            wanted_topics(topic_filter)
        if options.since is not None:
            topic_filters = tuple(f"{REPLAY}{options.since}/{each}" for each in topic_filters)
        self.topic_filters = topic_filters
        self.options = options
        self.dropped = 0
        self.missed = 0
        self.full = False
        self._transport = transport
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._limits = options.queue_messages, options.queue_bytes
        self._arrived = asyncio.Event()
        self._opened = False
        self._ended = False
        self._error: HedgerowError | None = None

    @property
    def waiting(self) -> int:
        """Messages that nobody has taken yet."""
        return len(self._queue)

    # For the application.

    async def open(self) -> bool:
        """Subscribe, unless that is done. Whether it was done here."""
        if self._opened:
            return False
        self._opened = True
        try:
            await self._transport.open_subscription(self)
        except BaseException:
            self.close()
            raise
        return True

    async def messages(self) -> AsyncGenerator[Message, None]:
        opened_here = await self.open()
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
        opened_here = await self.open()
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
        """Leave the subscription. The loops over it end."""
        if self._ended:
            return
        self.end(None)
        left = list(self._queue)
        self._queue.clear()
        self._transport.close_subscription(self, left)

    # For the transport.

    def end(self, error: HedgerowError | None) -> None:
        """No more will come; an error leaves the loop as an exception."""
        self._ended = True
        self._error = error
        self._arrived.set()

    def put(self, message: Message) -> None:
        queue = self._queue
        most, most_bytes = self._limits
        if (
            self.full
            and self._transport.overflowing
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
            self._transport.full_changed(self)

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
            self._transport.full_changed(self)


Route = dict[Inbox, list[str]]


class Transport(ABC):
    """To be made on a running loop. `on_state` is told of every change of `state`."""

    def __init__(self, on_state: Callable[[StateChange], None] | None = None) -> None:
        self.state = State.CONNECTING
        self.inboxes: set[Inbox] = set()
        self.overflowing = False
        """An inbox is full, and the transport cannot stop its peer."""
        self.origin: str | None = None
        """The name under which it gives ids to what is published, if it does."""
        self._full: set[Inbox] = set()
        self._tree: TopicTree[tuple[int, str], Inbox] = TopicTree()
        self._routes: dict[str, Route] = {}
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._error: HedgerowError | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.set_result(None)
        self._since_yield = 0

    # What a server may tell; other transports have none.

    @property
    def client_id(self) -> str | None:
        return None

    @property
    def version(self) -> int | None:
        return None

    @property
    def broker_name(self) -> str | None:
        return None

    # What each transport does in its own way.

    @abstractmethod
    async def send(self, message: Message) -> None: ...

    @abstractmethod
    def send_nowait(self, message: Message) -> asyncio.Future[None]: ...

    def acknowledge(self, message: Message) -> None:  # noqa: B027 - most transports have nothing to do
        """With manual acknowledgement: the application is done with a message of QoS 1 or 2."""

    @abstractmethod
    async def open_subscription(self, inbox: Inbox) -> None:
        """Subscribe at the other side; returns when messages flow into the inbox."""

    @abstractmethod
    def close_subscription(self, inbox: Inbox, left: list[Message]) -> None:
        """A subscription was left; `left` are the messages that nobody took."""

    @abstractmethod
    async def unsubscribe(self, topic_filter: str) -> None:
        """End every subscription with this filter, here and at the other side."""

    @abstractmethod
    def regulate(self) -> None:
        """There are other inboxes in `_full` than before: stop the peer, or let it go on."""

    @abstractmethod
    async def close(self, *, at_once: bool = False) -> None:
        """Leave, and end every subscription. Unless `at_once`, what was published gets time to leave."""

    # From open to closed.

    async def wait_closed(self) -> None:
        await asyncio.shield(self._over)
        if self._error is not None:
            raise self._error

    def set_state(self, change: StateChange) -> None:
        self.state = change.state
        if self._on_state is not None:
            # Not from here: what the application does wrong in it must not break the bus.
            self._loop.call_soon(self._on_state, change)

    def check_open(self) -> None:
        if self._over.done():
            raise self._error or HedgerowError("the bus is closed")

    def finish(self, error: HedgerowError | None = None, reason: str = "") -> None:
        """It is over: the subscriptions end, and whoever waits for that is told."""
        if self._over.done():
            return
        self._error = error
        self._over.set_result(None)
        for inbox in list(self.inboxes):
            inbox.end(error)
            self.remove_route(inbox)
        self.set_state(StateChange(State.CLOSED, reason or str(error or "")))

    def is_turn_over(self) -> bool:
        """To be asked after each publication: whether to let others run, when nothing else does."""
        self._since_yield += 1
        if self._since_yield < _YIELD_EVERY:
            return False
        self._since_yield = 0
        return True

    def full_changed(self, inbox: Inbox) -> None:
        if inbox.full:
            self._full.add(inbox)
        else:
            self._full.discard(inbox)
        self.regulate()

    # Routing.

    def add_route(self, inbox: Inbox) -> None:
        self.inboxes.add(inbox)
        for topic_filter in inbox.topic_filters:
            self._tree.set(wanted_topics(topic_filter), (id(inbox), topic_filter), inbox)
        self._routes.clear()

    def remove_route(self, inbox: Inbox) -> None:
        self.inboxes.discard(inbox)
        self._full.discard(inbox)
        for topic_filter in inbox.topic_filters:
            self._tree.remove(wanted_topics(topic_filter), (id(inbox), topic_filter))
        self._routes.clear()

    def deliver(self, message: Message) -> bool:
        """Put a message into each inbox that it matches; False when there is none."""
        route = self.find_route(message.topic)
        for inbox in route:
            inbox.put(message)
        return bool(route)

    def find_route(self, topic: str) -> Route:
        """The inboxes that match a topic name, each with those of its filters that do."""
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[topic] = {}
            for (_, topic_filter), inbox in self._tree.match(topic):
                route.setdefault(inbox, []).append(topic_filter)
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
