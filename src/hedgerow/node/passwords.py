"""Users and their passwords, in files that Mosquitto reads and writes too.

A line is `USER:$7$ITERATIONS$SALT$HASH`, with PBKDF2-HMAC-SHA512 over the password, or, from older
Mosquittos, `USER:$6$SALT$HASH`, with one SHA-512 over password and salt. Both are read; `$7$` is
written. Lines that begin with `#` are comments. A user who is disabled is such a line, `#disabled USER:…`,
so that Mosquitto does not let them in either, and may be enabled again with the same password.

`Passwords.verify` may be called from several threads. What a wrong login costs says nothing about
the users: hashes are compared in constant time, and a name that is not in the file is checked against
the entry of a user who is, always the same one for that name. A right login is remembered, so that a
thousand clients that reconnect at once cost a hash each only the first time; the memory holds neither
names nor passwords but their HMAC under a random key that never leaves the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import ConfigError
from hedgerow.node.line_files import locked_directory, replace_lines
from hedgerow.node.values import read_utf8

ITERATIONS = 210_000  # OWASP's figure for PBKDF2-HMAC-SHA512 (2023); Mosquitto 2.0 writes 101
MAX_ITERATIONS = 10_000_000  # a mistyped count must not occupy a thread for minutes at each login
SALT_BYTES = 12  # Mosquitto 2.0 refuses salts of any other length
HASH_BYTES = 64
DISABLED = "#disabled "  # before the line of a user who may not log in
MAX_NAME_BYTES = 65_535  # §1.5.4: no longer name or password fits into CONNECT
MAX_REMEMBERED = 10_000  # bounds the memory of right logins at about 2 MiB


@dataclass(slots=True, frozen=True)
class _Entry:
    iterations: int  # 0: `$6$`, one plain SHA-512
    salt: bytes
    hash: bytes

    @classmethod
    def make(cls, password: bytes, iterations: int) -> _Entry:
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(iterations, salt, hash_password(password, salt, iterations))

    @classmethod
    def parse(cls, text: str) -> _Entry:
        """Raises ConfigError that says which part is wrong."""
        match text.split("$"):
            case ["", "6", salt, digest]:
                count = "0"
            case ["", "7", count, salt, digest]:
                if not (count.isascii() and count.isdecimal() and 0 < int(count) <= MAX_ITERATIONS):
                    raise ConfigError(f'"{count}" iterations: not a number from 1 to {MAX_ITERATIONS}')
            case ["", kind, *_] if kind not in ("6", "7"):
                raise ConfigError(f'"${kind}$" is a kind of hash that is not known; $6$ and $7$ are')
            case _:
                raise ConfigError("the password is not hashed: not $7$ITERATIONS$SALT$HASH or $6$SALT$HASH")
        entry = cls(int(count), _decode(salt, "salt"), _decode(digest, "hash"))
        if len(entry.hash) != HASH_BYTES:
            raise ConfigError(f"the hash has {len(entry.hash)} bytes, not {HASH_BYTES}")
        return entry

    def __str__(self) -> str:
        return f"$7${self.iterations}${b64encode(self.salt).decode()}${b64encode(self.hash).decode()}"


def hash_password(password: bytes, salt: bytes, iterations: int) -> bytes:
    if not iterations:
        return hashlib.sha512(password + salt).digest()
    return hashlib.pbkdf2_hmac("sha512", password, salt, iterations, HASH_BYTES)


def _decode(text: str, what: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        data = b""
    if not data:
        raise ConfigError(f'the {what} "{text}" is not base64')
    return data


class Passwords:
    """The users of one password file. Does not change once loaded: load anew to see a changed file."""

    def __init__(
        self,
        entries: dict[str, _Entry],
        *,
        compute: Callable[[bytes, bytes, int], bytes] = hash_password,
        max_remembered: int = MAX_REMEMBERED,
        disabled: frozenset[str] = frozenset(),
    ) -> None:
        self.disabled = disabled
        """Users who are not let in, whatever else speaks for them."""
        self.remembered: dict[bytes, None] = {}  # a mark of each right login, oldest first
        self._entries = entries
        self._compute = compute
        self._max_remembered = max_remembered
        self._key = secrets.token_bytes(32)
        self._stand_ins = list(entries.values()) or [_Entry.make(b"", ITERATIONS)]
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        compute: Callable[[bytes, bytes, int], bytes] = hash_password,
        max_remembered: int = MAX_REMEMBERED,
    ) -> Passwords:
        """Raises ConfigError that names the file, the line and the reason."""
        text = read_utf8(path)
        return cls(
            _parse(text, path),
            compute=compute,
            max_remembered=max_remembered,
            disabled=frozenset(_disabled(text.split("\n"))),
        )

    def __contains__(self, username: str) -> bool:
        return username in self._entries

    def entry_of(self, username: str) -> str | None:
        """The user's hash as the file has it, by which a changed password is noticed."""
        entry = self._entries.get(username)
        return None if entry is None else str(entry)

    def remembers(self, username: str, password: bytes) -> bool:
        """Was it right before? False says nothing."""
        mark = self._mark_of(username.encode(errors="surrogatepass"), password)
        with self._lock:
            return mark in self.remembered

    def verify(self, username: str, password: bytes | None) -> bool:
        if password is None:
            return False
        name = username.encode(errors="surrogatepass")
        mark = self._mark_of(name, password)
        with self._lock:
            if mark in self.remembered:
                return True
        entry = self._entries.get(username)
        compared = entry or self._stand_in(name)
        same = hmac.compare_digest(self._compute(password, compared.salt, compared.iterations), compared.hash)
        if entry is None or not same:
            return False
        with self._lock:
            if len(self.remembered) >= self._max_remembered:
                del self.remembered[next(iter(self.remembered))]
            self.remembered[mark] = None
        return True

    def _mark_of(self, name: bytes, password: bytes) -> bytes:
        return self._mark(len(name).to_bytes(4, "big") + name + password)

    def _mark(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")

    def _stand_in(self, name: bytes) -> _Entry:
        # Chosen by the name, since files mix $6$, Mosquitto's 101 iterations and ours: an unknown name
        # that took a different time at each try would tell itself apart from a known one.
        return self._stand_ins[int.from_bytes(self._mark(name)[:8], "big") % len(self._stand_ins)]


def set_password(
    path: Path,
    username: str,
    password: bytes,
    *,
    create: bool = False,
    iterations: int = ITERATIONS,
    must_be: bool | None = None,
) -> bool:
    """Give `username` this password; True when the user is new. `create`: in a file that must not exist.

    `must_be`: whether there must be such a user before, if that matters. One who is disabled stays so."""
    _validate_username(username)
    if not password:
        raise ConfigError("an empty password")
    if len(password) > MAX_NAME_BYTES:
        raise ConfigError(f"a password of {len(password)} bytes; at most {MAX_NAME_BYTES} fit into CONNECT")
    if b"\0" in password:
        raise ConfigError("a password that contains U+0000, at which Mosquitto would end it")
    if not 0 < iterations <= MAX_ITERATIONS:
        raise ConfigError(f"{iterations} iterations: not a number from 1 to {MAX_ITERATIONS}")
    entry = f"{username}:{_Entry.make(password, iterations)}"
    with locked_directory(path):
        if create:
            if path.exists():
                raise ConfigError(f"{path}: exists already; without -c the user is added to it")
            replace_lines(path, [entry])
            return True
        lines, line = _find(path, username)
        disabled = _find_disabled(lines, username) if line is None else None
        is_known = line is not None or disabled is not None
        if must_be is not None and must_be is not is_known:
            kind = NoSuchUserError if must_be else ConfigError
            raise kind(f'{path}: {"no user" if must_be else "there is a user"} "{username}"')
        if line is not None:
            lines[line] = entry
        elif disabled is not None:
            lines[disabled] = f"{DISABLED}{entry}"
        else:
            lines.append(entry)
        replace_lines(path, lines)
        return not is_known


def delete_user(path: Path, username: str) -> None:
    """Also one who is disabled."""
    with locked_directory(path):
        lines, line = _find(path, username)
        if line is None:
            line = _find_disabled(lines, username)
        if line is None:
            raise NoSuchUserError(f'{path}: no user "{username}"')
        del lines[line]
        replace_lines(path, lines)


class NoSuchUserError(ConfigError):
    """The file has no such user."""


class UserLine(NamedTuple):
    name: str
    is_enabled: bool


def list_users(path: Path) -> list[UserLine]:
    """In the file's order. Raises ConfigError."""
    lines, _ = _find(path, "")
    found = [UserLine(name, is_enabled=True) for _, name, _ in _users("\n".join(lines), path)]
    return [*found, *(UserLine(name, is_enabled=False) for name in _disabled(lines))]


def _disabled(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith(DISABLED):
            yield line.removeprefix(DISABLED).partition(":")[0]


def set_enabled(path: Path, username: str, is_enabled: bool) -> bool:
    """Was it otherwise before? Raises ConfigError for a user who is not in the file."""
    with locked_directory(path):
        lines, enabled = _find(path, username)
        disabled = _find_disabled(lines, username)
        if enabled is None and disabled is None:
            raise NoSuchUserError(f'{path}: no user "{username}"')
        if (enabled is not None) is is_enabled:
            return False
        if enabled is not None:
            lines[enabled] = f"{DISABLED}{lines[enabled]}"
        elif disabled is not None:
            lines[disabled] = lines[disabled].removeprefix(DISABLED)
        replace_lines(path, lines)
        return True


def _find_disabled(lines: list[str], username: str) -> int | None:
    beginning = f"{DISABLED}{username}:"
    return next((number for number, line in enumerate(lines) if line.startswith(beginning)), None)


def _validate_username(username: str) -> None:
    if not username or username != username.strip():
        raise ConfigError(f'the username "{username}" is empty, or begins or ends with a blank')
    if username.startswith("#"):
        raise ConfigError(f'the username "{username}" begins with "#": its line would be a comment')
    if ":" in username:
        raise ConfigError(f'the username "{username}" contains ":", which ends the name in the file')
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in username):
        raise ConfigError(f"the username {username!r} contains a control character")
    if len(username.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise ConfigError(f"a username of more than {MAX_NAME_BYTES} bytes")


def _users(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """(line from 0, username, hash) of each user, with names used twice refused."""
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")):
        if line.startswith("#") or not line.strip():
            continue
        username, colon, entry = line.partition(":")
        username = username.strip()
        if not colon or not username:
            raise ConfigError(f"{path}:{number + 1}: not USER:HASH")
        if username in seen:
            raise ConfigError(f'{path}:{number + 1}: "{username}" is in line {seen[username] + 1} already')
        seen[username] = number
        yield number, username, entry.strip()


def _parse(text: str, path: Path) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for number, username, entry in _users(text, path):
        try:
            entries[username] = _Entry.parse(entry)
        except ConfigError as error:
            raise ConfigError(f'{path}:{number + 1}: "{username}": {error}') from None
    return entries


def _find(path: Path, username: str) -> tuple[list[str], int | None]:
    """The file's lines, and where among them the user's is. A damaged file is refused, not rewritten."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; -c creates it")
    text = read_utf8(path)
    _parse(text, path)
    numbers = {name: number for number, name, _ in _users(text, path)}
    return text.removesuffix("\n").split("\n") if text else [], numbers.get(username)
