"""What `/metrics` tells of what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from prometheus_client.core import GaugeMetricFamily, Metric

from hedgerow.node.backlogs import Backlogs


def metrics_of(backlogs: Backlogs | None, now: float) -> Iterator[Metric]:
    """None: nobody has looked yet."""
    for name, (help_text, read) in GAUGES.items():
        family = GaugeMetricFamily(f"hedgerow_backlog_{name}", help_text)
        if backlogs is not None:
            family.add_metric([], read(backlogs, now))
        yield family


def _oldest_age_s(backlogs: Backlogs, now: float) -> float:
    return 0.0 if backlogs.oldest_at is None else max(0.0, now - backlogs.oldest_at)


# Name → help and what to read.
GAUGES: dict[str, tuple[str, Callable[[Backlogs, float], float]]] = {
    "readers": (
        "Sessions, of clients and of links, for which messages wait.",
        lambda backlogs, now: backlogs.readers,
    ),
    "messages": (
        "Messages that wait, counted for each session.",
        lambda backlogs, now: backlogs.messages,
    ),
    "stored_bytes": (
        "What the messages that wait take, each once.",
        lambda backlogs, now: backlogs.room.bytes,
    ),
    "limit_bytes": (
        "What they may take; at this bound publishers wait. +Inf: there is no bound.",
        lambda backlogs, now: inf if backlogs.room.limit is None else backlogs.room.limit,
    ),
    "owner_bytes": (
        "What waits on the disk for the user, or address without one, for whose sessions most waits.",
        lambda backlogs, now: backlogs.owners[0].bytes if backlogs.owners else 0,
    ),
    "oldest_age_seconds": ("For how long the oldest of them has waited.", _oldest_age_s),
    "full_seconds": (
        "When the bound is reached if all goes on as in the last minute. +Inf: never.",
        lambda backlogs, now: inf if backlogs.full_in_s is None else backlogs.full_in_s,
    ),
}
