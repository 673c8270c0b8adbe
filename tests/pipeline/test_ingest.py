"""Messages into bronze: the columns, times that cannot be, and each row once when a batch is run again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sql

from hedgerow.errors import HedgerowError
from hedgerow.journal import COLUMNS
from hedgerow.pipeline.jobs.ingest import bronze, bronze_schema, write_bronze
from hedgerow.pipeline.tables import read_table, read_table_stream
from tests.pipeline.rows import RECEIVED_AT, SCHEMA, message, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR = timedelta(hours=1)
PLACE_OF_NOW = "now"
MAX_MICROS = 2**63 - 1


def at(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# received_at and published_at in µs; then what becomes of them, and words of the reason.
RECEIVED = at(RECEIVED_AT)
CASES: dict[str, tuple[int | None, int | None, int | str, int | None, str | None]] = {
    "ordinary": (RECEIVED, RECEIVED - 5, RECEIVED, RECEIVED - 5, None),
    "unpublished": (RECEIVED, None, RECEIVED, None, None),
    "first": (0, None, 0, None, None),
    "missing": (None, RECEIVED, RECEIVED, RECEIVED, "received_at is missing"),
    "both missing": (None, None, PLACE_OF_NOW, None, "received_at is missing"),
    "negative": (-1, None, 0, None, "received_at is before 1970 (-1 µs)"),
    "most negative": (
        -MAX_MICROS,
        RECEIVED,
        RECEIVED,
        RECEIVED,
        f"received_at is before 1970 (-{MAX_MICROS} µs)",
    ),
    "latest": (MAX_MICROS, None, PLACE_OF_NOW, None, f"received_at is in the future ({MAX_MICROS} µs)"),
    "skewed": (RECEIVED, RECEIVED + 3_600_000_000, RECEIVED, RECEIVED + 3_600_000_000, None),
    "published late": (
        RECEIVED,
        at(RECEIVED_AT + 25 * HOUR),
        RECEIVED,
        RECEIVED,
        "published_at is in the future",
    ),
    "published negative": (RECEIVED, -7, RECEIVED, RECEIVED, "published_at is before 1970 (-7 µs)"),
    "both": (-1, -2, 0, 0, "received_at is before 1970 (-1 µs); published_at is before 1970 (-2 µs)"),
}


def test_times_are_held_within_bounds(spark: SparkSession) -> None:
    given = spark.createDataFrame(
        [(n, *case[:2]) for n, case in enumerate(CASES.values())], "position long, r long, p long"
    )
    times = given.select(
        "position", *(sql.timestamp_micros(c).alias(n) for c, n in zip("rp", ("r2", "p2"), strict=True))
    )
    rows = (
        messages(spark, *(message(n) for n in range(len(CASES))))
        .drop("received_at", "published_at")
        .join(times, "position")
        .withColumnsRenamed({"r2": "received_at", "p2": "published_at"})
    )
    found = bronze(rows).select(
        "position",
        sql.unix_micros("received_at").alias("received"),
        sql.unix_micros("published_at").alias("published"),
        "date", "hour", "clamped",
    )  # fmt: skip
    now = datetime.now(UTC)
    by_name = {list(CASES)[row.position]: row for row in found.collect()}
    assert by_name.keys() == CASES.keys()
    for name, (_, _, received, published, reason) in CASES.items():
        row = by_name[name]
        if received == PLACE_OF_NOW:
            assert abs(row.received - at(now)) < 600e6, name
        else:
            assert row.received == received, name
        day = datetime.fromtimestamp(row.received / 1e6, UTC)
        assert (row.date, row.hour) == (f"{day:%Y-%m-%d}", day.hour), name
        assert row.published == published, name
        assert (row.clamped is None) == (reason is None), name
        assert reason is None or reason in row.clamped, name


def test_the_columns_are_the_documented_ones(spark: SparkSession) -> None:
    rows = bronze(messages(spark, message(0)))
    assert rows.columns == ["journal", *COLUMNS, "date", "hour", "clamped"]
    schema = bronze_schema(SCHEMA)
    assert [(field.name, field.dataType) for field in schema] == [
        (field.name, field.dataType) for field in rows.schema
    ]


def _stream(spark: SparkSession, place: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place))


def _run(spark: SparkSession, tmp_path: Path) -> None:
    query = write_bronze(_stream(spark, tmp_path / "in"), str(tmp_path / "tables"))
    assert query.trigger(availableNow=True).start().awaitTermination(60)


def test_a_batch_that_runs_again_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    """Who is killed between the table's commit and the checkpoint's runs the batch again."""
    tables = str(tmp_path / "tables")
    for start in (0, 10):
        rows = messages(
            spark, *(message(n, received_at=RECEIVED_AT + n * HOUR / 10) for n in range(start, start + 10))
        )
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    with pytest.raises(HedgerowError, match="no table bronze"):
        read_table(spark, tables, "bronze")
    _run(spark, tmp_path)
    commits = tmp_path / "tables/_checkpoints/ingest/commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    messages(spark, message(20)).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    _run(spark, tmp_path)
    assert (commits / str(last + 1)).exists()

    schema = bronze_schema(SCHEMA)
    table = read_table(spark, tables, "bronze", schema=schema)
    assert sorted(row.position for row in table.select("position").collect()) == list(range(21))
    assert (tmp_path / "tables/bronze/date=2026-03-01/hour=12").is_dir()
    assert dict(table.dtypes)["date"] == "string"
    stream = read_table_stream(spark, tables, "bronze", schema)
    assert stream.isStreaming
    assert stream.columns == table.columns


def test_a_table_whose_checkpoint_is_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself would take the new batches for old ones, and leave them out."""
    (tmp_path / "tables/bronze/_spark_metadata").mkdir(parents=True)
    (tmp_path / "in").mkdir()
    with pytest.raises(HedgerowError, match="checkpoint .* is gone"):
        write_bronze(_stream(spark, tmp_path / "in"), str(tmp_path / "tables"))
