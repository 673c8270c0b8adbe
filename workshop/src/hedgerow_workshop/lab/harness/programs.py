"""What an experiment starts and waits for. It ends with the block that started it, whatever happens."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.program import Program

READY_S = 20.0
POLL_S = 0.02

_MEMORY = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB", re.MULTILINE)


class LabError(HedgerowError):
    """An experiment that could not be carried out; the text says which part of it, and why."""


class LabProgram(Program):
    async def wait_until(self, is_ready: Callable[[], bool], what: str, patience_s: float = READY_S) -> None:
        def check() -> None:
            if self.has_ended and not is_ready():
                raise LabError(f"{self.name} ended before {what}: {self.last_words()}")

        if not await wait_until(is_ready, patience_s, check):
            raise LabError(f"{self.name}: no {what} within {patience_s:g} s: {self.last_words()}")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self.process is not None and self.has_ended:
            raise LabError(f"{self.name} ended by itself: {self.last_words()}")

    def peak_mib(self) -> float:
        """The most memory that it has had at once since it was started; 0: it does not run."""
        return self._memory_mib().get("VmHWM", 0.0)

    def memory_mib(self) -> float:
        """What it has now; 0: it does not run."""
        return self._memory_mib().get("VmRSS", 0.0)

    def _memory_mib(self) -> dict[str, float]:
        if self.process is not None:
            with suppress(OSError):
                text = Path(f"/proc/{self.process.pid}/status").read_text()
                return {name: int(kib) / 1024 for name, kib in _MEMORY.findall(text)}
        return {}


class Scope:
    """What is opened on its stack ends with its block, and when `open` fails."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def open(self) -> None:
        """What is to be there when the block begins."""


async def wait_until(
    is_so: Callable[[], bool], patience_s: float, check: Callable[[], None] = lambda: None
) -> bool:
    """False: not in time. `check` is called again and again, and raises where waiting is in vain."""
    give_up_at = time.monotonic() + patience_s
    while not is_so():
        check()
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def together(work: Iterable[Coroutine[object, object, None]]) -> None:
    """All of it at once. The first that fails ends the others, and is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    found = list(tasks)
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)
