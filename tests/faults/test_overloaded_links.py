"""A link between nodes that has more to carry than it can stays, and one that is cut is lost in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hedgerow.broker.connection import Connection
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import FederationPart
from hedgerow.mqtt.packets import Publish, Subscribe, Subscription
from hedgerow.node.server import Server
from hedgerow.node.store import Store
from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.links import Link
from tests.faults.federated import linked, neighbours, url_at
from tests.node.peers import RawClient, connected, part_of, port_of, running
from tests.waiting import until

TRICKLE = Conditions(bandwidth_bits_per_s=400_000)  # A probe waits for seconds behind what is in a socket.
FLOOD = 4_000
PAYLOAD = b"x" * 1_000
PROBES_S = 1.5  # without an answer, and a link is lost
LONG_S = 3 * PROBES_S
CUT_S = 2.5  # on a busy machine; by probes or keep alive it takes 1.5 s to 2 s
BEHIND = 6_000  # more than may be acknowledged later, before a connection is not read


class Linked(NamedTuple):
    dialler: Server
    acceptor: Server
    link: Link

    @property
    def opened_at(self) -> set[float]:
        """Of the connection at each end: as long as it is the same, there is one link."""
        sessions = [
            session
            for node in (self.dialler, self.acceptor)
            for _, session in part_of(node, FederationPart).machine.neighbour_sessions()
        ]
        return {each.connection.opened_at for each in sessions if each.connection is not None}


@asynccontextmanager
async def pair(**data: Path) -> AsyncIterator[Linked]:
    """`data` by node."""

    def of(name: str) -> dict[str, Any]:
        return {"id": name} | ({"data": data[name]} if name in data else {})

    async with (
        running(FederationConfig(enabled=True), **of("acceptor")) as acceptor,
        Link(("127.0.0.1", 0), ("127.0.0.1", port_of(acceptor))) as link,
        running(FederationConfig(neighbours=(url_at(link.address[1]),)), **of("dialler")) as dialler,
    ):
        await linked(dialler, acceptor)
        yield Linked(dialler, acceptor, link)
        link.set(forward=Conditions(), backward=Conditions())


@asynccontextmanager
async def flooding(
    source: Server, target: Server, qos: int, count: int, begin: Callable[[], None] = lambda: None
) -> AsyncIterator[RawClient]:
    """Until the block ends somebody at `target` is subscribed to what a client of `source` has published."""
    async with (
        connected(port_of(target), "reader", properties={"session_expiry_interval": 3600}) as reader,
        connected(port_of(source), "flood") as publisher,
    ):
        reader.send(Subscribe(1, [Subscription("x/#", qos)]))
        await reader.receive()
        await until(lambda: "x/#" in source.broker.subscriptions.beyond.counts, "the interest")
        begin()
        discarding = asyncio.ensure_future(discard(publisher))
        for number in range(count):
            publisher.send(Publish("x/y", PAYLOAD, qos, packet_id=number + 1 if qos else 0))
            if number % 100 == 0:
                await publisher.writer.drain()
        yield reader
        discarding.cancel()
        with suppress(asyncio.CancelledError):
            await discarding


async def discard(client: RawClient) -> None:
    while await client.reader.read(65_536):
        pass


async def stays(pair: Linked) -> None:
    """For longer than probes are waited for."""
    before, loop = pair.opened_at, asyncio.get_running_loop()
    assert len(before) == 2
    end = loop.time() + LONG_S
    await until(lambda: loop.time() > end or pair.opened_at != before, "the end of the time")
    assert pair.opened_at == before, "the link was lost"


@pytest.mark.parametrize("dialler_floods", [True, False], ids=["from the dialler", "to the dialler"])
async def test_a_trickle_is_alive(dialler_floods: bool) -> None:
    async with pair() as nodes:
        ends = (nodes.dialler, nodes.acceptor)
        source, target = ends if dialler_floods else ends[::-1]
        nodes.link.set(forward=TRICKLE, backward=TRICKLE)
        async with flooding(source, target, 0, FLOOD) as reader:
            await stays(nodes)
            packet = await reader.receive()
            assert isinstance(packet, Publish), "something flows"


@pytest.mark.parametrize("dialler_floods", [True, False], ids=["from the dialler", "to the dialler"])
async def test_a_trickle_that_is_cut_is_lost_in_time(dialler_floods: bool) -> None:
    async with pair() as nodes:
        ends = (nodes.dialler, nodes.acceptor)
        source, target = ends if dialler_floods else ends[::-1]
        nodes.link.set(forward=TRICKLE, backward=TRICKLE)
        async with flooding(source, target, 0, FLOOD):
            nodes.link.cut()
            async with asyncio.timeout(CUT_S):
                await until(lambda: not neighbours(source) and not neighbours(target), "the loss")


class Disk:
    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk, commit = Disk(), Store.commit

    def commit_later(store: Store) -> None:
        disk.goes_on.wait(4 * LONG_S)
        commit(store)

    monkeypatch.setattr(Store, "commit", commit_later)
    yield disk
    disk.goes_on.set()


@pytest.mark.parametrize("dialler_floods", [True, False], ids=["from the dialler", "to the dialler"])
async def test_a_node_that_waits_for_its_disk_is_alive(
    dialler_floods: bool, disk: Disk, tmp_path: Path
) -> None:
    """It reads no more from its neighbour until what came is stored."""
    name = "acceptor" if dialler_floods else "dialler"
    async with pair(**{name: tmp_path}) as nodes:
        ends = (nodes.dialler, nodes.acceptor)
        source, target = ends if dialler_floods else ends[::-1]
        async with flooding(source, target, 1, BEHIND, disk.goes_on.clear):
            await until(lambda: is_unread(target), "it to read no more")
            await stays(nodes)
            assert is_unread(target)
            disk.goes_on.set()


def is_unread(node: Server) -> bool:
    sessions = part_of(node, FederationPart).machine.neighbour_sessions()
    connections = [session.connection for _, session in sessions]
    return any(isinstance(each, Connection) and each.paused for each in connections)
