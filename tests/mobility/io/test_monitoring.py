"""A node that counts its hot topics and shows them, and delegates none."""

from __future__ import annotations

import json

import pytest

from hedgerow.mobility.config import MobilityConfig
from hedgerow.mobility.io.monitoring import Monitoring
from hedgerow.mobility.settings import MobileSettings
from hedgerow.mqtt.packets import Publish, Subscribe, Subscription
from hedgerow.node.server import Server
from tests.node.peers import connected, part_of, port_of, running
from tests.waiting import until

QUICK = MobilityConfig(monitors=True, settings=MobileSettings((), x_s=0.02, y_s=0.1, share=0.5, capacity=1))


def shown(server: Server, what: str) -> object:
    message = server.broker.retained.get(f"$SYS/broker/hot/{what}")
    return None if message is None else json.loads(message.payload)


async def test_topics_are_ranked_and_shown_until_they_are_silent() -> None:
    async with running(QUICK) as server, connected(port_of(server), "c") as client:
        client.send(Subscribe(1, [Subscription("#", 0)]))
        await client.receive()
        client.send(*(Publish("busy", b"", 0, False) for _ in range(3)), Publish("quiet", b"", 0, False))
        await until(lambda: shown(server, "registry/in") == {"count": 1, "topics": ["busy"]}, "In.Registry")
        assert shown(server, "registry/out") == {"count": 1, "topics": ["quiet"]}
        empty = {"count": 0, "scores": {}}
        await until(lambda: shown(server, "scores") == empty, "the window to pass")
        monitoring = part_of(server, Monitoring)
        assert monitoring.deadline == float("inf"), "an idle node has nothing to calculate"
        client.send(Publish("later", b"", 0, False))
        both = {"count": 2, "topics": ["busy", "later"]}
        await until(lambda: shown(server, "registry/in") == both, "an event after a silence")
        assert not server.broker.subscriptions.inactive


async def test_nothing_is_counted_unless_asked() -> None:
    async with running() as server:
        assert not server.broker.subscriptions.observers
        assert server.find(Monitoring) is None
        assert shown(server, "scores") is None


@pytest.mark.parametrize("role", ["fixed", None])
async def test_it_stops_with_its_node(role: str | None) -> None:
    mobility = MobilityConfig(role=role, domain="farm", monitors=True)
    async with running(mobility) as server:
        await until(lambda: shown(server, "scores") is not None, "the first state")
    assert not part_of(server, Monitoring).has_work
