"""Readings a second through the job `rollup`, beside the same sums by plain Spark on Parquet files.

Plain Spark is the streaming query that one writes by hand: the readings as Parquet, grouped by minute, hour
and day, and what each batch comes to appended as Parquet. Ours reads the table of readings, remembers the
last value of each sensor as well, and commits both tables together. What counts is the time of the batches.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow_workshop.bench import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROW = "rollup"
AT_LEAST = 0.7  # of the readings a second of plain Spark
PIECES = 4
SENSORS = 1_000


class Readings:
    """The same readings as our table and as Parquet files."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        from hedgerow.pipeline.jobs.readings import READING_SCHEMA
        from hedgerow.pipeline.sorting import struct
        from hedgerow.pipeline.tables import append, read_growth

        self.rows = rows // PIECES * PIECES
        self.tables, self.files = directory / "tables", directory / "files"
        self._spark = spark
        self._schema = struct(READING_SCHEMA)
        read_growth(spark, str(self.tables), "readings", self._schema)
        # From here on what comes is an ordinary batch.
        self.seconds("hedgerow")
        for number in range(PIECES):
            rows_of_it = _readings(spark, number, self.rows // PIECES)
            append(rows_of_it, number, str(self.tables), "readings", form="delta", query="bench")
            rows_of_it.write.mode("append").parquet(str(self.files))
        self._kept = directory / "kept"
        shutil.copytree(self.tables / "_checkpoints", self._kept)

    def seconds(self, source: str) -> float:
        query = SOURCES[source](self)
        query.awaitTermination()
        error = query.exception()
        if error is not None:
            raise BenchError(str(error).splitlines()[0])
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        return float(sum(each["durationMs"]["triggerExecution"] for each in batches)) / 1_000

    def forget(self) -> None:
        """Of a round; its tables and where it was."""
        for name in ("rollup", "last", "_checkpoints"):
            shutil.rmtree(self.tables / name, ignore_errors=True)
        shutil.rmtree(self.files.with_name("sums"), ignore_errors=True)
        shutil.copytree(self._kept, self.tables / "_checkpoints")

    def ours(self) -> StreamingQuery:
        from hedgerow.pipeline.queries import QuerySettings, start_rollup
        from hedgerow.pipeline.rules import load_rules

        (query,) = start_rollup(self._spark, QuerySettings((), str(self.tables), load_rules()))
        return query

    def plain(self) -> StreamingQuery:
        sums = self.files.with_name("sums")

        def write(rows: DataFrame, batch_id: int) -> None:
            rows.persist()
            for width in ("1 minute", "1 hour", "1 day"):
                _sums(rows, width).write.mode("append").parquet(str(sums / width.replace(" ", "-")))
            rows.unpersist()

        stream = self._spark.readStream.schema(self._schema).parquet(str(self.files))
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(sums / "checkpoint"))
        return writer.trigger(availableNow=True).start()


SOURCES: dict[str, Callable[[Readings], StreamingQuery]] = {
    "hedgerow": Readings.ours,
    "spark-parquet": Readings.plain,
}


def _sums(rows: DataFrame, width: str) -> DataFrame:
    from pyspark.sql import functions as sql

    return rows.groupBy("sensor", "field", sql.window("at", width)).agg(
        sql.min("value"), sql.max("value"), sql.avg("value"), sql.count("value"), sql.max_by("value", "at")
    )


def _readings(spark: SparkSession, piece: int, rows: int) -> DataFrame:
    """A second each, of sensors in turns; Spark makes them up."""
    from pyspark.sql import functions as sql

    from hedgerow.pipeline.jobs.readings import READING_COLUMNS

    number = sql.col("id") + piece * rows
    at = sql.timestamp_seconds(1_780_000_000 + number / 100)
    columns = {
        "origin": sql.lit("bench"), "epoch": sql.lit(1).cast("long"), "sequence": number,
        "broker": sql.lit("bench"), "topic": sql.lit("farm"),
        "sensor": sql.format_string("farm/sensor-%d", number % SENSORS), "field": sql.lit("temperature"),
        "value": sql.round(sql.rand(7) * 10, 1), "text": sql.lit(None).cast("string"),
        "unit": sql.lit("°C"), "at": at, "received_at": at, "clamped": sql.lit(None).cast("string"),
    }  # fmt: skip
    return spark.range(rows).withColumns(columns).select(*READING_COLUMNS)
