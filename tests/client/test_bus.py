"""`Bus` and `Subscription` on their own: routing, queues and their limits, over a transport of one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hedgerow.client.bus import MAX_CACHED_ROUTES, Bus, State, StateChange, Subscription
from hedgerow.errors import HedgerowError, TopicError
from hedgerow.message import Message


class LocalBus(Bus):
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
        for subscription in [each for each in self.subscriptions if topic_filter in each.topic_filters]:
            subscription.end(None)
            self.remove_route(subscription)

    async def close(self) -> None:
        self.finish()

    async def open_subscription(self, subscription: Subscription) -> None:
        self.add_route(subscription)

    def close_subscription(self, subscription: Subscription, left: list[Message]) -> None:
        self.remove_route(subscription)
        self.left += left

    def full_changed(self, subscription: Subscription) -> None:
        self.full_history.append(subscription.full)


async def test_a_transport_needs_only_the_abstract_methods() -> None:
    async with LocalBus() as bus, bus.subscribe("home/+/status", "home/#") as messages:
        await bus.publish("home/vacuum/status", "done")
        await bus.publish_nowait("home", b"\0")
        stream = aiter(messages)
        assert [(await anext(stream)).payload for _ in range(2)] == [b"done", b"\0"]
    assert bus.closed
    assert not bus.subscriptions


async def test_two_loops_share_one_subscription() -> None:
    async with LocalBus() as bus, bus.subscribe("a") as messages:

        async def count() -> int:
            return sum([1 async for _ in messages])

        loops = [asyncio.ensure_future(count()) for _ in range(2)]
        for _ in range(10):
            await bus.publish("a")
            await asyncio.sleep(0)
        await bus.unsubscribe("a")
        assert sum(await asyncio.gather(*loops)) == 10


async def test_a_queue_is_full_at_its_limit_and_has_room_at_half_of_it() -> None:
    bus = LocalBus()
    async with bus.subscribe("a", queue_messages=4) as messages:
        for _ in range(6):
            await bus.publish("a")
        assert bus.full_history == [True]
        stream = aiter(messages)
        for _ in range(3):
            await anext(stream)
        assert bus.full_history == [True]
        await anext(stream)
        assert bus.full_history == [True, False]
    assert len(bus.left) == 2


async def test_bytes_fill_a_queue_too() -> None:
    bus = LocalBus()
    async with bus.subscribe("a", queue_bytes=100) as messages:
        await bus.publish("a", bytes(99))
        assert not messages.full
        await bus.publish("a", b"x")
        assert messages.full
        async for batch in messages.batches():
            assert len(batch) == 2
            break
        assert bus.full_history == [True, False]


async def test_only_qos_0_is_dropped_and_only_when_the_transport_cannot_stop() -> None:
    bus = LocalBus()
    async with bus.subscribe("a", queue_messages=2) as messages:
        for _ in range(20):
            await bus.publish("a")
        assert messages.dropped == 0
        bus.overflowing = True
        for qos in (0, 1, 2):
            await bus.publish("a", qos=qos)
        assert messages.dropped == 1
        assert len(messages._queue) == 22


async def test_an_error_leaves_the_loop_after_what_was_queued() -> None:
    bus = LocalBus()
    async with bus.subscribe("a") as messages:
        await bus.publish("a", "last")
        messages.end(HedgerowError("over"))
        stream = aiter(messages)
        assert (await anext(stream)).payload == b"last"
        with pytest.raises(HedgerowError, match="over"):
            await anext(stream)


async def test_the_cache_of_routes_is_bounded_and_forgets_what_changed() -> None:
    bus = LocalBus()
    for number in range(MAX_CACHED_ROUTES + 10):
        bus.deliver(Message(f"t/{number}", b""))
    assert len(bus._routes) <= MAX_CACHED_ROUTES
    assert bus.deliver(Message("a", b"")) is False
    async with bus.subscribe("a"):
        assert bus.deliver(Message("a", b"")) is True
    assert bus.deliver(Message("a", b"")) is False


async def test_misuse_raises() -> None:
    bus = LocalBus()
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
    bus = LocalBus(changes.append)
    error = HedgerowError("the wire was cut")
    async with bus.subscribe("a") as messages:
        waiting = asyncio.ensure_future(bus.wait_closed())
        bus.finish(error)
        bus.finish()
        for ended in (waiting, bus.wait_closed(), anext(aiter(messages))):
            with pytest.raises(HedgerowError, match="the wire was cut"):
                await ended
        with pytest.raises(HedgerowError, match="the wire was cut"):
            bus.check_open()
    assert changes == [StateChange(State.CLOSED, "the wire was cut")]
    assert not bus.subscriptions
