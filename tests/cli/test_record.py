"""`hedgerow record` as a program, and publishers with ids on the command line."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hedgerow.cli import COMMANDS, main
from hedgerow.journal.io.files import durable_position
from tests.conftest import StartMosquitto, StartNode
from tests.journal.plain import read_plain
from tests.node.certificates import Authority
from tests.programs import end, wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEDGEROW, *words], capture_output=True, timeout=PATIENCE_S, check=False, text=True
    )


@contextmanager
def recording(tmp_path: Path, *words: str) -> Iterator[Path]:
    """A recorder that records into the journal that is given; at the end SIGTERM ends it in order."""
    log = tmp_path / "record.log"
    journal = tmp_path / "journal"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*HEDGEROW, "record", *words, "--journal", str(journal)], stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        wait_until(lambda: b" recording " in log.read_bytes() or process.poll() is not None, "it to record")
        assert process.poll() is None, log.read_text()
        yield journal
    finally:
        status = end(process)
    assert status == 0
    assert "recorded" in log.read_text().splitlines()[-1]


def test_what_is_published_is_recorded(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    for life in range(2):
        with recording(
            tmp_path, "--broker", url, "--filter", "farm/#", "--filter", "barn", "--name", "rec"
        ) as at:
            assert main(["pub", url, "farm/a", "21.5", "-q", "1"]) == 0
            assert main(["pub", url, "barn", "x", "-q", "2", "--origin", "press"]) == 0
            wait_until(lambda life=life: durable_position(at) == 2 * life + 2, "its rows")  # type: ignore[misc]
    rows = read_plain(tmp_path / "journal")
    assert [(row.topic, row.payload) for row in rows] == [("farm/a", b"21.5"), ("barn", b"x")] * 2
    assert [row.id.origin for row in rows if row.id] == ["rec", "press"] * 2
    assert len({row.id for row in rows}) == 4


def test_a_second_recorder_is_told_who_writes_the_journal(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    words = ("--broker", f"mqtt://127.0.0.1:{mosquitto()}", "--filter", "#")
    with recording(tmp_path, *words) as journal:
        done = run("record", *words, "--journal", str(journal))
        assert done.returncode == 1
        assert "is being written by another process" in done.stderr


def test_over_tls(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    port = mosquitto(f"certfile {certificate}", f"keyfile {key}")
    words = ("--broker", f"mqtts://127.0.0.1:{port}", "--filter", "#", "--cafile", str(authority.certificate))
    with recording(tmp_path, *words) as journal:
        done = run(
            "pub",
            "-L",
            f"mqtts://127.0.0.1:{port}",
            "--cafile",
            str(authority.certificate),
            "-t",
            "a",
            "-m",
            "x",
        )
        assert done.returncode == 0
        wait_until(lambda: durable_position(journal) == 1, "its row")
    assert [row.transport for row in read_plain(tmp_path / "journal")] == ["mqtts"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--broker", "udp://localhost", "--filter", "a"), "session at a broker"),
        (("--broker", "localhost", "--filter", "a"), "not a URL"),
        (("--broker", "mqtt://localhost/a", "--filter", "a"), "--filter"),
        (("--broker", "mqtt://localhost", "--filter", "a/#/b"), "a/#/b"),
        (("--broker", "mqtt://localhost", "--filter", "$share/g/a"), "shared"),
        (("--broker", "mqtt://localhost", "--filter", "a", "--max-age", "soon"), "soon"),
        (("--broker", "mqtt://localhost", "--filter", "a", "--max-bytes", "1"), "1"),
        (
            ("--broker", "mqtt://localhost", "--filter", "a", "-V", "6"),
            '-V/--version/--protocol-version: "6"',
        ),
        (("--broker", "mqtt://localhost", "--filter", "a", "--cafile", "x"), "mqtts://"),
    ],
)
def test_what_cannot_be_meant(
    words: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *words, "--journal", str(tmp_path / "journal")]) == 2
    line, *example = capsys.readouterr().err.splitlines()
    assert reason in line
    assert example in ([], [f"for example: {COMMANDS['record'].example}"])
    assert not (tmp_path / "journal").exists()


def test_on_a_terminal_a_line_tells_how_it_goes(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    ours, theirs = pty.openpty()
    command = [*HEDGEROW, "record", "--broker", url, "--filter", "#", "--journal", str(tmp_path / "journal")]
    process = subprocess.Popen(command, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""

    def has_shown(text: bytes) -> bool:
        nonlocal shown
        with suppress(BlockingIOError, OSError):
            shown += os.read(ours, 65_536)
        return text in shown

    try:
        wait_until(lambda: has_shown(b" recording "), "it to record")
        assert main(["pub", url, "a", "x", "-q", "1"]) == 0
        wait_until(lambda: has_shown(b"1 messages, "), "the line")
        assert b"not durable yet" in shown
    finally:
        status = end(process)
        os.close(ours)
    assert status == 0


def test_ids_on_the_command_line(hedgerow_node: StartNode, tmp_path: Path) -> None:
    url = hedgerow_node().urls["mqtt"]
    output = tmp_path / "output"
    log = tmp_path / "log"
    with output.open("wb") as out, log.open("wb") as err:
        words = ["sub", url, "#", "-C", "2", "--origin", "reader", "-F", "%t %i", "-d"]
        process = subprocess.Popen([*HEDGEROW, *words], stdout=out, stderr=err)
    try:
        wait_until(lambda: b"subscribed to" in log.read_bytes(), "it to subscribe")
        assert main(["pub", url, "a", "x", "-q", "1", "--origin", "press"]) == 0
        assert main(["pub", url, "b", "x", "-q", "1"]) == 0
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    first, second = output.read_text().splitlines()
    assert first.startswith("a ~press/")
    assert second.startswith("b ")
    assert second.count("/") == 2
