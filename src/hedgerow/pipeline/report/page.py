"""The sections of the report's page: one for each table of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from hedgerow.pipeline.gaps import GAPS, read_gaps
from hedgerow.pipeline.jobs import anomalies
from hedgerow.pipeline.report import html, pictures
from hedgerow.pipeline.report.html import Html
from hedgerow.pipeline.report.pictures import source_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NONE = "–"
MAX_ROWS = 200  # that are shown of a table


class PageSection(NamedTuple):
    title: str
    parts: Sequence[Html]


class TableSection(NamedTuple):
    """How a table is shown."""

    title: str
    describe: Callable[[DataFrame], Iterable[Html]]


def number(value: float | None) -> str:
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def table_sections(
    tables: str, read: Callable[[str], DataFrame | None], more: Mapping[str, TableSection]
) -> Iterator[PageSection]:
    """Those that are there, ours and more of other packages. `read` gives a table by its name, or None."""
    glance = list(pictures.charts_of(read))
    if glance:
        yield PageSection("At a glance", glance)
    names = source_names(read("bronze"))
    for name, (title, describe) in {**TABLES, **more}.items():
        rows = read(name)
        if rows is not None:
            rows = _named(rows, names)
            counted = html.paragraph(f"{rows.count():,} rows in {name}/.")
            yield PageSection(title, [counted, *_described(rows, describe)])
    gaps = read_gaps(f"{tables}/{GAPS}")
    if gaps:
        lines = [["journal", "from", "to", "reason"], *(list(map(cell, gap)) for gap in gaps)]
        yield PageSection("What could not be read", [html.table(lines, "Gaps in journals, by position")])


def _named(rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Sources and targets as people know them, where they are ids."""
    known = sql.create_map(*(sql.lit(word) for pair in names.items() for word in pair)) if names else None
    for column in ("source", "target"):
        if known is not None and column in rows.columns:
            rows = rows.withColumn(column, sql.coalesce(known[sql.col(column)], column))
    return rows


def _described(rows: DataFrame, describe: Callable[[DataFrame], Iterable[Html]]) -> list[Html]:
    """A table that has not the columns that are looked for, of another version say, is shown as it is."""
    try:
        return list(describe(rows))
    except AnalysisException:
        return list(_plain(rows))


def _shown(rows: DataFrame, caption: str) -> Html:
    """At most `MAX_ROWS`, and how many are left out."""
    lines = lines_of(rows)
    more = rows.count() - MAX_ROWS if len(lines) > MAX_ROWS else 0
    left_out = f"{more:,} more rows are not shown: they are in the table." if more else ""
    return html.long_table(lines, caption, left_out)


def lines_of(rows: DataFrame) -> list[list[str]]:
    return [list(rows.columns), *([cell(value) for value in row] for row in rows.limit(MAX_ROWS).collect())]


def _bronze(rows: DataFrame) -> Iterator[Html]:
    hours = rows.groupBy("date", "hour").agg(
        sql.count("*").alias("messages"),
        sql.countDistinct("journal").alias("journals"),
        sql.countDistinct("broker").alias("brokers"),
        sql.countDistinct("topic").alias("topics"),
        sql.count("clamped").alias("clamped"),
    )
    yield _shown(hours.orderBy("date", "hour"), "Messages by hour")
    brokers = rows.groupBy("broker", "transport").agg(sql.count("*").alias("messages"))
    yield _shown(brokers.orderBy(sql.desc("messages"), "broker"), "Messages by broker")


def _readings(rows: DataFrame) -> Iterator[Html]:
    sensors = rows.groupBy("sensor", "field", "unit").agg(
        sql.count("*").alias("readings"), sql.min("value").alias("least"), sql.avg("value").alias("mean"),
        sql.max("value").alias("most"), sql.min("at").alias("first"), sql.max("at").alias("last"),
        sql.count("clamped").alias("clamped"),
    )  # fmt: skip
    yield _shown(sensors.orderBy(*_by_sensor()), "Readings by sensor and field")


def _quarantine(rows: DataFrame) -> Iterator[Html]:
    reasons = rows.groupBy("rule", "reason").agg(
        sql.count("*").alias("messages"), sql.min("topic").alias("a topic")
    )
    yield _shown(reasons.orderBy(sql.desc("messages"), "reason"), "Quarantined, by reason")


def _hot(rows: DataFrame) -> Iterator[Html]:
    topics = rows.groupBy("broker", "topic").agg(
        sql.count("*").alias("windows"), sql.sum("events").alias("events"), sql.max("events").alias("most")
    )
    busiest = topics.orderBy(sql.desc("events"), "broker", "topic")
    yield _shown(busiest, "Topics by events, summed over windows (broker –: all brokers)")


def _anomalies(rows: DataFrame) -> Iterator[Html]:
    once = anomalies.episodes(rows)
    sensors = once.groupBy("sensor", "field", "kind").agg(
        sql.count("*").alias("anomalies"), sql.sum("readings").alias("readings"),
        sql.min("at").alias("first"), sql.max("until").alias("last"),
    )  # fmt: skip
    yield _shown(sensors.orderBy(*_by_sensor(), "kind"), "By sensor and kind")
    told = once.orderBy(sql.desc("at")).select("at", "sensor", "field", "kind", "is_over", "explanation")
    yield _shown(told, "Anomalies, the newest first")


def _late(rows: DataFrame) -> Iterator[Html]:
    behind = sql.unix_micros("newest_at") / 1e6 - sql.unix_micros("at") / 1e6
    sensors = rows.groupBy("sensor", "field").agg(
        sql.count("*").alias("readings"), sql.max(behind).alias("s behind, at most"),
        sql.min("at").alias("first"), sql.max("at").alias("last"),
    )  # fmt: skip
    yield _shown(sensors.orderBy(*_by_sensor()), "Too late to be judged, by sensor")


def _devices(rows: DataFrame) -> Iterator[Html]:
    yield _shown(rows.orderBy(*_by_sensor()), "Sensors, how long they were there, and their silences")


def _by_sensor() -> tuple[Column, ...]:
    """By the number at the end of the name, where there is one: 2 before 10, and mast2 before mast10."""
    word = sql.regexp_replace("sensor", "[0-9]+$", "")
    number = sql.regexp_extract("sensor", "([0-9]+)$", 1).try_cast("double")
    return (word, sql.asc_nulls_first(number), sql.col("sensor"), sql.col("field"))


def _plain(rows: DataFrame) -> Iterator[Html]:
    yield _shown(rows, "The rows")


def cell(value: Any) -> str:
    match value:
        case None:
            return NONE
        case bool() | str():
            return str(value)
        case int() | float():
            return number(value)
        case bytes() | bytearray():
            return f"{len(value)} bytes"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value)


TABLES: Mapping[str, TableSection] = {
    "bronze": TableSection("Messages (bronze)", _bronze),
    "readings": TableSection("Readings", _readings),
    "quarantine": TableSection("Quarantine", _quarantine),
    "hot": TableSection("Hot topics", _hot),
    "quality": TableSection("Quality of links and subscribers", _plain),
    "gaps": TableSection("Gaps by message id", _plain),
    "latency": TableSection("Latency and loss by the minute", _plain),
    "anomalies": TableSection("Anomalies", _anomalies),
    "devices": TableSection("Devices", _devices),
    "late": TableSection("Late readings", _late),
}
