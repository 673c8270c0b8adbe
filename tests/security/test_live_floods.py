"""A real node under floods of clients: another client's PING is answered soon, and memory stays bounded.

Times are those of a machine that does other things as well.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedgerow.node.passwords import set_password
from tests.programs import ROOT, Node, run_node
from tests.security.floods import FLOODS, PING, connect

pytestmark = pytest.mark.soak

FLOOD_S = 10.0
MAX_PING_S = 0.05
MAX_RESIDENT = 400 * 1024 * 1024  # What is retained may take 256 MiB of it.


@contextmanager
def flooded(port: int, flood: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.security.floods", flood, str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
        assert process.poll() in (None, 0), "the flood failed"
    finally:
        process.kill()
        process.wait()


def ping_times(link: socket.socket, for_s: float) -> list[float]:
    times: list[float] = []
    end_at = time.monotonic() + for_s
    while time.monotonic() < end_at:
        begun_at = time.monotonic()
        link.sendall(PING)
        assert link.recv(2) == b"\xd0\0"
        times.append(time.monotonic() - begun_at)
        time.sleep(0.005)
    return times


def resident_bytes(node: Node) -> int:
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("flood", FLOODS)
def test_another_client_is_answered_soon_and_memory_stays_bounded(flood: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"correct horse", create=True)
    options = ("--limit", "connects_per_s=0", "--passwords", str(users), "--anonymous")
    with run_node(tmp_path, *options) as node, connect(node.port(), "other") as other:
        with flooded(node.port(), flood):
            times = sorted(ping_times(other, FLOOD_S))
        p99, resident = times[len(times) * 99 // 100], resident_bytes(node)
        found = f"{len(times)} answers, p99 {p99:.3f} s, last {times[-1]:.3f} s, {resident >> 20} MiB"
        print(flood, found)
        assert p99 <= MAX_PING_S, found
        assert resident < MAX_RESIDENT, found
