"""What the scenes with brokers that move share: who publishes, who hears, and that all of it may arrive.

Each publisher numbers what it says, and each subscriber is to hear all of it: what is published from the
moment in which it has heard every publisher once.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

from hedgerow.client.bus import Bus
from hedgerow.client.transport import State, StateChange
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow_workshop.lab.harness.brokers import BrokerProgram
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import LabError, end_tasks, wait_until
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.record import SceneRecord
from hedgerow_workshop.lab.morales.setting import CLIENT_OPTIONS

HEARD_S = 20.0
CAUGHT_UP_S = 20.0
QUIET_S = 0.5
"""After the last: what is doubled would come now."""

AnyRecord = TypeVar("AnyRecord", bound=SceneRecord)


class Scene(ABC, Generic[AnyRecord]):
    caught_up_s = CAUGHT_UP_S
    quiet_s = QUIET_S

    def __init__(self, record: AnyRecord, directory: Path, say: Callable[[str], None]) -> None:
        self.record = record
        self.directory = directory
        self.say = say
        self.stack = AsyncExitStack()
        self.clients = Clients(**CLIENT_OPTIONS)
        self.brokers: list[BrokerProgram] = []
        self.intervals_s: dict[str, float] = {}
        """Of each publisher, until it says the next; it may be changed."""
        self._work: list[asyncio.Task[None]] = []

    async def perform(self) -> AnyRecord:
        async with self.stack, self.clients:
            try:
                await self.play()
            finally:
                await end_tasks(self._work)
            await wait_until(lambda: not any(measure.missing(self.record)), self.caught_up_s, self.check)
            await asyncio.sleep(self.quiet_s)
            self.record.ended_at = time.monotonic()
        return self.record

    @abstractmethod
    async def play(self) -> None:
        """Who is there, and what happens."""

    def happened(self, what: str) -> None:
        self.say(f"{self.record.file_name}: {what} …")
        self.record.happened.append((time.monotonic(), what))

    def check(self) -> None:
        self.clients.check()
        for broker in self.brokers:
            broker.check()
        for task in self._work:
            if task.done() and not task.cancelled():
                task.result()

    # Who is there

    async def begin(self, broker: BrokerProgram) -> None:
        self.brokers.append(self.stack.enter_context(broker))
        await broker.start()

    async def connect(self, name: str, url: str, clients: Clients | None = None, **options: Any) -> Bus:
        connections = self.record.connections.setdefault(name, [])

        def note(change: StateChange) -> None:
            if change.state is State.CONNECTED:
                connections.append(time.monotonic())

        return await (clients or self.clients).connect(name, url, on_state=note, **options)

    async def roaming(self, name: str, url: str, **options: Any) -> Bus:
        """A client that comes and goes: its broker keeps its session, and both soon notice an absence."""
        return await self.connect(
            name, url, clean_start=False, keep_alive=1, timeout=1.0, keep_trying=True, **options
        )

    async def listen(self, name: str, bus: Bus, *topics: str, clients: Clients | None = None) -> None:
        arrivals = self.record.arrived.setdefault(name, [])

        def receive(message: Message) -> None:
            now = time.monotonic()
            publisher, number = message.payload.decode().split()
            is_repeated = isinstance(message, MessageReceived) and message.dup
            arrivals.append(Received(publisher, int(number), now, is_repeated))

        for topic in topics:
            await (clients or self.clients).listen(bus, topic, 1, receive)

    def publish(
        self, bus: Bus, name: str, topic: str, sent: list[float], interval_s: float, qos: int
    ) -> None:
        """From now on until the end."""
        self.intervals_s[name] = interval_s

        async def go_on() -> None:
            while True:
                sent.append(time.monotonic())
                bus.publish_nowait(topic, f"{name} {len(sent) - 1}", qos=qos)
                await asyncio.sleep(self.intervals_s[name])

        self._work.append(asyncio.create_task(go_on()))

    def speak(self, name: str, bus: Bus, topic: str, interval_s: float, qos: int = 2) -> None:
        """All subscribers are to hear it, unless the record's `wants` says otherwise."""
        self.record.topics[name] = topic
        sent = self.record.sent[name] = []
        self.publish(bus, name, topic, sent, interval_s, qos)

    # What is waited for

    async def wait_until_heard(self) -> None:
        """Every subscriber by every publisher: from now on all that is published is to reach it."""
        if not await wait_until(lambda: not any(self._unheard()), HEARD_S, self.check):
            raise LabError(f"{self.record.file_name}: within {HEARD_S:g} s {next(self._unheard())}")
        now = time.monotonic()
        for subscriber in self.record.arrived:
            self.record.since.setdefault(subscriber, now)

    def _unheard(self) -> Iterator[str]:
        for subscriber, arrivals in self.record.arrived.items():
            heard = {arrival.publisher for arrival in arrivals}
            for publisher in self.record.heard_by(subscriber):
                if publisher not in heard:
                    yield f"{subscriber} did not hear {publisher}"

    def has_all_before(self, at: float) -> bool:
        missing = measure.missing(self.record)
        return not any(self.record.sent[publisher][number] < at for _, publisher, number in missing)
