"""`hedgerow demo`, as somebody who has just installed it runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from hedgerow.cli import main
from hedgerow_workshop.demo.spark import MAX_STARTS
from tests.programs import ALONE, IGNORING_SIGNALS, processor_s

SUMMARY = re.compile(
    r"^([\d,]+) messages published, ([\d,]+) deliveries made, 0 lost, 0 doubled$", re.MULTILINE
)
FIRST_OUTPUT_S = 2.0  # of processor time
ENDED_S = 50.0


@contextmanager
def demo(
    folder: Path, *arguments: str, wrapper: tuple[str, ...] = ALONE, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    command = [*wrapper, sys.executable, "-m", "hedgerow", "demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), **variables}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def readable(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def check(output: str, folder: Path) -> None:
    for number in range(1, 6):
        assert f"[{number}/5]" in output, output
    summary = SUMMARY.search(output)
    assert summary is not None, output
    published, delivered = (int(count.replace(",", "")) for count in summary.groups())
    assert 100 < published < delivered
    assert "\x1b" not in output
    assert list(folder.iterdir()) == []


def test_the_story_is_told_and_nothing_is_lost_or_left(tmp_path: Path) -> None:
    with demo(tmp_path, "--headless", "--seconds", "8", "--no-spark") as process:
        first = readable(process).readline()
        assert processor_s(process.pid) < FIRST_OUTPUT_S
        assert first.startswith("a farm on this machine")
        output, _ = process.communicate(timeout=ENDED_S)
        assert process.returncode == 0, output
    assert re.search(r"^dashboard http://127\.0\.0\.1:\d+/$", output, re.MULTILINE), output
    check(output, tmp_path)


@pytest.mark.parametrize(
    ("number", "wrapper"),
    [(signal.SIGINT, IGNORING_SIGNALS), (signal.SIGTERM, ALONE), (signal.SIGQUIT, ALONE)],
)
def test_a_signal_ends_it_in_order_with_the_summary_so_far(
    tmp_path: Path, number: signal.Signals, wrapper: tuple[str, ...]
) -> None:
    with demo(tmp_path, "--headless", "--no-spark", wrapper=wrapper) as process:
        for line in readable(process):
            if line.startswith("[1/5]"):
                break
        os.killpg(process.pid, number)  # as a terminal does
        output, _ = process.communicate(timeout=ENDED_S)
        assert process.returncode == 0, output
    assert "ended before the story was; so far:" in output
    assert SUMMARY.search(output), output
    assert list(tmp_path.iterdir()) == []


def test_a_spark_that_fails_is_told_and_the_farm_goes_on(tmp_path: Path) -> None:
    """As on a machine that is too busy for it."""
    pytest.importorskip("pyspark")
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = --list-modules ] && { echo java.base@17; echo jdk.incubator.vector@17; exit; }\n'
        'echo "Python worker failed to connect back." >&2\nexit 1\n'
    )
    java.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    with demo(folder, "--headless", "--seconds", "8", JAVA_HOME=str(java.parent.parent)) as process:
        output, _ = process.communicate(timeout=2 * ENDED_S)
        assert process.returncode == 1, output
    assert output.count("Spark has failed, and is started again") == MAX_STARTS - 1
    assert f"Spark has failed {MAX_STARTS} times; the farm goes on without it: " in output
    assert "no plan of hot topics: the pipeline does not run" in output
    assert "Spark failed for good: " in output
    assert re.search(r"^it took [\d.]+ s: the farm's start [\d.]+ s, finding ", output, re.MULTILINE)
    check(output, folder)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_a_story_has_some_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--seconds={seconds}"]) == 2
    assert f'--seconds: "{seconds}" is not a number above 0, 86400 at most' in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_plan_comes_from_spark(tmp_path: Path) -> None:
    with demo(tmp_path, "--headless", "--seconds", "20") as process:
        output, _ = process.communicate(timeout=250)
        assert process.returncode == 0, output
    assert "the plan of hot topics has come from Spark" in output
    found = re.search(
        r"^in Spark: ([\d,]+) of ([\d,]+) messages, 0 lost, 0 doubled\n"
        r"its jobs made of them ([\d,]+) readings, .* on \d+ links 0 messages ",
        output,
        re.MULTILINE,
    )
    assert found is not None, output
    summary = SUMMARY.search(output)
    assert summary is not None
    assert found[1] == found[2] == summary[1]
    assert int(found[3].replace(",", "")) > 100
    check(output, tmp_path)
