"""Figure 7: a topic goes cold and hot, and its subscribers follow it from broker to broker, those that can.

| kind | |
| --- | --- |
| extension | CONNECT of version 0xFF: told to go by renewals (0x06, 0x07) |
| mqtt5 | told by a Server Reference |
| mqtt311 | without the extension: stays at the mobile broker, which is its gateway |

Case A: the topic is cold, and delegated; they are sent to the fixed broker. Case B: it is hot, and recovered;
they are called back. Events are published at both brokers all the time, at QoS 1.

The figure's last case, `plug-in`: while they are at the fixed broker, their mobile broker comes back as one
that delegates nothing, and they are told 0x08 with its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from hedgerow_workshop.lab.harness.programs import wait_until
from hedgerow_workshop.lab.morales.brokers import FixedBroker, MovingStation
from hedgerow_workshop.lab.morales.record import SceneRecord
from hedgerow_workshop.lab.morales.scene import Scene
from hedgerow_workshop.lab.morales.setting import Algorithm, Uplink

KINDS: dict[str, dict[str, Any]] = {
    "extension": {"version": None, "follow": True},
    "mqtt5": {"version": MQTT_5},
    "mqtt311": {"version": MQTT_3_1_1, "clean_start": False},
}
"""And the options of `hedgerow.connect` that make a client of it."""
STAYING = "mqtt311"
OF_EACH = 2
FIELD, BUSY = "crop/field", "crop/busy"
WINDOW_S = 0.8
COLD_S, BUSY_S, HOT_S = 0.1, 0.02, 0.005
"""Between two events: of the field when it is cold, of the other topic, of the field when it is hot."""
MOVED_S = 10.0
STAY_S = 0.5


class HandoverRun(Scene[SceneRecord]):
    name = "handover"

    def __init__(self, directory: Path, say: Callable[[str], None], rounds: int) -> None:
        super().__init__(SceneRecord(self.name), directory, say)
        self._rounds = rounds
        self.fixed = FixedBroker("fixed", directory / "fixed")
        self.station: MovingStation

    async def play(self) -> None:
        await self.open()
        for _ in range(self._rounds):
            await self.go_cold()
            await self.go_hot()

    async def open(self) -> None:
        await self.begin(self.fixed)
        conditions, algorithm = Uplink.LTE.conditions, Algorithm(WINDOW_S)
        self.station = MovingStation("mobile", self.directory / "mobile", self.fixed, conditions, algorithm)
        await self.stack.enter_async_context(self.station)
        self.brokers.append(self.station.mobile)
        inside, outside = (
            await self.roaming("inside", self.station.url),
            await self.roaming("outside", self.fixed.url),
        )
        # Before anyone hears it, so that the field is hot when its subscribers come.
        self.speak("inside", inside, FIELD, HOT_S)
        self.speak("outside", outside, FIELD, COLD_S)
        self.speak("busy", inside, BUSY, BUSY_S)
        await self.listen("control", await self.roaming("control", self.station.url), BUSY)
        self.record.wants["control"] = ["busy"]
        for kind, options in KINDS.items():
            for number in range(OF_EACH):
                name = f"{kind}-{number}"
                self.record.kinds[name], self.record.wants[name] = kind, ["inside", "outside"]
                await self.listen(name, await self.connect(name, self.station.url, **options), FIELD)
        await self.wait_until_heard()

    async def go_cold(self) -> None:
        self.intervals_s["inside"] = COLD_S
        await self.wait_until_moved("the field is cold")

    async def go_hot(self) -> None:
        self.intervals_s["inside"] = HOT_S
        await self.wait_until_moved("the field is hot")

    async def wait_until_moved(self, what: str) -> None:
        """Every client that can has connected once more."""
        before = {name: len(self.record.connections[name]) for name in self._movable()}
        self.happened(what)
        has_moved = await wait_until(
            lambda: all(len(self.record.connections[name]) > count for name, count in before.items()),
            MOVED_S,
            self.check,
        )
        self.record.has_moved = self.record.has_moved and has_moved
        await asyncio.sleep(STAY_S)

    def _movable(self) -> list[str]:
        return [name for name, kind in self.record.kinds.items() if kind != STAYING]


class PlugInRun(HandoverRun):
    name = "plug-in"
    caught_up_s = 5.0

    async def play(self) -> None:
        await self.open()
        await self.go_cold()
        mobile = self.station.mobile
        mobile.kill()
        mobile.options += ("--no-delegation",)
        await mobile.start()
        await self.wait_until_moved("the mobile broker delegates nothing")
