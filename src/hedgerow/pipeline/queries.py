"""What each job reads and writes: the jobs' functions, put between source and tables.

A job of the table `JOBS` is a *stream*, whose queries go on from their checkpoints wherever they were ended,
or a *summary*, which is calculated anew from the tables each time. All tables are below one directory:

    journals ─ ingest ─► bronze ─ readings ─► readings ─ anomalies ─► anomalies
        │                  │          ├─────► quarantine
        │                  │          └ rollup ─► rollup, last ─ devices ─► devices
        └─ hot ─► hot      └─ quality ─► quality, gaps, latency
             └──► $hedgerow/plan/BROKER
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark.sql import functions as sql

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep
from hedgerow.pipeline.divide import Divider, query_life
from hedgerow.pipeline.gaps import GAPS
from hedgerow.pipeline.jobs import anomalies, devices, hot, ingest, quality, readings, rollup
from hedgerow.pipeline.jobs.anomalies import AnomalySettings
from hedgerow.pipeline.kept_connection import KeptConnection
from hedgerow.pipeline.merging import Merger
from hedgerow.pipeline.places import location_of, state_of
from hedgerow.pipeline.plan import VALIDITY_S, Planner
from hedgerow.pipeline.rules import Rules
from hedgerow.pipeline.session import parallelism
from hedgerow.pipeline.sorting import Sorter, struct
from hedgerow.pipeline.source import columns_schema
from hedgerow.pipeline.tables import (
    append,
    check_lake_belongs,
    checkpoint_place,
    form_of,
    read_growth,
    read_table,
    read_table_stream,
    replace_table,
    table_place,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARQUET = "parquet"
CATCH_UP_LATE_S = 10.0


@dataclass(frozen=True)
class QuerySettings:
    """What people choose. `every_s` is how often a stream looks for more; None: until nothing is left."""

    journals: tuple[str, ...]
    tables: str
    rules: Rules
    topics: tuple[str, ...] = ()
    start: str = "earliest"
    """A position of the data source (`startingPosition`), or a time (ISO 8601)."""
    form: str = PARQUET
    rows_per_batch: int | None = None
    every_s: float | None = None
    broker: str | None = None
    """Where plans and progress are published."""
    connect: Mapping[str, Any] = field(default_factory=dict)
    """Of `hedgerow.connect`, for that."""
    ignore_missing: bool = False
    """Go on without journals that are gone."""
    plan_for: tuple[str, ...] = ()
    """Brokers that get a plan; without any, those that journals are of."""
    plan_validity_s: float = VALIDITY_S
    late_s: float = AnomalySettings.late_s
    """By how much a reading may be older than its sensor's newest, and still be judged."""
    ahead_s: float = readings.AHEAD_S
    """By how much a sensor's clock may be ahead, and still be believed."""
    share: float = hot.SHARE
    capacity: int | None = None
    upkeep: Upkeep = UPKEEP

    @cached_property
    def publish(self) -> KeptConnection | None:
        """To that broker, for all jobs together."""
        return KeptConnection(self.broker, **self.connect) if self.broker is not None else None


def messages(
    spark: SparkSession, settings: QuerySettings, job: str, columns: tuple[str, ...] = ()
) -> DataFrame:
    """The journals, as a stream. What `job` has taken may be removed from them."""
    source = spark.readStream.format("hedgerow").options(**source_options(settings, job, columns))
    return source.option("parallelism", str(parallelism(spark))).load()


def source_options(settings: QuerySettings, job: str, columns: tuple[str, ...] = ()) -> dict[str, str]:
    options = {
        "journals": json.dumps(settings.journals),
        "reader": reader_name(settings.tables, job),
        "gaps": str(state_of(settings.tables) / GAPS),
        "missingJournals": "ignore" if settings.ignore_missing else "fail",
    }
    if settings.topics:
        options["topics"] = json.dumps(settings.topics)
    if columns:
        options["columns"] = json.dumps(columns)
    if settings.rows_per_batch is not None:
        options["rowsPerBatch"] = str(settings.rows_per_batch)
    is_time = settings.start[:4].isdigit()
    options["startingTime" if is_time else "startingPosition"] = settings.start
    return options


def reader_name(tables: str, job: str) -> str:
    """Under which a journal knows what was taken: another directory of tables is another reader."""
    return f"hedgerow-{job}-{crc32(location_of(tables).encode()):08x}"


def bronze_stream(spark: SparkSession, settings: QuerySettings, job: str) -> DataFrame:
    """Bronze as it grows. An Iceberg table is no stream: beside it the journals are read again."""
    schema = ingest.bronze_schema(columns_schema())
    if settings.form == "delta":
        return read_growth(spark, settings.tables, "bronze", schema, ingest.PARTITIONED_BY)
    if settings.form != PARQUET:
        return ingest.bronze(messages(spark, settings, job))
    return read_table_stream(spark, settings.tables, "bronze", schema, ingest.PARTITIONED_BY)


def start_ingest(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
    source = messages(spark, settings, "ingest")
    writer = ingest.write_bronze(source, settings.tables, settings.form, settings.upkeep)
    return [start(writer, "ingest", settings)]


def start_readings(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
    """One query for both tables: a message is in exactly one of them."""
    schema = ingest.bronze_schema(columns_schema())
    cores = parallelism(spark)
    sorter = Sorter(spark, settings.tables, schema, cores, settings.upkeep)
    parsed = readings.parse(bronze_stream(spark, settings, "readings"), settings.rules, settings.ahead_s)
    writer = parsed.writeStream.foreachBatch(sorter.sort)
    writer = writer.option("checkpointLocation", checkpoint_place(settings.tables, "readings"))
    return [start(writer, "readings", settings)]


def start_anomalies(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
    """One query for both tables: a reading is judged, or late."""
    _check_version(settings.tables)
    tables = {"anomalies": anomalies.ANOMALY_SCHEMA, "late": anomalies.LATE_SCHEMA}
    schemas = {name: struct(schema) for name, schema in tables.items()}
    cores = parallelism(spark)
    divider = Divider(settings.tables, "anomalies", schemas, _divided_by_time, cores, settings.upkeep)
    stream = read_growth(spark, settings.tables, "readings", struct(readings.READING_SCHEMA))
    judged = anomalies.anomalies(stream, AnomalySettings(settings.rules.watches, settings.late_s))
    counted = judged.observe("late", sql.count_if("is_late").alias("rows"))
    writer = counted.writeStream.foreachBatch(divider.write)
    writer = writer.option("checkpointLocation", checkpoint_place(settings.tables, "anomalies"))
    return [start(writer, "anomalies", settings)]


def _check_version(tables: str) -> None:
    """The job `anomalies` of an earlier version had a row for each reading, and other state."""
    delta, checkpoint = Delta(tables, "anomalies"), checkpoint_place(tables, "anomalies")
    if delta.files() is not None and "kind" not in delta.spark_schema().names:
        raise HedgerowError(
            f"{delta.where} is a table of an earlier version. Move it, {table_place(tables, 'late')}, "
            f"{checkpoint} and {checkpoint}-steps away: "
            "the job then makes them anew"
        )


def _divided_by_time(judged: DataFrame) -> Mapping[str, DataFrame]:
    return {"anomalies": anomalies.told(judged), "late": anomalies.late(judged)}


def start_rollup(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
    cores = parallelism(spark)
    merger = Merger(settings.tables, "rollup", rollup.MERGING, cores, settings.upkeep)
    stream = read_growth(spark, settings.tables, "readings", struct(readings.READING_SCHEMA))
    writer = stream.writeStream.foreachBatch(merger.write)
    writer = writer.option("checkpointLocation", checkpoint_place(settings.tables, "rollup"))
    return [start(writer, "rollup", settings)]


def start_hot(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
    source = messages(spark, settings, "hot", ("broker", "topic", "received_at"))
    check_lake_belongs(settings.tables, ("hot",), "hot")
    planner = None
    if settings.publish is not None:
        planner = Planner(settings.publish, settings.plan_for, settings.plan_validity_s)

    def handle(counts: DataFrame, batch_id: int) -> None:
        ranked = hot.hot_topics(counts, settings.share, settings.capacity).persist()
        try:
            query = f"hot/{query_life(spark)}"
            rows, upkeep = ranked.coalesce(1), settings.upkeep
            append(rows, batch_id, settings.tables, "hot", form="delta", query=query, upkeep=upkeep)
            if planner is not None:
                planner.publish_plans(ranked, batch_id)
        finally:
            ranked.unpersist()

    # A history is not read in the order of its times: one journal may be far ahead of another.
    late_s = hot.LATE_S if settings.every_s is not None else CATCH_UP_LATE_S
    counts = hot.topic_counts(source, late_s=late_s)
    writer = counts.writeStream.foreachBatch(handle).outputMode("append")
    return [
        start(writer.option("checkpointLocation", checkpoint_place(settings.tables, "hot")), "hot", settings)
    ]


def start(writer: DataStreamWriter, name: str, settings: QuerySettings) -> StreamingQuery:
    if settings.every_s is None:
        return writer.queryName(name).trigger(availableNow=True).start()
    return (
        writer.queryName(name).trigger(processingTime=f"{settings.every_s * 1000:.0f} milliseconds").start()
    )


def summarise_quality(spark: SparkSession, settings: QuerySettings) -> None:
    schema = ingest.bronze_schema(columns_schema())
    bronze = read_table(spark, settings.tables, "bronze", settings.form, schema)
    deliveries = quality.deliveries(bronze).persist()
    try:
        for name, summarise in quality.SUMMARIES.items():
            replace_table(summarise(deliveries), settings.tables, name)
    finally:
        deliveries.unpersist()


def summarise_devices(spark: SparkSession, settings: QuerySettings) -> None:
    last = rollup.last_values(read_table(spark, settings.tables, rollup.LAST))
    if form_of(settings.tables, "anomalies") is None:  # That job has not run: nobody knows of silences.
        found = spark.createDataFrame([], struct(anomalies.ANOMALY_SCHEMA))
    else:
        found = read_table(spark, settings.tables, "anomalies")
    replace_table(devices.devices(last, found), settings.tables, "devices")


STREAMS: dict[str, tuple[Callable[[SparkSession, QuerySettings], list[StreamingQuery]], str]] = {
    "hot": (start_hot, "hot topics of the whole network, and the plan that mobile brokers follow"),
    "ingest": (start_ingest, "journals to bronze, every message once"),
    "readings": (start_readings, "bronze to readings by the rules; what cannot be read to quarantine"),
    "anomalies": (start_anomalies, "what stands out in the readings of each sensor, in words"),
    "rollup": (start_rollup, "readings by minute, hour and day, and the last of each sensor"),
}
"""In the order in which they need each other; a plan is worth less the older it is."""

OF_JOURNALS = ("hot", "ingest")
"""Streams that read journals; the others read what these write."""

SUMMARIES: dict[str, tuple[Callable[[SparkSession, QuerySettings], None], str]] = {
    "quality": (summarise_quality, "delay, loss, duplicates and gaps of each link, topic and subscriber"),
    "devices": (summarise_devices, "since when each sensor is there, and how long it was silent"),
}

JOBS = {name: text for name, (_, text) in (*STREAMS.items(), *SUMMARIES.items())}


def check_jobs(names: tuple[str, ...]) -> tuple[str, ...]:
    """In the order in which they are run; all, if none is named."""
    for name in names:
        if name not in JOBS:
            nearest = difflib.get_close_matches(name, JOBS, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(JOBS)}"
            raise ConfigError(f'no job "{name}"; {hint}')
    return tuple(name for name in JOBS if not names or name in names)
