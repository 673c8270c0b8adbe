"""One run: the storm, with something that fails or without, until all is quiet again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow.mobility.hot_state import HOT_TOPIC
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.programs import LabError, LabProgram, end_tasks
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.storm.record import StormFault, StormRecord, SubscriberKind
from hedgerow_workshop.lab.storm.settings import STORM, TOPICS, StormSettings, places, publications
from hedgerow_workshop.lab.storm.stage import StormNode, SubscribersProgram, make_fixed, make_mobile
from hedgerow_workshop.programs import processor_s

LINK_S = 20.0
ACKNOWLEDGED_S = 30.0
POLL_S = 0.05
PAYLOAD_BYTES = 64
CHECK_EVERY = 50  # publications


class StormRun:
    def __init__(
        self,
        settings: StormSettings,
        fault: StormFault,
        kinds: Sequence[SubscriberKind],
        directory: Path,
        link_s: float = LINK_S,
    ) -> None:
        self.record = StormRecord(fault, {topic: [] for topic in TOPICS})
        self.fixed = make_fixed(directory, settings)
        self._link_s = link_s
        self._settings = settings
        self._kinds = kinds
        self._directory = directory
        self._mobile: StormNode | None = None
        self._subscribers: list[SubscribersProgram] = []
        self._link: Link | None = None
        self._is_linked = False
        self._is_delegated = False
        self._clients = Clients()
        self._failing: asyncio.Task[None] | None = None

    async def perform(self) -> StormRecord:
        async with AsyncExitStack() as stack:
            bus = await self._start(stack)
            before = self._processor_s()
            self.record.began_at = time.monotonic()
            failing = self._failing = asyncio.create_task(self._fail())
            stack.push_async_callback(end_tasks, [failing])
            await self._publish(bus)
            took_s = time.monotonic() - self.record.began_at
            self.record.busy = {
                name: (after_s - before.get(name, 0.0)) / took_s
                for name, after_s in self._processor_s().items()
            }
            await failing
            await self._settle()
            self.record.ended_at = time.monotonic()
            for each in self._subscribers:
                self.record.tallies += await each.take_tallies()
            self.record.tracebacks = [node.name for node in self._nodes() if node.has_traceback]
        return self.record

    def _nodes(self) -> list[StormNode]:
        return [self.fixed, *([] if self._mobile is None else [self._mobile])]

    def _processor_s(self) -> dict[str, float]:
        programs: list[LabProgram] = [*self._nodes(), *self._subscribers]
        running = {each.name: each.process.pid for each in programs if each.process is not None}
        return {"this process": time.process_time()} | {
            name: processor_s(pid) for name, pid in running.items()
        }

    # Before

    async def _start(self, stack: AsyncExitStack) -> Bus:
        fixed = stack.enter_context(self.fixed)
        await fixed.start()
        self._link = await stack.enter_async_context(Link((fixed.host, 0), (fixed.host, fixed.port)))
        mobile = make_mobile(self._directory, self._settings, self._link.address, fixed)
        self._mobile = stack.enter_context(mobile)
        await mobile.start()
        clients = await stack.enter_async_context(self._clients)
        bus = await clients.connect("publisher", mobile.url)
        await clients.listen(bus, f"{HOT_TOPIC}#", 1, self._note)
        await mobile.wait_until(lambda: self._is_linked, "link to the fixed node", self._link_s)
        topics = places(self._settings, len(self._kinds))
        for kind, of_kind in zip(self._kinds, topics, strict=True):
            subscribers = SubscribersProgram(kind, self._directory, mobile.url, of_kind)
            self._subscribers.append(stack.enter_context(subscribers))
            subscribers.start()
        for each in self._subscribers:
            await each.wait_until_ready()
        return bus

    def _note(self, message: Message) -> None:
        """What the mobile node tells of itself."""
        told = json.loads(message.payload)
        if message.topic == f"{HOT_TOPIC}fixed":
            self._is_linked = told["linked"]
        elif message.topic == f"{HOT_TOPIC}registry/out":
            is_delegated = STORM in told["topics"]
            if is_delegated != self._is_delegated:
                self._is_delegated = is_delegated
                self.record.flips.append((time.monotonic(), is_delegated))

    # The storm

    async def _publish(self, bus: Bus) -> None:
        waiting: set[asyncio.Future[None]] = set()
        planned = list(publications(self._settings))
        topics = iter(enumerate(topic for _, topic in planned))
        async for _ in keep_pace(self.record.began_at + at for at, _ in planned):
            number, topic = next(topics)
            if number % CHECK_EVERY == 0:
                self._check()
            sent = self.record.sent[topic]
            payload = f"{len(sent)} ".ljust(PAYLOAD_BYTES)
            sent.append(time.monotonic())
            published = bus.publish_nowait(topic, payload, qos=1)
            waiting.add(published)
            published.add_done_callback(waiting.discard)
        if waiting:
            await asyncio.wait(waiting, timeout=ACKNOWLEDGED_S)
        if waiting:
            raise LabError(f"{len(waiting)} publications were not acknowledged in {ACKNOWLEDGED_S:g} s")

    async def _fail(self) -> None:
        settings, fault = self._settings, self.record.fault
        if fault is StormFault.NONE:
            return
        for number in range(settings.faults):
            at = self.record.began_at + settings.seconds * (number + 0.5) / settings.faults
            at -= settings.seconds / settings.faults / 4
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if fault is StormFault.KILLED:
                self._happened("killed")
                self.fixed.kill()
                await asyncio.sleep(settings.killed_s)
                await self.fixed.start()
                self._happened("started")
            else:
                assert self._link is not None
                self._happened("cut")
                self._link.cut()
                await asyncio.sleep(settings.cut_s)
                self._link.restore()
                self._happened("restored")

    def _happened(self, what: str) -> None:
        self.record.happened.append((time.monotonic(), what))

    def _check(self) -> None:
        """Raise for whatever has ended that should run."""
        for program in (*self._nodes(), *self._subscribers):
            program.check()
        self._clients.check()
        if self._failing is not None and self._failing.done():
            self._failing.result()

    # After

    async def _settle(self) -> None:
        """Until all have everything, or nothing has come for long; and then a little longer."""
        settings = self._settings
        expected = sum(
            len(self.record.sent[topic]) for subscribers in self._subscribers for topic in subscribers.topics
        )
        have: list[tuple[int, int]] = []
        changed_at = time.monotonic()
        while sum(distinct for _, distinct in have) < expected:
            self._check()
            if time.monotonic() > changed_at + settings.patience_s:
                break
            await asyncio.sleep(POLL_S)
            now_have = [subscribers.have for subscribers in self._subscribers]
            if now_have != have:
                have, changed_at = now_have, time.monotonic()
        await asyncio.sleep(settings.quiet_s)
        self._check()
