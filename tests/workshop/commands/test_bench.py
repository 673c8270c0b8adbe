"""`hedgerow bench` from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.cli import main
from tests.programs import ALONE, IGNORING_SIGNALS, wait_until
from tests.workshop.bench.test_peers import wait_until_gone


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    arguments = ["--quick", "--only", "latency-1-p50", "--peers", "ceiling", "--json", str(file)]
    assert main(["bench", "broker", *arguments]) == 0
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert row.keys() == {"name", "unit", "better", "ours", "peers", "ratio"}
    assert row["ratio"]["ceiling"] == row["ours"] / row["peers"]["ceiling"]
    assert document.keys() == {"rows", "versions", "machine", "busy", "notes"}
    assert "latency-1-p50" in capsys.readouterr().out


def test_wrong_names_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "broker", "--only", "qos9"]) == 2
    assert "no row qos9; there are qos0-1to1" in capsys.readouterr().err
    assert main(["bench", "brokers"]) == 2
    assert main(["bench", "broker", "--json", "/no/such/directory/x.json"]) == 2
    assert "there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "status", "wrapper"),
    [(signal.SIGINT, 130, ALONE), (signal.SIGINT, 130, IGNORING_SIGNALS), (signal.SIGTERM, 143, ALONE)],
)
def test_a_signal_ends_the_brokers_too(number: signal.Signals, status: int, wrapper: tuple[str, ...]) -> None:
    arguments = ["bench", "broker", "--only", "qos0-1to1", "--peers", "ceiling"]
    command = [*wrapper, sys.executable, "-m", "hedgerow", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as bench:
        children = wait_for_children(bench.pid, 2)
        bench.send_signal(number)
        bench.communicate(timeout=20)
    assert bench.returncode == status
    for pid in children:
        wait_until_gone(pid)


def wait_for_children(pid: int, count: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: len(children.read_text().split()) >= count, f"{count} children of {pid}")
    return [int(each) for each in children.read_text().split()]
