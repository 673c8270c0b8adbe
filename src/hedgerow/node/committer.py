"""Group commit: what the broker wants stored goes to the store one batch at a time.

A batch is taken as soon as the one before it is durable and the event loop has heard everyone who is
waiting to be heard, so a lone message is committed at once and under load the batches grow by
themselves. The loop's thread writes the batch, a helper thread syncs it, and only then is the broker
told, which releases the acknowledgements. When the store fails (a full disk, an I/O error) the batch is
kept and tried again until it succeeds; nothing is acknowledged meanwhile, and what needs no store goes on.

Where the node has a journal, a batch is committed when the journal has all that was recorded before it was
taken. Were the store first, then after a crash between the two it would know messages, by their ids or by the
packet identifiers of QoS 2, that are in no journal: when they come again they would be acknowledged, and not
recorded.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.broker.changes import Changes
from hedgerow.errors import StoreError

if TYPE_CHECKING:
    from hedgerow.journal.part import NodeJournal
    from hedgerow.node.server import Server
    from hedgerow.node.store import Store

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.1
MAX_RETRY_S = 5.0


@dataclass(slots=True)
class CommitStats:
    commits: int = 0
    commit_s: float = 0.0
    """From the moment when a batch was taken; of all batches together."""
    failures: int = 0
    """Attempts of the store; each is repeated."""


class Committer:
    """Of a node that has a store, a journal (`add_journal`), or both."""

    def __init__(self, server: Server, store: Store | None) -> None:
        self.stats = CommitStats()
        self._store_failure: str | None = None
        self._server = server
        self._store = store
        self._journal: NodeJournal | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "hedgerow-store")
        self._scheduled = False
        self._batch: Changes | None = None
        self._taken_at = 0.0
        self._is_stored = True  # the batch, if there is one
        self._is_written = False  # its rows, which wait for the journal
        self._position = 0  # up to which the journal is to be durable before the batch counts as committed
        self._retry_s = FIRST_RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def add_journal(self, journal: NodeJournal) -> None:
        self._journal = journal
        journal.on_durable = self._advance

    @property
    def failure(self) -> str | None:
        """Why the store or the journal does not take what it is given, while that lasts."""
        return self._store_failure or (self._journal.failure if self._journal is not None else None)

    def poll(self) -> None:
        """Something may have to be stored. Called after each flush."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            # Not at once: the connections that this turn of the loop has yet to read join the batch.
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._batch = self._server.broker.take_changes()
        if self._batch is None:
            self._scheduled = False
            self._idle.set()
            return
        self._idle.clear()
        self._taken_at = self._server.clock()
        if self._journal is not None:
            self._position = self._journal.writer.next_position
        # What is held for the journal alone is no batch for the store: all before it is committed.
        self._is_stored = self._store is None or not self._batch
        self._is_written = False
        if self._is_stored:
            self._loop.call_soon(self._advance)
        else:
            self._write()

    def _write(self) -> None:
        """The rows, at once, as the batch is: the broker goes on to change its deliveries."""
        assert self._batch is not None
        assert self._store is not None
        try:
            self._store.write(self._batch)
        except Exception as error:
            self._failed(error)
            return
        self._is_written = True
        self._advance()

    def _wake(self, commit: Future[None]) -> None:
        # Straight to the loop: asyncio.wrap_future would take one more turn of it.
        self._loop.call_soon_threadsafe(self._committed, commit)

    def _committed(self, commit: Future[None]) -> None:
        if self._closed:
            return
        error = commit.exception()
        if error is not None:
            self._failed(error)
            return
        if self._store_failure is not None:
            self._store_failure = None
            logger.warning("the store works again")
        self._retry_s = FIRST_RETRY_S
        self._is_stored = True
        self._advance()

    def _advance(self) -> None:
        """The store or the journal has got further. When both have the batch, the broker is told."""
        if self._closed or self._batch is None:
            return
        if self._journal is not None and not self._journal.expect(self._position):
            return
        if not self._is_stored:
            if self._is_written:
                assert self._store is not None
                self._is_written = False  # It is being committed, or has to be written again.
                self._thread.submit(self._store.commit).add_done_callback(self._wake)
            return
        self._batch = None
        server = self._server
        now = server.clock()
        self.stats.commits += 1
        self.stats.commit_s += now - self._taken_at
        server.broker.changes_committed(now)
        server.flush()
        self._take()

    def _failed(self, error: BaseException) -> None:
        if self._store_failure is None:
            unexpected = None if isinstance(error, StoreError) else error
            text = "%s; what must be stored first is not acknowledged until that is mended"
            logger.error(text, error, exc_info=unexpected)
        self._store_failure = str(error)
        self.stats.failures += 1
        self._retry = self._loop.call_later(self._retry_s, self._write)
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything is stored. False when that took too long."""
        self.poll()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(0)
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop for good; a batch that is still waiting is given up."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.to_thread(self._thread.shutdown)  # a commit may take as long as the disk does
        if self._store is not None:
            self._store.close()
