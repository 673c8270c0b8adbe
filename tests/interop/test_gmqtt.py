"""gmqtt, an MQTT 5 client of its own making: no code of Paho in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from gmqtt.storage import PersistentStorage

from hedgerow_workshop.lab.links import Link
from tests.interop.conftest import Reach

PATIENCE_S = 20.0
VERSIONS = {"3.1.1": MQTTv311, "5": MQTTv50}

every_version = pytest.mark.parametrize("version", VERSIONS)
# It speaks no WebSocket.
without_websocket = pytest.mark.parametrize("reach", ["mqtt", "mqtts"], indirect=True, ids=["tcp", "tls"])


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


class Arrived(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    properties: dict[str, Any]


class Peer:
    def __init__(self, name: str, **options: Any) -> None:
        self._unacknowledged = PersistentStorage()
        self.client = client = gmqtt.Client(name, persistent_storage=self._unacknowledged, **options)
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()
        self.subscribed = asyncio.Event()
        self.session_present = False
        client.on_message = lambda client, *arrived: self.inbox.put_nowait(Arrived(*arrived))
        client.on_subscribe = lambda client, mid, qos, properties: self.subscribed.set()
        client.on_connect = self._on_connect

    def _on_connect(self, client: Any, flags: int, result: int, properties: Any) -> None:
        self.session_present = bool(flags)

    async def subscribe(self, topic_filter: str, qos: int, **properties: Any) -> None:
        self.subscribed.clear()
        self.client.subscribe(topic_filter, qos=qos, **properties)
        await self.subscribed.wait()

    async def acknowledged(self) -> None:
        await self._unacknowledged.wait_empty()

    async def expect(self, count: int) -> list[Arrived]:
        return [await self.inbox.get() for _ in range(count)]


@asynccontextmanager
async def connected(reach: Reach, version: str, name: str, **options: Any) -> AsyncIterator[Peer]:
    peer = Peer(name, **options)
    tls = reach.context() if reach.is_tls else False
    await peer.client.connect("127.0.0.1", reach.port, ssl=tls, version=VERSIONS[version])
    try:
        yield peer
    finally:
        await peer.client.disconnect()


@every_version
@without_websocket
async def test_every_qos_arrives_once_and_in_order(reach: Reach, version: str, name: str) -> None:
    count = 30
    async with (
        connected(reach, version, f"{name}-s") as subscriber,
        connected(reach, version, f"{name}-p") as publisher,
    ):
        await subscriber.subscribe(f"{name}/+", 2)
        for number in range(count):
            for qos in (0, 1, 2):
                publisher.client.publish(f"{name}/{qos}", f"{number}", qos=qos)
        await publisher.acknowledged()
        arrived = await subscriber.expect(3 * count)
        for qos in (0, 1, 2):
            mine = [message for message in arrived if message.topic == f"{name}/{qos}"]
            assert [int(message.payload) for message in mine] == list(range(count))
            assert {message.qos for message in mine} == {qos}
        assert subscriber.inbox.empty()


@without_websocket
async def test_properties_pass_through_and_aliases_are_used(reach: Reach, name: str) -> None:
    async with (
        connected(reach, "5", f"{name}-s", topic_alias_maximum=2) as subscriber,
        connected(reach, "5", f"{name}-p") as publisher,
    ):
        await subscriber.subscribe(f"{name}/#", 1, subscription_identifier=5)
        for topic in ("a", "b", "c") * 3:  # more topics than aliases
            publisher.client.publish(
                f"{name}/{topic}",
                topic,
                qos=1,
                content_type="text/plain",
                user_property=[("k", "1"), ("k", "2")],
                message_expiry_interval=60,
            )
        await publisher.acknowledged()
        arrived = await subscriber.expect(9)
        assert [message.topic for message in arrived] == [f"{name}/{topic}" for topic in ("a", "b", "c") * 3]
        for message in arrived:
            assert message.properties["content_type"] == ["text/plain"]
            assert message.properties["user_property"] == [("k", "1"), ("k", "2")]
            assert message.properties["subscription_identifier"] == [5]
        assert {alias for message in arrived for alias in message.properties.get("topic_alias", ())} == {1, 2}


@every_version
async def test_a_session_keeps_what_came_while_its_client_was_away(
    tcp: Reach, version: str, name: str
) -> None:
    kept: dict[str, Any] = {"clean_session": False}
    if version == "5":
        kept["session_expiry_interval"] = 60
    async with connected(tcp, version, f"{name}-s", **kept) as subscriber:
        await subscriber.subscribe(f"{name}/#", 2)
        assert not subscriber.session_present
    async with connected(tcp, version, f"{name}-p") as publisher:
        for number in range(10):
            for qos in (1, 2):
                publisher.client.publish(f"{name}/{qos}", f"{number}", qos=qos)
        await publisher.acknowledged()
    async with connected(tcp, version, f"{name}-s", **kept) as subscriber:
        assert subscriber.session_present
        arrived = await subscriber.expect(20)
        for qos in (1, 2):
            assert [int(message.payload) for message in arrived if message.qos == qos] == list(range(10))


async def test_a_will_after_its_delay_and_with_its_properties(tcp: Reach, name: str) -> None:
    will = gmqtt.Message(
        f"{name}/will", "gone", qos=1, will_delay_interval=1, user_property=("reason", "lost")
    )
    async with connected(tcp, "5", f"{name}-w") as watcher:
        await watcher.subscribe(f"{name}/#", 1)
        lost = Peer(f"{name}-l", will_message=will, session_expiry_interval=60)
        lost.client.set_config({"reconnect_retries": 0})
        async with Link(("127.0.0.1", 0), ("127.0.0.1", tcp.port)) as link:
            await lost.client.connect(*link.address)
        (message,) = await watcher.expect(1)
        assert (message.payload, message.properties["user_property"]) == (b"gone", [("reason", "lost")])
        await lost.client.disconnect()
