"""An error in our own code while one peer is served: that connection ends in order, and no other notices."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hedgerow.broker.role import Role
from hedgerow.broker.session import Channel
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Pingreq, Pingresp, Publish, Suback, Subscribe, Subscription, Will
from tests.broker.harness import World
from tests.node.peers import LOOPBACK, connected, port_of, running
from tests.waiting import until

POISON = "poison"
POISONED = Publish(POISON, properties={"content_type": "text"})  # A plain one takes the short path.


@pytest.fixture
def _failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that one client's bytes bring to light."""

    def fail(self: Role, connection: Channel, packet: Publish) -> bool:
        if packet.topic == POISON:
            raise IndexError("a mistake of ours")
        return False

    monkeypatch.setattr(Role, "receive", fail)


@pytest.mark.usefixtures("_failing")
async def test_the_connection_is_closed_and_its_will_published(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as node:
        port = port_of(node)
        will = Will("will", b"gone")
        async with connected(port, "other") as other:
            other.send(Subscribe(1, [Subscription("will")]))
            assert isinstance(await other.receive(), Suback)
            for _ in range(3):
                async with connected(port, "broken", will=will) as broken:
                    poison = codec.encode(POISONED, MQTT_5)
                    broken.send(codec.encode(Pingreq(), MQTT_5) * 100 + poison)
                    while await broken.receive() is not None:
                        pass
                assert await other.receive() == Publish("will", b"gone")
            other.send(Pingreq())
            assert isinstance(await other.receive(), Pingresp)
            assert node.broker.stats.connections_failed == 3
            assert node.broker.client_count == 1
    failures = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(failures) == 1, "each error has one line a minute"
    assert failures[0].exc_info is not None
    assert "a mistake of ours" in caplog.text


class FailingAttachment:
    def input_handled(self) -> None:
        pass

    def check_time(self) -> None:
        raise ValueError("a mistake of ours")


def test_what_fails_in_its_time_fails_alone() -> None:
    world = World()
    other = world.connect("other", keep_alive=10)
    other.subscribe("will")
    broken = world.connect("broken", keep_alive=10, will=Will("will", b"gone"))
    broken.connection.attachment = FailingAttachment()
    world.advance(14.0)
    other.send(Pingreq())
    other.take()
    world.advance(2.0)
    assert broken.closed
    assert other.take_payloads() == [b"gone"]
    assert world.broker.stats.connections_failed == 1


def test_one_whose_end_fails_too_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    broken = world.connect("broken")

    def fail(*arguments: Any) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Role, "disconnected", fail)
    broken.connection.fail(IndexError("the first mistake"))
    world.settle()
    assert broken.closed
    assert world.broker.client_count == 0


@pytest.mark.usefixtures("_failing")
async def test_over_websocket_too() -> None:
    from websockets.asyncio.client import connect

    from hedgerow.mqtt.packets import Connect

    async with running(ws=LOOPBACK) as node:
        uri = f"ws://127.0.0.1:{port_of(node, 'ws')}/mqtt"
        async with connect(uri, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            await client.send(codec.encode(Connect("broken"), MQTT_5))
            await client.recv()
            await client.send(codec.encode(POISONED, MQTT_5))
            await until(lambda: node.broker.stats.connections_failed == 1, "the mistake")
            await until(lambda: node.broker.client_count == 0, "the end")
