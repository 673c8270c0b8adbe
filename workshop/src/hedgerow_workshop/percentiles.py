"""Percentiles of what was measured, as benches and experiments tell them."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Of values in ascending order: the one that so many percent of them are below."""
    return ordered[len(ordered) * percent // 100]
