"""What the value of an option may be, for argparse's `type`: numbers, durations, what is read elsewhere too.

Each says of whatever it cannot take what it takes; `cli.parsing` says which option that was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hedgerow.client.urls import BROKER_SCHEMES, parse_url
from hedgerow.errors import ConfigError, TopicError
from hedgerow.node.values import INFINITE, Read, duration_within, in_range
from hedgerow.topics import validate_filter, validate_name


def whole(low: int, high: float = INFINITE) -> Callable[[str], int]:
    def read(text: str) -> int:
        with suppress(ValueError):
            if low <= int(text) <= high:
                return int(text)
        raise ConfigError(f'"{text}" is not a whole number {in_range(low, high)}')

    return read


def real(low: float, high: float = INFINITE) -> Callable[[str], float]:
    return _number(low, high, in_range(low, high))


def positive(high: float = INFINITE) -> Callable[[str], float]:
    """More than 0."""
    at_most = "" if high == INFINITE else f", {high:.15g} at most"
    return _number(sys.float_info.min, high, f"above 0{at_most}")


def _number(low: float, high: float, allowed: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= float(text) <= high and float(text) < INFINITE:
                return float(text)
        raise ConfigError(f'"{text}" is not a number {allowed}')

    return read


def duration(low: float, high: float) -> Callable[[str], float]:
    """In seconds, and written as such or with a unit."""

    def read(text: str) -> float:
        return duration_within(text, low, high)

    return read


def by(read: Read) -> Callable[[str], Any]:
    """As a key of the configuration has it (`net.values`); paths begin where the command was typed."""

    def read_text(text: str) -> Any:
        return read(text, Path())

    return read_text


def url(text: str) -> str:
    """Of a broker, or of multicast."""
    parse_url(text)
    return text


def broker_url(text: str) -> str:
    """Of a broker, at which there is a session. The command says what it needs that for."""
    parse_url(text, BROKER_SCHEMES)
    return text


def topic_name(text: str) -> str:
    return _valid(validate_name, text)


def topic_filter(text: str) -> str:
    return _valid(validate_filter, text)


def _valid(validate: Callable[[str], str], text: str) -> str:
    try:
        return validate(text)
    except TopicError as error:
        raise ConfigError(str(error)) from None
