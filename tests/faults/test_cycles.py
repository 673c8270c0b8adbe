"""Cycles of bridges, three nodes and two Mosquittos: each message once at each subscriber, and then silence.

    ring:  n1 ── n2 ── m1 ── m2 ── n3 ── n1        mesh: a bridge between every two

All with `topic # both 1`. Two Mosquittos are joined by a node without listeners that has a bridge to each.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.stamp_codec import decode_presence
from hedgerow.mqtt.packets import Publish
from hedgerow_workshop.lab.links import Link
from tests.bridges.harness import opened
from tests.faults.client import PersistentClient, running, until
from tests.programs import end, run_mosquitto, run_node

NODES = ("n1", "n2", "n3")
MOSQUITTOS = ("m1", "m2")
BROKERS = (*NODES, *MOSQUITTOS)
RING = (("n1", "n2"), ("n2", "m1"), ("m1", "m2"), ("n3", "m2"), ("n3", "n1"))
MESH = tuple(itertools.combinations(BROKERS, 2))
STILL_S = 0.7  # so long nothing moves; whatever goes round in a cycle comes by in milliseconds
RESTART = "restart_timeout 0.1 0.5"

Pair = tuple[str, str]


class Client(PersistentClient):
    """Publishes at its broker, and hears all that is published there."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port, f"client-{name}", subscriptions=(("#", 1), ("$SYS/broker/#", 1)))
        self.name = name
        self.heard: list[tuple[str, bytes, int]] = []

    def handle_publish(self, packet: Publish) -> None:
        super().handle_publish(packet)
        if packet.topic.startswith("field/"):
            self.heard.append((packet.topic, packet.payload, packet.qos))

    def states(self) -> dict[str, str]:
        """Of this broker's bridges, as last told."""
        topics = [topic for topic in self.arrived if topic.startswith("$SYS/broker/bridge/")]
        last = {topic.split("/")[3]: self.arrived[topic][-1] for topic in topics if topic.endswith("/state")}
        return {name: json.loads(state)["state"] for name, state in last.items() if state}

    def ranked(self) -> int:
        """How many bridges have a rank at this Mosquitto."""
        topics = [topic for topic in self.arrived if topic.startswith(CARRIER_TOPIC)]
        last = [self.arrived[topic][-1] for topic in topics]
        return sum(decode_presence(opened(payload)).rank > 0 for payload in last if payload)

    @property
    def taken(self) -> int:
        """How many publications the broker has read, those that it dropped again too."""
        values = self.arrived["$SYS/broker/publish/messages/received"]
        return int(values[-1]) if values else 0


def section(name: str, port: int, *more: str) -> str:
    return "\n".join(
        [f"connection {name}", f"address 127.0.0.1:{port}", "topic # both 1", RESTART, *more, ""]
    )


@contextmanager
def run_carrier(directory: Path, *sections: str) -> Iterator[Path]:
    """A node without listeners; gives its log."""
    directory.mkdir()
    bridges, log = directory / "bridges.conf", directory / "carrier.log"
    bridges.write_text("\n".join(sections))
    listeners = [word for scheme in ("mqtt", "ws", "http") for word in (f"--{scheme}", "off")]
    command = [
        sys.executable,
        "-m",
        "hedgerow",
        "up",
        *listeners,
        "--id",
        "carrier",
        "--bridge",
        str(bridges),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
    try:
        yield log
    finally:
        status = end(process)
        if status or "Traceback" in log.read_text():
            pytest.fail(f"the carrier ended with {status}:\n{log.read_text()}")


class Fabric:
    """Brokers, the links between them, and a client at each broker."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.links: dict[Pair, Link] = {}
        self.clients: dict[str, Client] = {}

    async def is_up(self, pairs: tuple[Pair, ...]) -> None:
        wanted = [(near, f"{near}-{far}") for near, far in pairs if near in NODES]
        for near, name in wanted:
            client = self.clients[near]
            await until(lambda c=client, n=name: c.states().get(n) == "up", f"bridge {name}")  # type: ignore[misc]

    async def is_settled(self, pairs: tuple[Pair, ...]) -> None:
        """The bridges at each Mosquitto know each other: each has said its rank, after the last one came."""
        for name in MOSQUITTOS:
            client, count = self.clients[name], sum(name in pair for pair in pairs)
            await until(lambda c=client, n=count: c.ranked() == n, f"the bridges at {name}")  # type: ignore[misc]

    async def has_all(self, expected: Counter[tuple[str, bytes]]) -> None:
        for name, client in self.clients.items():
            await until(
                lambda c=client: expected <= Counter((t, p) for t, p, _ in c.heard),  # type: ignore[misc]
                f"all messages at {name}",
            )

    async def is_still(self) -> None:
        """Nothing is taken by any broker any more, be it only to be dropped."""

        def counts() -> list[int]:
            return [
                count
                for c in self.clients.values()
                for count in (len(c.heard), c.taken if c.name in NODES else 0)
            ]

        before, since = counts(), asyncio.get_running_loop().time()
        async with asyncio.timeout(10):
            while asyncio.get_running_loop().time() < since + STILL_S:
                await asyncio.sleep(0.05)
                if counts() != before:
                    before, since = counts(), asyncio.get_running_loop().time()

    def twice(self, expected: Counter[tuple[str, bytes]]) -> dict[str, int]:
        """How many came more often than they were published, at each broker; nothing else came."""
        surplus = {}
        for name, client in self.clients.items():
            heard = Counter((topic, payload) for topic, payload, _ in client.heard)
            assert not heard.keys() - expected.keys()
            surplus[name] = (heard - expected).total()
        return surplus


@asynccontextmanager
async def fabric(
    directory: Path,
    pairs: tuple[Pair, ...],
    options: dict[Pair, str] | None = None,
    *,
    with_links: bool = False,
) -> AsyncIterator[Fabric]:
    """Every pair is joined by a bridge of its first broker; of two Mosquittos, by the carrier."""
    made = Fabric()
    with ExitStack() as programs:
        for name in MOSQUITTOS:
            (directory / name).mkdir()
            made.ports[name] = programs.enter_context(run_mosquitto(directory / name))
        for name in NODES:
            (directory / name).mkdir()
            settings = ("--id", name, "--data", str(directory / name / "data"), "--sys-interval", "0.2")
            made.ports[name] = programs.enter_context(run_node(directory / name, *settings)).port()
        async with AsyncExitStack() as stack:
            made.clients = {name: Client(made.ports[name], name) for name in BROKERS}
            await stack.enter_async_context(running(*made.clients.values()))
            await until(lambda: all(c.is_connected for c in made.clients.values()), "the clients")
            for near, far in pairs:
                port = made.ports[far]
                if with_links:
                    link = Link(("127.0.0.1", 0), ("127.0.0.1", port))
                    made.links[near, far] = await stack.enter_async_context(link)
                    port = link.address[1]
                text = section(f"{near}-{far}", port, *filter(None, [(options or {}).get((near, far))]))
                if near in NODES:
                    made.clients[near].publish("$SYS/broker/bridge/new", text.encode(), 1)
                else:
                    ours = section("near", made.ports[near])
                    log = stack.enter_context(run_carrier(directory / "carrier", ours, text))
                    await until(lambda log=log: log.read_text().count(" is up, to ") == 2, "the carrier")  # type: ignore[misc]
            await made.is_up(pairs)
            await made.is_settled(pairs)
            yield made


async def publish_everywhere(made: Fabric, rounds: int) -> Counter[tuple[str, bytes]]:
    """At every broker, at QoS 0 and 1, payloads that differ and payloads that are all alike."""
    expected: Counter[tuple[str, bytes]] = Counter()
    for number in range(rounds):
        for name, client in made.clients.items():
            for qos in (0, 1):
                for topic, payload in (
                    (f"field/{name}/{qos}", f"{name} {number}".encode()),
                    (f"field/shared/{qos}", f"{name} {number}".encode()),
                    (f"field/alike/{qos}", b"again"),
                ):
                    client.publish(topic, payload, qos)
                    expected[topic, payload] += 1
        await asyncio.sleep(0.02)
    return expected


def check_order(made: Fabric) -> None:
    """What one client published to a topic at a node comes in that order to the others.

    Not so where a Mosquitto stands at either end: several bridges bring messages there, or take them away,
    and now this one, now that one is the first.
    """
    for client in (made.clients[name] for name in NODES):
        for publisher, qos in itertools.product(NODES, (0, 1)):
            heard = [payload for topic, payload, _ in client.heard if topic == f"field/{publisher}/{qos}"]
            assert heard == made.clients[publisher].sent[f"field/{publisher}/{qos}"]


ONLY_3_1_1 = "bridge_protocol_version mqttv311"


@pytest.mark.parametrize(
    ("pairs", "options"),
    [
        (RING, {}),
        (MESH, {}),
        (RING, {("n2", "m1"): ONLY_3_1_1}),
        pytest.param(RING, {("m1", "m2"): ONLY_3_1_1}, marks=pytest.mark.soak),
    ],
    ids=["ring", "mesh", "ring-with-3.1.1", "ring-with-3.1.1-between-mosquittos"],
)
async def test_each_message_comes_once(
    tmp_path: Path, pairs: tuple[Pair, ...], options: dict[Pair, str]
) -> None:
    async with fabric(tmp_path, pairs, options) as made:
        expected = await publish_everywhere(made, 10)
        await made.has_all(expected)
        await made.is_still()
        assert made.twice(expected) == dict.fromkeys(BROKERS, 0)
        check_order(made)


async def test_links_of_a_ring_that_are_cut_and_come_back(tmp_path: Path) -> None:
    """At QoS 1 nothing is lost; what is cut off is sent again, and so a few may come twice."""
    expected: Counter[tuple[str, bytes]] = Counter()

    async def publish() -> None:
        for number in itertools.count():
            for name, client in made.clients.items():
                client.publish(f"field/{name}/1", b"%d" % number, 1)
                expected[f"field/{name}/1", b"%d" % number] += 1
            await asyncio.sleep(0.03)

    async with fabric(tmp_path, RING, with_links=True) as made:
        publishing = asyncio.create_task(publish())
        for near, far in (("n1", "n2"), ("n2", "m1")):
            client, name = made.clients[near], f"{near}-{far}"
            made.links[near, far].cut()
            await until(lambda c=client, n=name: c.states()[n] != "up", f"the end of {name}")  # type: ignore[misc]
            made.links[near, far].restore()
            await made.is_up(RING)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await made.has_all(expected)
        await made.is_still()
        for name in NODES:
            heard = Counter((topic, payload) for topic, payload, _ in made.clients[name].heard)
            # A Mosquitto keeps what its own clients published for a bridge that was cut off, and that
            # bridge no longer learns the id that the others gave it.
            assert {topic for topic, _ in heard - expected} <= {"field/m1/1", "field/m2/1"}
