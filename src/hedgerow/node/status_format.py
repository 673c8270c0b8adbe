"""The version of a node's status, how much of each kind it tells, and how it tells of a link.

Whoever reads a status takes no more.
"""

from __future__ import annotations

from typing import Any

STATUS_VERSION = 1

MAX_LINKS = 500
MAX_HOT = 50
MAX_EVENTS = 20
MAX_FILTERS = 1_000  # with their meshes
MAX_JOBS = 20  # of a pipeline


def describe_link(
    kind: str, name: str, to: str, state: str, queued: int = 0, round_trip_s: float | None = None
) -> dict[str, Any]:
    """One of the `links`; what became of messages, `out` and `in`, may be put over it."""
    round_trip_ms = None if round_trip_s is None else round(round_trip_s * 1_000, 3)
    return {
        "kind": kind,
        "name": name,
        "to": to,
        "state": state,
        "round_trip_ms": round_trip_ms,
        "queued": queued,
        "out": {},
        "in": {},
    }
