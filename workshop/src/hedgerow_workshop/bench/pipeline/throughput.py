"""Rows a second through a job, from the journal and from Spark's own Parquet source.

The queries are the pipeline's own, run until nothing is left. What counts is the time of their batches as
Spark tells it: how long a query takes to start is the same for both, and not what grows with the rows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.pipeline.recording import ROWS_PER_FILE, Recording

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Job = Callable[["DataFrame", Path], "StreamingQuery"]


def from_journal(spark: SparkSession, recording: Recording, columns: str = "") -> DataFrame:
    options = {"journals": json.dumps([str(recording.journal)]), "rowsPerBatch": str(ROWS_PER_FILE)}
    if columns:
        options["columns"] = columns
    return spark.readStream.format("hedgerow").options(**options).load()


def from_parquet(spark: SparkSession, recording: Recording, columns: str = "") -> DataFrame:
    """Spark finds by itself which columns of Parquet a query needs."""
    schema = from_journal(spark, recording).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(recording.parquet))


SOURCES = {"hedgerow": from_journal, "spark-parquet": from_parquet}


def ingest(messages: DataFrame, directory: Path) -> StreamingQuery:
    from hedgerow.pipeline.jobs.ingest import write_bronze

    return write_bronze(messages, str(directory)).trigger(availableNow=True).start()


def hot(messages: DataFrame, directory: Path) -> StreamingQuery:
    from hedgerow.pipeline.jobs.hot import hot_topics, topic_counts

    def rank(counts: DataFrame, batch_id: int) -> None:
        hot_topics(counts).write.format("noop").mode("overwrite").save()

    writer = topic_counts(messages).writeStream.foreachBatch(rank).outputMode("append")
    return writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()


JOBS: dict[str, Job] = {"ingest": ingest, "hot": hot}
COLUMNS = {"ingest": "", "hot": "broker,topic,received_at"}
"""What the pipeline itself asks the source for."""


def seconds(spark: SparkSession, name: str, source: str, recording: Recording) -> float:
    """What the batches took together."""
    directory = Path(tempfile.mkdtemp(prefix="hedgerow-bench-"))
    try:
        messages = SOURCES[source](spark, recording, COLUMNS[name])
        query = JOBS[name](messages, directory / "tables")
        query.awaitTermination()
        batches = query.recentProgress
        rows = sum(each["numInputRows"] for each in batches)
        if rows != recording.rows:
            raise BenchError(f"{rows} of {recording.rows} rows came through")
        return float(sum(each["durationMs"]["triggerExecution"] for each in batches)) / 1_000
    finally:
        shutil.rmtree(directory, ignore_errors=True)
