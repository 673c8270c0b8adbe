"""`hedgerow federate`, as its user and the system's service manager see it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from hedgerow_workshop.programs import free_port
from tests.cli.serving import Serving
from tests.conftest import StartNode
from tests.programs import wait_until
from tests.waiting import PATIENCE_S

StartSidecar = Callable[..., Serving]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[StartSidecar]:
    with ExitStack() as running:

        def start(*arguments: str) -> Serving:
            started = Serving(tmp_path, "federate", *arguments)
            running.callback(started.end)
            started.wait()
            return started

        yield start


def refuse(*arguments: str, cwd: Path) -> str:
    """The line in which a command is refused; an example may follow."""
    command = [sys.executable, "-m", "hedgerow", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    line, *example = ended.stderr.splitlines()
    assert not example or example[0].startswith("for example: hedgerow ")
    return line


def test_it_says_what_it_stands_beside_and_whom_it_links_to(sidecar: StartSidecar) -> None:
    home, house, barn = free_port(), free_port(), free_port()
    links = ("--neighbour", f"mqtt://127.0.0.1:{house}", "--join", f"mqtt://u:pw@127.0.0.1:{barn}")
    running = sidecar("--broker", f"mqtt://me:secret@127.0.0.1:{home}", "--id", "field", *links)
    assert running.output == (
        f"federating mqtt://127.0.0.1:{home} as field "
        f"with mqtt://127.0.0.1:{house}, whom mqtt://127.0.0.1:{barn} knows\n"
    )
    wait_until(lambda: "node field is up" in running.log, "the log")
    assert "secret" not in running.log
    assert "another name after each start" not in running.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_broker_it_goes_on_and_a_signal_stops_it(
    sidecar: StartSidecar, number: signal.Signals
) -> None:
    port = free_port()
    running = sidecar("--broker", f"mqtt://127.0.0.1:{port}")
    assert running.output.endswith(" with whoever links to it\n")
    why = f"cannot connect to the broker at 127.0.0.1:{port} (--broker): connection refused"
    wait_until(lambda: why in running.log, "why there is no link")
    wait_until(lambda: "another name after each start" in running.log, "the warning")
    running.process.send_signal(number)
    assert running.process.wait(15) == 0
    assert running.log.splitlines()[-1].endswith("has stopped")


def test_it_serves_metrics_and_nothing_else_when_asked(sidecar: StartSidecar, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(
        f'id = "field"\nhttp = "127.0.0.1:0"\nfederation.broker = "mqtt://127.0.0.1:{free_port()}"\n'
    )
    running = sidecar("--config", "federation.toml")
    wait_until(lambda: running.output.count("\n") == 3, "all lines")
    _, listening, dashboard = running.output.splitlines()
    assert listening.startswith("listening http://127.0.0.1:")
    assert dashboard == listening.replace("listening", "dashboard")
    with urlopen(f"{listening.split()[1]}/health") as answer:
        assert answer.status == 200


def test_sighup_does_not_end_it(sidecar: StartSidecar, tmp_path: Path) -> None:
    (tmp_path / "neighbours").touch()
    running = sidecar("--broker", f"mqtt://127.0.0.1:{free_port()}", "--neighbours", "neighbours")
    os.kill(running.process.pid, signal.SIGHUP)
    wait_until(lambda: "reloaded" in running.log, "the reload")
    assert running.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "federation.broker: which broker is it to stand beside? (--broker URL)"),
        (["--broker", "localhost:1883"], '--broker: "localhost:1883" is not a URL such as mqtt://'),
        (
            ["--broker", "mqtt://a", "--neighbour", "mqtt://a"],
            "--neighbour: mqtt://a:1883 is the broker that th",
        ),
        (
            ["--broker", "mqtt://a", "--federation-key", "short"],
            "--federation-key: short: a key has 16 to 64 by",
        ),
        (["--broker", "mqtt://a", "--assume", "a#"], "--assume: "),
        (["--broker", "mqtt://a", "mqtt://b"], 'what is "mqtt://b"? There are options alone'),
    ],
)
def test_what_can_never_work_is_one_line_and_a_status(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("short")
    assert refuse("federate", *arguments, cwd=tmp_path).startswith(f"hedgerow federate: {line}")


@pytest.mark.parametrize("federates", [True, False])
def test_beside_a_node_of_ours_it_says_once_what_to_do_instead_and_ends(
    hedgerow_node: StartNode, tmp_path: Path, federates: bool
) -> None:
    neighbour = ["--neighbour", f"mqtt://127.0.0.1:{free_port()}"] if federates else []
    node = hedgerow_node("--id", "barn", *neighbour)
    url = node.urls["mqtt"]
    beside = Serving(tmp_path, "federate", "--broker", url, "--id", "field")
    try:
        assert beside.process.wait(PATIENCE_S) == 2
    finally:
        beside.end()
    last = beside.log.splitlines()[-1]
    assert last == (
        f"hedgerow federate: {url} is the Hedgerow node barn, which federates itself:"
        " start it by `hedgerow up --id barn --neighbour URL`, and nothing beside it"
    )
    assert beside.log.count("which federates itself") == 1
    assert "has stopped" in beside.log
    wait_until(lambda: node.log.count("a federator beside a node, which federates itself") == 1, "the log")


def test_up_takes_the_options_of_federation_but_stands_beside_nobody(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    node = hedgerow_node("--neighbour", f"mqtt://127.0.0.1:{free_port()}", "--redundancy", "3")
    wait_until(lambda: "another name after each start" in node.log, "the warning")
    (tmp_path / "node.toml").write_text("federation.broker = 'mqtt://a'\n")
    line = refuse("up", "--config", "node.toml", cwd=tmp_path)
    assert line == "hedgerow up: node.toml:1: federation.broker: is no key of hedgerow up"


def test_secrets_that_others_can_read_are_named_in_the_log(sidecar: StartSidecar, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("00" * 32)
    key.chmod(0o644)
    running = sidecar("--broker", f"mqtt://127.0.0.1:{free_port()}", "--federation-key", "key")
    wait_until(lambda: "chmod 600 key" in running.log, "the warning")
