"""What delegation saves a mobile broker: processor time and memory, beside one that delegates nothing.

Processor time: 47 topics. Two are hot and have a tenth of the traffic together, the other 45 are cold and
have the rest. Ten clients hear what is hot, and ten that speak the extension what is cold: they are sent to
the fixed broker. Half of the events are published at the mobile broker, half at the fixed one, at QoS 0. What
counts is the mobile broker's processor time meanwhile.

Memory: 20,000 subscriptions of 20 clients, to 10,000 topics. Each topic has an event, and is cold. What
counts is the memory (RSS) that the mobile broker has afterwards beyond what it had before.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random

from hedgerow.client.bus import Bus
from hedgerow.client.transport import State, StateChange
from hedgerow.message import Message
from hedgerow_workshop.lab.harness.clients import keep_pace
from hedgerow_workshop.lab.harness.programs import end_tasks, together, wait_until
from hedgerow_workshop.lab.morales.pair import Pair
from hedgerow_workshop.lab.morales.record import Growth, Memory, Saving
from hedgerow_workshop.programs import processor_s

SIDES = {"on": (), "off": ("--no-delegation",)}
WINDOW_S = 4.0
"""Long enough that chance makes no cold topic hot."""

HOT = tuple(f"hot/{number:02}" for number in range(2))
COLD = tuple(f"cold/{number:02}" for number in range(45))
COLD_SHARE = 0.9
HEARERS = 10
RATE = 400.0
PAYLOAD = b"x" * 64
MOVED_S = 20.0
SETTLED_S = 1.0
SEED = 1

SUBSCRIBERS, TOPICS_OF_EACH, TOPICS = 20, 1_000, 10_000
EVENT_RATE = 2_500.0


# Processor time


async def measure_processor(directory: Path, seconds: float) -> Saving:
    """Milliseconds for each event."""
    async with AsyncExitStack() as stack:
        loads = {name: Load(await _open(stack, name, directory, ("--hot-capacity", "2"))) for name in SIDES}
        await together(load.begin() for load in loads.values())
        for load in loads.values():
            stack.push_async_callback(load.end)
        has_moved = await wait_until(lambda: loads["on"].have_moved, MOVED_S, loads["on"].pair.check)
        await asyncio.sleep(SETTLED_S)
        before = {name: load.taken() for name, load in loads.items()}
        await asyncio.sleep(seconds)
        found = {}
        for name, load in loads.items():
            load.pair.check()
            (events, processor), (events_before, processor_before) = load.taken(), before[name]
            found[name] = 1_000 * (processor - processor_before) / max(1, events - events_before)
    return Saving(found["on"], found["off"], has_moved)


class Load:
    """Traffic and subscribers of one mobile broker."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._events = 0
        self._connections: dict[str, int] = {}
        self._work: list[asyncio.Task[None]] = []

    @property
    def have_moved(self) -> bool:
        """Every client of what is cold has connected a second time, at the fixed broker."""
        return all(times > 1 for times in self._connections.values())

    def taken(self) -> tuple[int, float]:
        """Events so far, and seconds of processor time."""
        process = self.pair.station.mobile.process
        assert process is not None
        return self._events, processor_s(process.pid)

    async def begin(self) -> None:
        pair = self.pair
        for number in range(HEARERS):
            bus = await pair.clients.connect(f"hot-{number}", pair.station.url)
            await pair.clients.listen(bus, HOT, 0, _ignore)
            await self._follow(f"cold-{number}")
        inside = await pair.clients.connect("inside", pair.station.url)
        outside = await pair.clients.connect("outside", pair.fixed.url)
        self._work.append(asyncio.create_task(self._publish((inside, outside))))

    async def _follow(self, name: str) -> None:
        self._connections[name] = 0

        def note(change: StateChange) -> None:
            self._connections[name] += change.state is State.CONNECTED

        clients = self.pair.clients
        bus = await clients.connect(name, self.pair.station.url, version=None, follow=True, on_state=note)
        await clients.listen(bus, COLD, 0, _ignore)

    async def _publish(self, buses: tuple[Bus, Bus]) -> None:
        random, began_at = Random(SEED), time.monotonic()
        async for _ in keep_pace(began_at + number / RATE for number in count()):
            topic = random.choice(COLD if random.random() < COLD_SHARE else HOT)
            buses[self._events % 2].publish_nowait(topic, PAYLOAD)
            self._events += 1

    async def end(self) -> None:
        await end_tasks(self._work)


def _ignore(message: Message) -> None:
    """It was delivered, which is what is measured."""


# Memory


async def measure_memory(
    directory: Path, topics: int = TOPICS, subscribers: int = SUBSCRIBERS, each: int = TOPICS_OF_EACH
) -> Memory:
    """MiB."""
    found: dict[str, Growth] = {}

    async def measure(name: str, pair: Pair) -> None:
        bus = await pair.watch()
        before = pair.station.mobile.memory_mib()
        names = [f"field/sensor{number:05}/state" for number in range(topics)]
        places = range(0, subscribers * each, each)
        await pair.subscribe({f"panel-{at}": names[at % topics : at % topics + each] for at in places})
        await pair.wait_until_calm()
        await pair.publish_once(bus, names, EVENT_RATE)
        await pair.wait_until_delegated(topics)
        await asyncio.sleep(WINDOW_S)  # The counts of these events are in memory until then.
        found[name] = Growth(before, pair.station.mobile.memory_mib())

    # One after the other: what waits since the machine is busy with the other side is memory, too.
    for name in SIDES:
        async with AsyncExitStack() as stack:
            await measure(name, await _open(stack, name, directory, ("--hot-share", "0")))
    return Memory(found["on"], found["off"])


async def _open(stack: AsyncExitStack, name: str, directory: Path, options: tuple[str, ...]) -> Pair:
    return await stack.enter_async_context(Pair(name, directory, WINDOW_S, (*options, *SIDES[name])))
