"""A federator that is not ours, beside a stock broker: the document's wire, from its published facts alone.

It knows nothing of our modules but the client with which it reaches brokers. It is as plain as those that the
line of work has published, with what is particular about them: it has a mesh for each topic; sequences of
publications begin with 0 in each topic and each life; it takes whatever is addressed to it; on the wire its
distances grow by two with each link. Clients subscribe to `federated/TOPIC` at its broker, and say so by
`federator/beacon/TOPIC` again and again.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from hedgerow.client.bus import Bus
from hedgerow.client.connect import connect
from hedgerow_workshop.lab.harness.programs import Scope, end_tasks

CORE_ANN = "federator/core_ann/"
MEMB_ANN = "federator/memb_ann/"
ROUTING = "federator/routing/"
BEACON = "federator/beacon/"
FEDERATED = "federated/"
QOS = 2
CACHE = 5_000
LIFETIMES = 3
TICK_S = 0.05


class _Topic:
    def __init__(self) -> None:
        self.core: int | None = None
        self.sequence = -1
        self.distance = 0
        self.heard_at = 0.0
        self.announce_at = 0.0
        self.parents: dict[int, bool] = {}
        """→ whether it was answered."""
        self.children: dict[int, float] = {}
        self.beacon_at = float("-inf")
        self.next_publication = 0
        self.cache: OrderedDict[tuple[int, int], None] = OrderedDict()


class ForeignFederator(Scope):
    """`neighbours`: the brokers of other federators, by their numbers. `transmitted` is told of each
    publication that it sends to one."""

    def __init__(
        self,
        number: int,
        broker: str,
        neighbours: Mapping[int, str],
        *,
        redundancy: int = 2,
        core_ann_s: float = 1.0,
        beacon_s: float = 1.0,
    ) -> None:
        super().__init__()
        self.number = number
        self.received: dict[str, int] = {}
        self.transmitted: Callable[[int, str], None] = lambda neighbour, topic: None
        self._broker = broker
        self._urls = neighbours
        self._redundancy = redundancy
        self._core_ann_s = core_ann_s
        self._beacon_s = beacon_s
        self._topics: dict[str, _Topic] = {}
        self._neighbours: dict[int, Bus] = {}
        self._home: Bus

    async def open(self) -> None:
        name = f"foreign-{self.number}"
        self._home = await self._open_bus(self._stack, name, self._broker)
        for number, url in self._urls.items():
            self._neighbours[number] = await self._open_bus(self._stack, f"{name}-at-{number}", url)
        filters = [each + "#" for each in (CORE_ANN, MEMB_ANN, ROUTING, BEACON, FEDERATED)]
        messages = await self._stack.enter_async_context(
            self._home.subscribe(*filters, qos=QOS, no_local=True)
        )

        async def read() -> None:
            async for message in messages:
                self._receive(message.topic, message.payload)

        async def tick() -> None:
            while True:
                self._tick(time.monotonic())
                await asyncio.sleep(TICK_S)

        tasks = [asyncio.create_task(read()), asyncio.create_task(tick())]
        self._stack.push_async_callback(end_tasks, tasks)

    async def _open_bus(self, stack: AsyncExitStack, name: str, url: str) -> Bus:
        return await stack.enter_async_context(connect(url, client_id=name, keep_trying=True))

    def core_of(self, topic: str) -> int | None:
        known = self._topics.get(topic)
        return None if known is None else known.core

    def children_of(self, topic: str) -> set[int]:
        known = self._topics.get(topic)
        return set() if known is None else set(known.children)

    # What comes

    def _receive(self, name: str, payload: bytes) -> None:
        now = time.monotonic()
        prefix = next(
            each for each in (CORE_ANN, MEMB_ANN, ROUTING, BEACON, FEDERATED) if name.startswith(each)
        )
        topic = name.removeprefix(prefix)
        self.received[prefix] = self.received.get(prefix, 0) + 1
        if topic not in self._topics and prefix not in (CORE_ANN, BEACON):
            return
        state = self._topics.setdefault(topic, _Topic())
        if prefix == CORE_ANN:
            self._receive_core_ann(topic, state, now, *struct.unpack("<IIII", payload))
        elif prefix == MEMB_ANN:
            self._receive_memb_ann(topic, state, now, *struct.unpack("<III", payload))
        elif prefix == ROUTING:
            origin, sequence, sender, length = struct.unpack_from("<IIIQ", payload)
            assert length == len(payload) - 20
            self._receive_routed(topic, state, (origin, sequence), sender, payload[20:], now)
        elif prefix == BEACON:
            state.beacon_at = now
            if not self._is_valid(state, now):
                state.core, state.sequence, state.announce_at = self.number, -1, now
                state.children.clear()
            else:
                self._answer(topic, state)
        else:
            number = self.number, state.next_publication
            state.next_publication += 1
            self._remember(state, number)
            self._route(topic, state, number, None, payload, now)

    def _is_valid(self, state: _Topic, now: float) -> bool:
        is_fresh = now < state.heard_at + LIFETIMES * self._core_ann_s
        return state.core is not None and (state.core == self.number or is_fresh)

    def _has_subscriber(self, state: _Topic, now: float) -> bool:
        return now < state.beacon_at + LIFETIMES * self._beacon_s

    def _receive_core_ann(
        self, topic: str, state: _Topic, now: float, core: int, sequence: int, distance: int, sender: int
    ) -> None:
        if self.number in (core, sender):
            return
        distance += 1
        if not self._is_valid(state, now) or (state.core is not None and core < state.core):
            state.children.clear()
        elif core != state.core or (sequence, -distance) < (state.sequence, -state.distance):
            return
        elif (sequence, distance) == (state.sequence, state.distance):
            if sender not in state.parents and len(state.parents) < self._redundancy:
                state.parents[sender] = False
                self._answer_if_subscribed(topic, state, now)
            return
        state.core, state.sequence, state.distance, state.heard_at = core, sequence, distance, now
        state.parents = {sender: False}
        self._answer_if_subscribed(topic, state, now)
        payload = struct.pack("<IIII", core, sequence, distance + 1, self.number)
        for number in self._neighbours.keys() - {sender}:
            self._publish(number, CORE_ANN + topic, payload)

    def _answer_if_subscribed(self, topic: str, state: _Topic, now: float) -> None:
        if self._has_subscriber(state, now):
            self._answer(topic, state)

    def _answer(self, topic: str, state: _Topic) -> None:
        if state.core is None or state.core == self.number:
            return
        payload = struct.pack("<III", state.core, state.sequence, self.number)
        for parent in [parent for parent, was_answered in state.parents.items() if not was_answered]:
            state.parents[parent] = True
            self._publish(parent, MEMB_ANN + topic, payload)

    def _receive_memb_ann(
        self, topic: str, state: _Topic, now: float, core: int, sequence: int, sender: int
    ) -> None:
        if not self._is_valid(state, now) or core != state.core:
            return
        if state.core == self.number:
            state.children[sender] = now
        elif sequence == state.sequence:
            state.children[sender] = now
            self._answer(topic, state)

    def _receive_routed(
        self, topic: str, state: _Topic, number: tuple[int, int], sender: int, payload: bytes, now: float
    ) -> None:
        if number in state.cache:
            return
        self._remember(state, number)
        if self._has_subscriber(state, now):
            self._home.publish_nowait(FEDERATED + topic, payload, qos=QOS)
        self._route(topic, state, number, sender, payload, now)

    # What goes

    def _remember(self, state: _Topic, number: tuple[int, int]) -> None:
        state.cache[number] = None
        if len(state.cache) > CACHE:
            state.cache.popitem(last=False)

    def _route(
        self,
        topic: str,
        state: _Topic,
        number: tuple[int, int],
        sender: int | None,
        payload: bytes,
        now: float,
    ) -> None:
        if not self._is_valid(state, now):
            return
        fresh = {child for child, at in state.children.items() if now < at + LIFETIMES * self._core_ann_s}
        parents = set() if state.core == self.number else set(state.parents)
        data = struct.pack("<IIIQ", *number, self.number, len(payload)) + payload
        for target in (parents | fresh) - {sender}:
            self.transmitted(target, topic)
            self._publish(target, ROUTING + topic, data)

    def _tick(self, now: float) -> None:
        for topic, state in self._topics.items():
            if state.core != self.number:
                continue
            if not self._has_subscriber(state, now):
                state.core = None
            elif state.announce_at <= now:
                state.announce_at = now + self._core_ann_s
                state.sequence += 1
                payload = struct.pack("<IIII", self.number, state.sequence, 0, self.number)
                for number in self._neighbours:
                    self._publish(number, CORE_ANN + topic, payload)

    def _publish(self, number: int, name: str, payload: bytes) -> None:
        bus = self._neighbours.get(number)
        if bus is not None:
            bus.publish_nowait(name, payload, qos=QOS)


class ForeignSubscriber(Scope):
    """A client beside such a federator, which says again and again that it is subscribed."""

    def __init__(
        self, name: str, broker: str, topic: str, receive: Callable[[bytes], None], beacon_s: float = 1.0
    ) -> None:
        super().__init__()
        self._name, self._broker, self._topic = name, broker, topic
        self._receive = receive
        self._beacon_s = beacon_s

    async def open(self) -> None:
        bus = await self._stack.enter_async_context(
            connect(self._broker, client_id=self._name, keep_trying=True)
        )
        messages = await self._stack.enter_async_context(bus.subscribe(FEDERATED + self._topic, qos=QOS))

        async def read() -> None:
            async for message in messages:
                self._receive(message.payload)

        async def tell() -> None:
            while True:
                bus.publish_nowait(BEACON + self._topic, b"", qos=QOS)
                await asyncio.sleep(self._beacon_s)

        self._stack.push_async_callback(end_tasks, [asyncio.create_task(read()), asyncio.create_task(tell())])
