"""`hedgerow lab link`, as a process between two sockets, `hedgerow lab run`, and wrong arguments to both."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from hedgerow import cli
from hedgerow_workshop.lab import experiments
from hedgerow_workshop.lab.harness.experiment import Request, Result
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.harness.rows import Row
from tests.programs import end, wait_until
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
        (["127.0.0.1:0", "127.0.0.1:1", "--loss", "101%"], '--loss: "101%" is not a share from 0% to 100%'),
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


def run(*words: str) -> int:
    return cli.main(["lab", "run", *words])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "run takes the NAME of an experiment, not 0 words"),
        (["schmitt", "spohn"], "run takes the NAME of an experiment, not 2 words"),
        (["smith"], f'no experiment "smith"; there are {", ".join(experiments.EXPERIMENTS)}'),
        (["schmitt", "--storm-rate", "3"], "schmitt takes no --storm-rate"),
        (["schmitt", "--part", "line"], "schmitt takes no --part"),
        (
            ["morales", "--part", "line"],
            '--part: morales has no part "line"; there are farm, scenes, costs, traffic',
        ),
        (["storm", "--share", "2"], '--share: "2" is not a number from 0 to 1'),
        (["schmitt", "--broker", "emqx"], "no broker emqx; there are hedgerow, mosquitto"),
        (["schmitt", "--timeline", "/no/such.toml"], "timeline /no/such.toml: No such file or directory"),
        (["schmitt", "--json", "/no/such/x.json"], "--json /no/such/x.json: there is no such directory"),
    ],
)
def test_wrong_words_to_run_are_named(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err.startswith(f"hedgerow lab: {reason}")


class StandIn(ModuleType):
    def __init__(self, run: Callable[[Request], Result]) -> None:
        super().__init__("stand_in_experiment")
        self.run = run


def replace_schmitt(monkeypatch: pytest.MonkeyPatch, run: Callable[[Request], Result]) -> None:
    """By an experiment that does this."""
    monkeypatch.setitem(sys.modules, "stand_in_experiment", StandIn(run))
    monkeypatch.setitem(experiments.EXPERIMENTS, "schmitt", ("stand_in_experiment", "stands in"))


def test_rows_go_to_the_terminal_and_to_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Request] = []

    def run_it(request: Request) -> Result:
        asked.append(request)
        request.say("half of it")
        return Result([Row("loss/pure/qos0", "%", 0.5, 2.0)], ["Something was missing."])

    replace_schmitt(monkeypatch, run_it)
    file = tmp_path / "rows.json"
    assert run("schmitt", "--fast", "--broker", "mosquitto", "--json", str(file)) == 0
    assert (asked[0].fast, asked[0].broker, asked[0].out) == (True, "mosquitto", None)
    said = capsys.readouterr()
    assert said.err == "half of it\n"
    assert "loss/pure/qos0" in said.out
    assert "Something was missing." in said.out
    assert json.loads(file.read_text()) == {
        "rows": [{"name": "loss/pure/qos0", "unit": "%", "ours": 0.5, "published": 2.0}]
    }


def test_an_experiment_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: Request) -> Result:
        raise LabError("hedgerow pure kill: broker 3 ended by itself: out of luck")

    replace_schmitt(monkeypatch, fail)
    assert run("schmitt") == 1
    assert (
        capsys.readouterr().err == "hedgerow lab: hedgerow pure kill: broker 3 ended by itself: out of luck\n"
    )


def test_every_experiment_is_a_module_with_run() -> None:
    for module, _ in experiments.EXPERIMENTS.values():
        assert callable(import_module(module).run)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_everything(number: signal.Signals, status: int) -> None:
    """What the run leaves behind becomes a child of this process, and fails the test."""
    command = [sys.executable, "-m", "hedgerow", "lab", "run", "schmitt", "--fast"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as lab:
        wait_until(lambda: len(_descendants(lab.pid)) >= 12, "brokers of several runs")
        started = _descendants(lab.pid)
        lab.send_signal(number)
        lab.communicate(timeout=PATIENCE_S)
    assert lab.returncode == status
    wait_until(lambda: not any(_is_running(pid) for pid in started), "all of it to end")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
