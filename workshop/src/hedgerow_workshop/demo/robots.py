"""A vacuum and a mop at the house, which need no broker: they speak multicast, on this machine alone.

The vacuum tells of its missions, the mop follows it, and the house's node passes both on to the farmer. Where
multicast does not work on loopback there are no robots.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Self

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.errors import HedgerowError
from hedgerow.message import Message
from hedgerow_workshop.demo.farm import FarmMulticast
from hedgerow_workshop.demo.people import People
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import end_tasks
from hedgerow_workshop.programs import free_udp_port

ROBOTS = "robots"
VACUUM, MOP = "vacuum", "mop"
FILTERS = {MOP: ("home/vacuum/mission",), VACUUM: ("home/mop/mission",)}
"""By listener."""
WORK_S = 0.3
PATIENCE_S = 5.0


async def find_multicast(directory: Path) -> tuple[FarmMulticast | None, str]:
    """(how they speak, or None, and why not). The key, which keeps others out, is in that directory."""
    key_file = directory / "multicast.keys"
    key_file.touch(mode=0o600)
    key_file.write_text(f"1 {secrets.token_hex(32)}\n")
    try:
        found = FarmMulticast(free_udp_port(), key_file)
        async with hedgerow.connect(found.url):
            return found, ""
    except (HedgerowError, OSError) as error:
        return None, str(error)


class Robots:
    """They come with `begin` and leave with the block."""

    def __init__(self, people: People, clients: Clients, multicast: FarmMulticast) -> None:
        self._people = people
        self._clients = clients
        self._url = multicast.url
        self._tasks: list[asyncio.Task[None]] = []
        self._completed: asyncio.Queue[str] = asyncio.Queue()
        self._clean: asyncio.Queue[str] = asyncio.Queue()

    async def begin(self) -> None:
        vacuum, mop = await self._clients.reach(self._url), await self._clients.reach(self._url)
        await self._listen(vacuum, VACUUM, self._clean)
        await self._listen(mop, MOP, self._completed)
        self._tasks = [asyncio.create_task(self._vacuum(vacuum)), asyncio.create_task(self._mop(mop))]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._tasks)

    def check(self) -> None:
        """Raise what ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _listen(self, bus: Bus, name: str, completed: asyncio.Queue[str]) -> None:
        hear = self._people.hearing(name)

        def receive(message: Message) -> None:
            hear(message)
            state, _, mission = message.payload.decode().partition(" ")
            if state == "completed":
                completed.put_nowait(mission)

        (topic_filter,) = FILTERS[name]
        await self._clients.listen(bus, topic_filter, 1, receive)

    async def _vacuum(self, bus: Bus) -> None:
        mission = 0
        while True:
            mission += 1
            await self._tell(bus, VACUUM, f"running {mission}")
            await asyncio.sleep(WORK_S)
            await self._tell(bus, VACUUM, f"completed {mission}")
            with suppress(TimeoutError):  # A mop that has not met it yet: the next floor, then.
                async with asyncio.timeout(PATIENCE_S):
                    while await self._clean.get() != str(mission):
                        pass

    async def _mop(self, bus: Bus) -> None:
        while True:
            mission = await self._completed.get()
            await asyncio.sleep(WORK_S)
            await self._tell(bus, MOP, f"completed {mission}")

    async def _tell(self, bus: Bus, robot: str, text: str) -> None:
        await self._people.is_publishing.wait()
        topic = f"home/{robot}/mission"
        await self._people.publish(bus, ROBOTS, topic, text, f"{topic} {text}")
