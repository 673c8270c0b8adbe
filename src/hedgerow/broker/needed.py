"""The segments of the log, and how much of each is needed still.

Of a segment it is counted how many positions sessions have not finished, for each owner of sessions. Without
any it is removed, with the batch that stores the last of them as finished. One of which little is needed may
be written anew, without the rest. What of it whose clients have published is counted too, as bytes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from hedgerow.broker.stored import Run

MAX_POSITION = 2**63 - 1
SEGMENT_BYTES = 8 * 1024 * 1024  # How much of the log goes at once.
SEGMENTS_OF_BOUND = 16
TIB = 2**40
MAX_PUBLISHERS = 64  # Whoever published less than this part of a segment that is full is not noted.
SPARSE_PART = 2  # A segment of which so little is needed is written anew.


class NeededSegment:
    """A part of the log, as long as somebody needs something of it."""

    __slots__ = (
        "bytes",
        "count",
        "first",
        "has_note",
        "holders",
        "is_reserve",
        "looked_at",
        "published",
        "references",
        "relayed",
    )

    def __init__(self, first: int, size: int = 0, is_reserve: bool = False) -> None:
        self.first = first
        self.bytes = size
        self.is_reserve = is_reserve  # begun beyond the bound
        self.count = 0  # of its messages, once it is full
        self.references = 0
        self.holders: dict[str, int] = {}  # the same, by owner
        self.published: dict[str, int] = {}  # bytes, by owner
        self.relayed = 0  # bytes beyond the bound that other brokers passed on
        self.has_note = False  # The store knows who published it.
        self.looked_at = 0  # So many references it had when it was last asked whether little of it is needed.

    def held_by(self, owner: str, count: int) -> int:
        """About the bytes of what waits there for the sessions of this owner, where there are so many
        messages. One that waits for several of them counts once, if they have all."""
        return self.bytes * min(self.holders.get(owner, 0), count) // count


class NeededLog:
    __slots__ = (
        "_found",
        "_held",
        "_is_appending",
        "_is_bounded",
        "_segment_bytes",
        "_unneeded",
        "bytes",
        "notes",
        "published",
        "relayed_bytes",
        "segments",
    )

    def __init__(self, limit: int | None) -> None:
        """`limit`: the bytes that the log may have."""
        self.segments: list[NeededSegment] = []  # in order
        self.bytes = 0  # about, of all of them
        self.relayed_bytes = 0  # beyond the bound, that other brokers passed on
        self.notes: dict[str, str | None] = {}
        """For the store, by first position: what `restore` is to be given as `published`; None: no longer."""
        self.published: dict[str, int] = {}  # bytes, by owner
        # Several, where there is a bound: else nothing would go before all is read.
        self._segment_bytes = min(SEGMENT_BYTES, (limit or TIB) // SEGMENTS_OF_BOUND)
        self._is_bounded = limit is not None  # Else nobody asks who published what.
        self._is_appending = False  # The newest segment was begun in this life.
        self._held: dict[str, int] = {}  # by owner, of all segments but the one that is written
        self._unneeded: dict[NeededSegment, None] = {}
        self._found: tuple[NeededSegment, int] | None = None  # the one that was looked for last, and its end

    @property
    def references(self) -> int:
        """How much waits in the log, for all sessions together."""
        return sum(segment.references for segment in self.segments)

    def spans(self, end: int) -> list[tuple[NeededSegment, int]]:
        """In order, with where each ends, of a log that ends there."""
        segments = self.segments
        ends = [each.first for each in segments[1:]]
        return list(zip(segments, [*ends, end], strict=True)) if segments else []

    def held_bytes(self, end: int) -> dict[str, int]:
        """About the bytes of what waits for the sessions of each owner. `end`: of the log."""
        held = dict(self._held)
        newest = self.segments[-1] if self.segments else None
        if newest is not None and not newest.count and end > newest.first:
            for owner in newest.holders:
                held[owner] = held.get(owner, 0) + newest.held_by(owner, end - newest.first)
        return held

    def _hold(self, owner: str, change: int) -> None:
        size = self._held.get(owner, 0) + change
        if size > 0:
            self._held[owner] = size
        else:
            self._held.pop(owner, None)

    def _count(self, segment: NeededSegment, count: int) -> None:
        """It has so many messages, and will get no more."""
        segment.count = count
        for owner in segment.holders:
            self._hold(owner, segment.held_by(owner, count))

    def append(
        self,
        first: int,
        size: int,
        references: int,
        holders: Mapping[str, int],
        published: Mapping[str, int],
        relayed: int,
        is_reserve: bool,
    ) -> bool:
        """What was written at its end; does a segment begin there?

        `holders`: how many positions wait for the sessions of each owner; `published`: of whom, and how many
        bytes; `relayed`: of other brokers. `is_reserve`: it lies beyond the bound, and goes as soon as it is
        read, however long all else stays.
        """
        newest = self.segments[-1] if self._is_appending else None
        begins = newest is None or newest.bytes >= self._segment_bytes or newest.is_reserve != is_reserve
        if begins:
            if newest is not None:
                self.note_publishers(newest)
            if self.segments and not self.segments[-1].count:
                self._count(self.segments[-1], first - self.segments[-1].first)
            if self.segments and not self.segments[-1].references:
                self._unneeded[self.segments[-1]] = None
            self._is_appending = True
            self.segments.append(NeededSegment(first, 0, is_reserve))
        segment = self.segments[-1]
        segment.references += references
        segment.bytes += size
        for owner, count in holders.items():
            segment.holders[owner] = segment.holders.get(owner, 0) + count
        for owner, part in published.items():
            segment.published[owner] = segment.published.get(owner, 0) + part
            self.published[owner] = self.published.get(owner, 0) + part
        self.bytes += size
        if segment.is_reserve:
            segment.relayed += relayed
            self.relayed_bytes += relayed
        return begins

    def note_publishers(self, segment: NeededSegment) -> None:
        """It is full: forget those that published next to nothing of it. There may be many of them."""
        if not self._is_bounded or not segment.published:
            return
        least = segment.bytes // MAX_PUBLISHERS
        for owner, size in list(segment.published.items()):
            if size < least:
                self._publish(segment, owner, -size)
        segment.has_note = True
        self.notes[str(segment.first)] = json.dumps(segment.published)

    def _publish(self, segment: NeededSegment, owner: str, change: int) -> None:
        for counts in (segment.published, self.published):
            size = counts.get(owner, 0) + change
            if size > 0:
                counts[owner] = size
            else:
                counts.pop(owner, None)

    def take_unneeded(self, end: int, is_full: bool) -> list[tuple[int, int]]:
        """Segments that nobody needs, from where to where: removed when what says so is stored. `end`: of
        the log."""
        segments = self.segments
        newest = segments[-1] if segments else None
        if newest and not newest.references and (newest.bytes >= self._segment_bytes or is_full):
            self._unneeded[newest] = None
        removed: list[tuple[int, int]] = []
        for segment in self._unneeded:
            at = segments.index(segment)
            is_last = at + 1 == len(segments)
            removed.append((segment.first, end if is_last else segments[at + 1].first))
            del segments[at]
            self._is_appending = self._is_appending and not is_last
            self.bytes -= segment.bytes
            self.relayed_bytes -= segment.relayed
            if segment.has_note:
                self.notes[str(segment.first)] = None
            for owner, size in list(segment.published.items()):
                self._publish(segment, owner, -size)
        self._unneeded.clear()
        self._found = None
        return removed

    # Another life

    def restore(self, segments: Sequence[tuple[int, int]], published: Mapping[str, str]) -> None:
        """As they were found: the first position, and the bytes. `published`: what `notes` had of them.
        `change` says who needs what."""
        self.segments = [NeededSegment(first, size) for first, size in segments]
        self.bytes = sum(size for _, size in segments)
        firsts = {str(segment.first): segment for segment in self.segments}
        for first, note in published.items():
            found = firsts.get(first)
            if found is None:
                self.notes[first] = None
                continue
            found.has_note = True
            for owner, size in json.loads(note).items():
                self._publish(found, owner, min(size, found.bytes))

    def restored(self, end: int) -> None:
        """All that is needed has been said. `end`: of the log."""
        for segment, after in self.spans(end):
            # One that was written anew has fewer messages than positions.
            self._count(segment, max(1, min(segment.references, after - segment.first)))
        self._unneeded.update((segment, None) for segment in self.segments if not segment.references)

    # Who needs what

    def change(self, first: int, count: int, owner: str) -> None:
        """`count`: of positions in a row, negative where they are needed no longer. `owner`: of the
        session."""
        segments = self.segments
        sign = 1 if count > 0 else -1
        left = abs(count)
        while left:
            segment, end = self._segment_of(first)
            part = min(left, end - first)
            segment.references += sign * part
            if owner:
                before = segment.held_by(owner, segment.count) if segment.count else 0
                held = segment.holders.get(owner, 0) + sign * part
                if held > 0:
                    segment.holders[owner] = held
                else:
                    segment.holders.pop(owner, None)
                if segment.count:
                    self._hold(owner, segment.held_by(owner, segment.count) - before)
            if not segment.references and sign < 0 and segment is not segments[-1]:
                self._unneeded[segment] = None
            first += part
            left -= part

    def _segment_of(self, position: int) -> tuple[NeededSegment, int]:
        """And where it ends."""
        if self._found is not None and self._found[0].first <= position < self._found[1]:
            return self._found
        segments = self.segments
        at = bisect_right(segments, position, key=_first) - 1
        if at + 1 == len(segments):
            return segments[at], MAX_POSITION
        self._found = segments[at], segments[at + 1].first
        return self._found

    # Segments that are written anew

    def maybe_sparse(self) -> tuple[NeededSegment, int] | None:
        """The oldest of which little may be needed, and where it ends. One that has been looked at is not
        again, until far less of it is needed."""
        segments = self.segments
        for at in range(len(segments) - 1):
            segment = segments[at]
            looked_at = segment.looked_at
            if segment.references and (not looked_at or SPARSE_PART * segment.references <= looked_at):
                return segment, segments[at + 1].first
        return None

    def shrunk(self, first: int, size: int, count: int) -> None:
        """The segment that begins there was written anew, and has so many bytes now, and messages."""
        at = bisect_right(self.segments, first, key=_first) - 1
        segment = self.segments[at] if at >= 0 else None
        if segment is None or segment.first != first or not 0 < size < segment.bytes:
            return
        self.bytes += size - segment.bytes
        relayed = segment.relayed * size // segment.bytes
        self.relayed_bytes += relayed - segment.relayed
        segment.relayed = relayed
        for owner, part in list(segment.published.items()):
            self._publish(segment, owner, part * size // segment.bytes - part)
        for owner in segment.holders:
            self._hold(owner, -segment.held_by(owner, segment.count))
        segment.bytes, segment.count = size, count
        for owner in segment.holders:
            self._hold(owner, segment.held_by(owner, count))


def joined(runs: Iterable[Run]) -> list[Run]:
    """Positions that are in one of these runs or more, each once."""
    found: list[Run] = []
    for first, count in sorted(runs):
        if found and first <= found[-1][0] + found[-1][1]:
            begin, length = found[-1]
            found[-1] = begin, max(length, first + count - begin)
        else:
            found.append((first, count))
    return found


def _first(segment: NeededSegment) -> int:
    return segment.first
