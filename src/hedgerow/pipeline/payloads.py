"""Payloads into values, with Spark's own functions: no Python for a row.

In two steps. `found` finds the values where a rule says that they stand, as JSON or as text: a short branch
for each rule. `checked` and the others make of them what a rule asks for; they are the same for all rules,
and look up what it asks for in a table of literals. (A branch for each rule that does both comes to more code
than Java allows for a method, at nine rules.)

Spark's casts raise on bad input or take too much (`1d`, `NaN`, `12:30` as a time), so what a text looks like
is checked before it is cast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf

from hedgerow.pipeline.records import Reception, RecordError, read_records
from hedgerow.pipeline.rules import Field, Rule

if TYPE_CHECKING:
    import pyarrow as pa

MAX_AHEAD_S = 86_400
"""A sensor's time may be so much after the reception."""
MAX_COLUMNS = 1024  # of a line of CSV: its parser refuses one of 20,480 with an error that stops the query.
MAX_SHOWN = 40  # characters of a payload in a reason

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
_QUANTITY = rf"(?s)\A({_NUMBER})(?:\s*([^0-9\s.,;+-].*))?\z"
_DAY, _CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}"
_TIME = rf"\A{_DAY}[T ]{_CLOCK}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?(Z|[+-]{_CLOCK})?\z"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LATEST_S = 253_402_300_799.0  # the end of 9999: what a time in Python and in most readers ends at
_NUMERIC = r"\A(BIGINT|INT|SMALLINT|TINYINT|DOUBLE|FLOAT|DECIMAL)"
_WANTED_FIELD = (
    "struct<field: string, level: int, type: string, unit: string, minimum: double, maximum: double, "
    "optional: boolean, may_have_unit: boolean>"
)
_WANTED = (
    "struct<name: string, max_bytes: int, is_binary: boolean, has_records: boolean, "
    f"fields: array<{_WANTED_FIELD}>, time: int, time_unit: string, "
    "sensor: int, sensor_levels: array<int>>"
)
_RECORDS = (
    "struct<reason: string, cells: array<struct<sensor: string, field: string, text: string, unit: string, "
    "at: bigint, value: double>>>"
)
RECORDS = (
    "struct<reason: string, cells: array<struct<field: string, value: double, text: string, unit: string, "
    "problem: string, sensor: string, at: timestamp>>>"
)
"""What `records_of` comes to."""
VALUES = "array<struct<number: double, text: string, boolean: boolean, unit: string, shown: string>>"
"""What `values_of_documents` and `values_of_texts` come to."""
_SPACES = " \t\n\v\f\r"  # what \s is in a pattern
_TRUE, _FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


def topic_pattern(topic_filter: str) -> str:
    """A regular expression of Java that finds something in exactly the names that the filter matches."""
    *levels, last = topic_filter.split("/")
    several = last == "#"
    levels = levels if several else [*levels, last]
    written = "/".join("[^/]*" if level == "+" else _escaped(level) for level in levels)
    if several:
        written += "(?:/.*)?" if levels else ".*"
    # MQTT-4.7.2-1
    guard = r"(?!\$)" if topic_filter[:1] in ("+", "#") else ""
    return rf"(?s)\A{guard}{written}\z"


def parse_document(body: Column) -> Column:
    """A text as JSON, in an array of one. Null: it is no JSON.

    Spark's parser stops after the first value and does not look at what follows; inside of brackets it does.
    """
    inside = sql.try_parse_json(sql.concat(sql.lit("["), body, sql.lit("]")))
    # `1] x` closes the array itself. It cannot close an object as well.
    other = sql.try_parse_json(sql.concat(sql.lit('{"":'), body, sql.lit("}")))
    is_whole = ~body.contains("]") | other.isNotNull()
    return _let(
        inside, lambda one: sql.when(sql.try_variant_get(one, "$[1]", "variant").isNull() & is_whole, one)
    )


def format_problem(rule: Rule) -> Column | None:
    """What keeps `body` (or `document`) from being read at all."""
    if rule.format == "json" and not rule.has_records:
        return sql.when(sql.col("document").isNull(), _say("no JSON: ", shown(sql.col("body"))))
    if rule.format == "csv":
        columns = sql.size(sql.split(_line(), _escaped(rule.delimiter), MAX_COLUMNS + 1))
        return sql.when(_line().rlike(r"[\r\n]"), sql.lit("more than one line of CSV")).when(
            columns > MAX_COLUMNS, sql.lit(f"more than {MAX_COLUMNS} columns of CSV")
        )
    return None


# Where values stand


def paths_of(rule: Rule) -> list[str | None]:
    """What is looked for in a payload: the fields, then the time and the sensor where they stand there."""
    paths = [field.path for field in rule.fields]
    paths += [rule.time.path] if rule.time is not None else []
    return paths + ([rule.sensor] if isinstance(rule.sensor, str) else [])


def found(rule: Rule) -> Column:
    """For each path of the rule what stands there, or null: variants of `document`, or texts of `body`."""
    paths = paths_of(rule)
    if rule.format == "json":
        return sql.array(*(_json_value(path or "") for path in paths))
    if rule.format == "csv":
        return _csv_values(rule, [rule.columns.index(path or "") for path in paths])
    return sql.array(*(_text_value(path) for path in paths))


def _json_value(path: str) -> Column:
    steps = re.findall(r"[^.\[\]]+|\[[0-9]+\]", path)
    whole = "$[0]" + "".join(step if step[0] == "[" else f"['{step}']" for step in steps)
    return sql.try_variant_get(sql.col("document"), whole, "variant")


def _csv_values(rule: Rule, columns: list[int]) -> Column:
    schema = ", ".join(f"c{number} string" for number in range(len(rule.columns)))
    options = {"sep": rule.delimiter, "escape": '"', "mode": "PERMISSIVE"}
    line = sql.from_csv(_line(), sql.lit(schema), options)
    return _let(line, lambda row: sql.array(*(row.getField(f"c{number}") for number in columns)))


def _text_value(path: str | None) -> Column:
    """`21.5 °C`, or what follows its name in `temperature=21.5 °C, humidity=61 %`."""
    body = sql.col("body")
    if path is None:
        return body
    # Each step goes over the text once: a pattern of several parts that all take spaces tries every way to
    # share them out, which took 109 s for a payload of 2 KB.
    pattern = rf"(?:\A|[\s,;]){_escaped(path)}\s*+=([^,;=]*+)(=?)"
    value = sql.rtrim(sql.regexp_extract(body, pattern, 1), sql.lit(_SPACES))
    is_cut_off = sql.regexp_extract(body, pattern, 2) == "="
    # Two values may be apart by a space alone: then the last word is the next name.
    return sql.when(is_cut_off, sql.regexp_extract(value, r"(?s)\A(.*)\s\S++\z", 1)).otherwise(value)


def _line() -> Column:
    return sql.regexp_replace(sql.col("body"), r"\r?\n\z", "")


def values_of_documents(documents: Column) -> Column:
    """Variants as structs of number, text, boolean (null where it is of another type), unit, and shown, which
    is null where there is no value."""

    def value(one: Column, kind: Column) -> Column:
        text = one.try_cast("string")
        return sql.struct(
            sql.when(kind.rlike(_NUMERIC), one.try_cast("double")).alias("number"),
            sql.when(kind == "STRING", text).alias("text"),
            sql.when(kind == "BOOLEAN", one.try_cast("boolean")).alias("boolean"),
            _nothing("string").alias("unit"),
            sql.when(kind != "VOID", text).alias("shown"),
        )

    return sql.transform(
        documents, lambda one: _let(sql.schema_of_variant(one), lambda kind: value(one, kind))
    )


def values_of_texts(texts: Column) -> Column:
    """The same of texts."""

    def value(text: Column) -> Column:
        is_quantity = text.rlike(_QUANTITY)
        lower = sql.lower(text)
        unit = sql.regexp_extract(text, _QUANTITY, 2)
        return sql.struct(
            sql.when(is_quantity, sql.regexp_extract(text, _QUANTITY, 1).try_cast("double")).alias("number"),
            text.alias("text"),
            sql.when(lower.isin(*_TRUE), True).when(lower.isin(*_FALSE), False).alias("boolean"),
            sql.when(is_quantity & (unit != ""), unit).alias("unit"),
            text.alias("shown"),
        )

    # No pattern: one for spaces at the end begins anew at each space of the text, 22 s for 60 KB of them.
    stripped = sql.transform(texts, lambda text: sql.trim(text, sql.lit(_SPACES)))
    present = sql.transform(stripped, lambda text: sql.when(text != "", text))
    return sql.transform(present, value)


# What they have to be


def wanted(rules: Sequence[Rule]) -> Column:
    """What each rule asks for, as an array of literals: text for Spark to read, since to build it part by
    part takes a call to Java for each."""
    return sql.from_json(sql.lit(json.dumps([_wanted(rule) for rule in rules])), sql.lit(f"array<{_WANTED}>"))


def _wanted(rule: Rule) -> dict[str, Any]:
    by_path = isinstance(rule.sensor, str)
    return {
        "name": rule.name,
        "max_bytes": rule.max_bytes,
        "is_binary": rule.is_binary,
        "has_records": rule.has_records,
        "fields": [_wanted_field(rule, field) for field in rule.fields],
        "time": None if rule.time is None else len(rule.fields),
        "time_unit": None if rule.time is None else rule.time.unit,
        "sensor": len(paths_of(rule)) - 1 if by_path else None,
        "sensor_levels": [] if isinstance(rule.sensor, str) else [level - 1 for level in rule.sensor],
    }


def _wanted_field(rule: Rule, field: Field) -> dict[str, Any]:
    return {
        "field": None if isinstance(field.name, int) else field.name,
        "level": field.name - 1 if isinstance(field.name, int) else None,
        "type": field.type,
        "unit": field.unit,
        "minimum": field.minimum,
        "maximum": field.maximum,
        "optional": field.optional,
        "may_have_unit": rule.format == "text",
    }


def checked(values: Column, rule: Column) -> Column:
    """The fields of a rule as structs: field, value, text, unit, and problem. One that is optional and not
    there has neither value nor text nor problem."""
    fields = sql.slice(values, 1, sql.size(rule.fields))
    levels = sql.split("topic", "/")
    return sql.zip_with(fields, rule.fields, lambda value, field: _checked(value, field, levels))


def _checked(value: Column, field: Column, levels: Column) -> Column:
    name = sql.coalesce(field.field, sql.get(levels, field.level))
    is_number, is_text = field.type == "number", field.type == "text"
    may_have_unit = field.may_have_unit | value.unit.isNull()
    number = sql.when(is_number & may_have_unit, value.number).when(
        field.type == "boolean", value.boolean.cast("double")
    )
    text = sql.when(is_text, value.text)
    is_infinite = sql.isnan(number) | (sql.abs(number) == float("inf"))
    told = sql.concat(name, sql.lit(" is "), shown(value.shown))
    problem = (
        sql.when(
            sql.coalesce(name, sql.lit("")) == "", sql.lit("the topic has no level that names the field")
        )
        .when(value.shown.isNull(), sql.when(~field.optional, _say(name, " is missing")))
        .when(sql.coalesce(number.cast("string"), text).isNull(), _say(told, ", not a ", field.type))
        .when(is_infinite, _say(told, ", which is not finite"))
        .when(number < field.minimum, _say(told, ", below ", field.minimum.cast("string")))
        .when(number > field.maximum, _say(told, ", above ", field.maximum.cast("string")))
        .when(is_number & (value.unit != field.unit), _say(told, ", not in ", field.unit))
    )
    unit = sql.when(is_number, sql.coalesce(field.unit, value.unit))
    parts = {
        "field": name,
        "value": number,
        "text": text,
        "unit": unit,
        "problem": problem,
        "sensor": _nothing("string"),  # These two are the message's.
        "at": _nothing("timestamp"),
    }
    return sql.struct(*(part.alias(key) for key, part in parts.items()))


# Payloads of several records


def records_of(rules: Sequence[Rule]) -> Column:
    """As a struct of `reason` (null: they could be read) and `cells`, those of `checked`; of other rules
    null."""
    given = ("number", "topic", "payload", "received_at")
    has_records = sql.col("wanted.has_records") & sql.col("refused").isNull()
    own = sql.coalesce("published_at", "received_at")
    message = sql.when(has_records, sql.struct(*given, own.alias("own_at")))
    make: Any = arrow_udf  # Its stubs ask for a kind, and it warns of one.
    read = make(_reading(tuple(rules)), _RECORDS)(message)
    cells = sql.transform(
        read["cells"],
        lambda cell: sql.struct(
            *(cell[name].alias(name) for name in ("field", "value", "text", "unit")),
            _nothing("string").alias("problem"),
            cell["sensor"].alias("sensor"),
            sql.timestamp_micros(cell["at"]).alias("at"),
        ),
    )
    return sql.struct(read["reason"].alias("reason"), cells.alias("cells"))


def _reading(rules: tuple[Rule, ...]) -> Callable[[pa.Array], pa.Array]:
    """What executors do."""

    def read(messages: pa.Array) -> pa.Array:
        import pyarrow as pa

        found = [
            None if message is None else _read_message(rules, message) for message in messages.to_pylist()
        ]
        cell = [(name, pa.string()) for name in ("sensor", "field", "text", "unit")]
        cells = pa.list_(pa.struct([*cell, ("at", pa.int64()), ("value", pa.float64())]))
        return pa.array(found, pa.struct([("reason", pa.string()), ("cells", cells)]))

    # Spark looks at the types to know what it is given; with names alone it cannot find them.
    import pyarrow as pa

    read.__annotations__ = {"messages": pa.Array, "return": pa.Array}
    return read


def _read_message(rules: tuple[Rule, ...], message: dict[str, Any]) -> dict[str, Any]:
    times = (round(message[name].timestamp() * 1e6) for name in ("own_at", "received_at"))
    try:
        cells = read_records(
            rules[message["number"]], message["payload"], Reception(message["topic"], *times)
        )
    except RecordError as error:
        return {"reason": str(error), "cells": []}
    return {"reason": None, "cells": [cell._asdict() for cell in cells]}


def sensor_of(values: Column, rule: Column) -> Column:
    """Null: it has no name."""
    levels = sql.transform(rule.sensor_levels, lambda level: sql.get(sql.split("topic", "/"), level))
    is_whole = sql.forall(levels, lambda level: level.isNotNull())
    return (
        sql.when(rule.sensor.isNotNull(), sql.get(values, rule.sensor).shown)
        .when(sql.size(rule.sensor_levels) == 0, sql.col("topic"))
        .when(is_whole, sql.array_join(levels, "/"))
    )


def own_time() -> Column:
    """As `time_of`, of the message itself."""
    own = sql.coalesce(sql.col("published_at"), sql.col("received_at"))
    return sql.struct(own.alias("at"), _nothing("string").alias("problem"))


def time_of(values: Column, rule: Column) -> Column:
    """When it was measured, as a struct of `at` and `problem`."""
    given = sql.get(values, rule.time)
    scale = _nothing("double")
    for unit, factor in _SECONDS.items():
        scale = sql.when(rule.time_unit == unit, factor).otherwise(scale)
    seconds = given.number * scale
    # NaN and the infinite are not below it, and the cast of what is too large would raise.
    in_range = sql.abs(seconds) < _LATEST_S
    counted = sql.when(in_range, sql.timestamp_micros(sql.round(seconds * 1e6).cast("long")))
    named = sql.when(given.text.rlike(_TIME), sql.try_to_timestamp(given.text))
    at = sql.when(rule.time.isNull(), own_time().at).when(rule.time_unit == "iso", named).otherwise(counted)
    return _let(at, lambda at: sql.struct(at.alias("at"), _time_problem(given, rule, at).alias("problem")))


def _time_problem(given: Column, rule: Column, at: Column) -> Column:
    latest = sql.col("received_at") + sql.expr(f"INTERVAL {MAX_AHEAD_S} SECONDS")
    told = sql.concat(sql.lit("the time is "), shown(given.shown))
    return sql.when(
        rule.time.isNotNull(),
        sql.when(given.shown.isNull(), sql.lit("the time is missing"))
        .when(at.isNull(), _say(told, ", not one in ", rule.time_unit))
        .when(at < sql.timestamp_seconds(sql.lit(0)), _say(told, ", before 1970"))
        .when(at > latest, _say(told, ", in the future when it was received")),
    )


def fenced(column: Column) -> Column:
    """The column, computed once. Spark would push a condition on it down to the source by computing all of it
    for the condition again; what is not deterministic it does not move."""
    return sql.when(sql.spark_partition_id() >= 0, column)


def shown(text: Column) -> Column:
    return sql.concat(sql.lit("'"), sql.substring(text, 1, MAX_SHOWN), sql.lit("'"))


def _let(value: Column, make: Callable[[Column], Column]) -> Column:
    """`make(value)` with the value computed once, however often it is used."""
    return sql.get(sql.transform(sql.array(value), make), sql.lit(0))


def _say(*parts: Column | str) -> Column:
    return sql.concat(*(sql.lit(part) if isinstance(part, str) else part for part in parts))


def _nothing(kind: str) -> Column:
    return sql.lit(None).cast(kind)


def _escaped(text: str) -> str:
    """For Java a backslash before what is no ASCII letter or digit is that character itself."""
    return re.sub(r"([^A-Za-z0-9\u0080-\U0010ffff])", r"\\\1", text)
