"""Tokens by which programs use the API, and the file that has them.
 A line is `NAME:RIGHT,RIGHT…:ENDS:HASH:USER`. ENDS is when it ends, as seconds since 1970, or nothing; HASH
is SHA-256 of the token, which is 32 random bytes: nobody finds those by trying, so it needs no slow hash.
USER is as whom the ACL sees what the token publishes and reads; nothing is a client without a name. The token
itself is shown once, when it is made. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.node.api import RIGHTS
from hedgerow.node.line_files import locked_directory, replace_lines
from hedgerow.node.values import read_utf8

PREFIX = "hg_"  # so that scanners of source code find one that was published by mistake
MAX_TOKENS = 10_000
MAX_LIFE_S = 100 * 366 * 86_400
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
_NAME = re.compile(NAME_PATTERN[1:-1])
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True, frozen=True)
class ApiToken:
    name: str
    rights: frozenset[str]
    ends_at: int | None
    """In seconds since 1970."""
    digest: str
    user: str | None

    def __str__(self) -> str:
        ends_at = "" if self.ends_at is None else str(self.ends_at)
        return f"{self.name}:{','.join(sorted(self.rights))}:{ends_at}:{self.digest}:{self.user or ''}"


class Tokens:
    """Those of one file. Does not change once loaded."""

    def __init__(self, tokens: Iterable[ApiToken] = ()) -> None:
        self._by_digest = {token.digest: token for token in tokens}

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Raises ConfigError that names the file, the line and the reason."""
        return cls(_parse(read_utf8(path), path).values())

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, token: str, now: float) -> ApiToken | None:
        """Whose the token is; None: nobody's, or it has ended."""
        found = self._by_digest.get(digest_of(token))
        return None if found is None or (found.ends_at is not None and found.ends_at <= now) else found

    def by_name(self) -> list[ApiToken]:
        return sorted(self._by_digest.values(), key=lambda token: token.name)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def create_token(
    path: Path, name: str, rights: Iterable[str], user: str | None = None, lasts_s: float | None = None
) -> str:
    """The new token, which is nowhere else. The file is made if there is none. Raises ConfigError."""
    wanted = frozenset(rights)
    _check(name, wanted, user)
    token = PREFIX + secrets.token_urlsafe(32)
    ends_at = None if lasts_s is None else int(time.time() + lasts_s)
    with locked_directory(path):
        lines = read_utf8(path).removesuffix("\n").split("\n") if path.exists() else []
        known = _parse("\n".join(lines), path)
        if name in known:
            raise ConfigError(f'{path}: there is a token "{name}" already')
        if len(known) >= MAX_TOKENS:
            raise ConfigError(f"{path}: has {MAX_TOKENS} tokens already")
        replace_lines(
            path, [*filter(None, lines), str(ApiToken(name, wanted, ends_at, digest_of(token), user))]
        )
    return token


def remove_token(path: Path, name: str) -> None:
    with locked_directory(path):
        lines = read_utf8(path).removesuffix("\n").split("\n")
        if name not in _parse("\n".join(lines), path):
            raise ConfigError(f'{path}: no token "{name}"')
        replace_lines(
            path, [line for line in lines if line.startswith("#") or line.partition(":")[0] != name]
        )


def _check(name: str, rights: frozenset[str], user: str | None) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f'"{name}" is not 1 to 64 letters, digits, ".", "_" or "-"')
    if not rights or (unknown := sorted(rights - RIGHTS.keys())):
        raise ConfigError(f"{unknown[0] if rights else 'nothing'} is none of the rights {', '.join(RIGHTS)}")
    if user is not None and (not user or any(ord(letter) < 32 for letter in user)):
        raise ConfigError(f"the user {user!r} is empty or contains a control character")


def _parse(text: str, path: Path) -> dict[str, ApiToken]:
    tokens: dict[str, ApiToken] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            token = _parse_line(line)
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
        if token.name in tokens:
            raise ConfigError(f'{path}:{number}: there is a token "{token.name}" already')
        tokens[token.name] = token
    return tokens


def _parse_line(line: str) -> ApiToken:
    fields = line.split(":", 4)
    if len(fields) != 5:
        raise ConfigError("not NAME:RIGHTS:ENDS:HASH:USER")
    name, words, ends_at, digest, user = fields
    rights = frozenset(filter(None, words.split(",")))
    _check(name, rights, user or None)
    if ends_at and not (ends_at.isascii() and ends_at.isdecimal() and len(ends_at) < 16):
        raise ConfigError(f'"{ends_at}" is not a time in seconds since 1970')
    if not _HASH.fullmatch(digest):
        raise ConfigError("the hash is not 64 hexadecimal digits")
    return ApiToken(name, rights, int(ends_at) if ends_at else None, digest, user or None)
