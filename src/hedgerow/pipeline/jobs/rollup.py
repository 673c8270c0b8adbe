"""`rollup`: what each sensor measured in each minute, hour and day, and what it said last.

All of it is made of *parts*: rows that can be merged in any order and any number of times, such as a sum and
a count. A batch of readings becomes parts of its own, which are appended; who reads merges them (`rollups`,
`last_values`). So a reading counts however late it comes, and none is read twice to count it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WIDTHS: Mapping[str, str] = {"1min": "MINUTE", "1h": "HOUR", "1d": "DAY"}
"""By name, as Spark truncates times to them, in UTC."""
ROLLUP, LAST = "rollup", "last"
ROLLUP_SCHEMA = (
    "sensor string, field string, width string, start timestamp, least double, most double, total double, "
    "count long, last double, last_at timestamp, unit string"
)
LAST_SCHEMA = (
    "sensor string, field string, at timestamp, value double, text string, unit string, "
    "received_at timestamp, broker string, topic string, readings long, first_at timestamp"
)
ROLLUP_COLUMNS = (
    "sensor", "field", "width", "start", "least", "most", "mean", "last", "count", "last_at", "unit",
)  # fmt: skip
_SAID = ("value", "text", "unit", "received_at", "broker", "topic")
_KEYS = ("sensor", "field")


class Merging(NamedTuple):
    """A table of parts."""

    schema: str
    parts: Callable[[DataFrame], DataFrame]
    """Of readings."""
    merge: Callable[[DataFrame], DataFrame]
    """Of parts: as many as there are keys."""


def rollups(parts: DataFrame) -> DataFrame:
    """ROLLUP_COLUMNS: one row for each sensor, field, width and start."""
    return (
        _merge_rollup(parts).withColumn("mean", sql.col("total") / sql.col("count")).select(*ROLLUP_COLUMNS)
    )


def last_values(parts: DataFrame) -> DataFrame:
    """LAST_SCHEMA: one row for each sensor and field."""
    return _merge_last(parts)


def _rollup_parts(readings: DataFrame) -> DataFrame:
    """Minutes first: hours and days are made of few rows then."""
    numbers = readings.where(sql.col("value").isNotNull() & sql.col("at").isNotNull())
    order = sql.struct("at", "sequence")
    minutes = numbers.groupBy(*_KEYS, sql.date_trunc("MINUTE", "at").alias("minute")).agg(
        sql.min("value").alias("least"), sql.max("value").alias("most"), sql.sum("value").alias("total"),
        sql.count("*").alias("count"), sql.max_by("value", order).alias("last"),
        sql.max("at").alias("last_at"), sql.max_by("unit", order).alias("unit"),
    )  # fmt: skip
    widths = [
        sql.struct(sql.lit(name).alias("width"), sql.date_trunc(unit, "minute").alias("start"))
        for name, unit in WIDTHS.items()
    ]
    each = minutes.withColumn("of", sql.explode(sql.array(*widths)))
    return _merge_rollup(each.withColumns({"width": sql.col("of.width"), "start": sql.col("of.start")}))


def _merge_rollup(parts: DataFrame) -> DataFrame:
    merged = parts.groupBy(*_KEYS, "width", "start").agg(
        sql.min("least").alias("least"), sql.max("most").alias("most"), sql.sum("total").alias("total"),
        sql.sum("count").alias("count"), *_newest("last", "unit"),
    )  # fmt: skip
    return merged.select(*_names(ROLLUP_SCHEMA))


def _newest(*names: str) -> list[Column]:
    return [sql.max("last_at").alias("last_at"), *(sql.max_by(name, "last_at").alias(name) for name in names)]


def _last_parts(readings: DataFrame) -> DataFrame:
    there = readings.where(sql.col("at").isNotNull())
    return _merge_last(there.withColumns({"readings": sql.lit(1).cast("long"), "first_at": sql.col("at")}))


def _merge_last(parts: DataFrame) -> DataFrame:
    newest = sql.max_by(sql.struct(*_SAID), sql.struct("at", "received_at")).alias("said")
    merged = parts.groupBy(*_KEYS).agg(
        sql.max("at").alias("at"), newest, sql.sum("readings").alias("readings"),
        sql.min("first_at").alias("first_at"),
    )  # fmt: skip
    return merged.select(*_KEYS, "at", "said.*", "readings", "first_at").select(*_names(LAST_SCHEMA))


def _names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


MERGING: Mapping[str, Merging] = {
    ROLLUP: Merging(ROLLUP_SCHEMA, _rollup_parts, _merge_rollup),
    LAST: Merging(LAST_SCHEMA, _last_parts, _merge_last),
}
