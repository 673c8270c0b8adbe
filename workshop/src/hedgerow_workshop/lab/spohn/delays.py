"""Runs that measure how long a publication takes: federated, and with both subscribers at one broker.

The document does not name a QoS: it is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from hedgerow_workshop.lab.harness.brokers import KINDS
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import together
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.clients import GridTraffic
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.network import GridNetwork, host
from hedgerow_workshop.lab.spohn.record import Setting, SpohnRecord, SpohnSpec, Transmissions

MESH_S = 20.0
SETTLE_S = 5.0
BROKER_NODES = ("2", "7")
CENTRALISED_SUBSCRIBERS = ("A", "B")
CENTRALISED_TOPIC = "grid/centralised"


def draw_gaps(count: int, name: str) -> Iterator[float]:
    random = Random(name)
    return (random.uniform(*grid.GAP_S) for _ in range(count))


async def measure_federated(federation: GridFederation, count: int) -> SpohnRecord:
    record = SpohnRecord(SpohnSpec(federation.kind, Setting.FEDERATED, count))
    async with Clients() as clients:
        traffic = GridTraffic(clients, record, record.topic, qos=0)
        for node in grid.SUBSCRIBERS:
            await traffic.subscribe(node, federation.url(node))
        await traffic.open_publisher(grid.PUBLISHER, federation.url(grid.PUBLISHER))
        await federation.wait_until_whole(traffic.topic, MESH_S)
        record.states.append(dict(federation.watch.states))
        before = await federation.count_transmissions()
        await traffic.publish(grid.PUBLISHER, draw_gaps(count, str(record.spec)))
        await traffic.settle(SETTLE_S, federation.check)
        after = await federation.count_transmissions()
        record.transmissions = {
            link: Transmissions(sent - before[link].sent, redundant - before[link].redundant)
            for link, (sent, redundant) in after.items()
        }
        record.states.append(dict(federation.watch.states))
    return record


async def measure_centralised(kinds: list[str], count: int, directory: Path) -> list[SpohnRecord]:
    """All at the same time: they are few programs, and share no link."""
    records = [
        SpohnRecord(SpohnSpec(kind, Setting.CENTRALISED, count, node))
        for kind in kinds
        for node in BROKER_NODES
    ]
    await together(_measure_broker(record, directory / record.spec.file_name) for record in records)
    return records


async def _measure_broker(record: SpohnRecord, directory: Path) -> None:
    spec = record.spec
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(GridNetwork())
        broker = KINDS[spec.kind](spec.node, directory, host(spec.node), network.ports[spec.node])
        stack.enter_context(broker)
        await broker.start()
        clients = await stack.enter_async_context(Clients())
        traffic = GridTraffic(clients, record, CENTRALISED_TOPIC, qos=0)
        for name in CENTRALISED_SUBSCRIBERS:
            await traffic.subscribe(name, broker.url)
        address, port = await network.open_way(grid.PUBLISHER, spec.node)
        await traffic.open_publisher(grid.PUBLISHER, f"mqtt://{address}:{port}")
        await traffic.publish(grid.PUBLISHER, draw_gaps(spec.count, str(spec)))
        await traffic.settle(SETTLE_S, broker.check)
