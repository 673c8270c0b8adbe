"""The end of a log on the disk: frames are added to the newest segment and synced.

A writer never adds to a segment that another life of it has begun, and after a write or a sync that failed
it begins a new one too: after a failed sync the system may hold pages for written that are not, so all that
was not durable is written again elsewhere. What the failure left behind in the old segment is cut off;
where even that fails, readers do not look at it, because the next segment begins at the same position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import NamedTuple

from hedgerow.log import files
from hedgerow.log.files import Segment
from hedgerow.log.frame import HEADER, Group

_TIMES_AT = 7  # of the header's fields: the earliest, and then the latest
_NEVER = 2**63 - 1


class FramePlace(NamedTuple):
    """Where a frame lies."""

    segment: Segment
    offset: int
    size: int


class Appender:
    """`on_sealed` is given each segment that gets no more frames, with the earliest and the latest time at
    which what is in it was received, in microseconds."""

    def __init__(
        self,
        directory: Path,
        next_number: int,
        segment_bytes: int,
        on_sealed: Callable[[Segment, int, int], None] | None = None,
    ) -> None:
        self._directory = directory
        self._next_number = next_number
        self._segment_bytes = segment_bytes
        self._segment: Segment | None = None
        self._file = -1
        self._durable_bytes = 0
        self._on_sealed = on_sealed
        self._earliest = _NEVER
        self._latest = -_NEVER
        self._last: tuple[Segment, int] | None = None  # where the last commit was added

    @property
    def is_new(self) -> bool:
        """The next commit begins a segment."""
        return self._segment is None

    def commit(self, groups: Iterable[Group]) -> list[FramePlace]:
        """When this returns, they are durable. OSError: none of them is there, and they may be given
        again."""
        places = []
        end = self._durable_bytes
        earliest, latest = self._earliest, self._latest
        try:
            for group in groups:
                segment = self._segment or self._begin(group.first_position)
                parts = group.encode(segment.marker)
                times = HEADER.unpack_from(parts[0])[_TIMES_AT : _TIMES_AT + 2]
                earliest, latest = min(earliest, times[0]), max(latest, times[1])
                files.write_parts(self._file, parts)
                size = sum(map(len, parts))
                places.append(FramePlace(segment, end, size))
                end += size
            os.fdatasync(self._file)
            if not os.fstat(self._file).st_nlink:
                # It takes what is written, and nobody will ever find it again.
                raise OSError(ENOENT, "its newest segment was removed while it was written")
        except BaseException:
            self._abandon()
            raise
        assert self._segment is not None
        self._last = (self._segment, self._durable_bytes)
        self._durable_bytes = end
        self._earliest, self._latest = earliest, latest
        if self._durable_bytes >= self._segment_bytes:
            self.close()
        return places

    def take_back(self) -> None:
        """Remove what the last commit added: it is not to be, and comes again at the same positions."""
        if self._last is None:
            return
        segment, size = self._last
        self._last = None
        self.close()
        with suppress(OSError):
            if size:
                os.truncate(segment.path, size)
            else:
                segment.path.unlink()

    def close(self) -> None:
        """The next commit begins a segment."""
        if self._segment is not None:
            os.close(self._file)
            if self._on_sealed is not None and self._durable_bytes:
                self._on_sealed(self._segment, self._earliest, self._latest)
            self._segment = None
            self._durable_bytes = 0
            self._earliest, self._latest = _NEVER, -_NEVER

    def _begin(self, position: int) -> Segment:
        segment = files.new_segment(self._directory, self._next_number, position)
        self._next_number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(segment.path, flags, 0o600)
        self._segment = segment
        files.sync_directory(self._directory)
        return segment

    def _abandon(self) -> None:
        self._last = None
        if self._segment is None:
            return
        with suppress(OSError):
            if self._durable_bytes:
                os.ftruncate(self._file, self._durable_bytes)
            else:
                self._segment.path.unlink()
        self.close()
