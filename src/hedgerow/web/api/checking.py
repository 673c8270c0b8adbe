"""What came in, held against the JSON schema of its route.
 Of JSON Schema these words are known, and no route uses others: type, enum, minimum, maximum, minLength,
maxLength, pattern, items, maxItems, minItems, properties, required, additionalProperties. `check` returns
what is wrong in the words of whoever has to mend it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hedgerow.node.api import Schema

KNOWN_WORDS = {
    "type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "items", "maxItems",
    "minItems", "properties", "required", "additionalProperties", "description", "default", "format",
    "examples",
}  # fmt: skip

KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a text", lambda value: isinstance(value, str)),
    "integer": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "number": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "null": ("null", lambda value: value is None),
}
_SURROGATES = re.compile("[\ud800-\udfff]")


def check(value: Any, schema: Schema, where: str) -> str | None:
    """What is wrong with the value, which stands at `where`; None: nothing."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(KINDS[kind][1](value) for kind in kinds):
        return f"{where} is not {' or '.join(KINDS[kind][0] for kind in kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        return _check_text(value, schema, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _check_number(value, schema, where)
    if isinstance(value, list):
        return _check_list(value, schema, where)
    return _check_object(value, schema, where) if isinstance(value, dict) else None


def _check_text(value: str, schema: Schema, where: str) -> str | None:
    if _SURROGATES.search(value):
        return f"{where} holds half of a character"
    if len(value) < schema.get("minLength", 0):
        return f"{where} is empty" if not value else f"{where} is too short"
    most = schema.get("maxLength")
    if most is not None and len(value) > most:
        return f"{where} has more than {most} characters"
    pattern = schema.get("pattern")
    return f"{where} does not look like {pattern}" if pattern and not re.search(pattern, value) else None


def _check_number(value: float, schema: Schema, where: str) -> str | None:
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    return None if low <= value <= high else f"{where} is not from {low} to {high}"


def _check_list(value: list[Any], schema: Schema, where: str) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return f"{where} has {len(value)} items"
    found = (check(each, schema["items"], f"{where}[{at}]") for at, each in enumerate(value))
    return next((wrong for wrong in found if wrong is not None), None)


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> str | None:
    fields = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where} has no {name}"
    others = schema.get("additionalProperties", True)
    for name, each in value.items():
        if (wrong := _check_text(name, {}, f"a name in {where}")) is not None:
            return wrong
        wanted = fields.get(name, others)
        if wanted is False:
            return f"{where} has a field {name[:40]!r}, which is not known here"
        if isinstance(wanted, Mapping) and (wrong := check(each, wanted, f"{where}.{name}")) is not None:
            return wrong
    return None
