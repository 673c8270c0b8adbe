"""Commands that are forked run, speak and end as those that have an interpreter of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hedgerow import cli
from tests.forks import start_hedgerow
from tests.programs import Node
from tests.waiting import PATIENCE_S


def run(directory: Path, *words: str) -> tuple[int, str, str]:
    output, errors = directory / "output", directory / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = start_hedgerow(list(words), stdout=stdout, stderr=stderr, cwd=directory)
    return process.wait(PATIENCE_S), output.read_text(), errors.read_text()


def test_what_is_printed_and_the_status(tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, "--version")
    assert (status, output.split()[0], errors) == (0, "hedgerow", "")
    status, output, errors = run(tmp_path, "xyz")
    assert (status, output) == (cli.EXIT_USAGE, "")
    assert errors.startswith("hedgerow: ")


def test_it_is_a_child_of_this_process_in_its_own_directory(tmp_path: Path) -> None:
    node = Node(tmp_path, "--data", "data")
    node.start()
    try:
        assert node.process is not None
        assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{node.process.pid}/status").read_text()
        assert (tmp_path / "data").is_dir()
    finally:
        node.stop()


def test_it_has_the_environment_of_this_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS says how wide help is."""
    lengths = []
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", f"{columns}")
        lengths.append(run(tmp_path, "up", "--help")[1].count("\n"))
    assert lengths[0] > lengths[1] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_its_end_is_heard_of(tmp_path: Path, number: signal.Signals) -> None:
    node = Node(tmp_path)
    node.start()
    assert node.process is not None
    assert node.process.poll() is None
    node.process.send_signal(number)
    assert node.process.wait(PATIENCE_S) == (-number if number is signal.SIGKILL else 0)
