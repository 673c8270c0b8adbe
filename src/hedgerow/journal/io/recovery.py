"""What a writer finds when it opens a journal: where to go on, and which messages are there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io import files
from hedgerow.journal.io.ids import Ids, load_ids
from hedgerow.log import scan
from hedgerow.log.files import Segment, segments
from hedgerow.log.frame import LogFrame, SegmentFile


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
    found = segments(directory)
    stored = load_ids(directory)
    ids_position, pages = stored or (0, [])
    ids.restore(pages)
    end = max(_end_position(found), files.durable_position(directory) or 0, ids_position)
    start = ids_position
    if found and stored is None:
        start = found[0].first_position
    for _, file, frame in scan.frames(directory, start, end, lambda gap: None):
        meta = frame.read_meta(file)
        for first, count in frame.read_ids(meta) if meta is not None else ():
            if count == 1:
                ids.seen(first)
            else:
                ids.take_new(first, count)
    return JournalEnd(end, found[-1].number + 1 if found else 1)


def _end_position(found: list[Segment]) -> int:
    """Behind the last frame that is whole; its segment is synced."""
    for segment in reversed(found):
        end = segment.first_position
        with scan.opened(segment) as file:
            file.sync()
            for item in file.frames():
                if isinstance(item, LogFrame) and _is_whole(file, item):
                    end = max(end, item.end_position)
        if end > segment.first_position:
            return end
    return max((segment.first_position for segment in found), default=0)


def _is_whole(file: SegmentFile, frame: LogFrame) -> bool:
    return frame.read_meta(file) is not None and frame.read_payloads(file) is not None
