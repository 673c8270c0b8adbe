"""The exit status for scripts: each of them, from the program as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow import cli
from hedgerow_workshop.programs import free_port
from tests.conftest import StartNode
from tests.node.certificates import Authority
from tests.programs import ROOT, wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def status(*words: str) -> int:
    done = subprocess.run(
        [*HEDGEROW, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0 or done.stderr.startswith("hedgerow")
    assert "Traceback" not in done.stderr
    return done.returncode


def test_done(hedgerow_node: StartNode) -> None:
    url = hedgerow_node().urls["mqtt"]
    assert status("pub", url, "a", "x", "-q", "1") == cli.EXIT_DONE
    assert status("bridge", url, "list") == cli.EXIT_DONE
    assert status("--version") == cli.EXIT_DONE


def test_could_not_be_done(hedgerow_node: StartNode, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read open\n")
    url = hedgerow_node("--acl", str(rules)).urls["mqtt"]
    assert status("pub", url, "secret", "x", "-q", "1") == cli.EXIT_FAILED
    assert status("sub", url, "secret", "-C", "1") == cli.EXIT_FAILED
    assert status("bridge", url, "del", "north") == cli.EXIT_FAILED
    assert status("pub", url, "a", "-f", str(tmp_path / "none")) == cli.EXIT_FAILED
    assert status("pipeline", "check", str(tmp_path)) == cli.EXIT_FAILED


def test_wrong_usage(tmp_path: Path) -> None:
    assert status("xyz") == cli.EXIT_USAGE
    assert status("sub", "a/#/b") == cli.EXIT_USAGE
    assert status("up", "--mqqt", "off") == cli.EXIT_USAGE
    (tmp_path / "node.toml").write_text("mqqt = 'off'\n")
    assert status("up", "--config", str(tmp_path / "node.toml")) == cli.EXIT_USAGE


def test_no_connection(hedgerow_node: StartNode, tmp_path: Path) -> None:
    nobody = f"mqtt://127.0.0.1:{free_port()}"
    assert status("pub", nobody, "a", "x") == cli.EXIT_NO_CONNECTION
    assert status("sub", nobody, "a") == cli.EXIT_NO_CONNECTION
    assert status("bridge", nobody, "list") == cli.EXIT_NO_CONNECTION
    assert status("top", nobody, "--once") == cli.EXIT_NO_CONNECTION
    assert status("passwd", "-c", "-b", str(tmp_path / "passwords"), "anna", "secret", "-I", "1") == 0
    url = hedgerow_node("--passwords", str(tmp_path / "passwords")).urls["mqtt"]
    assert status("pub", url, "a", "x", "-u", "anna", "-P", "wrong") == cli.EXIT_NO_CONNECTION
    assert status("pub", url, "a", "x", "-u", "anna", "-P", "secret") == cli.EXIT_DONE


def test_an_authority_that_is_not_known_is_to_be_named(
    hedgerow_node: StartNode, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    node = hedgerow_node("--mqtts", "127.0.0.1:0", "--certificate", str(certificate), "--key", str(key))
    url = node.urls["mqtts"]
    assert cli.main(["pub", url, "a", "x"]) == cli.EXIT_NO_CONNECTION
    said = capfd.readouterr().err
    assert "certificate is not trusted" in said
    assert said.endswith("; name the file of its authority, --cafile FILE\n")
    assert cli.main(["pub", url, "a", "x", "--cafile", str(authority.certificate)]) == cli.EXIT_DONE


def test_timed_out(hedgerow_node: StartNode) -> None:
    assert status("sub", hedgerow_node().urls["mqtt"], "a", "-C", "1", "-W", "0.2") == cli.EXIT_TIMED_OUT


def test_whoever_read_the_output_has_gone(hedgerow_node: StartNode) -> None:
    url = hedgerow_node().urls["mqtt"]
    assert status("pub", url, "a", "x", "-r", "-q", "1") == 0
    with subprocess.Popen([*HEDGEROW, "sub", url, "a"], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"x\n"
        reader.stdout.close()
        assert status("pub", url, "a", "y", "-q", "1") == 0
        assert reader.wait(PATIENCE_S) == cli.EXIT_BROKEN_PIPE


def test_interrupted(tmp_path: Path) -> None:
    """A command that SIGINT does not end in order."""
    command = [*HEDGEROW, "lab", "run", "schmitt", "--fast"]
    log = tmp_path / "log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as lab:
        wait_until(lambda: log.stat().st_size > 0, "the experiment to begin")
        lab.send_signal(signal.SIGINT)
        assert lab.wait(PATIENCE_S) == cli.EXIT_INTERRUPTED
    assert "Traceback" not in log.read_text()


def test_the_documented_table_is_the_program_s() -> None:
    """docs/cli.md has each code, with the same words."""
    text = (ROOT / "docs/cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|$", text, re.MULTILINE))
    assert {int(code): meaning for code, meaning in rows.items()} == cli.EXIT_CODES
