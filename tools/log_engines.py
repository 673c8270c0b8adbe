"""Engines that could hold the one durable log, each behind the same few methods; measured by
measure_log_engines.py beside this file.

What is deleted is what no reader wants any more. `append` is for the loop's thread, and all else may block.
"""

from __future__ import annotations

import random
import sqlite3
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, islice, pairwise
from pathlib import Path
from struct import Struct, unpack
from typing import NamedTuple, Protocol

from hedgerow import journal
from hedgerow.log import files, scan
from hedgerow.log.appender import Appender
from hedgerow.log.frame import Group, LogFrame, SegmentFile
from hedgerow.message import Message, MessageId

SIZES = (64, 1_024)  # of payloads
SEGMENT_BYTES = 8 * 1024 * 1024  # of the journal and the frames: what goes, or is written anew, at once
NODE = "node-1a2b"
TOPICS = [f"farm/field/{number}/moisture" for number in range(100)]
PAYLOADS = [random.Random(number).randbytes(max(SIZES)) for number in range(1_000)]  # noqa: S311 (no secret)
STARTED_AT_US = 1_800_000_000_000_000


class Record(NamedTuple):
    position: int
    message: Message
    readers: int
    """How many have yet to take it."""


def record(position: int, size: int = SIZES[0]) -> Record:
    message = Message(
        TOPICS[position % len(TOPICS)],
        PAYLOADS[position % len(PAYLOADS)][:size],
        1,
        id=MessageId(NODE, 7, position),
        published_at=(STARTED_AT_US + 1_000 * position) / 1e6,
    )
    return Record(position, message, 1 + position % 3)


def batches(start: int, messages: int, group: int, size: int = SIZES[0]) -> Iterator[list[Record]]:
    for first in range(start, start + messages, group):
        yield [record(position, size) for position in range(first, min(first + group, start + messages))]


class Engine(Protocol):
    """A log in a directory, which it opens or makes. All but `append` may block on the disk."""

    def __init__(self, directory: Path) -> None: ...

    @property
    def next_position(self) -> int:
        """Behind the last that is there."""

    def append(self, records: Sequence[Record]) -> None:
        """On the loop's thread."""

    def commit(self) -> None:
        """Make durable what was appended. Where it raises, it may be called again."""

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        """The next so many from there, of the topic if one is given."""

    def delete_before(self, position: int) -> None: ...

    def delete_some(self, positions: Sequence[int]) -> None: ...

    def close(self) -> None: ...


class Sqlite:
    """As the store: WAL, FULL, its cache and checkpoints. But readers have a connection of their own, so that
    none waits for a commit, and so the file is not locked for one connection."""

    _TABLE = """
        CREATE TABLE IF NOT EXISTS log (
            position INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, flags INTEGER NOT NULL,
            origin TEXT NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
            published_at REAL NOT NULL, readers INTEGER NOT NULL
        ) STRICT
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._writing, self._reading = (
            sqlite3.connect(directory / "log.db", isolation_level=None, check_same_thread=False)
            for _ in range(2)
        )
        for pragma in (
            "journal_mode = WAL", "synchronous = FULL", "cache_size = -8192", "cache_spill = 16384",
            "wal_autocheckpoint = 1000", "journal_size_limit = 16777216", "secure_delete = OFF",
        ):  # fmt: skip
            self._writing.execute(f"PRAGMA {pragma}").fetchall()
        self._writing.execute(self._TABLE)
        self._pending: Sequence[Record] = ()

    @property
    def next_position(self) -> int:
        (last,) = self._reading.execute("SELECT max(position) FROM log").fetchone()
        return 0 if last is None else last + 1

    def append(self, records: Sequence[Record]) -> None:
        self._pending = records
        self._writing.execute("BEGIN IMMEDIATE")
        self._writing.executemany(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (position, message.topic, bytearray(message.payload), message.qos, *(message.id or ()),
                 message.published_at, readers)
                for position, message, readers in records
            ],
        )  # fmt: skip

    def commit(self) -> None:
        def finish() -> None:
            if not self._writing.in_transaction:
                self.append(self._pending)
            self._writing.execute("COMMIT")

        self._whole(finish)

    def _whole(self, action: Callable[[], object]) -> None:
        try:
            action()
        except sqlite3.Error:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            with suppress(sqlite3.Error):  # As in the store: where its log cannot grow, begin that anew.
                self._writing.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            raise

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        where = "" if topic is None else "AND topic = ?"
        values = (position, count) if topic is None else (position, topic, count)
        rows = self._reading.execute(
            f"SELECT * FROM log WHERE position >= ? {where} ORDER BY position LIMIT ?", values
        )
        return [
            Record(at, Message(topic, payload, flags, id=MessageId(*ids), published_at=published_at), readers)
            for at, topic, payload, flags, *ids, published_at, readers in rows.fetchall()
        ]

    def delete_before(self, position: int) -> None:
        self._whole(lambda: self._writing.execute("DELETE FROM log WHERE position < ?", (position,)))

    def delete_some(self, positions: Sequence[int]) -> None:
        def delete() -> None:
            self._writing.execute("BEGIN IMMEDIATE")
            self._writing.executemany("DELETE FROM log WHERE position = ?", zip(positions, strict=True))
            self._writing.execute("COMMIT")

        self._whole(delete)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


# Keys and values for the two engines that know nothing else.

KEY = Struct(">Q")
HEAD = Struct("<BIdqqHH")


def to_pair(record: Record) -> tuple[bytes, bytes]:
    position, message, readers = record
    assert message.id is not None
    origin, epoch, sequence = message.id
    topic, name = message.topic.encode(), origin.encode()
    head = HEAD.pack(message.qos, readers, message.published_at, epoch, sequence, len(topic), len(name))
    return KEY.pack(position), b"".join((head, topic, name, message.payload))


def to_record(key: bytes, value: bytes) -> Record:
    flags, readers, published_at, epoch, sequence, topic_bytes, origin_bytes = HEAD.unpack_from(value)
    origin_at = HEAD.size + topic_bytes
    payload_at = origin_at + origin_bytes
    message_id = MessageId(value[origin_at:payload_at].decode(), epoch, sequence)
    topic = value[HEAD.size : origin_at].decode()
    message = Message(topic, value[payload_at:], flags, id=message_id, published_at=published_at)
    return Record(KEY.unpack(key)[0], message, readers)


def to_records(pairs: Iterator[tuple[bytes, bytes]], count: int, topic: str | None) -> list[Record]:
    if topic is not None:
        text = topic.encode()
        pairs = (pair for pair in pairs if pair[1].startswith(text, HEAD.size))
    return [to_record(key, value) for key, value in islice(pairs, count)]


class Lmdb:
    """A transaction belongs to its thread, so all but the encoding is in `commit`."""

    def __init__(self, directory: Path) -> None:
        # The size is of addresses, and a limit: what it grows to has to be known in advance.
        directory.mkdir(parents=True, exist_ok=True)
        self._environment = import_module("lmdb").open(str(directory), map_size=16 << 30)
        self._pairs: list[tuple[bytes, bytes]] = []

    @property
    def next_position(self) -> int:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            return KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def append(self, records: Sequence[Record]) -> None:
        self._pairs = [to_pair(record) for record in records]

    def commit(self) -> None:
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(self._pairs, append=True)

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if not cursor.set_range(KEY.pack(position)):
                return []
            return to_records(cursor.iternext(), count, topic)

    def delete_before(self, position: int) -> None:
        bound = KEY.pack(position)
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.first()
            while cursor.key() and cursor.key() < bound:
                cursor.delete()

    def delete_some(self, positions: Sequence[int]) -> None:
        with self._environment.begin(write=True) as transaction:
            for position in positions:
                transaction.delete(KEY.pack(position))

    def close(self) -> None:
        self._environment.close()


class Rocks:
    """With the options that it comes with, and each write synced."""

    def __init__(self, directory: Path) -> None:
        self._rocksdict = import_module("rocksdict")
        self._log = self._rocksdict.Rdict(str(directory), self._rocksdict.Options(raw_mode=True))
        self._synced = self._rocksdict.WriteOptions()
        self._synced.sync = True
        self._pairs: list[tuple[bytes, bytes]] = []

    @property
    def next_position(self) -> int:
        return max(
            (KEY.unpack(key)[0] + 1 for key, _ in islice(self._log.items(backwards=True), 1)), default=0
        )

    def append(self, records: Sequence[Record]) -> None:
        self._pairs = [to_pair(record) for record in records]

    def commit(self) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in self._pairs:
            batch.put(key, value)
        self._log.write(batch, self._synced)

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        return to_records(self._log.items(from_key=KEY.pack(position)), count, topic)

    def delete_before(self, position: int) -> None:
        self._log.delete_range(KEY.pack(0), KEY.pack(position), self._synced)

    def delete_some(self, positions: Sequence[int]) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for position in positions:
            batch.delete(KEY.pack(position))
        self._log.write(batch, self._synced)

    def close(self) -> None:
        self._log.close()


class Journal:
    """The journal as it is: `Writer` with its own thread, `JournalReader` with Arrow. It has no field for the
    number of readers, which is given as the packet identifier and is not read back; and nothing is deleted
    out of its middle."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer = journal.Writer(
            directory, NODE, gather_s=0, segment_bytes=SEGMENT_BYTES, drop_duplicates=False
        )
        self._reader = journal.JournalReader(directory)

    @property
    def next_position(self) -> int:
        return self._writer.next_position

    def append(self, records: Sequence[Record]) -> None:
        with self._writer.together():
            for position, message, readers in records:
                self._writer.append(message, transport="mqtt", received_at=position / 1e3, packet_id=readers)

    def commit(self) -> None:
        self._writer.flush()

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        names = ("position", "topic", "payload", "qos", "origin", "epoch", "sequence", "published_at")
        found: list[Record] = []
        filters = () if topic is None else (topic,)
        end = position + count if topic is None else None
        for batch in self._reader.batches(position, end, names, topic_filters=filters):
            columns = [column.to_pylist() for column in batch.columns[:-1]]
            times = batch.column("published_at").cast("int64").to_pylist()
            found += [
                Record(at, Message(topic, payload, qos, id=MessageId(*ids), published_at=time_us / 1e6), 0)
                for at, topic, payload, qos, *ids, time_us in zip(*columns, times, strict=True)
            ]
            if len(found) >= count:
                break
        return found[:count]

    def delete_before(self, position: int) -> None:
        journal.store_committed(self._directory, "all", position)
        journal.retain(self._directory, drop_committed=True)

    def delete_some(self, positions: Sequence[int]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._writer.close()


class Frames:
    """The journal's frames and segments, appended by the helper and read without Arrow.

    Nothing is written when a message is deleted: that follows from the readers' positions, which are kept
    elsewhere. A segment that all have taken is removed, and one of which less than half is wanted is written
    anew, with what is wanted, and renamed over the old one. It goes on with the frames that it read last.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        found = files.segments(directory)
        self._end = max((self._whole_end(segment) for segment in found[-1:]), default=0)
        self._appender = Appender(directory, found[-1].number + 1 if found else 1, SEGMENT_BYTES)
        self._group = Group(self._end)
        self._reading: tuple[int, str | None, Iterator[Record]] | None = None
        self._dead: set[int] = set()
        self._dead_in: Counter[int] = Counter()  # by the first position of the segment
        self._rows_of: dict[int, int] = {}

    @staticmethod
    def _whole_end(segment: files.Segment) -> int:
        end = segment.first_position
        with scan.opened(segment) as file:
            file.sync()
            for item in file.frames():
                if isinstance(item, LogFrame) and item.read_meta(file) and item.read_payloads(file):
                    end = item.end_position
        return end

    @property
    def next_position(self) -> int:
        return self._end

    def append(self, records: Sequence[Record]) -> None:
        self._group = Group(records[0].position)
        for record in records:
            self._add(self._group, record)

    @staticmethod
    def _add(group: Group, record: Record) -> None:
        _, message, readers = record
        assert message.published_at is not None
        group.add(
            (message.payload,), NODE, "mqtt", None, message.topic, None, message.id,
            round(message.published_at * 1e6), STARTED_AT_US, message.qos, readers,
        )  # fmt: skip

    def commit(self) -> None:
        self._appender.commit([self._group])
        self._end = self._group.end_position

    def read(self, position: int, count: int, topic: str | None = None) -> list[Record]:
        if self._reading is None or self._reading[:2] != (position, topic):
            self._reading = (position, topic, self._records(position, self._end, topic))
        records = list(islice(self._reading[2], count))
        self._reading = (records[-1].position + 1, topic, self._reading[2]) if len(records) == count else None
        return records

    def _records(self, start: int, end: int, topic: str | None = None) -> Iterator[Record]:
        for _, file, frame in scan.frames(self._directory, start, end, lambda gap: None):
            for record in self._records_of(file, frame, topic):
                if record.position >= start and record.position not in self._dead:
                    yield record

    @staticmethod
    def _records_of(file: SegmentFile, frame: LogFrame, topic: str | None) -> Iterator[Record]:
        meta = frame.read_meta(file)
        texts = frame.texts(meta) if meta is not None else []
        if meta is None or (topic is not None and topic not in texts):
            return
        payloads = frame.read_payloads(file)
        assert payloads is not None
        names = ("rows", "topic", "origin", "epoch", "sequence", "published_at", "flags", "packet_id")
        lengths = iter(unpack(f"<{frame.rows}I", frame.lengths(meta)))
        position, at = frame.first_position, 0
        for rows, number, origin, epoch, sequence, published, flags, readers in zip(
            *(frame.numbers(meta, name) for name in names), strict=True
        ):
            for shift, length in enumerate(islice(lengths, rows)):
                if topic is None or texts[number] == topic:
                    message_id = MessageId(texts[origin], epoch, sequence + shift)
                    payload = bytes(payloads[at : at + length])
                    message = Message(
                        texts[number], payload, flags, id=message_id, published_at=published / 1e6
                    )
                    yield Record(position, message, readers)
                position += 1
                at += length

    def delete_before(self, position: int) -> None:
        for segment, following in pairwise(files.segments(self._directory)):
            if following.first_position > position:
                break
            segment.path.unlink()

    def delete_some(self, positions: Sequence[int]) -> None:
        found = files.segments(self._directory)
        firsts = [segment.first_position for segment in found]
        for position in positions:
            self._dead_in[firsts[bisect_right(firsts, position) - 1]] += 1
        self._dead.update(positions)
        for segment, following in pairwise(found):
            first, end = segment.first_position, following.first_position
            rows = self._rows_of.setdefault(first, end - first)
            if 2 * self._dead_in[first] > rows:
                self._write_anew(segment, end)
                self._rows_of[first] = rows - self._dead_in.pop(first)
                self._dead.difference_update(range(first, end))

    def _write_anew(self, segment: files.Segment, end: int) -> None:
        """Under the same name and with the same marker, so that renaming it is all that there is to do."""
        groups: list[Group] = []
        for record in self._records(segment.first_position, end):
            if not groups or groups[-1].end_position != record.position:
                groups.append(Group(record.position))
            self._add(groups[-1], record)
        if groups:
            parts = chain.from_iterable(group.encode(segment.marker) for group in groups)
            files.replace_file(segment.path, b"".join(parts))
        else:
            segment.path.unlink()

    def close(self) -> None:
        self._appender.close()


ENGINES: dict[str, type[Engine]] = {
    "sqlite": Sqlite,
    "lmdb": Lmdb,
    "rocksdb": Rocks,
    "journal": Journal,
    "frames": Frames,
}
PACKAGES = {"lmdb": ("lmdb",), "rocksdb": ("rocksdict",), "journal": ("pyarrow", "numpy")}
