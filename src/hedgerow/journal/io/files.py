"""What lies in a journal's directory: names that say what is inside, the writer's lock, and small files.

    journal-1-ID                        empty; the format and the journal's lasting id
    lock                                held by the one writer
    NUMBER-POSITION-MARKER.segment      the log: see hedgerow.log
    NUMBER.times                        when what is in a segment was received; see times.py
    durable                             up to where it is durable, for readers of other processes
    ids                                 which messages have been here; see ids.py
    committed-NAME                      up to where the reader NAME has taken everything

What must never be lost is in names, which a torn write or a flipped bit does not reach. `durable` is
written after each sync and never synced itself: after a power cut it may be older than the truth, which
hides frames until the next writer looks, but never newer. Without it a reader might use frames that a power
cut takes away, and their positions would mean other messages afterwards.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct

from hedgerow.errors import StoreError
from hedgerow.log.checksum import crc32
from hedgerow.log.files import replace_file, sync_directory

FORMAT = 1
MAX_NAME = 100  # of a reader: what file systems take, with room for the prefix

_JOURNAL = re.compile(r"journal-\d+-.+")
_READER = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")
_POSITION = Struct("<QI")
_TRIES = 50  # A reader may meet the writer in the middle of 12 bytes.


class InUseError(StoreError):
    """Another process writes the journal."""


def is_journal(directory: Path) -> bool:
    """Is there a journal, of whatever format?"""
    return bool(_names(directory))


def journal_id(directory: Path) -> str:
    """The lasting id of the journal there. StoreError: there is none, or of a format that we do not know."""
    names = _names(directory)
    if not names:
        raise StoreError(f"{directory} holds no journal; name the directory that a node or a recorder writes")
    _, written_format, text = min(names).split("-", 2)
    if written_format != str(FORMAT):
        raise StoreError(
            f"the journal in {directory} has format {written_format}; this version reads {FORMAT}"
        )
    return text


@contextmanager
def lock_for_writing(directory: Path) -> Iterator[str]:
    """Make the directory and its journal where there is none, and keep other writers out. Gives its id."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot keep a journal in {directory}: {error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise InUseError(
                f"the journal in {directory} is being written by another process (pid {holder}); "
                "stop it, or give this one a directory of its own"
            ) from None
        with suppress(OSError):  # On a full disk nobody learns the pid; the lock holds all the same.
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        if not is_journal(directory):
            _create(directory)
        yield journal_id(directory)
    finally:
        os.close(lock)


def _create(directory: Path) -> None:
    try:
        (directory / f"journal-{FORMAT}-{secrets.token_hex(16)}").touch(mode=0o600)
        sync_directory(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise StoreError(f"cannot keep a journal in {directory}: {error}") from error


def _names(directory: Path) -> list[str]:
    """That a journal bears. People keep other things there too, such as a directory journal-old."""
    return [path.name for path in directory.glob("journal-*") if _JOURNAL.fullmatch(path.name)]


def open_durable(directory: Path) -> int:
    """The file that tells readers of other processes; for `tell_durable`."""
    return os.open(directory / "durable", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def tell_durable(descriptor: int, position: int) -> None:
    os.pwrite(descriptor, _encode_position(position), 0)


def durable_position(directory: Path) -> int | None:
    """Every position below it is durable. None: nobody said so (a journal that was copied in part)."""
    for _ in range(_TRIES):
        try:
            data = (directory / "durable").read_bytes()
        except FileNotFoundError:
            return None
        if (position := _decode_position(data)) is not None:
            return position
    return None


def store_committed(directory: Path, reader: str, position: int) -> None:
    """The reader of this name will not ask again for what is below `position`."""
    if not _READER.fullmatch(reader) or reader.endswith(".new"):
        raise ValueError(f"not a name of a reader: {reader!r}")
    journal_id(directory)
    replace_file(directory / f"committed-{reader}", _encode_position(position))


def committed_positions(directory: Path) -> dict[str, int]:
    """By reader. One whose file is damaged is said to have committed nothing, so that nothing goes for it."""
    paths = [path for path in directory.glob("committed-*") if path.suffix != ".new"]
    return {
        path.name.removeprefix("committed-"): _decode_position(path.read_bytes()) or 0
        for path in sorted(paths)
    }


def _encode_position(position: int) -> bytes:
    number = position.to_bytes(8, "little")
    return number + crc32(number, FORMAT).to_bytes(4, "little")


def _decode_position(data: bytes) -> int | None:
    if len(data) != _POSITION.size:
        return None
    position, checksum = _POSITION.unpack(data)
    return int(position) if crc32(data[:8], FORMAT) == checksum else None
