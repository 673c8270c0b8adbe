"""`hedgerow up`, as its user and the system's service manager see it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hedgerow.cli import up
from hedgerow.node.passwords import set_password
from tests.conftest import StartNode
from tests.node.certificates import Authority
from tests.programs import ALONE, IGNORING_SIGNALS, Node, processor_s, run_node, wait_until
from tests.waiting import PATIENCE_S

# Generous, for machines that run other tests beside this one. Alone it takes 0.2 s and 31 MiB.
READY_S = 1.5  # of processor time
IDLE_BYTES = 64 * 1024 * 1024

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c"
ACCEPTED = b"\x20\x02\x00\x00"


@pytest.fixture
def hedgerow_node(tmp_path: Path) -> Iterator[StartNode]:
    """The whole program, from its first import on: here it is what is tested."""
    with ExitStack() as running:

        def start(*arguments: str) -> Node:
            return running.enter_context(run_node(tmp_path, *arguments, wrapper=ALONE))

        yield start


def talk(port: int, data: bytes = CONNECT) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(data)
        return client.recv(100)


def test_it_prints_a_line_for_each_url_when_it_is_ready(hedgerow_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    addresses = [word for scheme in Node.SCHEMES for word in (f"--{scheme}", "127.0.0.1:0")]
    node = hedgerow_node(*addresses, "--certificate", str(certificate), "--key", str(key), "--id", "barn")
    assert node.process is not None
    assert processor_s(node.process.pid) < READY_S
    lines = [line for line in node.log.splitlines() if line.startswith("listening")]
    for line, scheme in zip(lines, Node.SCHEMES, strict=True):
        assert re.fullmatch(rf"listening {scheme}://127\.0\.0\.1:\d+", line)
    assert talk(node.port()) == ACCEPTED
    assert talk(node.port("http"), b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    wait_until(lambda: "node barn is up" in node.log, "the log to name the node")


@pytest.mark.parametrize(
    ("urls", "shown"),
    [
        (["mqtt://127.0.0.1:1", "http://127.0.0.1:2", "http://[::1]:2"], "http://localhost:2"),
        (["http://127.0.0.1:2", "http://127.0.0.1:3"], "http://127.0.0.1:2"),
        (["http://0.0.0.0:2"], "http://localhost:2"),
        (["https://[::]:2"], "https://localhost:2"),
        (["http://10.0.0.2:2", "http://[::1]:2"], "http://10.0.0.2:2"),
        (["mqtt://127.0.0.1:1"], None),
    ],
)
def test_one_address_of_the_dashboard_is_for_people(urls: list[str], shown: str | None) -> None:
    assert up.local_dashboard_url(urls) == shown


def test_it_says_where_the_dashboard_is_if_there_is_one(hedgerow_node: StartNode) -> None:
    http = ("--http", "127.0.0.1:0")
    shows = hedgerow_node(*http)
    wait_until(lambda: f"\ndashboard {shows.urls['http']}\n" in shows.log, "the line")
    counts = hedgerow_node(*http, "--no-dashboard")
    wait_until(lambda: "is up" in counts.log, "its start")
    assert "dashboard http" not in counts.log


def test_an_idle_node_is_small(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--ws", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert node.process is not None
    pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < IDLE_BYTES


def test_what_no_listener_needs_is_not_loaded(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    assert node.process is not None
    maps = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert "websockets" not in maps
    assert "sqlite3" not in maps


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_both_loops_serve_and_stop(hedgerow_node: StartNode, loop: str) -> None:
    node = hedgerow_node("--loop", loop)
    assert talk(node.port()) == ACCEPTED
    node.stop()
    assert "has stopped" in node.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(hedgerow_node: StartNode, number: signal.Signals) -> None:
    node = hedgerow_node()
    process, node.process = node.process, None
    assert process is not None
    with socket.create_connection(("127.0.0.1", node.port()), timeout=10) as client:
        client.sendall(CONNECT)
        assert client.recv(4) == ACCEPTED
        process.send_signal(number)
        assert client.recv(1) == b""  # MQTT 3.1.1 has no words for goodbye
    assert process.wait(10) == 0
    assert node.log.splitlines()[-1].endswith("has stopped")


def test_signals_that_were_inherited_as_ignored_mean_the_same(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"old", iterations=1000, create=True)
    with run_node(tmp_path, "--passwords", str(users), wrapper=IGNORING_SIGNALS) as node:
        process = node.process
        assert process is not None
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in node.log, "the reload")
        process.send_signal(signal.SIGINT)
        node.process = None
        assert process.wait(PATIENCE_S) == 0
    assert node.log.splitlines()[-1].endswith("has stopped")


def test_a_second_signal_stops_it_at_once(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    process, node.process = node.process, None
    assert process is not None
    # A client that never closes makes the orderly stop take its two seconds.
    with socket.create_connection(("127.0.0.1", node.port()), timeout=10) as client:
        client.sendall(CONNECT)
        assert client.recv(4) == ACCEPTED

        def ends_when_asked_again() -> bool:
            process.terminate()
            return process.poll() is not None

        wait_until(ends_when_asked_again, "its end")
    assert process.returncode == 1
    assert "second signal" in node.log


def test_sighup_reads_the_passwords_again(hedgerow_node: StartNode, tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"old", iterations=1000, create=True)
    node = hedgerow_node("--passwords", str(users))
    assert node.process is not None

    def login(password: bytes) -> bytes:
        body = (
            b"\x00\x04MQTT\x04\xc2\x00\x00\x00\x01c\x00\x03ada" + len(password).to_bytes(2, "big") + password
        )
        return talk(node.port(), b"\x10" + bytes([len(body)]) + body)

    assert login(b"old") == ACCEPTED
    set_password(users, "ada", b"new", iterations=1000)
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reloaded" in node.log, "the reload")
    assert login(b"new") == ACCEPTED
    assert login(b"old") != ACCEPTED
    users.write_text("nonsense\n")
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "nothing reloaded" in node.log, "the refusal")
    assert login(b"new") == ACCEPTED


def test_sighup_during_the_start_is_ignored(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hedgerow",
        "up",
        "--mqtt",
        "127.0.0.1:0",
        "--ws",
        "off",
        "--http",
        "off",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)

    def ignores_it() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        return process.poll() is not None or bool(int(ignored, 16) & 1 << signal.SIGHUP - 1)

    try:
        wait_until(ignores_it, "the node to begin")
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening mqtt://")
    finally:
        process.terminate()
        assert process.communicate(timeout=10)[0] == b""
    assert process.returncode == 0


@pytest.mark.parametrize("command", [("up",), ("federate",), ("dash",), ("bridge", "new")])
def test_a_configuration_that_nobody_writes_is_not_waited_for(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    given = (str(fifo),) if command[0] == "bridge" else ("--config", str(fifo))
    words = [sys.executable, "-m", "hedgerow", *command, *given]
    told = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert told.returncode == 2
    assert f"{fifo}: cannot be read: not a regular file" in told.stderr


def test_the_file_limit_is_raised(hedgerow_node: StartNode) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        node = hedgerow_node()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert node.process is not None
    assert resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_the_log_is_json_on_request(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--log-format", "json")
    talk(node.port())
    wait_until(lambda: "client_connected" in node.log, "the connection to be logged")
    lines = [json.loads(line) for line in node.log.splitlines() if line.startswith("{")]
    (event,) = [line for line in lines if line["event"] == "client_connected"]
    assert event["fields"]["client_id"] == "c"
    assert event["fields"]["transport"] == "mqtt"


PORT = 'mqtt = "127.0.0.1:{port}"\nws = "off"\nhttp = "off"\n'


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ('log.format = "json"\nnonsense = 1\n', "nonsense: there is no such key"),
        ('[log]\nformat = "json"\n[log\n', "node.toml:3"),
        (f'{PORT}[log]\nformat = "json"\n', "the port is in use"),
        ("", "anyone who reaches this machine could connect"),
    ],
    ids=["a key", "no TOML", "a port", "a flag"],
)
def test_a_log_in_json_is_so_from_the_first_line(file: str, why: str, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    words = ["--config", str(config)] if file else ["--log-format", "json", "--mqtt", "192.0.2.1:1"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(file.replace("{port}", str(taken.getsockname()[1])))
        command = [sys.executable, "-m", "hedgerow", "up", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert lines[-1]["level"] == "error"
    assert why in lines[-1]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mqtt", "127.0.0.1:{taken}"], ["mqtt", "127.0.0.1:{taken}", "in use"]),
        (["--mqtt", "192.0.2.1:1883", "--anonymous"], ["mqtt", "192.0.2.1:1883"]),
        (["--mqtt", "0.0.0.0:0"], ["--mqtt", "without a name"]),
        (["--mqtt", "nonsense"], ["--mqtt", "nonsense"]),
        (["--data", "/dev/null"], ["--data", "/dev/null"]),
        (["--multicast", "home/#", "farm/#"], ["up: farm/#: give each filter its own --multicast"]),
        (["farm/#", "--log-level", "info"], ['up: what is "farm/#"? There are options alone']),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_status(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        arguments = [argument.format(taken=taken) for argument in arguments]
        command = [sys.executable, "-m", "hedgerow", "up", "--ws", "off", "--http", "off", *arguments]
        if "--mqtt" not in arguments:
            command += ["--mqtt", "127.0.0.1:0"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    line, *example = ended.stderr.splitlines()
    assert line.startswith("hedgerow up: ")
    assert not example or example[0].startswith("for example: hedgerow up ")
    for word in words:
        assert word.format(taken=taken) in line
