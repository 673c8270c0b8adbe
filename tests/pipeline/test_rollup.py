"""Rollups and last values: exact whatever comes late and however it is cut; devices and their silences."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.pipeline.delta import Delta
from hedgerow.pipeline.jobs.anomalies import ANOMALY_SCHEMA
from hedgerow.pipeline.jobs.devices import devices
from hedgerow.pipeline.jobs.readings import READING_SCHEMA
from hedgerow.pipeline.jobs.rollup import LAST, LAST_SCHEMA, MERGING, ROLLUP, last_values, rollups
from hedgerow.pipeline.merging import Merger
from hedgerow.pipeline.sorting import struct
from hedgerow.pipeline.tables import append as append_rows
from hedgerow.pipeline.tables import checkpoint_place, read_growth, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN = datetime(2026, 6, 1, 22, 50)  # noqa: DTZ001 - as Spark's Python has it
BATCHES = 2
FLOOR = {"1min": {}, "1h": {"minute": 0}, "1d": {"minute": 0, "hour": 0}}


def reading(number: int, minutes: float, value: float | None, sensor: str) -> tuple[Any, ...]:
    at = BEGAN + timedelta(minutes=minutes)
    text = None if value is not None else f"state {number}"
    return ("n", 1, number, "b", "t", sensor, "f", value, text, "V", at, at, None)


def all_readings() -> list[tuple[Any, ...]]:
    """Of two sensors over two days, in no order at all: a batch may be older than the one before it."""
    chance = random.Random(4)
    rows = [
        reading(number, chance.uniform(0, 1_500), float(chance.randrange(100)), f"s{number % 2}")
        for number in range(300)
    ]
    return [*rows, reading(300, 2_000, None, "s1")]


def expected(rows: list[tuple[Any, ...]]) -> dict[tuple[str, str, datetime], tuple[float, ...]]:
    groups: dict[tuple[str, str, datetime], list[tuple[datetime, float]]] = defaultdict(list)
    for row in rows:
        if row[7] is not None:
            for width, floor in FLOOR.items():
                groups[row[5], width, row[10].replace(second=0, microsecond=0, **floor)].append(
                    (row[10], row[7])
                )
    return {
        key: (
            min(value for _, value in group),
            max(value for _, value in group),
            sum(value for _, value in group) / len(group),
            max(group)[1],
            len(group),
        )
        for key, group in groups.items()
    }


def batches(rows: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    for number in range(BATCHES):
        yield rows[number::BATCHES]


def test_rollups_are_exact_in_any_order_and_after_folding(spark: SparkSession, tmp_path: Path) -> None:
    rows, schema, tables = all_readings(), struct(READING_SCHEMA), str(tmp_path)
    Merger(tables, "rollup", MERGING, 1)
    stream = read_growth(spark, tables, "readings", schema)
    for number, some in enumerate(batches(rows)):
        batch = spark.createDataFrame(some, schema)
        append_rows(batch, number, tables, "readings", form="delta", query="test")
        merger = Merger(tables, "rollup", MERGING, 1, fold_every=BATCHES)
        query = stream.writeStream.foreachBatch(merger.write)
        running = query.option("checkpointLocation", checkpoint_place(tables, "rollup"))
        assert running.trigger(availableNow=True).start().awaitTermination(120)
    parts = read_table(spark, tables, ROLLUP)
    found = {
        (row.sensor, row.width, row.start): (row.least, row.most, row.mean, row.last, row.count_)
        for row in rollups(parts).withColumnRenamed("count", "count_").collect()
    }
    assert found == expected(rows)
    # The last batch has folded all of them.
    assert parts.count() == len(found)
    assert len(Delta(tmp_path, ROLLUP).files() or []) == len(Delta(tmp_path, LAST).files() or []) == 1

    last = {row.sensor: row for row in last_values(read_table(spark, tables, LAST)).collect()}
    newest = max((row for row in rows if row[5] == "s0"), key=lambda row: row[10])
    assert (last["s0"].value, last["s0"].at, last["s0"].unit) == (newest[7], newest[10], "V")
    assert (last["s1"].value, last["s1"].text) == (None, "state 300")
    assert sum(row.readings for row in last.values()) == len(rows)


def test_devices_are_up_but_for_their_silences(spark: SparkSession) -> None:
    def minute(number: int) -> datetime:
        return BEGAN + timedelta(minutes=number)

    last = spark.createDataFrame(
        [
            (name, "f", minute(at), 1.0, None, None, minute(at), "b", "t", 50, minute(0))
            for name, at in (("a", 100), ("b", 60), ("c", 0))
        ],
        LAST_SCHEMA,
    )
    found = [
        ("a", "silence", minute(10), minute(30), True),
        ("a", "silence", minute(10), minute(20), False),
        ("a", "stuck", minute(40), minute(50), True),
        ("b", "silence", minute(60), minute(70), False),
        ("a", "silence", minute(90), minute(95), False),
    ]
    rows = [
        (name, "f", kind, at, until, over, 1, None, None, None, None, "")
        for name, kind, at, until, over in found
    ]
    told = spark.createDataFrame(rows, ANOMALY_SCHEMA)
    up = {row.sensor: row for row in devices(last, told).orderBy("sensor").collect()}
    assert (up["a"].silences, up["a"].silent_s, up["a"].uptime, up["a"].anomalies) == (1, 1_200, 0.8, 1)
    assert (up["a"].silent_since, up["b"].silent_since) == (None, minute(60))
    assert (up["b"].uptime, up["c"].uptime, up["c"].silences) == (1, None, 0)
