"""A segment of the log, written anew with less in it: its name, its place and the positions stay.

Whoever opens the log, even after a crash, finds the old file or the new one, each of them whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hedgerow.broker.stored import LoggedMessage
from hedgerow.log.files import Segment, write_all
from hedgerow.log.messages import to_groups

_ENDING = ".segment.new"


def write_anew(
    segment: Segment, messages: Sequence[LoggedMessage], most_bytes: int
) -> list[tuple[int, int, int]] | None:
    """To a file beside it, durably, these messages, in order.

    For each frame its first position, where it begins, and its bytes. None: it would take more than
    `most_bytes`, and stays as it is.
    """
    parts: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    offset = begin = 0
    while begin < len(messages):
        position, _, at = messages[begin]
        end = begin + 1
        while (
            end < len(messages)
            and messages[end].position == position + end - begin
            and messages[end].at == at
        ):
            end += 1
        for group in to_groups([each.message for each in messages[begin:end]], position, at):
            encoded = group.encode(segment.marker)
            size = sum(map(len, encoded))
            parts += encoded
            places.append((group.first_position, offset, size))
            offset += size
        if offset > most_bytes:
            return None
        begin = end
    file = os.open(_unfinished(segment), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(file, b"".join(parts))
        os.fsync(file)
    except BaseException:
        _unfinished(segment).unlink()  # The disk may be full of it.
        raise
    finally:
        os.close(file)
    return places


def take_place(segment: Segment) -> None:
    """Of the old file. The directory is to be synced then."""
    _unfinished(segment).replace(segment.path)


def remove_unfinished(directory: Path) -> None:
    """What a crash has left."""
    for path in directory.glob(f"*{_ENDING}"):
        path.unlink()


def _unfinished(segment: Segment) -> Path:
    return segment.path.with_suffix(_ENDING)
