"""The durable store: what the broker must not forget, in one SQLite file and a log of messages.

Guarantees. When `commit` returns, the changes written before it survive `kill -9` and power loss;
when it raises, none of them is there and the same changes may be written again. A directory serves
one node at a time. A file that is damaged, not ours or of a newer format is refused, and since it is
read whole through a read-only connection before anything else, a refused file is never changed. One of
an older format is taken up, and from then on has this one.

How. Messages that wait are appended to the log (`message_log.py`) and synced; then the rows that refer to
their positions are committed; then segments go that no row refers to any more. So what a crash leaves
between two of these steps is a part of the log that nobody needs, and it is removed at the next start.
SQLite's own write-ahead log is synced at each commit (WAL, synchronous FULL), which costs one fsync however
many rows it holds. Where a batch has nothing but messages at QoS 1, the log alone is synced: it notes who
waits for each, and from that the rows are made after a crash. They are written with the next batch that has
more, or when `write` is told to settle; what was finished meanwhile comes once more after a crash. `write`
packs messages and runs the statements on the event loop's thread, where they stay in memory, and `commit`,
which does the I/O, runs in a helper thread without the interpreter's lock. Nothing touches the connection
between the two. A new file is built under another name and renamed, so that a store exists whole or not at
all.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import struct
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from hedgerow.broker.changes import Changes, Snapshot
from hedgerow.broker.stored import Chunk, Run, StoredQueue
from hedgerow.errors import ProtocolError, StoreError
from hedgerow.log.files import sync_directory
from hedgerow.mqtt.outbox import Delivery
from hedgerow.node import message_log, store_rows, store_schema, store_upgrade
from hedgerow.node.message_log import DiskLog

logger = logging.getLogger(__name__)

FILE_NAME = "hedgerow.db"
LOCK_NAME = "hedgerow.lock"
APPLICATION_ID = 0x48454447  # "HEDG": how SQLite and `file` tell our files from other programs'.
FORMAT = store_schema.FORMAT

# A reader of the file, such as the sqlite3 shell, may hold it for a moment while we open it.
BUSY_TIMEOUT_S = 2.0
# 4 MiB of log between checkpoints. 16 MiB saves no time: a log that is written over in place syncs
# faster than one that grows.
_CHECKPOINT_PAGES = 1000
MAX_CHUNKS = 1_000  # Of more, rows are written with each batch.
_LOG_BYTES = 16 * 1024 * 1024  # What a log that one large batch has grown is cut back to.


class PageCache(NamedTuple):
    kib: int = 8 * 1024
    """Kept for the rows that the next batches delete; a backlog larger than this is read back."""
    spill_pages: int = 16 * 1024
    """Only a batch beyond this goes to the disk from `write`, on the loop's thread: 64 MiB of pages."""


PAGE_CACHE = PageCache()


class Store:
    """An open store. `write` and `commit` come in turn; see the module's text for their threads."""

    def __init__(self, path: Path, lock: int, connection: sqlite3.Connection, log: DiskLog) -> None:
        self.path = path
        self.log = log
        self.epoch = 0
        self._lock = lock
        self._connection = connection
        self._snapshot: Snapshot | None = None
        self._removed: list[tuple[int, int]] = []  # segments of the log, once the rows are committed
        self._sparse: dict[int, tuple[int, list[Run]]] = {}  # those that are then written anew
        self.shrunk: list[tuple[int, int, int]] = []
        """Where segments begin that were written anew, their bytes and messages, until somebody takes it."""
        self._chunks: dict[tuple[int, int], Chunk] = {}  # whose rows are yet to be written
        self._end = 0  # of what was written to the log
        self._is_written = False  # There is something to commit.

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        page_cache: PageCache = PAGE_CACHE,
        sqlite_version: tuple[int, ...] = sqlite3.sqlite_version_info,
        wall_clock: Callable[[], float] = time.time,
    ) -> Self:
        """The store in `directory`, made when there is none. StoreError says why it is refused."""
        if sqlite_version < (3, 37):
            found = ".".join(map(str, sqlite_version))
            raise StoreError(f"the store needs SQLite 3.37; this Python has {found}")
        path = directory / FILE_NAME
        try:
            lock = _lock_directory(directory)
        except OSError as error:
            raise StoreError(f"cannot use {directory} as the data directory: {error}") from error
        try:
            if not path.exists():
                _create(path, created_at=int(wall_clock()))
            loaded, waiting = _inspect(path, busy_timeout_s)
            log = DiskLog.open(directory / message_log.DIRECTORY, loaded.snapshot.next_position)
            store = cls(path, lock, connect(path, busy_timeout_s, page_cache), log)
        except BaseException:
            os.close(lock)
            raise
        try:
            store._take_up(loaded, waiting, wall_clock())
        except BaseException:
            store.close()
            raise
        return store

    def _take_up(self, loaded: store_rows.Loaded, waiting: store_upgrade.OldQueue | None, now: float) -> None:
        """The next life of this node begins, durably, before anyone can hear of it."""
        snapshot, under_way, loose = loaded
        moved = Changes()
        if waiting is not None:
            moved, under_way = store_upgrade.move_to_log(waiting, self.log, now)
            snapshot.chunks = [(session_key, chunk) for (session_key, _), chunk in moved.chunks.items()]
        ends = (chunk.end for _, chunk in snapshot.chunks)
        self._add_noted(snapshot, loose)
        snapshot.next_position = max(self.log.next_position, snapshot.next_position, *ends)
        self._end = snapshot.next_position
        self._removed = self._match_with_log(snapshot, loose)
        deliveries = self._read_deliveries(under_way, loose)
        snapshot.deliveries = [(session_key, each) for (session_key, _), each in deliveries.items()]
        if waiting is not None:
            moved.deliveries.update(deliveries)
        # Where the disk is full, its log can only be written over from its start.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        with self._failing_whole():
            self._connection.execute("BEGIN IMMEDIATE")
            (found_format,) = self._connection.execute("PRAGMA user_version").fetchone()
            for older in range(found_format, FORMAT):
                for statement in store_schema.UPGRADES[older]:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {older + 1}")
            for changes in moved, loose:
                store_rows.put(self._connection, changes)
                store_rows.remove(self._connection, changes)
            self._connection.execute(
                "UPDATE node SET epoch = epoch + 1, next_position = ?", (snapshot.next_position,)
            )
            (self.epoch,) = self._connection.execute("SELECT epoch FROM node").fetchone()
        self._is_written = True
        self.commit()
        snapshot.segments = self.log.segments
        self._snapshot = snapshot
        # From now on the write-ahead log can be written over from its start, so that positions are stored
        # even where messages have filled the disk.
        self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _add_noted(self, snapshot: Snapshot, loose: Changes) -> None:
        """What the log notes of messages whose rows were yet to be written. They may have been sent."""
        queues = {session.key: StoredQueue() for session in snapshot.sessions}
        for session_key, chunk in snapshot.chunks:
            queues[session_key].restore(chunk)
        for note in self.log.notes_from(snapshot.next_position):
            for session_key, flags, identifiers in note.waiting:
                queue = queues.get(session_key)
                if queue is not None:
                    size = note.count * note.size
                    chunk = queue.add(
                        note.position, note.count, flags, tuple(identifiers), None, size, note.at
                    )
                    chunk.sent = note.position + note.count - 1
                    loose.chunks[session_key, chunk.number] = chunk
        snapshot.chunks = [(key, chunk) for key, queue in queues.items() for chunk in queue.chunks]

    def _match_with_log(self, snapshot: Snapshot, loose: Changes) -> list[tuple[int, int]]:
        """Give up positions that the log does not have. Segments to which nothing refers."""
        spans = self.log.spans
        needed: set[int] = set()
        lost = 0
        for session_key, chunk in snapshot.chunks:
            for run in list(chunk.runs_from(0)):
                for first, count in _missing(run, spans, needed):
                    chunk.remove(first, count)
                    lost += count
                    loose.chunks[session_key, chunk.number] = chunk
        if lost:
            logger.error("%s: %d waiting messages are missing, and lost", self.log.directory, lost)
        snapshot.chunks = [each for each in snapshot.chunks if each[1].count]
        return [span for number, span in enumerate(spans) if number not in needed]

    def _read_deliveries(
        self, under_way: list[store_rows.InFlight], loose: Changes
    ) -> dict[tuple[int, int], Delivery]:
        positions = sorted({each.position for each in under_way if each.position < self.log.next_position})
        found, reached = self.log.read([(position, 1) for position in positions], sys.maxsize)
        if positions and reached <= positions[-1]:
            # Another time they can be read. Without them, what comes once would come twice.
            raise StoreError(f"cannot read from {self.log.directory} now")
        messages = {each.position: each for each in found}
        deliveries = {}
        for each in under_way:
            key = each.session_key, each.position
            logged = messages.get(each.position)
            if logged is None:
                loose.deliveries[key] = None
            else:
                deliveries[key] = each.delivery(logged.message, logged.at)
        return deliveries

    def node_id(self, default: str, chosen: str | None = None) -> str:
        """The lasting name of this node; what is returned is kept for the starts to come.

        `chosen` is what the user asks for, and wins; without it the kept name stays, and only a
        new store takes `default`. A changed name is safe for message ids, because the epoch
        belongs to the store and grows on through it: no (origin, epoch, sequence) comes twice.
        """
        with self._failing_whole():
            (kept,) = self._connection.execute("SELECT id FROM node").fetchone()
            node_id: str = chosen or kept or default
            if node_id != kept:
                self._connection.execute("UPDATE node SET id = ?", (node_id,))
        return node_id

    def load(self) -> Snapshot:
        """What was stored when the store was opened, handed over once."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise RuntimeError("the store has been loaded already")
        return snapshot

    def write(self, changes: Changes, settles: bool = False) -> bool:
        """Put `changes` into what `commit` makes durable. `settles`: with all rows, whatever changed.
        False: it has nothing to do, as rows alone are to be written that may wait. StoreError: nothing was
        written."""
        if self._connection.in_transaction:
            raise RuntimeError("the last changes are not committed yet")
        self._chunks |= changes.chunks
        self._sparse |= {first: (end, runs) for first, end, runs in changes.sparse}
        self._removed += [each for each in changes.removed if each not in self._removed]
        has_rows = settles or not changes.may_wait or len(self._chunks) > MAX_CHUNKS
        with self._failing_whole():
            if changes.messages:
                self._end = changes.first_position + len(changes.messages)
                self.log.write(
                    changes.messages,
                    changes.first_position,
                    changes.at,
                    changes.begins_segment,
                    # Where rows say who waits, notes must not: a crash between the two syncs would leave the
                    # messages without what else is known of them, the packet identifiers of QoS 2.
                    () if has_rows else changes.waiting,
                )
            if has_rows:
                self._write_rows(changes)
        self._is_written = True
        return bool(changes.messages) or self._connection.in_transaction

    @property
    def is_settled(self) -> bool:
        """Are there rows for all that is in the log?"""
        return not (self._chunks or self._removed)

    def _write_rows(self, changes: Changes) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        whole = replace(changes, chunks=self._chunks)
        store_rows.put(self._connection, whole)
        store_rows.remove(self._connection, whole)
        self._connection.execute("UPDATE node SET next_position = ?", (self._end,))

    def commit(self) -> None:
        """Make what was written durable. StoreError: nothing was; the same changes may be written again."""
        if not self._is_written:
            raise StoreError("cannot commit: nothing was written")
        self._is_written = False
        removed: list[tuple[int, int]] = []
        sparse: dict[int, tuple[int, list[Run]]] = {}
        try:
            with self._failing_whole():
                self.log.commit()
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")
                    self._chunks = {}
                    removed, self._removed = self._removed, []
                    sparse, self._sparse = self._sparse, {}
        except StoreError:
            # On a full disk the log cannot grow, and only a commit would have checkpointed it.
            # After a checkpoint the next try writes over the log's old frames and needs no room.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)")
            raise
        self.log.confirm()
        try:
            self._clear_up(removed, sparse)
        except Exception:  # a mistake of ours: what is durable must not be written again for it
            logger.exception("clearing up %s failed", self.log.directory)

    def _clear_up(
        self, removed: Sequence[tuple[int, int]], sparse: Mapping[int, tuple[int, list[Run]]]
    ) -> None:
        for first, end in removed:
            self.log.remove(first, end)
        for first, (end, runs) in sparse.items():
            size = self.log.shrink(first, end, runs)
            if size is not None:
                self.shrunk.append((first, size, sum(count for _, count in runs)))

    def abandon(self) -> None:
        """Drop what was written and is not committed."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        self.log.abandon()
        self._is_written = False

    def close(self) -> None:
        """Leave the directory to others. What was not committed is dropped."""
        if self._lock < 0:
            return
        self._connection.close()
        self.log.close()
        os.close(self._lock)
        self._lock = -1

    @contextmanager
    def _failing_whole(self) -> Iterator[None]:
        """Whatever goes wrong inside ends the transaction; what SQLite reports becomes StoreError."""
        try:
            yield
        except BaseException as error:
            self.abandon()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"cannot write to {self.path}: {error}") from error
            raise


def _missing(run: Run, spans: list[tuple[int, int]], needed: set[int]) -> Iterator[Run]:
    """The parts of the run that lie in none of the spans; `needed` gets the numbers of those in which it
    lies."""
    position, end = run[0], sum(run)
    number = max(0, bisect_right(spans, (position, sys.maxsize)) - 1)
    for first, after in spans[number:]:
        if first >= end:
            break
        if position < first:
            yield position, first - position
        if after > position:
            needed.add(number)
            position = after
        number += 1
    if position < end:
        yield position, end - position


def _lock_directory(directory: Path) -> int:
    """Make the directory and take it for this process; the descriptor returned holds the lock.

    SQLite's own lock is not enough: POSIX drops it as soon as the same process closes any other
    descriptor of the file, and it would let a second store of this process in.
    """
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
        sync_directory(directory.parent)
    lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, os.pwrite(lock, b"%d\n" % os.getpid(), 0))  # A full disk may give no block again.
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreError(
            f"{directory} is in use by another process (pid {holder or 'unknown'}); "
            "stop it, or give this node a data directory of its own"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _create(path: Path, created_at: int) -> None:
    """A new, empty store, whole from the first moment at which it bears its name."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        # SQLite would replay that log into the new file.
        raise StoreError(
            f"{path} is missing, but its log {log.name} is there; restore it, or move {log} away"
        )
    unfinished = path.with_name(path.name + ".new")
    try:
        for leftover in unfinished, unfinished.with_name(unfinished.name + "-journal"):
            leftover.unlink(missing_ok=True)
        # Messages are nobody's to read but the node's; SQLite gives its log the mode of the file.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.executescript(f"BEGIN; {store_schema.SCHEMA}")
            # Counted from the time of creation: a node that lost its disk and kept its name does
            # not repeat the epochs, hence the message ids, of its former lives.
            connection.execute("INSERT INTO node VALUES ('', ?, 1)", (created_at,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
        unfinished.replace(path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot create {path}: {error}") from error


def connect(
    path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S, page_cache: PageCache = PAGE_CACHE
) -> sqlite3.Connection:
    """To a store that exists, as a node writes to it: alone, and with each commit synced."""
    connection = sqlite3.connect(path, busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        # First, so that the log's index stays in memory and other programs stay out.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path}: SQLite cannot keep a write-ahead log on this file system")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{page_cache.kib}")
        connection.execute(f"PRAGMA cache_spill = {page_cache.spill_pages}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        connection.execute("PRAGMA secure_delete = OFF")  # Debian's SQLite overwrites what it deletes.
    except sqlite3.Error as error:
        connection.close()
        raise _refusal(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _inspect(path: Path, busy_timeout_s: float) -> tuple[store_rows.Loaded, store_upgrade.OldQueue | None]:
    """Read all that is stored without changing a byte, or raise the StoreError that says what is wrong."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, busy_timeout_s, isolation_level=None, uri=True)) as connection:
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
            if application_id != APPLICATION_ID:
                raise StoreError(
                    f"{path} is not a Hedgerow store and was left as it is; "
                    "move it away, or give another data directory"
                )
            (found_format,) = connection.execute("PRAGMA user_version").fetchone()
            if found_format > FORMAT:
                raise StoreError(
                    f"{path} has format {found_format}, written by a newer Hedgerow, and was left as it is; "
                    f"this one reads format {FORMAT}: run the newer one, or give another data directory"
                )
            if found_format != FORMAT and found_format not in store_schema.UPGRADES:
                raise _damaged(path, f"format {found_format} is none that this program reads")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _damaged(path, verdict.splitlines()[-1])  # The lines before it are a heading.
            if connection.execute("SELECT count(*) FROM node").fetchone() != (1,):
                raise _damaged(path, "the node's epoch is missing")
            loaded = store_rows.read(connection, found_format)
            if found_format >= store_schema.IN_LOG:
                return loaded, None
            session_keys = {session.key for session in loaded.snapshot.sessions}
            return loaded, store_upgrade.read(connection, session_keys)
    except sqlite3.Error as error:
        raise _refusal(path, error) from error
    except (ProtocolError, ValueError, struct.error) as error:
        raise _damaged(path, str(error)) from error


# What SQLite's result code says about the file, for the codes that do not mean damage.
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is in use by another process; stop it, or give another data directory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it is a file and who may read and write it",
    sqlite3.SQLITE_FULL: "cannot be opened: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read; check the disk",
    sqlite3.SQLITE_NOTADB: "is not a Hedgerow store, or its beginning is damaged, and was left as it is; "
    "restore it from a backup, or move it away to begin with an empty store",
    sqlite3.SQLITE_PERM: "cannot be opened; check who may read and write it",
    sqlite3.SQLITE_READONLY: "cannot be written; check who may write it and its directory",
}


def _refusal(path: Path, error: sqlite3.Error) -> StoreError:
    # The low byte is the primary code; errors that Python's module raises itself have none.
    advice = _UNAVAILABLE.get(getattr(error, "sqlite_errorcode", -1) & 0xFF)
    return StoreError(f"{path} {advice} ({error})") if advice else _damaged(path, str(error))


def _damaged(path: Path, detail: str) -> StoreError:
    return StoreError(
        f"{path} is damaged ({detail}) and was left as it is; restore it from a backup, "
        f"or move it away together with {path.name}-wal to begin with an empty store"
    )
