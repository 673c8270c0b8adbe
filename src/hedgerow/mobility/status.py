"""What a node's status tells of hot topics."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hedgerow.hot.monitor import Monitor
from hedgerow.node.status_format import MAX_HOT


def describe_hot(monitor: Monitor, fixed: str = "") -> list[list[Any]]:
    """Topic, score, and where it is matched: at the fixed broker if it is delegated, else here."""
    delegated = set(monitor.out_registry) if fixed else set()
    public = ((topic, score) for topic, score in monitor.scores.items() if topic[:1] != "$")
    return [
        [topic, score, fixed if topic in delegated else "here"] for topic, score in islice(public, MAX_HOT)
    ]
