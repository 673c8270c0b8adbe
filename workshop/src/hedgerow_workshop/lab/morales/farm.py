"""The document's farm (its section 3.1 and Figure 2): a fixed broker, and mobile ones that come and go.

| who | where | says or hears |
| --- | --- | --- |
| soil | the mobile broker's field | publishes, at QoS 2 |
| temperature | the same field, over UDP | publishes |
| irrigation | the same field | hears all, at QoS 1 |
| weather | near the fixed broker | publishes, at QoS 2 |
| office | outside, at the fixed broker | hears all, at QoS 1 |
| harvester, sprayer | the field of a second mobile broker, which comes later | as soil and irrigation |

The field leaves coverage and enters it again, then the mobile broker itself loses the fixed one; then the
second mobile broker enters, and both happen once more. All go on meanwhile. Sensors publish at QoS 2, since
at QoS 1 MQTT lets a client that lost its connection say the same thing twice.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hedgerow_workshop.lab.harness.brokers import HERE
from hedgerow_workshop.lab.harness.programs import LabError, wait_until
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.brokers import FixedBroker, Station
from hedgerow_workshop.lab.morales.record import DATAGRAM_TOPIC, FarmRecord, Outage
from hedgerow_workshop.lab.morales.scene import CAUGHT_UP_S, Scene
from hedgerow_workshop.lab.morales.setting import WIFI, Y_S, Algorithm, Uplink

INTERVAL_S = 0.1
DATAGRAM_SENSOR = "temperature"
SENSORS = ("soil", "weather", "harvester")
TOPICS = (DATAGRAM_TOPIC, *(f"crop/{sensor}" for sensor in SENSORS))
FIELD, UPLINK = "field", "uplink"

_UDP = re.compile(rb"^listening udp://[\d.]+:(\d+)", re.MULTILINE)


class FarmTimes(NamedTuple):
    covered_s: float
    outage_s: float
    """Longer than a broker waits for a client whose keep-alive is 1 s."""
    quiet_s: float = 0.5


SLOW, FAST = FarmTimes(2.0, 4.0), FarmTimes(1.0, 2.5)


class FarmRun(Scene[FarmRecord]):
    def __init__(
        self,
        directory: Path,
        say: Callable[[str], None],
        is_fast: bool = False,
        times: FarmTimes | None = None,
    ) -> None:
        super().__init__(FarmRecord(), directory, say)
        self._is_fast = is_fast
        self._times = times or (FAST if is_fast else SLOW)
        self.quiet_s = self._times.quiet_s
        self._fixed = FixedBroker("farm", directory / "farm")

    async def play(self) -> None:
        await self.begin(self._fixed)
        self.say("farm: the first mobile broker …")
        options = ("--udp", f"{HERE}:0", "--sensor-topic", f"01={DATAGRAM_TOPIC}")
        first = await self._open_station("mobile-1", options)
        await self.listen("office", await self.connect("office", self._fixed.url), *TOPICS)
        await self.listen("irrigation", await self.roaming("irrigation", first.url), *TOPICS)
        await self._sense("weather", self._fixed.url)
        await self._sense("soil", first.url)
        by_air = await self.stack.enter_async_context(
            Link((HERE, 0), (HERE, self._udp_port(first)), forward=WIFI, backward=WIFI, udp=True)
        )
        await self._send_datagrams(by_air)
        await self.wait_until_heard()
        await asyncio.sleep(self._times.covered_s)
        field = (first.wifi, by_air)
        await self._undergo(FIELD, field)
        await self._undergo(UPLINK, [first.uplink])
        self.say("farm: a second mobile broker enters …")
        second = await self._open_station("mobile-2", ())
        await self.listen("sprayer", await self.roaming("sprayer", second.url), *TOPICS)
        await self._sense("harvester", second.url)
        await self.wait_until_heard()
        await asyncio.sleep(self._times.covered_s)
        if not self._is_fast:
            await self._undergo(FIELD, field)
            await self._undergo(UPLINK, [first.uplink])

    # Who is there

    async def _open_station(self, name: str, options: tuple[str, ...]) -> Station:
        conditions, algorithm = Uplink.LTE.conditions, Algorithm(Y_S)
        station = Station(name, self.directory / name, self._fixed, conditions, algorithm)
        station.options = options
        await self.stack.enter_async_context(station)
        self.brokers.append(station.mobile)
        return station

    def _udp_port(self, station: Station) -> int:
        found = _UDP.search(station.mobile.output.read_bytes())
        if found is None:
            raise LabError(f"{station.mobile.name} has no UDP port: {station.mobile.last_words()}")
        return int(found[1])

    async def _sense(self, name: str, url: str) -> None:
        self.speak(name, await self.roaming(name, url), f"crop/{name}", INTERVAL_S)

    async def _send_datagrams(self, by_air: Link) -> None:
        url = "udp://{}:{}?topics=01={}".format(*by_air.address, DATAGRAM_TOPIC)
        bus = await self.clients.reach(url)
        sent = self.record.datagrams[DATAGRAM_SENSOR] = []
        self.publish(bus, DATAGRAM_SENSOR, DATAGRAM_TOPIC, sent, INTERVAL_S, qos=0)

    # What happens

    async def _undergo(self, what: str, links: Sequence[Link]) -> None:
        """Links are cut and restored, and what waited is waited for."""
        self.say(f"farm: the {what} is out of coverage …")
        began_at = time.monotonic()
        for link in links:
            link.cut()
        await asyncio.sleep(self._times.outage_s)
        for link in links:
            link.restore()
        ended_at = time.monotonic()
        await wait_until(lambda: self.has_all_before(ended_at), CAUGHT_UP_S, self.check)
        self.record.outages.append(Outage(what, began_at, ended_at, time.monotonic()))
        await asyncio.sleep(self._times.covered_s)
