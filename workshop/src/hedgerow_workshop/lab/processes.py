"""Programs that an experiment starts and waits for; `node/programs.py` ends them, whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable

from hedgerow.node import programs
from hedgerow_workshop.lab.experiments import LabError

READY_S = 20.0
POLL_S = 0.01


class Program(programs.Program):
    async def wait_until(self, is_ready: Callable[[], bool], what: str, patience_s: float = READY_S) -> None:
        give_up_at = time.monotonic() + patience_s
        while not is_ready():
            if self.has_ended:
                raise LabError(f"{self.name} ended before {what}: {self.last_words()}")
            if time.monotonic() > give_up_at:
                raise LabError(f"{self.name}: no {what} within {patience_s:g} s: {self.last_words()}")
            await asyncio.sleep(POLL_S)

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self.process is not None and self.has_ended:
            raise LabError(f"{self.name} ended by itself: {self.last_words()}")


async def together(work: Iterable[Coroutine[object, object, None]]) -> None:
    """All of it at once. The first that fails ends the others, and is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
