"""`hedgerow up --role mobile` and `--role fixed`, as their users see them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.message import Message
from tests.conftest import StartNode
from tests.programs import Node, wait_until
from tests.waiting import PATIENCE_S, until

DOMAIN = ("--domain", "farm/sector1")


def url_of(node: Node, port: int | None = None) -> str:
    return f"mqtt://127.0.0.1:{node.port() if port is None else port}"


def start_mobile(start: StartNode, fixed: Node, *more: str) -> Node:
    mobile = start("--id", "tractor", "--role", "mobile", *DOMAIN, "--fixed", url_of(fixed), *more)
    wait_until(lambda: f"tower at {url_of(fixed)} supports this broker" in mobile.log, "the link")
    return mobile


def start_fixed(start: StartNode, name: str = "tower", *more: str) -> Node:
    return start("--id", name, "--role", "fixed", *DOMAIN, *more)


def relay_of(node: Node) -> str:
    (line,) = [line for line in node.log.splitlines() if line.startswith("relaying ")]
    return line.removeprefix("relaying ")


async def watch(url: str, topic: str, is_wanted: Callable[[Any], bool]) -> object:
    """The first value of a topic of JSON that is as wanted."""
    async with asyncio.timeout(PATIENCE_S), hedgerow.connect(url) as bus, bus.subscribe(topic) as messages:
        async for message in messages:
            if is_wanted(value := json.loads(message.payload)):
                return value
    raise AssertionError(f"{topic} ended")


async def test_events_reach_subscribers_of_both_brokers_once(hedgerow_node: StartNode) -> None:
    """From either, while everything that is not hot is delegated: here, every topic."""
    tower = start_fixed(hedgerow_node)
    hot = ("--hot-every", "50 ms", "--hot-share", "0", "--no-move-clients")
    tractor = start_mobile(hedgerow_node, tower, *hot)
    received: list[Message] = []

    def numbers() -> list[bytes]:
        return sorted(message.payload for message in received if message.topic == "soil/moisture")

    def is_delegated(moves: Any) -> bool:
        return ("delegated", "soil/#") in [(move["what"], move["which"]) for move in moves]

    async def collect(bus: hedgerow.Bus) -> None:
        async with bus.subscribe("soil/#", qos=1) as messages:
            async for message in messages:
                received.append(message)  # noqa: PERF401 (they are looked at as they come)

    async with (
        hedgerow.connect(url_of(tractor)) as subscriber,
        hedgerow.connect(url_of(tractor)) as here,
        hedgerow.connect(url_of(tower)) as there,
    ):
        collecting = asyncio.create_task(collect(subscriber))
        count = 0
        async with asyncio.timeout(PATIENCE_S):
            while not received:  # until the subscription is known at both
                await there.publish("soil/first", b"", qos=1)
                await asyncio.sleep(0.02)
        for bus in (here, there):
            await bus.publish("soil/moisture", b"0", qos=1)
        await watch(url_of(tractor), "$SYS/broker/hot/moves", is_delegated)
        for number in range(1, 21):
            for bus in (here, there):
                await bus.publish("soil/moisture", b"%d" % number, qos=1)
                count += 1
        await until(lambda: len(numbers()) >= count + 2, "everything")
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
    assert numbers() == sorted(2 * [b"%d" % number for number in range(21)])


async def test_a_client_follows_its_topics_through_the_relay(hedgerow_node: StartNode) -> None:
    tower = start_fixed(hedgerow_node)
    hot = ("--hot-every", "50 ms", "--hot-share", "0", "--move-after", "0.1")
    tractor = start_mobile(hedgerow_node, tower, *hot, "--relay", "127.0.0.1:0")
    async with (
        hedgerow.connect(url_of(tractor), client_id="guest") as guest,
        guest.subscribe("soil", qos=1) as messages,
        hedgerow.connect(url_of(tractor)) as publisher,
    ):
        await publisher.publish("soil", b"0", qos=1)
        await until(
            lambda: "client guest connected from 127.0.0.1" in tower.log, "the guest at the fixed broker"
        )
        for number in range(1, 21):
            await publisher.publish("soil", b"%d" % number, qos=1)
        await publisher.publish("soil", b"end", qos=1)
        received: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            async for message in messages:
                received.append(message.payload)
                if message.payload == b"end":
                    break
    assert f"'guest' is sent to {relay_of(tractor)}" in tractor.log
    assert received == [*(b"%d" % number for number in range(21)), b"end"]


def test_sighup_moves_it_to_another_fixed_broker(hedgerow_node: StartNode, tmp_path: Path) -> None:
    tower, mill = start_fixed(hedgerow_node), start_fixed(hedgerow_node, "mill")
    listed = tmp_path / "fixed"
    listed.write_text(f"{url_of(tower)}\n")
    tractor = hedgerow_node("--id", "tractor", "--role", "mobile", *DOMAIN, "--fixed-file", str(listed))
    wait_until(lambda: "tower at" in tractor.log, "the first link")
    listed.write_text(f"{url_of(mill)}\n")
    assert tractor.process is not None
    tractor.process.send_signal(signal.SIGHUP)
    wait_until(lambda: f"mill at {url_of(mill)} supports this broker" in tractor.log, "the second link")
    wait_until(lambda: "client hedgerow-mobile-tractor disconnected" in tower.log, "the end of the first")


async def test_a_relay_is_printed_and_leads_to_the_fixed_broker(hedgerow_node: StartNode) -> None:
    tower = start_fixed(hedgerow_node)
    tractor = start_mobile(hedgerow_node, tower, "--relay", "127.0.0.1:0")
    port = int(relay_of(tractor).rpartition(":")[2])
    async with hedgerow.connect(url_of(tractor, port), client_id="guest"):
        wait_until(lambda: "client guest connected" in tower.log, "the guest")
    assert "client guest connected" not in tractor.log


async def test_any_node_shows_its_hot_topics(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--hot-topics", "--hot-every", "20 ms")
    async with hedgerow.connect(url_of(node)) as bus, bus.subscribe("busy"):
        await bus.publish("busy", b"", qos=1)
        assert await watch(url_of(node), "$SYS/broker/hot/scores", lambda told: "busy" in told["scores"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--role", "mobile"), "--role: which broker is to support it?"),
        (("--role", "fixed"), "set mobility.domain (--domain TOPIC)"),
        (("--role", "fixed", *DOMAIN, "--fixed", "mqtt://a"), "--fixed: a fixed broker names none"),
        (
            ("--role", "mobile", *DOMAIN, "--fixed", "mqtt://a", "--join", "mqtt://b"),
            "--join: a mobile broker",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(words: tuple[str, ...], error: str) -> None:
    command = [sys.executable, "-m", "hedgerow", "up", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_passes_is_warned_of(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--role", "fixed", *DOMAIN)
    wait_until(lambda: "this node has another name after each start" in node.log, "the warning")
