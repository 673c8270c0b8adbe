"""`replay-quarantine`: other rules for messages that were received before the rules were known.

What is in quarantine is parsed again: what can be read now goes into readings, what the rules ignore goes
nowhere, and the rest stays, with the reason that the new rules have. With `from_bronze`, messages of bronze
that are in neither table are parsed as well: those that came when there was no rule for them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sql

from hedgerow.pipeline.jobs import ingest, readings
from hedgerow.pipeline.locks import Lock
from hedgerow.pipeline.rules import Rules
from hedgerow.pipeline.session import parallelism
from hedgerow.pipeline.sorting import QUARANTINE, READINGS, Sorter, files_of
from hedgerow.pipeline.source import columns_schema
from hedgerow.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ID = ["origin", "epoch", "sequence"]


class Replayed(NamedTuple):
    messages: int
    """That were parsed again."""
    readings: int
    """Messages that could be read now."""
    quarantined: int
    """That still cannot."""

    def __str__(self) -> str:
        left_out = self.messages - self.readings - self.quarantined
        text = f"{self.messages:,} messages parsed again: {self.readings:,} into readings"
        return f"{text}, {self.quarantined:,} in quarantine, {left_out:,} ignored by the rules"


def replay_quarantine(
    spark: SparkSession,
    place: str,
    rules: Rules,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    from_bronze: bool = False,
    form: str | None = None,
) -> Replayed:
    """Of messages received from `start` to before `end`. HedgerowError: the job readings runs, or the tables
    are not there."""
    lock = Lock(place, READINGS, patience_s=0)
    try:
        schema = ingest.bronze_schema(columns_schema())
        sorter = Sorter(spark, place, schema, parallelism(spark))
        is_asked = _received(start, end)
        # Files are replaced whole: what of them is not asked for stays as it is.
        files = files_of(sorter.rows(QUARANTINE).where(is_asked))
        held = sorter.rows(QUARANTINE, files)
        candidates = held.where(is_asked).select(*schema.names)
        if from_bronze:
            bronze = read_table(spark, place, "bronze", form, schema).where(is_asked)
            candidates = candidates.unionByName(_in_neither(bronze, sorter))
        candidates = candidates.persist()
        try:
            count = candidates.count()
            parsed = readings.best_copies(readings.parse(candidates, rules)).persist()
            read = parsed.where(sql.col("reason").isNull()).count()
            refused = parsed.count() - read
            sorter.replay(parsed, files, held.where(~is_asked))
            parsed.unpersist()
        finally:
            candidates.unpersist()
        return Replayed(count, read, refused)
    finally:
        lock.release()


def _received(start: datetime | None, end: datetime | None) -> Column:
    at = sql.col("received_at")
    is_asked = sql.lit(True)
    if start is not None:
        is_asked &= at >= sql.lit(start)
    if end is not None:
        is_asked &= at < sql.lit(end)
    return is_asked


def _in_neither(bronze: DataFrame, sorter: Sorter) -> DataFrame:
    """Messages that the job has left out. Those without an id cannot be told from others: they stay out."""
    named = bronze.where(sql.col("origin").isNotNull())
    for name in (READINGS, QUARANTINE):
        there = sorter.table(name).select(*_ID).distinct()
        named = named.join(there, on=_ID, how="left_anti")
    return named.select(*bronze.columns)
