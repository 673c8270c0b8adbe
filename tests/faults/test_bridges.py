"""A bridge between two nodes when things go wrong: cuts, kills, a far side that stands still, a slow link.

At QoS 1 nothing is lost, nothing comes twice, and order holds: messages wait on the side where they are until
the other is there again, and ids tell what has arrived already.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hedgerow.mqtt.packets import Connack, Publish
from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.links import Link
from tests.faults.client import PersistentClient, running, until
from tests.programs import Node, run_node

STATE = "$SYS/broker/bridge/north/state"
PROBE_S, PROBES = 0.5, 3  # as they are by default
SLACK_S = 1.5  # for a machine that others use too
WINDOW = 40


class Client(PersistentClient):
    """Hears everything at its node, and counts up on a topic of its own."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(node.port(), name, subscriptions=(("field/#", 1), (STATE, 1)))
        self.topic = f"field/{name}"
        self.sent_again: set[bytes] = set()
        self.heard: list[str] = []
        """The topics of what arrived, in that order."""
        self._count = 0

    def handle_publish(self, packet: Publish) -> None:
        self.heard.append(packet.topic)
        super().handle_publish(packet)

    def _resume(self, connack: Connack) -> None:
        self.sent_again |= {each.publish.payload for each in self.outgoing.values()}
        super()._resume(connack)

    @property
    def state(self) -> dict[str, Any]:
        states = [payload for payload in self.arrived[STATE] if payload]
        found: dict[str, Any] = json.loads(states[-1]) if states else {}
        return found

    def say(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            self._count += 1
            self.publish(self.topic, b"%d " % self._count + b"x" * size, 1)

    async def load(self) -> None:
        while True:
            if self.is_connected and len(self.outgoing) < WINDOW:
                self.say(1)
            await asyncio.sleep(0.002)


class Pair:
    """`near` has the bridge, over `link`, to `far`; a client at each."""

    def __init__(self, near: Node, far: Node, link: Link) -> None:
        self.nodes = {"near": near, "far": far}
        self.link = link
        self.near, self.far = Client(near, "near"), Client(far, "far")

    async def is_up(self) -> None:
        await until(lambda: self.near.state.get("state") == "up", "the bridge to be up")

    async def is_down(self) -> None:
        await until(lambda: self.near.state["state"] != "up", "the bridge to be down")

    async def settle(self) -> None:
        """All that was said has come to the other side: all of it, in order, and once."""
        for here, there in ((self.near, self.far), (self.far, self.near)):
            await until(
                lambda h=here, t=there: len(t.arrived[h.topic]) >= len(h.sent[h.topic]),  # type: ignore[misc]
                f"all of {here.topic}",
            )
            assert there.arrived[here.topic] == here.sent[here.topic]


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    with ExitStack() as programs:
        nodes = []
        for name in ("near", "far"):
            (directory / name).mkdir()
            settings = ("--id", name, "--data", str(directory / name / "data"))
            nodes.append(programs.enter_context(run_node(directory / name, *settings)))
        async with Link(("127.0.0.1", 0), ("127.0.0.1", nodes[1].port())) as link:
            made = Pair(nodes[0], nodes[1], link)
            async with running(made.near, made.far):
                await until(lambda: made.near.is_connected and made.far.is_connected, "the clients")
                text = f"connection north\naddress 127.0.0.1:{link.address[1]}\ntopic # both 1\n"
                text += "restart_timeout 0.1 0.5\n"
                made.near.publish("$SYS/broker/bridge/new", text.encode(), 1)
                await made.is_up()
                yield made


@asynccontextmanager
async def loaded(*clients: Client) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(client.load()) for client in clients]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_silent_cut_is_found_and_nothing_is_lost(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        made.near.say(20)
        made.far.say(20)
        await made.settle()
        made.link.cut()
        cut_at = time.monotonic()
        made.near.say(50)
        made.far.say(50)
        await made.is_down()
        assert PROBE_S * (PROBES - 1) <= time.monotonic() - cut_at <= PROBE_S * (PROBES + 1) + SLACK_S
        assert made.near.state["reason"] == "no answer to 3 probes, 0.5 s apart"
        made.near.say(50)
        made.far.say(50)
        assert made.near.state["queued"] >= 50
        made.link.restore()
        await made.is_up()
        await made.settle()


@pytest.mark.parametrize("victim", ["near", "far"])
async def test_kill9_in_the_middle_of_traffic(tmp_path: Path, victim: str) -> None:
    async with pair(tmp_path) as made:
        node = made.nodes[victim]
        killed, survivor = (made.near, made.far) if victim == "near" else (made.far, made.near)
        async with loaded(made.near, made.far):
            for _ in range(2):
                count = len(survivor.arrived[killed.topic])
                await until(lambda n=count: len(survivor.arrived[killed.topic]) > n + 50, "traffic")  # type: ignore[misc]
                node.kill9()
                await asyncio.to_thread(node.start)
        for here, there in ((killed, survivor), (survivor, killed)):
            last = here.sent[here.topic][-1]
            await until(lambda t=there, h=here, x=last: x in t.arrived[h.topic], f"all of {here.topic}")  # type: ignore[misc]
            assert set(there.arrived[here.topic]) == set(here.sent[here.topic])
        arrived = survivor.arrived[killed.topic]
        twice = {payload for payload in arrived if arrived.count(payload) > 1}
        # A PUBLISH that the killed node took and did not acknowledge is another message when it comes again.
        assert twice <= killed.sent_again


async def test_a_far_side_that_stands_still(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        process = made.nodes["far"].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            made.near.say(50)
            await made.is_down()
            made.near.say(50)
        finally:
            process.send_signal(signal.SIGCONT)
        made.far.say(50)
        await made.is_up()
        await made.settle()


async def test_a_slow_link_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        made.link.set(forward=Conditions(bandwidth_bits_per_s=200_000))
        made.near.say(65, size=1_200)  # more than three seconds of the link; a dead one is found in two
        await made.settle()
        assert " is down" not in made.nodes["near"].log


async def test_live_messages_do_not_wait_for_a_backlog(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        made.link.cut()
        await made.is_down()
        made.near.say(120, size=12_000)
        await until(lambda: not made.near.outgoing, "the acknowledgements")
        # A minute for all of it: however busy the machine is, most waits when the live message comes.
        made.link.set(forward=Conditions(bandwidth_bits_per_s=200_000, queue_bytes=32 << 10))
        made.link.restore()
        await made.is_up()
        made.near.publish("field/live", b"now", 0)
        await until(lambda: bool(made.near.arrived["field/live"]), "the live message at its own broker")
        made.link.set(forward=Conditions())
        await until(lambda: bool(made.far.arrived["field/live"]), "the live message")
        before = made.far.heard[: made.far.heard.index("field/live")]
        assert before.count(made.near.topic) < 90
        await made.settle()
