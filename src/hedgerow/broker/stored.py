"""What waits for a session in the log: positions, not messages.

A message that has to wait for durable sessions is written once, to the log (`MessageLog`). For each of them
the broker keeps where it lies: a `StoredQueue` holds the positions that the session has not finished, in
the order in which they came. What runs on and what is alike in QoS and options shares a `Chunk`: a million
messages that wait for one session take a few hundred bytes, and those of one device among a thousand about
four bytes each.

The first positions may be in memory as deliveries of the session's outbox; from `cursor` on they are in the
log alone, and are read a page at a time when the client has room for them. A chunk is also what the store
keeps: a row that is written again when something of it has changed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from hedgerow.message import Message

MAX_SPAN = 65_536  # positions from the first to the last of a chunk: two bytes each for where and how many
MAX_RUNS = 256  # of a chunk: its row is written whole, 1 KiB at most
SPAN_S = 3_600.0  # from the first to the last: what is too old goes by the chunk
QOS_BITS = 3
RETAIN_BIT = 4
AGAIN_BIT = 8

Run = tuple[int, int]
"""The first position, and how many follow each other from there."""


class LoggedMessage(NamedTuple):
    position: int
    message: Message
    at: float
    """When it was written, by the node's clock."""


class MessageLog(Protocol):
    """The log, for those who read it."""

    def read(self, runs: Sequence[Run], most_bytes: int) -> tuple[list[LoggedMessage], int]:
        """Messages at these positions, which are in ascending order, and up to which position they were read.

        One at least, and no more once they take so many bytes. What is missing below that position is
        damaged, and lost.
        """


class Chunk:
    """Positions that have their options in common."""

    __slots__ = (
        "at",
        "base",
        "began_at",
        "bytes",
        "count",
        "flags",
        "group",
        "identifiers",
        "number",
        "owner",
        "runs",
        "sent",
    )

    def __init__(
        self, number: int, base: int, flags: int, identifiers: tuple[int, ...] = (), group: Any = None
    ) -> None:
        self.number = number  # grows from chunk to chunk of a session
        self.base = base
        self.flags = flags  # QoS, and the bits above
        self.identifiers = identifiers  # of subscriptions
        self.group = group  # the shared subscription that chose the session; not stored
        self.owner = ""  # of the session; "": none
        self.runs = array("H")  # offset of the first from `base`, and how many; and so on
        self.count = 0
        self.bytes = 0  # about, of the messages
        self.sent = 0  # Positions up to here may have reached the client.
        self.began_at = float("inf")  # when the first of them was added
        self.at = 0.0  # and the last

    @property
    def qos(self) -> int:
        return self.flags & QOS_BITS

    @property
    def end(self) -> int:
        """Behind the last."""
        runs = self.runs
        return self.base + runs[-2] + runs[-1] if runs else self.base

    def takes(
        self, position: int, count: int, flags: int, identifiers: tuple[int, ...], group: Any, at: float
    ) -> bool:
        return (
            self.flags == flags
            and at - self.began_at <= SPAN_S
            and self.identifiers == identifiers
            and self.group is group
            and position + count - self.base < MAX_SPAN
            and (len(self.runs) < 2 * MAX_RUNS or position == self.end)
        )

    def add(self, position: int, count: int, size: int, at: float) -> None:
        """Behind all that are there."""
        offset = position - self.base
        runs = self.runs
        if runs and runs[-2] + runs[-1] == offset:
            runs[-1] += count
        else:
            runs.append(offset)
            runs.append(count)
        self.count += count
        self.bytes += size
        self.began_at = min(self.began_at, at)
        self.at = at

    def remove(self, position: int, count: int) -> list[Run]:
        """Positions in a row; those of them that were here."""
        runs = self.runs
        base = self.base
        begin, end = position - base, position - base + count
        if runs and runs[0] == begin and count < runs[1]:  # as nearly always: the oldest
            runs[0] += count
            runs[1] -= count
            found = [(position, count)]
        elif runs and runs[0] == begin and count == runs[1]:
            del runs[:2]
            found = [(position, count)]
        else:
            found = self._remove_anywhere(begin, end)
        removed = 0
        for _, length in found:
            removed += length
        if removed:
            self.bytes -= self.bytes * removed // self.count
            self.count -= removed
        return found

    def _remove_anywhere(self, begin: int, end: int) -> list[Run]:
        runs = self.runs
        removed: list[Run] = []
        at = 0
        while at < len(runs):
            first, after = runs[at], runs[at] + runs[at + 1]
            if first >= end:
                break
            if after <= begin:
                at += 2
                continue
            kept = [
                each
                for first_kept, after_kept in ((first, begin), (end, after))
                if first_kept < after_kept
                for each in (first_kept, after_kept - first_kept)
            ]
            gone = max(first, begin)
            removed.append((self.base + gone, min(after, end) - gone))
            runs[at : at + 2] = array("H", kept)
            at += len(kept)
        return removed

    def runs_from(self, position: int) -> Iterator[Run]:
        """Those that are there, from this position on."""
        runs, base = self.runs, self.base
        for at in range(0, len(runs), 2):
            first = base + runs[at]
            after = first + runs[at + 1]
            if after > position:
                first = max(first, position)
                yield first, after - first


class StoredQueue:
    """The unfinished positions of one session."""

    __slots__ = ("ahead", "bytes", "chunks", "count", "cursor", "next_number", "owner", "pending", "unloaded")

    def __init__(self, owner: str = "") -> None:
        self.owner = owner  # of the session
        self.chunks: list[Chunk] = []  # none of them empty
        self.next_number = 1
        self.count = 0
        self.bytes = 0
        self.cursor = 0  # From here on they are in the log alone.
        self.unloaded = 0  # how many those are, and
        self.pending = 0  # how many more have no position yet: they are written with the next batch
        self.ahead: set[int] = set()  # those that are in memory all the same, and are not to be read

    def __len__(self) -> int:
        return self.count

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self.chunks, position, key=_base) - 1
        return at >= 0 and any(first <= position for first, _ in self.chunks[at].runs_from(position))

    @property
    def is_behind(self) -> bool:
        """Does something wait that is not in memory? Then whatever comes is to wait behind it."""
        return self.unloaded > 0 or self.pending > 0

    @property
    def oldest_at(self) -> float | None:
        """About when the oldest came; None when nothing waits."""
        return min(self.chunks[0].began_at, self.chunks[0].at) if self.chunks else None

    def add(
        self,
        position: int,
        count: int,
        flags: int,
        identifiers: tuple[int, ...],
        group: Any,
        size: int,
        at: float,
    ) -> Chunk:
        """Positions in a row, behind all others; the chunk that has them."""
        chunk = self.chunks[-1] if self.chunks else None
        if chunk is None or not chunk.takes(position, count, flags, identifiers, group, at):
            chunk = Chunk(self.next_number, position, flags, identifiers, group)
            chunk.owner = self.owner
            self.next_number += 1
            self.chunks.append(chunk)
        chunk.add(position, count, size, at)
        self.count += count
        self.bytes += size
        return chunk

    def remove(self, position: int, count: int = 1) -> list[tuple[Chunk, list[Run]]]:
        """Positions in a row are finished; by chunk, those of them that were here. A chunk that is empty
        now is here no longer."""
        chunks = self.chunks
        changed: list[tuple[Chunk, list[Run]]] = []
        at = 0
        if len(chunks) > 1 and chunks[1].base <= position:
            at = bisect_right(chunks, position, key=_base) - 1
        while at < len(chunks) and chunks[at].base < position + count:
            chunk = chunks[at]
            size = chunk.bytes
            found = chunk.remove(position, count)
            for first, length in found:
                self.count -= length
                if self.unloaded and first + length > self.cursor:
                    self.unloaded -= first + length - max(first, self.cursor)
                    if self.ahead:
                        self.ahead = {each for each in self.ahead if not first <= each < first + length}
            if found:
                changed.append((chunk, found))
                self.bytes -= size - chunk.bytes
            if chunk.count:
                at += 1
            else:
                del chunks[at]
        return changed

    def runs_after(self, cursor: int, end: int, most: int) -> list[tuple[Chunk, Run]]:
        """Where the next positions are: at most so many, from the cursor on and below `end`."""
        found: list[tuple[Chunk, Run]] = []
        at = max(0, bisect_right(self.chunks, cursor, key=_base) - 1)
        for chunk in self.chunks[at:]:
            for first, count in chunk.runs_from(cursor):
                count = min(count, most, end - first)
                if count <= 0:
                    return found
                found.append((chunk, (first, count)))
                most -= count
        return found

    @property
    def has_again(self) -> bool:
        """Is there anything that another broker may have delivered?"""
        return any(chunk.flags & AGAIN_BIT for chunk in self.chunks)

    def came_at(self, at: float) -> None:
        """Count how long it has waited from here on."""
        for chunk in self.chunks:
            chunk.began_at = chunk.at = at

    def restore(self, chunk: Chunk) -> None:
        """As the store had it; in their order."""
        chunk.owner = self.owner
        self.chunks.append(chunk)
        self.next_number = chunk.number + 1
        self.count += chunk.count
        self.bytes += chunk.bytes
        self.unloaded += chunk.count


def _base(chunk: Chunk) -> int:
    return chunk.base
