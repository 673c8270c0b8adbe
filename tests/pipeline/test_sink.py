"""The sink `hedgerow`: rows are published at least once, and a node drops a batch that comes again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

import hedgerow
from hedgerow.duplicates import DuplicateLog
from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.journal import Writer
from hedgerow.message import MAX_NUMBER, Message, MessageId
from hedgerow.pipeline.options import WriteOptions
from hedgerow.pipeline.publications import MAX_PAYLOAD, Publication, identities, publish, read_rows
from hedgerow.pipeline.sink import StreamPublisher
from tests.conftest import StartNode
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2), st.integers(0, 2), st.booleans()))


def publications_of(rows: list[tuple[str, bytes, int, bool]]) -> list[Publication]:
    return [Publication(*row, number) for number, row in enumerate(rows)]


def some(count: int) -> list[Publication]:
    return publications_of([(f"t/{number % 3}", b"%d" % number, 1, False) for number in range(count)])


# Ids


@given(ROWS, st.randoms())
def test_the_same_rows_have_the_same_ids_in_any_order(
    rows: list[tuple[str, bytes, int, bool]], random: Any
) -> None:
    given_ids = identities("q.0", "run", 7, publications_of(rows))
    sequences = sorted(message_id.sequence for message_id in given_ids)
    assert [sequence - sequences[0] for sequence in sequences] == list(range(len(rows)))
    shuffled = random.sample(rows, len(rows))
    again = identities("q.0", "run", 7, publications_of(shuffled))
    assert sorted(zip(rows, given_ids, strict=True)) == sorted(zip(shuffled, again, strict=True))


@given(ROWS, ROWS)
def test_other_rows_have_other_ids(
    rows: list[tuple[str, bytes, int, bool]], others: list[tuple[str, bytes, int, bool]]
) -> None:
    is_same = sorted(rows) == sorted(others)
    ids = set(identities("q.0", "run", 7, publications_of(rows)))
    other_ids = set(identities("q.0", "run", 7, publications_of(others)))
    assert bool(ids & other_ids) == (is_same and bool(rows))


def test_another_batch_or_another_checkpoint_has_other_ids() -> None:
    rows = some(5)
    sets = [set(identities("q.0", run, batch, rows)) for run in ("one", "two") for batch in (0, 1)]
    assert len(set.union(*sets)) == 20
    for message_id in identities("q.0", "one", 2**31 - 1, rows):
        assert 0 <= message_id.epoch <= MAX_NUMBER
        assert 0 <= message_id.sequence <= MAX_NUMBER
    tries = [identities("q.0", "", 7, rows, salt) for salt in ("one", "other")]
    assert not set(tries[0]) & set(tries[1])


def test_many_batches_of_a_query_have_nothing_of_others_forgotten() -> None:
    """200 batches of 64 partitions, by a user who has sensors too. A partition is one life of an origin."""
    log = DuplicateLog()
    sensors = [MessageId(f"farm~sensor-{number}", 1, 5) for number in range(100)]
    for message_id in sensors:
        assert not log.seen(message_id)
    last: list[MessageId] = []
    for batch in range(200):
        last = [
            message_id
            for partition in range(64)
            for message_id in identities(f"farm~alarms.{partition}", "run", batch, some(3))
        ]
        assert len([message_id for message_id in last if log.seen(message_id)]) == 0
    assert log.life_count == 64 + 100
    assert all(log.seen(message_id) for message_id in sensors)
    assert all(log.seen(message_id) for message_id in last)


# Rows


def test_rows_that_cannot_be_published_are_named() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": ["a", "a/#", "", None, "b", "b", "c"],
            "payload": ["x", "x", "x", "x", None, "é", "y"],
            "qos": pa.array([None, 1, 1, 1, 1, 7, 0], pa.int32()),
        }
    )
    publications: list[Publication] = []
    refusals: list[str] = []
    read_rows(batch, 10, publications, refusals)
    assert publications == [Publication("a", b"x", 1, False, 10), Publication("c", b"y", 0, False, 16)]
    starts = [refusal.split(":")[0] for refusal in refusals]
    assert starts == ["Row 11", "Row 12", "Row 13", "Row 14", "Row 15"]
    for refusal, said in zip(
        refusals, ("#", "at least one character", "topic is null", "payload is null", "QoS is 7"), strict=True
    ):
        assert said in refusal


def test_a_payload_that_mqtt_cannot_carry_is_refused() -> None:
    publications: list[Publication] = []
    refusals: list[str] = []
    batch = pa.RecordBatch.from_pydict({"topic": ["a"], "payload": [bytes(MAX_PAYLOAD + 1)]})
    read_rows(batch, 0, publications, refusals)
    assert not publications
    assert "bytes" in refusals[0]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("topic string", "need the column payload"),
        ("topic string, value string", "column value"),
        ("topic long, payload string", "column topic is bigint"),
        ("topic string, payload double", "binary or string"),
    ],
)
def test_columns_that_are_no_publication_are_refused(schema: str, said: str) -> None:
    fields = StructType()
    for name, kind in (field.split() for field in schema.split(", ")):
        fields.add(name, kind)
    with pytest.raises(ConfigError, match=said):
        StreamPublisher({"broker": "mqtt://localhost", "query": "q"}, fields)


# Beside a node


def options_for(url: str, **others: Any) -> WriteOptions:
    return WriteOptions(url, "alarms", **others)


@contextmanager
def hearing(url: str) -> Iterator[list[Message]]:
    """What a subscriber gets until the block ends. Spark finds its session on this thread alone."""
    heard: list[Message] = []
    subscribed = threading.Event()

    async def listen() -> None:
        async with hedgerow.connect(url) as bus, bus.subscribe("#", qos=1) as messages:
            subscribed.set()
            async for message in messages:
                if message.topic == "end":
                    return
                heard.append(message)

    async def end() -> None:
        async with hedgerow.connect(url) as bus:
            await bus.publish("end", qos=1)

    thread = threading.Thread(target=asyncio.run, args=(listen(),))
    thread.start()
    assert subscribed.wait(PATIENCE_S)
    try:
        yield heard
    finally:
        asyncio.run(end())
        thread.join(PATIENCE_S)


def test_a_batch_that_comes_again_is_dropped_by_the_node(hedgerow_node: StartNode) -> None:
    url = hedgerow_node().urls["mqtt"]
    rows = some(300)
    ids = identities("alarms.0", "run", 0, rows)
    with hearing(url) as heard:
        publish(options_for(url), "alarms.0", rows[:200], ids[:200])
        publish(options_for(url), "alarms.0", rows, ids)
    assert sorted(message.payload for message in heard) == sorted(row.payload for row in rows)


def test_it_waits_for_a_broker_that_is_away_and_says_when_it_gives_up(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    url = node.urls["mqtt"]
    rows = some(3)
    ids = identities("alarms.0", "run", 0, rows)
    node.stop()
    with pytest.raises(HedgerowError, match=r"taken nothing for 2 s \(.*refused.*\).*sent again"):
        publish(options_for(url, timeout_s=2), "alarms.0", rows, ids)

    async def start_while_it_waits() -> list[str]:
        publishing = asyncio.create_task(asyncio.to_thread(publish, options_for(url), "alarms.0", rows, ids))
        await asyncio.to_thread(node.start)
        return await publishing

    assert asyncio.run(start_while_it_waits()) == []


def test_what_the_broker_does_not_take_is_refused_by_its_row(hedgerow_node: StartNode) -> None:
    url = hedgerow_node("--limit", "packet_bytes=1000").urls["mqtt"]
    rows = publications_of([("a", b"x", 1, False), ("a", bytes(4000), 1, False), ("a", b"y", 1, False)])
    ids = identities("alarms.0", "run", 0, rows)
    with pytest.raises(HedgerowError, match="Row 1: .*invalid to skip"):
        publish(options_for(url), "alarms.0", rows, ids)
    with hearing(url) as heard:
        refused = publish(options_for(url, skips_invalid=True), "alarms.0", rows, ids)
    assert [refusal[:6] for refusal in refused] == ["Row 1:"]
    # The first was published before the second was refused.
    assert [message.payload for message in heard] == [b"y"]


# With Spark


def test_rows_of_a_table_are_published(spark: SparkSession, hedgerow_node: StartNode) -> None:
    url = hedgerow_node().urls["mqtt"]
    table = spark.createDataFrame(
        [("a", "1", 0, False), ("b", "2", 1, True), ("c/#", "3", 1, False), ("d", None, 1, False)],
        "topic string, payload string, qos int, retain boolean",
    )

    def write(**options: str) -> None:
        table.write.format("hedgerow").options(broker=url, query="alarms", **options).mode("append").save()

    with hearing(url) as heard:
        write(invalid="skip")
    assert sorted((message.topic, message.payload) for message in heard) == [("a", b"1"), ("b", b"2")]

    async def retained() -> Message:
        async with hedgerow.connect(url) as bus, asyncio.timeout(PATIENCE_S):
            return await anext(aiter(bus.subscribe("b")))

    assert asyncio.run(retained()).payload == b"2"
    with pytest.raises(Exception, match=r"Row \d+: .*invalid to skip"):
        write()


def test_a_stream_publishes_each_row_once_though_a_batch_is_repeated(
    spark: SparkSession, hedgerow_node: StartNode, tmp_path: Path
) -> None:
    url = hedgerow_node().urls["mqtt"]
    with Writer(tmp_path / "journal", "node-1") as writer:
        writer.append_run(
            "in", [b"%d" % number for number in range(40)], transport="mqtt", received_at=1000.0
        )
    stream = (
        spark.readStream.format("hedgerow")
        .options(journals=str(tmp_path / "journal"), rowsPerBatch="20", rowsPerPartition="10")
        .load()
        .selectExpr("concat('out/', cast(payload as string)) as topic", "payload")
    )

    def run(stream: DataFrame, checkpoint: str = "checkpoint") -> None:
        sink = stream.writeStream.format("hedgerow").options(
            broker=url, query="alarms", checkpointLocation=str(tmp_path / checkpoint)
        )
        query = sink.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    with hearing(url) as heard:
        run(stream)
        for path in (tmp_path / "checkpoint/commits").glob("*1*"):
            path.unlink()
        run(stream)
    assert sorted(int(message.payload) for message in heard) == list(range(40))
    assert all(message.topic == f"out/{message.payload.decode()}" for message in heard)
    bad = stream.selectExpr("concat(topic, '/+') as topic", "payload")
    with pytest.raises(StreamingQueryException, match="Row 0: "):
        run(bad, "other-checkpoint")
