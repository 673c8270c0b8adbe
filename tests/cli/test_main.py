"""The program `hedgerow`: its commands, its errors, and how fast it starts."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from hedgerow import cli
from hedgerow.errors import ConfigError, ConnectError, ProtocolError, StoreError, TopicError
from tests.programs import ALONE, IGNORING_SIGNALS, wait_until


def install(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """A command `test` that does this."""
    module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--number", type=int), run=run)
    monkeypatch.setitem(sys.modules, "hedgerow.cli.test", module)
    monkeypatch.setitem(cli.COMMANDS, "test", cli.Command("tests", "a command", "hedgerow test"))


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
        (ConnectError("refused", 0x87), 3, "refused"),
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
    complaint = 'hedgerow test: --number: "x" is not a whole number\nfor example: hedgerow test\n'
    assert capsys.readouterr() == ("", complaint)
    for words in (["test", "--help"], ["help", "test"]):
        assert cli.main(words) == 0
        assert "--number" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "error", "example"),
    [
        ("pubb", "there is no command pubb; did you mean pub?", "pub"),
        ("PUB", "there is no command PUB; did you mean pub?", "pub"),
        ("password", "there is no command password; did you mean passwd?", "passwd"),
        ("pipe", "there is no command pipe; did you mean pipeline?", "pipeline"),
        ("xyz", f"there is no command xyz; there are {', '.join(cli.all_commands())}", "demo"),
        (
            "--verbose",
            f"there is no option --verbose; options go behind a command: {', '.join(cli.all_commands())}",
            "demo",
        ),
    ],
)
def test_an_unknown_command_gets_the_nearest(
    word: str, error: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([word], ["help", word]):
        assert cli.main(words) == 2
        assert capsys.readouterr() == (
            "",
            f"hedgerow: {error}\nfor example: {cli.all_commands()[example].example}\n",
        )


@pytest.mark.parametrize(
    ("word", "meant"), [("start", "up"), ("subscribe", "sub"), ("status", "top"), ("version", "--version")]
)
def test_what_other_programs_call_it_is_known(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == 2
    example = cli.all_commands()[meant].example if meant in cli.all_commands() else "hedgerow --version"
    assert capsys.readouterr().err == (
        f"hedgerow: there is no command {word}; did you mean {meant}?\nfor example: {example}\n"
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in cli.all_commands().items():
        assert f"hedgerow {name}" in text
        assert command.help in text
        assert text.count(f"\n{command.group}:\n") == 1
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("command", cli.all_commands())
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    usage, _, rest = capsys.readouterr().out.partition("\n")
    assert usage.startswith(f"usage: hedgerow {command}")
    assert re.search(rf"^  .*hedgerow {command}\b", rest, re.MULTILINE), "an example"


def test_the_help_of_a_node_is_in_the_sections_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--help"])
    text = capsys.readouterr().out
    assert text.index("[access]:") < text.index("--passwords FILE") < text.index("[log]:")
    assert text.index("[federation]:") < text.index("--join URL") < text.index("[mobility]:")


def test_version_is_that_of_the_package() -> None:
    ended = hedgerow("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"hedgerow {version('hedgerow')}\n", "")


HELP_WITH_A_COMMAND = """\
import sys; from hedgerow import cli
cli.COMMANDS["odd"] = cli.Command("begin", {}, "")
sys.exit(cli.main(["-h"]))
"""


def test_a_closed_pipe_is_quiet() -> None:
    """More is printed than a pipe holds, to a reader that has gone."""
    code = HELP_WITH_A_COMMAND.format("'x' * 200_000")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 141


@pytest.mark.parametrize(
    ("closed", "words", "status"),
    [
        ("<&-", "pub mqtt://127.0.0.1:1 a -l", 3),
        ("<&-", "passwd file anna", 2),
        (">&-", "help", 0),
        (">&- 2>&-", "nonsense", 2),
        ("<&- >&- 2>&-", "pub mqtt://127.0.0.1:1 a b", 3),
        ("2>/dev/full", "nonsense", 2),
    ],
)
def test_a_stream_that_is_closed_is_no_crash(closed: str, words: str, status: int) -> None:
    command = f'exec "$0" -m hedgerow {words} {closed}'
    ended = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable], check=False, capture_output=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (status, b"")
    assert b"Traceback" not in ended.stderr


def test_what_the_terminal_has_no_letters_for_is_escaped() -> None:
    code = HELP_WITH_A_COMMAND.format("'a → b'")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, env=environment)
    assert ended.returncode == 0
    assert b"a \\u2192 b\n" in ended.stdout


@pytest.mark.parametrize("wrapper", [ALONE, IGNORING_SIGNALS])
def test_interrupted_as_a_process(wrapper: tuple[str, ...]) -> None:
    code = (
        "import sys, time, types; from hedgerow import cli;"
        "module = types.ModuleType('m'); module.add_arguments = lambda parser: None;"
        "module.run = lambda arguments: print('runs', flush=True) or time.sleep(20);"
        "sys.modules['hedgerow.cli.m'] = module; cli.COMMANDS['m'] = cli.Command('', '', '');"
        "sys.exit(cli.main(['m']))"
    )
    with subprocess.Popen(
        [*wrapper, sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
    # `email` comes with what reads the packages' metadata, where the commands of other packages are found.
    assert not imported_by("--help") & (slow - {"email"})
    passwd = imported_by("passwd", "--help")
    assert not passwd & (slow - {"argparse"})
    ours = {name for name in passwd if name.startswith("hedgerow.cli.")}
    assert ours <= {f"hedgerow.cli.{name}" for name in ("option_values", "parsing", "passwd")}
    assert "difflib" not in passwd
