"""What the report leads with: rates, latency, loss, readings with their anomalies, and hot topics over time.

Each chart has at most `MAX_POINTS` points of a curve: rows are summed up by Spark before they come here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from hedgerow.pipeline.jobs.anomalies import episodes
from hedgerow.pipeline.jobs.quality import HOP_TRANSPORTS
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import Curve, line_chart

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from hedgerow.pipeline.report.html import Html

MAX_POINTS = 300
MAX_CURVES = 5
MAX_SENSORS = 4
MAX_NAMES = 1_000
_ID = r"^[0-9a-f]{12,}$"

Read = Callable[[str], "DataFrame | None"]


def charts_of(read: Read) -> Iterator[Html]:
    """Those whose tables are there."""
    for draw in (_rates, _delays, _losses, _readings, _hot_topics):
        try:
            yield from draw(read)
        except AnalysisException:  # The table is of another version: its section shows it as it is.
            continue


def source_names(bronze: DataFrame | None) -> Mapping[str, str]:
    """Of origins that are ids: the client and the broker at which it published."""
    if bronze is None or not {"origin", "client", "transport", "broker"} <= set(bronze.columns):
        return {}
    own = bronze.where(sql.col("origin").rlike(_ID) & ~sql.col("transport").isin(*HOP_TRANSPORTS))
    found = own.groupBy("origin").agg(sql.min("client").alias("client"), sql.min("broker").alias("broker"))
    return {
        row.origin: f"{row.client or 'a client'} at {row.broker} ({row.origin[:6]}…)"
        for row in found.limit(MAX_NAMES).collect()
    }


def _rates(read: Read) -> Iterator[Html]:
    rows = read("bronze")
    if rows is not None:
        counted = _by_time(rows, "received_at", "broker", sql.count("*"), is_rate=True)
        yield from _chart(
            "Messages a second, by broker", "messages/s", "From bronze, at the time of reception.", counted
        )


def _delays(read: Read) -> Iterator[Html]:
    rows = read("latency")
    if rows is not None:
        link = sql.concat_ws(" → ", "source", "target")
        named = _with_names(rows, read).withColumn("link", link)
        found = _by_time(named, "start", "link", sql.max(sql.col("delay_p95_s") * 1_000))
        yield from _chart(
            "Latency of links and hops, 95th percentile",
            "ms",
            "From latency, the largest of each interval, by the clock of the source.",
            found,
        )


def _losses(read: Read) -> Iterator[Html]:
    rows = read("latency")
    if rows is not None:
        lost = _with_names(rows, read).withColumn("link", sql.concat_ws(" → ", "source", "target"))
        found = _by_time(lost, "start", "link", sql.sum("lost"))
        yield from _chart("Messages lost", "messages", "From latency, by the clock of the source.", found)


def _hot_topics(read: Read) -> Iterator[Html]:
    rows = read("hot")
    if rows is not None:
        overall = rows.where(sql.col("broker").isNull())
        found = _by_time(overall, "calculation_at", "topic", sql.max("events"))
        yield from _chart("Hot topics of the whole network", "events in a window", "From hot.", found)


def _readings(read: Read) -> Iterator[Html]:
    """Of the sensors with the most anomalies, with these as dots."""
    rows, told = read("readings"), read("anomalies")
    if rows is None or told is None:
        return
    once = episodes(told).persist()
    try:
        most = once.groupBy("sensor", "field").count().orderBy(sql.desc("count"), "sensor", "field")
        for sensor, field, _ in most.limit(MAX_SENSORS).collect():
            is_it = (sql.col("sensor") == sensor) & (sql.col("field") == field)
            values = _by_time(rows.where(is_it), "at", "field", sql.avg("value"))
            marked = once.where(is_it & sql.col("value").isNotNull()).orderBy(sql.desc("at"))
            dots: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for row in marked.select(_seconds("at"), "value", "kind").limit(MAX_POINTS).collect():
                dots[row[2]].append((row[0], row[1]))
            curves = [Curve(kind, points, is_dots=True) for kind, points in sorted(dots.items())]
            title, source = f"{sensor}: {field}, with what stands out", "From readings (means) and anomalies."
            yield from _chart(title, field, source, [*values, *curves] if values else [])
    finally:
        once.unpersist()


def _with_names(rows: DataFrame, read: Read) -> DataFrame:
    names = source_names(read("bronze"))
    if not names:
        return rows
    known = sql.create_map(*(sql.lit(word) for pair in names.items() for word in pair))
    return rows.withColumns({name: sql.coalesce(known[sql.col(name)], name) for name in ("source", "target")})


def _by_time(rows: DataFrame, time: str, label: str, what: Column, *, is_rate: bool = False) -> list[Curve]:
    """The curves of those labels that have the most."""
    there = rows.where(sql.col(time).isNotNull())
    least, most = there.agg(sql.min(_seconds(time)), sql.max(_seconds(time))).first() or (None, None)
    if least is None or most is None:
        return []
    width = max(1.0, (most - least) / MAX_POINTS)
    slot = sql.floor((_seconds(time) - least) / width)
    summed = there.groupBy(sql.col(label).alias("label"), slot.alias("slot")).agg(what.alias("value"))
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    labels = there.groupBy(sql.col(label).alias("label")).count().orderBy(sql.desc("count"), "label")
    chosen = [row.label for row in labels.limit(MAX_CURVES).collect()]
    for row in summed.where(sql.col("label").isin(chosen) & sql.col("value").isNotNull()).collect():
        points[row.label].append((row.slot, row.value))
    if is_rate:  # Where nothing came there is no row.
        slots = range(int((most - least) / width) + 1)
        points = {name: _filled(dict(found), slots, width) for name, found in points.items()}
    left_out = labels.count() - len(chosen)
    curves = [
        Curve(str(name), [(least + (slot + 0.5) * width, value) for slot, value in sorted(points[name])])
        for name in chosen
        if name in points
    ]
    if left_out > 0 and curves:
        curves[-1] = curves[-1]._replace(label=f"{curves[-1].label} (and {left_out:,} more are not drawn)")
    return curves


def _filled(found: dict[float, float], slots: range, width: float) -> list[tuple[float, float]]:
    return [(slot, found.get(slot, 0) / width) for slot in slots]


def _chart(title: str, unit: str, source: str, curves: list[Curve]) -> Iterator[Html]:
    if any(not curve.is_dots for curve in curves):
        yield html.figure(line_chart(title, ("time, UTC", unit), curves, is_time=True), source)


def _seconds(time: str) -> Column:
    return sql.unix_micros(time) / 1e6
