"""The document's worked example, on one machine and on two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from hedgerow_workshop.programs import free_udp_port
from tests.conftest import StartNode
from tests.hosts import network
from tests.programs import ROOT
from tests.waiting import PATIENCE_S

EXAMPLE = [sys.executable, str(ROOT / "examples/vacuum_and_mop.py")]
QUICK = ["--work", "0.1", "--timeout", "20"]


def test_on_one_machine() -> None:
    url = f"multicast://lo:{free_udp_port()}?ip=4"
    done = subprocess.run(
        [*EXAMPLE, "--url", url, *QUICK], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    # Both write to one pipe, each in its own order.
    lines = done.stdout.decode().splitlines()
    robots = {robot: [line for line in lines if line.startswith(f"{robot}:")] for robot in ("vacuum", "mop")}
    assert robots["mop"][-2:] == ["mop: the vacuum has finished, mopping", "mop: the floor is clean"]
    assert robots["vacuum"][-1] == "vacuum: the floor is clean"


@pytest.mark.parametrize("first", ["vacuum", "mop"])
def test_on_two_machines_in_any_order(first: str) -> None:
    second = {"vacuum": "mop", "mop": "vacuum"}[first]
    with network(count=2) as net:
        robots = []
        for host, robot in zip(net.hosts, (first, second), strict=True):
            robots.append(host.run([*EXAMPLE, robot, *QUICK], stdout=subprocess.PIPE))
            output = robots[-1].stdout
            assert output is not None
            assert output.readline()  # It is at work.
        assert [robot.wait(PATIENCE_S) for robot in robots] == [0, 0]


def test_over_a_broker(hedgerow_node: StartNode) -> None:
    url = hedgerow_node().urls["mqtt"]
    for _ in range(2):  # The second time the broker still knows whatever the first left behind.
        done = subprocess.run(
            [*EXAMPLE, "--url", url, *QUICK], capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr


def test_alone_it_gives_up_and_says_so() -> None:
    url = f"multicast://lo:{free_udp_port()}?ip=4"
    command = [*EXAMPLE, "mop", "--url", url, "--timeout", "0.5"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert b"mop: nobody answered within 0.5 s" in done.stderr


def test_a_line_is_written_in_one_piece() -> None:
    """Each write is a datagram here, so that one without the end of its line shows."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        command = [*EXAMPLE, "mop", "--url", "nonsense"]
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
        subprocess.run(command, stderr=theirs.fileno(), env=unbuffered, timeout=PATIENCE_S, check=False)
        ours.setblocking(False)
        written = ours.recv(10_000)
        assert written.startswith(b'mop: "nonsense" is not a URL')
        assert written.endswith(b"\n")
