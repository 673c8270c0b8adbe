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
from hedgerow_workshop.lab.morales.brokers import Fixed, Station
from hedgerow_workshop.lab.morales.clients import Clients
from hedgerow_workshop.lab.morales.record import Arrival, Record, Spec
from hedgerow_workshop.lab.morales.setting import TOPICS, Algorithm, Uplink
from hedgerow_workshop.lab.morales.traffic import RATE, Publication, Traffic
from hedgerow_workshop.lab.processes import together

PAYLOAD_BYTES = 64
QUIET_S = 0.3  # after the last message: what is doubled would come now
SETTLE_S = 5.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs side by side, and the traffics that it is given one after the other."""

    uplink: Uplink
    algorithms: Sequence[Algorithm]
    traffics: Sequence[Traffic]


class Bench:
    """One mobile broker of a batch, with its clients."""

    def __init__(self, batch: Batch, algorithm: Algorithm, directory: Path) -> None:
        self.algorithm = algorithm
        self._batch = batch
        self._directory = directory / str(algorithm)
        self._record: Record | None = None
        self._publisher: Bus
        self._station: Station

    async def open(self, stack: AsyncExitStack, clients: Clients) -> None:
        fixed = stack.enter_context(Fixed(f"fixed-{self.algorithm}", self._directory / "fixed"))
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

    def begin(self, traffic: str, publications: Sequence[Publication], warm_up: int) -> Record:
        spec = Spec(self._batch.uplink, traffic, self.algorithm)
        self._record = Record(spec, warm_up, [each.topic for each in publications])
        return self._record

    async def publish(self, publications: Sequence[Publication], begin_at: float) -> None:
        assert self._record is not None
        traffic, sent = self._record.spec.traffic, self._record.sent
        for at_s, topic in publications:
            await asyncio.sleep(max(0, begin_at + at_s - time.monotonic()))
            payload = f"{traffic} {len(sent)}".ljust(PAYLOAD_BYTES)
            sent.append(time.monotonic())
            self._publisher.publish_nowait(topic, payload)

    def check(self) -> None:
        self._station.check()


async def measure_batch(batch: Batch, directory: Path, say: Callable[[str], None]) -> list[Record]:
    records: list[Record] = []
    benches = [Bench(batch, algorithm, directory) for algorithm in batch.algorithms]
    async with AsyncExitStack() as stack, Clients() as clients:
        await together(bench.open(stack, clients) for bench in benches)
        for traffic in batch.traffics:
            publications, warm_up = traffic.draw()
            say(f"{batch.uplink} {traffic.name}: {len(publications)} publications …")
            measured = [bench.begin(traffic.name, publications, warm_up) for bench in benches]
            records += measured
            begin_at, apart_s = time.monotonic(), 1 / RATE / len(benches)
            await together(
                bench.publish(publications, begin_at + index * apart_s) for index, bench in enumerate(benches)
            )
            for bench in benches:
                bench.check()
            await _settle(measured, partial(_check, clients, benches))
    return records


def _check(clients: Clients, benches: Sequence[Bench]) -> None:
    clients.check()
    for bench in benches:
        bench.check()


async def _settle(records: Sequence[Record], check: Callable[[], None]) -> None:
    """Until all that was sent has arrived and nothing more arrives, or until the patience is over."""
    give_up_at = time.monotonic() + SETTLE_S
    while any(_is_missing(record) for record in records) and time.monotonic() < give_up_at:
        check()
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(QUIET_S)


def _is_missing(record: Record) -> bool:
    return len({arrival.number for arrival in record.arrived}) < len(record.sent)
