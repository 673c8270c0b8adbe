"""A node with a journal, a publisher, and `ingest` beside it.

How old a row is when it can be read from bronze, how many rows come through, and what is missing after the
reader stood still for a time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.peers import BROKERS, OURS, Child, running
from hedgerow_workshop.bench.pipeline.publisher import read_payload
from hedgerow_workshop.tables import listed_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAUGHT_UP_S = 60.0
QUIET_S = 5.0
WARM_UP_S = 10.0
CHUNK = 1_000  # messages
_STEP_S = 0.05


@contextmanager
def journalling_node(directory: Path) -> Iterator[tuple[Child, Path]]:
    journal = directory / "journal"
    words = ["--journal", "#", "--journal-dir", str(journal)]
    with running(BROKERS[OURS], directory / "node", words) as child:
        yield child, journal


@contextmanager
def publishing(port: int, rate: float, seconds: float, directory: Path) -> Iterator[Program]:
    with Program("the publisher", directory) as publisher:
        module = "hedgerow_workshop.bench.pipeline.publisher"
        publisher.launch([sys.executable, "-m", module, str(port), str(rate), str(seconds)])
        yield publisher


def published(publisher: Program, patience_s: float) -> int:
    """How many it says that there were, at its end."""
    wait_for(lambda: publisher.has_ended, patience_s, "the publisher has not ended")
    return int(publisher.output.read_text())


def freshness(spark: SparkSession, directory: Path, rate: float, seconds: float) -> list[float]:
    """Publish → row in bronze, of the rows after the first seconds, in which Java compiles."""
    tables = directory / "tables"
    seconds += WARM_UP_S
    with journalling_node(directory) as (node, journal), ingesting(spark, journal, tables):
        with publishing(node.port, rate, seconds, directory / "publisher") as publisher:
            count = published(publisher, seconds + CAUGHT_UP_S)
        wait_for(lambda: rows_of(tables) >= count, CAUGHT_UP_S, f"bronze has not the {count} rows")
    rows = [(visible_at, read_payload(data)[1]) for visible_at, data in _payloads(tables)]
    warm_at = min(published_at for _, published_at in rows) + WARM_UP_S
    return [visible_at - published_at for visible_at, published_at in rows if published_at >= warm_at]


def flood(spark: SparkSession, directory: Path, count: int) -> float:
    """Rows a second, from the first publication at QoS 0 to the last row in bronze."""
    tables = directory / "tables"
    with journalling_node(directory) as (node, journal), ingesting(spark, journal, tables):
        began_at = time.monotonic()
        publish_all(node, count)
        wait_for(lambda: rows_of(tables) >= count, CAUGHT_UP_S, f"bronze has not the {count} rows")
        return count / (time.monotonic() - began_at)


def stall(spark: SparkSession, directory: Path, rate: float, stall_s: float) -> int:
    """Rows that are not in bronze, of those that were acknowledged while Spark stood still for a time."""
    tables = directory / "tables"
    with journalling_node(directory) as (node, journal), ingesting(spark, journal, tables):
        with publishing(node.port, rate, 2 * stall_s, directory / "publisher") as publisher:
            wait_for(lambda: rows_of(tables) > 0, CAUGHT_UP_S, "nothing came into bronze")
            stand_still(_java_process(spark), stall_s)
            count = published(publisher, 2 * stall_s + CAUGHT_UP_S)
        wait_until_it_stands(lambda: rows_of(tables), count)
    return count - len({data for _, data in _payloads(tables)})


@contextmanager
def ingesting(spark: SparkSession, journal: Path, tables: Path) -> Iterator[None]:
    from hedgerow.pipeline.jobs.ingest import write_bronze

    messages = spark.readStream.format("hedgerow").option("journals", str(journal)).load()
    query = write_bronze(messages, str(tables)).trigger(processingTime="0 seconds").start()
    try:
        wait_for(
            lambda: bool(query.recentProgress) or not query.isActive, CAUGHT_UP_S, "ingest does not start"
        )
        yield
    finally:
        query.stop()


# What both have in common


def publish_all(broker: Child, count: int) -> None:
    dialect = broker.dialect
    chunk = b"".join(dialect.publish(f"bench/pipeline/{number}") for number in range(CHUNK))
    with dialect.connect(broker.port, "publisher") as publisher:
        for _ in range(count // CHUNK):
            publisher.sendall(chunk)


def stand_still(process: int, seconds: float) -> None:
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process, signal.SIGCONT)


def wait_for(is_so: Callable[[], bool], patience_s: float, or_else: str) -> None:
    give_up_at = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > give_up_at:
            raise BenchError(f"{or_else} after {patience_s:g} s")
        time.sleep(_STEP_S)


def wait_until_it_stands(count: Callable[[], int], enough: int) -> int:
    """Until there is enough, or no more comes."""
    before, since = -1, time.monotonic()
    while (now := count()) < enough and time.monotonic() - since < QUIET_S:
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(_STEP_S)
    return now


# Bronze, as far as its log says that it can be read


def rows_of(tables: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in listed_files(str(tables), "bronze"))


def _payloads(tables: Path) -> Iterator[tuple[float, bytes]]:
    import pyarrow.parquet as pq

    for path, visible_at in listed_files(str(tables), "bronze").items():
        for data in pq.read_table(path, columns=["payload"], partitioning=None).column(0).to_pylist():
            yield visible_at, data


def _java_process(spark: SparkSession) -> int:
    """The one that reads: Spark's."""
    assert spark._jvm is not None
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())
