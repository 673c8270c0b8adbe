"""When what is in a segment was received, in a small file beside it: `NUMBER.times`.

Whoever removes what is old asks every half a minute, inside the broker, and a segment has up to hundreds of
thousands of frames. The file is written when a segment is full, or by the next writer of the journal. It says
nothing that the segment does not say itself: where it is missing or damaged, the segment is asked, once.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

from hedgerow.log import scan
from hedgerow.log.files import Segment
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


def times_of(segment: Segment) -> Times | None:
    """None: nothing was received. FileNotFoundError: there is no such segment."""
    known = _load(segment)
    if known is not None:
        return known
    with scan.opened(segment) as file:
        frames = [item for item in file.frames() if isinstance(item, LogFrame)]
    if not frames:
        return None
    found = Times(min(frame.earliest for frame in frames), max(frame.latest for frame in frames))
    store_times(segment, found.earliest, found.latest)
    return found


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
