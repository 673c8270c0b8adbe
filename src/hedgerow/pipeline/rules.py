"""The table that says how payloads are read: which topics have which format, fields, units and limits.

It is a TOML file. The first `[[reading]]` whose filter matches a topic is the one that counts; topics of
`[ignore]` are left out on purpose. Every key is checked when the file is read, so that a slip of the pen
stops the pipeline at its start, and is never a table full of nulls.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError
from hedgerow.pipeline.rule_tables import RuleTable
from hedgerow.pipeline.watch_rules import WatchRule, read_watch_rules

FARM = Path(__file__).with_name("farm.toml")
FORMATS = ("json", "csv", "number", "text", "cbor", "senml", "sparkplug")
WITH_PATHS = ("json", "cbor")
WITH_NAMES = ("senml", "sparkplug")
"""Their payloads say what each value is called, when it was measured, and of SenML by whom."""
TYPES = ("number", "text", "boolean")
TIME_UNITS = ("s", "ms", "us", "iso")
MAX_RULES = 200  # Each is a branch of the query that Spark compiles.
MAX_FIELDS = 100  # of a rule
MAX_LEVELS = 200  # of a topic that "#" matches
MAX_PAYLOAD_BYTES = 65_536
LARGEST_PAYLOAD_BYTES = 16 * 1024 * 1024

_TABLE_KEYS = ("reading", "ignore", "anomaly")
_IGNORE_KEYS = ("filters",)
_RULE_KEYS = (
    "name", "filter", "format", "fields", "field", "type", "unit", "min", "max", "time", "sensor", "columns",
    "delimiter", "max_bytes", "each",
)  # fmt: skip
_FIELD_KEYS = ("path", "type", "unit", "min", "max", "optional")
_TIME_KEYS = ("path", "unit")
_PATH = re.compile(r"([^.\[\]'\"]+|\[[0-9]{1,9}\])(\.[^.\[\]'\"]+|\[[0-9]{1,9}\])*")


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a payload."""

    name: str | int
    """A number is a level of the topic, from 1."""
    path: str | None
    """JSON path, name of a CSV column, or the name before `=`; None: the payload is the value."""
    type: str = "number"
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Time:
    """Where a payload says when it was measured."""

    path: str
    unit: str


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    filter: str
    format: str
    fields: tuple[Field, ...]
    sensor: tuple[int, ...] | str = ()
    """Levels of the topic, from 1, or a path; (): the topic."""
    time: Time | None = None
    """None: published_at, or received_at where it is missing."""
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    max_bytes: int = MAX_PAYLOAD_BYTES
    each: str | None = None
    """The path of an array, whose elements are records; "": the payload is that array."""

    @property
    def has_records(self) -> bool:
        """Or is it read with Spark's own functions?"""
        return self.each is not None or self.format in ("cbor", *WITH_NAMES)

    @property
    def is_binary(self) -> bool:
        return self.format in ("cbor", *WITH_NAMES)


@dataclass(frozen=True, slots=True)
class Rules:
    readings: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()
    quarantines_unmatched: bool = True
    """What no rule matches is copied into quarantine. Of the farm's own table it is not: who gave no rules
    has not said that all topics ought to have one."""
    watches: tuple[WatchRule, ...] = ()
    """What stands out, of which sensors."""


def load_rules(path: Path | None = None) -> Rules:
    """Without a path, those of the farm. ConfigError: what is wrong, with file and line."""
    if path is None:
        return replace(load_rules(FARM), quarantines_unmatched=False)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the rules cannot be read: {error}") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, source: str = "rules") -> Rules:
    """ConfigError: what is wrong, with line and key."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: {error}") from error
    whole = RuleTable(source, table)
    whole.check_keys(_TABLE_KEYS)
    ignore = whole.part("ignore")
    ignore.check_keys(_IGNORE_KEYS)
    ignored = tuple(ignore.topic_filter("filters", one) for one in ignore.strings("filters"))
    given = table.get("reading", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        whole.refuse("reading", "is not a list of tables: write [[reading]] above each")
    if not given:
        whole.refuse("reading", "is missing: the file has no rule")
    if len(given) > MAX_RULES:
        whole.refuse("reading", f"has {len(given)} rules; at most {MAX_RULES} may be")
    places = _places(text, source, len(given))
    rules = tuple(_rule(RuleTable(place, one)) for place, one in zip(places, given, strict=True))
    names = [rule.name for rule in rules]
    for place, rule in zip(places, rules, strict=True):
        if names.count(rule.name) > 1:
            raise ConfigError(
                f"{place}: the name {rule.name!r} is given twice: give each rule a name of its own"
            )
    return Rules(rules, ignored, watches=read_watch_rules(whole))


def _places(text: str, source: str, count: int) -> list[str]:
    """Where each rule begins, as people look for it."""
    heads = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*\[\[\s*reading\s*\]\]", line)
    ]
    if len(heads) != count:  # written as an inline array, or inside of a string
        return [f"{source}: reading {number}" for number in range(1, count + 1)]
    return [f"{source}, line {line}: reading {number}" for number, line in enumerate(heads, 1)]


def _rule(part: RuleTable) -> Rule:
    part.check_keys(_RULE_KEYS)
    topic_filter = part.topic_filter("filter", part.string("filter"))
    kind = part.choice("format", FORMATS)
    columns = _columns(part, kind)
    each = _each(part, kind)
    check_path = partial(_check_path, kind=kind, columns=columns, has_root=each is not None)
    fields = _fields(part, kind, check_path)
    for one in fields:
        _check_level(part, "field", one.name, topic_filter)
    delimiter = part.string("delimiter", ",")
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        part.refuse("delimiter", f"{delimiter!r} is not one ASCII character, or ends a text or a line")
    max_bytes = part.table.get("max_bytes", MAX_PAYLOAD_BYTES)
    if type(max_bytes) is not int or not 0 < max_bytes <= LARGEST_PAYLOAD_BYTES:
        part.refuse("max_bytes", f"is not a number from 1 to {LARGEST_PAYLOAD_BYTES}")
    sensor = _sensor(part, kind, topic_filter, check_path)
    name, time = part.string("name", topic_filter), _time(part, kind, check_path)
    return Rule(name, topic_filter, kind, fields, sensor, time, columns, delimiter, max_bytes, each)


def _each(part: RuleTable, kind: str) -> str | None:
    if "each" not in part.table:
        return None
    path = part.string("each", "")
    if kind not in WITH_PATHS:
        part.refuse("each", f"is for the formats {' and '.join(WITH_PATHS)}")
    if path and _PATH.fullmatch(path) is None:
        part.refuse("each", f"{path!r} is no path: write a.b, or '' where the payload is the array")
    return path


def _columns(part: RuleTable, kind: str) -> tuple[str, ...]:
    if kind != "csv":
        for key in ("columns", "delimiter"):
            if key in part.table:
                part.refuse(key, "is for the format csv")
        return ()
    columns = tuple(part.strings("columns"))
    if not columns:
        part.refuse("columns", "is missing: name the columns in order, and '' what is of no use")
    named = [name for name in columns if name]
    if len(set(named)) != len(named):
        part.refuse("columns", "names a column twice")
    if len(columns) > MAX_FIELDS:
        part.refuse("columns", f"has more than {MAX_FIELDS} names")
    return columns


def _fields(part: RuleTable, kind: str, check_path: Any) -> tuple[Field, ...]:
    """Several by name, or the one that the payload is."""
    if "fields" not in part.table:
        if kind in WITH_NAMES:
            return ()
        if kind in (*WITH_PATHS, "csv"):
            part.refuse("fields", f"is missing: what of the {kind} is to be read?")
        name = part.table.get("field", "value")
        if type(name) is not int and (not isinstance(name, str) or not name):
            part.refuse("field", "is neither a name nor the number of a topic's level")
        return (_field(part, name, None, "number" if kind == "number" else None),)
    if kind == "number":
        part.refuse("fields", "is not for the format number: the payload is the value")
    for key in ("field", "type", "unit", "min", "max"):
        if key in part.table:
            part.refuse(key, "is given beside fields: write it in each field")
    fields = part.part("fields")
    if not fields.table:
        fields.refuse("", "is empty")
    if len(fields.table) > MAX_FIELDS:
        fields.refuse("", f"has more than {MAX_FIELDS} fields")
    found = []
    for name in fields.table:
        one = fields.part(name)
        one.check_keys(_FIELD_KEYS)
        path = one.string("path", name)
        check_path(one, "path", path)
        found.append(_field(one, name, path, None))
    return tuple(found)


def _field(part: RuleTable, name: str | int, path: str | None, only: str | None) -> Field:
    type_ = part.choice("type", TYPES if only is None else (only,), "number")
    minimum, maximum = part.number("min"), part.number("max")
    if type_ != "number":
        for key in ("unit", "min", "max"):
            if key in part.table:
                part.refuse(key, f"is for numbers, and the type is {type_}")
    if minimum is not None and maximum is not None and minimum > maximum:
        part.refuse("min", f"is greater than max: {minimum:g} > {maximum:g}")
    optional = part.table.get("optional", False)
    if not isinstance(optional, bool):
        part.refuse("optional", "is neither true nor false")
    unit = part.string("unit", "") or None
    return Field(name, path, type_, unit, minimum, maximum, optional)


def _time(part: RuleTable, kind: str, check_path: Any) -> Time | None:
    if "time" not in part.table:
        return None
    if kind in WITH_NAMES:
        part.refuse("time", f"is not for the format {kind}, which has times of its own")
    time = part.part("time")
    time.check_keys(_TIME_KEYS)
    path = time.string("path")
    if kind == "number" or "fields" not in part.table:
        time.refuse("path", "the payload is one value: it has no place for a time")
    check_path(time, "path", path)
    return Time(path, time.choice("unit", TIME_UNITS))


def _sensor(part: RuleTable, kind: str, topic_filter: str, check_path: Any) -> tuple[int, ...] | str:
    given = part.table.get("sensor", [])
    if isinstance(given, str):
        if kind in WITH_NAMES:
            part.refuse("sensor", f"is a path, and {kind} has none: give the levels of the topic")
        if kind == "number" or "fields" not in part.table:
            part.refuse("sensor", "is a path, and the payload is one value: give the levels of the topic")
        check_path(part, "sensor", given)
        return given
    if not isinstance(given, list) or any(type(level) is not int for level in given):
        part.refuse("sensor", "is neither a list of the topic's levels, from 1, nor a path")
    for level in given:
        _check_level(part, "sensor", level, topic_filter)
    return tuple(given)


def _check_level(part: RuleTable, key: str, level: str | int, topic_filter: str) -> None:
    if isinstance(level, str):
        return
    levels = topic_filter.split("/")
    # A topic that "#" matches may end above that level.
    most = MAX_LEVELS if levels[-1] == "#" else len(levels)
    if not 1 <= level <= most:
        part.refuse(key, f"{level} is no level of {topic_filter!r}: they count from 1 to {most}")


def _check_path(
    part: RuleTable, key: str, path: str, *, kind: str, columns: tuple[str, ...], has_root: bool
) -> None:
    if kind == "csv" and path not in columns:
        nearest = difflib.get_close_matches(path, columns, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        part.refuse(key, f"columns has no {path!r}{hint}")
    if has_root:
        path = path.removeprefix("$.")
    if kind in WITH_PATHS and _PATH.fullmatch(path) is None:
        part.refuse(key, f"{path!r} is no path: write a.b, or a.list[0].b")
    if kind == "text" and re.fullmatch(r"[^\s=,;]+", path) is None:
        part.refuse(key, f"{path!r} is no name that can stand before '='")
