"""Someone who connects to a fixed broker as a mobile one does, and says whatever the test makes him say.

`say` writes in the protocol's own words, in order, as a mobile broker would; `publish` writes anything.
Beside him are those who behave (`bystanders`): the clients of a mobile broker, who must get all that is
published there and at the fixed broker, each message once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from hedgerow.message import Message, Properties
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.events import DelegationStats
from hedgerow.mobility.delegation.publications import (
    CONTENT,
    Body,
    HelloBody,
    PublicationKind,
    StreamHeader,
)
from hedgerow.mobility.delegation.stream import Stream
from hedgerow.mobility.roles import ADDRESS_PROPERTY, MOBILE_PREFIX
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connack, Connect, Publish
from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running
from tests.node.peers import RawClient, raw_client
from tests.programs import Node, wait_until
from tests.waiting import PATIENCE_S, until

DOMAIN = "farm/sector1"
EVERYTHING_COLD = ("--hot-every", "50 ms", "--hot-share", "0")


def start_tower(start: StartNode, *more: str) -> Node:
    return start("--id", "tower", "--role", "fixed", "--domain", DOMAIN, "--http", "127.0.0.1:0", *more)


def start_tractor(start: StartNode, tower: Node, *more: str, name: str = "tractor", login: str = "") -> Node:
    """A mobile broker that delegates everything, and is linked."""
    url = f"mqtt://{login}127.0.0.1:{tower.port()}"
    words = ("--id", name, "--role", "mobile", "--domain", DOMAIN, "--fixed", url, "--http", "127.0.0.1:0")
    node = start(*words, *EVERYTHING_COLD, *more)
    wait_until(lambda: "tower at mqtt://" in node.log, f"the link of {name}")
    return node


async def metric(node: Node, name: str) -> float:
    """One of /metrics."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port("http"))
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        lines = (await reader.read()).decode().splitlines()
    finally:
        writer.close()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


async def until_metric(node: Node, name: str, at_least: float) -> None:
    """Wait for a counter of /metrics."""
    value = 0.0
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            while (value := await metric(node, name)) < at_least:
                await asyncio.sleep(0.02)
    assert value >= at_least, f"{name} is {value}"


class Rogue:
    def __init__(self, client: RawClient, name: str) -> None:
        self.name = name
        self.stream = Stream(DOMAIN, name, int(time.time() * 2**20), DelegationStats())
        self.heard: list[tuple[PublicationKind, Body]] = []
        self._client = client

    def publish(self, publication: Message) -> None:
        self._client.send(codec.packet_of(publication, is_extended=False))

    def say(self, kind: PublicationKind, body: Body) -> None:
        """Next in the stream."""
        self.stream.put(kind, body, 0.0)
        self.flush()

    def write(self, kind: PublicationKind, body: Body, domain: str = DOMAIN) -> Message:
        """What `say` would write, without saying it: whatever is made of it does not count in the stream."""
        stream, plane = self.stream, self.stream.content if kind in CONTENT else self.stream.process
        header = StreamHeader(
            stream.epoch, stream.peer_epoch, stream.peer_link, plane.number + 1, plane.received
        )
        return codec.write(domain, self.name, kind, header, body)

    def flush(self) -> None:
        for publication in self.stream.take_publications():
            self.publish(publication)

    async def run(self) -> None:
        """Read and acknowledge, as a mobile broker does."""
        while (packet := await self._client.receive()) is not None:
            if isinstance(packet, Publish):
                self._read(packet)
                self.flush()

    def _read(self, packet: Publish) -> None:
        kind, header, body = codec.read(codec.publication_of(packet))
        if isinstance(body, HelloBody):
            if self.stream.receive_hello(header, body, 0.0):
                self.stream.begin_anew()
        elif self.stream.accept(kind, header, body, 0.0):
            self.stream.acknowledged(kind, header)
            self.heard.append((kind, body))

    async def drain(self) -> None:
        await self._client.writer.drain()

    @property
    def is_heard(self) -> bool:
        """Has the fixed broker handled everything that was said?"""
        return self.stream.is_open and not self.stream.records


def connect_packet(name: str, username: str | None = None, password: bytes | None = None) -> Connect:
    properties: Properties = {"user_property": ((NODE_PROPERTY, name), (ADDRESS_PROPERTY, "192.0.2.66:1883"))}
    return Connect(MOBILE_PREFIX + name, MQTT_5, True, 0, username, password, None, properties)


@asynccontextmanager
async def rogue_at(tower: Node, name: str = "rogue") -> AsyncIterator[Rogue]:
    """Accepted as a mobile broker."""
    async with raw_client(tower.port()) as client:
        client.send(connect_packet(name))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == 0
        rogue = Rogue(client, name)
        rogue.stream.link_up()
        rogue.flush()
        reading = asyncio.create_task(rogue.run())
        try:
            await until(lambda: rogue.stream.is_open, "HELLO")
            yield rogue
            assert not reading.done() or reading.result() is None
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class Bystanders:
    """A subscriber at the mobile broker, and a publisher there and at the fixed one."""

    def __init__(self, tower: Node, tractor: Node) -> None:
        self.listener = PersistentClient(
            tractor.port(), "listener", MQTT_3_1_1, subscriptions=(("soil/#", 1),)
        )
        self.publishers = [PersistentClient(node.port(), "speaker", MQTT_3_1_1) for node in (tractor, tower)]
        self.clients = [self.listener, *self.publishers]
        self._numbers = [0, 0]
        self._tractor = tractor

    async def arrive(self) -> None:
        """Until the fixed broker matches the subscription."""
        await until(lambda: all(each.is_connected for each in self.clients), "the bystanders")
        async with asyncio.timeout(PATIENCE_S):
            while not self.listener.arrived["soil/first"]:
                self.publishers[1].publish("soil/first", b"", 1)
                await asyncio.sleep(0.02)
        await until(lambda: "'soil/#' is delegated to tower" in self._tractor.log, "the delegation")

    async def speak(self) -> None:
        while True:
            for which, publisher in enumerate(self.publishers):
                if len(publisher.outgoing) < 100:
                    self._numbers[which] += 1
                    publisher.publish(f"soil/{which}", b"%d" % self._numbers[which], 1)
            await asyncio.sleep(0.01)

    async def hear(self) -> None:
        """All that has been said up to now."""
        said = [*self._numbers]
        arrived = [self.listener.arrived[f"soil/{which}"] for which in (0, 1)]
        await until(
            lambda: all(len(each) >= number for each, number in zip(arrived, said, strict=True)), "all of it"
        )

    async def testify(self) -> None:
        await self.hear()
        for which, number in enumerate(self._numbers):
            assert self.listener.arrived[f"soil/{which}"] == [b"%d" % each for each in range(1, number + 1)]
        assert [client.connections for client in self.clients] == [1, 1, 1], "one was disconnected"


@asynccontextmanager
async def bystanders(tower: Node, tractor: Node) -> AsyncIterator[Bystanders]:
    """They talk while the body does its worst, and have lost nothing at its end, nor heard it twice."""
    those = Bystanders(tower, tractor)
    async with running(*those.clients):
        await those.arrive()
        speaking = asyncio.create_task(those.speak())
        try:
            yield those
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
        await those.testify()
