"""Anomalies in words, for people who did not choose the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan

from hedgerow.pipeline.watch import IMPOSSIBLE, JUMP, SILENCE, SPIKE, STUCK, UNSTEADY, UNUSUAL, Anomaly

_STEPS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"))


def explain_anomaly(found: Anomaly, unit: str | None) -> str:
    """One sentence."""
    return _WORDS[found.kind](found, unit)


def duration_in_words(seconds: float) -> str:
    for least, length, unit in _STEPS:
        if seconds >= least:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _impossible(found: Anomaly, unit: str | None) -> str:
    said = _quantity(found.value, unit)
    times = f", {found.readings} times in {_lasted(found)}" if found.readings > 1 else ""
    if isnan(found.bound):
        return f"{said} is what devices send for no value{times}"
    side = "below" if found.value < found.bound else "above"
    return f"{said} is {side} {_quantity(found.bound, unit)}{times}"


def _stuck(found: Anomaly, unit: str | None) -> str:
    before = f"; the longest run before was {found.bound:g}" if found.bound else ""
    said = _quantity(found.value, unit)
    return f"{said} for {_lasted(found)}, {found.readings} times in a row{before}"


def _spike(found: Anomaly, unit: str | None) -> str:
    times = "" if found.readings == 1 else f" after {found.readings} readings"
    return f"{_away(found, unit)}, and back{times}"


def _jump(found: Anomaly, unit: str | None) -> str:
    return f"{_away(found, unit)}, and it stays there"


def _unsteady(found: Anomaly, unit: str | None) -> str:
    return f"{_away(found, unit)}, and so to and fro {found.readings} times in a row"


def _unusual(found: Anomaly, unit: str | None) -> str:
    said, usual, bound = (_quantity(each, unit) for each in (found.value, found.expected, found.bound))
    return f"{said} where {usual} is usual at this hour, give or take {bound}, for {_lasted(found)}"


def _silence(found: Anomaly, unit: str | None) -> str:
    return f"nothing for {_lasted(found)}; usually a reading comes every {duration_in_words(found.expected)}"


def _away(found: Anomaly, unit: str | None) -> str:
    return (
        f"{_quantity(found.value, unit)} after {_quantity(found.expected, unit)}; "
        f"a step of {_quantity(found.bound, unit)} would stand out"
    )


def _lasted(found: Anomaly) -> str:
    return duration_in_words((found.until - found.at) / 1e6)


def _quantity(value: float, unit: str | None) -> str:
    return f"{value:.4g}" if not unit else f"{value:.4g}{'' if unit == '°' else ' '}{unit}"


_WORDS: Mapping[str, Callable[[Anomaly, str | None], str]] = {
    IMPOSSIBLE: _impossible,
    STUCK: _stuck,
    SPIKE: _spike,
    JUMP: _jump,
    UNSTEADY: _unsteady,
    UNUSUAL: _unusual,
    SILENCE: _silence,
}
