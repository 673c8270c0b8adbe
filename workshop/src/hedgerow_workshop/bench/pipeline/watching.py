"""How long a batch of readings takes the job `anomalies`, where it watches many sensors.

The query is the pipeline's own, over the table of readings as it grows: first each sensor has sent some
readings, then batches come of a few sensors each. What counts is the time of a batch as Spark tells it.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow_workshop.bench import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROW = "anomalies"
AT_MOST_S = 1.0
BATCH = 1_000
BATCHES = 6
_FIRST = 3  # readings of each sensor that are there before
_GIVE_UP_S = 600.0


def batches_s(spark: SparkSession, directory: Path, sensors: int, batch: int = BATCH) -> list[float]:
    """Of `BATCHES` batches, after one in which Java compiles."""
    from hedgerow.pipeline.queries import QuerySettings, start_anomalies
    from hedgerow.pipeline.rules import load_rules
    from hedgerow.pipeline.tables import append

    settings = QuerySettings((), str(directory), load_rules(), every_s=0)
    chance = random.Random(1)
    began_at = datetime.now(UTC) - timedelta(hours=1)

    def add(number: int, chosen: list[int], times: int = 1) -> int:
        rows = _readings(spark, chosen, began_at + timedelta(minutes=number), times)
        append(rows, number, settings.tables, "readings", form="delta", query="bench")
        return len(chosen) * times

    (query,) = start_anomalies(spark, settings)
    try:
        rows = add(0, list(range(sensors)), _FIRST)
        _wait(query, rows)
        took = []
        for number in range(_FIRST, _FIRST + BATCHES + 1):
            rows += add(number, chance.sample(range(sensors), min(batch, sensors)))
            took.append(_wait(query, rows))
        return took[1:]
    finally:
        query.stop()


def _readings(spark: SparkSession, sensors: list[int], at: datetime, times: int) -> DataFrame:
    """A reading of each of these sensors in each of these minutes; Spark makes them up."""
    from pyspark.sql import functions as sql

    from hedgerow.pipeline.jobs.readings import READING_COLUMNS

    chosen = spark.createDataFrame([(number,) for number in sensors], "number long")
    minutes = spark.range(times).withColumnRenamed("id", "minute")
    when = sql.lit(at) + sql.make_dt_interval(mins=sql.col("minute"))
    columns = {
        "origin": sql.lit("bench"), "epoch": sql.lit(1).cast("long"),
        "sequence": sql.col("number"), "broker": sql.lit("bench"),
        "topic": sql.col("sensor"), "sensor": sql.format_string("farm/sensor-%d", "number"),
        "field": sql.lit("temperature"), "value": sql.round(sql.rand(7) * 10, 1),
        "text": sql.lit(None).cast("string"), "unit": sql.lit("°C"), "at": when, "received_at": sql.col("at"),
        "clamped": sql.lit(None).cast("string"),
    }  # fmt: skip
    rows = chosen.crossJoin(minutes)
    for name in ("at", "sensor"):
        rows = rows.withColumn(name, columns.pop(name))
    return rows.withColumns(columns).select(*READING_COLUMNS)


def _wait(query: StreamingQuery, rows: int) -> float:
    """Until the query has taken so many; what the batches since took that had some."""
    give_up_at = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < give_up_at and query.isActive:
        batches = {each["batchId"]: each for each in query.recentProgress if each["numInputRows"]}
        if sum(each["numInputRows"] for each in batches.values()) >= rows:
            return float(batches[max(batches)]["durationMs"]["triggerExecution"]) / 1_000
        time.sleep(0.05)
    raise BenchError(f"the query did not take {rows:,} readings: {query.exception() or 'it is too slow'}")
