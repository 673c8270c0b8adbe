"""Runs with real programs and links: the grid's ways, the centralised settings, and how failures are carried
out, on a stand-in for the federation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import cast

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.brokers import Hedgerow, check_kind
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.spohn import experiment, grid, measure
from hedgerow_workshop.lab.spohn.clients import StateWatch
from hedgerow_workshop.lab.spohn.delays import draw_gaps, measure_centralised
from hedgerow_workshop.lab.spohn.failures import Failures
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.network import GridNetwork, host
from hedgerow_workshop.lab.spohn.nodes import STATE_TOPICS, GridNode
from hedgerow_workshop.lab.spohn.record import Misfortune, State
from tests.programs import need_program
from tests.waiting import until
from tests.workshop.lab.spohn_records import make_states


@asynccontextmanager
async def echo(network: GridNetwork, node: str) -> AsyncIterator[None]:
    """Stands at a node in place of its broker."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(serve, host(node), network.ports[node]):
        yield


async def round_trip_s(address: tuple[str, int]) -> float:
    reader, writer = await asyncio.open_connection(*address)
    began_at = time.monotonic()
    writer.write(b"x")
    await reader.readexactly(1)
    took_s = time.monotonic() - began_at
    writer.close()
    await writer.wait_closed()
    return took_s


async def test_a_way_takes_as_long_as_its_links() -> None:
    async with GridNetwork() as network, echo(network, "2"):
        await network.open_links()
        assert await round_trip_s(network.address("5", "2")) >= 2 * 0.005
        assert await round_trip_s(await network.open_way("6", "2")) >= 2 * 0.020
        assert network.carried()["5", "2"] == network.carried()["2", "5"] == 1
        assert network.carried()["1", "2"] == 0


async def test_a_cut_holds_what_either_side_dialled() -> None:
    async with GridNetwork() as network, echo(network, "2"), echo(network, "5"):
        await network.open_links()
        network.cut("2", "5")
        tries = [
            asyncio.create_task(round_trip_s(network.address(*pair))) for pair in (("5", "2"), ("2", "5"))
        ]
        assert await round_trip_s(network.address("1", "2")) >= 0.01  # another link, meanwhile
        assert not any(each.done() for each in tries)
        network.restore("2", "5")
        await asyncio.gather(*tries)


def test_gaps_are_the_documents_and_can_be_repeated() -> None:
    gaps = list(draw_gaps(200, "a"))
    assert len(gaps) == 200
    assert 0.05 <= min(gaps) < 0.06
    assert 0.09 < max(gaps) <= 0.1
    assert gaps == list(draw_gaps(200, "a")) != list(draw_gaps(200, "b"))


@pytest.mark.parametrize("kind", ["hedgerow", "mosquitto"])
async def test_both_subscribers_at_one_broker(kind: str, tmp_path: Path) -> None:
    if kind == "mosquitto":
        need_program("mosquitto")
    records = await measure_centralised([kind], 5, tmp_path)
    assert [str(record.spec) for record in records] == [
        f"{kind} centralised node 2",
        f"{kind} centralised node 7",
    ]
    for record, floor_ms in zip(records, (20, 5), strict=True):
        assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)
        assert list(record.arrived) == ["A", "B"]
        for subscriber in record.arrived:
            assert min(delays_ms(record.heard(subscriber))) >= floor_ms


async def test_a_node_that_does_not_start_is_named(tmp_path: Path) -> None:
    async with GridNetwork() as network, echo(network, "4"):
        await network.open_links()
        node = GridNode("hedgerow", "4", network, tmp_path)
        with pytest.raises(LabError, match="^broker 4 ended before listening: "):
            await node.start()
        node.kill()


async def test_a_node_is_told_its_links_and_no_other_address(tmp_path: Path) -> None:
    async with GridNetwork() as network:
        await network.open_links()
        node = GridNode("hedgerow", "6", network, tmp_path)
        launched: list[tuple[str, ...]] = []

        async def start() -> None:
            assert isinstance(node.broker, Hedgerow)
            launched.append(node.broker.options)

        node.broker.start = start  # type: ignore[method-assign]
        await node.start()
        addresses = ["{}:{}".format(*network.address("6", other)) for other in ("3", "7")]
        assert launched == [
            (
                "--redundancy",
                "2",
                "--neighbour",
                f"mqtt://{addresses[0]}",
                "--neighbour",
                f"mqtt://{addresses[1]}",
            )
        ]


async def test_what_nodes_say_is_heard_and_forgotten(tmp_path: Path) -> None:
    async with GridNetwork() as network, Clients() as clients:
        with Hedgerow("3", tmp_path, host("3"), network.ports["3"]) as broker:
            node = GridNode("mosquitto", "3", network, tmp_path)  # its topic may be written by a client
            node.broker = broker
            await broker.start()
            watch = StateWatch(clients)
            await watch.open(node)
            bus = await clients.connect("federator", broker.url)
            await bus.publish(STATE_TOPICS["mosquitto"].format(node="3"), '{"node": "3"}', retain=True)
            await until(lambda: watch.states == {"3": {"node": "3"}}, "the state of node 3")
            watch.forget("3")
            assert watch.states == {}


class StandIn:
    """One broker in place of nine. Node 2 is behind a link, which every kill and every cut holds; that nodes
    or links are lost is noticed a moment later."""

    kind = "hedgerow"

    def __init__(self, broker: Hedgerow, link: Link) -> None:
        self.url_of = {"2": "mqtt://{}:{}".format(*link.address)}
        self._broker = broker
        self.link = link
        self.events: list[str] = []
        self.nodes = {name: StandInNode(self, name) for name in grid.NODES}
        self.network = self.watch = self
        self.states: dict[str, State] = {}

    def url(self, node: str) -> str:
        return self.url_of.get(node, self._broker.url)

    def check(self) -> None:
        self._broker.check()

    def carried(self) -> dict[tuple[str, str], int]:
        """Three links carry what is published, in one direction."""
        pairs = [pair for a, b in grid.LINKS for pair in ((a, b), (b, a))]
        self.events.append("carried")
        so_far = len(self.events) * 1_000
        return dict.fromkeys(pairs, 100) | {
            ("5", "4"): 3 * so_far,
            ("1", "4"): 2 * so_far,
            ("6", "3"): so_far,
        }

    async def wait_until_whole(self, topic: str, patience_s: float, besides: object = ()) -> float:
        self.states = make_states(topic)
        return time.monotonic()

    def forget(self, node: str) -> None:
        self.events.append(f"forget {node}")

    def fail(self, event: str, lost: list[tuple[str, str]]) -> None:
        self.events.append(event)
        self.link.cut()
        asyncio.get_running_loop().call_later(0.5, self._notice, event, lost)

    def _notice(self, event: str, lost: list[tuple[str, str]]) -> None:
        self.events.append(f"noticed {event}")
        for near, far in lost:
            left = {name: link for name, link in self.states[near]["neighbours"].items() if name != far}
            self.states[near] = {**self.states[near], "neighbours": left}

    def mend(self, event: str) -> None:
        self.events.append(event)
        self.link.restore()

    def cut(self, a: str, b: str) -> None:
        self.fail(f"cut {a}-{b}", [(a, b), (b, a)])

    def restore(self, a: str, b: str) -> None:
        self.mend(f"restore {a}-{b}")


class StandInNode:
    def __init__(self, federation: StandIn, name: str) -> None:
        self._federation = federation
        self._name = name

    def kill(self) -> None:
        lost = [(other, self._name) for other in grid.neighbours(self._name)]
        self._federation.fail(f"kill {self._name}", lost)

    async def start(self) -> None:
        self._federation.mend(f"start {self._name}")


async def test_nodes_are_killed_and_busy_links_cut_in_turn(tmp_path: Path) -> None:
    with Hedgerow("all", tmp_path) as broker:
        await broker.start()
        async with Link(("127.0.0.1", 0), (broker.host, broker.port)) as link:
            stand_in = StandIn(broker, link)
            trial = Failures(cast("GridFederation", stand_in), heal_s=0.3, dwell_s=0.1, window_s=0.2)
            record = await trial.perform(fast=True)
    kills = [(f"kill {each}", f"noticed kill {each}", f"forget {each}", f"start {each}") for each in "45"]
    # Publishers' links first, then the busiest.
    cuts = [(f"cut {each}", f"noticed cut {each}", f"restore {each}") for each in ("3-6", "4-5")]
    assert stand_in.events == ["carried", "carried", *chain(*kills), *chain(*cuts)]
    assert [(each.misfortune, each.what) for each in record.happened] == [
        (Misfortune.KILL, "4"),
        (Misfortune.KILL, "5"),
        (Misfortune.CUT, "3-6"),
        (Misfortune.CUT, "4-5"),
    ]
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)
    assert min(map(len, record.sent.values())) > 10
    for misfortune in Misfortune:
        # Node 7 hears all the time: it is node 2 that counts.
        assert all(0.6 <= seconds < 5 for _, seconds in measure.heals(record, misfortune))
    assert [measure.mesh_differences(states, record.topic) for states in record.states] == [[], []]


def test_wrong_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="spohn takes no --timeline"):
        experiment.run(Request(timeline=tmp_path))
    with pytest.raises(ConfigError, match="no broker emqx"):
        experiment.run(Request(broker="emqx"))
    with pytest.raises(ConfigError, match="mosquitto is not on PATH"):
        check_kind("mosquitto", lambda name: None)
