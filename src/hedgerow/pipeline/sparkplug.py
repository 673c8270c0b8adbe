"""Payloads of Sparkplug B: their Protocol Buffers, read with a schema that is written down here.

Of the schema (Eclipse Sparkplug 3.0, section 6.4.1) there is what readings need; other fields of a payload
are passed over, as Protocol Buffers have it. A metric without a name, of which only the birth certificate
says what its alias means, is called `alias-` and its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

PACKAGE = "hedgerow.sparkplug"
UNIT_KEYS = ("engUnit", "Engineering Units", "unit")
_FIELDS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "PropertyValue": (("type", 1, "uint32"), ("string_value", 8, "string")),
    "PropertySet": (("keys", 1, "string*"), ("values", 2, "PropertyValue*")),
    "Metric": (
        ("name", 1, "string"), ("alias", 2, "uint64"), ("timestamp", 3, "uint64"), ("datatype", 4, "uint32"),
        ("is_null", 7, "bool"), ("properties", 9, "PropertySet"), ("int_value", 10, "uint32"),
        ("long_value", 11, "uint64"), ("float_value", 12, "float"), ("double_value", 13, "double"),
        ("boolean_value", 14, "bool"), ("string_value", 15, "string"),
    ),
    "Payload": (("timestamp", 1, "uint64"), ("metrics", 2, "Metric*")),
}  # fmt: skip
_VALUES = ("int_value", "long_value", "float_value", "double_value", "boolean_value", "string_value")
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}
"""Data types whose bits are those of a signed number, which the schema has as an unsigned one."""


class SparkplugMetric(NamedTuple):
    name: str
    value: float | str | bool | None
    unit: str | None
    at_ms: int | None


def read_sparkplug(payload: bytes) -> Iterator[SparkplugMetric]:
    """ValueError: it is none."""
    from google.protobuf.message import DecodeError

    message = _payload_class()()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    at_ms = message.timestamp if message.HasField("timestamp") else None
    for metric in message.metrics:
        name = metric.name or (f"alias-{metric.alias}" if metric.HasField("alias") else "")
        own_at_ms = metric.timestamp if metric.HasField("timestamp") else at_ms
        yield SparkplugMetric(name, _value(metric), _unit(metric), own_at_ms)


def _value(metric: Any) -> float | str | bool | None:
    """None: it is null, or of a kind that is no reading, such as a file or a table."""
    found = next((name for name in _VALUES if metric.HasField(name)), None)
    if found is None or metric.is_null:
        return None
    value: float | str | bool = getattr(metric, found)
    bits = _SIGNED.get(metric.datatype)
    if bits is not None and isinstance(value, int) and not isinstance(value, bool):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value


def _unit(metric: Any) -> str | None:
    properties = dict(zip(metric.properties.keys, metric.properties.values, strict=False))
    return next((properties[key].string_value or None for key in UNIT_KEYS if key in properties), None)


@cache
def _payload_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="hedgerow_sparkplug.proto", package=PACKAGE, syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            of = kind.removesuffix("*")
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if of in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{of}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{of.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Payload"))
