"""The end of a journal on the disk: frames are added to the newest segment and synced.

A writer never adds to a segment that another life of it has begun, and after a write or a sync that failed
it begins a new one too: after a failed sync the system may hold pages for written that are not, so all that
was not durable is written again elsewhere. What the failure left behind in the old segment is cut off;
where even that fails, readers do not look at it, because the next segment begins at the same position.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path

from hedgerow.journal.io import files
from hedgerow.journal.io.frame import Group


class Appender:
    def __init__(self, directory: Path, next_number: int, segment_bytes: int) -> None:
        self._directory = directory
        self._next_number = next_number
        self._segment_bytes = segment_bytes
        self._segment: files.Segment | None = None
        self._file = -1
        self._durable_bytes = 0

    @property
    def is_new(self) -> bool:
        """The next commit begins a segment."""
        return self._segment is None

    def commit(self, groups: Iterable[Group]) -> None:
        """When this returns, they are durable. OSError: none of them is there, and they may be given
        again."""
        try:
            for group in groups:
                segment = self._segment or self._begin(group.first_position)
                for part in group.encode(segment.marker):
                    files.write_all(self._file, part)
            os.fdatasync(self._file)
            if not os.fstat(self._file).st_nlink:
                # It takes what is written, and nobody will ever find it again.
                raise OSError(ENOENT, "its newest segment was removed while it was written")
        except BaseException:
            self._abandon()
            raise
        self._durable_bytes = os.lseek(self._file, 0, os.SEEK_CUR)
        if self._durable_bytes >= self._segment_bytes:
            self.close()

    def close(self) -> None:
        if self._segment is not None:
            os.close(self._file)
            self._segment = None
            self._durable_bytes = 0

    def _begin(self, position: int) -> files.Segment:
        segment = files.new_segment(self._directory, self._next_number, position)
        self._next_number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(segment.path, flags, 0o600)
        self._segment = segment
        files.sync_directory(self._directory)
        return segment

    def _abandon(self) -> None:
        if self._segment is None:
            return
        with suppress(OSError):
            if self._durable_bytes:
                os.ftruncate(self._file, self._durable_bytes)
            else:
                self._segment.path.unlink()
        self.close()
