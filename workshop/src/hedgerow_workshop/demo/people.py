"""Who publishes and who listens at the brokers of the farm.

At each place a station replays readings, at QoS 1: all of the weather as JSON, and at nodes of ours each
quantity on a topic of its own, with an id. The one at a stock broker is a plain client of MQTT 3.1.1. While a
broker is away its station goes on reading, and what it has read is published when the broker is back.

Listeners: the farmer at the house, a worker in each field, and the panel on the tractor, for some topics.
Weather sensors send UDP datagrams, which promise nothing: they are counted apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

from hedgerow.client.bus import Bus
from hedgerow.errors import HedgerowError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_3_1_1
from hedgerow_workshop.demo.farm import HOUSE, NORTH, SENSOR_TOPICS, SOUTH, TRACTOR, WEST, DemoFarm
from hedgerow_workshop.demo.ledger import Ledger, key_of, numbered
from hedgerow_workshop.demo.readings import WEATHER, Reading, as_station, as_text, replay
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import end_tasks

# The tractor's own topics are to be hot there, and no two equally so: they would change places all the time.
INTERVALS_S = {HOUSE: 0.3, NORTH: 0.4, SOUTH: 0.5, WEST: 0.6, TRACTOR: 0.2}
SENSORS_INTERVAL_S = 0.4
PLACES = tuple(INTERVALS_S)
FARMER, PANEL = "farmer", "panel"
QUANTITIES = {NORTH: WEATHER, SOUTH: WEATHER, TRACTOR: ("load", "fuel")}
"""What stations publish one by one; the others only the whole weather."""

LISTENERS: dict[str, tuple[str, tuple[str, ...]]] = {
    FARMER: (HOUSE, ("farm/#", "home/#")),
    "worker-north": (NORTH, ("farm/#",)),
    "worker-south": (SOUTH, ("farm/#",)),
    "worker-west": (WEST, ("farm/#",)),
    PANEL: (TRACTOR, tuple(f"farm/{place}/station" for place in PLACES)),
}
"""By name: where they are, and what they listen to."""
FILTERS = {name: filters for name, (_, filters) in LISTENERS.items()}
WORKERS = tuple(name for name in LISTENERS if name.startswith("worker-"))


class People:
    """They come with `begin` and leave with the block.

    `ledger` is the one in which what is published from now on is written; all are told what is heard."""

    def __init__(self, farm: DemoFarm, clients: Clients, ledger: Ledger) -> None:
        self.ledger = ledger
        self.readings_sent = 0
        self.readings_heard = 0
        """By UDP, and by the farmer of these."""
        self.is_publishing = asyncio.Event()
        self.is_publishing.set()
        self._farm = farm
        self._clients = clients
        self._ledgers = [ledger]
        self._numbers = dict.fromkeys(PLACES, 0)
        self._epoch = time.time_ns() // 1000
        self._under_way: set[asyncio.Task[None]] = set()
        self._stations: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks([*self._stations, *self._under_way])

    def count_in(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._ledgers.append(ledger)

    async def listen(self) -> None:
        """Returns when all of them have subscribed."""
        for name, (place, filters) in LISTENERS.items():
            bus = await self._connect(name, place)
            for topic_filter in filters:
                await self._clients.listen(bus, topic_filter, 1, self.hearing(name))

    def hearing(self, listener: str) -> Callable[[Message], None]:
        def hear(message: Message) -> None:
            if message.topic in SENSOR_TOPICS.values():
                self.readings_heard += listener == FARMER
                return
            now, key = time.monotonic(), key_of(message)
            for ledger in self._ledgers:
                ledger.hear(listener, key, now)

        return hear

    async def begin(self) -> None:
        """Have the stations and sensors publish."""
        for number, place in enumerate(PLACES):
            bus = await self._connect(f"station-{place}", place, publishes=True)
            self._stations.append(asyncio.create_task(self._station(bus, place, number)))
        topics = ",".join(f"{number:02}={topic}" for number, topic in SENSOR_TOPICS.items())
        sensors = await self._clients.reach(f"{self._farm.sensors}?topics={topics}")
        self._stations.append(asyncio.create_task(self._sensors(sensors)))

    def pause(self) -> None:
        """Nothing more is published, until `resume`. What is on its way to a broker may get there yet."""
        self.is_publishing.clear()

    def resume(self) -> None:
        self.is_publishing.set()

    @property
    def unacknowledged(self) -> int:
        return len(self._under_way)

    def check(self) -> None:
        """Raise what ended one of them."""
        for task in self._stations:
            if task.done():
                task.result()
        self._clients.check()

    async def _connect(self, name: str, place: str, publishes: bool = False) -> Bus:
        options: dict[str, Any] = {"keep_alive": 5}
        if place == WEST and self._farm.has_mosquitto and publishes:
            options["version"] = MQTT_3_1_1
        elif name != PANEL:
            # Who has a name in the fabric is told the ids of messages. Mobile brokers delegate the topics of
            # clients that have none.
            options["origin"] = name
        return await self._clients.connect(name, self._farm.brokers[place].url, **options)

    async def _station(self, bus: Bus, place: str, number: int) -> None:
        for reading in replay(number):
            for topic, payload, key, message_id in self._messages(place, reading):
                # Not waited for: what is read while the broker is away is not to be missed.
                task = asyncio.create_task(self.publish(bus, place, topic, payload, key, message_id))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(INTERVALS_S[place])
            await self.is_publishing.wait()

    def _messages(self, place: str, reading: Reading) -> Iterator[tuple[str, str, str, MessageId | None]]:
        has_ids = place != WEST or not self._farm.has_mosquitto
        for quantity in (None, *QUANTITIES.get(place, ())):
            number = self._numbers[place] = self._numbers[place] + 1
            # "~": as a node names what an anonymous client gives.
            message_id = MessageId(f"~station-{place}", self._epoch, number) if has_ids else None
            if quantity is None:
                topic = f"farm/{place}/station"
                yield topic, as_station(reading, number, time.time()), numbered(topic, number), message_id
            else:
                topic = f"farm/{place}/mast/{quantity}"
                yield topic, as_text(reading, quantity), str(message_id), message_id

    async def publish(
        self, bus: Bus, place: str, topic: str, payload: str, key: str, message_id: MessageId | None = None
    ) -> None:
        ledger = self.ledger
        ledger.begin(key, place, topic, time.monotonic())
        with suppress(HedgerowError):  # The bus was closed, at the end: it is not acknowledged.
            await bus.publish(topic, payload, qos=1, id=message_id)
            ledger.acknowledge(key)

    async def _sensors(self, bus: Bus) -> None:
        for reading in replay(len(PLACES)):
            for topic in SENSOR_TOPICS.values():
                await bus.publish(topic, as_text(reading, topic.rpartition("/")[2]))
                self.readings_sent += 1
            await asyncio.sleep(SENSORS_INTERVAL_S)
            await self.is_publishing.wait()
