"""`anomalies`: readings that are unlike those before them, for each sensor and field.

A reading is compared with the readings of its sensor and field before it, by event time: the last
`AnomalySettings.readings` of them, none older than `window_s`. Its score is the robust z-score
0.6745 · (value - median) / MAD, where MAD is the median of the distances from the median: a few wild values
among many move neither. Where more than half of the values are the same the MAD is 0, and the mean distance
takes its place, (value - median) / (1.2533 · mean distance), as Iglewicz and Hoaglin have it; where all are
the same there is no scale, so no score, and what differs by more than `tolerance` of them stands out.

A stream and a batch have the same rows for the same readings, however the stream is cut, if no reading comes
in a later batch than a younger one of its sensor. One that does is compared with what was before it, and
what was told is not told again.

Time is that of each sensor and field: one whose clock runs ahead, or that was away for hours, changes nothing
for the others. A reading that is older than the newest of its own sensor in earlier batches by more than
`late_s` is *late*: a stream judges nothing of it, and gives it with `is_late` (`told`, `late`).

Of each sensor and field a stream keeps `AnomalySettings.readings` readings, until it has not been heard of
for `forget_s`, and of the `sensors` that were heard of last. Sensors are kept together in `buckets`, each a
key of `transformWithState`, and all of a bucket's are judged at once: on a busy machine a sensor as a key of
its own cost 8 to 22 ms in every batch, in a bucket 3 to 5 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from hedgerow.errors import ConfigError

ANOMALY_SCHEMA = (
    "sensor string, field string, at timestamp, value double, median double, mad double, score double, "
    "is_anomaly boolean, reason string"
)
"""`median`, `mad` and `score` are null where there is nothing to compare with. `reason` says why a reading is
an anomaly (high, low, not constant any more), or why nothing can be said (too few readings); else null."""
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
HIGH, LOW = "high", "low"
CHANGED = "not constant any more"
TOO_FEW = "too few readings"
MAX_READINGS = 1_024  # What is kept of a sensor is read and written whole: 16 KB.
MAX_BUCKETS = 4_096
MAX_SENSORS = 1_000_000
MAX_LATE_S = 366 * 86_400.0
_NORMAL = 0.6745  # The MAD of the normal distribution is so much of its standard deviation,
_NORMAL_MEAN = 1.253314  # and the standard deviation so much of its mean distance.
_ROWS_AT_ONCE = 4_096  # of at most MAX_READINGS numbers: 32 MB
_KEPT = pa.schema(
    [
        ("sensor", pa.string()), ("field", pa.string()), ("at", pa.int64()), ("value", pa.float64()),
        ("heard", pa.int64()),
    ]
)  # fmt: skip
"""`heard`: when the pipeline had this reading, in its own time."""
_LONG_AGO = -(2**62)
_STREAM_COLUMNS = [column.split()[0] for column in STREAM_SCHEMA.split(", ")]
_ORDER = ("at", "origin", "epoch", "sequence")  # The ids, so that readings of one time have one order too.

Numbers = NDArray[np.float64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class AnomalySettings:
    readings: int = 60
    """With how many readings before it one is compared, at most."""
    window_s: float = 3600.0
    """How old these may be."""
    least: int = 10
    """How many there must be."""
    threshold: float = 3.5
    """The score from which on, up or down, a reading is an anomaly."""
    tolerance: float = 0.01
    """By which share of it a value that was constant may change."""
    late_s: float = 60.0
    """By how much a reading may be older than its sensor's newest, in a stream."""
    forget_s: float = 86_400.0
    """A sensor that was not heard of for so long, by the pipeline's clock, begins anew."""
    sensors: int = 200_000
    """Sensors and fields of which readings are kept, at most: those that were heard of last."""
    buckets: int = 16
    """Into how many parts a stream divides the sensors; frozen into its checkpoint."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.readings <= MAX_READINGS:
            raise ConfigError(
                f"anomalies: least = {self.least}, readings = {self.readings}: "
                f"they must be 1 ≤ least ≤ readings ≤ {MAX_READINGS}"
            )
        if min(self.window_s, self.threshold) <= 0 or min(self.late_s, self.tolerance) < 0:
            raise ConfigError(
                "anomalies: window_s and threshold must be more than 0, late_s and tolerance 0 or more"
            )
        if self.late_s > MAX_LATE_S or self.forget_s <= 0:
            raise ConfigError(f"anomalies: late_s is at most {MAX_LATE_S:g}, and forget_s more than 0")
        if not 1 <= self.sensors <= MAX_SENSORS:
            raise ConfigError(f"anomalies: sensors = {self.sensors}: from 1 to {MAX_SENSORS}")
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise ConfigError(f"anomalies: buckets = {self.buckets}: from 1 to {MAX_BUCKETS}")


def anomalies(readings: DataFrame, settings: AnomalySettings | None = None) -> DataFrame:
    """A row for each reading that is a number. `readings` may be a stream: then the columns are those of
    STREAM_SCHEMA, and else ANOMALY_COLUMNS."""
    settings = settings or AnomalySettings()
    numbers = readings.where(sql.col("value").isNotNull() & sql.col("at").isNotNull()).select(
        "sensor", "field", "at", "value", "origin", "epoch", "sequence", "received_at"
    )
    if not readings.isStreaming:
        ordered = numbers.repartition("sensor", "field").sortWithinPartitions("sensor", "field", *_ORDER)
        return ordered.mapInPandas(_judge_in_turn(settings), ANOMALY_SCHEMA)
    bucket = sql.pmod(sql.xxhash64("sensor", "field"), sql.lit(settings.buckets))
    # The batch's own time, which is the same when it runs again.
    heard = sql.unix_micros(sql.current_timestamp())
    buckets = numbers.withColumn("bucket", bucket).withColumn("heard", heard).groupBy("bucket")
    return buckets.transformWithStateInPandas(_Buckets(settings), STREAM_SCHEMA, "Append", "None")


def told(judged: DataFrame) -> DataFrame:
    """Of a stream: ANOMALY_COLUMNS of what came in time."""
    return judged.where(~sql.col("is_late")).select(*ANOMALY_COLUMNS)


def late(judged: DataFrame) -> DataFrame:
    """Of a stream: LATE_COLUMNS of what came too late to be judged."""
    return judged.where("is_late").select(*LATE_COLUMNS)


def judge(
    kept: pd.DataFrame, new: pd.DataFrame, settings: AnomalySettings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What is to be said of the new readings, and what is to be kept of all.

    `kept` has sensor, field, at (µs), value and heard, in the order of time, and so has `new`, of any
    sensors.
    """
    merged = pd.concat([kept, new], ignore_index=True) if len(kept) else new
    sensors = merged.groupby(["sensor", "field"], sort=False).ngroup().to_numpy()
    times, values = merged["at"].to_numpy(), merged["value"].to_numpy()
    order = np.lexsort((times, sensors))
    (places,) = np.nonzero(order >= len(kept))
    line = _Line(sensors[order], times[order], values[order], settings)
    parts = [line.judge(places[at : at + _ROWS_AT_ONCE]) for at in range(0, len(places), _ROWS_AT_ONCE)]
    judged = pd.concat(parts, ignore_index=True)
    told = merged.iloc[order[places]].reset_index(drop=True)
    return pd.concat([told, judged], axis=1), merged.iloc[order[line.is_kept()]]


@dataclass(frozen=True)
class _Line:
    """The readings of one sensor after those of another, each in the order of time."""

    sensors: NDArray[np.intp]
    times: Times
    values: Numbers
    settings: AnomalySettings

    def is_kept(self) -> NDArray[np.bool_]:
        ends = np.searchsorted(self.sensors, self.sensors, side="right")
        is_kept: NDArray[np.bool_] = ends - np.arange(len(ends)) <= self.settings.readings
        return is_kept

    def judge(self, places: NDArray[np.intp]) -> pd.DataFrame:
        """Each reading at one of the places, by those before it."""
        settings = self.settings
        before = self._before(places)
        count = np.isfinite(before).sum(axis=1)
        median, value = _middle(before, count), self.values[places]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            distances = np.abs(before - median[:, None])
            distances.sort(axis=1)
            mad = _middle(distances, count)
            is_there = np.arange(distances.shape[1]) < count[:, None]
            mean = np.where(is_there, distances, 0.0).sum(axis=1) / np.maximum(count, 1)
            scale = np.where(mad > 0, mad / _NORMAL, mean * _NORMAL_MEAN)
            score = np.where(scale > 0, (value - median) / scale, np.where(value == median, 0.0, np.nan))
            has_changed = (scale == 0) & (np.abs(value - median) > settings.tolerance * np.abs(median))
        is_few = count < settings.least
        conditions = [is_few, has_changed, score >= settings.threshold, score <= -settings.threshold]
        reason = np.select(conditions, [TOO_FEW, CHANGED, HIGH, LOW], default="")
        told = pd.Series(reason, dtype=object)
        return pd.DataFrame(
            {
                "median": np.where(is_few, np.nan, median),
                "mad": np.where(is_few, np.nan, mad),
                "score": np.where(is_few, np.nan, score),
                "is_anomaly": ~is_few & (reason != ""),
                "reason": told.mask(told == "", None),
            }
        )

    def _before(self, places: NDArray[np.intp]) -> Numbers:
        """A row for each place: the values before it in the order of size, then infinity."""
        width = self.settings.readings
        padded = np.concatenate([np.full(width, np.inf), self.values])
        # Where a sensor is another the time is none, so that one comparison finds both.
        times = np.concatenate([np.full(width, -1), self.times])
        sensors = np.concatenate([np.full(width, -1), self.sensors])
        since = self.times[places] - round(self.settings.window_s * 1e6)
        is_other = sliding_window_view(sensors, width)[places] != self.sensors[places, None]
        is_old = sliding_window_view(times, width)[places] < since[:, None]
        before = np.where(is_other | is_old, np.inf, sliding_window_view(padded, width)[places])
        before.sort(axis=1)
        return before


def _middle(ordered: Numbers, count: NDArray[np.intp]) -> Numbers:
    """The median of the first `count` of each row."""
    rows = np.arange(len(ordered))
    low, high = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, count // 2]
    return np.where(count > 0, low / 2 + high / 2, 0.0)  # The sum of two values may be beyond all numbers.


def _in_order(readings: pd.DataFrame) -> pd.DataFrame:
    """As `judge` takes them."""
    ordered = readings.sort_values(list(_ORDER), kind="stable")
    heard = ordered.get("heard", 0)
    found = ordered[["sensor", "field", "value"]].assign(at=_microseconds_of(ordered["at"]), heard=heard)
    return found[_KEPT.names]


def _told(judged: pd.DataFrame) -> pd.DataFrame:
    return judged.assign(at=judged["at"].to_numpy().astype("datetime64[us]"))[list(ANOMALY_COLUMNS)]


def _with_all_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of STREAM_SCHEMA. What is missing is null, of whatever type it is."""
    columns = {
        name: rows[name] if name in rows else pd.Series(None, index=rows.index, dtype=object)
        for name in _STREAM_COLUMNS
    }
    return pd.DataFrame(columns)


def _judge_in_turn(settings: AnomalySettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Of readings in the order of sensors and times, which come in pieces of any size."""

    def judge_in_turn(pieces: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        kept = _KEPT.empty_table().to_pandas()
        for piece in pieces:
            if not len(piece):
                continue
            judged, kept = judge(kept, _in_order(piece), settings)
            last = piece.iloc[-1]
            kept = kept[(kept["sensor"] == last["sensor"]) & (kept["field"] == last["field"])]
            yield _told(judged)

    return judge_in_turn


class _Buckets(StatefulProcessor):
    """Of each bucket the last readings of all its sensors."""

    def __init__(self, settings: AnomalySettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("kept", "readings binary")

    # Spark names the methods, and passes some of the arguments by name.
    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        whole = pd.concat(list(rows), ignore_index=True)
        kept = self._load()
        newest = _newest_before(kept, whole)
        is_late = _microseconds_of(whole["at"]) < newest - round(self._settings.late_s * 1e6)
        new = _in_order(whole[~is_late])
        judged, kept = judge(kept, new, self._settings)
        kept = still_kept(kept, int(whole["heard"].max()), self._settings)
        self._kept.update((_packed(kept),))
        yield _with_all_columns(_told(judged).assign(is_late=False))
        if is_late.any():
            late_rows = whole[is_late].assign(
                newest_at=newest[is_late].astype("datetime64[us]"), is_late=True
            )
            yield _with_all_columns(late_rows)

    def close(self) -> None:
        """Nothing is open."""

    def _load(self) -> pd.DataFrame:
        found = self._kept.get()
        if found is None:
            return _KEPT.empty_table().to_pandas()
        with pa.ipc.open_stream(found[0]) as stream:
            return stream.read_pandas()


def still_kept(kept: pd.DataFrame, now: int, settings: AnomalySettings) -> pd.DataFrame:
    """Without sensors that were not heard of for too long, and of too many the ones heard of last; `now` is
    in microseconds."""
    heard = kept.groupby(["sensor", "field"], sort=False)["heard"].transform("max")
    kept, heard = kept[heard > now - settings.forget_s * 1e6], heard[heard > now - settings.forget_s * 1e6]
    most = -(-settings.sensors // settings.buckets)
    times = kept.groupby(["sensor", "field"], sort=False)["heard"].max()
    if len(times) <= most:
        return kept
    least = times.nlargest(most).index
    return kept[pd.MultiIndex.from_frame(kept[["sensor", "field"]]).isin(least)]


def _newest_before(kept: pd.DataFrame, rows: pd.DataFrame) -> Times:
    """Of each row's sensor and field; long ago where nothing is kept of it."""
    newest = kept.groupby(["sensor", "field"], sort=False)["at"].max()
    wanted = pd.MultiIndex.from_frame(rows[["sensor", "field"]])
    found: Times = newest.reindex(wanted).fillna(_LONG_AGO).to_numpy().astype(np.int64)
    return found


def _microseconds_of(times: pd.Series) -> Times:
    found: Times = times.to_numpy().astype("datetime64[us]").astype(np.int64)
    return found


def _packed(kept: pd.DataFrame) -> bytes:
    table = pa.Table.from_pandas(kept, schema=_KEPT, preserve_index=False)
    for at, name in enumerate(("sensor", "field")):
        table = table.set_column(at, name, table[name].combine_chunks().dictionary_encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
