"""How long tests wait, and for what: a condition, never a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable

from hedgerow.message import Message

PATIENCE_S = 30.0  # for a loaded machine with 2 cores; most waits take milliseconds


async def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition of this process, or fail naming `what`; `programs.wait_until` needs no loop."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s:g} s in vain for {what}") from None


async def take(messages: AsyncIterable[Message], count: int) -> list[Message]:
    """The next messages of a subscription."""
    taken: list[Message] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in messages:
            taken.append(message)
            if len(taken) == count:
                break
    return taken
