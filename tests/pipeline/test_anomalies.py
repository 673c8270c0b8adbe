"""Anomalies in a batch and in a stream: the machine's findings as rows, what is late, and what is kept."""

from __future__ import annotations

import os
import random
from array import array
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.delta import Delta
from hedgerow.pipeline.jobs.anomalies import (
    ANOMALY_COLUMNS,
    LATE_COLUMNS,
    AnomalySettings,
    Bucket,
    anomalies,
    episodes,
    late,
    told,
)
from hedgerow.pipeline.jobs.readings import READING_SCHEMA
from hedgerow.pipeline.queries import QuerySettings, start_anomalies
from hedgerow.pipeline.rules import load_rules
from hedgerow.pipeline.watch import IMPOSSIBLE, SILENCE, SPIKE, STUCK
from hedgerow.pipeline.watch_pages import MAX_IN_PAGE, NEVER, PAGES, SensorKey, WatchPage
from hedgerow.pipeline.watch_rules import WatchRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Told = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], StreamingQuery]

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
S = 1_000_000
SETTINGS = AnomalySettings((WatchRule("s1", None, {"maximum": 100.0}),), late_s=30.0, buckets=3)


@pytest.mark.parametrize("wrong", [{"late_s": -1}, {"late_s": 1e9}, {"forget_s": 0}, {"buckets": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="anomalies: "):
        AnomalySettings(**wrong)


def reading(number: int, sensor: str, at_s: float, value: float | None) -> dict[str, Any]:
    at = NOON + timedelta(seconds=at_s)
    return {
        "origin": "a", "epoch": 1, "sequence": number, "broker": "a", "topic": f"farm/{sensor}",
        "sensor": sensor, "field": "temperature", "value": value, "text": None if value is not None else "on",
        "unit": None, "at": at, "received_at": at, "clamped": None,
    }  # fmt: skip


def store(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    directory.mkdir(exist_ok=True)
    time = pa.timestamp("us", "UTC")
    types = {
        "value": pa.float64(),
        "text": pa.string(),
        "unit": pa.string(),
        "clamped": pa.string(),
        "at": time,
        "received_at": time,
    }
    columns = {key: pa.array([row[key] for row in rows], types.get(key)) for key in rows[0]}
    pq.write_table(pa.table(columns), directory / name)


def follow(spark: SparkSession, place: Path, pieces: list[list[dict[str, Any]]], name: str) -> Told:
    """A batch for each piece: what is told of them, and what was late."""
    for at, rows in enumerate(pieces):
        store(place / "in", f"{at}.parquet", rows)
        os.utime(place / "in" / f"{at}.parquet", (at + 1, at + 1))  # Spark takes the oldest first.
    stream = (
        spark.readStream.schema(READING_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place / "in"))
    )
    writer = anomalies(stream, SETTINGS).writeStream.format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows_told = [tuple(row) for row in told(spark.table(name)).collect()]
    return rows_told, [tuple(row) for row in late(spark.table(name)).collect()], query


def naive(at_s: float) -> datetime:
    """As Spark's Python has it."""
    return (NOON + timedelta(seconds=at_s)).replace(tzinfo=None)


def two_pieces() -> list[list[dict[str, Any]]]:
    """Three sensors, a reading each in 3 s: the first has a spike, the second what its rule calls impossible,
    the third sticks from the middle of the first piece on."""
    chance = random.Random(11)
    rows = [
        reading(number, f"s{number % 3}", number, round(chance.gauss(20, 1), 2)) for number in range(2_400)
    ]
    rows[1_500]["value"] = 60.0
    rows[1_501]["value"] = 150.0
    for row in rows[602::3]:
        row["value"] = 21.5
    rows[30]["value"] = None
    pieces = [rows[:1_200], rows[1_200:]]
    for piece in pieces:
        chance.shuffle(piece)
    return pieces


@pytest.mark.soak
def test_a_stream_tells_what_a_batch_does_and_only_what_stands_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    pieces = two_pieces()
    for at, rows in enumerate(pieces):
        store(tmp_path / "before", f"{at}.parquet", rows)
    # Of s1, whose newest is of 2398 s, one is late by more than 30 s, and one is not.
    pieces.append([reading(3_000, "s1", 2_300, 5.0), reading(3_001, "s1", 2_390, 6.0)])
    found, too_late, query = follow(spark, tmp_path, pieces, "anomalies_told")
    batch = anomalies(spark.read.schema(READING_SCHEMA).parquet(str(tmp_path / "before")), SETTINGS)
    assert tuple(batch.columns) == ANOMALY_COLUMNS
    assert sorted(map(repr, found)) == sorted(repr(tuple(row)) for row in batch.collect())

    rows = [dict(zip(ANOMALY_COLUMNS, row, strict=True)) for row in found]
    assert sorted((row["sensor"], row["kind"], row["is_over"]) for row in rows) == [
        ("s0", SPIKE, True), ("s1", IMPOSSIBLE, False), ("s1", IMPOSSIBLE, True), ("s2", STUCK, False),
    ]  # fmt: skip
    spike = next(row for row in rows if row["kind"] == SPIKE)
    assert (spike["at"], spike["value"], spike["readings"]) == (naive(1_500), 60.0, 1)
    assert spike["explanation"].startswith("60 after 19.79; a step of ")
    assert {row["bound"] for row in rows if row["kind"] == IMPOSSIBLE} == {100.0}
    once = episodes(batch).where("kind = 'impossible'").collect()
    assert [(row.is_over, row.unit) for row in once] == [(True, None)]

    assert [dict(zip(LATE_COLUMNS, row, strict=True)) for row in too_late] == [
        {
            "sensor": "s1", "field": "temperature", "at": naive(2_300), "value": 5.0, "origin": "a",
            "epoch": 1, "sequence": 3_000, "received_at": naive(2_300), "newest_at": naive(2_398),
        }
    ]  # fmt: skip
    assert query.recentProgress[-1].stateOperators[0].numRowsTotal <= 3 + SETTINGS.buckets


def rows_of(*readings: tuple[str, int, float]) -> pd.DataFrame:
    """Sensor, seconds and value, as a bucket has them."""
    frame = pd.DataFrame(readings, columns=["sensor", "at", "value"]).sort_values(
        ["sensor", "at"], kind="stable"
    )
    at = pd.to_datetime(frame["at"] * S, unit="us")
    return frame.assign(at=at, received_at=at, field="f", unit="", origin="a", epoch=1, sequence=0)


class Pages:
    """What a stream keeps of a bucket, without one."""

    def __init__(self, settings: AnomalySettings) -> None:
        self.stored: dict[int, bytes] = {}
        self.due = array("q", [NEVER]) * PAGES
        self.read = 0
        self._settings = settings

    def batch(self, now_s: int, *readings: tuple[str, int, float]) -> list[dict[str, Any]]:
        bucket = Bucket(self._settings, self._load, now_s * S)
        found = bucket.take(rows_of(*readings)) + bucket.overdue(self.due)
        for number, page in bucket.pages.items():
            self.stored[number] = page.pack(now_s * S, self._settings.forget_s)
            self.due[number] = page.due_at
        return found

    def _load(self, number: int) -> bytes:
        self.read += 1
        return self.stored.get(number, b"")


def test_no_clock_and_no_absence_of_one_sensor_costs_another_a_reading() -> None:
    """One is 20 hours ahead, one brings what it measured while it was away, and none of them is late."""
    pages = Pages(AnomalySettings(late_s=30))
    usual = [(f"s{n % 3}", 60 * n, 20.0 + n % 2) for n in range(24)]
    assert pages.batch(100_000, *usual[:12], ("wild", 72_000, 20.0)) == []
    assert pages.batch(100_001, *usual[12:], *(("away", 60 * n - 36_000, 20.0) for n in range(4))) == []
    (only,) = pages.batch(100_002, ("wild", 1_500, 20.0))
    assert (only["sensor"], only["is_late"], only["newest_at"]) == ("wild", True, 72_000 * S)


def test_a_batch_reads_and_writes_what_it_has_readings_of() -> None:
    pages = Pages(AnomalySettings())
    pages.batch(100, *((f"s{n}", 90, 1.0) for n in range(500)))
    pages.read = 0
    pages.batch(101, *((f"s{n}", 91, 2.0) for n in range(20)))
    assert pages.read <= 20


def test_a_silence_is_told_while_it_lasts_with_the_readings_of_another() -> None:
    pages = Pages(AnomalySettings())
    for at in range(0, 600, 10):
        pages.batch(at, ("one", at, at % 70), ("other", at, at % 50))
    for at in range(600, 640, 10):
        assert pages.batch(at, ("other", at, at % 50)) == []
    (now,) = pages.batch(660, ("other", 660, 3.0))
    assert (now["sensor"], now["kind"], now["at"], now["is_over"]) == ("one", SILENCE, 590 * S, False)
    assert pages.batch(670, ("other", 670, 4.0)) == []
    (after,) = pages.batch(900, ("other", 680, 4.0), ("one", 900, 3.0))
    assert (after["kind"], after["at"], after["until"], after["is_over"]) == (SILENCE, 590 * S, 900 * S, True)


def test_what_is_kept_of_sensors_is_bounded() -> None:
    """Of names that a publisher invents, and of sensors that are gone."""
    page = WatchPage(())
    keys = [SensorKey(f"s{n}", "f") for n in range(3 * MAX_IN_PAGE)]
    for number, key in enumerate(keys):
        page.take(key, "°C", [(number * S, 1.0)], heard_at=number * S)
    left = WatchPage((), page.pack(now=100 * S))
    assert [left.newest_at(key) is not None for key in keys] == [False] * 2 * MAX_IN_PAGE + [
        True
    ] * MAX_IN_PAGE
    few = WatchPage((), left.pack(now=100 * S, forget_s=10))
    assert [key for key in keys if few.newest_at(key) is not None] == keys[91:]


def test_a_table_of_an_earlier_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It had a row for each reading, and its state is another."""
    Delta(tmp_path, "anomalies").create(pa.schema([("sensor", pa.string()), ("is_anomaly", pa.bool_())]))
    with pytest.raises(HedgerowError, match="of an earlier version. Move it, .*late, .*-steps away"):
        start_anomalies(spark, QuerySettings((), str(tmp_path), load_rules()))
