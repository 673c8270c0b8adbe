"""What nodes tell of themselves, and who hears it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.broker.port import Port
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import MAX_FILTERS_BYTES, MESHES, FederationPart
from hedgerow.message import Message
from hedgerow.mobility.config import MobilityConfig
from hedgerow.mqtt.packets import Publish, Suback, Subscribe, Subscription
from hedgerow.node import status
from hedgerow.node.broker_urls import BrokerUrl, read_broker_url
from hedgerow.node.server import Server
from hedgerow.node.status_format import MAX_JOBS
from hedgerow_workshop.programs import free_port
from tests.node.peers import LOOPBACK, connected, part_of, port_of, running
from tests.waiting import PATIENCE_S, until

FEDERATED = FederationConfig(enabled=True)


def url_of(server: Server) -> str:
    return f"mqtt://127.0.0.1:{port_of(server)}"


def broker_url_of(server: Server) -> BrokerUrl:
    return read_broker_url(url_of(server), Path())


async def hear(bus: hedgerow.Bus, topic_filter: str, nodes: set[str]) -> dict[str, Any]:
    """The first status of each of these nodes."""
    found: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S), bus.subscribe(topic_filter) as messages:
        async for message in messages:
            told = json.loads(message.payload)
            found.setdefault(told["node"], told)
            if found.keys() >= nodes:
                break
    return found


async def test_nothing_is_told_when_nobody_listens() -> None:
    async with running(mqtt=LOOPBACK, id="barn") as server:
        before = server.broker.sequence
        part_of(server, status.StatusTeller).handle_timer(server.clock())
        assert server.broker.sequence == before


async def test_a_status_has_what_the_node_knows() -> None:
    async with running(mqtt=LOOPBACK, id="barn") as server, hedgerow.connect(url_of(server)) as bus:
        await bus.publish("farm/notice", b"hay", qos=1, retain=True)
        told = (await hear(bus, "$hedgerow/status/+", {"barn"}))["barn"]
        assert told["version"] == 1
        assert told["kind"] == "node"
        assert told["urls"] == server.urls
        assert told["problem"] is None
        assert told["counts"]["clients"] == 1
        assert told["totals"]["received"] >= 1
        assert told["links"] == []
        assert told["hot"] is None
        assert told["events"] == []  # That a client has connected is not for everyone.


async def test_the_whole_fabric_is_heard_at_any_node() -> None:
    async with running(FEDERATED, mqtt=LOOPBACK, id="house") as house:
        near = FederationConfig(neighbours=(broker_url_of(house),))
        async with running(near, mqtt=LOOPBACK, id="barn") as barn:
            async with (
                hedgerow.connect(url_of(house)) as bus,
                hedgerow.connect(url_of(house), origin="press-4"),
            ):
                told = await hear(bus, "$hedgerow/status/+", {"house", "barn"})
                links = {name: [(each["to"], each["state"]) for each in told[name]["links"]] for name in told}
                assert links == {"house": [("barn", "up")], "barn": [("house", "up")]}
                counts = {
                    name: (each["counts"]["clients"], each["counts"]["links"]) for name, each in told.items()
                }
                assert counts == {"house": (2, 1), "barn": (0, 1)}, "a link is no client; who gives ids is"
                meshes = await hear(bus, "$hedgerow/status/+/meshes", {"house", "barn"})
                filters = meshes["barn"]["filters"]
                assert filters["$hedgerow/status/+/meshes"]["core"] == "house"
            await until(
                lambda: not barn.broker.subscriptions.route(status.status_topic("barn")).recipients,
                "barn to hear that it is over",
            )


async def test_a_mobile_broker_is_heard_at_its_fixed_one() -> None:
    fixed = MobilityConfig(role="fixed", domain="farm/sector")
    async with running(fixed, mqtt=LOOPBACK, id="tower") as tower:
        mobile = MobilityConfig(role="mobile", domain="farm/sector", fixed=(broker_url_of(tower),))
        async with (
            running(mobile, mqtt=LOOPBACK, id="tractor"),
            hedgerow.connect(url_of(tower)) as bus,
        ):
            told = await hear(bus, "$hedgerow/status/+", {"tower", "tractor"})
            assert told["tractor"]["kind"] == "mobile"
            assert [(each["kind"], each["to"]) for each in told["tractor"]["links"]] == [("fixed", "tower")]
            assert told["tower"]["kind"] == "fixed"


async def test_clients_cannot_speak_for_a_node() -> None:
    async with running(mqtt=LOOPBACK, id="barn") as server, connected(port_of(server), "liar") as client:
        client.send(Subscribe(1, [Subscription("$hedgerow/status/house")]))
        assert isinstance(await client.receive(), Suback)
        client.send(Publish("$hedgerow/status/house", b"{}"))
        await until(lambda: server.broker.stats.publish_refused == 1, "the refusal")


async def test_what_a_pipeline_says_cannot_make_a_status_large() -> None:
    deep = b"[" * 2_000 + b"]" * 2_000
    async with running(mqtt=LOOPBACK, id="barn") as server, hedgerow.connect(url_of(server)) as bus:
        for job, payload in (("hot", b'{"rows":3}'), ("deep", deep), ("long", b'"%s"' % (b"x" * 9_000))):
            await bus.publish(f"$hedgerow/pipeline/{job}", payload, qos=1, retain=True)
        told = status.describe(server)["pipeline"]
        assert told["hot"] == {"rows": 3}
        assert "long" not in told
        assert len(status.encode(status.describe(server))) < 20_000


@pytest.mark.parametrize("others", [10, status.MAX_LOOKS])
async def test_a_status_looks_at_a_few_of_the_topics_of_pipelines(others: int) -> None:
    """A client publishes as many as it likes, and a status is told each second."""
    async with running(id="barn") as server:
        retained = server.broker.retained
        for number in range(others):  # With one more level they do not match, and are looked at.
            retained.set(Message(f"$hedgerow/pipeline/{number:05}/x", b"{}", retain=True))
        retained.set(Message("$hedgerow/pipeline/last", b"{}", retain=True))
        assert ("last" in status.describe(server)["pipeline"]) is (others < status.MAX_LOOKS)
        for number in range(2 * MAX_JOBS):
            retained.set(Message(f"$hedgerow/pipeline/0-{number:05}", b"{}", retain=True))
        assert len(status.describe(server)["pipeline"]) == MAX_JOBS


async def test_a_neighbour_that_is_not_there_is_a_link_that_is_down() -> None:
    nowhere = BrokerUrl("127.0.0.1", free_port())
    async with running(FederationConfig(neighbours=(nowhere,)), mqtt=LOOPBACK, id="barn") as server:

        def links() -> list[tuple[str, str]]:
            return [(each["to"], each["state"]) for each in status.describe(server)["links"]]

        await until(lambda: links() == [(str(nowhere), "down")], "the failure to be seen")


async def test_long_filters_cannot_make_the_meshes_large() -> None:
    async with running(FEDERATED, mqtt=LOOPBACK, id="barn") as server:
        port = Port(server.broker, "test", lambda _: None)
        for number in range(2_000):
            port.subscribe(f"{number}/{'long' * 12_000}" if number % 2 else f"{number}/{'é' * 200}", 0.0)
        told = part_of(server, FederationPart).status_beside(MESHES)
        assert 100 < len(told["filters"]) < 500
        assert told["more_filters"] == 2_000 - len(told["filters"])
        assert len(status.encode(told)) < 2 * MAX_FILTERS_BYTES


async def test_many_links_cannot_make_a_status_large() -> None:
    nowhere = tuple(BrokerUrl("127.0.0.1", free_port()) for _ in range(3))
    federation = FederationConfig(neighbours=nowhere)
    async with running(federation, mqtt=LOOPBACK, id="barn") as server:
        machine = part_of(server, FederationPart).machine
        await until(lambda: len(list(machine.not_reached)) == 3, "the failures")
        assert len(status.describe(server, max_links=2)["links"]) == 2
