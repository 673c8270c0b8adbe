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
    LATE_COLUMNS,
    LOW,
    TOO_FEW,
    AnomalySettings,
    anomalies,
    judge,
    late,
    still_kept,
    told,
)
from hedgerow.pipeline.jobs.readings import READING_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Told = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], StreamingQuery]

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SMALL = AnomalySettings(readings=8, window_s=100.0, least=4, late_s=30.0, buckets=3)
NOTHING = pd.DataFrame({"sensor": [], "field": [], "at": [], "value": [], "heard": []})


def judged(values: Sequence[float], step_s: float = 1.0, settings: AnomalySettings = SMALL) -> list[Any]:
    """One sensor, a value every `step_s`: its rows."""
    at = [round(number * step_s * 1e6) for number in range(len(values))]
    new = pd.DataFrame({"sensor": "s", "field": "f", "at": at, "value": np.array(values, float), "heard": 0})
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
        new = pd.DataFrame(rows[start : start + 37], columns=["sensor", "field", "at", "value"]).assign(
            heard=0
        )
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
        {"forget_s": 0},
        {"sensors": 0},
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
    writer = anomalies(stream, SMALL).writeStream.format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows_told = [tuple(row) for row in told(spark.table(name)).collect()]
    return rows_told, [tuple(row) for row in late(spark.table(name)).collect()], query


def test_a_stream_tells_what_a_batch_does_and_keeps_what_is_too_late(
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
    for at, rows in enumerate(pieces):
        store(tmp_path / "before", f"{at}.parquet", rows)
    # Of s1, whose newest is of 77 s, one is late by more than 30 s, and one is not.
    pieces.append([reading(300, "s1", 40, 5.0), reading(301, "s1", 50, 6.0)])
    found, too_late, query = follow(spark, tmp_path, pieces, "anomalies_told")
    batch = anomalies(spark.read.schema(READING_SCHEMA).parquet(str(tmp_path / "before")), SMALL)
    assert tuple(batch.columns) == ANOMALY_COLUMNS
    expected = [tuple(row) for row in batch.collect()]

    assert len(expected) == 2 * 39
    assert sum(row[-1] == HIGH for row in expected) >= 2
    in_time = [row for row in found if row[3] == 6.0]
    assert len(in_time) == 1
    assert sorted(map(repr, (row for row in found if row[3] != 6.0))) == sorted(map(repr, expected))
    assert [dict(zip(LATE_COLUMNS, row, strict=True)) for row in too_late] == [
        {
            "sensor": "s1", "field": "temperature", "at": naive(40), "value": 5.0, "origin": "a", "epoch": 1,
            "sequence": 300, "received_at": naive(40), "newest_at": max(row[2] for row in expected_of(found)),
        }
    ]  # fmt: skip
    assert query.recentProgress[-1].stateOperators[0].numRowsTotal <= SMALL.buckets


def naive(at_s: float) -> datetime:
    """As Spark's Python has it."""
    return (NOON + timedelta(seconds=at_s)).replace(tzinfo=None)


def expected_of(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in found if row[0] == "s1"]


def test_no_clock_and_no_absence_of_one_sensor_costs_another_a_reading(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One is 20 hours ahead, one brings what it measured while it was away, and all are judged."""
    usual = [[reading(n, f"s{n % 3}", 60 * n, 20.0 + n % 2) for n in range(at, at + 12)] for at in (0, 12)]
    ahead = reading(90, "wild", 72_000, 20.0)
    away = [reading(100 + n, "away", 60 * n - 36_000, 20.0) for n in range(4)]
    found, too_late, _ = follow(spark, tmp_path, [[*usual[0], ahead], [*usual[1], *away]], "with_clocks")
    assert too_late == []
    assert len(found) == 24 + 1 + 4


def test_what_is_kept_of_sensors_is_bounded() -> None:
    """Of names that a publisher invents, and of sensors that are gone."""
    hour = 3_600 * 1_000_000
    rows = [(f"s{n}", "f", n, 1.0, n * hour) for n in range(30) for _ in range(2)]
    kept = pd.DataFrame(rows, columns=["sensor", "field", "at", "value", "heard"])
    left = still_kept(kept, 29 * hour, AnomalySettings(forget_s=10 * 3_600.0))
    assert set(left["sensor"]) == {f"s{n}" for n in range(20, 30)}
    few = still_kept(kept, 29 * hour, AnomalySettings(sensors=8, buckets=2, forget_s=1e9))
    assert set(few["sensor"]) == {f"s{n}" for n in range(26, 30)}
    assert len(few) == 8
