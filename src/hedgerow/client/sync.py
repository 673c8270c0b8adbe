"""`hedgerow.connect_sync`: a bus for scripts, notebooks and programs with threads.

An asynchronous `Bus` lives on an event loop in a thread of its own; each call here hands a coroutine to that
loop and waits for it. So it works where a loop runs already, as in a notebook, and from any number of
threads. What goes wrong is raised in the thread that called.

The thread lasts as long as the bus. A bus that nobody has closed is closed when nothing refers to it any
more, or when the program ends.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime, timedelta
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from hedgerow.client.bus import Bus, Subscription
from hedgerow.client.connect import Connecting, connect
from hedgerow.client.transport import QUEUE_BYTES, QUEUE_MESSAGES, State
from hedgerow.errors import HedgerowError
from hedgerow.message import Message, MessageId, Properties

T = TypeVar("T")
P = ParamSpec("P")

# At the end of a program: a bus leaves sooner, unless its server has vanished.
EXIT_TIMEOUT_S = 10.0


class _ClosedError(HedgerowError):
    """The application itself has closed the bus."""


class _BusThread:
    """The thread on which a bus lives, from `connect` to `close`."""

    def __init__(self, connecting: Connecting) -> None:
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._is_ending = False
        opened: Future[Bus] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(connecting, opened), name="hedgerow bus", daemon=True
        )
        self._thread.start()
        _running.add(self)
        try:
            self.bus = opened.result()
        except BaseException as error:
            self.close(error)
            raise

    def _run(self, connecting: Connecting, opened: Future[Bus]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # It cancels what is left at its end.
            runner.run(self._live(connecting, opened))

    async def _live(self, connecting: Connecting, opened: Future[Bus]) -> None:
        opening = asyncio.ensure_future(connecting)
        either: list[asyncio.Future[Any]] = [opening, self._end]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
        if opening.cancelled() or (failure := opening.exception()) is not None:
            opened.set_exception(_ClosedError("the bus was closed") if opening.cancelled() else failure)
            return
        bus = opening.result()
        opened.set_result(bus)
        error = await self._end
        await bus.__aexit__(type(error) if error is not None else None, error, None)

    def call(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Run a coroutine beside the bus, and return or raise what it does. TimeoutError."""

        async def run() -> T:
            async with asyncio.timeout(timeout):
                return await work()

        if threading.current_thread() is self._thread:
            raise RuntimeError("on_state is called on the thread of the bus, which cannot wait for itself")
        with self._lock:
            if self._is_ending or not self._thread.is_alive():  # A fork has none of its parent's threads.
                raise _ClosedError("the bus is closed")
            result = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return result.result()
        except CancelledError:
            raise _ClosedError("the bus was closed") from None
        except BaseException:  # such as Ctrl-C, while it goes on
            result.cancel()
            raise

    def end(self, error: BaseException | None = None) -> None:
        """Begin to close, with an error at once."""
        with self._lock:
            if not self._is_ending and self._thread.is_alive():
                with suppress(RuntimeError):  # It could not connect, and the loop has ended.
                    self._loop.call_soon_threadsafe(self._end.set_result, error)
            self._is_ending = True

    def close(self, error: BaseException | None = None, timeout: float | None = None) -> None:
        self.end(error)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)


_running: weakref.WeakSet[_BusThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    left = list(_running)
    for each in left:
        each.end()
    for each in left:
        each.close(timeout=EXIT_TIMEOUT_S)


class SyncSubscription:
    """The messages that match one or more topic filters, each once, in the order of their arrival.

    `for message in bus.subscribe(…)` subscribes when the loop begins and unsubscribes when it is left.
    `with bus.subscribe(…) as messages` subscribes before the block is entered, which is what a program
    needs that publishes and wants the answer.
    """

    def __init__(
        self, bus: SyncBus, thread: _BusThread, subscription: Subscription, timeout: float | None
    ) -> None:
        self._bus = bus  # It is closed when nobody has it any more.
        self._thread = thread
        self._subscription = subscription
        self._timeout = timeout
        self._is_open = False
        self._lock = threading.Lock()
        self._taken: deque[Message] = deque()

    @property
    def topic_filters(self) -> tuple[str, ...]:
        return self._subscription.topic_filters

    @property
    def dropped(self) -> int:
        """QoS 0 messages that were dropped because this subscription did not keep up."""
        return self._subscription.dropped

    @property
    def missed(self) -> int:
        """Messages at QoS 1 and 2 that will not come by multicast: nobody has them any more."""
        return self._subscription.missed

    def __enter__(self) -> SyncSubscription:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        opened_here = self._open()
        try:
            while True:
                try:
                    message = self._take(self._timeout)
                except TimeoutError:
                    return
                if message is None:
                    return
                yield message
        finally:
            if opened_here:
                self.close()

    def get(self, timeout: float | None = None) -> Message:
        """Wait for the next message, subscribed or not yet. TimeoutError: none came in so many seconds."""
        self._open(timeout)
        message = self._take(timeout)
        if message is None:
            raise HedgerowError("the subscription has ended")
        return message

    def close(self) -> None:
        """Unsubscribe, unless `keep` was asked for. The loops over this subscription end."""
        self._taken.clear()

        async def close() -> None:
            self._subscription.close()

        with suppress(_ClosedError):
            self._thread.call(close)

    def _open(self, timeout: float | None = None) -> bool:
        """Subscribe, unless that is done. Whether it was done here."""
        if self._is_open:
            return False
        self._is_open = True
        self._thread.call(self._subscription.__aenter__, timeout)
        return True

    def _take(self, timeout: float | None) -> Message | None:
        """The next message; None: there will be no more. TimeoutError."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(
            timeout=-1 if timeout is None else timeout
        ):  # Another thread waits already.
            raise TimeoutError
        try:
            if not self._taken:
                left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
                with suppress(_ClosedError):
                    self._thread.call(self._fetch, left)
            return self._taken.popleft() if self._taken else None
        finally:
            self._lock.release()

    async def _fetch(self) -> None:
        """Take all that has arrived. It is kept here, so that nothing is lost with a caller who gives up."""
        async for batch in self._subscription.batches():
            self._taken.extend(batch)
            return


class SyncBus:
    """A place to publish to and subscribe at, from any thread. `hedgerow.connect_sync` makes one."""

    def __init__(self, connecting: Connecting) -> None:
        self._thread = _BusThread(connecting)
        self._bus = self._thread.bus
        weakref.finalize(self, self._thread.end).atexit = False  # _close_all also waits

    @property
    def state(self) -> State:
        return self._bus.state

    @property
    def closed(self) -> bool:
        return self._bus.closed

    @property
    def origin(self) -> str | None:
        """The name under which this bus gives ids to what it publishes, if it does."""
        return self._bus.origin

    @property
    def client_id(self) -> str | None:
        """Our name at the server, which may have assigned it. None: there is no server."""
        return self._bus.client_id

    @property
    def version(self) -> int | None:
        """The MQTT version that is spoken: 5, 4 (3.1.1) or 3 (3.1). None: it is not MQTT."""
        return self._bus.version

    @property
    def broker_name(self) -> str | None:
        """The name of the server in the fabric, if it is a node that takes ids from this bus."""
        return self._bus.broker_name

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        id: MessageId | None = None,  # noqa: A002 - as `Message.id`
        timeout: float | None = None,
    ) -> None:
        """Publish a message, as `Bus.publish` does. Returns when the transport has taken it: at QoS 1 and 2
        when the other side has acknowledged it.

        timeout  TimeoutError after so many seconds; it may still be delivered
        """
        self._thread.call(
            lambda: self._bus.publish(topic, payload, qos=qos, retain=retain, properties=properties, id=id),
            timeout,
        )

    def send(self, message: Message, timeout: float | None = None) -> None:
        """Publish a ready-made message; see `publish`."""
        self._thread.call(lambda: self._bus.send(message), timeout)

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
        since: str | datetime | timedelta | None = None,
        timeout: float | None = None,
    ) -> SyncSubscription:
        """A subscription, active once a loop over it begins or `with` is entered.

        timeout  a loop over it ends after so many seconds without a message; None: it waits for ever

        The other options are those of `Bus.subscribe`.
        """
        subscription = self._bus.subscribe(
            *topic_filters,
            qos=qos,
            no_local=no_local,
            retain_as_published=retain_as_published,
            retain_handling=retain_handling,
            properties=properties,
            keep=keep,
            queue_messages=queue_messages,
            queue_bytes=queue_bytes,
            since=since,
        )
        return SyncSubscription(self, self._thread, subscription, timeout)

    def unsubscribe(self, topic_filter: str) -> None:
        """End every subscription with this filter, here and at the other side."""
        self._thread.call(lambda: self._bus.unsubscribe(topic_filter))

    def acknowledge(self, message: Message) -> None:
        """With `manual_acknowledgement`: the application is done with a QoS 1 or 2 message."""

        async def acknowledge() -> None:
            self._bus.acknowledge(message)

        self._thread.call(acknowledge)

    def close(self) -> None:
        """End every subscription, and leave."""
        self._thread.close()

    def __enter__(self) -> SyncBus:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.close(error)


_DOCUMENTATION = """Connect to `url` and return a `SyncBus`, to be used with `with` or closed by `close`.

    For scripts, notebooks and threads; a program with an event loop has `connect`. The options are the same,
    but `on_state` is called on the thread of the bus.

"""


def _in_thread(connect: Callable[P, Connecting]) -> Callable[P, SyncBus]:
    @wraps(connect)
    def connect_sync(*arguments: P.args, **options: P.kwargs) -> SyncBus:
        return SyncBus(connect(*arguments, **options))

    connect_sync.__name__ = connect_sync.__qualname__ = "connect_sync"
    connect_sync.__module__ = __name__
    connect_sync.__doc__ = _DOCUMENTATION + (connect.__doc__ or "").partition("\n\n")[2]
    signature = inspect.signature(connect).replace(return_annotation="SyncBus")
    connect_sync.__signature__ = signature  # type: ignore[attr-defined] # what `inspect` and `help` show
    return connect_sync


connect_sync = _in_thread(connect)
