"""Small files that people and programs change line by line: users, tokens.

A new file takes the old one's place in one step, so that whoever reads sees the old or the new whole, and two
changes at once happen one after the other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hedgerow.errors import ConfigError


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Two changes at once happen one after the other, so that neither is lost."""
    try:
        directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
        with suppress(OSError):  # some file systems cannot; the file itself is safe
            os.fsync(directory)
    finally:
        os.close(directory)


def replace_lines(path: Path, lines: Sequence[str]) -> None:
    """Put the new file in the old one's place in one step: whoever reads sees the old or the new whole."""
    target = path.resolve()  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if target.exists():
                _keep_owner(target.stat(), file.fileno())
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _keep_owner(old: os.stat_result, descriptor: int) -> None:
    """The broker that reads the file may run as another user than the one who changes it."""
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    # Someone set 0640 on purpose, for the broker's group; 0644 is what a umask leaves behind.
    if stat.S_IMODE(old.st_mode) == 0o640:
        os.fchmod(descriptor, 0o640)
