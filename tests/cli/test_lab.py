"""`hedgerow lab link`, as a process between two sockets, and what it says to wrong arguments."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from hedgerow import cli
from tests.programs import end
from tests.waiting import PATIENCE_S

LAST = 200


class LinkProgram:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        word, self.url, *_ = self.line().split()
        assert word == "listening"
        host, _, port = self.url.rpartition("/")[2].rpartition(":")
        self.address = (host, int(port))

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def stop(self, number: signal.Signals) -> tuple[str, str]:
        """What it says of both directions when it has ended."""
        self.process.send_signal(number)
        said = self.line(), self.line()
        self.process.wait(PATIENCE_S)  # a second signal would meet a program without handlers
        return said

    def signal(self, number: signal.Signals) -> str:
        """What it says when it has obeyed."""
        self.process.send_signal(number)
        return self.line()


@contextmanager
def run_link(target: socket.socket, *options: str) -> Iterator[LinkProgram]:
    """The program in front of `target`; it must end in order, and without complaint."""
    host, port = target.getsockname()
    command = [sys.executable, "-m", "hedgerow", "lab", "link", "127.0.0.1:0", f"{host}:{port}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield LinkProgram(process)
        finally:
            status = end(process)
        assert process.stderr is not None
        assert (status, process.stderr.read()) == (0, b"")


def test_connections_are_delayed_cut_and_restored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target, run_link(target, "--delay", "20ms") as link:
        assert link.url.startswith("tcp://127.0.0.1:")
        target.settimeout(PATIENCE_S)
        with socket.create_connection(link.address, PATIENCE_S) as client, target.accept()[0] as accepted:
            accepted.settimeout(PATIENCE_S)
            began_at = time.monotonic()
            client.sendall(b"ping")
            assert accepted.recv(10) == b"ping"
            accepted.sendall(b"pong")
            assert client.recv(10) == b"pong"
            assert time.monotonic() - began_at >= 0.04

            assert link.signal(signal.SIGUSR1) == "cut"
            client.sendall(b"held")
            accepted.settimeout(0.2)
            with pytest.raises(TimeoutError):
                accepted.recv(10)
            with pytest.raises(TimeoutError):
                socket.create_connection(link.address, 0.2)
            assert link.signal(signal.SIGUSR2) == "restored"
            accepted.settimeout(PATIENCE_S)
            assert accepted.recv(10) == b"held"
        assert link.stop(signal.SIGTERM) == (
            "forward: 8 bytes, 0 retransmitted",
            "backward: 4 bytes, 0 retransmitted",
        )


def test_datagrams_are_lost_and_the_same_ones_with_the_same_seed() -> None:
    arrived = [lose_half("--jitter=1ms", "--seed", seed) for seed in ("5", "5", "6")]
    assert arrived[0] == arrived[1] != arrived[2]
    assert all(20 < len(numbers) < 80 for numbers in arrived)


def lose_half(*options: str) -> list[int]:
    """Which of 100 datagrams passed."""
    with socket.socket(type=socket.SOCK_DGRAM) as target, socket.socket(type=socket.SOCK_DGRAM) as client:
        target.bind(("127.0.0.1", 0))
        target.settimeout(0.05)
        with run_link(target, "--udp", "--loss", "50%", *options) as link:
            assert link.url.startswith("udp://127.0.0.1:")
            for number in range(100):
                client.sendto(bytes([number]), link.address)
            passed: list[int] = []
            while LAST not in passed:  # their order is kept, so that nothing comes after it
                client.sendto(bytes([LAST]), link.address)
                with suppress(TimeoutError):
                    while True:
                        passed.append(target.recv(10)[0])
            forward, _ = link.stop(signal.SIGINT)
            _, count, unit, datagrams, _, dropped, _ = forward.split()
            assert (unit, count) == ("bytes,", datagrams)
            assert int(datagrams) == len(passed)
            assert int(dropped) >= 100 - len(passed)
    return [number for number in passed if number != LAST]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["127.0.0.1:0"], "link takes LISTEN and TARGET, not 1 words"),
        (["127.0.0.1", "127.0.0.1:1"], 'LISTEN: "127.0.0.1" is not "HOST:PORT"'),
        (["127.0.0.1:0", "off"], 'TARGET: "off" is not HOST:PORT'),
        (["127.0.0.1:0", "127.0.0.1:0"], "TARGET: 127.0.0.1:0 has no port to connect to"),
        (["127.0.0.1:0", "127.0.0.1:1", "--delay", "5 parsecs"], '--delay: "5 parsecs" is not a duration'),
        (["127.0.0.1:0", "127.0.0.1:1", "--loss", "0.05"], '--loss: "0.05" is not a share such as 5%'),
        (["127.0.0.1:0", "127.0.0.1:1", "--loss", "101%"], "--loss: 101 is not from 0 to 100"),
        (["127.0.0.1:0", "127.0.0.1:1", "--bandwidth", "fast"], '--bandwidth: "fast" is not a rate such as'),
    ],
)
def test_wrong_arguments_are_named(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "link", *words]) == 2
    assert capsys.readouterr().err.startswith(f"hedgerow lab: {reason}")


def test_a_port_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main(["lab", "link", address, "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == f"hedgerow lab: cannot listen on {address}: Address already in use\n"
