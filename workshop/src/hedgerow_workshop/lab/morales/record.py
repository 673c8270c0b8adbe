"""What is kept of one run: what was published when, what arrived when, and, on the farm, what happened.

All times are seconds of the machine's monotonic clock. A record is data alone, and is written as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hedgerow_workshop.lab.morales.setting import Algorithm, Uplink


@dataclass(frozen=True, slots=True)
class Spec:
    uplink: Uplink
    traffic: str
    algorithm: Algorithm

    def __str__(self) -> str:
        return f"{self.uplink} {self.traffic} {self.algorithm}"

    @property
    def file_name(self) -> str:
        return str(self).replace(" ", "-")


class Arrival(NamedTuple):
    number: int
    at: float


@dataclass(slots=True)
class Record:
    """Of one mobile broker and one traffic."""

    spec: Spec
    warm_up: int = 0
    """So many of the publications, the first ones, count for no delay."""
    topics: list[str] = field(default_factory=list)
    """Of each publication."""
    sent: list[float] = field(default_factory=list)
    arrived: list[Arrival] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class FarmArrival(NamedTuple):
    publisher: str
    number: int
    at: float
    is_repeated: bool = False
    """MQTT's own repetition on a new connection, marked DUP."""


class Outage(NamedTuple):
    what: str
    began_at: float
    ended_at: float
    caught_up_at: float
    """When all that was published before its end had arrived, or nobody waited for it any longer."""


@dataclass(slots=True)
class FarmRecord:
    sent: dict[str, list[float]] = field(default_factory=dict)
    """Publisher → when each number was published."""
    datagrams: dict[str, list[float]] = field(default_factory=dict)
    """UDP sensor → the same."""
    arrived: dict[str, list[FarmArrival]] = field(default_factory=dict)
    """Subscriber → what it received."""
    since: dict[str, float] = field(default_factory=dict)
    """Subscriber → when all publishers' messages had begun to reach it: what counts is published after it."""
    outages: list[Outage] = field(default_factory=list)
    ended_at: float = 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
