"""Two mobile brokers at one fixed broker, whose clients have the same id. None of them knows of the others.

A fixed broker has one session for each id: who comes first is a guest there, and the others are told to stay
where they are. Sent there all the same, one would take the other's session, and its messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import hedgerow
from tests.conftest import StartNode
from tests.faults.rogue import start_tower, start_tractor
from tests.programs import Node
from tests.waiting import PATIENCE_S, until

MOVE = ("--move-after", "0.1")
GUEST = "client twin connected"


class Twin:
    """A client that listens to its own topic, and to one that all of them have."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.topic = f"soil/{name}"
        self.received: Counter[tuple[str, bytes]] = Counter()

    async def run(self) -> None:
        url = f"mqtt://127.0.0.1:{self.node.port()}"
        async with (
            hedgerow.connect(url, client_id="twin") as bus,
            bus.subscribe(self.topic, qos=1) as own,
            bus.subscribe("soil/all", qos=1) as common,
        ):
            await asyncio.gather(self._listen(own), self._listen(common))

    async def _listen(self, messages: hedgerow.Subscription) -> None:
        async for message in messages:
            self.received[message.topic, message.payload] += 1


@asynccontextmanager
async def listening(*twins: Twin) -> AsyncIterator[list[hedgerow.Bus]]:
    """All subscribed, as the first words of each show. Gives a publisher at each of the nodes."""
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(hedgerow.connect(f"mqtt://127.0.0.1:{twin.node.port()}"))
            for twin in twins
        ]
        tasks = [asyncio.create_task(twin.run()) for twin in twins]
        try:
            async with asyncio.timeout(PATIENCE_S):
                for twin in twins:
                    while not any(topic == twin.topic for topic, _ in twin.received):
                        for bus in buses:
                            await bus.publish(twin.topic, b"first", qos=1)
                        await asyncio.sleep(0.02)
            yield buses
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def talk(buses: list[hedgerow.Bus], twins: list[Twin], name: str, count: int) -> None:
    """Every bus to every twin; each twin gets its own, and what is for all, once."""
    topics = [*(twin.topic for twin in twins), "soil/all"]
    sent = [b"%s-%d-%d" % (name.encode(), which, n) for which in range(len(buses)) for n in range(count)]
    for payload in sent:
        bus = buses[int(payload.split(b"-")[1])]
        for topic in topics:
            await bus.publish(topic, payload, qos=1)
    for twin in twins:
        wanted = Counter({(topic, payload): 1 for topic in (twin.topic, "soil/all") for payload in sent})
        await until(lambda t=twin, w=wanted: t.received >= w, f"what is for {twin.topic}")  # type: ignore[misc]
        found = Counter({key: n for key, n in twin.received.items() if key[1].startswith(name.encode())})
        assert found == wanted


async def test_clients_of_one_name_at_two_mobile_brokers(hedgerow_node: StartNode) -> None:
    tower = start_tower(hedgerow_node)
    nodes = [start_tractor(hedgerow_node, tower, *MOVE, name=name) for name in ("tractor", "harvester")]
    twins = [Twin(node, name) for node, name in zip(nodes, ("west", "east"), strict=True)]
    async with listening(*twins) as buses, hedgerow.connect(f"mqtt://127.0.0.1:{tower.port()}") as outside:
        await talk([*buses, outside], twins, "early", 3)
        stays = "twin@{} stays: the fixed broker has another client of this name"
        await until(
            lambda: any(
                stays.format(name) in node.log
                for name, node in zip(("tractor", "harvester"), nodes, strict=True)
            ),
            "the second to stay",
        )
        await until(lambda: GUEST in tower.log, "the first to go")
        await talk([*buses, outside], twins, "late", 10)
        assert tower.log.count(GUEST) == 1
        assert "another 'twin' is here" in tower.log


async def test_a_client_of_the_fixed_broker_keeps_its_name(hedgerow_node: StartNode) -> None:
    """It was there first, and its session is not given to a guest."""
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, *MOVE)
    twins = [Twin(tower, "west"), Twin(tractor, "east")]
    async with listening(*twins) as buses:
        await talk(buses, twins, "early", 3)
        await until(lambda: "twin@tractor stays" in tractor.log, "the other to stay")
        await talk(buses, twins, "late", 10)
        assert tower.log.count(GUEST) == 1
        assert "'twin' is sent to" not in tractor.log
