"""Farm traffic for the pipeline: three federated nodes with journals, and weather in two fields.

| node | who |
| --- | --- |
| house | hears everything, `farm/#` at QoS 1; its own thermometers |
| north, south | a weather station that writes JSON, and sensors that write text; one is broken at times |

All publish at QoS 1 with ids of their own, so that a message that is sent again, since its node was killed,
is the same message. In the middle of it, south is killed with SIGKILL and started again. Readings rise and
fall; every so often a sensor reads something impossible, and another says something that cannot be read.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import hedgerow
from hedgerow.message import MessageId
from hedgerow.pipeline.program import Program
from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.harness.programs import together
from hedgerow_workshop.programs import free_port

FIELDS = ("north", "south")
HOUSE = "house"
INTERVAL_S = 0.1
SPIKE_EVERY = 97  # readings
NONSENSE_EVERY = 61
DEAD_S = 1.0
CATCH_UP_S = 30.0
TOPICS = "farm/#"
_STEP_S = 0.05


@dataclass(frozen=True)
class Quantity:
    """What it reads is made up, but for its times."""

    name: str
    mean: float
    swing: float
    period_s: float
    unit: str

    def read(self, number: int, at: float, noise: random.Random) -> float:
        phase = 2 * math.pi * (at / self.period_s) + number
        return self.mean + self.swing * math.sin(phase) + noise.gauss(0, self.swing / 20)


QUANTITIES = (
    Quantity("temperature", 17.0, 3.0, 60, "°C"),
    Quantity("humidity", 64.0, 9.0, 45, "%"),
    Quantity("wind", 4.2, 2.5, 20, "m/s"),
)


@dataclass
class FarmTraffic:
    """What was published and acknowledged, and what the house heard."""

    published: set[MessageId] = field(default_factory=set)
    heard: list[MessageId] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return len(self.published - set(self.heard))

    @property
    def doubled(self) -> int:
        return len(self.heard) - len(set(self.heard))


class Farm:
    """The nodes run while its block lasts. `journals` are what they leave."""

    def __init__(self, directory: Path, say: Callable[[str], None], seed: int = 1) -> None:
        self.traffic = FarmTraffic()
        self.journals = [directory / "journals" / name for name in (HOUSE, *FIELDS)]
        self._directory = directory
        self._say = say
        self._seed = seed
        self._epoch = int(time.time())
        self._nodes: dict[str, Hedgerow] = {}
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Of the house's node."""
        return self._nodes[HOUSE].url

    async def __aenter__(self) -> Farm:
        async with AsyncExitStack() as stack:
            self._nodes = {name: self._node(stack, name) for name in (HOUSE, *FIELDS)}
            for name in FIELDS:
                self._nodes[HOUSE].options += ("--neighbour", self._nodes[name].url)
                self._nodes[name].options += ("--neighbour", self.url)
            await together(node.start() for node in self._nodes.values())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _node(self, stack: AsyncExitStack, name: str) -> Hedgerow:
        # They name each other before any of them runs.
        node = stack.enter_context(_Gentle(name, self._directory / name, port=free_port()))
        journal = str(self._directory / "journals" / name)
        node.options = ("--journal", "#", "--journal-local", "--journal-dir", journal)
        return node

    async def run(self, seconds: float) -> None:
        stop = asyncio.Event()
        async with (
            hedgerow.connect(self.url, client_id="farmer", origin="farmer") as farmer,
            farmer.subscribe(TOPICS, qos=1) as messages,
            asyncio.TaskGroup() as group,
        ):
            listening = group.create_task(self._listen(messages))
            sensing = [group.create_task(self._sense(place, stop)) for place in FIELDS]
            await asyncio.sleep(seconds / 2)
            await self._kill(FIELDS[-1])
            await asyncio.sleep(seconds / 2)
            stop.set()
            await asyncio.wait(sensing)
            await self._catch_up()
            listening.cancel()

    async def _kill(self, name: str) -> None:
        self._say(f"{name} is killed, and started again")
        node = self._nodes[name]
        node.kill()
        await asyncio.sleep(DEAD_S)
        await node.start()

    async def _listen(self, messages: hedgerow.Subscription) -> None:
        async for message in messages:
            if message.id is not None:
                self.traffic.heard.append(message.id)

    async def _sense(self, place: str, stop: asyncio.Event) -> None:
        station = f"{place}-station"
        origin = f"~{station}"  # as a node names what an anonymous client gives
        numbers = 0
        async with hedgerow.connect(self._nodes[place].url, client_id=station, origin=origin) as bus:
            while not stop.is_set():
                async with asyncio.TaskGroup() as group:
                    for topic, payload in self._readings(place, numbers):
                        message_id = MessageId(origin, self._epoch, numbers)
                        group.create_task(self._publish(bus, topic, payload, message_id))
                        numbers += 1
                await asyncio.sleep(INTERVAL_S)

    async def _publish(self, bus: hedgerow.Bus, topic: str, payload: str, message_id: MessageId) -> None:
        await bus.publish(topic, payload, qos=1, id=message_id)
        self.traffic.published.add(message_id)

    def _readings(self, place: str, number: int) -> Iterator[tuple[str, str]]:
        noise = random.Random(f"{self._seed} {place} {number}")
        now = time.time()
        values = {each.name: each.read(FIELDS.index(place), now, noise) for each in QUANTITIES}
        yield f"farm/{place}/station", json.dumps({"time": now} | {k: round(v, 2) for k, v in values.items()})
        for offset, quantity in enumerate(QUANTITIES):
            value = values[quantity.name]
            if (number + offset) % SPIKE_EVERY == SPIKE_EVERY - 1:
                value += 12 * quantity.swing
            text = f"{value:.1f} {quantity.unit}"
            if (number + offset) % NONSENSE_EVERY == NONSENSE_EVERY - 1:
                text = "out of order"
            yield f"farm/{place}/mast/{quantity.name}", text

    async def _catch_up(self) -> None:
        give_up_at = time.monotonic() + CATCH_UP_S
        while self.traffic.lost and time.monotonic() < give_up_at:  # noqa: ASYNC110 - it is for once
            await asyncio.sleep(_STEP_S)


class _Gentle(Hedgerow):
    """Ended in order: its journal is read afterwards."""

    def end(self) -> None:
        Program.end(self)
