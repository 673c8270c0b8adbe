"""A table of the rules' file, and how to speak of what is wrong in it."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from hedgerow.errors import ConfigError, TopicError
from hedgerow.topics import split_shared, validate_filter

LARGEST_NUMBER = sys.float_info.max
_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(s|min|h|d)")


class RuleTable:
    """A table of the file, and how to speak of it."""

    def __init__(self, place: str, table: Mapping[str, Any], above: str = "") -> None:
        self.table = table
        self.place = place
        self._above = above

    def refuse(self, key: str, what: str) -> NoReturn:
        raise ConfigError(f"{self.place}: {'.'.join(filter(None, (self._above, key)))} {what}")

    def check_keys(self, known: tuple[str, ...]) -> None:
        for key in self.table:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
                self.refuse(key, f"is no key here; {hint}")

    def part(self, key: str) -> RuleTable:
        table = self.table.get(key, {})
        if not isinstance(table, dict):
            self.refuse(key, "is not a table")
        return RuleTable(self.place, table, ".".join(filter(None, (self._above, key))))

    def string(self, key: str, default: str | None = None) -> str:
        value = self.table.get(key, default)
        if value is None:
            self.refuse(key, "is missing")
        if not isinstance(value, str) or (not value and default is None):
            self.refuse(key, "is not a text")
        return value

    def strings(self, key: str) -> list[str]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.refuse(key, "is not a list of texts")
        return value

    def choice(self, key: str, words: tuple[str, ...], default: str | None = None) -> str:
        value = self.string(key, default)
        if value not in words:
            nearest = difflib.get_close_matches(value, words, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            self.refuse(key, f"is {value!r}, not one of {', '.join(words)}{hint}")
        return value

    def number(self, key: str) -> float | None:
        value = self.table.get(key)
        if value is None:
            return None
        # An integer of TOML may have any number of digits.
        if type(value) not in (int, float) or not abs(value) <= LARGEST_NUMBER:
            self.refuse(key, "is not a number")
        return float(value)

    def topic_filter(self, key: str, value: str) -> str:
        try:
            if split_shared(value)[0] is not None:
                self.refuse(key, f"is {value!r}, a shared subscription: name the filter alone")
            return validate_filter(value)
        except TopicError as error:
            self.refuse(key, f"is no topic filter: {error}")

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self.table.get(key, [])
        if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
            self.refuse(key, "is not a list of numbers")
        return tuple(map(float, values))

    def number_within(self, key: str, low: float, high: float, default: float) -> float:
        value = self.number(key)
        if value is not None and not low <= value <= high:
            self.refuse(key, f"is {value:g}, not from {low:g} to {high:g}")
        return default if value is None else value

    def seconds(self, key: str, low: float, high: float, default: float) -> float:
        """A number, or a text such as `20min`."""
        value = self.table.get(key)
        if not isinstance(value, str):
            return self.number_within(key, low, high, default)
        found = _DURATION.fullmatch(value)
        if found is None:
            self.refuse(key, f"{value!r} is no time: write 90, 90s, 20min, 3h or 2d")
        seconds = float(found[1]) * _UNITS_S[found[2]]
        if not low <= seconds <= high:
            self.refuse(key, f"is {value}, not from {low:g} s to {high:g} s")
        return seconds
