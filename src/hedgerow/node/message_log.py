"""The log of what waits for durable sessions: each message once, read by position.

Guarantees. When `commit` returns, what was written before it survives `kill -9` and power loss; when it
raises, nothing of it is there, and the same may be written again at the same positions. A message comes
back as it was written. Damage never stops anything: messages of a frame that cannot be read are left out,
counted (`damaged`) and logged once, with file and offset.

How. Frames of the journal's format in segments of its form (`hedgerow.log`). `write` packs them in memory
and `read` gives messages, both on the event loop's thread; `commit`, `confirm`, `remove` and `shrink` are for
a helper thread, and so is `abandon` after a commit. Where frames begin is known in memory (`log/index.py`),
so a page costs one read of the file for each frame, and none while the frame is among those read last: a
thousand sessions that read the same pages share their messages. Opening looks at names, and into the newest
segment, to find its end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from errno import EIO, ENOENT, ESTALE
from itertools import pairwise, repeat
from pathlib import Path
from typing import Self, cast

from hedgerow.broker.changes import WhoWaits
from hedgerow.broker.stored import LoggedMessage, Run
from hedgerow.errors import StoreError, reason_of
from hedgerow.log import scan
from hedgerow.log.appender import Appender, FramePlace
from hedgerow.log.files import segments, sync_directory
from hedgerow.log.frame import Group, LogFrame, SegmentFile
from hedgerow.log.index import IndexedSegment
from hedgerow.log.messages import Rows, read_notes, to_groups
from hedgerow.message import Message
from hedgerow.node.log_shrinking import remove_unfinished, take_place, write_anew

logger = logging.getLogger(__name__)

DIRECTORY = "log"
MAX_SEGMENT_BYTES = 1024 * 1024 * 1024  # Whoever writes says when a segment begins; this is for 32 bits.
CACHE_BYTES = 16 * 1024 * 1024
MAX_FRAMES_INDEXED = 1_000_000  # 12 MB. A log of single messages has 35,000 in a segment of 8 MiB.
MAX_OPEN = 32
_AHEAD_BYTES = 1024 * 1024  # What the system is asked to read before it is needed,
_STEP_BYTES = 256 * 1024  # once in so many bytes
_MANY = 4  # Who takes this part of a frame's messages, or more, has all of them made at once;
_MANY_IN_ALL = 16  # and so does whoever comes when this part was made for others, one by one.
_ROW_BYTES = 450  # What a message takes in memory beside its payload
_LOST = {EIO, ENOENT, ESTALE}  # Other errors pass: no descriptor is free, say.


@dataclass(slots=True, frozen=True)
class Note:
    """Messages in a row, and who waits for them."""

    position: int
    count: int
    waiting: list[tuple[int, int, list[int]]]
    """(session key, flags, subscription identifiers)"""
    size: int
    """About that of each."""
    at: float


@dataclass(slots=True, frozen=True)
class ReadBounds:
    """What reading may take."""

    cache_bytes: int = CACHE_BYTES
    frames_indexed: int = MAX_FRAMES_INDEXED
    """Of all segments but the newest. The one that was read last stays, however many it has."""
    open_files: int = MAX_OPEN


DEFAULT_BOUNDS = ReadBounds()


class DiskLog:
    """Implements `broker.stored.MessageLog`."""

    def __init__(
        self, directory: Path, found: list[IndexedSegment], next_number: int, end: int, bounds: ReadBounds
    ) -> None:
        self.directory = directory
        self.bounds = bounds
        self.damaged = 0
        """Messages that could not be read."""
        self.written_bytes = 0
        """In this life."""
        self._segments = found
        self._firsts = [each.first_position for each in found]
        self._end = end  # of what is durable
        self._bytes = sum(each.bytes for each in found)
        self._appender = Appender(directory, next_number, MAX_SEGMENT_BYTES)
        self._written: list[Group] = []
        self._begins_segment = False
        self._committed_from: int | None = None  # what `abandon` takes back
        self._lock = threading.Lock()  # what follows, and the three above; held for memory and reads only
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors, by number of the segment
        self.pages: OrderedDict[int, _Page] = OrderedDict()  # by first position
        self.page_bytes = 0
        self._reported: set[tuple[int, int]] = set()  # (number of the segment, offset of the damage)
        self._uses = 0
        self._failure: str | None = None

    @classmethod
    def open(cls, directory: Path, next_position: int = 1, bounds: ReadBounds = DEFAULT_BOUNDS) -> Self:
        """Made when there is none. Positions below `next_position` were given before. Raises StoreError."""
        try:
            if not directory.exists():
                directory.mkdir(mode=0o700)
                sync_directory(directory.parent)
            remove_unfinished(directory)
            listed = segments(directory)
            found = []
            for segment, following in pairwise(listed):
                if segment.first_position < following.first_position:
                    size = segment.path.stat().st_size
                    found.append(IndexedSegment(segment, following.first_position, size))
                else:  # The next was written instead of it.
                    segment.path.unlink()
            end = 1
            if listed:
                newest = IndexedSegment(listed[-1], 0, listed[-1].path.stat().st_size)
                with scan.opened(newest.segment) as file:
                    newest.end = end = newest.make(file)
                found.append(newest)
        except OSError as error:
            raise StoreError(f"cannot use {directory}: {reason_of(error)}") from error
        next_number = listed[-1].number + 1 if listed else 1
        return cls(directory, found, next_number, max(end, next_position), bounds)

    # For the loop's thread

    @property
    def next_position(self) -> int:
        """Behind everything that is durable, and behind what was ever given."""
        return self._end

    @property
    def bytes(self) -> int:
        """On the disk."""
        return self._bytes

    @property
    def segments(self) -> list[tuple[int, int]]:
        """In order: the first position, and the bytes."""
        with self._lock:
            return [(each.first_position, each.bytes) for each in self._segments]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Of the segments, in order: the first position, and the one behind the last."""
        with self._lock:
            return [(each.first_position, each.end) for each in self._segments]

    @property
    def frames_indexed(self) -> int:
        """Of which it is known in memory where they begin."""
        with self._lock:
            return sum([each.frames for each in self._segments])

    def notes_from(self, position: int) -> Iterator[Note]:
        """Who waits for what, of all that was written at this position or behind it."""
        for each in [each for each in self._segments if each.end > position]:
            try:
                with scan.opened(each.segment) as file:
                    for frame in file.frames(position):
                        if not isinstance(frame, LogFrame) or frame.end_position <= position:
                            continue
                        meta = frame.read_meta(file)
                        if meta is None or frame.read_payloads(file) is None:
                            continue
                        size = frame.size // frame.rows
                        for first, count, waiting in read_notes(frame, meta):
                            if waiting and first >= position:
                                yield Note(first, count, waiting, size, frame.earliest / 1e6)
            except OSError as error:
                raise StoreError(f"cannot read {each.segment.path}: {reason_of(error)}") from error

    def write(
        self,
        messages: Sequence[Message],
        first_position: int,
        at: float,
        begins_segment: bool = False,
        waiting: Sequence[WhoWaits] = (),
    ) -> None:
        """Pack them; `commit` makes them durable. `waiting`: for each, who waits for it, for `notes_from`."""
        if first_position < self._end or self._written:
            raise RuntimeError(
                f"position {first_position} was given before, or the last are not committed yet"
            )
        self._committed_from = None
        if messages:
            self._written = to_groups(messages, first_position, at, _as_notes(waiting))
            self._begins_segment = begins_segment

    def read(self, runs: Sequence[Run], most_bytes: int) -> tuple[list[LoggedMessage], int]:
        """As `MessageLog.read`. Where nothing can be read for now, it ends before the first that it cannot
        read, and may be called again."""
        found: list[LoggedMessage] = []
        reached = 0
        with self._lock:
            for first, count in runs:
                reached = first
                after = min(first + count, self._end)
                while reached < after:
                    try:
                        page = self._page_at(reached, after)
                    except OSError as error:
                        self._note_failure(error)
                        return found, reached
                    if isinstance(page, int):
                        reached = page
                        continue
                    stop, size = page.cut(reached, min(page.end, after), most_bytes)
                    found += page.messages(reached, stop)
                    most_bytes -= size
                    reached = stop
                    if most_bytes <= 0:
                        return found, reached
                if first + count > after:
                    break
        return found, reached

    # For the helper's thread

    def commit(self) -> None:
        """Make durable what was written. StoreError: nothing of it is."""
        groups, self._written = self._written, []
        if not groups:
            return
        if self._begins_segment:
            self._appender.close()
        try:
            places = self._appender.commit(groups)
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {reason_of(error)}") from error
        with self._lock:
            self._committed_from = groups[0].first_position
            for group, place in zip(groups, places, strict=True):
                self._add(group, place)

    def confirm(self) -> None:
        """What was committed stays."""
        self._committed_from = None

    def abandon(self) -> None:
        """Drop what was written, and take back what was committed and not confirmed.

        Where the disk does not let go of it, readers do not look at it: the next segment begins there.
        """
        self._written = []
        if self._committed_from is None:
            return
        self._appender.take_back()
        with self._lock:
            position, self._committed_from = self._committed_from, None
            last = self._segments[-1]
            self._bytes -= last.bytes
            last.cut(position)
            self._bytes += last.bytes
            self._end = last.end = position
            if not last.frames:
                self._drop(last)
            for first in [each for each in self.pages if each >= position]:
                self.page_bytes -= self.pages.pop(first).bytes

    def remove(self, first: int, end: int) -> None:
        """Whatever segments lie wholly between these positions."""
        with self._lock:
            gone = [each for each in self._segments if first <= each.first_position and each.end <= end]
            for each in gone:
                if each is self._segments[-1]:
                    self._appender.close()
                self._drop(each)
            closing = [self._files.pop(each.segment.number, None) for each in gone]
        for each, file in zip(gone, closing, strict=True):
            try:
                each.segment.path.unlink(missing_ok=True)
            except OSError as error:  # It is removed at the next start.
                logger.warning("cannot remove %s: %s", each.segment.path, reason_of(error))
            if file is not None:
                os.close(file)

    def shrink(self, first: int, end: int, runs: Sequence[Run]) -> int | None:
        """Write the segment that lies between these positions anew, with these positions alone; its bytes
        then. None: it stays as it is. The newest one is never asked for."""
        messages, reached = self.read(runs, sys.maxsize)
        if not runs or reached < sum(runs[-1]) or len(messages) < sum(count for _, count in runs):
            return None  # Not all of it can be read now.
        with self._lock:
            at = bisect_left(self._firsts, first)
            old = self._segments[at] if at < len(self._firsts) - 1 else None
        if old is None or old.first_position != first or old.end != end:
            return None
        try:
            frames = write_anew(old.segment, messages, old.bytes // 4 * 3)
            if frames is None:
                return None
            fresh = IndexedSegment(old.segment, end, 0, is_indexed=True)
            for position, offset, size in frames:
                fresh.add(position, offset, size)
            with self._lock:  # A reader has the old file with the old index, or the new one with the new.
                take_place(old.segment)
                self._segments[at] = fresh
                self._bytes += fresh.bytes - old.bytes
                file = self._files.pop(old.segment.number, None)
                for page in [each for each in self.pages if first <= each < end]:
                    self.page_bytes -= self.pages.pop(page).bytes
            if file is not None:
                os.close(file)
            sync_directory(self.directory)
        except OSError as error:
            logger.warning("cannot write %s anew: %s", old.segment.path, reason_of(error))
            return None
        return fresh.bytes

    def close(self) -> None:
        self._appender.close()
        with self._lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()

    # With the lock

    def _add(self, group: Group, place: FramePlace) -> None:
        last = self._segments[-1] if self._segments else None
        if last is None or last.segment != place.segment:
            last = IndexedSegment(place.segment, group.first_position, 0, is_indexed=True)
            self._segments.append(last)
            self._firsts.append(last.first_position)
        last.add(group.first_position, place.offset, place.size)
        self._bytes += place.size
        self.written_bytes += place.size
        self._end = last.end = group.end_position

    def _drop(self, segment: IndexedSegment) -> None:
        at = self._segments.index(segment)
        del self._segments[at], self._firsts[at]
        self._bytes -= segment.bytes

    def _page_at(self, position: int, after: int) -> _Page | int:
        """The frame that has this position; or up to where nothing can be read, at most `after`."""
        at = bisect_right(self._firsts, position) - 1
        segment = self._segments[at] if at >= 0 else None
        if segment is None or position >= segment.end:
            return min(after, self._firsts[at + 1]) if at + 1 < len(self._firsts) else after
        if not segment.is_indexed and not self._index(segment):
            self._note_damage(segment, 0, segment.first_position, segment.end)
            return min(after, segment.end)
        self._uses = segment.used = self._uses + 1
        number = segment.find(position)
        begin, offset = segment.first_position, 0
        if number >= 0:
            begin, offset = segment.first_of(number), segment.span(number)[0]
            page = self.pages.get(begin)
            if page is None:
                page = self._read_page(segment, number)
            else:
                self.pages.move_to_end(begin)
            if page is not None:
                if position < page.end:
                    return page
                begin, offset = page.end, offset + page.size
        following = segment.first_of(number + 1)
        self._note_damage(segment, offset, begin, following)
        return min(after, following)

    def _read_page(self, segment: IndexedSegment, number: int) -> _Page | None:
        """None: it is damaged."""
        offset, size = segment.span(number)
        try:
            descriptor = self._open(segment)
            data = os.pread(descriptor, size, offset)
            if offset // _STEP_BYTES != (offset + size) // _STEP_BYTES:
                self._read_ahead(segment, descriptor, offset + size)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return None
        frame = LogFrame.read(data, offset, segment.segment.marker)
        rows = Rows.read(data, frame) if frame is not None else None
        if frame is None or rows is None or frame.first_position != segment.first_of(number):
            return None
        page = _Page(frame, rows)
        self.pages[page.first] = page
        self.page_bytes += page.bytes
        while self.page_bytes > self.bounds.cache_bytes:
            self.page_bytes -= self.pages.popitem(last=False)[1].bytes
        self._failure = None
        return page

    def _read_ahead(self, segment: IndexedSegment, descriptor: int, offset: int) -> None:
        """Have the system read what probably comes next, while we work on this."""
        os.posix_fadvise(descriptor, offset, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        at = self._segments.index(segment) + 1
        if offset + _AHEAD_BYTES > segment.bytes and at < len(self._segments):
            following = self._open(self._segments[at])
            os.posix_fadvise(following, 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def _index(self, segment: IndexedSegment) -> bool:
        """False: it cannot be read."""
        try:
            segment.make(SegmentFile(self._open(segment), segment.segment.marker))
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return False
        known = [each for each in self._segments[:-1] if each.is_indexed and each is not segment]
        frames = sum(each.frames for each in known) + segment.frames
        for each in sorted(known, key=_last_use):
            if frames <= self.bounds.frames_indexed:
                break
            frames -= each.frames
            each.forget()
        return True

    def _open(self, segment: IndexedSegment) -> int:
        number = segment.segment.number
        descriptor = self._files.get(number)
        if descriptor is not None:
            self._files.move_to_end(number)
            return descriptor
        descriptor = self._files[number] = os.open(segment.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        if len(self._files) > self.bounds.open_files:
            os.close(self._files.popitem(last=False)[1])
        return descriptor

    def _note_damage(self, segment: IndexedSegment, offset: int, begin: int, end: int) -> None:
        """Once for each place."""
        if (segment.segment.number, offset) in self._reported:
            return
        self._reported.add((segment.segment.number, offset))
        self.damaged += end - begin
        logger.error(
            "%s is damaged at byte %d: %d waiting messages are lost",
            segment.segment.path,
            offset,
            end - begin,
        )

    def _note_failure(self, error: OSError) -> None:
        if self._failure is None:
            logger.error("cannot read from %s for now: %s", self.directory, reason_of(error))
        self._failure = reason_of(error)


class _Page:
    """A frame that was read."""

    __slots__ = ("_at", "_ends", "_left", "_made", "_rows", "bytes", "end", "first", "size")

    def __init__(self, frame: LogFrame, rows: Rows) -> None:
        self.first = frame.first_position
        self.end = frame.end_position
        self.size = frame.size
        self.bytes = frame.size + _ROW_BYTES * frame.rows  # that it takes in memory, about
        self._at = frame.earliest / 1e6
        self._ends = rows.ends
        self._rows: Rows | None = rows  # until all messages are made
        self._left = frame.rows // _MANY_IN_ALL  # so many more are made one by one
        self._made: list[LoggedMessage | None] = [None] * frame.rows

    def cut(self, begin: int, end: int, most_bytes: int) -> tuple[int, int]:
        """Up to where to go from `begin`: one at least, and to `end` at most. And how many bytes that is."""
        ends = self._ends
        first, last = begin - self.first, end - self.first
        base = ends[first]
        if ends[last] - base > most_bytes:
            last = min(last, max(first + 1, bisect_left(ends, base + most_bytes, first, last)))
        return self.first + last, ends[last] - base

    def messages(self, begin: int, end: int) -> list[LoggedMessage]:
        first, last = begin - self.first, end - self.first
        rows, made = self._rows, self._made
        if rows is not None:
            if _MANY * (last - first) >= len(made) or self._left <= 0:
                positions = range(self.first, self.end)
                made[:] = map(LoggedMessage, positions, rows.messages(), repeat(self._at))
                self._rows = None
            else:
                for row in range(first, last):
                    if made[row] is None:
                        made[row] = LoggedMessage(self.first + row, rows.message(row), self._at)
                        self._left -= 1
        return cast("list[LoggedMessage]", made[first:last])


def _as_notes(waiting: Sequence[WhoWaits]) -> list[str | None]:
    """As JSON. For most messages of a batch the same sessions wait."""
    texts: dict[WhoWaits, str | None] = {(): None}
    notes = []
    for who in waiting:
        if who not in texts:
            each = [f"[{key},{flags},[{','.join(map(str, ids))}]]" for key, flags, ids in who]
            texts[who] = f"[{','.join(each)}]"
        notes.append(texts[who])
    return notes


def _last_use(segment: IndexedSegment) -> int:
    return segment.used
