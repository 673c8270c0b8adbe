"""Bridges as files of a Mosquitto's configuration: written whole, told by SIGHUP, taken by a Mosquitto."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hedgerow.agent.io.broker_list import read_words
from hedgerow.agent.io.drivers import BridgeState, DriverContext, WatchedBroker, choose_driver, read_version
from hedgerow.agent.io.events import CommandRefused
from hedgerow.agent.io.mosquitto import MosquittoDriver, find_process
from hedgerow.agent.io.sections import DEFAULT_TOPICS, BridgeSettings
from hedgerow.agent.io.table import make_drivers
from hedgerow.client.connect import connect
from hedgerow.errors import ConfigError
from tests.programs import run_mosquitto, wait_until
from tests.waiting import PATIENCE_S

COUNTER = """
import signal, sys
def count(*_): print("reloaded", flush=True)
signal.signal(signal.SIGHUP, count)
print("ready", flush=True)
while True: signal.pause()
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process that looks like Mosquitto and writes down each SIGHUP: its number, and where it writes."""
    script, log = tmp_path / "mosquitto.py", tmp_path / "signals"
    script.write_text(COUNTER)
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, str(script)], stdout=output)
    wait_until(lambda: log.read_text() == "ready\n", "the process to be ready")
    yield process.pid, log
    process.kill()
    process.wait()


class Scene:
    def __init__(self, folder: Path, pid: int | None) -> None:
        self.events: list[object] = []
        self.changed: list[str] = []
        self.folder = folder / "conf.d"
        self.folder.mkdir()
        context = DriverContext(BridgeSettings(), None, self.events.append, self.changed.append)
        self.driver = MosquittoDriver(context)
        near, far = read_words(["near=127.0.0.1:1", "far=mqtt://user:pass@127.0.0.1:2"])
        near = replace(near, config_dir=self.folder, pid=pid, pidfile=folder / "pid")
        self.near = WatchedBroker(near, Mock(), "mosquitto", (2, 1))
        self.far = WatchedBroker(far, Mock(), "mosquitto", (2, 0))

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


async def test_created_reloaded_up_and_deleted(tmp_path: Path, counting: tuple[int, Path]) -> None:
    pid, log = counting
    scene = Scene(tmp_path, pid)
    driver, near, far = scene.driver, scene.near, scene.far
    assert driver.can_carry(near)
    driver.create(near, far, DEFAULT_TOPICS)
    driver.create(near, far, DEFAULT_TOPICS)
    assert scene.files == ["hedgerow-agent-far.conf"]
    path = scene.folder / "hedgerow-agent-far.conf"
    assert path.stat().st_mode & 0o777 == 0o640
    assert "remote_password pass\n" in path.read_text()
    assert driver.bridges(near) == {"far": BridgeState(False, "not connected")}
    await asyncio.sleep(0)  # the turn ends, and both calls come to one signal
    assert scene.changed == ["near"]
    await asyncio.to_thread(wait_until, lambda: log.read_text().count("reloaded") == 1, "a reload")
    assert driver.receive_system(near, "$SYS/broker/connection/near.agent.far/state", b"1")
    assert driver.bridges(near) == {"far": BridgeState(True)}
    assert not driver.receive_system(near, "$SYS/broker/connection/other.agent.far/state", b"0")
    driver.delete(near, "far")
    assert (scene.files, driver.bridges(near)) == ([], {})
    await asyncio.sleep(0)
    await asyncio.to_thread(wait_until, lambda: log.read_text().count("reloaded") == 2, "another reload")
    assert scene.events == []


async def test_a_number_that_is_no_mosquitto_gets_no_signal(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        scene = Scene(tmp_path, bystander.pid)
        scene.driver.create(scene.near, scene.far, DEFAULT_TOPICS)
        await scene.driver.stop()
        refused = f"not reloaded: process {bystander.pid} is not Mosquitto"
        assert scene.events == [CommandRefused("near", "any", refused)]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_process_of_a_pid_file(tmp_path: Path, counting: tuple[int, Path]) -> None:
    scene = Scene(tmp_path, None)
    with pytest.raises(OSError, match="No such file"):
        find_process(scene.near.entry)
    for text in (b"what?\n", b"\xff\xfe", b"1", b"9" * 20):
        (tmp_path / "pid").write_bytes(text)
        with pytest.raises(ConfigError, match="holds no number of a process"):
            find_process(scene.near.entry)
    (tmp_path / "pid").write_text(f"{counting[0]}\n")
    assert find_process(scene.near.entry) == counting[0]


def test_who_carries(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 2)
    context = DriverContext(BridgeSettings(), None, scene.events.append, scene.changed.append)
    drivers = make_drivers(context)
    old, new, node = scene.far, scene.near, WatchedBroker(scene.far.entry, Mock(), "hedgerow", (0, 1))
    nobody = WatchedBroker(scene.far.entry, Mock(), "", (0, 0))

    def chosen(near: WatchedBroker, far: WatchedBroker) -> tuple[str, WatchedBroker]:
        driver, carrier, _ = choose_driver(drivers, near, far)
        return driver.name, carrier

    assert chosen(node, new) == ("hedgerow", node)
    assert chosen(old, node) == ("hedgerow", node)
    assert chosen(old, new) == ("mosquitto", new)
    assert chosen(old, nobody) == ("agent", old)
    scene.folder.rmdir()
    assert chosen(old, new) == ("agent", old)


def test_versions() -> None:
    assert read_version("mosquitto version 2.0.11") == ("mosquitto", (2, 0))
    assert read_version("hedgerow version 0.1.0") == ("hedgerow", (0, 1))
    assert read_version("EMQX 5.8.6") == ("emqx", (5, 8))
    assert read_version("something") == ("something", (0, 0))
    assert read_version("\x00 2.0") is None


async def test_what_is_written_is_taken_by_a_mosquitto(tmp_path: Path, counting: tuple[int, Path]) -> None:
    """2.0 is what is here: its words are a part of those of 2.1, and so is what it says of its bridges."""
    for folder in ("far", "near"):
        (tmp_path / folder).mkdir()
    with run_mosquitto(tmp_path / "far") as far_port:
        scene = Scene(tmp_path, counting[0])
        scene.near.version = (2, 0)
        (entry,) = read_words([f"far=127.0.0.1:{far_port}"])
        scene.driver.create(scene.near, WatchedBroker(entry, Mock()), DEFAULT_TOPICS)
        scene.near.version = (2, 1)
        with run_mosquitto(tmp_path / "near", f"include_dir {scene.folder}") as near_port:
            async with (
                asyncio.timeout(PATIENCE_S),
                connect(f"mqtt://127.0.0.1:{near_port}") as bus,
                bus.subscribe("$SYS/broker/connection/+/state") as states,
            ):
                async for message in states:
                    scene.driver.receive_system(scene.near, message.topic, message.payload)
                    if scene.driver.bridges(scene.near) == {"far": BridgeState(True)}:
                        break
