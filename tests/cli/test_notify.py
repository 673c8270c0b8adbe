"""What a service manager hears of a node, on a socket as systemd has it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hedgerow.cli import EXIT_USAGE
from hedgerow.cli.notify import ServiceManager
from tests.conftest import StartNode
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_S)
        yield listening


def heard(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_node_says_when_it_serves_and_when_it_stops(
    manager: socket.socket, hedgerow_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    node = hedgerow_node("--id", "barn")
    assert heard(manager) == {"READY": "1", "STATUS": "node barn is up"}
    # And it goes on living.
    assert [heard(manager) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    node.stop()
    told = heard(manager)
    while told == {"WATCHDOG": "1"}:
        told = heard(manager)
    assert told == {"STOPPING": "1", "STATUS": "stopping"}


def test_a_node_that_cannot_start_says_nothing(manager: socket.socket, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hedgerow", "up", "--config", str(tmp_path / "missing.toml")]
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == EXIT_USAGE  # with which the unit is not started again
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


async def test_a_loop_that_is_stuck_is_silent(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"}
    service = ServiceManager(environment)
    service.ready("up")
    assert heard(manager)["READY"] == "1"
    assert heard(manager) == {"WATCHDOG": "1"}
    manager.setblocking(False)
    manager.settimeout(0.1)  # This very wait is what holds up the loop.
    with pytest.raises(TimeoutError):
        manager.recv(4096)
    manager.setblocking(False)
    told: list[bytes] = []

    def listen() -> bool:
        with suppress(BlockingIOError):
            told.append(manager.recv(4096))
        return bool(told)

    await until(listen, "the loop to turn again")
    service.stopping()


async def test_abstract_sockets_are_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0hedgerow-test-{os.getpid()}")
        listening.settimeout(PATIENCE_S)
        ServiceManager({"NOTIFY_SOCKET": f"@hedgerow-test-{os.getpid()}"}).ready("up")
        assert heard(listening)["READY"] == "1"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "many"},
        {"WATCHDOG_USEC": "1000"},
    ],
)
async def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    service = ServiceManager(environment)
    service.ready("up")
    await asyncio.sleep(0)
    service.stopping()


async def test_a_watchdog_of_another_process_is_not_ours(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}
    service = ServiceManager(environment)
    service.ready("up")
    service.stopping()
    assert [heard(manager).keys() for _ in range(2)] == [{"READY", "STATUS"}, {"STOPPING", "STATUS"}]
