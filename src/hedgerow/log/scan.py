"""Frames of a log from one position to another, and the gaps between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hedgerow.log.files import Segment, segments
from hedgerow.log.frame import Damage, LogFrame, SegmentFile

_END = 2**64


class Gap(NamedTuple):
    """Positions from `start` to before `end` that cannot be read."""

    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"positions {self.start} to {self.end - 1}: {self.reason}"


@contextmanager
def opened(segment: Segment) -> Iterator[SegmentFile]:
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield SegmentFile(descriptor, segment.marker)
    finally:
        os.close(descriptor)


def frames(
    directory: Path, start: int, end: int | None, on_gap: Callable[[Gap], None]
) -> Iterator[tuple[Segment, SegmentFile, LogFrame]]:
    """Each frame with a position from `start` to before `end`, with its segment, open as a file.

    `on_gap` hears of positions that no frame holds. With `end` None it goes on as far as there are frames.
    A segment speaks of positions up to where the next begins: what a write that failed has left behind that
    was written again there.
    """
    expected = start
    reason = "removed by retention"
    found = segments(directory)
    for segment, following in zip(found, [*found[1:], None], strict=False):
        limit = _END if end is None else end
        if following is not None:
            limit = min(limit, following.first_position)
        if limit <= expected:
            continue
        try:
            with opened(segment) as file:
                for item in file.frames(expected):
                    if isinstance(item, Damage):
                        reason = (
                            f"damage at byte {item.offset} to {item.end_offset - 1} of {segment.path.name}"
                        )
                        continue
                    if limit <= item.first_position:
                        break
                    if item.end_position <= expected:
                        continue
                    if item.first_position > expected:
                        on_gap(Gap(expected, item.first_position, reason))
                    yield segment, file, item
                    expected = item.end_position
                    reason = f"missing behind byte {item.offset + item.size} of {segment.path.name}"
        except FileNotFoundError:
            continue  # Retention has been here since the directory was read.
    if end is not None and expected < end:
        on_gap(Gap(expected, end, reason))


def damage_in(segment: Segment, frame: LogFrame, part: str) -> Gap:
    where = f"damage in the {part} of the frame at byte {frame.offset} of {segment.path.name}"
    return Gap(frame.first_position, frame.end_position, where)
