"""Clients of ours that take part in a run. All are in one process, so that they share a clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow_workshop.lab.experiments import LabError

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

    async def connect(self, name: str, url: str, **options: Any) -> Bus:
        """`options` as `hedgerow.connect` has them."""
        return await self.open(url, client_id=name, reconnect_delay=RECONNECT_S, **options)

    async def open(self, url: str, **options: Any) -> Bus:
        bus = await hedgerow.connect(url, **options)
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
                raise LabError(f"a subscriber ended: {task.exception()}")


@contextmanager
def quiet_clients() -> Iterator[None]:
    """That a client has lost its broker, which was just killed or cut off, is no news."""
    logger = logging.getLogger("hedgerow.client")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
