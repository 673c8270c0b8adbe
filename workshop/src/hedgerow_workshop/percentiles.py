"""Percentiles of what was measured, as benches and experiments tell them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Of values in ascending order: the one that so many percent of them are below."""
    return ordered[len(ordered) * percent // 100]


def percentile_95(values: Iterable[float]) -> float:
    """Of a few values, in any order: not the highest of them, unless there is only one."""
    ordered = sorted(values)
    return ordered[int(0.95 * (len(ordered) - 1))]
