"""The program `hedgerow`: its commands, its errors, and how fast it starts."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from hedgerow import cli
from hedgerow.errors import ConfigError, ConnectError, ProtocolError, StoreError, TopicError
from tests.programs import wait_until


def install(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """A command `test` that does this."""
    module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--number", type=int), run=run)
    monkeypatch.setitem(sys.modules, "hedgerow.cli.test", module)
    monkeypatch.setitem(cli.COMMANDS, "test", ("hedgerow.cli.test", "a command"))


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        raise error

    return run


def hedgerow(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hedgerow", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def test_a_command_gets_its_arguments_and_gives_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda arguments: int(arguments.number))
    assert cli.main(["test", "--number", "7"]) == 7


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ConfigError("a.toml:1: wrong"), 2, "a.toml:1: wrong"),
        (TopicError("no topic"), 2, "no topic"),
        (ConnectError("refused", 0x87), 1, "refused"),
        (StoreError("damaged"), 1, "damaged"),
        (ProtocolError(0x81, "malformed", "MQTT-1.5.4-1"), 1, "malformed [MQTT-1.5.4-1]"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
            1,
            "x: No such file or directory",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (TimeoutError("too slow"), 1, "too slow"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_are_one_line_that_names_the_command(
    error: Exception,
    status: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, raising(error))
    assert cli.main(["test"]) == status
    assert capsys.readouterr() == ("", f"hedgerow test: {reason}\n")


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["test"])


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, raising(KeyboardInterrupt()))
    assert cli.main(["test"]) == 130
    assert capsys.readouterr() == ("", "")


def test_wrong_arguments_and_help_leave_by_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, lambda arguments: 0)
    assert cli.main(["test", "--number", "x"]) == 2
    assert "hedgerow test: error: argument --number: invalid int value" in capsys.readouterr().err
    for words in (["test", "--help"], ["help", "test"]):
        assert cli.main(words) == 0
        assert "--number" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("pubb", 'no command "pubb"; did you mean pub?'),
        ("password", 'no command "password"; did you mean passwd?'),
        ("xyz", f'no command "xyz"; there are {", ".join(cli.COMMANDS)}'),
        ("--verbose", f'no option "--verbose"; there are {", ".join(cli.COMMANDS)}'),
    ],
)
def test_an_unknown_command_gets_the_nearest(
    word: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == 2
    assert capsys.readouterr() == ("", f"hedgerow: {error}\n")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, help_text) in cli.COMMANDS.items():
        assert f"hedgerow {name}" in text
        assert help_text in text
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: hedgerow {command}")


def test_version_is_that_of_the_package() -> None:
    ended = hedgerow("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"hedgerow {version('hedgerow')}\n", "")


def test_a_closed_pipe_is_quiet() -> None:
    """More is printed than a pipe holds, to a reader that has gone."""
    code = (
        "import sys; from hedgerow import cli; cli._usage = lambda: 'x' * 200_000; sys.exit(cli.main(['-h']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 141


def test_interrupted_as_a_process() -> None:
    code = (
        "import sys, time, types; from hedgerow import cli;"
        "module = types.ModuleType('m'); module.add_arguments = lambda parser: None;"
        "module.run = lambda arguments: print('runs', flush=True) or time.sleep(20);"
        "sys.modules['m'] = module; cli.COMMANDS['m'] = ('m', ''); sys.exit(cli.main(['m']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, "the process to end")
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 130


def imported_by(*words: str) -> set[str]:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "hedgerow", *words]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, env=environment)
    return {
        line.rpartition("|")[2].strip()
        for line in ended.stderr.splitlines()
        if line.startswith("import time:")
    }


def test_no_command_pays_for_another() -> None:
    """What takes long to import is imported by what needs it, so that everything starts fast."""
    slow = {"argparse", "asyncio", "email", "json", "logging", "ssl", "tomllib", "uvloop", "websockets"}
    assert not imported_by("--help") & slow
    passwd = imported_by("passwd", "--help")
    assert not passwd & (slow - {"argparse"})
    assert not {name for name in passwd if name.startswith("hedgerow.cli.")} - {"hedgerow.cli.passwd"}
    assert "difflib" not in passwd
