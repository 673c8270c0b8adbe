"""When what is in a segment was received, in a small file beside it: `NUMBER.times`.

Whoever removes what is old asks every half a minute, inside the broker, and a segment has up to hundreds of
thousands of frames. The file is written when a segment is full, or by the next writer of the journal. It says
nothing that the segment does not say itself: where it is missing or damaged, the segment is asked, once.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from struct import Struct

from hedgerow.log import scan
from hedgerow.log.checksum import crc32
from hedgerow.log.files import Segment, segments
from hedgerow.log.frame import LogFrame

_TIMES = Struct("<8sqq")  # the segment's marker, the earliest and the latest, in microseconds
_CHECKSUM = Struct("<I")


class Times:
    """The earliest and the latest that was received."""

    __slots__ = ("earliest", "latest")

    def __init__(self, earliest: int, latest: int) -> None:
        self.earliest = earliest
        self.latest = latest


def times_path(segment: Segment) -> Path:
    return segment.path.with_name(f"{segment.number:08d}.times")


def store_times(segment: Segment, earliest: int, latest: int) -> None:
    """A disk that does not take it costs a look at the segment, later."""
    data = _TIMES.pack(segment.marker, earliest, latest)
    with suppress(OSError):
        times_path(segment).write_bytes(data + _CHECKSUM.pack(crc32(data)))


def times_of(segment: Segment, keeps: bool = True) -> Times | None:
    """None: nothing was received. FileNotFoundError: there is no such segment. `keeps`: it is full, and what
    is found may be noted."""
    known = _load(segment)
    if known is not None:
        return known
    with scan.opened(segment) as file:
        frames = [item for item in file.frames() if isinstance(item, LogFrame)]
    if not frames:
        return None
    found = Times(min(frame.earliest for frame in frames), max(frame.latest for frame in frames))
    if keeps:
        store_times(segment, found.earliest, found.latest)
    return found


def first_since(directory: Path, at: int, end: int) -> int:
    """The position of the first message that was received at this time, in microseconds, or later; `end` if
    none below it was.

    Where the clock was set back in between, the one behind all that is surely older.
    """
    found = segments(directory)
    first = found[0].first_position if found else end
    for segment, following in zip(reversed(found), [None, *found[:0:-1]], strict=False):
        # Of the newest there is no note: it grows.
        times = _load(segment) if following is not None else None
        if times is not None and times.latest < at:
            first = following.first_position if following is not None else end
            break
        first = segment.first_position
        if times is None and _begins_before(segment, at):
            break
    for segment, following in zip(found, [*found[1:], None], strict=False):
        limit = end if following is None else min(end, following.first_position)
        if limit > first and (position := _since_in(segment, limit, at)) is not None:
            return position
    return end


def _begins_before(segment: Segment, at: int) -> bool:
    with suppress(FileNotFoundError), scan.opened(segment) as file:
        first = next((item for item in file.frames() if isinstance(item, LogFrame)), None)
        return first is not None and first.earliest < at
    return False


def _since_in(segment: Segment, limit: int, at: int) -> int | None:
    with suppress(FileNotFoundError), scan.opened(segment) as file:
        for item in file.frames_after(lambda frame: frame.latest < at):
            if not isinstance(item, LogFrame) or item.latest < at:
                continue
            meta = item.read_meta(file)
            position = item.first_position
            for rows, received_at in (
                zip(item.numbers(meta, "rows"), item.numbers(meta, "received_at"), strict=True)
                if meta is not None
                else ()
            ):
                if position >= limit:
                    return None
                if received_at >= at:
                    return position
                position += rows
    return None


def _load(segment: Segment) -> Times | None:
    try:
        data = times_path(segment).read_bytes()
    except OSError:
        return None
    if len(data) != _TIMES.size + _CHECKSUM.size:
        return None
    marker, earliest, latest = _TIMES.unpack_from(data)
    if marker != segment.marker or _CHECKSUM.unpack_from(data, _TIMES.size)[0] != crc32(data[: _TIMES.size]):
        return None
    return Times(earliest, latest)
