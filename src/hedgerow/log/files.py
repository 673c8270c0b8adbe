"""What lies in the directory of a log: segments, and small files that are replaced whole.

    NUMBER-POSITION-MARKER.segment      frames, in the order of NUMBER; see frame.py

What must never be lost is in names, which a torn write or a flipped bit does not reach.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MAX_PARTS = 1_024  # of one call of the system: IOV_MAX
_SEGMENT = re.compile(r"(\d{8,})-(\d{20})-([0-9a-f]{16})\.segment")


class Segment(NamedTuple):
    path: Path
    number: int
    first_position: int
    marker: bytes
    """Eight random bytes at the start of each frame. A payload cannot hold them by chance or by intent, so
    a search for the next frame after damage finds no frame that a publisher made up."""


def segments(directory: Path) -> list[Segment]:
    """Oldest first. A missing directory has none."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _SEGMENT.fullmatch(name))]
    found = [
        Segment(directory / match[0], int(match[1]), int(match[2]), bytes.fromhex(match[3]))
        for match in matches
    ]
    return sorted(found, key=lambda segment: segment.number)


def new_segment(directory: Path, number: int, first_position: int) -> Segment:
    marker = secrets.token_bytes(8)
    path = directory / f"{number:08d}-{first_position:020d}-{marker.hex()}.segment"
    return Segment(path, number, first_position, marker)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """The file has the old content or the new, whatever happens."""
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.replace(path)
    sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def write_parts(descriptor: int, parts: Sequence[bytes]) -> None:
    """One behind the other, from where they are."""
    for begin in range(0, len(parts), _MAX_PARTS):
        some = parts[begin : begin + _MAX_PARTS]
        written = os.writev(descriptor, some)
        for part in some:
            if written < len(part):  # A disk that is nearly full takes less.
                write_all(descriptor, part[max(written, 0) :])
            written -= len(part)
