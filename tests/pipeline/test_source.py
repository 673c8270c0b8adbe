"""The data source `hedgerow`: journals as tables and as streams.

What needs no Spark is asked of the readers themselves, as Spark asks them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from hedgerow.errors import HedgerowError
from hedgerow.journal import JournalReader, Writer, committed_positions, retain
from hedgerow.message import Message, MessageId
from hedgerow.pipeline.gaps import LocatedGap, read_gaps
from hedgerow.pipeline.options import ALL_COLUMNS, read_options
from hedgerow.pipeline.source import SparkJournalReader, SparkJournalStreamReader, columns_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offset = dict[str, Any]


def append(directory: Path, payloads: list[bytes], topic: str = "farm/a", **options: Any) -> JournalReader:
    """One segment more, with one frame."""
    with Writer(directory, "node-1", **options) as writer:
        writer.append_run(topic, payloads, transport="mqtt", received_at=1000.0, client="c")
    return JournalReader(directory)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def stream_reader(journals: Path, **options: str) -> SparkJournalStreamReader:
    return SparkJournalStreamReader(read_options({"journals": str(journals), **options}))


def read_parts(
    reader: SparkJournalReader | SparkJournalStreamReader, parts: list[InputPartition]
) -> pa.Table:
    return pa.Table.from_batches(
        [batch for part in parts for batch in reader.read(part)],
        to_arrow_schema(columns_schema(ALL_COLUMNS), timezone="UTC"),
    )


def payloads_of(table: pa.Table) -> list[bytes]:
    payloads: list[bytes] = table.column("payload").to_pylist()
    return payloads


def follow(
    reader: SparkJournalStreamReader, start: Offset, limit: ReadLimit
) -> Iterator[tuple[Offset, Offset]]:
    """The batches that Spark would make, up to the first empty one."""
    while (end := reader.latestOffset(start, limit)) != start:
        yield start, end
        start = end


# Without Spark


def test_the_batches_have_the_schema_that_spark_expects(tmp_path: Path) -> None:
    append(tmp_path / "one", numbers(0, 3))
    for columns in (ALL_COLUMNS, ("topic", "journal"), ("journal",), ("received_at",)):
        options = read_options({"journals": str(tmp_path / "one"), "columns": ",".join(columns)})
        reader = SparkJournalReader(options)
        (part,) = reader.partitions()
        (batch,) = reader.read(part)
        assert batch.schema.equals(to_arrow_schema(columns_schema(columns), timezone="UTC"))
        assert batch.num_rows == 3


def test_a_journal_that_joins_is_read_from_the_next_batch_on(tmp_path: Path) -> None:
    one = append(tmp_path / "one", numbers(0, 5))
    reader = stream_reader(tmp_path / "*", startingPosition="latest")
    start = reader.initialOffset()
    assert start["journals"] == {one.journal_id: 5}
    two = append(tmp_path / "two", numbers(0, 3))
    append(tmp_path / "one", numbers(5, 7))
    batches = list(follow(reader, start, ReadAllAvailable()))
    assert [end["journals"] for _, end in batches] == [
        {one.journal_id: 7, two.journal_id: 0},
        {one.journal_id: 7, two.journal_id: 3},
    ]
    tables = [read_parts(reader, reader.partitions(*batch)) for batch in batches]
    assert [payloads_of(table) for table in tables] == [numbers(5, 7), numbers(0, 3)]
    assert set(tables[1].column("journal").to_pylist()) == {two.journal_id}


def test_a_batch_has_the_same_rows_whenever_it_is_read_again(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        append(tmp_path / name, numbers(0, 100))
    reader = stream_reader(tmp_path / "*", rowsPerBatch="70", rowsPerPartition="9")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = read_parts(reader, reader.partitions(start, end))
    assert first.num_rows == 70
    append(tmp_path / "one", numbers(100, 200))
    append(tmp_path / "four", numbers(0, 100))
    again = stream_reader(tmp_path / "*", rowsPerBatch="5")
    assert read_parts(again, again.partitions(start, end)).equals(first)


def test_available_now_ends_where_the_journals_ended_when_it_began(tmp_path: Path) -> None:
    one = append(tmp_path / "one", numbers(0, 50))
    reader = stream_reader(tmp_path / "*")
    reader.prepareForTriggerAvailableNow()
    append(tmp_path / "one", numbers(50, 60))
    append(tmp_path / "two", numbers(0, 10))
    start = reader.initialOffset()
    start["journals"].pop(JournalReader(tmp_path / "two").journal_id)
    batches = list(follow(reader, start, ReadMaxRows(20)))
    assert [end["journals"][one.journal_id] for _, end in batches] == [20, 40, 50]
    assert reader.reportLatestOffset()["journals"][one.journal_id] == 60


def test_damage_is_passed_over_and_written_down_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "one"
    for number in range(3):
        append(directory, [b"<%d>" % at for at in range(10 * number, 10 * number + 10)])
    damaged = sorted(directory.glob("*.segment"))[1]
    damaged.write_bytes(damaged.read_bytes().replace(b"<12>", b"<XX>"))
    journal = JournalReader(directory).journal_id
    reader = stream_reader(directory, gaps=str(tmp_path / "gaps"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            table = read_parts(reader, reader.partitions(start, end))
            assert table.column("position").to_pylist() == [*range(10), *range(20, 30)]
    (gap,) = read_gaps(str(tmp_path / "gaps"))
    assert gap[:3] == (journal, 10, 20)
    assert damaged.name in gap.reason
    assert "positions 10 to 19" in caplog.text


def test_what_retention_has_removed_is_a_gap_and_costs_no_batches(tmp_path: Path) -> None:
    directory = tmp_path / "one"
    for number in range(4):
        append(directory, numbers(100 * number, 100 * number + 100))
    reader = stream_reader(directory, gaps=str(tmp_path / "gaps"), rowsPerPartition="10")
    start = reader.initialOffset()
    retain(directory, max_bytes=1)
    end = reader.latestOffset(start, ReadMaxRows(30))
    parts = reader.partitions(start, end)
    assert read_parts(reader, parts).column("position").to_pylist() == [*range(300, 330)]
    assert len(parts) == 3
    journal = JournalReader(directory).journal_id
    assert read_gaps(str(tmp_path / "gaps")) == [LocatedGap(journal, 0, 300, "removed by retention")]


def test_what_was_taken_is_told_to_the_journal(tmp_path: Path) -> None:
    append(tmp_path / "one", numbers(0, 10))
    reader = stream_reader(tmp_path / "one", reader="bronze")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    reader.commit(end)
    assert committed_positions(tmp_path / "one") == {"bronze": 4}
    stream_reader(tmp_path / "one").commit(reader.latestOffset(end, ReadMaxRows(4)))
    assert committed_positions(tmp_path / "one") == {"bronze": 4}


def test_a_journal_that_has_gone_is_refused_or_is_a_gap(tmp_path: Path) -> None:
    one, two = append(tmp_path / "one", numbers(0, 10)), append(tmp_path / "two", numbers(0, 10))
    reader = stream_reader(tmp_path / "*")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    shutil.rmtree(tmp_path / "two")
    for ask in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
    ):
        with pytest.raises(HedgerowError, match=two.journal_id):
            ask()
    patient = stream_reader(tmp_path / "*", missingJournals="ignore", gaps=str(tmp_path / "gaps"))
    table = read_parts(patient, patient.partitions(start, end))
    assert set(table.column("journal").to_pylist()) == {one.journal_id}
    assert [gap[:3] for gap in read_gaps(str(tmp_path / "gaps"))] == [(two.journal_id, 0, 10)]


def test_an_executor_that_sees_another_journal_says_so(tmp_path: Path) -> None:
    append(tmp_path / "one", numbers(0, 10))
    reader = stream_reader(tmp_path / "one")
    parts = reader.partitions(
        reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    )
    shutil.rmtree(tmp_path / "one")
    append(tmp_path / "one", numbers(0, 10))
    with pytest.raises(HedgerowError, match="a file system that they share"):
        read_parts(reader, parts)


# With Spark


def load(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("hedgerow").options(**options).load()


def test_a_table_has_every_message_as_the_journal_has_it(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "one", "node-1") as writer:
        message = Message(
            "farm/a", b"\x00\xff", 1, True, {"content_type": "x"}, MessageId("o", 2, 3), None, 999.25
        )
        writer.append(message, transport="mqtt", received_at=1000.5, client="c")
        writer.append(Message("home/b", b""), transport="udp", received_at=float("nan"))
    append(tmp_path / "two", numbers(0, 30), topic="farm/c")
    append(tmp_path / "three", [])
    table = load(spark, journals=str(tmp_path / "*"), rowsPerPartition="10")
    assert table.schema == columns_schema()
    assert table.rdd.getNumPartitions() == 4
    rows = table.orderBy("journal", "position").collect()
    expected = []
    for name in ("one", "two"):
        reader = JournalReader(tmp_path / name)
        for batch in reader.batches():
            expected += [{"journal": reader.journal_id, **row} for row in batch.to_pylist()]
    expected.sort(key=lambda row: (row["journal"], row["position"]))
    for row in expected:
        for name in ("published_at", "received_at"):
            row[name] = row[name] and row[name].astimezone().replace(tzinfo=None)
    assert [row.asDict() for row in rows] == expected
    some = load(
        spark, journals=str(tmp_path / "*"), topics='["home/#", "farm/a"]', columns="topic,payload"
    ).collect()
    assert sorted(map(tuple, some)) == [("farm/a", b"\x00\xff"), ("home/b", b"")]


def test_an_empty_journal_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "one", [])
    assert load(spark, path=str(tmp_path / "one")).count() == 0


def test_a_mistake_is_told_when_the_table_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="did you mean journals"):
        load(spark, journal=str(tmp_path))
    table = (
        spark.read.format("hedgerow").schema("topic string, age int").option("journals", str(tmp_path)).load()
    )
    with pytest.raises(Exception, match="leave .schema"):
        table.collect()


class Query:
    """A query with its checkpoint, whose batches are kept as they come."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.checkpoint = directory / "checkpoint"
        self.batches: list[tuple[int, list[bytes]]] = []

    def run(self, **options: str) -> None:
        """Until it has taken all that there is."""
        stream = self._spark.readStream.format("hedgerow").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.batches.append((number, sorted(row.payload for row in batch.select("payload").collect())))

    def forget_commit(self, number: int) -> None:
        """As when Spark is killed behind the output of a batch, and before its commit."""
        for path in (self.checkpoint / "commits").glob(f"*{number}*"):
            path.unlink()


def test_a_stream_takes_each_row_once_through_limits_restarts_and_crashes(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "one", [b"a%03d" % number for number in range(100)])
    append(tmp_path / "two", [b"b%03d" % number for number in range(10)])
    query = Query(spark, tmp_path)
    options = {"journals": str(tmp_path / "*"), "rowsPerBatch": "60", "reader": "test"}
    query.run(**options)
    (first, second) = query.batches
    assert first == (0, [*(b"a%03d" % number for number in range(50)), *(b"b%03d" % at for at in range(10))])
    assert second == (1, [b"a%03d" % number for number in range(50, 100)])
    assert committed_positions(tmp_path / "one") == {"test": 50}

    query.forget_commit(1)
    append(tmp_path / "one", [b"c"])
    append(tmp_path / "three", [b"d"])
    query.run(**options)
    assert query.batches[2] == second
    assert [rows for _, rows in query.batches[3:] if rows] == [[b"c"], [b"d"]]
    assert committed_positions(tmp_path / "two") == {"test": 10}

    shutil.rmtree(tmp_path / "two")
    with pytest.raises(StreamingQueryException, match="missingJournals"):
        query.run(**options)
