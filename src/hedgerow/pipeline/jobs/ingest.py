"""ingest: messages as they are in the journals → the bronze table, each row once, none left out.

Bronze has the columns of the data source (`journal` and `journal.COLUMNS`) and three more:

    date      string   of received_at, UTC, YYYY-MM-DD     the table is partitioned by these two
    hour      int      of received_at, UTC, 0 to 23
    clamped   string   which times were replaced, why, and what they were; null: none

Clocks jump, and a row with an impossible time would make a partition of the year 294247 or stop the query.
So times are held between 1970 and a day after the batch's own time, which Spark writes down with the batch: a
batch that is run again gives the same rows. A `received_at` outside is replaced by `published_at` where that
one is possible, else by the bound that it crossed (the batch's time where it is late or missing). A
`published_at` before 1970 or more than a day after `received_at` becomes `received_at`; one that is missing
stays so, since few publishers say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from hedgerow.pipeline.delta import UPKEEP, Upkeep
from hedgerow.pipeline.options import ALL_COLUMNS
from hedgerow.pipeline.tables import write_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MAX_AHEAD_S = 86_400
"""A clock that is a time zone off is still believed."""
PARTITIONED_BY = ("date", "hour")
ADDED = (
    StructField("date", StringType()),
    StructField("hour", IntegerType()),
    StructField("clamped", StringType()),
)


def bronze(messages: DataFrame) -> DataFrame:
    """The rows of the bronze table, one for each message."""
    earliest = sql.timestamp_seconds(sql.lit(0))
    now = sql.current_timestamp()
    ahead = sql.expr(f"INTERVAL {MAX_AHEAD_S} SECONDS")
    received, published = sql.col("received_at"), sql.col("published_at")

    published_is_possible = published.isNotNull() & (published >= earliest) & (published <= now + ahead)
    received_reason = (
        sql.when(received.isNull(), sql.lit("received_at is missing"))
        .when(received < earliest, _told("received_at", "is before 1970"))
        .when(received > now + ahead, _told("received_at", "is in the future"))
    )
    bound = sql.when(received < earliest, earliest).otherwise(now)
    received_after = (
        sql.when(received_reason.isNull(), received).when(published_is_possible, published).otherwise(bound)
    )
    published_reason = sql.when(published < earliest, _told("published_at", "is before 1970")).when(
        published > received_after + ahead, _told("published_at", "is in the future")
    )
    reasons = sql.concat_ws("; ", received_reason, published_reason)
    times = {
        "published_at": sql.when(published_reason.isNull(), published).otherwise(received_after),
        "received_at": received_after,
    }
    added = {
        "date": sql.date_format(received_after, "yyyy-MM-dd"),
        "hour": sql.hour(received_after),
        "clamped": sql.when(reasons != "", reasons),
    }
    kept = [times[name].alias(name) if name in times else sql.col(name) for name in ALL_COLUMNS]
    return messages.select(*kept, *(added[field.name].alias(field.name) for field in ADDED))


def bronze_schema(messages: StructType) -> StructType:
    """The schema of `bronze`, for reading the table, from that of the data source."""
    return StructType([*(messages[name] for name in ALL_COLUMNS), *ADDED])


def write_bronze(
    messages: DataFrame, place: str, form: str = "parquet", upkeep: Upkeep = UPKEEP
) -> DataStreamWriter:
    """The query that appends the messages of a stream to the table bronze below `place`: choose a trigger and
    start it. A table of another form has a query of its own, which begins with the first message."""
    query = "ingest" if form == "parquet" else f"ingest-{form}"
    rows = bronze(messages)
    return write_table(
        rows, place, "bronze", form=form, query=query, partition_by=PARTITIONED_BY, upkeep=upkeep
    )


def _told(name: str, what: str) -> Column:
    """What is wrong, with the time in microseconds: a date may have no name that far away."""
    return sql.concat(
        sql.lit(f"{name} {what} ("), sql.unix_micros(sql.col(name)).cast("string"), sql.lit(" µs)")
    )
