"""Payloads that hold several records, or are no text: CBOR, SenML, Sparkplug B, and arrays in JSON.

Plain Python, for what Spark's own functions cannot read (`payloads`). Each record becomes cells, with a
sensor and a time of their own. As with other formats a message can be read as a whole or not at all: what is
wrong with one record is wrong with the message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

from hedgerow.pipeline.rules import Field, Rule
from hedgerow.pipeline.sparkplug import read_sparkplug

MAX_AHEAD_US = 86_400 * 1_000_000
"""A record's time may be so much after the reception."""
MAX_SHOWN = 40  # characters of a payload in a reason
MAX_RECORDS = 10_000  # of a message
ROOT = "$."
"""What begins so is found in the whole payload, and not in the record."""
_SECOND = 1_000_000
_UNITS_US = {"s": _SECOND, "ms": 1_000, "us": 1}
_LATEST_US = 253_402_300_799 * _SECOND
_STEPS = re.compile(r"[^.\[\]]+|\[[0-9]+\]")
_SPARKPLUG_LEVELS = (2, 4, 5)  # spBv1.0/GROUP/KIND/NODE/DEVICE
# RFC 8428, sections 4.6 and 6: a smaller time is relative to now; what CBOR has numbers for.
_RELATIVE_S = 2**28
_SENML_LABELS = {
    -2: "bn", -3: "bt", -4: "bu", -5: "bv", 0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb", 6: "t",
}  # fmt: skip


class RecordError(ValueError):
    """Why the message cannot be read."""


class Reception(NamedTuple):
    """Of the message. Times are microseconds since 1970."""

    topic: str
    own_at: int
    """Of publication, or of reception where that is not known."""
    received_at: int


class RecordCell(NamedTuple):
    sensor: str
    at: int
    field: str
    value: float | None
    text: str | None
    unit: str | None


class _Named(NamedTuple):
    """A value with a name, as SenML and Sparkplug have them."""

    sensor: str
    at: int
    name: str
    value: Any
    unit: str | None


def read_records(rule: Rule, payload: bytes, reception: Reception) -> list[RecordCell]:
    """RecordError: why it cannot be read."""
    try:
        if rule.format == "senml":
            cells = _of_named(rule, _senml(rule, payload, reception))
        elif rule.format == "sparkplug":
            cells = _of_named(rule, _sparkplug(rule, payload, reception))
        else:
            cells = _of_elements(rule, payload, reception)
    except RecursionError as error:
        raise RecordError("nested too deeply") from error
    if not cells:
        raise RecordError("none of the fields is there")
    return cells


def _document(kind: str, payload: bytes) -> Any:
    if kind == "json":
        try:
            return json.loads(payload, parse_constant=_refuse_constant)
        except ValueError as error:
            raise RecordError(f"no JSON: {_shown(payload.decode(errors='replace'))}") from error
    import cbor2

    stream = BytesIO(payload)
    try:
        document = cbor2.load(stream)
    except (cbor2.CBORError, ValueError, TypeError, EOFError, OverflowError, MemoryError) as error:
        raise RecordError(f"no CBOR: {payload[:8].hex(' ')} …") from error
    if stream.read(1):
        raise RecordError("something comes after the CBOR")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


# Elements, whose fields have paths


def _of_elements(rule: Rule, payload: bytes, reception: Reception) -> list[RecordCell]:
    document = _document(rule.format, payload)
    elements = [document]
    if rule.each is not None:
        elements = _find(document, rule.each)
        if not isinstance(elements, list):
            raise RecordError(f"{rule.each or 'the payload'} is no array")
        _check_count(elements)
    return [cell for element in elements for cell in _of_element(rule, document, element, reception)]


def _of_element(rule: Rule, document: Any, element: Any, reception: Reception) -> Iterator[RecordCell]:
    def find(path: str) -> Any:
        return _find(document, path.removeprefix(ROOT)) if path.startswith(ROOT) else _find(element, path)

    sensor = _sensor(rule, reception.topic, find)
    at = reception.own_at
    if rule.time is not None:
        at = _checked_time(_time(find(rule.time.path), rule.time.unit), reception)
    for field in rule.fields:
        name = _field_name(field, reception.topic)
        value = find(field.path or "")
        if value is None:
            if not field.optional:
                raise RecordError(f"{name} is missing")
            continue
        yield _cell(field, name, value, None, sensor, at)


def _find(document: Any, path: str) -> Any:
    """None: it is not there."""
    for step in _STEPS.findall(path):
        if step[0] == "[":
            place = int(step[1:-1])
            document = document[place] if isinstance(document, list) and place < len(document) else None
        elif isinstance(document, dict):
            # Keys of CBOR may be numbers.
            document = document.get(step, document.get(int(step)) if step.isdecimal() else None)
        else:
            return None
    return document


def _sensor(rule: Rule, topic: str, find: Any) -> str:
    if isinstance(rule.sensor, str):
        found = find(rule.sensor)
        if found is None or isinstance(found, dict | list | bytes):
            raise RecordError("the sensor's name is missing")
        return str(found)
    return _of_levels(rule.sensor, topic) or topic


def _of_levels(wanted: Iterable[int], topic: str) -> str:
    levels = topic.split("/")
    return "/".join(levels[level - 1] for level in wanted if level <= len(levels))


def _field_name(field: Field, topic: str) -> str:
    return field.name if isinstance(field.name, str) else _of_levels((field.name,), topic)


def _time(found: Any, unit: str) -> int:
    if found is None:
        raise RecordError("the time is missing")
    if isinstance(found, datetime):  # CBOR has a kind for it.
        return round(found.timestamp() * _SECOND)
    try:
        if unit == "iso":
            time = datetime.fromisoformat(found)
            return round(time.timestamp() * _SECOND) if time.tzinfo else _utc(time)
        if isinstance(found, bool | str):
            raise TypeError
        return round(float(found) * _UNITS_US[unit])
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"the time is {_shown(found)}, not one in {unit}") from error


def _utc(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1)).total_seconds() * _SECOND)  # noqa: DTZ001 - both are naive


def _checked_time(at: int, reception: Reception) -> int:
    if not 0 <= at <= _LATEST_US:
        raise RecordError("the time is before 1970" if at < 0 else "the time is after the year 9999")
    if at > reception.received_at + MAX_AHEAD_US:
        raise RecordError("the time is in the future when it was received")
    return at


# Values that have names of their own


def _of_named(rule: Rule, values: Iterator[_Named]) -> list[RecordCell]:
    """Those that the rule names, or all."""
    fields = {field.path: field for field in rule.fields}
    cells, seen = [], set()
    for each in values:
        field = fields.get(each.name, None if fields else Field(each.name, each.name, _type_of(each.value)))
        if field is None or each.value is None:
            continue
        seen.add(each.name)
        cells.append(_cell(field, str(field.name), each.value, each.unit, each.sensor, each.at))
    for name, field in fields.items():
        if name not in seen and not field.optional:
            raise RecordError(f"{field.name} is missing")
    return cells


def _type_of(value: Any) -> str:
    return {bool: "boolean", str: "text"}.get(type(value), "number")


def _senml(rule: Rule, payload: bytes, reception: Reception) -> Iterator[_Named]:
    """RFC 8428: records, in which what begins with b holds for those after it."""
    is_json = payload.lstrip()[:1] == b"["
    records = _document("json" if is_json else "cbor", payload)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise RecordError("no SenML: it is no array of records")
    _check_count(records)
    base: dict[str, Any] = {}
    for record in records:
        named = {_SENML_LABELS.get(key, key): value for key, value in record.items()}
        base |= {key: value for key, value in named.items() if key in ("bn", "bt", "bu", "bv")}
        value = next((named[key] for key in ("v", "vs", "vb") if key in named), None)
        if value is None:
            continue
        if "v" in named:
            value = _number(value, "v") + _number(base.get("bv", 0), "bv")
        sensor, name = _senml_name(str(base.get("bn", "")), str(named.get("n", "")))
        if not isinstance(rule.sensor, str) and rule.sensor:
            sensor = _of_levels(rule.sensor, reception.topic)
        seconds = _number(base.get("bt", 0), "bt") + _number(named.get("t", 0), "t")
        at = round(seconds * _SECOND) + (reception.own_at if seconds < _RELATIVE_S else 0)
        unit = named.get("u", base.get("bu"))
        yield _Named(sensor or reception.topic, _checked_time(at, reception), name, value, unit)


def _senml_name(base: str, name: str) -> tuple[str, str]:
    """Whose it is, and what."""
    if base and name:
        return base.rstrip(":/_-."), name
    whole = base + name
    place = max(whole.rfind(":"), whole.rfind("/"))
    return (whole[:place], whole[place + 1 :]) if 0 < place < len(whole) - 1 else (whole, "value")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise RecordError(f"{name} is {_shown(value)}, not a number")
    return float(value)


def _sparkplug(rule: Rule, payload: bytes, reception: Reception) -> Iterator[_Named]:
    levels = rule.sensor if not isinstance(rule.sensor, str) and rule.sensor else _SPARKPLUG_LEVELS
    sensor = _of_levels(levels, reception.topic) or reception.topic
    try:
        metrics = list(read_sparkplug(payload))
    except ValueError as error:
        raise RecordError(f"no Sparkplug B: {error}") from error
    _check_count(metrics)
    for metric in metrics:
        at = reception.own_at if metric.at_ms is None else _checked_time(metric.at_ms * 1_000, reception)
        yield _Named(sensor, at, metric.name or "value", metric.value, metric.unit)


# What they have to be


def _cell(field: Field, name: str, value: Any, unit: str | None, sensor: str, at: int) -> RecordCell:
    if not name:
        raise RecordError("the topic has no level that names the field")
    if field.type == "text":
        if not isinstance(value, str):
            raise RecordError(f"{name} is {_shown(value)}, not a text")
        return RecordCell(sensor, at, name, None, value, None)
    if field.type == "boolean":
        if not isinstance(value, bool):
            raise RecordError(f"{name} is {_shown(value)}, not a boolean")
        return RecordCell(sensor, at, name, float(value), None, None)
    number = _number(value, name)
    if not math.isfinite(number):
        raise RecordError(f"{name} is {_shown(value)}, which is not finite")
    if field.minimum is not None and number < field.minimum:
        raise RecordError(f"{name} is {_shown(value)}, below {field.minimum}")
    if field.maximum is not None and number > field.maximum:
        raise RecordError(f"{name} is {_shown(value)}, above {field.maximum}")
    if unit and field.unit and unit != field.unit:
        raise RecordError(f"{name} is {_shown(value)} {unit}, not in {field.unit}")
    return RecordCell(sensor, at, name, number, None, field.unit or unit)


def _check_count(records: list[Any]) -> None:
    if len(records) > MAX_RECORDS:
        raise RecordError(f"{len(records)} records, more than {MAX_RECORDS}")


def _shown(value: Any) -> str:
    return repr(str(value)[:MAX_SHOWN])
