"""`hedgerow demo`, as somebody who has just installed it runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

SUMMARY = re.compile(r"^(\d+) published on 9 topics, (\d+) delivered, 0 lost, 0 doubled$")
FIRST_OUTPUT_S = 3.0


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hedgerow", "demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def readable(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_it_runs_for_the_seconds_asked_and_loses_nothing(tmp_path: Path) -> None:
    started_at = time.monotonic()
    with demo(tmp_path, "--headless", "--seconds", "1.5") as process:
        first = readable(process).readline()
        assert time.monotonic() - started_at < FIRST_OUTPUT_S
        assert re.match(r"a node serves mqtt://127\.0\.0\.1:\d+ and ws://127\.0\.0\.1:\d+;", first)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0, output
    lines = output.splitlines()
    summary = SUMMARY.match(lines[-1])
    assert summary is not None, output
    assert int(summary[1]) == int(summary[2]) >= 9
    readings = [line for line in lines if re.fullmatch(r"[\d:]{8}  field/\d/\w+ +-?[\d.]+ \S+", line)]
    assert len(readings) == int(summary[2])
    assert len({line.split()[1] for line in readings}) == 9
    assert "a visitor finds the notice, which is retained: hay is cut on Friday" in lines
    assert "\x1b" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_its_summary(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--headless") as process:
        for line in readable(process):
            if "field/3/wind" in line:
                break
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0, output
    assert SUMMARY.match(output.splitlines()[-1]), output
