"""With nodes: a client and a UDP sensor go from one mobile broker to another, and brokers are killed."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow.mqtt.packets import MQTT_3_1_1
from hedgerow.node.passwords import set_password
from tests.conftest import StartNode
from tests.programs import Node, wait_until
from tests.waiting import PATIENCE_S

DOMAIN = "farm/sector1"
MOBILES = ("tractor", "harvester")
SECRET = "secret"
RULES = "\n".join(
    f"user {name}\ntopic write $hedgerow/bridge\ntopic write {DOMAIN}/{name}/#\ntopic readwrite crop/+\n"
    "topic write $hedgerow/guest/alice\n"
    for name in MOBILES
)
ITERATIONS = 1_000


class Farm(NamedTuple):
    tower: Node
    mobiles: dict[str, Node]


@pytest.fixture
def farm(hedgerow_node: StartNode, tmp_path: Path) -> Farm:
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    for number, user in enumerate((*MOBILES, "alice")):
        set_password(passwords, user, SECRET.encode(), create=not number, iterations=ITERATIONS)
    acl.write_text(f"{RULES}\nuser alice\ntopic readwrite crop/+\n")
    words = ("--domain", DOMAIN, "--passwords", str(passwords))
    tower = hedgerow_node(
        *("--id", "tower", "--role", "fixed", "--acl", str(acl), "--data", str(tmp_path / "tower"), *words)
    )
    mobiles = {}
    for name in MOBILES:
        url = f"mqtt://{name}:{SECRET}@127.0.0.1:{tower.port()}"
        sensors = ("--udp", "127.0.0.1:0", "--sensor-topic", "01=crop/wind")
        more = ("--fixed", url, "--no-move-clients", "--data", str(tmp_path / name), *sensors)
        mobiles[name] = hedgerow_node("--id", name, "--role", "mobile", *more, *words)
    wait_until(lambda: all("tower at" in each.log for each in mobiles.values()), "the links")
    return Farm(tower, mobiles)


class Panel:
    """A client that keeps its session, wherever it is."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.marked: list[str] = []

    @asynccontextmanager
    async def at(self, node: Node) -> AsyncIterator[None]:
        bus = await connect(node, "panel", clean_start=False)
        async with bus.subscribe("crop/+", qos=1) as subscription:
            reader = asyncio.create_task(self._read(subscription))
            try:
                yield
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                await bus.close()

    async def _read(self, subscription: AsyncIterable[hedgerow.Message]) -> None:
        async for message in subscription:
            text = message.payload.decode()
            self.heard.append(text)
            if isinstance(message, MessageReceived) and message.dup:
                self.marked.append(text)

    async def wait_for(self, *texts: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not set(texts) <= set(self.heard):
                await asyncio.sleep(0.02)

    def check(self, sent: list[str]) -> None:
        assert set(self.heard) == set(sent)
        unmarked = Counter(self.heard) - Counter(self.marked)
        assert max(unmarked.values()) == 1, self.heard


async def connect(node: Node, name: str, *, clean_start: bool) -> Bus:
    return await hedgerow.connect(
        f"mqtt://127.0.0.1:{node.port()}",
        client_id=name,
        username="alice",
        password=SECRET,
        version=MQTT_3_1_1,
        clean_start=clean_start,
    )


async def say(node: Node, *texts: str) -> list[str]:
    bus = await connect(node, "speaker", clean_start=True)
    for text in texts:
        await bus.publish("crop/wind", text, qos=1)
    await bus.close()
    return list(texts)


async def until(node: Node, text: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while text not in node.log:
            await asyncio.sleep(0.02)


async def test_a_client_gets_what_it_missed_whichever_broker_is_killed(farm: Farm) -> None:
    tower, (tractor, harvester) = farm.tower, farm.mobiles.values()
    panel, sent = Panel(), []
    async with panel.at(tractor):
        sent += await say(tower, "1") + await say(tractor, "2")
        await panel.wait_for(*sent)
    sent += await say(tower, "3") + await say(tractor, "4")
    await until(tower, "the session of 'panel' is kept for tractor")
    sent += await say(tower, "5") + await say(harvester, "6")
    async with panel.at(harvester):
        await panel.wait_for(*sent)
        assert panel.heard == sent
    await until(tower, "the session of 'panel' is kept for harvester")
    harvester.kill9()
    sent += await say(tower, "7")
    async with panel.at(tractor):
        await panel.wait_for(*sent)
        assert panel.heard == sent
    harvester.start()
    sent += await say(tower, "8")
    tower.kill9()
    tower.start()
    await until(harvester, "tower at")
    async with panel.at(harvester):
        sent += await say(tractor, "9")
        await panel.wait_for(*sent)
        harvester.kill9()
    harvester.start()
    sent += await say(tower, "10")
    async with panel.at(harvester):
        await panel.wait_for(*sent)
    panel.check(sent)


def udp_port(node: Node) -> int:
    found = re.search(r"listening udp://[\d.]+:(\d+)", node.log)
    assert found is not None
    return int(found[1])


async def test_a_udp_sensor_subscribes_again_and_gets_the_last_value(farm: Farm) -> None:
    """The protocol has no names by which it would be known: of what it missed, it gets the last."""
    tractor, harvester = farm.mobiles.values()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sensor:
        sensor.bind(("127.0.0.1", 0))
        sensor.settimeout(PATIENCE_S)
        ask = f"{sensor.getsockname()[1]:05}001".encode()
        await say(farm.tower, "1")
        sensor.sendto(ask, ("127.0.0.1", udp_port(tractor)))
        assert await asyncio.to_thread(sensor.recv, 100) == f"{udp_port(tractor):05}1011".encode()
        tractor.kill9()
        await say(farm.tower, "2", "3")
        wait_until(lambda: has_last(harvester), "the last value")
        sensor.sendto(ask, ("127.0.0.1", udp_port(harvester)))
        assert await asyncio.to_thread(sensor.recv, 100) == f"{udp_port(harvester):05}1013".encode()


def has_last(node: Node) -> bool:
    """For whoever asks from a new port: what is renewed is not answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(0.2)
        other.sendto(f"{other.getsockname()[1]:05}001".encode(), ("127.0.0.1", udp_port(node)))
        try:
            return other.recv(100)[8:] == b"3"
        except TimeoutError:
            return False
