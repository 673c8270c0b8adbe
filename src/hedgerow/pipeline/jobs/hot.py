"""Hot topics of the whole network: the brokers' algorithm (`hot`) on what was journalled.

Input: `broker`, `topic` and `received_at` of journal rows or of bronze. Output of `topic_counts`:

| column | |
| --- | --- |
| `broker` | whose events were counted; null: those of all brokers together |
| `calculation_at` | timestamp, one every X.time (`slide_s`) |
| `topic` | |
| `events` | long: those of (calculation_at − Y.time, calculation_at]; Y.time is `window_s` |

`hot_topics` adds `rank` (int, from 1), `ranked` (int, the topics of this calculation) and `kept` (boolean:
In.Registry, else Out.Registry). A topic without events in a window has no row: it stays where it is.
`registries` tells where each topic is.

Equality with `HotTopics`, as long as the topics fit into what is bounded there: the same windows, open at
their begin and closed at their end; the same order, as UTF-8 sorts like code points; topics with longer
names than a broker counts are left out. A broker counts from its first event. `starts` says when that was:
with `first_events` a history is calculated at the very moments at which a broker would have done it. Without
it the moments are whole multiples of X.time since 1970, for all brokers alike.

Events are counted in slots first, as the broker does, and slots are added up to windows: an event is one
step of an aggregation inside a partition, whatever Y.time / X.time is.

As a stream (append mode) each calculation comes out whole and once, when `late_s` have passed since it by
the times of the rows. A row that comes later is left out, and Spark counts it (`numRowsDroppedByWatermark`).
The state is what came in the last Y.time + `late_s`. `topic_counts` is what streams; the other functions are
for what a batch of it, or a table, holds. Several journals advance one clock: rows that are read from one
long after newer ones of another are late, so that a history of several is for a batch query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from hedgerow.errors import ConfigError
from hedgerow.hot.window import MAX_PERIODS, MAX_TOPIC_LENGTH, MICROSECONDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW_S = 2.0
SLIDE_S = 0.4
SHARE = 0.5
LATE_S = 1.0

# A clock that jumps ahead would make every row that comes after it late, until time has caught up.
MAX_AHEAD_S = 60


def topic_counts(
    messages: DataFrame,
    window_s: float = WINDOW_S,
    slide_s: float = SLIDE_S,
    late_s: float = LATE_S,
    starts: DataFrame | None = None,
) -> DataFrame:
    """Events of each topic in each window, per broker and overall; of a batch or a stream.

    `starts` are those of `first_events`.
    """
    length, period = _microseconds(window_s, slide_s)
    events = _events(messages)
    if starts is None:
        slots = _slot_counts(events, length, period, late_s)
        return _window_counts(_with_overall(slots), length, period).select(
            "broker", sql.col("window.end").alias("calculation_at"), "topic", "events"
        )
    # Slots of a broker are those of no other: time is shifted by what its start is off the grid.
    phases = sql.broadcast(
        starts.select(
            sql.col("broker").alias("of_broker"),
            sql.unix_micros("start_at").alias("start"),
            sql.expr(f"pmod(unix_micros(start_at), {period}L)").alias("phase"),
        )
    )
    is_its = sql.col("broker").eqNullSafe(sql.col("of_broker"))
    shifted = (
        _with_overall(events)
        .join(phases, is_its, how="inner")
        .withColumn("received", sql.col("received") - sql.col("phase"))
    )
    counts = _window_counts(_slot_counts(shifted, length, period, late_s + slide_s), length, period)
    calculated = sql.unix_micros("window.end") + sql.col("phase")
    return (
        counts.join(phases, is_its, how="inner")
        .where(calculated > sql.col("start"))
        .select("broker", sql.timestamp_micros(calculated).alias("calculation_at"), "topic", "events")
    )


def first_events(messages: DataFrame) -> DataFrame:
    """`broker` (null: all brokers) and `start_at`, the time of its first event."""
    first = sql.min("received").alias("first")
    return (
        _with_overall(_events(messages).groupBy("broker").agg(first.alias("received")))
        .groupBy("broker")
        .agg(first)
        .select("broker", sql.timestamp_micros("first").alias("start_at"))
    )


def hot_topics(counts: DataFrame, share: float = SHARE, capacity: int | None = None) -> DataFrame:
    """Who is kept: of each calculation the busiest `share`, rounded up, and at most `capacity`."""
    if not 0 <= share <= 1:
        raise ConfigError(f"the share of topics to keep must be between 0 and 1: {share}")
    if capacity is not None and capacity < 0:
        raise ConfigError(f"the capacity must not be negative: {capacity}")
    calculation = Window.partitionBy("broker", "calculation_at")
    by_rank = calculation.orderBy(sql.col("events").desc(), sql.col("topic"))
    ranked = counts.withColumn("rank", sql.row_number().over(by_rank)).withColumn(
        "ranked", sql.count(sql.lit(1)).over(calculation).cast("int")
    )
    kept = _rounded_up(sql.lit(float(share)) * sql.col("ranked"))
    if capacity is not None:
        kept = sql.least(kept, sql.lit(capacity))
    return ranked.withColumn("kept", sql.col("rank") <= kept)


def registries(hot: DataFrame) -> DataFrame:
    """Where each topic is after the last calculation: `broker`, `topic`, `kept`, and `ranked_at`, the last
    calculation in which it had events."""
    return (
        hot.groupBy("broker", "topic")
        .agg(sql.max_by("kept", "calculation_at").alias("kept"), sql.max("calculation_at").alias("ranked_at"))
        .select("broker", "topic", "kept", "ranked_at")
    )


def _microseconds(window_s: float, slide_s: float) -> tuple[int, int]:
    length, period = round(window_s * MICROSECONDS), round(slide_s * MICROSECONDS)
    if not 0 < period <= length <= MAX_PERIODS * period:
        raise ConfigError(
            f"the window of hot topics must be as long as its slide, or up to {MAX_PERIODS} times as long: "
            f"{window_s:g} s, {slide_s:g} s"
        )
    return length, period


def _events(messages: DataFrame) -> DataFrame:
    return messages.where(
        (sql.col("received_at") <= sql.expr(f"current_timestamp() + INTERVAL {MAX_AHEAD_S} SECONDS"))
        & (sql.char_length("topic") <= MAX_TOPIC_LENGTH)
    ).select("broker", "topic", sql.unix_micros("received_at").alias("received"))


def _with_overall(rows: DataFrame) -> DataFrame:
    """Each row once for its broker and once for all of them."""
    others = [name for name in rows.columns if name != "broker"]
    both = sql.explode(sql.array(sql.coalesce("broker", sql.lit("")), sql.lit(None).cast("string")))
    return rows.select(both.alias("broker"), *others)


def _slot_counts(events: DataFrame, length: int, period: int, late_s: float) -> DataFrame:
    """`events` of each slot. As in `hot/window.py` slots end at calculations and Y.time before them.

    `slot_at` is the last microsecond before the slot's end: so a slot whose end is that of a window is in
    it, though Spark's windows are without their end, and with it the slot's events of that very moment.
    """
    until_calculation = f"pmod(-received, {period}L)"
    rest = length % period
    until_end = f"pmod({until_calculation} - {rest}L, {period}L)" if rest else until_calculation
    slot_end = f"received + least({until_calculation}, {until_end})"
    # Rows of the newest slot are up to X.time older than its end.
    delay_ms = round(late_s * 1000) + -(-period // 1000)
    return (
        events.select("broker", "topic", sql.expr(f"timestamp_micros({slot_end} - 1)").alias("slot_at"))
        .withWatermark("slot_at", f"{delay_ms} milliseconds")
        .groupBy("broker", "topic", "slot_at")
        .agg(sql.count(sql.lit(1)).alias("events"))
    )


def _window_counts(slots: DataFrame, length: int, period: int) -> DataFrame:
    # Spark's windows begin at multiples of X.time, and ours are to end there.
    length_us, period_us, first_us = (f"{us} microseconds" for us in (length, period, -length % period))
    window = sql.window("slot_at", length_us, period_us, first_us)
    return slots.groupBy("broker", "topic", window).agg(sql.sum("events").alias("events"))


def _rounded_up(value: Column) -> Column:
    """What Python's ceil(round(value, 6)) is. Spark rounds the decimal digits that a number is printed with,
    Python its exact value; the two differ where a share ends in 5 at the seventh place."""
    whole = sql.floor(value)
    return whole + sql.when(value - whole > 5e-7, 1).otherwise(0)
