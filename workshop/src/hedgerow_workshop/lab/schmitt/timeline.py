"""The timeline: which broker goes and returns when, from a TOML file.

`read_timeline` raises ConfigError that names the file, the key and what is wrong with it. A timeline that it
returns can be carried out: steps are in their order, and nobody goes who is away, or returns who is there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.errors import ConfigError, reason_of
from hedgerow_workshop.lab.schmitt.record import Departure

TIMELINE = Path(__file__).parent / "timeline.toml"
LINE_TIMELINE = Path(__file__).parent / "line.toml"
TOPOLOGIES = ("star", "line")
MAX_BROKERS = 16  # processes on one machine
MAX_RUN_S = 3_600.0
GHOST_MARGIN = 1.5  # of β: so that the attempt before is over when a broker returns early
MIN_BETA = 0.01  # of the run: ghost links are not tried without a pause
GOES, RETURNS = "goes", "returns"


class Step(NamedTuple):
    name: str
    at: float
    """A share of the run."""
    broker: str
    does: str


class Interval(NamedTuple):
    """The time between two steps."""

    after: str | None
    """The step that begins it; None at the beginning."""
    alive: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    run_s: float
    fast_s: Mapping[Departure, float]
    settle_s: float
    publish_interval_s: float
    brokers: tuple[str, ...]
    """In the order of their discovery: the highest that lives is the hub."""
    publisher: str
    measured: str
    steps: tuple[Step, ...]
    topology: str = "star"
    beta: float | None = None
    """How long after its return a broker's ghost links are up, as published: a share of the run."""

    def seconds(self, departure: Departure, fast: bool) -> float:
        """How long a run is."""
        return self.fast_s[departure] if fast else self.run_s

    def ghost_retry(self) -> float | None:
        """How far apart the attempts of a ghost link are, as a share of the run: so that those to the broker
        that goes first are in vain while it is away, and the next one comes β after its return."""
        if self.beta is None:
            return None
        went, returned = (
            next(step.at for step in self.steps if step.broker == self.steps[0].broker and step.does == does)
            for does in (GOES, RETURNS)
        )
        waits = returned - went + self.beta
        return waits / max(1, int(waits / (GHOST_MARGIN * self.beta)))

    def stages(self) -> list[Interval]:
        alive = set(self.brokers)
        stages = [Interval(None, self.brokers)]
        for step in self.steps:
            (alive.discard if step.does == GOES else alive.add)(step.broker)
            stages.append(Interval(step.name, tuple(each for each in self.brokers if each in alive)))
        return stages


def read_timeline(path: Path = TIMELINE) -> Timeline:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"timeline {path}: {reason_of(error)}") from None
    try:
        return _read(document)
    except ConfigError as error:
        raise ConfigError(f"timeline {path}: {error}") from None


def _read(document: dict[str, Any]) -> Timeline:
    values: dict[str, Any] = {
        key: _take_number(document, key, low, MAX_RUN_S)
        for key, low in (("run_s", 1.0), ("settle_s", 0.0), ("publish_interval_s", 0.001))
    }
    values["fast_s"] = _take_fast(document)
    values["topology"] = document.pop("topology", TOPOLOGIES[0])
    if values["topology"] not in TOPOLOGIES:
        raise ConfigError(f"topology: is {' or '.join(TOPOLOGIES)}, not {values['topology']!r}")
    values["beta"] = _take_number(document, "beta", MIN_BETA, 1) if "beta" in document else None
    brokers = document.pop("brokers", None)
    if not isinstance(brokers, list) or not all(_is_name(each) for each in brokers):
        raise ConfigError("brokers: is a list of names of letters and digits")
    if not 2 <= len(brokers) == len(set(brokers)) <= MAX_BROKERS:
        raise ConfigError(f"brokers: are from 2 to {MAX_BROKERS}, each named once")
    places: dict[str, Any] = {key: _take_broker(document, key, brokers) for key in ("publisher", "measured")}
    entries = document.pop("step", [])
    if document:
        raise ConfigError(f"{next(iter(document))}: there is no such key")
    if not isinstance(entries, list):
        raise ConfigError("step: is written [[step]]")
    steps = tuple(_read_step(entry, brokers, number) for number, entry in enumerate(entries, 1))
    _check_steps(steps, places)
    if values["beta"] is not None and not any(
        step.broker == steps[0].broker and step.does == RETURNS for step in steps
    ):
        raise ConfigError("beta: the broker that goes first does not return")
    return Timeline(**values, **places, brokers=tuple(brokers), steps=steps)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isalnum()


def _take_number(document: dict[str, Any], key: str, low: float, high: float) -> float:
    value = document.pop(key, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{key}: is a number from {low:g} to {high:g}, not {value!r}")
    return float(value)


def _take_fast(document: dict[str, Any]) -> dict[Departure, float]:
    table = document.pop("fast_s", None)
    if not isinstance(table, dict):
        raise ConfigError(f"fast_s: is a table of {', '.join(Departure)}, not {table!r}")
    try:
        times = {departure: _take_number(table, departure, 1.0, MAX_RUN_S) for departure in Departure}
    except ConfigError as error:
        raise ConfigError(f"fast_s: {error}") from None
    if table:
        raise ConfigError(f"fast_s: {next(iter(table))}: there is no such key")
    return times


def _take_broker(document: dict[str, Any], key: str, brokers: list[str]) -> str:
    value = document.pop(key, None)
    if value not in brokers:
        raise ConfigError(f"{key}: is one of the brokers, not {value!r}")
    return str(value)


def _read_step(entry: dict[str, Any], brokers: list[str], number: int) -> Step:
    try:
        entry = dict(entry)
        name, does = entry.pop("name", None), entry.pop("does", None)
        if not _is_name(name):
            raise ConfigError(f"name: is letters and digits, not {name!r}")
        if does not in (GOES, RETURNS):
            raise ConfigError(f"does: is {GOES} or {RETURNS}, not {does!r}")
        step = Step(name, _take_number(entry, "at", 0, 1), _take_broker(entry, "broker", brokers), does)
        if entry:
            raise ConfigError(f"{next(iter(entry))}: there is no such key")
        return step
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"step {number}: {error}") from None


def _check_steps(steps: tuple[Step, ...], places: dict[str, str]) -> None:
    away: set[str] = set()
    last_at = 0.0
    for step in steps:
        if step.at < last_at:
            raise ConfigError(f"step {step.name}: is before the one above it")
        last_at = step.at
        for what, broker in places.items():
            if step.broker == broker:
                raise ConfigError(f"step {step.name}: broker {broker} stays, it is the {what} one's")
        if (step.broker in away) is (step.does == GOES):
            state = "away" if step.broker in away else "there"
            raise ConfigError(f"step {step.name}: broker {step.broker} {step.does}, but is {state}")
        (away.add if step.does == GOES else away.discard)(step.broker)
