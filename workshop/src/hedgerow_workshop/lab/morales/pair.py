"""A mobile broker and its fixed one with many subscribers, for what delegation costs and saves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow.mobility.hot_state import HOT_TOPIC
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.programs import LabError, Scope, wait_until
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.brokers import FixedBroker, MovingStation
from hedgerow_workshop.lab.morales.setting import CLIENT_OPTIONS, Algorithm, Uplink
from hedgerow_workshop.lab.morales.subscribing import CONNECTING, ManySubscriptions

SETTLE_S = 90.0
CALM_S, CALM_BYTES = 1.0, 4_096
"""A delegation is over when so little has passed on the link in that time."""


class Pair(Scope):
    """They run while its block lasts."""

    def __init__(
        self, name: str, directory: Path, window_s: float, options: Sequence[str], link: type[Link] = Link
    ) -> None:
        super().__init__()
        self.name = name
        self.fixed = FixedBroker(f"fixed-{name}", directory / f"fixed-{name}")
        self.clients = Clients(**CLIENT_OPTIONS)
        self.delegated = 0
        """Topics in Out.Registry."""
        self.station: MovingStation
        self._directory = directory / f"mobile-{name}"
        self._window_s = window_s
        self._options = tuple(options)
        self._link = link

    async def open(self) -> None:
        self._stack.enter_context(self.fixed)
        await self.fixed.start()
        await self._stack.enter_async_context(self.clients)
        conditions, algorithm = Uplink.LTE.conditions, Algorithm(self._window_s)
        self.station = MovingStation(
            f"mobile-{self.name}", self._directory, self.fixed, conditions, algorithm, self._link
        )
        self.station.options = self._options
        await self._stack.enter_async_context(self.station)

    async def watch(self) -> Bus:
        """A client of the mobile broker, to publish with; from now on `delegated` is known."""
        bus = await self.clients.connect("publisher", self.station.url)

        def note(message: Message) -> None:
            self.delegated = json.loads(message.payload)["count"]

        await self.clients.listen(bus, f"{HOT_TOPIC}registry/out", 1, note)
        return bus

    async def subscribe(self, topics_of: dict[str, Sequence[str]]) -> list[ManySubscriptions]:
        """Clients at the mobile broker, by name, without its Wi-Fi: a link takes no thousand."""
        mobile = self.station.mobile
        made = [
            ManySubscriptions(name, (mobile.host, mobile.port), topics) for name, topics in topics_of.items()
        ]
        for first in range(0, len(made), CONNECTING):
            row = made[first : first + CONNECTING]
            for each in row:
                self._stack.push_async_callback(each.close)
            await asyncio.gather(*(each.open() for each in row))
        return made

    async def publish_once(self, bus: Bus, topics: Sequence[str], rate: float) -> None:
        """An event for each topic."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        due = (began_at + number / rate for number in range(len(topics)))
        waiting = iter(topics)
        async for _ in keep_pace(due, loop.time):
            bus.publish_nowait(next(waiting), b"x", qos=0)

    async def wait_until_delegated(self, count: int) -> None:
        if not await wait_until(lambda: self.delegated >= count, SETTLE_S, self.check):
            raise LabError(
                f"{self.station.mobile.name} delegated {self.delegated} of {count} topics within"
                f" {SETTLE_S:g} s: {self.station.mobile.last_words()}"
            )
        await self.wait_until_calm()

    async def wait_until_calm(self) -> None:
        uplink, before = self.station.uplink, -CALM_BYTES
        while True:
            now = uplink.forward.counters.bytes + uplink.backward.counters.bytes
            if now - before < CALM_BYTES:
                return
            before = now
            await asyncio.sleep(CALM_S)
            self.check()

    def check(self) -> None:
        self.clients.check()
        self.station.check()
