"""Federators that are not ours, beside stock Mosquittos, as neighbours of ours by the document's wire."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from struct import pack

import pytest

from hedgerow.client.bus import Bus
from hedgerow.client.connect import connect
from hedgerow.federation.document.numbers import number_of
from hedgerow.federation.interests.events import MOSQUITTO_LINES
from hedgerow.node.passwords import set_password
from hedgerow_workshop.lab.harness.programs import end_tasks
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.spohn.foreign import CORE_ANN, FEDERATED, ForeignFederator, ForeignSubscriber
from tests.forks import start_hedgerow
from tests.programs import end, run_mosquitto, run_node
from tests.waiting import until

TOPIC = "farm/7/soil"
FAST = ("--announce-interval", "1 s")
MORE = 10  # publications of each publisher


class Ground(AsyncExitStack):
    """Brokers, federators and clients of one test."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._names = 0

    def directory(self, name: str) -> Path:
        path = self._directory / name
        path.mkdir()
        return path

    def mosquitto(self, name: str) -> str:
        port = self.enter_context(
            run_mosquitto(self.directory(name), *MOSQUITTO_LINES, "log_type information")
        )
        return f"mqtt://127.0.0.1:{port}"

    def node(self, name: str, *words: str) -> str:
        """A Hedgerow node."""
        return self.enter_context(run_node(self.directory(name), "--id", name, *FAST, *words)).urls["mqtt"]

    async def sidecar(self, name: str, broker: str, *words: str) -> None:
        """It has subscribed to the broker's log: clients that come from now on are known to it."""
        output = self.directory(f"sidecar-{name}") / "log"
        with output.open("wb") as log:
            process = start_hedgerow(
                ["federate", "--id", name, "--broker", broker, *FAST, *words],
                stdout=log,
                stderr=log,
                cwd=output.parent,
            )
        self.callback(end, process)
        said = await self.subscriber(broker, f"hedgerow/federation/state/{name}")
        await until(lambda: bool(said), "the sidecar to tell of itself")

    async def foreign(
        self, number: int, broker: str, neighbours: dict[int, str], core_ann_s: float = 1.0
    ) -> ForeignFederator:
        made = ForeignFederator(number, broker, neighbours, core_ann_s=core_ann_s)
        return await self.enter_async_context(made)

    async def bus(self, broker: str) -> Bus:
        self._names += 1
        return await self.enter_async_context(connect(broker, client_id=f"client-{self._names}"))

    async def subscriber(self, broker: str, topic_filter: str = TOPIC) -> Counter[bytes]:
        """A client of ours, or of a stock broker: it says nothing to anybody but SUBSCRIBE."""
        heard: Counter[bytes] = Counter()
        bus = await self.bus(broker)
        messages = await self.enter_async_context(bus.subscribe(topic_filter, qos=2))

        async def read() -> None:
            async for message in messages:
                heard[message.payload] += 1

        self.push_async_callback(end_tasks, [asyncio.create_task(read())])
        return heard

    async def foreign_subscriber(self, broker: str) -> Counter[bytes]:
        heard: Counter[bytes] = Counter()
        self._names += 1

        def receive(payload: bytes) -> None:
            heard[payload] += 1

        await self.enter_async_context(
            ForeignSubscriber(f"foreign-client-{self._names}", broker, TOPIC, receive)
        )
        return heard


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with Ground(tmp_path) as made:
        yield made


@asynccontextmanager
async def knocking(*knocks: Callable[[], object]) -> AsyncIterator[None]:
    """Publish again and again, until what is waited for has come: a mesh forms when it does."""

    async def knock() -> None:
        while True:
            for each in knocks:
                each()
            await asyncio.sleep(0.2)

    task = asyncio.create_task(knock())
    try:
        yield
    finally:
        await end_tasks([task])


async def check_all_flows(publishers: dict[str, tuple[Bus, str]], hearers: list[Counter[bytes]]) -> None:
    """Each publisher reaches each hearer; then nothing is lost, and nothing ever came twice."""
    knocks = 0

    def knock(bus: Bus, topic: str, name: str) -> None:
        nonlocal knocks
        knocks += 1
        bus.publish_nowait(topic, f"{name} knocks {knocks}", qos=2)

    def has_heard(heard: Counter[bytes], name: str) -> bool:
        return any(payload.startswith(f"{name} knocks".encode()) for payload in heard)

    async with knocking(
        *[lambda b=bus, t=topic, n=name: knock(b, t, n) for name, (bus, topic) in publishers.items()]
    ):
        await until(
            lambda: all(has_heard(heard, name) for heard in hearers for name in publishers),
            "everybody to have heard everybody",
        )
    await asyncio.sleep(1.5)  # for the mesh that all are in by now to be told so once more
    expected = {f"{name} {number}".encode() for name in publishers for number in range(MORE)}
    for number in range(MORE):
        for name, (bus, topic) in publishers.items():
            await bus.publish(topic, f"{name} {number}", qos=2)
    await until(lambda: all(expected <= heard.keys() for heard in hearers), "all that was published")
    await asyncio.sleep(0.7)  # What comes twice would come now.
    assert [heard.most_common(1)[0][1] for heard in hearers] == [1] * len(hearers)


async def test_a_sidecar_and_a_foreign_federator_are_neighbours(ground: Ground) -> None:
    ours, theirs = ground.mosquitto("ours"), ground.mosquitto("theirs")
    await ground.sidecar("1", ours, "--wire", "document", "--neighbour", theirs)
    await ground.foreign(2, theirs, {1: ours})
    hearers = [
        await ground.subscriber(ours),
        await ground.subscriber(ours, "farm/+/soil"),
        await ground.foreign_subscriber(theirs),
    ]
    publishers = {
        "ours": (await ground.bus(ours), TOPIC),
        "theirs": (await ground.bus(theirs), FEDERATED + TOPIC),
    }
    await check_all_flows(publishers, hearers)


async def test_two_nodes_meet_by_a_foreign_federator_between_them(ground: Ground) -> None:
    """One has a number for a name, and knows that of its neighbour; the other has to ask."""
    between = ground.mosquitto("between")
    first = ground.node("9", "--document-neighbour", f"5={between}")
    second = ground.node("barn", "--wire", "document", "--neighbour", between)
    await ground.foreign(5, between, {9: first, number_of("barn"): second})
    hearers = [await ground.subscriber(first), await ground.subscriber(second)]
    publishers = {"first": (await ground.bus(first), TOPIC), "second": (await ground.bus(second), TOPIC)}
    await check_all_flows(publishers, hearers)


async def test_only_the_user_that_is_named_speaks_as_a_neighbour(ground: Ground, tmp_path: Path) -> None:
    between = ground.mosquitto("between")
    passwords = tmp_path / "passwords"
    for name in ("theirs", "mallory"):
        set_password(passwords, name, b"secret", create=name == "theirs", iterations=1)
    neighbour = f"5@theirs={between}"
    node = ground.node("9", "--document-neighbour", neighbour, "--passwords", str(passwords))

    def as_user(name: str) -> str:
        return node.replace("mqtt://", f"mqtt://{name}:secret@")

    await ground.foreign(5, between, {9: as_user("theirs")})
    reader = await ground.subscriber(as_user("mallory"))
    mallory = await ground.bus(as_user("mallory"))

    def forge() -> None:
        mallory.publish_nowait(f"federator/routing/{TOPIC}", pack("<3IQ", 5, 1, 5, 6) + b"forged", qos=2)

    async with knocking(forge):
        publishers = {"theirs": (await ground.bus(between), FEDERATED + TOPIC)}
        await check_all_flows(publishers, [reader, await ground.foreign_subscriber(between)])
    assert b"forged" not in reader


async def test_a_fabric_with_two_gateways_and_foreign_federators_in_a_ring(ground: Ground) -> None:
    """1 and 2 are nodes of ours, linked by our own wire; 3 and 4 are not ours; the ring is 1 2 4 3."""
    third, fourth = ground.mosquitto("third"), ground.mosquitto("fourth")
    first = ground.node("1", "--federation", "--document-neighbour", third)
    second = ground.node("2", "--neighbour", first, "--document-neighbour", f"4={fourth}")
    await ground.foreign(3, third, {1: first, 4: fourth})
    await ground.foreign(4, fourth, {2: second, 3: third})
    hearers = [
        await ground.subscriber(first),
        await ground.subscriber(second, "farm/#"),
        await ground.foreign_subscriber(third),
        await ground.foreign_subscriber(fourth),
    ]
    publishers = {
        "first": (await ground.bus(first), TOPIC),
        "second": (await ground.bus(second), TOPIC),
        "third": (await ground.bus(third), FEDERATED + TOPIC),
        "fourth": (await ground.bus(fourth), FEDERATED + TOPIC),
    }
    await check_all_flows(publishers, hearers)


async def test_no_gateway_takes_the_interest_of_another_for_that_of_a_subscriber(ground: Ground) -> None:
    """The ring of the test before: when the last subscriber has gone, nobody announces anything any more."""
    third, fourth = ground.mosquitto("third"), ground.mosquitto("fourth")
    first = ground.node("1", "--federation", "--document-neighbour", f"3={third}")
    second = ground.node("2", "--neighbour", first, "--document-neighbour", f"4={fourth}")
    foreign = [
        await ground.foreign(3, third, {1: first, 4: fourth}),
        await ground.foreign(4, fourth, {2: second, 3: third}),
    ]
    bus = await ground.bus(second)
    async with AsyncExitStack() as stack:
        heard: list[bytes] = []
        await stack.enter_async_context(ForeignSubscriber("last", third, TOPIC, heard.append))
        async with knocking(lambda: bus.publish_nowait(TOPIC, b"x", qos=1)):
            await until(lambda: bool(heard), "what is published in the fabric")
    announcements, since = -1, 0.0

    def is_quiet() -> bool:
        nonlocal announcements, since
        now, before = time.monotonic(), announcements
        announcements = sum(each.received.get(CORE_ANN, 0) for each in foreign)
        since = since if announcements == before else now
        return now > since + 3

    await until(is_quiet, "everybody to be quiet")


async def test_what_waits_for_a_neighbour_whose_link_was_cut_comes_once(ground: Ground) -> None:
    """Silently, for longer than probes need to notice, and shorter than a core is believed."""
    ours, theirs = ground.mosquitto("ours"), ground.mosquitto("theirs")
    port = int(theirs.rpartition(":")[2])
    link = await ground.enter_async_context(Link(("127.0.0.1", 0), ("127.0.0.1", port)))
    neighbour = "mqtt://{}:{}".format(*link.address)
    await ground.sidecar("1", ours, "--document-neighbour", f"2={neighbour}", "--announce-interval", "5 s")
    await ground.foreign(2, theirs, {1: ours}, core_ann_s=5.0)
    heard, bus = await ground.foreign_subscriber(theirs), await ground.bus(ours)
    knocks = 0

    def knock() -> None:
        nonlocal knocks
        knocks += 1
        bus.publish_nowait(TOPIC, f"knock {knocks}", qos=1)

    async with knocking(knock):
        await until(lambda: bool(heard), "the first to come")
        link.cut()
        await asyncio.sleep(3)
        link.restore()
        await until(lambda: f"knock {knocks - 1}".encode() in heard, "the way to be there again")
    await until(lambda: f"knock {knocks}".encode() in heard, "the last one")
    first = min(int(payload.split()[1]) for payload in heard)
    assert heard == {f"knock {number}".encode(): 1 for number in range(first, knocks + 1)}


async def test_clients_of_the_document_are_served_at_our_brokers_too(ground: Ground) -> None:
    """They publish and subscribe under `federated/`, and say so by beacons: beside a node, and a sidecar."""
    ours = ground.mosquitto("ours")
    node = ground.node("1", "--document-neighbour", f"2={ours}")
    await ground.sidecar("2", ours, "--document-neighbour", f"1={node}")
    hearers = [
        await ground.foreign_subscriber(ours),
        await ground.foreign_subscriber(node),
        await ground.subscriber(node),
        await ground.subscriber(ours),
    ]
    publishers = {
        "federated there": (await ground.bus(ours), FEDERATED + TOPIC),
        "federated here": (await ground.bus(node), FEDERATED + TOPIC),
        "there": (await ground.bus(ours), TOPIC),
        "here": (await ground.bus(node), TOPIC),
    }
    await check_all_flows(publishers, hearers)
