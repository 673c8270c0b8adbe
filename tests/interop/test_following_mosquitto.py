"""Bridges that follow at a real Mosquitto: filters that overlap and change, what is watched, and restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from hedgerow.bridges.bridge import BridgePhase
from hedgerow.bridges.following import FollowingBridge
from hedgerow.bridges.part import BridgesPart
from hedgerow.bridges.section import Backoff, FarAddress, Section, read_section
from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.node.server import Server
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto
from tests.faults.client import PersistentClient
from tests.faults.client import running as clients
from tests.node.peers import part_of, port_of, running
from tests.programs import run_mosquitto
from tests.waiting import until

LOG = ("log_dest topic", "log_type subscribe")
VERSIONS = {"5": None, "3.1.1": "mqttv311"}
OVERLAPPING = ("a/#", "+/b", "a/b", "#")
every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))


@dataclass
class Here:
    """A node of this process with a bridge that follows, and what its own clients hear."""

    server: Server
    bridge: FollowingBridge
    heard: list[Message]
    answered: list[tuple[str, int]]

    async def ask_for(self, *topic_filters: str) -> None:
        """Until they are granted."""
        self.begin_to_ask_for(*topic_filters)
        await until(lambda: self.bridge.state is BridgePhase.UP, "the bridge")
        await self.is_granted(*topic_filters)

    def begin_to_ask_for(self, *topic_filters: str) -> None:
        for each in topic_filters:
            assert self.bridge.ask_for(each)
        self.server.flush()

    def no_longer_ask_for(self, *topic_filters: str) -> None:
        for each in topic_filters:
            self.bridge.no_longer_ask_for(each)
        self.server.flush()

    async def is_granted(self, *topic_filters: str) -> None:
        await until(
            lambda: all(
                (found := self.bridge.far_filters.find(each)) is not None and not found.is_new
                for each in topic_filters
            ),
            f"answers to {topic_filters}",
        )

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        port = Port(self.server.broker, "publisher", lambda message: None)
        port.publish(Message(topic, payload, qos, retain), self.server.clock())
        port.close()
        self.server.flush()

    def payloads(self, topic: str) -> list[bytes]:
        return [message.payload for message in self.heard if message.topic == topic]


@asynccontextmanager
async def at_home(
    port: int, version: str | None = None, name: str = "n", **settings: object
) -> AsyncIterator[Here]:
    async with running(id=name, **settings) as server:
        section = Section(
            name="home",
            addresses=(FarAddress("127.0.0.1", port),),
            topics=(),
            follows=True,
            bridge_protocol_version=version,
            notification_topic=f"hedgerow/federation/here/{name}",
            restart_timeout=Backoff(0.05, 0.2),
        )
        bridge = part_of(server, BridgesPart).bridges.follow(section, server.clock())
        here = Here(server, bridge, [], [])
        bridge.on_subscribed = lambda *each: here.answered.append(each)
        Port(server.broker, "test", here.heard.append).subscribe("#", server.clock())
        server.flush()
        yield here


async def is_up(here: Here) -> None:
    await until(lambda: here.bridge.state is BridgePhase.UP, "the bridge")


@asynccontextmanager
async def at_mosquitto(port: int, *filters: str) -> AsyncIterator[PersistentClient]:
    client = PersistentClient(port, "there", subscriptions=tuple((each, 2) for each in filters or ("end/#",)))
    async with clients(client):
        await until(lambda: client.is_connected, "the client")
        yield client


async def has_room(client: PersistentClient, most: int = 7) -> None:
    """What goes beyond what it has in flight, Mosquitto acknowledges, and loses some."""
    await until(lambda: len(client.outgoing) < most, "acknowledgements")


async def last_word(here: Here, there: PersistentClient, topic: str = "a/last") -> None:
    """Behind it nothing is on its way, at any QoS."""
    await has_room(there, 1)
    expected = [b"last %d" % qos for qos in range(3)]
    for qos, payload in enumerate(expected):
        there.publish(topic, payload, qos)
    await until(lambda: set(here.payloads(topic)) >= set(expected), topic)


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        (None, ()),
        (None, ("allow_duplicate_messages true",)),
        (None, ("allow_duplicate_messages false", "max_inflight_messages 2")),
        ("mqttv311", ()),
    ],
)
async def test_a_message_that_several_filters_match_comes_once(
    mosquitto: StartMosquitto, version: str | None, lines: tuple[str, ...]
) -> None:
    port = mosquitto(*lines)
    async with at_home(port, version) as here, at_mosquitto(port) as there:
        await here.ask_for(*OVERLAPPING)
        expected = []
        for number in range(60):
            # Two that are alike in a row are two.
            payload = b"%d" % (number // 2)
            expected.append(payload)
            there.publish("a/b", payload, number % 3)
            await has_room(there, 1 if lines else 7)
        await last_word(here, there)
        assert Counter(here.payloads("a/b")) == Counter(expected)


@every_version
async def test_a_new_filter_brings_what_is_retained_and_not_again(
    mosquitto: StartMosquitto, version: str | None
) -> None:
    port = mosquitto()
    async with at_home(port, version) as here, at_mosquitto(port) as there:
        for qos in (0, 1, 2):
            there.publish(f"a/b/{qos}", b"kept", qos, retain=True)
        await has_room(there, 1)
        for topic_filter in ("a/#", "+/b/+", "a/b/1", "#"):
            await here.ask_for(topic_filter)
        there.publish("c", b"kept", 1, retain=True)
        await last_word(here, there)
        kept = [message.topic for message in here.heard if message.payload == b"kept"]
        assert sorted(kept) == ["a/b/0", "a/b/1", "a/b/2", "c"]
        assert here.server.broker.retained.get("a/b/1") is not None


@pytest.mark.parametrize("seed", range(2))
async def test_filters_change_while_messages_flow(mosquitto: StartMosquitto, seed: int) -> None:
    """At any time one of the filters is granted: each message comes once."""
    random = Random(seed)
    port = mosquitto("max_inflight_messages 10")
    async with at_home(port) as here, at_mosquitto(port) as there:
        asked = {"a/#"}
        await here.ask_for("a/#")
        sent = 0

        async def publish() -> None:
            nonlocal sent
            while True:
                for _ in range(3):
                    there.publish("a/b", b"%d" % sent, sent % 3)
                    sent += 1
                await has_room(there)
                await asyncio.sleep(0)

        publisher = asyncio.create_task(publish())
        while sent < 500:
            enough = sent + random.randrange(12)
            await until(lambda n=enough: sent >= n, "messages")  # type: ignore[misc]
            new = random.choice([each for each in OVERLAPPING if each not in asked])
            here.begin_to_ask_for(new)
            asked.add(new)
            if random.random() < 0.7:
                await here.is_granted(new)
                dropped = random.choice([each for each in asked if each != new])
                here.no_longer_ask_for(dropped)
                asked.discard(dropped)
            while len(asked) > 3:
                here.no_longer_ask_for(asked.pop())
                await here.is_granted(*asked)
            await here.is_granted(*asked)
        publisher.cancel()
        await has_room(there, 1)
        await until(lambda: len(set(here.payloads("a/b"))) == sent, f"{sent} messages")
        await last_word(here, there, "a/b")
        counts = Counter(here.payloads("a/b"))
        assert not {payload: count for payload, count in counts.items() if count > 1}


@every_version
async def test_what_is_published_here_goes_there(mosquitto: StartMosquitto, version: str | None) -> None:
    port = mosquitto()
    async with at_home(port, version) as here, at_mosquitto(port, "#") as there:
        here.publish("a/old", b"kept", 1, retain=True)
        await here.ask_for("#")
        assert here.bridge.listen("a/#")
        for number in range(30):
            here.publish("a/b", b"%d" % number, number % 3)
            here.publish("other", b"%d" % number, number % 3)
        here.publish("a/last", b"last", 2)
        await until(lambda: "a/last" in there.arrived, "the last")
        assert sorted(there.arrived["a/b"], key=int) == [b"%d" % number for number in range(30)]
        assert there.arrived["a/old"] == [b"kept"]
        assert "other" not in there.arrived
        there.publish("end", b"", 1)
        await until(lambda: bool(here.payloads("end")), "the end")
        assert len(here.payloads("a/b")) == 30, "nothing came back"
        here.bridge.stop_listening_to("a/#")
        here.publish("a/b", b"too late", 1)
        here.bridge.listen("a/end")
        here.publish("a/end", b"", 1)
        await until(lambda: "a/end" in there.arrived, "the end")
        assert len(there.arrived["a/b"]) == 30


@every_version
async def test_what_is_watched_and_published_for_the_bridge_itself(
    mosquitto: StartMosquitto, version: str | None
) -> None:
    port = mosquitto(*LOG)
    watched: list[tuple[str, bytes, bool]] = []
    async with at_home(port, version) as here:
        here.bridge.watch("$SYS/broker/log/M/subscribe", lambda *each: watched.append(each))
        here.bridge.watch("hedgerow/federation/to/me", lambda *each: watched.append(each), 0)
        await here.ask_for("#")
        async with at_mosquitto(port, "x/y", "hedgerow/federation/#") as there:
            await until(lambda: any(b"x/y" in payload for _, payload, _ in watched), "the log")
            watched.clear()
            for number in range(100):
                there.publish("hedgerow/federation/to/me", b"%d" % number, 0)
            await until(lambda: len(watched) >= 100, "frames")
            await last_word(here, there)
            expected = [("hedgerow/federation/to/me", b"%d" % number, False) for number in range(100)]
            assert watched == expected
            assert here.bridge.publish_there(Message("hedgerow/federation/from/me", b"1"))
            here.server.flush()
            await until(lambda: bool(there.arrived["hedgerow/federation/from/me"]), "what it published")
            assert there.arrived["hedgerow/federation/here/n"] == [b"1"]
        assert {each.topic.partition("/")[0] for each in here.heard} == {"a"}


async def test_after_a_restart_of_mosquitto_all_is_asked_for_again(tmp_path: Path) -> None:
    port = free_port()
    lines = (f"listener {port} 127.0.0.1",)
    async with at_home(port) as here:
        names = [f"f/{number}" for number in range(300)]
        here.begin_to_ask_for(*names)
        for _ in range(2):
            folder = tmp_path / f"m{len(here.heard)}"
            folder.mkdir()
            with run_mosquitto(folder, *lines):
                await is_up(here)
                async with at_mosquitto(port) as there:
                    before = len(here.heard)
                    for name in names[::50]:
                        there.publish(name, b"1", 1)
                    await until(lambda n=before: len(here.heard) >= n + 6, "all")  # type: ignore[misc]
            await until(lambda: here.bridge.state is not BridgePhase.UP, "the end of Mosquitto")
        assert len(here.heard) == 12


@pytest.mark.parametrize("are_linked", [True, False])
async def test_two_nodes_at_one_mosquitto(mosquitto: StartMosquitto, are_linked: bool) -> None:
    """What begins there comes to each node once, by one way or by two: also messages that are alike."""
    port = mosquitto()
    async with at_home(port, name="n1") as one, at_home(port, name="n2") as two, at_mosquitto(port) as there:
        bridges = part_of(two.server, BridgesPart).bridges
        if are_linked:
            link = f"connection link\naddress 127.0.0.1:{port_of(one.server)}\ntopic # both 1\n"
            bridges.create(read_section(link), two.server.clock())
            two.server.flush()
        await one.ask_for("#", "a/#")
        await two.ask_for("#", "+/b")
        await until(lambda: all(each.state is BridgePhase.UP for each in bridges), "the link")
        carriers = [here.bridge.find_foreign(True).stamps.attendance for here in (one, two)]
        await until(lambda: all(len(each.carriers) == 1 and each.may_lead for each in carriers), "ranks")
        for number in range(60):
            there.publish("a/b", b"%d" % (number // 3), 1)
            await has_room(there)
        await last_word(one, there)
        await last_word(two, there, "a/end")
        for here in (one, two):
            assert Counter(here.payloads("a/b")) == {b"%d" % number: 3 for number in range(20)}
