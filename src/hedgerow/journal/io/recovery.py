"""What a writer finds when it opens a journal: where to go on, and which messages are there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io import files, scan
from hedgerow.journal.io.frame import JournalFrame, SegmentFile
from hedgerow.journal.io.ids import Ids, load_ids


class JournalEnd(NamedTuple):
    next_position: int
    next_number: int
    """Of the segment that the writer will begin."""


def recover(directory: Path, ids: Ids) -> JournalEnd:
    """Fill `ids`, and have all that can be read be durable. Changes no file.

    Positions that were told to be durable are not given again, even where the frames are gone. Frames that
    were written and not synced when the last writer ended count: nobody was told of them, and nobody need
    send them twice.
    """
    segments = files.segments(directory)
    stored = load_ids(directory)
    ids_position, pages = stored or (0, [])
    ids.restore(pages)
    end = max(_end_position(segments), files.durable_position(directory) or 0, ids_position)
    start = ids_position
    if segments and stored is None:
        start = segments[0].first_position
    for _, file, frame in scan.frames(directory, start, end, lambda gap: None):
        meta = frame.read_meta(file)
        for first, count in frame.read_ids(meta) if meta is not None else ():
            if count == 1:
                ids.seen(first)
            else:
                ids.take_new(first, count)
    return JournalEnd(end, segments[-1].number + 1 if segments else 1)


def _end_position(segments: list[files.Segment]) -> int:
    """Behind the last frame that is whole; its segment is synced."""
    for segment in reversed(segments):
        end = segment.first_position
        with scan.opened(segment) as file:
            file.sync()
            for item in file.frames():
                if isinstance(item, JournalFrame) and _is_whole(file, item):
                    end = max(end, item.end_position)
        if end > segment.first_position:
            return end
    return max((segment.first_position for segment in segments), default=0)


def _is_whole(file: SegmentFile, frame: JournalFrame) -> bool:
    return frame.read_meta(file) is not None and frame.read_payloads(file) is not None
