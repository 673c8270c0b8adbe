"""What a writer finds when it opens a journal: where to go on, and which messages are there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io import files
from hedgerow.journal.io.ids import Ids, load_ids
from hedgerow.log import scan
from hedgerow.log.files import Segment, segments
from hedgerow.log.frame import LogFrame, SegmentFile

_NEVER = 2**63 - 1


class JournalEnd(NamedTuple):
    next_position: int
    next_number: int
    """Of the segment that the writer will begin."""
    last: Segment | None = None
    """The last that has frames."""
    earliest: int = 0
    latest: int = 0
    """When what is in it was received."""


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
    last = _last_segment(found)
    end = max(last.next_position, files.durable_position(directory) or 0, ids_position)
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
    return last._replace(next_position=end, next_number=found[-1].number + 1 if found else 1)


def _last_segment(found: list[Segment]) -> JournalEnd:
    """The one with the last frame that is whole, and the position behind it; the segment is synced."""
    for segment in reversed(found):
        end = segment.first_position
        earliest, latest = _NEVER, -_NEVER
        with scan.opened(segment) as file:
            file.sync()
            for item in file.frames():
                if isinstance(item, LogFrame):
                    earliest, latest = min(earliest, item.earliest), max(latest, item.latest)
                    if _is_whole(file, item):
                        end = max(end, item.end_position)
        if end > segment.first_position:
            return JournalEnd(end, 0, segment, earliest, latest)
    return JournalEnd(max((segment.first_position for segment in found), default=0), 0)


def _is_whole(file: SegmentFile, frame: LogFrame) -> bool:
    return frame.read_meta(file) is not None and frame.read_payloads(file) is not None
