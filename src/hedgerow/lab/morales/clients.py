"""The clients of a run, which speak MQTT 3.1.1, as the document's do. All are in one process, so that they
share a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import hedgerow
from hedgerow.lab.experiments import LabError
from hedgerow.message import Message
from hedgerow.mqtt.packets import MQTT_3_1_1
from hedgerow.net.client.bus import Bus

RECONNECT_S = (0.05, 0.2)


class Clients:
    """They leave with the block."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def connect(self, name: str, url: str) -> Bus:
        bus = await hedgerow.connect(url, client_id=name, version=MQTT_3_1_1, reconnect_delay=RECONNECT_S)
        self._stack.push_async_callback(bus.close)
        return bus

    async def connect_roaming(self, name: str, url: str) -> Bus:
        """A client that comes and goes: its broker keeps its session, and both soon notice an absence."""
        bus = await hedgerow.connect(
            url,
            client_id=name,
            version=MQTT_3_1_1,
            clean_start=False,
            keep_alive=1,
            timeout=1.0,
            keep_trying=True,
            reconnect_delay=RECONNECT_S,
        )
        self._stack.push_async_callback(bus.close)
        return bus

    async def connect_sensor(self, url: str) -> Bus:
        """One that speaks UDP."""
        bus = await hedgerow.connect(url)
        self._stack.push_async_callback(bus.close)
        return bus

    async def listen(self, bus: Bus, topic_filter: str, qos: int, receive: Callable[[Message], None]) -> None:
        """`receive` is called for each message."""
        subscription = await self._stack.enter_async_context(bus.subscribe(topic_filter, qos=qos))

        async def read() -> None:
            async for message in subscription:
                receive(message)

        self._tasks.append(asyncio.create_task(read()))

    def check(self) -> None:
        """Raise what ended a subscriber."""
        for task in self._tasks:
            if task.done():
                raise LabError(f"a client ended: {task.exception()}")
