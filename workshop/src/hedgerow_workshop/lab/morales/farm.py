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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow_workshop.lab.harness.brokers import HERE
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import LabError, end_tasks, wait_until
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.brokers import FixedBroker, Station
from hedgerow_workshop.lab.morales.record import DATAGRAM_TOPIC, FarmRecord, Outage
from hedgerow_workshop.lab.morales.setting import CLIENT_OPTIONS, WIFI, Y_S, Algorithm, Uplink

INTERVAL_S = 0.1
DATAGRAM_SENSOR = "temperature"
SENSORS = ("soil", "weather", "harvester")
TOPICS = (DATAGRAM_TOPIC, *(f"crop/{sensor}" for sensor in SENSORS))
FIELD, UPLINK = "field", "uplink"
HEARD_S = 10.0
CAUGHT_UP_S = 20.0

_UDP = re.compile(rb"^listening udp://[\d.]+:(\d+)", re.MULTILINE)


class FarmTimes(NamedTuple):
    covered_s: float
    outage_s: float
    """Longer than a broker waits for a client whose keep-alive is 1 s."""
    quiet_s: float = 0.5


SLOW, FAST = FarmTimes(2.0, 4.0), FarmTimes(1.0, 2.5)


class FarmRun:
    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.record = FarmRecord()
        self._directory = directory
        self._say = say
        self._stack = AsyncExitStack()
        self._clients = Clients(**CLIENT_OPTIONS)
        self._fixed = FixedBroker("farm", directory / "farm")
        self._stations: list[Station] = []
        self._work: list[asyncio.Task[None]] = []
        self._times = SLOW

    async def perform(self, fast: bool, times: FarmTimes | None = None) -> FarmRecord:
        self._times = times or (FAST if fast else SLOW)
        async with self._stack, self._clients:
            self._stack.enter_context(self._fixed)
            await self._fixed.start()
            try:
                await self._carry_out(fast)
            finally:
                await end_tasks(self._work)
            await wait_until(lambda: not any(measure.farm_missing(self.record)), CAUGHT_UP_S, self._check)
            await asyncio.sleep(self._times.quiet_s)
            self.record.ended_at = time.monotonic()
        return self.record

    async def _carry_out(self, fast: bool) -> None:
        self._say("farm: the first mobile broker …")
        options = ("--udp", f"{HERE}:0", "--sensor-topic", f"01={DATAGRAM_TOPIC}")
        first = await self._open_station("mobile-1", options)
        await self._listen("office", await self._clients.connect("office", self._fixed.url))
        await self._listen("irrigation", await self._roaming("irrigation", first.url))
        await self._publish("weather", self._fixed.url)
        await self._publish("soil", first.url)
        by_air = await self._stack.enter_async_context(
            Link((HERE, 0), (HERE, self._udp_port(first)), forward=WIFI, backward=WIFI, udp=True)
        )
        await self._send_datagrams(by_air)
        await self._wait_until_heard()
        await asyncio.sleep(self._times.covered_s)
        field = (first.wifi, by_air)
        await self._undergo(FIELD, field)
        await self._undergo(UPLINK, [first.uplink])
        self._say("farm: a second mobile broker enters …")
        second = await self._open_station("mobile-2", ())
        await self._listen("sprayer", await self._roaming("sprayer", second.url))
        await self._publish("harvester", second.url)
        await self._wait_until_heard()
        await asyncio.sleep(self._times.covered_s)
        if not fast:
            await self._undergo(FIELD, field)
            await self._undergo(UPLINK, [first.uplink])

    # Who is there

    async def _roaming(self, name: str, url: str) -> Bus:
        """A client that comes and goes: its broker keeps its session, and both soon notice an absence."""
        return await self._clients.connect(
            name, url, clean_start=False, keep_alive=1, timeout=1.0, keep_trying=True
        )

    async def _open_station(self, name: str, options: tuple[str, ...]) -> Station:
        conditions, algorithm = Uplink.LTE.conditions, Algorithm(Y_S)
        station = Station(name, self._directory / name, self._fixed, conditions, algorithm)
        station.options = options
        await self._stack.enter_async_context(station)
        self._stations.append(station)
        return station

    def _udp_port(self, station: Station) -> int:
        found = _UDP.search(station.mobile.output.read_bytes())
        if found is None:
            raise LabError(f"{station.mobile.name} has no UDP port: {station.mobile.last_words()}")
        return int(found[1])

    async def _listen(self, name: str, bus: Bus) -> None:
        arrivals = self.record.arrived[name] = []

        def receive(message: Message) -> None:
            now = time.monotonic()
            publisher, number = message.payload.decode().split()
            is_repeated = isinstance(message, MessageReceived) and message.dup
            arrivals.append(Received(publisher, int(number), now, is_repeated))

        for topic in TOPICS:
            await self._clients.listen(bus, topic, 1, receive)

    async def _publish(self, name: str, url: str) -> None:
        bus = await self._roaming(name, url)
        sent = self.record.sent[name] = []
        self._start(bus, f"crop/{name}", name, sent, qos=2)

    async def _send_datagrams(self, by_air: Link) -> None:
        url = "udp://{}:{}?topics=01={}".format(*by_air.address, DATAGRAM_TOPIC)
        bus = await self._clients.reach(url)
        sent = self.record.datagrams[DATAGRAM_SENSOR] = []
        self._start(bus, DATAGRAM_TOPIC, DATAGRAM_SENSOR, sent, qos=0)

    def _start(self, bus: Bus, topic: str, name: str, sent: list[float], qos: int) -> None:
        async def publish() -> None:
            while True:
                sent.append(time.monotonic())
                bus.publish_nowait(topic, f"{name} {len(sent) - 1}", qos=qos)
                await asyncio.sleep(INTERVAL_S)

        self._work.append(asyncio.create_task(publish()))

    # What happens

    async def _undergo(self, what: str, links: Sequence[Link]) -> None:
        """Links are cut and restored, and what waited is waited for."""
        self._say(f"farm: the {what} is out of coverage …")
        began_at = time.monotonic()
        for link in links:
            link.cut()
        await asyncio.sleep(self._times.outage_s)
        for link in links:
            link.restore()
        ended_at = time.monotonic()
        await wait_until(lambda: self._has_all_before(ended_at), CAUGHT_UP_S, self._check)
        self.record.outages.append(Outage(what, began_at, ended_at, time.monotonic()))
        await asyncio.sleep(self._times.covered_s)

    def _has_all_before(self, at: float) -> bool:
        missing = measure.farm_missing(self.record)
        return not any(self.record.sent[publisher][number] < at for _, publisher, number in missing)

    async def _wait_until_heard(self) -> None:
        """Every subscriber by every publisher: from now on all that is published is to reach it."""
        if not await wait_until(lambda: not any(self._unheard()), HEARD_S, self._check):
            raise LabError(f"farm: within {HEARD_S:g} s {next(self._unheard())}")
        now = time.monotonic()
        for subscriber in self.record.arrived:
            self.record.since.setdefault(subscriber, now)

    def _unheard(self) -> Iterator[str]:
        publishers = (*self.record.sent, *self.record.datagrams)
        for subscriber, arrivals in self.record.arrived.items():
            heard = {arrival.publisher for arrival in arrivals}
            yield from (f"{subscriber} did not hear {each}" for each in publishers if each not in heard)

    def _check(self) -> None:
        self._clients.check()
        for station in self._stations:
            station.check()
        for task in self._work:
            if task.done() and not task.cancelled():
                task.result()
