"""aiomqtt, the asyncio client that most Python programs use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.interop.conftest import Reach
from tests.interop.paho_peer import properties

PATIENCE_S = 20.0
VERSIONS = {"3.1.1": aiomqtt.ProtocolVersion.V311, "5": aiomqtt.ProtocolVersion.V5}

every_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


def client(reach: Reach, version: str, name: str, **options: Any) -> aiomqtt.Client:
    return aiomqtt.Client(
        "127.0.0.1",
        reach.port,
        identifier=name,
        protocol=VERSIONS[version],
        transport="websockets" if reach.is_websocket else "tcp",
        tls_context=reach.context() if reach.is_tls else None,
        max_queued_incoming_messages=0,
        **options,
    )


async def receive(subscriber: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    messages = aiter(subscriber.messages)
    return [await anext(messages) for _ in range(count)]


@every_version
async def test_every_qos_arrives_once_and_in_order(reach: Reach, version: str, name: str) -> None:
    count = 20
    async with (
        client(reach, version, f"{name}-s") as subscriber,
        client(reach, version, f"{name}-p") as publisher,
    ):
        await subscriber.subscribe(f"{name}/+", qos=2)
        for qos in (0, 1, 2):
            for number in range(count):
                await publisher.publish(f"{name}/{qos}", f"{number}", qos=qos)
        arrived = await receive(subscriber, 3 * count)
        for qos in (0, 1, 2):
            mine = [message for message in arrived if str(message.topic) == f"{name}/{qos}"]
            assert [message.payload for message in mine] == [b"%d" % number for number in range(count)]
            assert {message.qos for message in mine} == {qos}
        assert len(subscriber.messages) == 0


@every_version
async def test_publications_side_by_side(reach: Reach, version: str, name: str) -> None:
    count = 200
    async with (
        client(reach, version, f"{name}-s") as subscriber,
        client(reach, version, f"{name}-p") as publisher,
    ):
        await subscriber.subscribe(f"{name}/#", qos=1)
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(publisher.publish(f"{name}/{number}", f"{number}", qos=1))
        arrived = {int(message.payload or b"-1") for message in await receive(subscriber, count)}
        assert arrived == set(range(count))


@every_version
async def test_will_and_retained(reach: Reach, version: str, name: str) -> None:
    will = aiomqtt.Will(f"{name}/state", "lost", qos=1, retain=True)
    async with client(reach, version, f"{name}-w") as watcher:
        await watcher.subscribe(f"{name}/#", qos=1)
        lost = client(reach, version, f"{name}-l", will=will)
        async with lost:
            await lost.publish(f"{name}/state", "here", qos=1, retain=True)
            # The same client id: the broker ends the first connection, which leaves its will behind.
            async with client(reach, version, f"{name}-l"):
                arrived = await receive(watcher, 2)
                with pytest.raises(aiomqtt.MqttError):
                    await receive(lost, 1)
        assert [message.payload for message in arrived] == [b"here", b"lost"]
        async with client(reach, version, f"{name}-late") as late:
            await late.subscribe(f"{name}/#", qos=1)
            (message,) = await receive(late, 1)
            assert (message.payload, message.retain) == (b"lost", True)
            await late.publish(f"{name}/state", "", qos=1, retain=True)


async def test_a_session_of_version_5_keeps_what_came_while_its_client_was_away(
    tcp: Reach, name: str
) -> None:
    kept: dict[str, Any] = {
        "clean_start": False,
        "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=60),
    }
    async with client(tcp, "5", f"{name}-s", **kept) as subscriber:
        await subscriber.subscribe(f"{name}/#", qos=1)
    async with client(tcp, "5", f"{name}-p") as publisher:
        for number in range(10):
            await publisher.publish(f"{name}/x", f"{number}", qos=1)
    async with client(tcp, "5", f"{name}-s", **kept) as subscriber:
        assert [int(message.payload or b"-1") for message in await receive(subscriber, 10)] == list(range(10))
