"""`Transport` and `Inbox` on their own: routing, queues and their limits, over a transport of one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hedgerow.client.bus import Bus
from hedgerow.client.transport import (
    MAX_CACHED_ROUTES,
    Inbox,
    State,
    StateChange,
    SubscribeOptions,
    Transport,
)
from hedgerow.errors import HedgerowError, TopicError
from hedgerow.message import Message


class LocalTransport(Transport):
    """What is published is delivered, here and now."""

    def __init__(self, on_state: Callable[[StateChange], None] | None = None) -> None:
        super().__init__(on_state)
        self.state = State.CONNECTED
        self.full_history: list[bool] = []
        self.left: list[Message] = []

    async def send(self, message: Message) -> None:
        self.deliver(message)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        self.deliver(message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def unsubscribe(self, topic_filter: str) -> None:
        for inbox in [each for each in self.inboxes if topic_filter in each.topic_filters]:
            inbox.end(None)
            self.remove_route(inbox)

    async def close(self, *, at_once: bool = False) -> None:
        self.finish()

    async def open_subscription(self, inbox: Inbox) -> None:
        self.add_route(inbox)

    def close_subscription(self, inbox: Inbox, left: list[Message]) -> None:
        self.remove_route(inbox)
        self.left += left

    def regulate(self) -> None:
        self.full_history.append(bool(self._full))


async def opened(transport: Transport, topic_filter: str, options: SubscribeOptions | None = None) -> Inbox:
    inbox = Inbox(transport, (topic_filter,), options or SubscribeOptions())
    await inbox.open()
    return inbox


async def test_a_transport_needs_only_the_abstract_methods() -> None:
    transport = LocalTransport()
    async with Bus(transport) as bus, bus.subscribe("home/+/status", "home/#") as messages:
        await bus.publish("home/vacuum/status", "done")
        await bus.publish_nowait("home", b"\0")
        stream = aiter(messages)
        assert [(await anext(stream)).payload for _ in range(2)] == [b"done", b"\0"]
    assert bus.closed
    assert not transport.inboxes


async def test_two_loops_share_one_subscription() -> None:
    async with Bus(LocalTransport()) as bus, bus.subscribe("a") as messages:

        async def count() -> int:
            return sum([1 async for _ in messages])

        loops = [asyncio.ensure_future(count()) for _ in range(2)]
        for _ in range(10):
            await bus.publish("a")
            await asyncio.sleep(0)
        await bus.unsubscribe("a")
        assert sum(await asyncio.gather(*loops)) == 10


async def test_a_queue_is_full_at_its_limit_and_has_room_at_half_of_it() -> None:
    transport = LocalTransport()
    bus = Bus(transport)
    async with bus.subscribe("a", queue_messages=4) as messages:
        for _ in range(6):
            await bus.publish("a")
        assert transport.full_history == [True]
        stream = aiter(messages)
        for _ in range(3):
            await anext(stream)
        assert transport.full_history == [True]
        await anext(stream)
        assert transport.full_history == [True, False]
    assert len(transport.left) == 2


async def test_bytes_fill_a_queue_too() -> None:
    transport = LocalTransport()
    inbox = await opened(transport, "a", SubscribeOptions(queue_bytes=100))
    transport.deliver(Message("a", bytes(99)))
    assert not inbox.full
    transport.deliver(Message("a", b"x"))
    assert inbox.full
    async for batch in inbox.batches():
        assert len(batch) == 2
        break
    assert transport.full_history == [True, False]


async def test_only_qos_0_is_dropped_and_only_when_the_transport_cannot_stop() -> None:
    transport = LocalTransport()
    inbox = await opened(transport, "a", SubscribeOptions(queue_messages=2))
    for _ in range(20):
        transport.deliver(Message("a", b""))
    assert inbox.dropped == 0
    transport.overflowing = True
    for qos in (0, 1, 2):
        transport.deliver(Message("a", b"", qos))
    assert inbox.dropped == 1
    assert inbox.waiting == 22


async def test_an_error_leaves_the_loop_after_what_was_queued() -> None:
    transport = LocalTransport()
    inbox = await opened(transport, "a")
    transport.deliver(Message("a", b"last"))
    inbox.end(HedgerowError("over"))
    stream = inbox.messages()
    assert (await anext(stream)).payload == b"last"
    with pytest.raises(HedgerowError, match="over"):
        await anext(stream)


async def test_the_cache_of_routes_is_bounded_and_forgets_what_changed() -> None:
    transport = LocalTransport()
    first = transport.find_route("t/first")
    assert transport.find_route("t/first") is first
    for number in range(MAX_CACHED_ROUTES):
        transport.deliver(Message(f"t/{number}", b""))
    assert transport.find_route("t/first") is not first
    message = Message("a", b"")
    assert transport.deliver(message) is False
    inbox = await opened(transport, "a")
    assert transport.deliver(message) is True
    inbox.close()
    assert transport.deliver(message) is False


async def test_misuse_raises() -> None:
    bus = Bus(LocalTransport())
    with pytest.raises(ValueError, match="at least one"):
        bus.subscribe()
    with pytest.raises(TopicError):
        bus.subscribe("a", "b/#/c")
    with pytest.raises(TopicError):
        bus.subscribe("$share/group")
    with pytest.raises(ValueError, match="retain handling is 3"):
        bus.subscribe("a", retain_handling=3)


async def test_the_end_is_told_once_to_everyone_who_waits_for_it() -> None:
    changes: list[StateChange] = []
    transport = LocalTransport(changes.append)
    error = HedgerowError("the wire was cut")
    inbox = await opened(transport, "a")
    waiting = asyncio.ensure_future(transport.wait_closed())
    transport.finish(error)
    transport.finish()
    for ended in (waiting, transport.wait_closed(), anext(inbox.messages())):
        with pytest.raises(HedgerowError, match="the wire was cut"):
            await ended
    with pytest.raises(HedgerowError, match="the wire was cut"):
        transport.check_open()
    await asyncio.sleep(0)
    assert changes == [StateChange(State.CLOSED, "the wire was cut")]
    assert not transport.inboxes
