"""The readings that the demo replays: `readings.csv`, a made-up day at a station, by quarters of an hour.

Each place begins at another hour of the day, and begins again when the day is over.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("readings.csv")
UNITS = {"temperature": "°C", "humidity": "%", "wind": "m/s", "load": "%", "fuel": "%"}
WEATHER = ("temperature", "humidity", "wind")
LINES_APART = 16

Reading = dict[str, float]


@cache
def day() -> tuple[Reading, ...]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple({name: float(line[name]) for name in UNITS} for line in csv.DictReader(file))


def replay(offset: int) -> Iterator[Reading]:
    """Without end; `offset` is the number of the place."""
    lines = day()
    number = offset * LINES_APART
    while True:
        yield lines[number % len(lines)]
        number += 1


def as_text(reading: Reading, name: str) -> str:
    return f"{reading[name]:.1f} {UNITS[name]}"


def as_station(reading: Reading, number: int, at: float) -> str:
    """All of the weather, with the station's own time and number."""
    return json.dumps({"number": number, "time": round(at, 3)} | {name: reading[name] for name in WEATHER})
