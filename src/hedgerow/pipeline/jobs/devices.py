"""`devices`: how long each sensor was there, and how long it was silent.

Input: the last values (`rollup.last_values`) and the anomalies. A sensor is *up* from its first reading to
its last, less its silences; and silent now if its newest silence is not over.

| column | |
| --- | --- |
| `sensor`, `field` | |
| `first_at`, `last_at`, `readings` | of all its readings |
| `silences`, `silent_s` | that are over, and how long they were together |
| `uptime` | from 0 to 1; null where it has one reading |
| `silent_since` | null: it sends |
| `anomalies` | of all other kinds |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from hedgerow.pipeline.jobs.anomalies import episodes
from hedgerow.pipeline.watch import SECOND, SILENCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEVICE_COLUMNS = (
    "sensor", "field", "first_at", "last_at", "readings", "silences", "silent_s", "uptime", "silent_since",
    "anomalies",
)  # fmt: skip


def devices(last: DataFrame, anomalies: DataFrame) -> DataFrame:
    """DEVICE_COLUMNS."""
    is_silence, is_over = sql.col("kind") == SILENCE, sql.col("is_over")
    found = (
        episodes(anomalies)
        .groupBy("sensor", "field")
        .agg(
            sql.count_if(is_silence & is_over).alias("silences"),
            sql.sum(sql.when(is_silence & is_over, _seconds("at", "until"))).alias("silent_s"),
            sql.max(sql.when(is_silence & ~is_over, sql.col("at"))).alias("since"),
            sql.count_if(~is_silence).alias("anomalies"),
        )
    )
    there = _seconds("first_at", "last_at")
    # One that has sent since is not silent any more, whatever is told of it later.
    since = sql.when(sql.col("since") >= sql.col("last_at"), sql.col("since"))
    none = sql.lit(0)
    return (
        last.withColumnRenamed("at", "last_at")
        .join(found, on=["sensor", "field"], how="left")
        .withColumn("silent_s", sql.coalesce("silent_s", none.cast("double")))
        .withColumn("uptime", sql.when(there > 0, sql.greatest(none, 1 - sql.col("silent_s") / there)))
        .withColumn("silent_since", since)
        .withColumns({name: sql.coalesce(name, none) for name in ("silences", "anomalies")})
        .select(*DEVICE_COLUMNS)
    )


def _seconds(start: str, end: str) -> Column:
    return (sql.unix_micros(end) - sql.unix_micros(start)) / SECOND
