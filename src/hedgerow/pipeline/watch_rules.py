"""What stands out, for which sensors: the `[[anomaly]]` tables of the rules, and what units say.

    [[anomaly]]
    sensor = "farm/+/mast"     # as a topic filter; default all
    field = "direction"        # default all
    circular = 360
    stuck = { readings = 30, time = "2h" }
    silence = false

The first whose sensor and field match counts. What it does not say is as the unit has it, and else as
`WatchSettings` has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hedgerow.pipeline.rule_tables import RuleTable
from hedgerow.pipeline.watch import MAX_PENDING, WatchSettings
from hedgerow.topics import matches

MAX_WATCH_RULES = 200
_LONGEST_S = 366 * 86_400.0
_MOST_READINGS = 1_000_000
_KEYS = (
    "sensor", "field", "min", "max", "circular", "rests", "learn", "memory", "stuck", "spike", "pattern",
    "silence",
)  # fmt: skip
_DEFAULTS = {each.name: each.default for each in fields(WatchSettings)}

# Beyond these there is no weather, no room and no machine that a field sensor measures.
_TURN = {"minimum": 0.0, "maximum": 360.0, "circular": 360.0}
OF_UNIT: Mapping[str, Mapping[str, Any]] = {
    "°C": {"minimum": -90.0, "maximum": 150.0},
    "°F": {"minimum": -130.0, "maximum": 302.0},
    "K": {"minimum": 0.0},
    "%": {"minimum": 0.0, "maximum": 100.0},
    "m/s": {"minimum": 0.0, "maximum": 120.0},
    "km/h": {"minimum": 0.0, "maximum": 432.0},
    "mm": {"minimum": 0.0},
    "lx": {"minimum": 0.0, "maximum": 200_000.0},
    "hPa": {"minimum": 300.0, "maximum": 1_100.0},
    "°": _TURN,
    "deg": _TURN,
}


@dataclass(frozen=True, slots=True)
class WatchRule:
    sensor: str = "#"
    field: str | None = None
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of `WatchSettings`."""

    def matches(self, sensor: str, name: str) -> bool:
        return self.field in (None, name) and (self.sensor == "#" or matches(self.sensor, sensor))


def settings_for(rules: tuple[WatchRule, ...], sensor: str, name: str, unit: str | None) -> WatchSettings:
    rule = next((rule for rule in rules if rule.matches(sensor, name)), WatchRule())
    given = dict(OF_UNIT.get(unit or "", {}))
    if "circular" in rule.given:  # A turn of another size has other ends.
        given = {}
    return replace(WatchSettings(), **{**given, **rule.given})


def read_watch_rules(whole: RuleTable) -> tuple[WatchRule, ...]:
    """Those of the file. ConfigError: what is wrong, with number and key."""
    given = whole.table.get("anomaly", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        whole.refuse("anomaly", "is not a list of tables: write [[anomaly]] above each")
    if len(given) > MAX_WATCH_RULES:
        whole.refuse("anomaly", f"has {len(given)} tables; at most {MAX_WATCH_RULES} may be")
    return tuple(_read(RuleTable(f"{whole.place}: anomaly {n}", one)) for n, one in enumerate(given, 1))


def _read(table: RuleTable) -> WatchRule:
    table.check_keys(_KEYS)
    found: dict[str, Any] = {}
    minimum, maximum = table.number("min"), table.number("max")
    if minimum is not None and maximum is not None and minimum > maximum:
        table.refuse("min", f"is greater than max: {minimum:g} > {maximum:g}")
    found |= {
        name: value for name, value in (("minimum", minimum), ("maximum", maximum)) if value is not None
    }
    if "circular" in table.table:
        found["circular"] = table.number_within("circular", 1e-9, 1e9, 0)
    if "rests" in table.table:
        found["rests"] = table.numbers("rests")
    if "learn" in table.table:
        found["learn_readings"] = round(table.number_within("learn", 10, _MOST_READINGS, 0))
    for key in ("memory", "stuck", "spike", "pattern", "silence"):
        if key in table.table:
            found |= _read_kind(table, key)
    sensor = table.topic_filter("sensor", table.string("sensor", "#"))
    return WatchRule(sensor, table.string("field", "") or None, found)


def _read_kind(table: RuleTable, key: str) -> dict[str, Any]:
    """`false`, or a table with some of `factor`, `readings` and `time`."""
    prefix = "unusual" if key == "pattern" else key
    if table.table[key] is False and key != "memory":
        return {f"is_{prefix}_told": False}
    kind = table.part(key)
    ranges = {
        "factor": (1.0, 1e6),
        "readings": (1, MAX_PENDING if key == "spike" else _MOST_READINGS),
        "time": (1.0, _LONGEST_S),
    }
    names = {word: f"{prefix}_{'s' if word == 'time' else word}" for word in ranges}
    kind.check_keys(tuple(word for word, name in names.items() if name in _DEFAULTS))
    found: dict[str, Any] = {}
    for word in kind.table:
        low, high = ranges[word]
        read = kind.seconds if word == "time" else kind.number_within
        value = read(word, low, high, 0)
        found[names[word]] = round(value) if word == "readings" else value
    return found
