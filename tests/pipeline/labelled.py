"""A month of twenty sensors at a reading every two minutes, with faults whose places are known.

Temperature, humidity, light and battery have a pattern of the day beside their weather, wind has gusts and
calms, and its direction is circular. Light rests at 0 all night, the battery rests at each of its steps.
Readings jitter, and one of two hundred is missing. From the third day on each sensor gets faults of the six
kinds, of which one begins at least six hours after another has ended.

What is planted is what a person sees in a chart: a spike is beyond any weather, and nothing is made to stick
where the sensor rests anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP_S = 120
DAYS = 30
COUNT = DAYS * 86_400 // STEP_S
LEARNED = 2 * 86_400 // STEP_S  # readings before the first fault
APART = 6 * 3_600 // STEP_S
BEGAN_AT = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
FAULTS = ("stuck", "spike", "impossible", "silence", "offset", "noise")
EACH = 2
"""Faults of each kind and sensor."""

Numbers = NDArray[np.float64]


class Fault(NamedTuple):
    kind: str
    start_at: int
    end_at: int
    """Microseconds since 1970: those of its first and its last reading, or of those around a silence."""


class Labelled(NamedTuple):
    sensor: str
    field: str
    unit: str
    at: NDArray[np.int64]
    values: Numbers
    faults: list[Fault]


class Quantity(NamedTuple):
    sensors: int
    unit: str
    make: Callable[[np.random.Generator, Numbers], Numbers]
    spike: tuple[float, float]
    """How far away, from and to."""
    noise: float
    impossible: tuple[float, ...]
    step: float
    """Its values are multiples of this."""
    least: float = -np.inf
    most: float = np.inf


def labelled_set(seed: int) -> list[Labelled]:
    chance = np.random.default_rng(seed)
    return [
        _sensor(chance, name, quantity, number)
        for name, quantity in QUANTITIES.items()
        for number in range(quantity.sensors)
    ]


def readings(sensors: list[Labelled]) -> Iterator[tuple[str, str, int, float]]:
    """All of them in the order of time, as they come."""
    whole = [
        (at, each.sensor, each.field, value)
        for each in sensors
        for at, value in zip(each.at.tolist(), each.values.tolist(), strict=True)
    ]
    for at, sensor, field, value in sorted(whole):
        yield sensor, field, at, value


def _sensor(chance: np.random.Generator, name: str, quantity: Quantity, number: int) -> Labelled:
    days = np.arange(COUNT) * STEP_S / 86_400
    sound = quantity.make(chance, days)
    sound = np.clip(np.round(sound / quantity.step) * quantity.step, quantity.least, quantity.most)
    at = np.round((BEGAN_AT + np.arange(COUNT) * STEP_S + chance.uniform(0, 4, COUNT)) * 1e6).astype(np.int64)
    is_there = chance.random(COUNT) > 1 / 200
    values, faults = sound.copy(), []
    for kind, place in zip(*_places(chance), strict=True):
        begin, end = _plant(chance, kind, place, values, is_there, quantity)
        faults.append(Fault(kind, int(at[begin]), int(at[end])))
        is_there[[begin, end]] = True
    values = np.round(values / quantity.step) * quantity.step
    if quantity.unit == "°":
        is_possible = ~np.isin(values, quantity.impossible)
        values[is_possible] %= 360
    return Labelled(f"{name}-{number}", name, quantity.unit, at[is_there], values[is_there], faults)


def _places(chance: np.random.Generator) -> tuple[list[str], list[int]]:
    """One after another, at random distances that are long enough."""
    kinds = [str(kind) for kind in chance.permutation(np.repeat(FAULTS, EACH))]
    slot = (COUNT - LEARNED) // len(kinds)
    longest = 12 * 3_600 // STEP_S
    starts = [LEARNED + slot * n + int(chance.integers(slot - longest - APART)) for n in range(len(kinds))]
    return kinds, starts


def _plant(
    chance: np.random.Generator, kind: str, place: int, values: Numbers, is_there: NDArray[np.bool_],
    quantity: Quantity,
) -> tuple[int, int]:  # fmt: skip
    """Where it begins and ends."""
    sign = float(chance.choice((-1.0, 1.0)))
    if kind == "spike":
        end = place + int(chance.integers(1, 3))
        away = chance.uniform(*quantity.spike)
        value = values[place] + sign * away
        if not quantity.least <= value <= quantity.most:
            value = values[place] - sign * away
        values[place:end] = value
    elif kind == "impossible":
        end = place + int(chance.integers(1, 30))
        values[place:end] = chance.choice(quantity.impossible)
    elif kind == "silence":
        end = place + _hours(chance, 1, 10)
        is_there[place + 1 : end - 1] = False
    elif kind == "stuck":
        end = place + _hours(chance, 2, 12)
        values[place:end] = _restless(chance, values, place, quantity)
    elif kind == "offset":
        end = place + _hours(chance, 3, 12)
        low, high = quantity.spike
        moved = values[place:end] + sign * chance.uniform(low, (low + high) / 2)
        values[place:end] = np.clip(moved, quantity.least, quantity.most)
    else:
        end = place + _hours(chance, 1, 3)
        noisy = values[place:end] + chance.normal(0, quantity.noise, end - place)
        values[place:end] = np.clip(noisy, quantity.least, quantity.most)
    return place, end - 1


def _hours(chance: np.random.Generator, least: float, most: float) -> int:
    return int(chance.uniform(least, most) * 3_600 / STEP_S)


def _restless(chance: np.random.Generator, values: Numbers, place: int, quantity: Quantity) -> float:
    """A value of the sensor near this place where it does not rest."""
    near = values[max(0, place - 720) : place]
    usual = np.median(near[(near > 0) & (near > quantity.least) & (near < quantity.most)])
    return float(usual + quantity.step * int(chance.integers(1, 4)))


def _walk(chance: np.random.Generator, sd: float, hours: float) -> Numbers:
    """Values that depend on those before them for so many hours, with this deviation over all."""
    keep = np.exp(-STEP_S / (hours * 3_600))
    steps = chance.normal(0, sd * np.sqrt(1 - keep**2), COUNT)
    found, value = np.empty(COUNT), chance.normal(0, sd)
    for at, step in enumerate(steps.tolist()):
        value = keep * value + step
        found[at] = value
    return found


def _of_day(days: Numbers, peak_hour: float) -> Numbers:
    return np.cos(2 * np.pi * (days - peak_hour / 24))


def _temperature(chance: np.random.Generator, days: Numbers) -> Numbers:
    return 14 + 6 * _of_day(days, 15) + _walk(chance, 3, 36) + _walk(chance, 0.3, 0.3)


def _humidity(chance: np.random.Generator, days: Numbers) -> Numbers:
    return 72 - 18 * _of_day(days, 15) + _walk(chance, 9, 30) + _walk(chance, 1.2, 0.3)


def _wind(chance: np.random.Generator, days: Numbers) -> Numbers:
    return np.exp(1 + 0.3 * _of_day(days, 14) + _walk(chance, 0.5, 8) + _walk(chance, 0.25, 0.05)) - 0.6


def _direction(chance: np.random.Generator, days: Numbers) -> Numbers:
    return (200 + np.cumsum(chance.normal(0, 4, COUNT)) + chance.normal(0, 5, COUNT)) % 360


def _light(chance: np.random.Generator, days: Numbers) -> Numbers:
    clouds = 0.65 + 0.3 * np.tanh(_walk(chance, 1, 0.5))
    return 900 * np.maximum(0, _of_day(days, 12.5) + 0.15) * clouds


def _pressure(chance: np.random.Generator, days: Numbers) -> Numbers:
    return 1013 + _walk(chance, 8, 60)


def _battery(chance: np.random.Generator, days: Numbers) -> Numbers:
    return 3.7 + 0.15 * _of_day(days, 16) - 0.005 * days + _walk(chance, 0.01, 3)


QUANTITIES = {
    "temperature": Quantity(6, "°C", _temperature, (8, 25), 6, (-999, 150, -127), 0.1),
    "humidity": Quantity(4, "%", _humidity, (30, 55), 20, (-5, 255), 0.1, 0, 100),
    "wind": Quantity(3, "m/s", _wind, (25, 45), 15, (-1, 9999), 0.1, 0, 90),
    "direction": Quantity(3, "°", _direction, (110, 180), 90, (-1, 999), 1),
    "light": Quantity(2, "lx", _light, (2_500, 5_000), 1_500, (-40, 65535), 1, 0, 90_000),
    "pressure": Quantity(1, "hPa", _pressure, (15, 40), 10, (0, 1250), 0.1),
    "battery": Quantity(1, "V", _battery, (0.8, 2), 0.4, (-9999,), 0.01),
}
