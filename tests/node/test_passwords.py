"""Password files, read and written by us and by Mosquitto."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.node.passwords import Passwords, delete_user, hash_password, set_password
from tests.conftest import StartMosquitto
from tests.full_disks import file_size_limit
from tests.programs import need_program

FEW = 1_000  # iterations: these tests are not about how long a hash takes
SECRETS = {"alice": "wonderland", "bob smith": "with blank: and $ and ü", "ünï": "x"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passwords"


def write_users(file: Path, users: dict[str, str] = SECRETS) -> None:
    file.touch()
    for username, password in users.items():
        set_password(file, username, password.encode(), iterations=FEW)


def old_line(username: str, password: str) -> str:
    salt = b"twelve bytes"
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"{username}:$6${b64encode(salt).decode()}${b64encode(digest).decode()}\n"


def assert_right_passwords_only(passwords: Passwords, users: dict[str, str]) -> None:
    for username, password in users.items():
        for _ in range(2):  # the second time from memory
            assert passwords.verify(username, password.encode())
            assert not passwords.verify(username, password.encode() + b"x")
            assert not passwords.verify(username, b"")
            assert not passwords.verify(username, None)
            assert not passwords.verify(username + "x", password.encode())


class Hashes(list[tuple[bytes, int]]):
    """Computes them; (password, iterations) of each."""

    def compute(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        self.append((password, iterations))
        return hash_password(password, salt, iterations)


def test_what_we_write_we_read(file: Path) -> None:
    write_users(file)
    assert_right_passwords_only(Passwords.load(file), SECRETS)


def test_what_mosquitto_passwd_writes_we_read(file: Path) -> None:
    program = need_program("mosquitto_passwd")
    file.touch()
    for username, password in SECRETS.items():
        subprocess.run([program, "-b", file, username, password], check=True, capture_output=True)
    subprocess.run([program, "-H", "sha512", "-b", file, "old", "hash"], check=True, capture_output=True)
    assert "old:$6$" in file.read_text()
    assert_right_passwords_only(Passwords.load(file), SECRETS | {"old": "hash"})


def test_mosquitto_lets_in_whom_we_wrote(file: Path, mosquitto: StartMosquitto) -> None:
    publish = need_program("mosquitto_pub")
    write_users(file)
    port = mosquitto(f"password_file {file}")

    def status(username: str, password: str) -> int:
        login = ["-h", "127.0.0.1", "-p", str(port), "-u", username, "-P", password]
        command = [publish, *login, "-t", "t", "-n"]
        return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode

    for username, password in SECRETS.items():
        assert status(username, password) == 0
        assert status(username, password + "x") != 0


def test_mosquitto_passwd_changes_our_file(file: Path) -> None:
    program = need_program("mosquitto_passwd")
    write_users(file)
    subprocess.run([program, "-b", file, "alice", "changed"], check=True, capture_output=True)
    subprocess.run([program, "-D", file, "ünï"], check=True, capture_output=True)
    passwords = Passwords.load(file)
    assert_right_passwords_only(passwords, {"alice": "changed", "bob smith": SECRETS["bob smith"]})
    assert not passwords.verify("ünï", SECRETS["ünï"].encode())


def test_comments_and_the_order_of_users_survive_a_change(file: Path) -> None:
    file.write_text("# the house\n" + old_line("alice", "a") + "\n# others\n" + old_line("bob", "b"))
    assert set_password(file, "alice", b"new", iterations=FEW) is False
    assert set_password(file, "carol", b"c", iterations=FEW) is True
    beginnings = [line.partition("$")[0] for line in file.read_text().splitlines()]
    assert beginnings == ["# the house", "alice:", "", "# others", "bob:", "carol:"]
    assert_right_passwords_only(Passwords.load(file), {"alice": "new", "bob": "b", "carol": "c"})
    delete_user(file, "bob")
    assert_right_passwords_only(Passwords.load(file), {"alice": "new", "carol": "c"})


def test_a_new_file_is_for_its_owner_alone(file: Path) -> None:
    set_password(file, "alice", b"a", create=True, iterations=FEW)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o640, 0o640), (0o600, 0o600)])
def test_a_changed_file_is_closed_to_others(file: Path, before: int, after: int) -> None:
    file.touch()
    file.chmod(before)
    set_password(file, "alice", b"a", iterations=FEW)
    assert stat.S_IMODE(file.stat().st_mode) == after


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_stays(file: Path) -> None:
    file.touch()
    os.chown(file, 12345, 23456)
    set_password(file, "alice", b"a", iterations=FEW)
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)


def test_a_symbolic_link_stays_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    set_password(link, "alice", b"a", iterations=FEW)
    assert link.is_symlink()
    assert Passwords.load(file).verify("alice", b"a")


def test_the_old_file_stays_when_the_new_one_cannot_be_written(file: Path) -> None:
    write_users(file)
    before = file.read_bytes()
    error = r"passwords: cannot be written: File too large$"
    with file_size_limit(100), pytest.raises(ConfigError, match=error):
        set_password(file, "alice", b"new", iterations=FEW)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_changes_at_once_are_all_kept(file: Path) -> None:
    file.touch()
    users = {f"user{i}": f"password{i}" for i in range(16)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda user: set_password(file, user, users[user].encode(), iterations=1), users))
    assert_right_passwords_only(Passwords.load(file), users)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("# ok\nalice", ":2: not USER:HASH"),
        (":$7$1$c2FsdA==$aGFzaA==", ":1: not USER:HASH"),
        ("alice:plain", ':1: "alice": the password is not hashed'),
        ("alice:", ':1: "alice": the password is not hashed'),
        ("alice:$7$c2FsdA==$aGFzaA==", "the password is not hashed"),
        ("alice:$5$c2FsdA==$aGFzaA==", '"$5$" is a kind of hash that is not known; $6$ and $7$ are'),
        ("alice:$7$0$c2FsdA==$aGFzaA==", '"0" iterations: not a number from 1 to 10000000'),
        ("alice:$7$1e9$c2FsdA==$aGFzaA==", '"1e9" iterations: not a number'),
        ("alice:$7$99999999$c2FsdA==$aGFzaA==", '"99999999" iterations: not a number'),
        ("alice:$7$10$!$aGFzaA==", 'the salt "!" is not base64'),
        ("alice:$7$10$$aGFzaA==", 'the salt "" is not base64'),
        ("alice:$7$10$c2FsdA==$aGFzaA==", "the hash has 4 bytes, not 64"),
        (old_line("a", "x") + "\n" + old_line("a", "y"), ':3: "a" is in line 1 already'),
    ],
)
def test_a_damaged_file_is_refused_and_not_rewritten(file: Path, text: str, error: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        Passwords.load(file)
    assert str(raised.value).startswith(f"{file}:")
    assert error in str(raised.value)
    with pytest.raises(ConfigError):
        set_password(file, "bob", b"x", iterations=FEW)
    assert file.read_text() == text


def test_a_file_that_is_not_there_or_not_text(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"passwords: cannot be read: No such file or directory$"):
        Passwords.load(file)
    with pytest.raises(ConfigError, match=r"passwords: no such file; -c creates it$"):
        set_password(file, "alice", b"a")
    with pytest.raises(ConfigError, match=r"nowhere: No such file or directory$"):
        set_password(file.parent / "nowhere/passwords", "alice", b"a", create=True)
    file.write_bytes(b"# fine\n\xff")
    with pytest.raises(ConfigError, match=r"passwords:2: not UTF-8$"):
        Passwords.load(file)


@pytest.mark.parametrize(
    ("username", "password", "error"),
    [
        ("", b"x", "is empty"),
        (" alice", b"x", "begins or ends with a blank"),
        ("#alice", b"x", "would be a comment"),
        ("a:b", b"x", 'contains ":"'),
        ("a\nb", b"x", "control character"),
        ("a" * 65_536, b"x", "more than 65535 bytes"),
        ("alice", b"", "an empty password"),
        ("alice", b"x" * 65_536, "at most 65535 fit into CONNECT"),
        ("alice", b"a\0b", "U+0000"),
    ],
)
def test_what_cannot_be_a_user_or_password(file: Path, username: str, password: bytes, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        set_password(file, username, password, create=True)
    assert error in str(raised.value)
    assert not file.exists()


def test_create_does_not_throw_users_away(file: Path) -> None:
    write_users(file)
    with pytest.raises(ConfigError, match="exists already; without -c the user is added to it"):
        set_password(file, "carol", b"c", create=True)
    assert_right_passwords_only(Passwords.load(file), SECRETS)


def test_an_unknown_user_costs_what_a_known_one_costs(file: Path) -> None:
    """By the iterations spent, which is what takes the time: always the same for one name."""
    file.touch()
    for i in range(20):
        set_password(file, f"user{i}", b"x", iterations=i % 2 + 1)
    hashed = Hashes()
    passwords = Passwords.load(file, compute=hashed.compute)
    costs = set()
    for i in range(64):
        hashed.clear()
        assert not any(passwords.verify(f"unknown{i}", b"x") for _ in range(3))
        assert len(hashed) == 3
        assert len(set(hashed)) == 1
        costs.add(hashed[0][1])
    assert costs == {1, 2}


def test_with_no_users_at_all_a_login_still_costs_a_hash(file: Path) -> None:
    file.touch()
    passwords = Passwords.load(file)
    start = time.thread_time()
    assert not passwords.verify("alice", b"")
    assert time.thread_time() - start > 0.01


def test_right_logins_are_remembered_within_bounds(file: Path) -> None:
    users = {f"user{i}": f"password{i}" for i in range(6)}
    write_users(file, users)
    hashed = Hashes()
    passwords = Passwords.load(file, compute=hashed.compute, max_remembered=4)
    for _ in range(3):
        assert passwords.verify("user5", b"password5")
        assert not passwords.verify("user5", b"wrong")
    assert [password for password, _ in hashed] == [b"password5", b"wrong", b"wrong", b"wrong"]
    for username, password in users.items():
        assert passwords.verify(username, password.encode())
    assert len(passwords.remembered) == 4
    # Neither a name nor a password lies in memory, and a name cannot borrow from a password.
    assert not any(b"password5" in mark for mark in passwords.remembered)
    assert not passwords.verify("user", b"5password5")


def test_many_threads_ask_at_once(file: Path) -> None:
    users = {f"user{i}": f"password{i}" for i in range(8)}
    write_users(file, users)
    passwords = Passwords.load(file, max_remembered=3)
    start = threading.Barrier(8)

    def ask(username: str) -> bool:
        start.wait(10)
        return all(
            passwords.verify(username, users[username].encode()) and not passwords.verify(username, b"no")
            for _ in range(20)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, users))
    assert len(passwords.remembered) == 3
