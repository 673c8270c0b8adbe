"""Readings that stand out, on numbers whose median and MAD are known, in a batch and in a stream."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.errors import ConfigError
from hedgerow.pipeline.jobs.anomalies import (
    ANOMALY_COLUMNS,
    CHANGED,
    HIGH,
    LOW,
    TOO_FEW,
    AnomalySettings,
    anomalies,
    judge,
)
from hedgerow.pipeline.jobs.readings import READING_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SMALL = AnomalySettings(readings=8, window_s=100.0, least=4, late_s=30.0, buckets=3)
NOTHING = pd.DataFrame({"sensor": [], "field": [], "at": [], "value": []})


def judged(values: Sequence[float], step_s: float = 1.0, settings: AnomalySettings = SMALL) -> list[Any]:
    """One sensor, a value every `step_s`: its rows."""
    at = [round(number * step_s * 1e6) for number in range(len(values))]
    new = pd.DataFrame({"sensor": "s", "field": "f", "at": at, "value": np.array(values, float)})
    rows, kept = judge(NOTHING, new, settings)
    assert len(kept) == min(len(values), settings.readings)
    return list(rows.itertuples(index=False))


def test_the_score_is_the_robust_z_score() -> None:
    *_, last = judged([1, 2, 3, 4, 10, 9])
    assert (last.median, last.mad) == (3, 1)  # distances of 1, 2, 3, 4, 10: 2, 1, 0, 1, 7
    assert last.score == pytest.approx(0.6745 * 6)
    assert (last.is_anomaly, last.reason) == (True, HIGH)


def test_low_ones_and_usual_ones() -> None:
    assert judged([1, 2, 3, 4, 5, -20])[-1].reason == LOW
    usual = judged([1, 2, 3, 4, 5, 4])[-1]
    assert (usual.is_anomaly, usual.reason) == (False, None)


def test_nothing_is_said_of_the_first_readings() -> None:
    rows = judged([1, 2, 3, 1000, 2])
    assert [row.reason for row in rows[:4]] == [TOO_FEW] * 4
    assert not any(row.is_anomaly for row in rows)
    assert np.isnan(rows[3].score)
    assert rows[4].median == 2.5


def test_only_the_last_readings_of_the_window_count() -> None:
    assert judged([100.0] * 9 + [1, 2, 3, 4, 5, 6, 7, 8, 9])[-1].median == 4.5
    # 40 s apart, two of them are in the last 100 s.
    assert judged([1, 2, 3, 4, 5, 6], step_s=40.0)[-1].reason == TOO_FEW


def test_a_sensor_that_was_constant() -> None:
    same, slightly, changed = (
        judged([20.0] * 6)[-1],
        judged([20.0] * 5 + [20.1])[-1],
        judged([20.0] * 5 + [21])[-1],
    )
    assert (same.score, same.is_anomaly) == (0, False)
    assert np.isnan(slightly.score)
    assert not slightly.is_anomaly
    assert (changed.is_anomaly, changed.reason) == (True, CHANGED)
    assert judged([0.0] * 5 + [1e-9])[-1].reason == CHANGED


def test_where_most_values_are_the_same_the_mean_distance_is_the_scale() -> None:
    row = judged([20, 20, 20, 20, 20, 21, 20, 20, 21])[-1]
    assert (row.median, row.mad) == (20, 0)
    assert row.score == pytest.approx(1 / (1.253314 / 8))
    assert row.reason == HIGH


def test_values_at_the_end_of_all_numbers_harm_nobody() -> None:
    huge = 1.7e308
    rows = judged([huge, -huge, huge, -huge, huge, -huge, 0, 5])
    assert [row.is_anomaly for row in rows] == [False] * 8


def test_it_is_what_a_plain_loop_finds() -> None:
    """Many sensors at once, in pieces, beside statistics.median one by one."""
    chance = random.Random(7)
    rows = [
        (f"s{chance.randrange(4)}", "f", number * 1_000_000 + chance.randrange(9), chance.gauss(20, 1))
        for number in range(300)
    ]
    kept, found = NOTHING, []
    for start in range(0, 300, 37):
        new = pd.DataFrame(rows[start : start + 37], columns=["sensor", "field", "at", "value"])
        piece, kept = judge(kept, new, SMALL)
        found += list(piece.itertuples(index=False))
    assert len(kept) == 4 * SMALL.readings
    assert len(found) == 300
    for row in found:
        before = [
            value for sensor, _, at, value in rows if sensor == row.sensor and row.at - 100e6 <= at < row.at
        ][-SMALL.readings :]
        if len(before) < SMALL.least:
            assert row.reason == TOO_FEW
        else:
            middle = median(before)
            assert row.median == pytest.approx(middle)
            assert row.mad == pytest.approx(median(abs(value - middle) for value in before))


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 0},
        {"least": 9, "readings": 8},
        {"readings": 100_000},
        {"window_s": 0},
        {"late_s": -1},
        {"buckets": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="anomalies: "):
        AnomalySettings(**wrong)


def reading(number: int, sensor: str, at_s: float, value: float | None) -> dict[str, Any]:
    at = NOON + timedelta(seconds=at_s)
    return {
        "origin": "a", "epoch": 1, "sequence": number, "broker": "a", "topic": f"farm/{sensor}",
        "sensor": sensor, "field": "temperature", "value": value, "text": None if value is not None else "on",
        "unit": None, "at": at, "received_at": at,
    }  # fmt: skip


def store(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    directory.mkdir(exist_ok=True)
    time = pa.timestamp("us", "UTC")
    types = {"value": pa.float64(), "text": pa.string(), "unit": pa.string(), "at": time, "received_at": time}
    columns = {key: pa.array([row[key] for row in rows], types.get(key)) for key in rows[0]}
    pq.write_table(pa.table(columns), directory / name)


def test_a_stream_tells_what_a_batch_does_forgets_the_silent_and_passes_over_what_is_too_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(11)
    pieces: list[list[dict[str, Any]]] = []
    for piece in range(2):
        rows = [
            reading(piece * 40 + number, f"s{number % 3}", piece * 40 + number, chance.gauss(20, 1))
            for number in range(40)
        ]
        rows[17]["value"], rows[30]["value"] = 60.0, None
        rows[5]["at"] = rows[2]["at"]
        chance.shuffle(rows)
        pieces.append(rows)
    # A day later a new sensor speaks: all others are forgotten, and s0's reading of noon is too late.
    pieces.append([reading(200 + number, "new", 86_400 + number, 1.0) for number in range(3)])
    pieces.append([reading(300, "s0", 0, 5.0), reading(301, "new", 86_410, 2.0)])
    before = tmp_path / "before"
    for at, rows in enumerate(pieces):
        store(tmp_path / "in", f"{at}.parquet", rows)
        os.utime(tmp_path / "in" / f"{at}.parquet", (at + 1, at + 1))  # Spark takes the oldest first.
        if at < 2:
            store(before, f"{at}.parquet", rows)

    stream = (
        spark.readStream.schema(READING_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    )
    query = (
        anomalies(stream, SMALL)
        .writeStream.format("memory")
        .queryName("anomalies_told")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = [tuple(row) for row in spark.table("anomalies_told").collect()]
    batch = anomalies(spark.read.schema(READING_SCHEMA).parquet(str(before)), SMALL)
    assert tuple(batch.columns) == ANOMALY_COLUMNS
    expected = [tuple(row) for row in batch.collect()]

    assert len(expected) == 2 * 39
    assert sum(row[-1] == HIGH for row in expected) >= 2
    assert sorted(map(repr, (row for row in told if row[0] != "new"))) == sorted(map(repr, expected))
    assert len([row for row in told if row[0] == "new"]) == 4
    states = [progress.stateOperators[0] for progress in query.recentProgress]
    assert sum(state.numRowsDroppedByWatermark for state in states) == 1
    assert states[-1].numRowsTotal <= 2  # the new sensor's bucket, and its timer
