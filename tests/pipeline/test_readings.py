"""Payloads into readings: each message is in readings or in quarantine, and never in both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as sql

from hedgerow.pipeline.jobs.ingest import bronze
from hedgerow.pipeline.jobs.readings import (
    QUARANTINE_ADDED,
    READING_COLUMNS,
    READING_SCHEMA,
    best_copies,
    parse,
    quarantine,
    quarantine_of,
    readings_of,
)
from hedgerow.pipeline.payloads import MAX_COLUMNS, topic_pattern
from hedgerow.pipeline.rules import FARM, load_rules, parse_rules
from hedgerow.topics import matches
from tests.pipeline.rows import RECEIVED_AT, message, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = """
[ignore]
filters = ["notice/#"]

[[reading]]
name = "station"
filter = "json/+"
format = "json"
sensor = "device.id"
time = { path = "at", unit = "ms" }
max_bytes = 3000
[reading.fields]
temperature = { path = "air[1].t", unit = "°C", min = -40, max = 60 }
door = { type = "boolean", optional = true }
state = { type = "text", optional = true }

[[reading]]
filter = "iso/+"
format = "json"
time = { path = "at", unit = "iso" }
fields.v = { optional = true }

[[reading]]
filter = "csv/+"
format = "csv"
columns = ["at", "", "flow", "name"]
delimiter = ";"
sensor = "name"
time = { path = "at", unit = "s" }
fields.flow = { min = 0 }

[[reading]]
filter = "number/+"
format = "number"
field = 2
unit = "lx"

[[reading]]
filter = "text/pairs"
format = "text"
fields.t = { unit = "C" }
fields.h = { optional = true }

[[reading]]
filter = "text/words"
format = "text"
type = "text"

[[reading]]
filter = "text/#"
format = "text"
sensor = [1, 3]
field = 2
"""
EARLIER = RECEIVED_AT - timedelta(days=1)
AT_S = 1_772_000_000  # shortly before RECEIVED_AT
AT = datetime.fromtimestamp(AT_S, UTC).replace(tzinfo=None)


def station(air: str = '[0, {"t": 21.5}]', at: str = f"{AT_S}000", more: str = "") -> bytes:
    return f'{{"device": {{"id": "s1"}}, "air": {air}, "at": {at}{more}}}'.encode()


# Of each message its topic, payload, and what comes of it: readings (sensor, field, value, text, unit), or
# words of the reason.
GOOD: list[tuple[str, bytes, list[tuple[Any, ...]]]] = [
    ("json/1", station(), [("s1", "temperature", 21.5, None, "°C")]),
    (
        "json/1",
        station(more=', "door": true, "state": "né"'),
        [
            ("s1", "temperature", 21.5, None, "°C"),
            ("s1", "door", 1.0, None, None),
            ("s1", "state", None, "né", None),
        ],
    ),
    ("json/1", station(more=', "door": null') + b" \n", [("s1", "temperature", 21.5, None, "°C")]),
    ("iso/x", b'{"at": "2026-02-25T06:13:20Z", "v": 7}', [("iso/x", "v", 7.0, None, None)]),
    ("iso/x", b'{"at": "2026-02-25T07:13:20.000+01:00", "v": 1e3}', [("iso/x", "v", 1000.0, None, None)]),
    ("csv/1", f'{AT_S};x;3.5;"a;""b"\r\n'.encode(), [('a;"b', "flow", 3.5, None, None)]),
    ("number/light", b" 12 \n", [("number/light", "light", 12.0, None, "lx")]),
    ("number/light", b"-1.5e-3", [("number/light", "light", -0.0015, None, "lx")]),
    (
        "text/pairs",
        b"t=21.5 C, h=61 %",
        [("text/pairs", "t", 21.5, None, "C"), ("text/pairs", "h", 61.0, None, "%")],
    ),
    (
        "text/pairs",
        b"h=61 t=21.5",
        [("text/pairs", "t", 21.5, None, "C"), ("text/pairs", "h", 61.0, None, None)],
    ),
    ("text/pairs", b"t = 3; other=9; t=4", [("text/pairs", "t", 3.0, None, "C")]),
    ("text/words", "läuft 3".encode(), [("text/words", "value", None, "läuft 3", None)]),
    ("text/wind/mast", b"4.2 m/s", [("text/mast", "wind", 4.2, None, "m/s")]),
    ("text/wind/mast", b"61%", [("text/mast", "wind", 61.0, None, "%")]),
]
BAD: list[tuple[str | None, bytes | None, str, str | None]] = [
    ("other", b"1", "no rule", None),
    ("$SYS/x", b"1", "no rule", None),
    (None, b"1", "no rule", None),
    ("json/1", b"", "an empty payload", "station"),
    ("json/1", None, "an empty payload", "station"),
    ("json/1", b"\xff\xfe", "not UTF-8", "station"),
    ("json/1", b" " * 3001, "3001 bytes, more than 3000", "station"),
    ("json/1", b"[" * 2999, "no JSON: '[[[", "station"),
    ("json/1", b"{", "no JSON: '{'", "station"),
    ("json/1", station() + b" x", "no JSON", "station"),
    ("json/1", station() + station(), "no JSON", "station"),
    ("json/1", station() + b"," + station(), "no JSON", "station"),
    ("json/1", station() + b"] [", "no JSON", "station"),
    ("json/1", station('[0, {"t": NaN}]'), "no JSON", "station"),
    ("json/1", station('[0, {"t": 1e400}]'), "temperature is 'Infinity', which is not finite", "station"),
    ("json/1", station('[0, {"t": "21.5"}]'), "temperature is '21.5', not a number", "station"),
    ("json/1", station('[0, {"t": true}]'), "temperature is 'true', not a number", "station"),
    ("json/1", station('[0, {"t": [1]}]'), "temperature is '[1]', not a number", "station"),
    ("json/1", station('[0, {"t": null}]'), "temperature is missing", "station"),
    ("json/1", station("[0]"), "temperature is missing", "station"),
    ("json/1", station('[0, {"t": 61}]'), "temperature is '61', above 60.0", "station"),
    ("json/1", station('[0, {"t": -41}]'), "temperature is '-41', below -40.0", "station"),
    ("json/1", station(more=', "door": 1'), "door is '1', not a boolean", "station"),
    ("json/1", station(more=', "state": 1'), "state is '1', not a text", "station"),
    ("json/1", b"3", "the sensor's name is missing", "station"),
    ("json/1", station(at="null"), "the time is missing", "station"),
    ("json/1", station(at='"soon"'), "the time is 'soon', not one in ms", "station"),
    ("json/1", station(at="1e300"), "the time is '1.0E300', not one in ms", "station"),
    ("json/1", station(at="-1"), "the time is '-1', before 1970", "station"),
    ("json/1", station(at="4102444800000"), "in the future when it was received", "station"),
    ("iso/x", b'{"at": "12:30", "v": 7}', "the time is '12:30', not one in iso", "iso/+"),
    ("iso/x", b'{"at": "2026-02-31T00:00:00Z", "v": 7}', "not one in iso", "iso/+"),
    ("iso/x", b'{"at": "2026-02-25T06:13:20Z"}', "none of the fields is there", "iso/+"),
    ("csv/1", f"{AT_S};;1;a\n{AT_S};;2;a".encode(), "more than one line of CSV", "csv/+"),
    ("csv/1", b";" * 30_000, f"more than {MAX_COLUMNS} columns of CSV", "csv/+"),
    ("csv/1", f"{AT_S};x;;a".encode(), "flow is missing", "csv/+"),
    ("csv/1", f"{AT_S};x".encode(), "the sensor's name is missing", "csv/+"),
    ("csv/1", f"{AT_S};x;-1;a".encode(), "flow is '-1', below 0.0", "csv/+"),
    ("number/light", b"NaN", "light is 'NaN', not a number", "number/+"),
    ("number/light", b"1d", "light is '1d', not a number", "number/+"),
    ("number/light", b"12 lx", "light is '12 lx', not a number", "number/+"),
    ("number/light", b"1e999", "light is '1e999', which is not finite", "number/+"),
    ("number/light", "١٢".encode(), "not a number", "number/+"),
    ("number/", b"1", "the topic has no level that names the field", "number/+"),
    ("text/pairs", b"h=61", "t is missing", "text/pairs"),
    ("text/pairs", b"t=21 F", "t is '21 F', not in C", "text/pairs"),
    ("text/pairs", b"t=21=22", "t is missing", "text/pairs"),
    # Where time grows with the square of the spaces, or faster, these take hours.
    ("text/pairs", b"t=" + b" " * 60_000 + b"=", "t is missing", "text/pairs"),
    ("text/pairs", b"t =" * 20_000 + b" ", "t is missing", "text/pairs"),
    ("text/wind/mast", b"1" + b" " * 60_000 + b"2", "not a number", "text/#"),
    ("text/words", b" \n ", "value is missing", "text/words"),
    ("text/wind", b"4.2 m/s", "the sensor's name is missing", "text/#"),
    ("text/wind/mast", b"4,2 m/s", "wind is '4,2 m/s', not a number", "text/#"),
]
IGNORED = [("notice", b"x"), ("notice/a", b"\xff")]


class Result(NamedTuple):
    readings: list[Any]
    quarantine: list[Any]
    columns: list[str]
    types: dict[str, str]


@pytest.fixture(scope="module")
def result(spark: SparkSession) -> Result:
    """What comes of all messages at once, by position."""
    given = [*(case[:2] for case in GOOD), *(case[:2] for case in BAD), *IGNORED]
    rows = bronze(messages(spark, *(message(n, topic=t, payload=p) for n, (t, p) in enumerate(given))))
    parsed = parse(rows, parse_rules(RULES)).cache()
    good, bad = readings_of(parsed), quarantine_of(parsed, rows.columns)
    try:
        return Result(good.collect(), bad.collect(), bad.columns, dict(good.dtypes))
    finally:
        parsed.unpersist()


@pytest.mark.parametrize("number", range(len(GOOD)), ids=lambda n: f"{n}-{GOOD[n][0]}")
def test_a_payload_is_read(result: Result, number: int) -> None:
    found = [row for row in result.readings if row.sequence == number]
    assert [(row.sensor, row.field, row.value, row.text, row.unit) for row in found] == GOOD[number][2]
    has_time = GOOD[number][0].partition("/")[0] in ("json", "iso", "csv")
    assert {row.at for row in found} == {AT if has_time else RECEIVED_AT.replace(tzinfo=None)}
    assert number not in [row.position for row in result.quarantine]


@pytest.mark.parametrize("number", range(len(BAD)), ids=lambda n: f"{n}-{BAD[n][2]}")
def test_what_cannot_be_read_is_quarantined(result: Result, number: int) -> None:
    topic, payload, reason, rule = BAD[number]
    position = len(GOOD) + number
    [row] = [row for row in result.quarantine if row.position == position]
    assert reason in row.reason
    assert (row.topic, row.rule) == (topic, rule)
    assert (None if row.payload is None else bytes(row.payload)) == payload
    assert position not in [row.sequence for row in result.readings]


def test_what_is_ignored_is_in_neither(result: Result) -> None:
    positions = {row.position for row in result.quarantine} | {row.sequence for row in result.readings}
    assert positions == set(range(len(GOOD) + len(BAD)))


def test_the_columns_are_the_documented_ones(spark: SparkSession, result: Result) -> None:
    assert tuple(result.types) == READING_COLUMNS
    assert result.types == dict(spark.createDataFrame([], READING_SCHEMA).dtypes)
    assert result.columns == [*bronze(messages(spark)).columns, *QUARANTINE_ADDED]


def test_the_rule_table_may_be_large(spark: SparkSession) -> None:
    """Spark compiles a query of hundreds of branches, or does without."""
    rules = parse_rules(
        "".join(
            f"[[reading]]\nfilter = 'a/{n}/+'\nformat = 'json'\nfields.x = {{}}\nfields.y.optional = true\n"
            for n in range(60)
        )
    )
    rows = bronze(
        messages(spark, message(0, topic="a/59/x", payload=b'{"x": 1}'), message(1, topic="a/60/x"))
    )
    parsed = parse(rows, rules)
    assert [(row.position, row.rule, row.reason) for row in parsed.collect()] == [
        (0, "a/59/+", None), (1, None, "no rule"),
    ]  # fmt: skip


LEVEL = st.sampled_from(
    ["", "a", "b", "$", "$a", "a.b", "\\", "^", "\n", "é", "🌾", "[a", "(", "a*", "Q\\E", " "]
)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), max_size=3))
    last = draw(st.one_of(LEVEL, st.sampled_from(["+", "#"])))
    return "/".join([*levels, last]) or "+"


def test_a_pattern_matches_what_the_filter_does(spark: SparkSession) -> None:
    """In Java's regular expressions, which differ from Python's; a thousand pairs in one query."""
    pairs: list[tuple[str, str]] = []

    @settings(max_examples=250, database=None)
    @given(st.lists(topic_filters(), min_size=1, max_size=2), st.lists(LEVEL, min_size=1, max_size=4))
    def collect(filters: list[str], levels: list[str]) -> None:
        names = {"/".join(levels) or "a", *(f.replace("+", "a").replace("#", "b/c") for f in filters)}
        names |= {f.removesuffix("/#").replace("+", "").replace("#", "$x") for f in filters} - {""}
        pairs.extend((f, name) for f in filters for name in names)

    collect()
    rows = spark.createDataFrame(
        [(f, name, topic_pattern(f)) for f, name in pairs], "f string, n string, p string"
    )
    found = rows.select("f", "n", sql.expr("n RLIKE p").alias("found")).collect()
    assert [(f, n) for f, n, is_found in found if is_found != matches(f, n)] == []
    assert {is_found for _, _, is_found in found} == {True, False}


def test_of_copies_the_best_is_taken(spark: SparkSession) -> None:
    """What can be read before what cannot, and then the origin's own; with one id, one message."""
    rules = parse_rules("[[reading]]\nfilter = 'farm/+'\nformat = 'number'\nsensor = [2]\n")
    renamed = {"journal": "j2", "broker": "far", "transport": "bridge", "received_at": EARLIER}
    rows = [
        message(0, sequence=0, topic="farm/own", origin="near", broker="near"),
        message(1, sequence=0, topic="farm/renamed", origin="near", **renamed),
        message(2, sequence=1, topic="farm/own", origin="near", broker="near"),
        message(3, sequence=1, topic="remote/own", origin="near", **renamed),
        message(4, sequence=2, topic="own", origin="near", broker="near"),
        message(5, sequence=2, topic="farm/renamed", origin="near", **renamed),
        message(6, sequence=3, topic="own", origin="near", broker="near"),
        message(7, sequence=3, topic="remote/own", origin="near", **renamed),
        *(message(8 + n, topic="farm/nameless", origin=None, epoch=None, sequence=None) for n in range(2)),
    ]
    best = best_copies(parse(bronze(messages(spark, *rows)), rules)).collect()
    assert sorted((row.position, row.reason) for row in best) == [
        (0, None), (2, None), (5, None), (6, "no rule"), (8, None), (9, None),
    ]  # fmt: skip


def test_a_clock_that_is_ahead_is_not_believed(spark: SparkSession) -> None:
    """Neither the sensor's nor, ahead of ours, the node's. The value is, with what the time was."""
    rules = parse_rules("[[reading]]\nfilter = 'a/b'\nformat = 'number'\n")
    tomorrow = datetime.now(UTC) + timedelta(hours=20)
    times = [
        {"published_at": RECEIVED_AT + timedelta(seconds=59)},
        {"published_at": RECEIVED_AT + timedelta(hours=3)},
        {"received_at": tomorrow},
    ]
    rows = bronze(messages(spark, *(message(n, **each) for n, each in enumerate(times))))
    before = datetime.now(UTC).replace(tzinfo=None)
    first, second, third = sorted(readings_of(parse(rows, rules)).collect(), key=lambda row: row.sequence)
    assert (first.at, first.clamped) == ((RECEIVED_AT + timedelta(seconds=59)).replace(tzinfo=None), None)
    was_us = round((RECEIVED_AT + timedelta(hours=3)).timestamp() * 1e6)
    assert second.at == RECEIVED_AT.replace(tzinfo=None)
    assert second.clamped == f"at is in the future ({was_us} µs)"
    assert before - timedelta(minutes=1) <= third.at <= before + timedelta(minutes=1)
    patient = readings_of(parse(rows, rules, ahead_s=86_400)).collect()
    assert [row.clamped for row in patient] == [None] * 3


def test_what_the_farms_own_rules_do_not_know_is_not_copied(spark: SparkSession) -> None:
    rows = bronze(
        messages(
            spark,
            message(0, topic="farm/north/mast/temperature", payload=b"21 \xc2\xb0C"),
            message(1, topic="farm/north/mast/temperature", payload=b"broken"),
            message(2, topic="elsewhere"),
        )
    )
    assert sorted(row.position for row in parse(rows, load_rules()).collect()) == [0, 1]
    assert sorted(row.position for row in parse(rows, load_rules(FARM)).collect()) == [0, 1, 2]


def test_quarantine_alone(spark: SparkSession) -> None:
    rows = bronze(messages(spark, message(0, topic="number/x", payload=b"1"), message(1)))
    assert [row.position for row in quarantine(rows, parse_rules(RULES)).collect()] == [1]
