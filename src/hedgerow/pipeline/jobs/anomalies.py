"""`anomalies`: what stands out in the readings of each sensor and field; only that becomes rows.

Each sensor is watched by a machine of its own (`watch`), which has the readings in the order of their time.
What it finds is told in a row when it is noticed and, if it has lasted, in another one when it is over, with
the same `sensor`, `field`, `kind` and `at`; `episodes` has the last of each.

Time is that of each sensor and field: one whose clock runs ahead, or that was away for hours, changes nothing
for the others. A reading that is older than the newest of its own sensor in earlier batches by more than
`late_s` is *late*: a stream judges nothing of it, and gives it with `is_late` (`told`, `late`). One that is
older by less is only compared with the limits.

In a stream the watches are kept in pages of a few sensors (`watch_pages`), and a batch reads and writes those
of the sensors that it has. Pages are kept together in `buckets`, each a key of `transformWithState`: on a
busy machine a sensor as a key of its own cost 8 to 22 ms in every batch. A sensor whose silence stands out is
found with the next readings of any sensor of its bucket.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from hedgerow.errors import ConfigError
from hedgerow.pipeline.watch import Anomaly, SensorWatch
from hedgerow.pipeline.watch_pages import FORGET_S, NEVER, PAGES, SensorKey, WatchPage
from hedgerow.pipeline.watch_rules import WatchRule, settings_for
from hedgerow.pipeline.watch_words import explain_anomaly

ANOMALY_SCHEMA = (
    "sensor string, field string, kind string, at timestamp, until timestamp, is_over boolean, "
    "readings long, value double, expected double, bound double, unit string, explanation string"
)
"""As `Anomaly` has them, where null is for NaN; and why, in words."""
ANOMALY_COLUMNS = tuple(column.split()[0] for column in ANOMALY_SCHEMA.split(", "))
LATE_SCHEMA = (
    "sensor string, field string, at timestamp, value double, origin string, epoch long, sequence long, "
    "received_at timestamp, newest_at timestamp"
)
"""`newest_at`: the newest reading of the sensor and field when it came."""
LATE_COLUMNS = tuple(column.split()[0] for column in LATE_SCHEMA.split(", "))
STREAM_SCHEMA = ", ".join(
    [ANOMALY_SCHEMA, *LATE_SCHEMA.split(", ")[len(["sensor", "field", "at", "value"]) :], "is_late boolean"]
)
"""Of a stream: what `told` and `late` divide."""
MAX_BUCKETS = 4_096
MAX_LATE_S = 366 * 86_400.0
_STREAM_COLUMNS = [column.split()[0] for column in STREAM_SCHEMA.split(", ")]
_TIMES = ("at", "until", "received_at", "newest_at")
_OF_LATE = tuple(name for name in LATE_COLUMNS if name not in ("at", "newest_at"))
_ORDER = ("sensor", "field", "at", "origin", "epoch", "sequence")
"""By the ids, so that readings of one time have one order too."""


@dataclass(frozen=True)
class AnomalySettings:
    watches: tuple[WatchRule, ...] = ()
    """What is looked for, in which sensors; the first that matches counts."""
    late_s: float = 60.0
    """By how much a reading may be older than its sensor's newest, in a stream."""
    forget_s: float = FORGET_S
    """A sensor that was not heard of for so long, by the pipeline's clock, begins anew."""
    buckets: int = 16
    """Into how many parts a stream divides the sensors; frozen into its checkpoint."""

    def __post_init__(self) -> None:
        if not 0 <= self.late_s <= MAX_LATE_S or self.forget_s <= 0:
            raise ConfigError(
                f"anomalies: late_s is from 0 to {MAX_LATE_S:g}, not {self.late_s:g}, and forget_s more than "
                f"0, not {self.forget_s:g}"
            )
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise ConfigError(f"anomalies: buckets = {self.buckets}: from 1 to {MAX_BUCKETS}")


def anomalies(readings: DataFrame, settings: AnomalySettings | None = None) -> DataFrame:
    """`readings` may be a stream: then the columns are those of STREAM_SCHEMA, and else ANOMALY_COLUMNS."""
    settings = settings or AnomalySettings()
    numbers = readings.where(sql.col("value").isNotNull() & sql.col("at").isNotNull()).select(
        "sensor", "field", "at", "value", "origin", "epoch", "sequence", "received_at",
        sql.coalesce("unit", sql.lit("")).alias("unit"),
    )  # fmt: skip
    if not readings.isStreaming:
        ordered = numbers.repartition("sensor", "field").sortWithinPartitions(*_ORDER)
        return ordered.mapInPandas(_watch_in_turn(settings), ANOMALY_SCHEMA)
    bucket = sql.pmod(sql.xxhash64("sensor", "field"), sql.lit(settings.buckets))
    # The batch's own time, which is the same when it runs again.
    heard = sql.unix_micros(sql.current_timestamp())
    buckets = numbers.withColumn("bucket", bucket).withColumn("heard", heard).groupBy("bucket")
    return buckets.transformWithStateInPandas(_Buckets(settings), STREAM_SCHEMA, "Append", "None")


def told(judged: DataFrame) -> DataFrame:
    """Of a stream: ANOMALY_COLUMNS of what stands out."""
    return judged.where(~sql.col("is_late")).select(*ANOMALY_COLUMNS)


def late(judged: DataFrame) -> DataFrame:
    """Of a stream: LATE_COLUMNS of what came too late to be judged."""
    return judged.where("is_late").select(*LATE_COLUMNS)


def episodes(anomalies: DataFrame) -> DataFrame:
    """Each anomaly once, as it was told last."""
    keys = ("sensor", "field", "kind", "at")
    others = [name for name in ANOMALY_COLUMNS if name not in keys]
    newest = sql.max_by(sql.struct(*others), sql.struct("is_over", "until")).alias("last")
    return anomalies.groupBy(*keys).agg(newest).select(*keys, "last.*").select(*ANOMALY_COLUMNS)


def anomaly_row(key: SensorKey, unit: str, found: Anomaly) -> dict[str, Any]:
    """ANOMALY_COLUMNS, with times in microseconds."""
    row = {"sensor": key.sensor, "field": key.field, **found._asdict()}
    row |= {name: None for name in ("value", "expected", "bound") if isnan(row[name])}
    return row | {"unit": unit or None, "explanation": explain_anomaly(found, unit)}


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """With all of the columns; what is missing is null, of whatever type it is."""
    frame = {}
    for name in columns:
        values = pd.Series([row.get(name) for row in rows], dtype=object)
        if name in _TIMES:
            values = pd.to_datetime(values.astype("Int64"), unit="us")
        frame[name] = values
    return pd.DataFrame(frame)


def _plain(rows: pd.DataFrame) -> Iterator[tuple[SensorKey, str, list[tuple[int, float]]]]:
    """Each sensor of rows that are in order, with its last unit and its readings."""
    times = rows["at"].to_numpy().astype("datetime64[us]").astype("int64").tolist()
    columns = (rows[name].tolist() for name in ("sensor", "field", "unit", "value"))
    for (sensor, field), group in groupby(zip(*columns, times, strict=True), lambda row: row[:2]):
        rows_of_it = list(group)
        yield SensorKey(sensor, field), rows_of_it[-1][2], [(at, value) for *_, value, at in rows_of_it]


def _watch_in_turn(settings: AnomalySettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Of readings in the order of sensors and times, which come in pieces of any size."""

    def watch_in_turn(pieces: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        last: SensorKey | None = None
        watch = SensorWatch(settings_for((), "", "", ""))
        for piece in pieces:
            rows: list[dict[str, Any]] = []
            for key, unit, readings in _plain(piece):
                if key != last:
                    last, watch = key, SensorWatch(settings_for(settings.watches, *key, unit))
                for at, value in readings:
                    rows += [anomaly_row(key, unit, found) for found in watch.take(at, value)]
            yield _frame(rows, ANOMALY_COLUMNS)

    return watch_in_turn


class _Buckets(StatefulProcessor):
    """Of each bucket the pages, and when the first sensor of each page is overdue."""

    def __init__(self, settings: AnomalySettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._pages = handle.getMapState("pages", "page int", "watches binary")
        self._due = handle.getValueState("due", "times binary")

    # Spark names the methods, and passes some of the arguments by name.
    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        whole = pd.concat(list(rows), ignore_index=True).sort_values(list(_ORDER), kind="stable")
        now = int(whole["heard"].max())
        stored = self._due.get()
        due = array("q", [NEVER]) * PAGES if stored is None else array("q", stored[0])
        before = due.tobytes()
        bucket = Bucket(self._settings, self._load, now)
        yield _frame(bucket.take(whole), _STREAM_COLUMNS)
        yield _frame(bucket.overdue(due), _STREAM_COLUMNS)
        for number, page in bucket.pages.items():
            self._pages.updateValue((number,), (page.pack(now, self._settings.forget_s),))
            due[number] = page.due_at
        if due.tobytes() != before:
            self._due.update((due.tobytes(),))

    def close(self) -> None:
        """Nothing is open."""

    def _load(self, number: int) -> bytes:
        found = self._pages.getValue((number,))
        return b"" if found is None else bytes(found[0])


class Bucket:
    """One batch of a bucket. `load` gives a page as it was packed; `now` is the batch's time."""

    def __init__(self, settings: AnomalySettings, load: Callable[[int], bytes], now: int) -> None:
        self.pages: dict[int, WatchPage] = {}
        self._settings = settings
        self._load = load
        self._now = now

    def take(self, rows: pd.DataFrame) -> list[dict[str, Any]]:
        """Of rows in order, those that stand out, and those that are late; STREAM_SCHEMA."""
        found: list[dict[str, Any]] = []
        start = 0
        for key, unit, readings in _plain(rows):
            page = self._page(key.page)
            newest_at = page.newest_at(key)
            count = 0
            if newest_at is not None:
                allowed = newest_at - round(self._settings.late_s * 1e6)
                count = sum(1 for at, _ in readings if at < allowed)  # They are in order.
            if count:
                found += [
                    {**row, "at": at, "newest_at": newest_at, "is_late": True}
                    for row, (at, _) in zip(_records(rows, start, count), readings[:count], strict=True)
                ]
            for each in page.take(key, unit, readings[count:], self._now):
                found.append(anomaly_row(key, unit, each) | {"is_late": False})
            start += len(readings)
        return found

    def overdue(self, due: Iterable[int]) -> list[dict[str, Any]]:
        """`due`: when each page has a sensor that is."""
        return [
            anomaly_row(key, unit, found) | {"is_late": False}
            for number, due_at in enumerate(due)
            if due_at < self._now or number in self.pages
            for key, unit, found in self._page(number).overdue(self._now)
        ]

    def _page(self, number: int) -> WatchPage:
        if number not in self.pages:
            self.pages[number] = WatchPage(self._settings.watches, self._load(number))
        return self.pages[number]


def _records(rows: pd.DataFrame, start: int, count: int) -> list[dict[str, Any]]:
    """Of late readings."""
    part = rows.iloc[start : start + count][list(_OF_LATE)]
    received = part["received_at"].to_numpy().astype("datetime64[us]").astype("int64")
    found: list[dict[str, Any]] = part.assign(received_at=received).to_dict("records")
    return found
