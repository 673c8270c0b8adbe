"""What became of every publication of the lab's runs, from their journals.

A run of the lab leaves a journal (`hedgerow_workshop.lab.journals` has its rows): who is due what, what was
published, what arrived. `deliveries` has a row for each publication and each subscriber that was due it or
got it:

| column | |
| --- | --- |
| journal, subscriber, topic, origin, epoch, sequence | which |
| subscribers | the subscriber's group, such as a kind of client; null where the run has none |
| is_due | was the subscriber to get it |
| arrivals | long, how often it came |
| repeated | long, of those after the first, the ones with MQTT's DUP |
| published_at, received_at | timestamps; received_at is that of the first arrival |
| delay_ms | double; null where nothing came, of a warm-up, and where nobody knows when it was sent |

`summarise` counts them: expected (was due), delivered (each once, due or not), lost (due, and never came),
doubled (arrivals beyond the first), repeated, measured (delays), mean_ms, deviation_ms (of all, not of a
sample), most_ms, percentiles (0, 1 … 100 of the delays, or null), and of these p50_ms, p95_ms and p99_ms.
`course` has the delays over the time of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from hedgerow_workshop.lab.harness.journals import DUE, DUP, GROUP, ID, OWN_TOPICS, WARM_UP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BINS = 120
PERCENTILES = tuple(number / 100 for number in range(101))
NAMED_PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
KEYS = ("journal", "subscriber", "topic", "origin", "epoch", "sequence")
COLUMNS = (
    "journal", "position", "origin", "epoch", "sequence", "client", "topic", "payload", "properties",
    "published_at", "received_at",
)  # fmt: skip
"""Of the journals, those that are needed here."""
TASKS_PER_CORE = 2


def read_journals(spark: SparkSession, directories: Iterable[Path]) -> DataFrame:
    paths = json.dumps([escape(str(directory.absolute())) for directory in directories])
    options = {"journals": paths, "columns": ",".join(COLUMNS)}
    rows = spark.read.format("hedgerow").options(**options).load()
    # Runs are many and small: a task for each would cost more than what it reads.
    return rows.coalesce(TASKS_PER_CORE * spark.sparkContext.defaultParallelism)


def deliveries(rows: DataFrame) -> DataFrame:
    """See above."""
    due = rows.where(sql.col("topic") == DUE).select(
        "journal",
        sql.col("client").alias("subscriber"),
        sql.col("payload").cast("string").alias("topic"),
        sql.col("received_at").alias("since"),
        _mark(GROUP).alias("subscribers"),
    )
    due = due.dropDuplicates(["journal", "subscriber", "topic"])
    published = publications(rows).select("journal", "topic", *KEYS[3:], "published_at")
    expected = (
        due.join(published, on=["journal", "topic"], how="inner")
        .where(sql.col("since").isNull() | (sql.col("published_at") >= sql.col("since")))
        .select(*KEYS, sql.col("published_at").alias("sent_at"), sql.lit(True).alias("is_due"))
    )
    joined = expected.join(_arrivals(rows), on=list(KEYS), how="full")
    sent_at = sql.coalesce("published_at", "sent_at")
    delay_us = sql.unix_micros("received_at") - sql.unix_micros("published_at")
    return joined.join(
        due.select("journal", "subscriber", "topic", "subscribers"),
        on=["journal", "subscriber", "topic"],
        how="left",
    ).select(
        *KEYS,
        "subscribers",
        sql.coalesce("is_due", sql.lit(False)).alias("is_due"),
        sql.coalesce("arrivals", sql.lit(0)).alias("arrivals"),
        sql.coalesce("repeated", sql.lit(0)).alias("repeated"),
        sent_at.alias("published_at"),
        "received_at",
        sql.when(~sql.col("is_warm_up"), delay_us / 1_000).alias("delay_ms"),
    )


def publications(rows: DataFrame) -> DataFrame:
    return rows.where(sql.col("origin").isNotNull() & ~sql.col("topic").startswith(OWN_TOPICS))


def _arrivals(rows: DataFrame) -> DataFrame:
    """Each publication at each subscriber that it came to, once."""
    message_id = _mark(ID)
    origin, epoch, sequence = (
        sql.regexp_extract(message_id, r"(?s)^(.+)/(\d{1,18})/(\d{1,18})$", group) for group in (1, 2, 3)
    )
    is_repeated = _mark(DUP).isNotNull()
    return (
        rows.where(sql.col("origin").isNull() & message_id.isNotNull())
        .select(
            "journal",
            sql.col("client").alias("subscriber"),
            "topic",
            origin.alias("origin"),
            epoch.try_cast("long").alias("epoch"),
            sequence.try_cast("long").alias("sequence"),
            "position",
            "published_at",
            "received_at",
            is_repeated.cast("long").alias("dup"),
            _mark(WARM_UP).isNotNull().alias("warm_up"),
        )
        .groupBy(*KEYS)
        .agg(
            sql.count("*").alias("arrivals"),
            (sql.sum("dup") - sql.min_by("dup", "position")).alias("repeated"),
            sql.min_by("published_at", "position").alias("published_at"),
            sql.min_by("received_at", "position").alias("received_at"),
            sql.min_by("warm_up", "position").alias("is_warm_up"),
        )
    )


def _mark(name: str) -> Column:
    """The first user property of this name. A name may come again, which a map would not take."""
    pairs = sql.from_json("properties", "user_property array<array<string>>")["user_property"]
    found = sql.filter(pairs, lambda pair: sql.get(pair, sql.lit(0)) == name)
    return sql.get(sql.get(found, sql.lit(0)), sql.lit(1))


def summarise(deliveries: DataFrame, *by: Sequence[str]) -> DataFrame:
    """Figures for each value of these columns. Several groups of columns are computed at once: what belongs
    to group n has n in `level`, and null in the columns that the group has not."""
    came = sql.col("arrivals") > 0
    columns = list(dict.fromkeys(name for group in by for name in group))
    # The bits of Spark's number of a group: 1 where it has not the column.
    numbers = [int("".join(str(int(name not in group)) for name in columns), 2) for group in by]
    level = sql.array_position(sql.array(*map(sql.lit, numbers)), sql.grouping_id().cast("int")) - 1
    return (
        deliveries.groupingSets([list(group) for group in by], *columns)
        .agg(
            level.alias("level"),
            sql.count_if("is_due").alias("expected"),
            sql.count_if(came).alias("delivered"),
            sql.count_if(sql.col("is_due") & ~came).alias("lost"),
            sql.sum(sql.greatest(sql.col("arrivals") - 1, sql.lit(0))).alias("doubled"),
            sql.sum("repeated").alias("repeated"),
            sql.count("delay_ms").alias("measured"),
            sql.avg("delay_ms").alias("mean_ms"),
            sql.stddev_pop("delay_ms").alias("deviation_ms"),
            sql.max("delay_ms").alias("most_ms"),
            sql.percentile("delay_ms", sql.array(*map(sql.lit, PERCENTILES))).alias("percentiles"),
        )
        .withColumns(
            {name: sql.get("percentiles", sql.lit(percent)) for name, percent in NAMED_PERCENTILES.items()}
        )
    )


def course(deliveries: DataFrame) -> DataFrame:
    """journal, at_s (since the run's first publication), mean_ms and most_ms of what was published then; a
    run is cut into `BINS` parts."""
    at_us = sql.unix_micros("published_at")
    spans = deliveries.groupBy("journal").agg(
        sql.min(at_us).alias("begin_us"), (sql.max(at_us) - sql.min(at_us) + 1).alias("length_us")
    )
    bin_number = sql.floor((at_us - sql.col("begin_us")) * BINS / sql.col("length_us"))
    at_s = (sql.col("bin") + 0.5) * sql.col("length_us") / BINS / 1e6
    return (
        deliveries.where(sql.col("delay_ms").isNotNull())
        .join(sql.broadcast(spans), on="journal", how="inner")
        .groupBy("journal", "length_us", bin_number.alias("bin"))
        .agg(sql.avg("delay_ms").alias("mean_ms"), sql.max("delay_ms").alias("most_ms"))
        .select("journal", at_s.alias("at_s"), "mean_ms", "most_ms")
    )
