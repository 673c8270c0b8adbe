"""`JournalReader`: reads a journal from any position, as Arrow record batches.

It holds nothing but the directory's path: each call looks anew, so it may be made anywhere, sent to another
process, and used beside the writer and beside other readers. It sees what is durable, and so never a
message that a crash would take away. What cannot be read is passed over and told to `on_gap` with its
positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hedgerow.journal.columns import COLUMNS, TEXT_BYTES, Piece, record_batches, schema
from hedgerow.journal.io import files
from hedgerow.journal.io.times import first_since
from hedgerow.log import scan
from hedgerow.log.files import segments
from hedgerow.log.scan import Gap
from hedgerow.topics import validate_filter

BATCH_ROWS = 65_536
BATCH_BYTES = 32 * 1024 * 1024  # on the disk; a batch of one frame may have more, and never 2 GiB


class JournalReader:
    """The journal in `directory`. StoreError: there is none."""

    def __init__(self, directory: Path, text_bytes: int = TEXT_BYTES) -> None:
        self.directory = directory
        self._text_bytes = text_bytes
        self.journal_id = files.journal_id(directory)

    @property
    def first_position(self) -> int:
        """The oldest that may be read. Equal to `end_position` where there is nothing."""
        found = segments(self.directory)
        return min(found[0].first_position, self.end_position) if found else self.end_position

    @property
    def end_position(self) -> int:
        """Behind the newest that may be read."""
        told = files.durable_position(self.directory)
        if told is not None:
            return told
        end = 0
        for segment in segments(self.directory)[-1:]:
            end = segment.first_position
            for _, _, frame in scan.frames(self.directory, end, None, _ignore):
                end = frame.end_position
        return end

    def position_at(self, received_at: float) -> int:
        """The first of what was received at this time or later; `end_position` if nothing was.

        Where the clock was set back in between, the one behind all that is surely older.
        """
        return first_since(self.directory, round(received_at * 1e6), self.end_position)

    def batches(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] = COLUMNS,
        *,
        topic_filters: Sequence[str] = (),
        rows: int = BATCH_ROWS,
        on_gap: Callable[[Gap], None] = lambda gap: None,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> Iterator[Any]:
        """`pyarrow.RecordBatch`es of the messages from `start` to before `end`, with at most `rows` each.
        Frames that have none that was received from `since` to `until` are left out; others are given whole.

        Without `payload` among the columns, payloads are neither read nor checked.
        """
        unknown = set(columns) - set(COLUMNS)
        if unknown:
            raise ValueError(
                f"a journal has no columns {', '.join(sorted(unknown))}; it has {', '.join(COLUMNS)}"
            )
        filters = tuple(validate_filter(topic_filter) for topic_filter in topic_filters)
        if start is None:
            start = self.first_position
        limit = self.end_position
        end = limit if end is None else min(end, limit)
        frames = self._pieces(start, end, "payload" in columns, on_gap, since * 1e6, until * 1e6)
        for pieces in _gather(frames, rows):
            yield from _cut(pieces, start, end, columns, filters, rows, self._text_bytes)

    def _pieces(
        self,
        start: int,
        end: int,
        with_payloads: bool,
        on_gap: Callable[[Gap], None],
        since_us: float,
        until_us: float,
    ) -> Iterator[Piece]:
        for segment, file, frame in scan.frames(self.directory, start, end, on_gap):
            if frame.latest < since_us or frame.earliest > until_us:
                continue
            meta = frame.read_meta(file)
            payloads = frame.read_payloads(file) if with_payloads and meta is not None else memoryview(b"")
            if meta is None or payloads is None:
                part = "description" if meta is None else "payloads"
                gap = scan.damage_in(segment, frame, part)
                on_gap(gap._replace(start=max(start, gap.start), end=min(end, gap.end)))
            else:
                yield Piece(frame, meta, payloads)

    @staticmethod
    def schema(columns: Sequence[str] = COLUMNS) -> Any:
        """The `pyarrow.Schema` of the batches."""
        return schema(columns)


def _gather(pieces: Iterator[Piece], rows: int) -> Iterator[list[Piece]]:
    """As many as fit into a batch, at least one."""
    gathered: list[Piece] = []
    gathered_rows = gathered_bytes = 0
    for piece in pieces:
        gathered_rows += piece.frame.rows
        size = len(piece.payloads) + piece.frame.string_bytes
        gathered_bytes += size
        if gathered and (gathered_rows > rows or gathered_bytes > BATCH_BYTES):
            yield gathered
            gathered, gathered_rows, gathered_bytes = [], piece.frame.rows, size
        gathered.append(piece)
    if gathered:
        yield gathered


def _cut(
    pieces: list[Piece],
    start: int,
    end: int,
    columns: Sequence[str],
    filters: tuple[str, ...],
    rows: int,
    text_bytes: int,
) -> Iterator[Any]:
    """The rows of the pieces that are asked for: the first and the last frame may hold others."""
    before = max(0, start - pieces[0].frame.first_position)
    after = max(0, pieces[-1].frame.end_position - end)
    total = sum(piece.frame.rows for piece in pieces)
    for batch in record_batches(pieces, columns, filters, before, total - after, text_bytes):
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, min(rows, batch.num_rows - at))


def _ignore(gap: Gap) -> None:
    """Whoever reads the messages is told."""
