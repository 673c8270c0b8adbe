"""The same jobs on a cluster: a standalone master with two worker processes, one of which is killed.

Its driver is another process, since one process has one Spark.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hedgerow.journal import Writer
from hedgerow.message import Message, MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.cluster import Cluster
from hedgerow.pipeline.program import Program
from hedgerow.pipeline.queries import JOBS
from hedgerow.pipeline.tables import read_table
from tests.programs import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 4_000
ROWS_PER_BATCH = 500
BEGAN_AT = 1_700_000_000.0
PATIENCE_S = 180.0
TABLES = {
    "bronze": "journal, position, origin, epoch, sequence, topic, payload, received_at",
    "readings": "origin, epoch, sequence, sensor, field, value, at",
    "quarantine": "position, reason, rule",
    "hot": "broker, calculation_at, topic, events, rank, kept",
    "anomalies": "sensor, field, kind, at, until, is_over, readings, explanation",
    "quality": "kind, source, target, topic, published, delivered, lost",
}


def write_journals(directory: Path) -> list[Path]:
    """Of two nodes: the second has most of what the first has published."""
    places = [directory / name for name in ("north", "house")]
    for place in places:
        with Writer(place, place.name) as writer:
            for number in range(MESSAGES):
                if place.name == "house" and number % 100 == 50:
                    continue
                text = "broken" if number % 70 == 69 else f"{20 + number % 7 + 90 * (number % 900 == 899)} °C"
                message = Message(
                    f"farm/north/mast{number % 5}/temperature",
                    text.encode(),
                    qos=1,
                    id=MessageId("north", 1, number),
                )
                late_s = 0.0 if place.name == "north" else 0.02
                writer.append(message, transport="mqtt", received_at=BEGAN_AT + number / 100 + late_s)
    return places


def command(journals: list[Path], tables: Path, master: str, *more: str) -> list[str]:
    words = ["pipeline", "run", "--once", "--tables", str(tables), "--master", master, *more]
    words += [word for journal in journals for word in ("--journal", str(journal))]
    words += ["--rows-per-batch", str(ROWS_PER_BATCH), "--conf", "spark.sql.shuffle.partitions=2"]
    return [sys.executable, "-m", "hedgerow", *words, "--conf", "spark.executor.memory=512m"]


def finish(driver: Program) -> None:
    wait_until(lambda: driver.has_ended, f"{driver.name} to end", PATIENCE_S)
    assert driver.process is not None
    assert driver.process.returncode == 0, driver.log.read_text()


def rows_of(spark: SparkSession, tables: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, columns in TABLES.items():
        rows = read_table(spark, str(tables), name).selectExpr(*columns.split(", "))
        found[name] = sorted(map(repr, rows.collect()))
    return found


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_gives_the_same_tables_though_a_worker_is_killed(
    tmp_path: Path, spark: SparkSession
) -> None:
    journals = write_journals(tmp_path / "journals")
    with Program("the local driver", tmp_path / "local") as driver:
        driver.launch(command(journals, tmp_path / "tables-local", "local[2]"))
        finish(driver)
    tables = tmp_path / "tables"
    with Cluster(tmp_path / "cluster") as cluster, Program("the driver", tmp_path / "driver") as driver:
        driver.launch(command(journals, tables, cluster.url))

        def batches() -> int:
            found = progress.load(tables).get("ingest")
            return -1 if found is None or driver.has_ended else found.batch

        wait_until(lambda: batches() >= 1 or driver.has_ended, "the second batch", PATIENCE_S)
        worker = cluster.workers[0]
        worker.send(signal.SIGKILL)
        finish(driver)
        assert worker.has_ended
    expected, found = rows_of(spark, tmp_path / "tables-local"), rows_of(spark, tables)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    assert found == expected
    assert len(found["bronze"]) == MESSAGES + MESSAGES * 99 // 100
    assert all(expected.values())
    assert progress.load(tables).keys() >= set(JOBS)
