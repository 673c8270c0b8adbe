"""Where the frames of a segment begin, in memory: a position is found without a look at the disk.

Of a segment that this life of the writer has begun it grows as frames are written. Of an older one it is made
when the segment is first read, from the headers, which takes milliseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from hedgerow.log.files import Segment
from hedgerow.log.frame import LogFrame, SegmentFile


class IndexedSegment:
    __slots__ = ("_firsts", "_offsets", "bytes", "end", "is_indexed", "segment", "used")

    def __init__(self, segment: Segment, end: int, size: int, is_indexed: bool = False) -> None:
        self.segment = segment
        self.end = end
        """No frame of it counts from this position on: there the next segment begins, or the log ends."""
        self.bytes = size
        self.is_indexed = is_indexed
        self.used = 0  # when it was last looked at, by whoever forgets those that were not
        self._firsts = array("Q")
        self._offsets = array("I")

    @property
    def first_position(self) -> int:
        return self.segment.first_position

    @property
    def frames(self) -> int:
        """Of which it is known where they begin."""
        return len(self._firsts)

    def add(self, first_position: int, offset: int, size: int) -> None:
        """A frame behind the last."""
        self._offsets.append(offset)
        self._firsts.append(first_position)
        self.bytes = offset + size

    def cut(self, first_position: int) -> None:
        """Frames from this position on are gone."""
        at = bisect_right(self._firsts, first_position - 1)
        if at < len(self._firsts):
            self.bytes = self._offsets[at]
            del self._firsts[at:], self._offsets[at:]

    def make(self, file: SegmentFile) -> int:
        """From the headers; the position behind the last frame."""
        self.forget()
        end = self.first_position
        for item in file.frames():
            if isinstance(item, LogFrame):
                self._offsets.append(item.offset)
                self._firsts.append(item.first_position)
                end = item.end_position
        self.is_indexed = True
        return end

    def forget(self) -> None:
        self._firsts, self._offsets = array("Q"), array("I")
        self.is_indexed = False

    def find(self, position: int) -> int:
        """The number of the last frame that begins at this position or before it; -1 if none does."""
        return bisect_right(self._firsts, position) - 1

    def first_of(self, number: int) -> int:
        """The first position of this frame; behind the last, where the segment ends."""
        return self._firsts[number] if number < len(self._firsts) else self.end

    def span(self, number: int) -> tuple[int, int]:
        """Where in the file it begins, and how many bytes there are until the next."""
        begin = self._offsets[number]
        end = self._offsets[number + 1] if number + 1 < len(self._offsets) else self.bytes
        return begin, end - begin
