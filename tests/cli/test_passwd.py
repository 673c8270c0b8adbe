"""`hedgerow passwd`, as its user types it."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.cli import main, make_parser
from hedgerow.cli import passwd as command
from hedgerow.errors import ConfigError
from hedgerow.node.passwords import Passwords

FEW = ("-I", "1000")  # iterations: these tests are not about how long a hash takes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passwords"


def passwd(*words: object) -> int:
    return main(["passwd", *map(str, words)])


class Terminal:
    """At which these passwords are typed."""

    def __init__(self, *passwords: str) -> None:
        self.prompts: list[str] = []
        self._typed = iter(passwords)

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._typed)
        except StopIteration:
            raise EOFError from None

    def passwd(self, *words: object) -> int:
        arguments = make_parser("passwd").parse([*map(str, words)])
        return command.run(arguments, self.ask)


def test_a_password_is_asked_for_twice_without_echo(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal("sécret", "sécret")
    assert terminal.passwd("-c", file, "alice", *FEW) == 0
    assert terminal.prompts == ["Password of alice: ", "Again: "]
    assert capsys.readouterr() == (f"added alice in {file}\n", "")
    assert Passwords.load(file).verify("alice", "sécret".encode())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (("one", "two"), "the two passwords differ; nothing was changed"),
        (("one",), "no password was given; nothing was changed"),
        (("", ""), "an empty password"),
    ],
)
def test_nothing_changes_when_the_answers_do_not_fit(file: Path, typed: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(error)}$"):
        Terminal(*typed).passwd("-c", file, "alice", *FEW)
    assert not file.exists()


def test_without_a_terminal_nobody_is_asked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert passwd("-c", file, "alice") == 2
    assert "--stdin reads it from standard input" in capsys.readouterr().err


def test_batch_stdin_change_and_delete(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert passwd("-c", file, "alice", "-b", "one", *FEW) == 0
    process = [sys.executable, "-m", "hedgerow", "passwd", str(file), "bob", "--stdin", *FEW]
    subprocess.run(process, check=True, input=b" two \r\nrest")
    assert passwd(file, "alice", "-b", "three", *FEW) == 0
    passwords = Passwords.load(file)
    assert passwords.verify("alice", b"three")
    assert passwords.verify("bob", b" two ")
    assert passwd("-D", file, "alice") == 0
    passwords = Passwords.load(file)
    assert not passwords.verify("alice", b"three")
    assert passwords.verify("bob", b" two ")
    assert capfd.readouterr().out.splitlines() == [
        f"added alice in {file}",
        f"added bob in {file}",
        f"changed the password of alice in {file}",
        f"deleted alice from {file}",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "-b", "FILE", "alice", "one"),
        ("-b", "-c", "FILE", "alice", "one"),
        ("-c", "FILE", "alice", "-b", "one"),
        ("-c", "-b", "--", "FILE", "alice", "one"),
    ],
)
def test_the_words_stand_as_in_mosquitto_passwd(file: Path, words: tuple[str, ...]) -> None:
    assert passwd(*FEW, *(file if word == "FILE" else word for word in words)) == 0
    assert Passwords.load(file).verify("alice", b"one")


def test_errors_in_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*words: object) -> str:
        assert passwd(*words) == 2
        return capsys.readouterr().err

    assert error(file, "alice", "-b", "x") == f"hedgerow passwd: {file}: no such file; -c creates it\n"
    file.write_text("alice\n")
    assert error(file, "bob", "-b", "x") == f"hedgerow passwd: {file}:1: not USER:HASH\n"
    file.write_text("")
    assert error("-D", file, "bob") == f'hedgerow passwd: {file}: no user "bob"\n'
    assert "it takes no password" in error("-D", file, "bob", "-b", "x")
    assert "it takes no password" in error("-D", file, "bob", "x")
    assert "taken with -b only" in error(file, "bob", "x")
    assert "taken with -b only" in error("--stdin", file, "bob", "x")
    assert "passwd -b FILE USER PASSWORD" in error("-b", file, "bob")
    assert "exists already" in error("-c", file, "bob", "-b", "x")
    assert "-D/--delete and -c/--create do not go together" in error("-c", "-D", file, "bob")
    assert '-I/--iterations: "0" is not a whole number from 1' in error(file, "bob", "-b", "x", "-I", "0")
    assert file.read_text() == ""
