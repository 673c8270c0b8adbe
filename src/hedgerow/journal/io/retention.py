"""`retain`: which segments of a journal may go.

Whole segments go, the oldest first, and never the newest. Those that all readers have taken
(`files.store_committed`) may go when the caller says so. Those beyond the limits of size and age go in any
case, since a reader that is gone for good must not fill the disk of the node; what nobody had taken is
told.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io import files
from hedgerow.journal.io.times import times_of, times_path
from hedgerow.log.files import Segment, segments


class Removed(NamedTuple):
    segments: int
    bytes: int
    first_position: int
    """The oldest that is left."""
    untaken: int
    """Positions that went before all readers had committed them. Where there are no readers, none."""


def retain(
    directory: Path,
    *,
    max_bytes: int | None = None,
    max_age_s: float | None = None,
    drop_committed: bool = False,
    now: float | None = None,
) -> Removed:
    """Remove what is beyond `max_bytes` in all, was received longer ago than `max_age_s`, or, if asked to,
    was committed by every reader. May be called beside the writer and beside readers, by anyone who may
    write there."""
    found = segments(directory)
    commits = files.committed_positions(directory)
    committed = min(commits.values()) if commits else None
    now = time.time() if now is None else now
    sizes = [_size(segment) for segment in found]
    total = sum(sizes)
    removed = removed_bytes = untaken = 0
    for segment, following, size in zip(found, found[1:], sizes, strict=False):
        end = following.first_position
        is_taken = committed is not None and end <= committed
        if not (
            (drop_committed and is_taken)
            or (max_bytes is not None and total > max_bytes)
            or (max_age_s is not None and _is_older(segment, now - max_age_s))
        ):
            break
        with suppress(FileNotFoundError):
            segment.path.unlink()
            times_path(segment).unlink(missing_ok=True)
        total -= size
        removed += 1
        removed_bytes += size
        if committed is not None:
            untaken += max(0, end - max(segment.first_position, committed))
    first = found[removed].first_position if found else files.durable_position(directory) or 0
    return Removed(removed, removed_bytes, first, untaken)


def _size(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_older(segment: Segment, at: float) -> bool:
    """Was all of it received before that time? What has no frame at all was."""
    with suppress(FileNotFoundError):
        times = times_of(segment)
        return times is None or times.latest < at * 1e6
    return True
