"""Three nodes in a line: publishers at one end, a slow subscriber at the other, which is then let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path

from hedgerow_workshop.lab.backlog.clients import Publisher, Reader
from hedgerow_workshop.lab.backlog.record import LineRecord
from hedgerow_workshop.lab.backlog.settings import FAR, LINE, MIDDLE, NEAR, BacklogSettings
from hedgerow_workshop.lab.backlog.steps import (
    POLL_S,
    QUIET_S,
    make_tally,
    note,
    open_publishers,
    publish,
    read,
)
from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.harness.programs import LabError, end_tasks, wait_until

FEDERATED_S = 30.0
STEADY_S = 2.0  # after the first link is seen; meshes follow it
METRICS_POLL_S = 0.5
CAME_IN = "hedgerow_federation_messages_published_total"


class Line:
    def __init__(self, settings: BacklogSettings, directory: Path, *, is_killed: bool) -> None:
        self.record = LineRecord(is_killed)
        self._settings = settings
        self._nodes = {name: Hedgerow(name, directory / name) for name in LINE}
        self._is_away = False
        self._may_read: Callable[[], float] = lambda: inf

    async def perform(self) -> LineRecord:
        settings, record = self._settings, self.record
        async with AsyncExitStack() as stack:
            for node in self._nodes.values():
                stack.enter_context(node)
            await self._start()
            publishers = await open_publishers(
                settings, self._nodes[NEAR], settings.line_messages, settings.line_bytes, stack
            )
            far = self._nodes[FAR]
            reader = Reader(
                "reader",
                (far.host, far.port),
                make_tally(publishers),
                settings.line_bytes,
                self._limit,
            )
            stack.push_async_callback(reader.close)
            await reader.open()
            await self._wait_for_interest()
            began_at = time.monotonic()
            self._may_read = lambda: (time.monotonic() - began_at) * settings.line_rate
            killing = asyncio.create_task(self._kill(publishers) if record.is_killed else asyncio.sleep(0))
            try:
                record.published_s = await publish(publishers, settings.patience_s, self._check)
                if self._is_half_done(publishers):
                    await killing
            finally:
                await end_tasks([killing])
            record.read_meanwhile = reader.count
            await self._wait_until_passed_on(sum(each.count for each in publishers))
            self._may_read = lambda: inf
            record.reading = await read([reader], publishers, settings.patience_s, self._check)
            await asyncio.sleep(QUIET_S)
            note(record.heard, [reader], publishers)
            self._note_memory()
        return record

    def _limit(self) -> float:
        """How many the reader may have read by now."""
        return self._may_read()

    async def _start(self) -> None:
        before: Hedgerow | None = None
        for node in self._nodes.values():
            node.http = "127.0.0.1:0"
            node.options = ("--federation",) if before is None else ("--neighbour", before.url)
            await node.start()
            before = node

    def _check(self) -> None:
        for name, node in self._nodes.items():
            if name != MIDDLE or not self._is_away:
                node.check()

    def _note_memory(self) -> None:
        memory = self.record.memory
        for name, node in self._nodes.items():
            memory[name] = max(memory.get(name, 0.0), node.peak_mib())

    async def _wait_for_interest(self) -> None:
        """Until what is published at the near end goes to the far one."""
        give_up_at = time.monotonic() + FEDERATED_S
        for name in (NEAR, MIDDLE):
            links = 1 if name == NEAR else 2
            while (await self._figure(name, "hedgerow_federation_neighbours")) < links:
                if time.monotonic() > give_up_at:
                    raise LabError(f"{name} was not federated within {FEDERATED_S:g} s")
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(STEADY_S)

    async def _figure(self, name: str, metric: str) -> float:
        try:
            found = await asyncio.to_thread(self._nodes[name].metrics)
        except OSError:
            return 0.0
        return found.get(metric, 0.0)

    async def _kill(self, publishers: list[Publisher]) -> None:
        await wait_until(lambda: self._is_half_done(publishers), inf)
        self._note_memory()
        node = self._nodes[MIDDLE]
        self._is_away = True
        node.kill()
        await asyncio.sleep(self._settings.killed_s)
        await node.start()
        self._is_away = False

    def _is_half_done(self, publishers: list[Publisher]) -> bool:
        return sum(each.count for each in publishers) >= self._settings.line_messages / 2

    async def _wait_until_passed_on(self, count: int) -> None:
        """Until the far node has taken everything, or takes nothing more: the backlog is there then."""
        ended_at = changed_at = time.monotonic()
        before = -1.0
        while time.monotonic() - changed_at < self._settings.patience_s:
            found = await self._figure(FAR, CAME_IN)
            if found != before:
                before, changed_at = found, time.monotonic()
            if found >= count:
                break
            self._check()
            await asyncio.sleep(METRICS_POLL_S)
        self.record.passed_on_s = changed_at - ended_at
