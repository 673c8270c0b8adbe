"""Prints the figures of docs/decisions/0008-the-journal.md: forms in which a journal could be on the disk.

    .venv/bin/python tools/measure_journal_forms.py [DIRECTORY]

Each form writes the same messages in groups, synced one by one, and reads them back into Arrow. Duplicates
are not looked for, but in the last rows, which are the `Writer` and the `Reader` whole.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from hedgerow import journal
from hedgerow.journal.columns import Piece, need, record_batches, schema
from hedgerow.log.frame import NO_TIME, Group, LogFrame, SegmentFile
from hedgerow.message import Message, MessageId

COUNT = 100_000  # what comes in a second
GROUPS = (100, 500, 2_000)
TOPICS = [f"farm/field/{number}/moisture" for number in range(100)]
CLIENTS = [f"sensor-{number}" for number in range(100)]
PAYLOAD = bytes(range(64))
MARKER = b"measured"
STARTED_AT = 1_800_000_000_000_000
BATCH_ROWS = 65_536
BLOCK = Struct("<II")

Row = tuple[int, str, int, int, str, str, str, str, bytes, int, bool, None, None, int]
"""In the order of `journal.COLUMNS`."""


def rows() -> list[Row]:
    return [
        (k, "node-1a2b", 7, k, "node-1a2b", "mqtt", CLIENTS[k % 100], TOPICS[k % 100], PAYLOAD, 1, False,
         None, None, STARTED_AT + 10 * k)
        for k in range(COUNT)
    ]  # fmt: skip


@cache
def prepared() -> list[Message]:
    """What a broker has in its hands before it asks the journal."""
    return [Message(row[7], row[8], 1, id=MessageId(row[1], row[2], row[3])) for row in rows()]


class Form(NamedTuple):
    name: str
    write: Callable[[Path, Sequence[Row], int], None]
    read: Callable[[Path], Iterator[Any]]
    recover: Callable[[Path], int]


# Blocks with a checksum each.


def write_block(file: int, body: bytes) -> None:
    os.write(file, BLOCK.pack(len(body), crc32(body)) + body)
    os.fdatasync(file)


def read_blocks(path: Path) -> Iterator[memoryview]:
    data = memoryview(path.read_bytes())
    at = 0
    while at < len(data):
        size, checksum = BLOCK.unpack_from(data, at)
        body = data[at + BLOCK.size : at + BLOCK.size + size]
        assert crc32(body) == checksum
        yield body
        at += BLOCK.size + size


def count_blocks(path: Path) -> int:
    return sum(1 for _ in read_blocks(path))


# 1. Arrow IPC.


def write_arrow(path: Path, messages: Sequence[Row], size: int) -> None:
    pa = need("pyarrow")

    wanted = schema()
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for begin in range(0, len(messages), size):
        columns: list[list[Any]] = [[] for _ in wanted]
        for row in messages[begin : begin + size]:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, wanted, strict=True)]
        write_block(file, pa.RecordBatch.from_arrays(arrays, schema=wanted).serialize().to_pybytes())
    os.close(file)


def read_arrow(path: Path) -> Iterator[Any]:
    pa = need("pyarrow")

    wanted = schema()
    batches = [pa.ipc.read_record_batch(pa.py_buffer(body), wanted) for body in read_blocks(path)]
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches(BATCH_ROWS)


# 2. Rows one after the other, with a table of where each begins; columns are gathered byte by byte in numpy.

HEAD = Struct("<qqqqBIIIIII")


def write_rows(path: Path, messages: Sequence[Row], size: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    pack = HEAD.pack
    for begin in range(0, len(messages), size):
        parts: list[bytes] = []
        offsets: list[int] = []
        at = 0
        for row in messages[begin : begin + size]:
            texts = [text.encode() for text in (row[1], row[4], row[5], row[6], row[7])]
            sizes = [*map(len, texts), len(row[8])]
            part = pack(row[0], row[2], row[3], row[13], row[9], *sizes) + b"".join(texts) + row[8]
            offsets.append(at)
            at += len(part)
            parts.append(part)
        table = len(offsets).to_bytes(4, "little") + b"".join([k.to_bytes(4, "little") for k in offsets])
        write_block(file, table + b"".join(parts))
    os.close(file)


def read_rows(path: Path) -> Iterator[Any]:
    np, pa = need("numpy"), need("pyarrow")

    names = ["position", "epoch", "sequence", "received_at"]
    head = np.dtype(
        [*[(name, "<i8") for name in names], ("flags", "u1"), *[(f"size{k}", "<u4") for k in range(6)]]
    )
    bodies, starts, begin = [], [], 0
    for block in read_blocks(path):
        count = int.from_bytes(block[:4], "little")
        body = block[4 + 4 * count :]
        starts.append(np.frombuffer(block[4 : 4 + 4 * count], "<u4").astype(np.int64) + begin)
        bodies.append(body)
        begin += len(body)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    offsets = np.concatenate(starts)

    def gather(begins: Any, sizes: Any, arrow_type: Any) -> Any:
        ends = np.cumsum(sizes)
        taken = data[np.repeat(begins - ends + sizes, sizes) + np.arange(ends[-1])]
        bounds = np.concatenate(([0], ends)).astype(np.int32)
        return pa.Array.from_buffers(
            arrow_type, len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(taken)]
        )

    for first in range(0, len(offsets), BATCH_ROWS):
        chosen = offsets[first : first + BATCH_ROWS]
        heads = np.ascontiguousarray(data[chosen[:, None] + np.arange(HEAD.size)]).view(head)[:, 0]
        at = chosen + HEAD.size
        texts = []
        for k in range(6):
            sizes = heads[f"size{k}"].astype(np.int64)
            texts.append(gather(at, sizes, pa.binary() if k == 5 else pa.string()))
            at = at + sizes
        numbers = {name: pa.array(np.ascontiguousarray(heads[name])) for name in names}
        none = pa.nulls(len(chosen), pa.string())
        times = numbers["received_at"].cast(pa.timestamp("us", "UTC"))
        yield pa.RecordBatch.from_arrays(
            [
                numbers["position"], texts[0], numbers["epoch"], numbers["sequence"], texts[1], texts[2],
                texts[3], texts[4], texts[5], pa.array((heads["flags"] & 3).astype(np.int32)),
                pa.array(heads["flags"] & 4 != 0), none, none.cast(times.type), times,
            ],
            schema=schema(),
        )  # fmt: skip


# 3. SQLite.


def open_sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    fields = ", ".join(name for name in journal.COLUMNS if name != "position")
    connection.execute(f"CREATE TABLE IF NOT EXISTS journal (position INTEGER PRIMARY KEY, {fields})")
    return connection


def write_sqlite(path: Path, messages: Sequence[Row], size: int) -> None:
    connection = open_sqlite(path)
    places = ", ".join("?" * len(journal.COLUMNS))
    for begin in range(0, len(messages), size):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO journal VALUES ({places})", messages[begin : begin + size])
        connection.execute("COMMIT")
    for name in (path.name, path.name + "-wal"):  # as a crash leaves it
        shutil.copy(path.with_name(name), path.with_name("crashed-" + name))
    connection.close()


def read_sqlite(path: Path) -> Iterator[Any]:
    pa = need("pyarrow")

    connection = open_sqlite(path)
    cursor = connection.execute("SELECT * FROM journal ORDER BY position")
    while found := cursor.fetchmany(BATCH_ROWS):
        columns = dict(zip(journal.COLUMNS, zip(*found, strict=True), strict=True))
        columns["retain"] = tuple(map(bool, columns["retain"]))
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema()], schema=schema()
        )
    connection.close()


def recover_sqlite(path: Path) -> int:
    connection = open_sqlite(path.with_name("crashed-" + path.name))
    (last,) = connection.execute("SELECT max(position) FROM journal").fetchone()
    connection.close()
    return int(last)


# 4. Frames.


def write_frames(path: Path, messages: Sequence[Row], size: int, run: int = 1) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    ready = prepared()
    for begin in range(0, len(messages), size):
        group = Group(begin)
        for first in range(begin, begin + size, run):
            row = messages[first]
            payloads = [message.payload for message in ready[first : first + run]]
            group.add(payloads, *row[4:8], None, ready[first].id, NO_TIME, row[13], row[9])
        os.write(file, b"".join(group.encode(MARKER)))
        os.fdatasync(file)
    os.close(file)


def read_frames_whole(path: Path) -> Iterator[Any]:
    pieces: list[Piece] = []
    rows = 0
    for file, frame in _frames(path):
        meta, payloads = frame.read_meta(file), frame.read_payloads(file)
        assert meta is not None
        assert payloads is not None
        pieces.append(Piece(frame, meta, payloads))
        rows += frame.rows
        if rows >= BATCH_ROWS or frame.end_position == COUNT:
            yield from record_batches(pieces, journal.COLUMNS)
            pieces, rows = [], 0


def recover_frames(path: Path) -> int:
    whole = [frame for file, frame in _frames(path) if frame.read_meta(file) and frame.read_payloads(file)]
    return whole[-1].end_position


def _frames(path: Path) -> Iterator[tuple[SegmentFile, LogFrame]]:
    descriptor = os.open(path, os.O_RDONLY)
    file = SegmentFile(descriptor, MARKER)
    for frame in file.frames():
        assert isinstance(frame, LogFrame)
        yield file, frame
    os.close(descriptor)


# And the whole thing.


def write_journal(path: Path, messages: Sequence[Row], size: int) -> None:
    ready = prepared()
    with journal.Writer(path, "node-1a2b", gather_s=0) as writer:
        for begin in range(0, len(messages), size):
            for message, row in zip(ready[begin : begin + size], messages[begin : begin + size], strict=True):
                writer.append(message, transport="mqtt", client=row[6], received_at=row[13] / 1e6)
            writer.flush()


def write_runs(path: Path, messages: Sequence[Row], size: int, run: int) -> None:
    """What a busy publisher sends: many to one topic in a row."""
    ready = prepared()
    with journal.Writer(path, "node-1a2b", gather_s=0) as writer:
        for begin in range(0, len(messages), size):
            for first in range(begin, begin + size, run):
                topic, client, at = messages[first][7], messages[first][6], messages[first][13] / 1e6
                payloads = [message.payload for message in ready[first : first + run]]
                first_id = ready[first].id
                writer.append_run(
                    topic, payloads, transport="mqtt", client=client, received_at=at, first_id=first_id
                )
            writer.flush()


def read_journal(path: Path) -> Iterator[Any]:
    return journal.JournalReader(path).batches()


def recover_journal(path: Path) -> int:
    """As after a crash: the file of ids is of the beginning."""
    (path / "ids").unlink(missing_ok=True)
    with journal.Writer(path, "node-1a2b") as writer:
        return writer.next_position


FORMS = [
    Form("Arrow IPC", write_arrow, read_arrow, count_blocks),
    Form("rows", write_rows, read_rows, count_blocks),
    Form("SQLite", write_sqlite, read_sqlite, recover_sqlite),
    Form("frames", write_frames, read_frames_whole, recover_frames),
    Form("frames, runs of 50", partial(write_frames, run=50), read_frames_whole, recover_frames),
    Form("the journal", write_journal, read_journal, recover_journal),
    Form("the journal, runs of 50", partial(write_runs, run=50), read_journal, recover_journal),
]
FLOOD = Form("the journal, runs of 1,000", partial(write_runs, run=1_000), read_journal, recover_journal)


def disk_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.segment"))
    return path.stat().st_size


def measure(form: Form, directory: Path, messages: Sequence[Row], size: int) -> str:
    path = directory / f"{form.name}-{size}"
    started_at, cpu = time.perf_counter(), time.process_time()
    form.write(path, messages, size)
    cpu_us = (time.process_time() - cpu) / COUNT * 1e6
    wall_us = (time.perf_counter() - started_at) / COUNT * 1e6
    reads = []
    for _ in range(3):
        started_at = time.perf_counter()
        assert sum(batch.num_rows for batch in form.read(path)) == COUNT
        reads.append(time.perf_counter() - started_at)
    started_at = time.perf_counter()
    form.recover(path)
    recovery_ms = (time.perf_counter() - started_at) * 1e3
    return (
        f"| {form.name} | {size} | {cpu_us:.2f} | {wall_us:.2f} | {disk_bytes(path) / COUNT:.0f} "
        f"| {COUNT / median(reads) / 1e6:.2f} | {recovery_ms:.0f} |"
    )


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    messages = rows()
    prepared()
    print("| form | group | µs of CPU a message | µs in all | bytes | M rows/s read | recovery, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        for form in FORMS:
            for size in GROUPS:
                print(measure(form, Path(directory), messages, size), flush=True)
        print(measure(FLOOD, Path(directory), messages, 20_000))


if __name__ == "__main__":
    main()
