"""Bridges between Mosquittos, carried by a process of ours: messages pass, and nothing outlives its agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from hedgerow.agent.io import bridge_process
from hedgerow.agent.io.broker_list import read_words
from hedgerow.agent.io.drivers import DriverContext, WatchedBroker
from hedgerow.agent.io.events import BridgeProcessEnded
from hedgerow.agent.io.process_driver import ASK_S, ProcessDriver, node_id_between
from hedgerow.agent.io.sections import DEFAULT_TOPICS, BridgeSettings
from hedgerow.client.connect import connect
from hedgerow.message import Message
from tests.conftest import StartMosquitto
from tests.waiting import take, until


class Scene:
    def __init__(self, ports: list[int], data: Path | None) -> None:
        self.events: list[object] = []
        self.changed: set[str] = set()
        context = DriverContext(BridgeSettings(), data, self.events.append, self.changed.add)
        self.driver = ProcessDriver(context)
        entries = read_words(f"{number}=127.0.0.1:{port}" for number, port in enumerate(ports, 1))
        self.one, self.two = [WatchedBroker(entry, Mock(), "mosquitto", (2, 0)) for entry in entries]

    @property
    def is_up(self) -> bool:
        state = self.driver.bridges(self.one).get("2")
        other = self.driver.bridges(self.two).get("1")
        assert (state is None) is (other is None)
        return state is not None and state.is_up

    @property
    def process(self) -> int:
        process = self.driver.process
        assert process is not None
        return process.pid


@asynccontextmanager
async def carrying(
    mosquitto: StartMosquitto, data: Path | None = None, ask_s: float = ASK_S
) -> AsyncIterator[Scene]:
    scene = Scene([mosquitto(), mosquitto()], data)
    scene.driver.ask_s = ask_s
    try:
        scene.driver.prepare(scene.one)
        scene.driver.prepare(scene.two)
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        await until(lambda: scene.is_up, "the bridge to be up")
        yield scene
    finally:
        await scene.driver.stop()


async def test_messages_pass_both_ways(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    async with (
        carrying(mosquitto, tmp_path) as scene,
        connect(str(scene.one.entry.address)) as one,
        connect(str(scene.two.entry.address)) as two,
        one.subscribe("to/one/#", qos=1) as at_one,
        two.subscribe("to/two/#", qos=1) as at_two,
    ):
        await one.publish("to/two/x", b"there", qos=1)
        await two.publish("to/one/x", b"back", qos=1)
        assert [message.payload for message in await take(at_two, 1)] == [b"there"]
        assert [message.payload for message in await take(at_one, 1)] == [b"back"]
        assert scene.changed == {"1", "2"}
        assert (tmp_path / node_id_between("1", "2")).is_dir()


async def test_a_deleted_bridge_is_gone_and_can_be_made_again(mosquitto: StartMosquitto) -> None:
    async with carrying(mosquitto) as scene:
        scene.driver.delete(scene.two, "1")
        assert scene.driver.bridges(scene.one) == {}
        scene.driver.create(scene.two, scene.one, DEFAULT_TOPICS)
        await until(lambda: scene.is_up, "the bridge to be up again")


async def test_a_broker_that_has_moved_is_followed(mosquitto: StartMosquitto) -> None:
    async with carrying(mosquitto) as scene:
        (scene.two.entry,) = read_words([f"2=127.0.0.1:{mosquitto()}"])
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        await until(lambda: scene.is_up, "the bridge to the new place")
        async with (
            connect(str(scene.one.entry.address)) as one,
            connect(str(scene.two.entry.address)) as two,
            two.subscribe("x", qos=1) as at_two,
        ):
            await one.publish("x", b"there", qos=1)
            assert [message.payload for message in await take(at_two, 1)] == [b"there"]


async def test_who_stands_by_carries_nothing(mosquitto: StartMosquitto) -> None:
    async with carrying(mosquitto) as scene:
        scene.driver.stand_by()
        assert scene.driver.bridges(scene.one) == scene.driver.bridges(scene.two) == {}


async def test_after_its_process_has_ended_the_bridge_is_told_gone_and_made_anew(
    mosquitto: StartMosquitto,
) -> None:
    async with carrying(mosquitto) as scene:
        scene.changed.clear()
        os.kill(scene.process, signal.SIGKILL)
        await until(lambda: scene.driver.bridges(scene.one) == {}, "the end to be noticed")
        assert scene.events == [BridgeProcessEnded(f"status {-signal.SIGKILL}")]
        assert scene.changed == {"1", "2"}
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        await until(lambda: scene.is_up, "the bridge to be up again")


async def test_a_process_that_hangs_is_ended_and_its_bridges_are_told_gone(mosquitto: StartMosquitto) -> None:
    async with carrying(mosquitto, ask_s=0.5) as scene:
        os.kill(scene.process, signal.SIGSTOP)
        await until(lambda: scene.driver.bridges(scene.one) == {}, "it to be noticed")
        assert scene.events == [BridgeProcessEnded(f"status {-signal.SIGKILL}")]


async def test_a_process_that_cannot_be_started_is_started_when_it_can(
    mosquitto: StartMosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene([mosquitto(), mosquitto()], None)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        await until(lambda: scene.driver.bridges(scene.one) == {}, "the failure to be told")
    assert scene.events == [BridgeProcessEnded("No such file or directory")]
    try:
        scene.driver.create(scene.one, scene.two, DEFAULT_TOPICS)
        await until(lambda: scene.is_up, "the bridge to be up")
    finally:
        await scene.driver.stop()


async def test_the_process_ends_with_its_input(mosquitto: StartMosquitto) -> None:
    """As when the agent is killed: the pipe ends, and nobody is left to send a signal."""
    async with carrying(mosquitto) as scene:
        process = scene.driver.process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(10):
            assert await process.wait() == 0


def test_counters_alone_are_not_told() -> None:
    said: list[dict[str, object]] = []
    bridge = bridge_process.NodeBetween("carrier.a.b", None, said.append)
    states: list[dict[str, object]] = [
        {"state": "up", "queued": 0},
        {"state": "up", "queued": 5},
        {"state": "waiting", "queued": 5},
    ]
    for payload in (*(json.dumps(state).encode() for state in states), b"", b""):
        bridge.deliver(Message("$SYS/broker/bridge/agent.a/state", payload))
    assert [line["state"] for line in said[:3]] == [states[0], states[2], None]


def test_a_pair_has_one_name() -> None:
    assert node_id_between("b", "a") == node_id_between("a", "b") == "carrier.a.b"
    names = {node_id_between("a.b", "c"), node_id_between("a", "b.c"), node_id_between("x" * 64, "y" * 64)}
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)
