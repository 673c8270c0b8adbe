"""Payloads of several records: JSON arrays, CBOR, SenML and Sparkplug B, with examples of their documents."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.pipeline.jobs.ingest import bronze
from hedgerow.pipeline.jobs.readings import parse, quarantine_of, readings_of
from hedgerow.pipeline.records import Reception, RecordCell, RecordError, read_records
from hedgerow.pipeline.rules import Rule, parse_rules
from tests.pipeline.rows import RECEIVED_AT, message, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = round(RECEIVED_AT.timestamp())
S = 1_000_000
HERE = Reception("plant/DDATA/edge/pump", AT * S, AT * S)


def rule(text: str) -> Rule:
    (only,) = parse_rules(f'[[reading]]\nfilter = "#"\n{text}').readings
    return only


ARRAY = rule("""format = "json"
each = "data.list"
sensor = "$.device"
time = { path = "t", unit = "s" }
fields.temperature = { path = "v[0]", unit = "°C", max = 60 }
fields.door = { type = "boolean", optional = true }""")
CBOR = rule('format = "cbor"\nsensor = [3]\nfields.t = {}\nfields.name = { path = "7", type = "text" }')
SENML = rule('format = "senml"')
SPARKPLUG = rule('format = "sparkplug"')


def cell(sensor: str, at: float, field: str, value: Any, unit: str | None = None) -> RecordCell:
    text = value if isinstance(value, str) else None
    return RecordCell(sensor, round(at * S), field, None if text is not None else float(value), text, unit)


def array(*elements: dict[str, Any]) -> bytes:
    return json.dumps({"device": "d1", "data": {"list": elements}}).encode()


def test_an_array_in_json_is_records() -> None:
    found = read_records(ARRAY, array({"t": AT - 9, "v": [21.5], "door": True}, {"t": AT, "v": [22]}), HERE)
    assert found == [
        cell("d1", AT - 9, "temperature", 21.5, "°C"),
        cell("d1", AT - 9, "door", 1),
        cell("d1", AT, "temperature", 22, "°C"),
    ]
    whole = rule('format = "json"\neach = ""\nfields.v = {}')
    assert [each.value for each in read_records(whole, b'[{"v": 1}, {"v": 2}]', HERE)] == [1, 2]


def test_cbor_has_paths_as_json_has() -> None:
    assert read_records(CBOR, cbor2.dumps({"t": 4, 7: "on"}), HERE) == [
        cell("edge", AT, "t", 4),
        cell("edge", AT, "name", "on"),
    ]


# RFC 8428, 5.1.2, 5.1.3 and 6 (in CBOR, with numbers for names)
MULTIPLE = [
    {"bn": "urn:dev:ow:10e2073a01080063:", "n": "voltage", "u": "V", "v": 120.1},
    {"n": "current", "u": "A", "v": 1.2},
]
TIMES = [
    {
        "bn": "urn:dev:ow:10e2073a0108006:", "bt": 1.276020076001e09, "bu": "A", "bver": 5, "n": "voltage",
        "u": "V", "v": 120.1,
    },
    {"n": "current", "t": -5, "v": 1.2},
    {"n": "current", "t": -4, "v": 1.3},
]  # fmt: skip
COMPACT = [{-2: "urn:dev:ow:10e2073a01080063:", 0: "on", 4: True, 6: -2}, {0: "base", -5: 20, 2: 1.5}]


@pytest.mark.parametrize(
    ("payload", "cells"),
    [
        (
            b'[{"n":"urn:dev:ow:10e2073a01080063","u":"Cel","v":23.1}]',
            [("urn:dev:ow", AT, "10e2073a01080063", 23.1, "Cel")],
        ),
        (
            json.dumps(MULTIPLE).encode(),
            [
                ("urn:dev:ow:10e2073a01080063", AT, "voltage", 120.1, "V"),
                ("urn:dev:ow:10e2073a01080063", AT, "current", 1.2, "A"),
            ],
        ),
        (
            json.dumps(TIMES).encode(),
            [
                ("urn:dev:ow:10e2073a0108006", 1.276020076001e09, "voltage", 120.1, "V"),
                ("urn:dev:ow:10e2073a0108006", 1.276020071001e09, "current", 1.2, "A"),
                ("urn:dev:ow:10e2073a0108006", 1.276020072001e09, "current", 1.3, "A"),
            ],
        ),
        (
            cbor2.dumps(COMPACT),
            [
                ("urn:dev:ow:10e2073a01080063", AT - 2, "on", 1, None),
                ("urn:dev:ow:10e2073a01080063", AT, "base", 21.5, None),
            ],
        ),
        (b'[{"bn":"s","n":"label","vs":"open"}]', [("s", AT, "label", "open", None)]),
    ],
)
def test_senml(payload: bytes, cells: list[Any]) -> None:
    assert read_records(SENML, payload, HERE) == [cell(*each) for each in cells]


def test_of_named_values_a_rule_may_choose() -> None:
    chosen = rule(
        'format = "senml"\nsensor = [3, 4]\nfields.amps = { path = "current", unit = "A", max = 2 }'
    )
    assert read_records(chosen, json.dumps(MULTIPLE).encode(), HERE) == [
        cell("edge/pump", AT, "amps", 1.2, "A")
    ]
    with pytest.raises(RecordError, match="amps is missing"):
        read_records(chosen, json.dumps(MULTIPLE[:1]).encode(), HERE)


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def part(number: int, value: int | bytes) -> bytes:
    """A field of Protocol Buffers, by hand."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def test_sparkplug() -> None:
    unit = part(1, b"engUnit") + part(2, part(1, 12) + part(8, b"bar"))
    double = varint(13 << 3 | 1) + bytes.fromhex("0000000000001240")  # 4.5
    metrics = [
        part(1, b"Pump/Pressure") + part(3, (AT - 3) * 1_000) + part(4, 10) + part(9, unit) + double,
        part(1, b"Offset") + part(4, 1) + part(10, 0xFE),  # Int8
        part(1, b"Level") + part(4, 3) + part(10, 2**32 - 7),  # Int32
        part(1, b"Running") + part(4, 11) + part(14, 1),
        part(1, b"State") + part(4, 12) + part(15, b"idle"),
        part(1, b"Gone") + part(4, 10) + part(7, 1),
        part(2, 42) + part(4, 8) + part(11, 2**40),
    ]
    payload = (
        part(1, AT * 1_000) + b"".join(part(2, metric) for metric in metrics) + part(3, 7) + part(4, b"uuid")
    )
    assert read_records(SPARKPLUG, payload, HERE) == [
        cell("DDATA/pump", AT - 3, "Pump/Pressure", 4.5, "bar"),
        cell("DDATA/pump", AT, "Offset", -2),
        cell("DDATA/pump", AT, "Level", -7),
        cell("DDATA/pump", AT, "Running", 1),
        cell("DDATA/pump", AT, "State", "idle"),
        cell("DDATA/pump", AT, "alias-42", 2**40),
    ]


@pytest.mark.parametrize(
    ("of", "payload", "reason"),
    [
        (ARRAY, b"[", "no JSON: '\\['"),
        (ARRAY, b'{"data": {"list": {}}}', "data.list is no array"),
        (ARRAY, b'{"data": {"list": [{"t": 1, "v": [1]}]}}', "the sensor's name is missing"),
        (ARRAY, array(), "none of the fields is there"),
        (ARRAY, array({"t": AT, "v": [1]}, {"t": AT, "v": [61]}), "temperature is '61', above 60"),
        (ARRAY, array({"t": AT, "v": ["1"]}), "temperature is '1', not a number"),
        (ARRAY, array({"t": AT, "v": [1], "door": 1}), "door is '1', not a boolean"),
        (ARRAY, array({"t": "x", "v": [1]}), "the time is 'x', not one in s"),
        (ARRAY, array({"t": AT + 90_000, "v": [1]}), "the time is in the future"),
        (ARRAY, array({"v": [1]}), "the time is missing"),
        (ARRAY, b'{"device": 1, "data": {"list": [{"t": NaN}]}}', "no JSON"),
        (ARRAY, b'{"a":' * 50_000, "no JSON|nested"),
        (CBOR, b"\xff\x00", "no CBOR: ff 00"),
        (CBOR, b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", "no CBOR"),
        (CBOR, cbor2.dumps({"t": 1, "7": "on"}) + b"\x00", "something comes after the CBOR"),
        (CBOR, cbor2.dumps({"t": float("nan"), "7": "on"}), "t is 'nan', which is not finite"),
        (CBOR, b"\x81" * 60_000, "no CBOR|nested"),
        (SENML, b'{"n": "a", "v": 1}', "no CBOR|no SenML"),
        (SENML, b'[{"n": "a", "v": "1"}]', "v is '1', not a number"),
        (SENML, b'[{"n": "a", "bt": 1e300, "v": 1}]', "after the year 9999"),
        (SPARKPLUG, b"\x0a\x05abc", "no Sparkplug B"),
    ],
)
def test_what_is_wrong_with_one_is_wrong_with_the_message(of: Rule, payload: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        read_records(of, payload, HERE)


@given(payload=st.binary(max_size=300), of=st.sampled_from([ARRAY, CBOR, SENML, SPARKPLUG]))
def test_any_bytes_are_read_or_refused(payload: bytes, of: Rule) -> None:
    with suppress(RecordError):
        assert read_records(of, payload, HERE)


def test_in_the_job_a_message_is_readings_or_in_quarantine(spark: SparkSession) -> None:
    rules = parse_rules(
        """
[[reading]]
filter = "senml/#"
format = "senml"
[[reading]]
filter = "array/#"
format = "json"
each = ""
time = { path = "t", unit = "s" }
fields.v = { unit = "V" }
[[reading]]
filter = "number/#"
format = "number"
"""
    )
    good = cbor2.dumps([{-2: "mast", 0: "wind", 2: 3.5, 1: "m/s"}, {0: "gust", 2: 6.5}])
    array = json.dumps([{"t": AT - 60, "v": 1}, {"t": AT + 3_600, "v": 2}]).encode()
    rows = [
        ("senml/1", good), ("array/1", array), ("array/2", b'[{"t": 1, "v": 1}, {"v": 2}]'),
        ("number/x", b"7"), ("senml/2", b"\xff\xff"),
    ]  # fmt: skip
    given = messages(spark, *(message(n, topic=topic, payload=data) for n, (topic, data) in enumerate(rows)))
    table = bronze(given)
    parsed = parse(table, rules).persist()
    refused = {row.topic: row.reason for row in quarantine_of(parsed, table.columns).collect()}
    assert refused.keys() == {"array/2", "senml/2"}, refused
    assert refused["array/2"] == "the time is missing"
    assert refused["senml/2"].startswith("no CBOR: ff ff")
    found = readings_of(parsed).orderBy("sequence", "at", "field").collect()
    parsed.unpersist()
    here = RECEIVED_AT.replace(tzinfo=None)
    read = [(row.sensor, row.field, row.value, row.unit, (row.at - here).total_seconds()) for row in found]
    assert read == [
        ("mast", "gust", 6.5, None, 0),
        ("mast", "wind", 3.5, "m/s", 0),
        ("array/1", "v", 1.0, "V", -60),
        ("array/1", "v", 2.0, "V", 0),  # Its clock was ahead.
        ("number/x", "value", 7.0, None, 0),
    ]
    assert [row.clamped is not None for row in found] == [False, False, False, True, False]
