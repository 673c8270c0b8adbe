"""The grid with a federator that is not ours in its middle, beside a stock Mosquitto: at node 4.

Its four neighbours speak the document's wire to it, and our own to each other's. Publishers are at node 6,
which is ours, and at node 4; subscribers at 7 and 2, which are ours, and at 4. All is at QoS 1 or 2.
"""

from __future__ import annotations

import asyncio
import time
from itertools import accumulate
from itertools import count as count_up
from pathlib import Path

from hedgerow.client.bus import Bus
from hedgerow_workshop.lab.harness.brokers import Mosquitto
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.programs import end_tasks, together, wait_until
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.clients import QUIET_S, GridTraffic
from hedgerow_workshop.lab.spohn.delays import MESH_S, SETTLE_S, draw_gaps
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.foreign import FEDERATED, ForeignFederator, ForeignSubscriber
from hedgerow_workshop.lab.spohn.network import host
from hedgerow_workshop.lab.spohn.nodes import ANNOUNCE_S
from hedgerow_workshop.lab.spohn.record import Setting, SpohnRecord, SpohnSpec

FOREIGN = "4"
KNOCK_S = 0.2
WARM = "warm"  # Publishers of this name are heard, and not counted.
ROUNDS_S = 2.5 * ANNOUNCE_S


class MixedFederation(GridFederation):
    foreign = (FOREIGN,)

    def __init__(self, kind: str, directory: Path) -> None:
        super().__init__(kind, directory)
        self.stock = Mosquitto(FOREIGN, directory / "node-4", host(FOREIGN), self.network.ports[FOREIGN])

    async def open(self) -> None:
        self._stack.callback(self.stock.kill)
        await self.stock.start()
        await super().open()
        neighbours = {
            int(node): "mqtt://{}:{}".format(*self.network.address(FOREIGN, node))
            for node in grid.neighbours(FOREIGN)
        }
        foreign = ForeignFederator(int(FOREIGN), self.stock.url, neighbours, core_ann_s=ANNOUNCE_S)
        await self._stack.enter_async_context(foreign)

    def _is_linked(self) -> bool:
        """But for the links with the one that is not ours."""
        found = measure.link_differences(self.watch.states)
        around = {f"node {node} " for node in (FOREIGN, *grid.neighbours(FOREIGN))}
        has_all = self.watch.states.keys() >= self.nodes.keys()
        return has_all and all(difference.startswith(tuple(around)) for difference in found)


async def measure_document_wire(federation: MixedFederation, count: int) -> SpohnRecord:
    record = SpohnRecord(SpohnSpec(federation.kind, Setting.DOCUMENT_WIRE, count))
    async with Clients() as clients:
        traffic = GridTraffic(clients, record, record.topic, qos=1)
        for node in grid.SUBSCRIBERS:
            await traffic.subscribe(node, federation.url(node))
        await traffic.open_publisher(grid.PUBLISHER, federation.url(grid.PUBLISHER))
        arrivals = record.arrived[FOREIGN] = []

        def receive(payload: bytes) -> None:
            publisher, number = payload.split()
            arrivals.append(Received(publisher.decode(), int(number), time.monotonic()))

        subscriber = ForeignSubscriber("foreign-subscriber", federation.stock.url, record.topic, receive)
        async with subscriber:
            there = ForeignPublisher(
                await clients.connect("foreign-publisher", federation.stock.url), record, count
            )
            warm = await clients.connect("warm-publisher", federation.url(grid.PUBLISHER))
            await _warm_up(federation, record, there, warm)
            await together(
                (
                    traffic.publish(grid.PUBLISHER, draw_gaps(count, str(record.spec))),
                    there.publish_all(),
                )
            )
            await traffic.settle(SETTLE_S, federation.check)
    return record


class ForeignPublisher:
    """A client beside the federator that is not ours."""

    def __init__(self, bus: Bus, record: SpohnRecord, count: int) -> None:
        self._bus = bus
        self._topic = FEDERATED + record.topic
        self._gaps_s = list(draw_gaps(count, f"foreign {record.spec}"))
        self._sent = record.sent[FOREIGN] = []

    def publish(self, name: str, number: int) -> None:
        self._bus.publish_nowait(self._topic, payload_of(name, number), qos=2)

    async def publish_all(self) -> None:
        due_at = accumulate(self._gaps_s, initial=time.monotonic())
        next(due_at)
        async for _ in keep_pace(due_at):
            self._sent.append(time.monotonic())
            self.publish(FOREIGN, len(self._sent) - 1)


def payload_of(name: str, number: int) -> bytes:
    return f"{name} {number}".ljust(grid.PAYLOAD_BYTES).encode()


async def _warm_up(
    federation: MixedFederation, record: SpohnRecord, there: ForeignPublisher, here: Bus
) -> None:
    """Until every subscriber has heard both publishers, so that the meshes are there, and for two more rounds
    of announcements."""

    async def knock() -> None:
        for number in count_up():
            there.publish(f"{WARM}-there", number)
            here.publish_nowait(record.topic, payload_of(f"{WARM}-here", number), qos=1)
            await asyncio.sleep(KNOCK_S)

    def is_warm() -> bool:
        heard = [{each.publisher for each in arrivals} for arrivals in record.arrived.values()]
        return all(len(each) == 2 for each in heard)

    knocking = asyncio.create_task(knock())
    try:
        await wait_until(is_warm, MESH_S, federation.check)
        await asyncio.sleep(ROUNDS_S)
    finally:
        await end_tasks([knocking])
    await asyncio.sleep(QUIET_S)
