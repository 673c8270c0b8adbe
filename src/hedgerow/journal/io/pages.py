"""Pages of a node's journal for its replays, read in a thread and kept for a while.

All who read what was just written share a page. What is kept is bounded: a replay that comes back to a page
that is gone has it read again.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from hedgerow.errors import HedgerowError
from hedgerow.journal.io.node_journal import NodeJournal
from hedgerow.journal.io.times import first_since
from hedgerow.journal.replay.names import LAST, TIME, Start
from hedgerow.journal.replay.pages import FrameRuns, Page
from hedgerow.log import scan
from hedgerow.log.files import segments
from hedgerow.topics import matches

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAGE_BYTES = 1024 * 1024
KEPT_BYTES = 16 * 1024 * 1024
KEPT_PAGES = 32
RETRY_S = 1.0  # after what cannot be read at present
LOOKED_BACK = 4_194_304  # positions, for the last so many that a client asks for: a second of a thread
STEP_BACK = 4_096  # positions that are looked through at first for the last so many of a filter


class JournalPages:
    """`on_read` is called on the loop when something that was asked for is there."""

    def __init__(self, journal: NodeJournal, on_read: Callable[[], None]) -> None:
        self._journal = journal
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self._reader = ThreadPoolExecutor(1, "hedgerow-replay")
        # Looking for the last of a rare topic takes a second: no page waits behind it.
        self._finder = ThreadPoolExecutor(1, "hedgerow-replay-find")
        self._pages: deque[Page] = deque()  # the one used last is the last
        self._kept_bytes = 0
        self._reading: set[int] = set()
        self._is_closed = False

    @property
    def journal_id(self) -> str:
        return self._journal.writer.journal_id

    @property
    def end_position(self) -> int:
        return self._journal.writer.durable_position

    def wake_beyond(self, position: int) -> None:
        self._journal.wake_beyond(position)

    def page(self, position: int) -> Page | None:
        for page in reversed(self._pages):
            if page.start <= position < page.end:
                return page
        if position not in self._reading:
            self._reading.add(position)
            end = self.end_position
            self._ask(self._reader, lambda: read_page(self._directory, position, end), self._read, position)
        return None

    def find(self, start: Start, topic_filter: str, found: Callable[[int], None]) -> None:
        end = self.end_position

        def was_found(position: int | None, _: int) -> None:
            found(end if position is None else position)

        def find() -> int:
            return find_position(self._directory, start, (topic_filter,), end, LOOKED_BACK)

        self._ask(self._finder, find, was_found, 0)

    def close(self) -> None:
        self._is_closed = True
        for thread in self._reader, self._finder:
            thread.shutdown(wait=True, cancel_futures=True)

    @property
    def _directory(self) -> Path:
        return self._journal.writer.directory

    def _ask(
        self,
        thread: ThreadPoolExecutor,
        read: Callable[[], T],
        done: Callable[[T | None, int], None],
        position: int,
    ) -> None:
        def run() -> None:
            answer: T | None = None
            try:
                answer = read()
            except (OSError, HedgerowError) as error:
                logger.error("a replay cannot read the journal in %s: %s", self._directory, error)
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(tell, answer)

        def tell(answer: T | None) -> None:
            if self._is_closed:
                return
            done(answer, position)
            self._on_read()

        thread.submit(run)

    def _read(self, page: Page | None, position: int) -> None:
        if page is None:
            self._loop.call_later(RETRY_S, self._try_again, position)
            return
        self._reading.discard(position)
        self._pages.append(page)
        self._kept_bytes += page.bytes
        while len(self._pages) > 1 and (self._kept_bytes > KEPT_BYTES or len(self._pages) > KEPT_PAGES):
            self._kept_bytes -= self._pages.popleft().bytes

    def _try_again(self, position: int) -> None:
        self._reading.discard(position)
        if not self._is_closed:
            self._on_read()


def read_page(directory: Path, position: int, end: int) -> Page:
    frames: list[FrameRuns] = []
    size = lost = 0
    reached = end

    def on_gap(gap: scan.Gap) -> None:
        nonlocal lost
        lost += gap.end - gap.start

    for _, file, frame in scan.frames(directory, position, end, on_gap):
        meta = frame.read_meta(file)
        payloads = frame.read_payloads(file) if meta is not None else None
        if meta is None or payloads is None:
            lost += frame.end_position - max(position, frame.first_position)
        else:
            frames.append(FrameRuns(frame, meta, payloads))
        size += frame.size
        if size >= PAGE_BYTES:
            reached = min(frame.end_position, end)
            break
    return Page(position, reached, frames, lost, size)


def find_position(
    directory: Path, start: Start, topic_filters: Sequence[str], end: int, looked_back: int | None = None
) -> int:
    """Where it begins, within what is there; the last so many are of those that match one of the filters.

    `looked_back`: through so many positions at most, for these.
    """
    if start.kind == TIME:
        return first_since(directory, round(start.number * 1e6), end)
    first = next((segment.first_position for segment in segments(directory)), end)
    if start.kind == LAST:
        if looked_back is not None:
            first = max(first, end - looked_back)
        return _last_matching(directory, int(start.number), topic_filters, min(first, end), end)
    return max(min(first, end), min(int(start.number), end))


def _last_matching(directory: Path, count: int, topic_filters: Sequence[str], first: int, end: int) -> int:
    """The position from which on so many match, or the first of all."""
    step = STEP_BACK
    while count:
        begin = max(first, end - step)
        found = _matching(directory, topic_filters, begin, end)
        total = sum(rows for _, rows in found)
        if total >= count or begin <= first:
            return _skip(found, total - count) if total >= count else first
        step *= 4
    return end


def _skip(found: list[tuple[int, int]], count: int) -> int:
    """Where the match behind the first `count` is."""
    ends = list(accumulate(rows for _, rows in found))
    run = bisect_left(ends, count + 1)
    position, rows = found[run]
    return position + count - (ends[run] - rows)


def _matching(directory: Path, topic_filters: Sequence[str], begin: int, end: int) -> list[tuple[int, int]]:
    """Runs that match: the first position, and how many."""
    found: list[tuple[int, int]] = []
    for _, file, frame in scan.frames(directory, begin, end, lambda gap: None):
        meta = frame.read_meta(file)
        if meta is None:
            continue
        texts = frame.texts(meta)
        wanted: dict[int, bool] = {}
        position = frame.first_position
        for number, rows in zip(frame.numbers(meta, "topic"), frame.numbers(meta, "rows"), strict=True):
            if number not in wanted:
                wanted[number] = any(matches(each, texts[number]) for each in topic_filters)
            if wanted[number] and position + rows > begin:
                first = max(position, begin)
                found.append((first, min(position + rows, end) - first))
            position += rows
    return found
