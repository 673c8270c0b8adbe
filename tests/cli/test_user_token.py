"""`hedgerow user` and `hedgerow token`: what they write, print and refuse; what Mosquitto makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.cli import EXIT_USAGE, main
from hedgerow.node.passwords import Passwords, set_password
from hedgerow.web.api.tokens import Tokens


def add(file: Path, user: str) -> None:
    set_password(file, user, user.encode(), create=not file.exists(), iterations=10)


def test_users_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "passwords"
    add(file, "anna")
    assert main(["user", "add", "-b", "-I", "10", str(file), "bert", "secret"]) == 0
    assert main(["user", "disable", str(file), "anna"]) == 0
    capsys.readouterr()
    assert main(["user", "list", str(file)]) == 0
    assert capsys.readouterr().out == "bert\nanna  disabled\n"
    passwords = Passwords.load(file)
    assert passwords.verify("bert", b"secret")
    assert not passwords.verify("anna", b"anna")
    # The password is as it was; one who is disabled may be given another.
    assert main(["user", "enable", str(file), "anna"]) == 0
    assert Passwords.load(file).verify("anna", b"anna")
    assert main(["user", "disable", str(file), "anna"]) == 0
    assert main(["user", "passwd", "-b", "-I", "10", str(file), "anna", "other"]) == 0
    assert "anna" not in Passwords.load(file)
    assert main(["user", "remove", str(file), "anna"]) == 0
    assert file.read_text().count("\n") == 1


@pytest.mark.parametrize(
    "words", [("add", "anna"), ("passwd", "bert"), ("disable", "bert"), ("remove", "bert"), ("add",)]
)
def test_what_cannot_be_done_to_users(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "passwords"
    add(file, "anna")
    before = file.read_text()
    action, *user = words
    password = ["secret"] if action in ("add", "passwd") and user else []
    batch = ["-b"] if password else []
    assert main(["user", action, *batch, str(file), *user, *password]) == EXIT_USAGE
    assert file.read_text() == before


def test_tokens_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens"
    assert (
        main(["token", "create", str(file), "door", "--right", "publish", "--user", "door", "--lasts", "1d"])
        == 0
    )
    token = capsys.readouterr().out.strip()
    found = Tokens.load(file).find(token, 0.0)
    assert found is not None
    assert (found.name, found.user, found.rights) == ("door", "door", frozenset({"publish"}))
    assert main(["token", "list", str(file)]) == 0
    assert capsys.readouterr().out.startswith("door  publish  as door  until 20")
    assert main(["token", "create", str(file), "door"]) == EXIT_USAGE
    assert main(["token", "create", str(file), "a b"]) == EXIT_USAGE
    assert main(["token", "create", str(file)]) == EXIT_USAGE
    assert main(["token", "create", str(file), "x", "--right", "fly"]) == EXIT_USAGE
    assert main(["token", "remove", str(file), "door"]) == 0
    assert len(Tokens.load(file)) == 0
    assert main(["token", "remove", str(file), "door"]) == EXIT_USAGE


@pytest.mark.parametrize(
    "line", ["a:read", "a:fly::" + "0" * 64 + ":", "a:read:soon:" + "0" * 64 + ":", "a:read::0:", "::::"]
)
def test_a_damaged_file_of_tokens_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# ours\n{line}\n")
    assert main(["token", "list", str(file)]) == EXIT_USAGE
