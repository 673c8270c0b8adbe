"""Group commit: what the broker wants stored goes to the store one batch at a time.

A batch is taken as soon as the one before it is durable and the event loop has heard everyone who is
waiting to be heard, so a lone message is committed at once and under load the batches grow by
themselves. The loop's thread writes the batch, a helper thread syncs it, and only then is the broker
told, which releases the acknowledgements. When the store fails (a full disk, an I/O error) the batch is
kept and tried again until it succeeds; nothing is acknowledged meanwhile, and what needs no store goes on.

Messages that have left for connected clients get a moment before they are written, where that pays
(`patience.py`): what everyone has acknowledged is not written, and its publisher is answered at once.

Where a part of the node has a durable log, the journal, a batch is committed when the log has all that was
recorded before it was taken. Were the store first, then after a crash between the two it would know messages,
by their ids or by the packet identifiers of QoS 2, that are in no journal: when they come again they would be
acknowledged, and not recorded.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.broker.changes import Changes
from hedgerow.errors import StoreError
from hedgerow.node.part import DurableLog, NodeContext, Part
from hedgerow.node.patience import LEAST_S, Patience

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from prometheus_client.core import Metric

    from hedgerow.node.log_room import LogRoom
    from hedgerow.node.store import Store

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.1
MAX_RETRY_S = 5.0
ROOM_INTERVAL_S = 1.0
SETTLE_S = 0.1  # So long the rows of what waits may be behind the log.


# Figure of `CommitStats` → name and help.
COMMIT_COUNTERS = {
    "commits": ("hedgerow_commits", "Batches that are durable in the store and the journal."),
    "commit_s": ("hedgerow_commit_seconds", "Time that batches took from being gathered to being durable."),
    "failures": ("hedgerow_commit_failures", "Attempts to write to the store that failed, and are repeated."),
}


@dataclass(slots=True)
class CommitStats:
    commits: int = 0
    commit_s: float = 0.0
    """From the moment when a batch was taken; of all batches together."""
    failures: int = 0
    """Attempts of the store; each is repeated."""


class Committer(Part):
    """Of a node that has a store, a part with a durable log, or both."""

    room_interval_s = ROOM_INTERVAL_S

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.stats = CommitStats()
        self._store_failure: str | None = None
        self._store: Store | None = None
        self._room: LogRoom | None = None
        self._room_check: asyncio.TimerHandle | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._is_late = False  # The rows are to be written with the next batch, whatever that has.
        self._settles = False  # and with this one
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "hedgerow-store")
        self._awaited: DurableLog | None = None
        self._scheduled = False
        self.patience = Patience()
        self._waiting: asyncio.TimerHandle | None = None  # for acknowledgements; when that is over,
        self._waits_until = 0  # messages up to this number are to be finished
        self._batch: Changes | None = None
        self._taken_at = 0.0
        self._is_stored = True  # the batch, if there is one
        self._is_written = False  # its rows, which wait for the log
        self._position = 0  # up to which the log is to be durable before the batch counts as committed
        self._retry_s = FIRST_RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._has_started = self._closed = self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def open_store(self) -> Store | None:
        if self.node.config.data is not None:
            from hedgerow.node.log_room import log_bounds

            self._store = await self._open(self.node.config.data)
            self.log_bounds = log_bounds(self.node.config, self._store.log)
            self._room = self.room_in(self._store.log.directory)
        return self._store

    def store_in(self, directory: Path) -> Store:
        """Called in a thread."""
        from hedgerow.node.store import Store

        return Store.open(directory)

    def room_in(self, directory: Path) -> LogRoom:
        """Of the log's directory."""
        from hedgerow.node.log_room import LogRoom

        return LogRoom(directory)

    async def _open(self, directory: Path) -> Store:
        """In a thread: it waits for the disk, and other nodes may live in this loop."""
        opening = asyncio.ensure_future(asyncio.to_thread(self.store_in, directory))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and what it opens stays locked until it is closed.
            with suppress(StoreError):
                (await opening).close()
            raise

    async def start(self) -> None:
        self._awaited = next((part.log for part in self.node.parts if part.log is not None), None)
        if self._awaited is not None:
            self._awaited.on_durable = self._advance
        self._has_started = True

    @property
    def problem(self) -> str | None:
        """Why the store does not take what it is given, while that lasts."""
        return self._store_failure

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.node.metrics import counters

        return counters(self.stats, COMMIT_COUNTERS)

    @property
    def has_work(self) -> bool:
        """Something may have to be stored: that is found out when this turn has heard everyone."""
        if self._scheduled or self._closed:
            return False
        durability = self.node.broker.durability
        if self._waiting is None:
            return True
        return durability.may_let_go() or not durability.is_on_its_way

    def serve(self) -> None:
        if not self.has_work:
            return
        if self._waiting is not None and self.node.broker.durability.is_on_its_way:
            self._scheduled = True
            self._take()
        else:
            self._scheduled = True
            # Not at once: the connections that this turn of the loop has yet to read join the batch.
            self._loop.call_soon(self._take)

    def _may_wait(self) -> bool:
        """Is what is to be stored given a moment to be acknowledged instead?"""
        durability = self.node.broker.durability
        if not self.patience.wait_s or self._is_late or self._is_draining or not durability.is_on_its_way:
            return False
        if self._waiting is None:
            if not durability.has_unwritten:
                return False
            self._waits_until = durability.last_number
            due = self.node.clock() + self.patience.wait_s
            self._waiting = self._loop.call_later(self.patience.wait_s, self._has_waited, due)
        return True

    def _has_waited(self, due: float, is_last: bool = False) -> None:
        self._waiting = None
        if self._scheduled:  # Something else had to be stored, and all else with it.
            return
        now = self.node.clock()
        if not is_last and now > due + LEAST_S:
            # What has come while the loop did something else is to be read first. Once: it may always do so.
            self._waiting = self._loop.call_later(LEAST_S, self._has_waited, now + LEAST_S, True)
            return
        if self.node.broker.durability.done_until(self._waits_until):
            self.patience.paid()
        else:
            self.patience.in_vain()
        self._scheduled = True
        self._take()

    def _check_room(self) -> None:
        """Messages wait where the disk has no room, and come when it has some again."""
        room = self._room
        if room is None or self._store is None or self._closed:
            return
        log = self._store.log
        has_changed = room.check(self.node.clock(), log.written_bytes, log.bytes)
        self.node.broker.set_disk_room(room.has_room, room.batch_bytes)
        if has_changed and room.has_room:
            self.serve()
        waits = not room.has_room or self.node.broker.durability.has_unwritten
        if waits and self._room_check is None:
            self._room_check = self._loop.call_later(self.room_interval_s, self._check_room_again)

    def _check_room_again(self) -> None:
        self._room_check = None
        self.serve()

    def _take(self) -> None:
        self._check_room()
        may_wait = self._may_wait()
        self._batch = self.node.broker.take_finished() if may_wait else self.node.broker.take_changes()
        self._settles = self._is_late and self._store is not None and not self._store.is_settled
        if self._batch is None and self._settles:
            self._batch = Changes()
        if self._batch is None:
            self._scheduled = False
            if may_wait:
                self._idle.clear()
            else:
                self._idle.set()
            return
        self._idle.clear()
        self._taken_at = self.node.clock()
        if self._awaited is not None:
            self._position = self._awaited.next_position
        # What is held for the log alone is no batch for the store: all before it is committed.
        self._is_stored = self._store is None or not (self._batch or self._settles)
        self._is_written = False
        if may_wait:
            self._advance()
        elif self._is_stored:
            self._loop.call_soon(self._advance)
        else:
            self._write()

    def _write(self) -> None:
        """The rows, at once, as the batch is: the broker goes on to change its deliveries."""
        assert self._batch is not None
        assert self._store is not None
        try:
            self._is_written = self._store.write(self._batch, self._settles)
        except Exception as error:
            self._failed(error)
            return
        if self._is_written:
            self._advance()
        else:
            self._has_stored()
            self._loop.call_soon(self._advance)

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
        self._has_stored()
        self._advance()

    def _has_stored(self) -> None:
        assert self._store is not None
        self._retry_s = FIRST_RETRY_S
        self._is_stored = True
        if self._store.shrunk:
            shrunk, self._store.shrunk = self._store.shrunk, []
            self.node.broker.segments_shrunk(shrunk)
        if self._store.is_settled:
            self._is_late = False
        elif self._settling is None and not self._is_late:
            self._settling = self._loop.call_later(SETTLE_S, self._settle)

    def _settle(self) -> None:
        """The rows of what waits have been behind the log for long enough."""
        self._settling = None
        self._is_late = True
        self.serve()

    def _advance(self) -> None:
        """The store or the log has got further. When both have the batch, the broker is told."""
        if self._closed or self._batch is None:
            return
        if self._awaited is not None and not self._awaited.expect(self._position):
            return
        if not self._is_stored:
            if self._is_written:
                assert self._store is not None
                self._is_written = False  # It is being committed, or has to be written again.
                self._thread.submit(self._store.commit).add_done_callback(self._wake)
            return
        self._batch = None
        node = self.node
        now = node.clock()
        self.stats.commits += 1
        self.stats.commit_s += now - self._taken_at
        try:
            node.broker.changes_committed(now)
        except Exception as error:  # Without the next batch nothing would be acknowledged any more.
            node.failures.note(type(self).__name__, error)
        was_prompt = node.broker.durability.was_prompt
        if was_prompt is not None:
            self.patience.stored(was_prompt, now - self._taken_at)
        node.flush()
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

    async def stop(self) -> None:
        """Acknowledgements leave before the connections do."""
        await self.drain(self.node.shut_down_s)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything is stored. False when that took too long."""
        self._is_draining = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self.serve()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(0)
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Store the last changes; a batch that takes longer than the node may is given up."""
        if self._has_started and not await self.drain(self.node.shut_down_s):
            awaited = self._awaited.failure if self._awaited is not None else None
            logger.error("the last changes are not stored: %s", self._store_failure or awaited or "too slow")
        self._closed = True
        for timer in self._retry, self._room_check, self._settling, self._waiting:
            if timer is not None:
                timer.cancel()
        await asyncio.to_thread(self._thread.shutdown)  # a commit may take as long as the disk does
        if self._store is not None:
            await asyncio.to_thread(self._close_store, self._store)

    @staticmethod
    def _close_store(store: Store) -> None:
        try:
            if not store.is_settled:
                store.write(Changes(), settles=True)
                store.commit()
        except StoreError as error:  # The log has it all the same.
            logger.warning("%s; some messages may come once more", error)
        finally:
            store.close()
