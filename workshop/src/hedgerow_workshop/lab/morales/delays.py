"""Runs that measure how long a publication takes: several mobile brokers side by side, each with its own
algorithm and its own fixed broker, are given the same publications.

Each topic has a subscriber. The document does not name a QoS: it is 0. The mobile brokers' publications are a
little apart, so that none waits for the others in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.measure import count_lost
from hedgerow_workshop.lab.harness.programs import together, wait_until
from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.morales.brokers import FixedBroker, Station
from hedgerow_workshop.lab.morales.record import MoralesRecord, MoralesSpec
from hedgerow_workshop.lab.morales.setting import CLIENT_OPTIONS, TOPICS, Algorithm, Uplink
from hedgerow_workshop.lab.morales.traffic import RATE, DrawnTraffic, PlannedPublication

PAYLOAD_BYTES = 64
QUIET_S = 0.3  # after the last message
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs side by side, and the traffics that it is given one after the other."""

    uplink: Uplink
    algorithms: Sequence[Algorithm]
    traffics: Sequence[DrawnTraffic]


class Subject:
    """One mobile broker of a batch, with its clients."""

    def __init__(self, batch: Batch, algorithm: Algorithm, directory: Path) -> None:
        self.algorithm = algorithm
        self._batch = batch
        self._directory = directory / str(algorithm)
        self._record: MoralesRecord | None = None
        self._publisher: Bus
        self._station: Station

    async def open(self, stack: AsyncExitStack, clients: Clients) -> None:
        fixed = stack.enter_context(FixedBroker(f"fixed-{self.algorithm}", self._directory / "fixed"))
        await fixed.start()
        self._station = Station(
            f"mobile-{self.algorithm}",
            self._directory / "mobile",
            fixed,
            self._batch.uplink.conditions,
            self.algorithm,
        )
        await stack.enter_async_context(self._station)
        for topic in TOPICS:
            bus = await clients.connect(f"subscriber-{topic.replace('/', '-')}", self._station.url)
            await clients.listen(bus, topic, 0, self._receive)
        self._publisher = await clients.connect("publisher", self._station.url)

    def _receive(self, message: Message) -> None:
        now = time.monotonic()
        traffic, number = message.payload.split()
        if self._record is not None and traffic.decode() == self._record.spec.traffic:
            self._record.arrived.append(Arrival(int(number), now))

    def begin(self, traffic: str, publications: Sequence[PlannedPublication], warm_up: int) -> MoralesRecord:
        spec = MoralesSpec(self._batch.uplink, traffic, self.algorithm)
        self._record = MoralesRecord(spec, warm_up, [each.topic for each in publications])
        self._record.random = [each.is_random for each in publications]
        return self._record

    async def publish(self, publications: Sequence[PlannedPublication], begin_at: float) -> None:
        assert self._record is not None
        traffic, sent = self._record.spec.traffic, self._record.sent
        async for _ in keep_pace(begin_at + each.at_s for each in publications):
            topic, payload = publications[len(sent)].topic, f"{traffic} {len(sent)}".ljust(PAYLOAD_BYTES)
            sent.append(time.monotonic())
            self._publisher.publish_nowait(topic, payload)

    def check(self) -> None:
        self._station.check()


async def measure_batch(batch: Batch, directory: Path, say: Callable[[str], None]) -> list[MoralesRecord]:
    records: list[MoralesRecord] = []
    subjects = [Subject(batch, algorithm, directory) for algorithm in batch.algorithms]
    async with AsyncExitStack() as stack, Clients(**CLIENT_OPTIONS) as clients:

        def check() -> None:
            clients.check()
            for subject in subjects:
                subject.check()

        await together(subject.open(stack, clients) for subject in subjects)
        for traffic in batch.traffics:
            publications, warm_up = traffic.draw()
            say(f"{batch.uplink} {traffic.name}: {len(publications)} publications …")
            measured = [subject.begin(traffic.name, publications, warm_up) for subject in subjects]
            records += measured
            begin_at, apart_s = time.monotonic(), 1 / RATE / len(subjects)
            await together(
                subject.publish(publications, begin_at + index * apart_s)
                for index, subject in enumerate(subjects)
            )
            check()
            # What was sent arrives, or is waited for in vain; what is doubled comes then.
            await wait_until(partial(_have_all, measured), SETTLE_S, check)
            await asyncio.sleep(QUIET_S)
    return records


def _have_all(records: Sequence[MoralesRecord]) -> bool:
    return not any(count_lost(record.hearings()) for record in records)
