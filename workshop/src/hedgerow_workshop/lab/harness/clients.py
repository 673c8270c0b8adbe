"""Clients of ours that take part in a run. All are in one process, so that they share a clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow_workshop.lab.harness.programs import LabError, Scope, end_tasks

RECONNECT_S = (0.05, 0.2)


class Clients(Scope):
    """They leave with the block. `options` are those of `hedgerow.connect`, for all that connect."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await end_tasks(self._tasks)
        await super().__aexit__(kind, error, trace)

    async def connect(self, name: str, url: str, **options: Any) -> Bus:
        return await self.reach(
            url, client_id=name, **{"reconnect_delay": RECONNECT_S, **self._options, **options}
        )

    async def reach(self, url: str, **options: Any) -> Bus:
        """One that needs no name."""
        bus = await hedgerow.connect(url, **options)
        self._stack.push_async_callback(bus.close)
        return bus

    async def listen(
        self, bus: Bus, topic_filters: str | Sequence[str], qos: int, receive: Callable[[Message], None]
    ) -> None:
        """`receive` is called for each message."""
        filters = [topic_filters] if isinstance(topic_filters, str) else topic_filters
        subscription = await self._stack.enter_async_context(bus.subscribe(*filters, qos=qos))

        async def read() -> None:
            async for message in subscription:
                receive(message)

        self._tasks.append(asyncio.create_task(read()))

    def check(self) -> None:
        """Raise what ended a subscriber."""
        for task in self._tasks:
            if task.done():
                raise LabError(f"a subscriber ended: {task.exception()}")


async def keep_pace(
    due_at: Iterable[float], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[None]:
    """Once at each of these times; what is late, at once."""
    for at in due_at:
        await asyncio.sleep(max(0.0, at - clock()))
        yield


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
