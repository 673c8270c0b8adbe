"""A page of the journal: some frames in a row, as they are on the disk, from which a replay takes messages.

Nothing of a frame is made before it is asked for: a replay walks from run to run, and looks at the columns
that it needs. What was stored as the packets that came (`frame.py`: heads) may leave as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, cast

from hedgerow.log.frame import NO_TIME, RUN_FIELDS, LogFrame
from hedgerow.log.messages import numbers, read_record
from hedgerow.message import Message, MessageId, Properties

RETAIN = 4


class Page(NamedTuple):
    """What the journal has from position `start` to before `end`."""

    start: int
    end: int
    frames: Sequence[FrameRuns]
    lost: int
    """Positions that cannot be read: damaged, or removed by retention."""
    bytes: int

    def find(self, position: int) -> int:
        """The number of the frame that has the position, or of the first behind it."""
        at = bisect_right(self.frames, position, key=_first_position) - 1
        return at if at >= 0 and self.frames[at].frame.end_position > position else at + 1


class FrameRuns:
    """The runs of a frame: messages in a row that have all but their payloads in common."""

    def __init__(self, frame: LogFrame, meta: memoryview, payloads: memoryview) -> None:
        self.frame = frame
        self.payloads = payloads
        self._meta = meta
        self._columns: dict[str, Sequence[int]] = {}
        self._texts: list[str] | None = None
        self.lengths = numbers("I", frame.lengths(meta))

    def column(self, name: str) -> Sequence[int]:
        """Of all runs."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = numbers(RUN_FIELDS[name], self.frame.field(self._meta, name))
        return found

    @property
    def texts(self) -> list[str]:
        if self._texts is None:
            self._texts = self.frame.texts(self._meta)
        return self._texts

    def text(self, name: str, run: int) -> str | None:
        number = self.column(name)[run]
        return self.texts[number] if number else None

    def cut(self, offset: int, head: int, first_row: int, count: int) -> list[bytes]:
        """Payloads of rows in a row, of which the first begins, with its head, at this offset."""
        payloads, found = self.payloads, []
        for length in self.lengths[first_row : first_row + count]:
            offset += head
            found.append(bytes(payloads[offset : offset + length]))
            offset += length
        return found

    def size(self, run: int, first_row: int, count: int) -> int:
        """Of the payloads of these rows of a run, with their heads."""
        return sum(self.lengths[first_row : first_row + count]) + count * self.column("head")[run]

    def message(self, run: int, shift: int, payload: bytes) -> Message:
        flags, text = self.column("flags")[run], self.text("properties", run)
        message = Message(self.text("topic", run) or "", payload, flags & 3, flags & RETAIN != 0)
        message.id = self.message_id(run, shift)
        if text is not None:
            message.properties = cast(Properties, read_record(text))
            received_at = self.column("received_at")[run]
            if received_at != NO_TIME:
                message.expire_from(received_at / 1e6)
        return message

    def message_id(self, run: int, shift: int = 0) -> MessageId | None:
        origin = self.text("origin", run)
        if origin is None:
            return None
        return MessageId(origin, self.column("epoch")[run], self.column("sequence")[run] + shift)


class Place:
    """Where in a page a replay is: a frame, a run of it, and a message of that."""

    __slots__ = ("frame", "offset", "page", "row", "run", "shift")

    def __init__(self, page: Page, position: int) -> None:
        self.page = page
        self.frame = page.find(position)
        self._begin_frame()
        if self.frame < len(page.frames):
            self._walk_to(position)

    def _begin_frame(self) -> None:
        self.run = self.shift = self.row = self.offset = 0

    @property
    def runs(self) -> FrameRuns | None:
        """The frame; None: the page is over."""
        frames = self.page.frames
        return frames[self.frame] if self.frame < len(frames) else None

    @property
    def position(self) -> int:
        runs = self.runs
        return self.page.end if runs is None else runs.frame.first_position + self.row

    def advance(self, count: int, size: int) -> None:
        """Past so many messages of the run, with so many bytes."""
        runs = self.page.frames[self.frame]
        self.shift += count
        self.row += count
        self.offset += size
        if self.shift == runs.column("rows")[self.run]:
            self.run += 1
            self.shift = 0
            if self.row == runs.frame.rows:
                self.frame += 1
                self._begin_frame()

    def skip_singles(self, count: int, offset: int) -> None:
        """Past so many runs of one message each, to where the next payload begins."""
        self.run += count
        self.row += count
        self.offset = offset
        if self.row == self.page.frames[self.frame].frame.rows:
            self.frame += 1
            self._begin_frame()

    def _walk_to(self, position: int) -> None:
        runs = self.page.frames[self.frame]
        target = position - runs.frame.first_position
        rows = runs.column("rows")
        while self.row < target:
            count = min(rows[self.run], target - self.row)
            self.advance(count, runs.size(self.run, self.row, count))


def _first_position(runs: FrameRuns) -> int:
    return runs.frame.first_position
