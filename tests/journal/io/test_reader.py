from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import StoreError
from hedgerow.journal import COLUMNS, Gap, JournalReader, Writer, schema
from hedgerow.journal.io import files
from hedgerow.log.files import segments
from hedgerow.log.frame import NO_TIME
from hedgerow.message import Message, MessageId
from hedgerow.topics import matches
from tests.journal.plain import Row, numbered, read_plain

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("numpy")


def table(reader: JournalReader, *arguments: Any, **options: Any) -> Any:
    batches = list(reader.batches(*arguments, **options))
    for batch in batches:
        batch.validate(full=True)
    columns = arguments[2] if len(arguments) > 2 else COLUMNS
    return pa.Table.from_batches(batches, schema=schema(columns))


def positions(reader: JournalReader, *arguments: Any, **options: Any) -> list[int]:
    return list(table(reader, *arguments, **options)["position"].to_pylist())


def as_columns(row: Row) -> dict[str, Any]:
    def at(time: int) -> int | None:
        return None if time == NO_TIME else time

    origin, epoch, sequence = row.id or (None, None, None)
    return {
        "position": row.position, "origin": origin, "epoch": epoch, "sequence": sequence,
        "broker": row.broker, "transport": row.transport, "client": row.client,
        "topic": row.topic, "payload": row.payload,
        "qos": row.flags & 3, "retain": bool(row.flags & 4), "properties": row.properties,
        "published_at": at(row.published_at), "received_at": at(row.received_at),
    }  # fmt: skip


topics = st.sampled_from(["a", "a/b", "ä/ö", "$SYS/x", "field/1/moisture"])
messages = st.builds(
    Message,
    topic=topics,
    payload=st.binary(max_size=40),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.sampled_from([{}, {"content_type": "text"}, {"user_property": (("a", "ü"), ("a", "2"))}]),
    id=st.none()
    | st.builds(MessageId, st.sampled_from(["n", "ñ"]), st.integers(1, 2), st.integers(0, 10_000)),
    published_at=st.none() | st.floats(-1e9, 2e9),
)
appended = st.tuples(messages, st.none() | st.sampled_from(["c1", "c2"]), st.integers(1, 5), st.booleans())


@settings(max_examples=40)
@given(st.lists(appended, max_size=30), st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_columns_are_what_is_read_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], start: int, end: int, rows: int
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    with Writer(directory, "node-a", gather_s=0, segment_bytes=600) as writer:
        for number, (message, client, count, is_flushed) in enumerate(steps):
            writer.append(message, transport="mqtt", received_at=number, client=client)
            payloads = [message.payload] * count
            first = MessageId("runs", 1, 10 * number)
            writer.append_run(message.topic, payloads, transport="udp", received_at=number, first_id=first)
            if is_flushed:
                writer.flush()
    expected = [as_columns(row) for row in read_plain(directory)]
    reader = JournalReader(directory)
    assert reader.end_position == len(expected)

    def compared(found: Any) -> list[dict[str, Any]]:
        for name in ("published_at", "received_at"):
            at = found.column_names.index(name)
            found = found.set_column(at, name, found[name].cast("int64"))
        return list(found.to_pylist())

    assert compared(table(reader)) == expected
    assert compared(table(reader, start, end, rows=rows)) == expected[start : max(start, end)]
    assert all(batch.num_rows <= rows for batch in reader.batches(rows=rows))
    chosen = compared(table(reader, start, end, COLUMNS, topic_filters=("a/#", "+/ö"), rows=rows))
    assert chosen == [
        row
        for row in expected[start : max(start, end)]
        if matches("a/#", row["topic"]) or matches("+/ö", row["topic"])
    ]


def test_the_schema_is_what_spark_asks_for(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a") as writer:
        writer.append(numbered(1), transport="mqtt", received_at=1)
    (batch,) = JournalReader(tmp_path).batches()
    assert batch.schema == schema()
    assert batch.schema.field("received_at").type == pa.timestamp("us", "UTC")
    assert batch.schema.field("topic").type == pa.string()
    (few,) = JournalReader(tmp_path).batches(columns=("topic", "position"))
    assert few.to_pydict() == {"topic": ["field/1"], "position": [0]}


def test_what_is_not_durable_is_not_read(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", gather_s=0) as writer:
        for sequence in range(4):
            writer.append(numbered(sequence), transport="mqtt", received_at=1)
            writer.flush()
        told = files.open_durable(tmp_path)
        files.tell_durable(told, 2)
        os.close(told)
        reader = JournalReader(tmp_path)
        assert reader.end_position == 2
        assert positions(reader) == positions(reader, 0, 100) == [0, 1]


def test_a_copy_without_small_files(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", gather_s=0) as writer:
        for sequence in range(4):
            writer.append(numbered(sequence), transport="mqtt", received_at=1)
            writer.flush()
    for name in ("durable", "ids", "lock"):
        (tmp_path / name).unlink()
    reader = JournalReader(tmp_path)
    assert (reader.first_position, reader.end_position) == (0, 4)
    assert positions(reader) == [0, 1, 2, 3]


def test_gaps_are_told(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", gather_s=0, segment_bytes=1) as writer:
        for sequence in range(6):
            writer.append(numbered(sequence), transport="mqtt", received_at=1)
            writer.flush()
    found = segments(tmp_path)
    found[0].path.unlink()
    damaged = bytearray(found[3].path.read_bytes())
    damaged[-1] ^= 1
    found[3].path.write_bytes(damaged)
    gaps: list[Gap] = []
    reader = JournalReader(tmp_path)
    assert positions(reader, 0, on_gap=gaps.append) == [1, 2, 4, 5]
    assert [(gap.start, gap.end) for gap in gaps] == [(0, 1), (3, 4)]
    assert "retention" in gaps[0].reason
    assert "payloads" in str(gaps[1])
    assert positions(reader, 0, None, ("position",)) == [1, 2, 3, 4, 5]
    assert reader.first_position == 1


def test_positions_at_a_time(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", gather_s=0, segment_bytes=300) as writer:
        for sequence in range(30):
            writer.append(numbered(sequence), transport="mqtt", received_at=100 + sequence // 2)
            if sequence % 5 == 4:
                writer.flush()
    reader = JournalReader(tmp_path)
    assert reader.position_at(0) == reader.position_at(100) == 0
    assert [reader.position_at(at) for at in (100.5, 101, 107, 114, 114.5)] == [2, 2, 14, 28, 30]


def test_a_reader_is_its_path(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a") as writer:
        writer.append(numbered(1), transport="mqtt", received_at=1)
        assert writer.journal_id == JournalReader(tmp_path).journal_id
    assert positions(pickle.loads(pickle.dumps(JournalReader(tmp_path)))) == [0]


def test_beside_the_writer(tmp_path: Path) -> None:
    """A reader that follows the end sees each message once, in order."""
    with Writer(tmp_path, "node-a", gather_s=0, segment_bytes=5_000) as writer:

        def write() -> None:
            for sequence in range(3_000):
                writer.append(numbered(sequence), transport="mqtt", received_at=1)
                if sequence % 100 == 99:
                    writer.flush()

        thread = threading.Thread(target=write)
        thread.start()
        reader = JournalReader(tmp_path)
        seen: list[int] = []
        gaps: list[Gap] = []
        while len(seen) < 3_000:
            for batch in reader.batches(len(seen), columns=("sequence",), on_gap=gaps.append):
                seen += batch.column(0).to_pylist()
        thread.join()
    assert seen == list(range(3_000))
    assert not gaps


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no journal"):
        JournalReader(tmp_path)
    Writer(tmp_path, "node-a").close()
    reader = JournalReader(tmp_path)
    assert list(reader.batches()) == []
    assert reader.first_position == reader.end_position == reader.position_at(5) == 0
    with pytest.raises(ValueError, match="no columns colour"):
        list(reader.batches(columns=("colour",)))
    with pytest.raises(ValueError, match="#"):
        list(reader.batches(topic_filters=("a/#/b",)))


def test_reading_begins_anywhere_in_a_segment_of_many_frames(tmp_path: Path) -> None:
    with Writer(tmp_path, "b", gather_s=0) as writer:
        for number in range(600):
            writer.append(numbered(number, payload=bytes(number)), transport="mqtt", received_at=1.0)
            if number % 3 == 2:
                writer.flush()
    reader = JournalReader(tmp_path)
    for start in range(0, 600, 7):
        assert positions(reader, start, start + 10) == list(range(start, min(start + 10, 600)))
    (segment,) = segments(tmp_path)
    middle = segment.path.stat().st_size // 2
    with segment.path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes([255]) * 64)
    gaps: list[Gap] = []
    whole = positions(reader, on_gap=gaps.append)
    (gap,) = gaps
    assert whole == [each for each in range(600) if not gap.start <= each < gap.end]
    for start in (gap.start - 1, gap.start, gap.end - 1, gap.end, gap.end + 30):
        assert positions(reader, start) == [each for each in whole if each >= start]


def test_a_long_string_that_many_rows_share_is_cut_into_batches(tmp_path: Path) -> None:
    """On the disk it is there once, in a column once for each row: more than Arrow can hold."""
    with Writer(tmp_path, "node") as writer:
        writer.append_run(
            "a", [b"%d" % n for n in range(1000)], transport="mqtt", received_at=1.0, client="c" * 2000
        )
        writer.append_run("b", [b"b"] * 10, transport="mqtt", received_at=1.0, client="c" * 200_000)
    reader = JournalReader(tmp_path, text_bytes=100_000)
    batches = list(reader.batches(3, 1005))
    assert [row for batch in batches for row in batch.column("position").to_pylist()] == [*range(3, 1005)]
    assert [row for batch in batches for row in batch.column("payload").to_pylist()][:997] == [
        b"%d" % n for n in range(3, 1000)
    ]
    assert all(batch.nbytes < 300_000 for batch in batches)
    assert positions(reader, 3, 1005, topic_filters=("b",)) == [*range(1000, 1005)]
    assert len(list(reader.batches(columns=("position", "topic")))) == 1
