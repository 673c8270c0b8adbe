"""readings: bronze → what sensors measured, one row for each value; what cannot be read → quarantine.

A message goes, whole, to exactly one of the two, or to neither when `[ignore]` of the rules names its topic.
Several journals may have copies of it, and a bridge may have renamed the topics of some: the rules are
matched on every copy, and then one is taken (`best_copies`).

Readings
    origin, epoch, sequence   the message's id
    broker, topic             strings, from bronze
    sensor                    string: as the rule says; the topic where it says nothing
    field                     string: what was measured
    value                     double, never NaN or infinite; 1 or 0 for a boolean; null where it is text
    text                      string; null where the value is a number
    unit                      string, may be null
    at                        timestamp: when it was measured
    received_at               timestamp, from bronze
    clamped                   string: which times were replaced, why, and what they were; null: none

Quarantine has the columns of bronze, and
    reason                    string: why it could not be read
    rule                      string: the name of the rule that it met; null: it met none
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from hedgerow.pipeline import payloads
from hedgerow.pipeline.jobs import quality
from hedgerow.topics import is_wildcard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from hedgerow.pipeline.rules import Rule, Rules

READING_SCHEMA = (
    "origin string, epoch long, sequence long, broker string, topic string, sensor string, field string, "
    "value double, text string, unit string, at timestamp, received_at timestamp, clamped string"
)
READING_COLUMNS = tuple(column.split()[0] for column in READING_SCHEMA.split(", "))
QUARANTINE_ADDED = ("reason", "rule")
NO_RULE = "no rule"
AHEAD_S = 60.0
"""A clock that is further ahead of the reception, or of the pipeline, is not believed."""
_ID = ("origin", "epoch", "sequence")


def readings(bronze: DataFrame, rules: Rules) -> DataFrame:
    """One row for each value that could be read."""
    return readings_of(parse(bronze, rules))


def quarantine(bronze: DataFrame, rules: Rules) -> DataFrame:
    """The messages that could not be read, with the reason."""
    return quarantine_of(parse(bronze, rules), bronze.columns)


def parse(
    bronze: DataFrame, rules: Rules, ahead_s: float = AHEAD_S, columns: Sequence[str] | None = None
) -> DataFrame:
    """Both at once, for who writes both: bronze with `rule`, `reason` (null: it could be read), `sensor`,
    `at`, `at_clamped` and `cells`."""
    ignored = [_meets(topic_filter) for topic_filter in rules.ignored]
    kept = bronze.where(~reduce(or_, ignored)) if ignored else bronze
    if not rules.quarantines_unmatched:
        matched = [_meets(one.filter) for one in rules.readings]
        kept = kept.where(reduce(or_, matched))
    rule, values = sql.col("wanted"), sql.col("values")
    # Each step stands on columns of the one before: what is used often is computed once.
    steps = {
        "number": _first([(_meets(one.filter), sql.lit(n)) for n, one in enumerate(rules.readings)]),
        "wanted": payloads.fenced(sql.get(payloads.wanted(rules.readings), sql.col("number"))),
        "refused": _refused(rule),
        "records": _records(rules),
        "body": sql.when(
            sql.col("refused").isNull() & ~rule["has_records"], sql.col("payload").cast("string")
        ),
        "document": payloads.parse_document(sql.when(_has_format(rules, "json"), sql.col("body"))),
        "unreadable": sql.coalesce(sql.col("refused"), sql.col("records.reason"), _format_problem(rules)),
        "values": payloads.fenced(sql.when(sql.col("unreadable").isNull(), _values(rules))),
        "cells": sql.when(rule["has_records"], sql.col("records.cells")).otherwise(
            payloads.checked(values, rule)
        ),
        "time": sql.when(rule["has_records"], payloads.own_time()).otherwise(payloads.time_of(values, rule)),
        "sensor": sql.when(rule["has_records"], sql.col("topic")).otherwise(payloads.sensor_of(values, rule)),
    }
    for name, step in steps.items():
        kept = kept.withColumn(name, step)
    added = {
        "rule": rule["name"],
        "reason": payloads.fenced(_reason()),
        "sensor": sql.col("sensor"),
        **_believed(sql.col("time.at"), ahead_s),
        "cells": _believed_cells(ahead_s),
    }
    parts = (part.alias(name) for name, part in added.items())
    return kept.select(*(columns or bronze.columns), *parts)


def readings_of(parsed: DataFrame) -> DataFrame:
    """The readings of `parse`."""
    good = parsed.where(sql.col("reason").isNull()).withColumn("cell", sql.explode("cells"))
    there = good.where(sql.col("cell.value").isNotNull() | sql.col("cell.text").isNotNull())
    of_cell = ("field", "value", "text", "unit")
    clamped = sql.concat_ws("; ", "clamped", sql.coalesce("cell.at_clamped", "at_clamped"))
    found = {name: sql.col(f"cell.{name}") for name in of_cell}
    # A record has a sensor and a time of its own.
    found |= {name: sql.coalesce(f"cell.{name}", name) for name in ("sensor", "at")}
    found["clamped"] = sql.nullif(clamped, sql.lit(""))
    return there.select(*(found.get(name, sql.col(name)).alias(name) for name in READING_COLUMNS))


def quarantine_of(parsed: DataFrame, columns: list[str]) -> DataFrame:
    """What `parse` could not read; `columns` are those of bronze."""
    return parsed.where(sql.col("reason").isNotNull()).select(*columns, *QUARANTINE_ADDED)


def best_copies(parsed: DataFrame) -> DataFrame:
    """Each message once, where several journals have it: a copy that could be read before one that could not,
    that of the origin's own journal before those of others, as a bridge may rename topics. A row without an
    id is a message of its own."""
    return taken_copies(parsed).drop("_copy")


def taken_copies(parsed: DataFrame) -> DataFrame:
    """The same with one column more, `_copy`: to drop it, Spark Connect has to look the columns up."""
    copies = Window.partitionBy(*_ID).orderBy(
        sql.col("reason").isNotNull(), _distance(), "received_at", "journal", "position"
    )
    is_best = sql.col("origin").isNull() | (sql.col("_copy") == 1)
    return parsed.withColumn("_copy", sql.row_number().over(copies)).where(is_best)


def words(parsed: DataFrame) -> DataFrame:
    """The ids of messages, as `seen` keeps them: `read` and `refused` have a bit for each of 64 ids in a row.
    `copies` is how many rows there are beside the first of each id."""
    bit = sql.expr("shiftleft(1L, CAST(sequence & 63 AS INT))")
    is_read = sql.col("reason").isNull()
    none = sql.lit(0).cast("long")
    return (
        parsed.where(sql.col("origin").isNotNull())
        .groupBy("origin", "epoch", sql.shiftright("sequence", 6).alias("word"))
        .agg(
            sql.bit_or(sql.when(is_read, bit).otherwise(none)).alias("read"),
            sql.bit_or(sql.when(is_read, none).otherwise(bit)).alias("refused"),
            (sql.count(sql.lit(1)) - sql.bit_count(sql.bit_or(bit))).alias("copies"),
        )
    )


def new_messages(parsed: DataFrame, known: DataFrame) -> DataFrame:
    """What is not in a table yet, with `is_moved`: it is in quarantine, from a copy that could not be read,
    and is to leave it. `known` has origin, epoch and word, with `known_read` and `known_refused`."""
    mask = sql.expr("shiftleft(1L, CAST(sequence & 63 AS INT))")
    found = parsed.withColumn("word", sql.shiftright("sequence", 6)).join(
        sql.broadcast(known), on=["origin", "epoch", "word"], how="left"
    )
    has_read, has_refused = (
        sql.coalesce(sql.col(name).bitwiseAND(mask) != 0, sql.lit(False))
        for name in ("known_read", "known_refused")
    )
    is_new = ~has_read & (sql.col("reason").isNull() | ~has_refused)
    return found.where(is_new).select(*parsed.columns, has_refused.alias("is_moved"))


def _believed(at: Column, ahead_s: float) -> dict[str, Column]:
    """A time ahead of the reception, or of the pipeline, becomes the earlier of these, and is told."""
    now = sql.least(sql.col("received_at"), sql.current_timestamp())
    is_ahead = at > now + sql.expr(f"INTERVAL {round(ahead_s * 1e6)} MICROSECONDS")
    told = sql.concat(sql.lit("at is in the future ("), sql.unix_micros(at).cast("string"), sql.lit(" µs)"))
    return {"at": sql.when(is_ahead, now).otherwise(at), "at_clamped": sql.when(is_ahead, told)}


def _believed_cells(ahead_s: float) -> Column:
    def believed(cell: Column) -> Column:
        names = ("field", "value", "text", "unit", "problem", "sensor")
        times = _believed(cell["at"], ahead_s)
        return sql.struct(
            *(cell[name].alias(name) for name in names), *(part.alias(name) for name, part in times.items())
        )

    return sql.transform("cells", believed)


def _distance() -> Column:
    """From the origin: what its own journal has before what came over a link."""
    transport = sql.col("transport")
    return (
        sql.when(sql.col("broker") == sql.col("origin"), 0)
        .when(transport == quality.SUBSCRIBER_TRANSPORT, 3)
        .when(transport.isin(*quality.HOP_TRANSPORTS), 2)
        .otherwise(1)
    )


def _meets(topic_filter: str) -> Column:
    topic = sql.col("topic")
    pattern = payloads.topic_pattern(topic_filter)
    meets = topic.rlike(pattern) if is_wildcard(topic_filter) else topic == topic_filter
    # Of what is null, "not" is null as well: a row without a topic would be in neither table.
    return sql.coalesce(meets, sql.lit(False))


def _first(branches: list[tuple[Column, Column]]) -> Column:
    """The value of the first condition that holds; null: none does."""
    (condition, value), *others = branches
    chosen = sql.when(condition, value)
    for condition, value in others:
        chosen = chosen.when(condition, value)
    return chosen


def _has_format(rules: Rules, *formats: str) -> Column:
    """Of those that are read with Spark's own functions."""
    return sql.col("number").isin([n for n, rule in _plain_rules(rules) if rule.format in formats])


def _refused(rule: Column) -> Column:
    """What is wrong with a payload whatever its format is: looked at before anything reads it."""
    size, most = sql.octet_length("payload"), rule["max_bytes"]
    too_large = sql.concat(size.cast("string"), sql.lit(" bytes, more than "), most.cast("string"))
    return (
        sql.when(sql.col("number").isNull(), sql.lit(NO_RULE))
        .when(sql.col("payload").isNull() | (size == 0), sql.lit("an empty payload"))
        .when(size > most, too_large)
        .when(
            ~rule["is_binary"] & ~sql.is_valid_utf8(sql.col("payload").cast("string")), sql.lit("not UTF-8")
        )
    )


def _records(rules: Rules) -> Column:
    """Where no rule has any, nothing of it is done."""
    if any(rule.has_records for rule in rules.readings):
        return payloads.fenced(payloads.records_of(rules.readings))
    return sql.lit(None).cast(payloads.RECORDS)


def _format_problem(rules: Rules) -> Column:
    problems = [(n, payloads.format_problem(rule)) for n, rule in enumerate(rules.readings)]
    some = [(sql.col("number") == n, problem) for n, problem in problems if problem is not None]
    return _first(some) if some else sql.lit(None).cast("string")


def _values(rules: Rules) -> Column:
    of_json, of_text = _found(rules, "json"), _found(rules, "csv", "number", "text")
    values = []
    if of_json is not None:
        values.append((_has_format(rules, "json"), payloads.values_of_documents(of_json)))
    if of_text is not None:
        values.append((~_has_format(rules, "json"), payloads.values_of_texts(of_text)))
    return _first(values) if values else sql.lit(None).cast(payloads.VALUES)


def _plain_rules(rules: Rules) -> list[tuple[int, Rule]]:
    return [(n, rule) for n, rule in enumerate(rules.readings) if not rule.has_records]


def _found(rules: Rules, *formats: str) -> Column | None:
    """What stands where the rules of these formats say."""
    those: list[tuple[int, Rule]] = [(n, rule) for n, rule in _plain_rules(rules) if rule.format in formats]
    return _first([(sql.col("number") == n, payloads.found(rule)) for n, rule in those]) if those else None


def _reason() -> Column:
    cells = sql.col("cells")
    problems = sql.filter(cells, lambda cell: cell.problem.isNotNull())
    is_nothing = sql.forall(cells, lambda cell: cell.value.isNull() & cell.text.isNull())
    return sql.coalesce(
        sql.col("unreadable"),
        sql.when(sql.col("sensor").isNull(), sql.lit("the sensor's name is missing")),
        sql.col("time.problem"),
        sql.get(problems, sql.lit(0)).problem,
        sql.when(is_nothing, sql.lit("none of the fields is there")),
    )
