"""A mobile broker moves to another domain with its clients, and none of them subscribes again (section 5.2).

Two fixed brokers, each of a domain of its own, that are neighbours in a federation. The farmer who moves the
mobile broker to another plot names the other fixed broker in `--fixed-file`; when the mobile broker is with
that one, or after a while anyway, it is out of the first one's reach.

| who | where | |
| --- | --- | --- |
| soil | the mobile broker | publishes |
| irrigation | the same | hears all; MQTT 3.1.1 |
| pump | the same, or the fixed broker, since what it hears is cold | hears far; the extension |
| near, far | the first fixed broker, the second | publish |
| house, barn | the first fixed broker, the second | hear all |
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

from hedgerow.message import Message
from hedgerow.mobility.hot_state import HOT_TOPIC
from hedgerow.node.authority import authority
from hedgerow_workshop.lab.harness.brokers import HERE
from hedgerow_workshop.lab.harness.programs import wait_until
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.brokers import FixedBroker, Station
from hedgerow_workshop.lab.morales.record import SceneRecord
from hedgerow_workshop.lab.morales.scene import Scene
from hedgerow_workshop.lab.morales.setting import FAR_DOMAIN, Algorithm, Uplink
from hedgerow_workshop.programs import free_port

FIELD = "crop/#"
COLD = "far"
INTERVALS_S = {"soil": 0.05, "near": 0.1, COLD: 0.2}
WINDOW_S = 0.8
COVERED_S = 1.5
MOVED_S = 8.0


class DomainRun(Scene[SceneRecord]):
    caught_up_s = 10.0

    def __init__(
        self, directory: Path, say: Callable[[str], None], is_stored: bool, domain: str = FAR_DOMAIN
    ) -> None:
        """`is_stored`: the mobile broker has a store. `domain`: that of the second fixed broker."""
        super().__init__(SceneRecord(f"domain-{'stored' if is_stored else 'unstored'}"), directory, say)
        self._is_stored = is_stored
        self._domain = domain
        self._fixed = ""
        """The id of the fixed broker that the mobile one says it is with."""

    async def play(self) -> None:
        near, far = await self._open_federation()
        list_of_fixed = self.directory / "fixed"
        station = Station(
            "mobile", self.directory / "mobile", near, Uplink.LTE.conditions, Algorithm(WINDOW_S)
        )
        station.fixed_file = list_of_fixed
        station.is_durable = self._is_stored
        station.moves_clients = True
        station.options = ("--move-after", "0")
        await self.stack.enter_async_context(station)
        self.brokers.append(station.mobile)
        conditions = Uplink.LTE.conditions
        uplink = await self.stack.enter_async_context(
            Link((HERE, 0), (far.host, far.port), forward=conditions, backward=conditions)
        )
        watcher = await self.connect("watcher", station.url)
        await self.clients.listen(watcher, f"{HOT_TOPIC}fixed", 1, self._note_fixed)
        await self._open_clients(near, far, station)
        await self.wait_until_heard()
        await asyncio.sleep(COVERED_S)
        self.happened("the mobile broker moves")
        list_of_fixed.write_text(f"mqtt://{authority(*uplink.address)}\n")
        station.mobile.send(signal.SIGHUP)
        self.record.has_moved = await wait_until(lambda: self._fixed == far.broker, MOVED_S, self.check)
        await asyncio.sleep(COVERED_S)
        self.happened("the first fixed broker is out of reach")
        station.uplink.cut()
        await asyncio.sleep(2 * COVERED_S)

    async def _open_federation(self) -> tuple[FixedBroker, FixedBroker]:
        near = FixedBroker("near", self.directory / "near")
        far = FixedBroker("far", self.directory / "far", self._domain)
        near.port, far.port = free_port(), free_port()
        for broker, neighbour in ((near, far), (far, near)):
            broker.options += ("--neighbour", neighbour.url)
            await self.begin(broker)
        return near, far

    async def _open_clients(self, near: FixedBroker, far: FixedBroker, station: Station) -> None:
        for name, url in (("house", near.url), ("barn", far.url), ("irrigation", station.url)):
            await self.listen(name, await self.connect(name, url), FIELD)
        pump = await self.connect("pump", station.url, version=None, follow=True)
        self.record.wants["pump"] = [COLD]
        await self.listen("pump", pump, f"crop/{COLD}")
        for name, url in (("soil", station.url), ("near", near.url), (COLD, far.url)):
            self.speak(name, await self.connect(name, url), f"crop/{name}", INTERVALS_S[name])

    def _note_fixed(self, message: Message) -> None:
        told = json.loads(message.payload)
        self._fixed = told["broker"] if told["linked"] else ""
