"""One device of a scene, as a process on its host: `python -m hedgerow_workshop.lab.readings.device PLAN`.

PLAN is JSON: a `Plan`. Standard output says `ready` when the device has subscribed; it begins when the plan's
start file is there, with the time to begin at, by the clock that all processes of the machine have. When the
scene is over the device writes what it sent and received, and ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hedgerow
from hedgerow_workshop.lab.harness.clients import keep_pace
from hedgerow_workshop.lab.harness.programs import LabError, wait_until
from hedgerow_workshop.lab.readings.scene import Does

START_S = 60.0
VALUE = b"21.5"
MQTT_3_1_1 = 4


@dataclass(slots=True)
class Plan:
    name: str
    url: str
    qos: int
    seconds: float
    subscribed: list[str]
    actions: list[tuple[float, str, str]]
    answers: dict[str, str]
    start: str
    """The file that says when."""
    record: str
    """The file for the `DeviceRecord`."""

    @property
    def options(self) -> dict[str, Any]:
        if not self.url.startswith("mqtt"):
            return {}
        return {"client_id": self.name, "version": MQTT_3_1_1, "reconnect": False}


@dataclass(slots=True)
class DeviceRecord:
    """Times are of the machine's monotonic clock."""

    sent: dict[str, dict[int, float]] = field(default_factory=dict)
    """Topic → number of the publication → when."""
    received: list[tuple[str, int, float]] = field(default_factory=list)
    """(topic, number, when)."""
    subscribed: dict[str, float] = field(default_factory=dict)
    """Topic → since when."""


def read_record(path: Path) -> DeviceRecord:
    found = json.loads(path.read_text())
    sent = {topic: {int(number): at for number, at in sent.items()} for topic, sent in found["sent"].items()}
    received = [(topic, number, at) for topic, number, at in found["received"]]
    return DeviceRecord(sent, received, found["subscribed"])


def _read_time(file: Path) -> float:
    return float(file.read_text())


class RunningDevice:
    def __init__(self, plan: Plan, bus: hedgerow.Bus, stack: AsyncExitStack) -> None:
        self.record = DeviceRecord()
        self._plan = plan
        self._bus = bus
        self._stack = stack
        self._tasks: set[asyncio.Future[None]] = set()

    async def perform(self) -> None:
        for topic in self._plan.subscribed:
            await self._subscribe(topic)
        print("ready", flush=True)
        start = Path(self._plan.start)
        if not await wait_until(start.exists, START_S):
            raise LabError(f"{self._plan.name}: nobody began within {START_S:g} s")
        began_at = _read_time(start)
        actions = iter(self._plan.actions)
        async for _ in keep_pace(began_at + at_s for at_s, _, _ in self._plan.actions):
            _, does, topic = next(actions)
            if does == Does.SUBSCRIBE:
                await self._subscribe(topic)
            else:
                self._publish(topic, len(self.record.sent.get(topic, ())))
        await asyncio.sleep(max(0.0, began_at + self._plan.seconds - time.monotonic()))
        self._check()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _publish(self, topic: str, number: int) -> None:
        self.record.sent.setdefault(topic, {})[number] = time.monotonic()
        sending = self._bus.publish_nowait(topic, b"%d %b" % (number, VALUE), qos=self._plan.qos)
        self._tasks.add(sending)

    async def _subscribe(self, topic: str) -> None:
        messages = await self._stack.enter_async_context(self._bus.subscribe(topic, qos=self._plan.qos))
        self.record.subscribed[topic] = time.monotonic()
        self._tasks.add(asyncio.ensure_future(self._listen(messages)))

    async def _listen(self, messages: hedgerow.Subscription) -> None:
        async for message in messages:
            number = int(message.payload.split(b" ", 1)[0])
            self.record.received.append((message.topic, number, time.monotonic()))
            answer = self._plan.answers.get(message.topic)
            if answer is not None:
                self._publish(answer, number)

    def _check(self) -> None:
        """Raise what ended one of the tasks."""
        for task in self._tasks:
            if task.done():
                task.result()


async def main(plan: Plan) -> None:
    async with hedgerow.connect(plan.url, **plan.options) as bus, AsyncExitStack() as stack:
        device = RunningDevice(plan, bus, stack)
        await device.perform()
    part = Path(plan.record).with_suffix(".part")
    part.write_text(json.dumps(asdict(device.record)), encoding="utf-8")
    part.rename(plan.record)


if __name__ == "__main__":
    asyncio.run(main(Plan(**json.loads(Path(sys.argv[1]).read_text()))))
