"""What is kept of one run: who published what when, what arrived where, and what happened meanwhile.

All times are seconds of one clock, that of the machine. A record is data alone, and goes through JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

QOS = (0, 1)


class Mode(StrEnum):
    """How the bridges are arranged."""

    STATIC = "static"
    """Made once, as by a configuration file."""
    GHOST = "ghost"
    """By the agent, which leaves bridges to dead brokers in place."""
    PURE = "pure"
    """By the agent, which deletes them."""


class Departure(StrEnum):
    """How a broker goes."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Spec:
    """Which run."""

    kind: str
    mode: Mode
    departure: Departure

    def __str__(self) -> str:
        return f"{self.kind} {self.mode} {self.departure}"

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.mode}-{self.departure}"


class Happened(NamedTuple):
    """A step of the timeline that was carried out. One that returns is ready at this time."""

    name: str
    at: float
    broker: str
    does: str


class Arrival(NamedTuple):
    number: int
    at: float


class BridgeState(NamedTuple):
    """A broker's word on one of its bridges; state "" when it is no more."""

    at: float
    broker: str
    far: str
    state: str


@dataclass(slots=True)
class Record:
    spec: Spec
    brokers: list[str]
    publisher: str
    measured: str
    began_at: float = 0.0
    ended_at: float = 0.0
    happened: list[Happened] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    """When each number was published, on both topics."""
    arrived: dict[str, dict[int, list[Arrival]]] = field(default_factory=dict)
    """Broker → QoS → what its subscriber received."""
    bridges: list[BridgeState] = field(default_factory=list)
    agent: list[dict[str, Any]] = field(default_factory=list)
    """The agent's events, as it prints them."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_record(path: Path) -> Record:
    document = json.loads(path.read_text(encoding="utf-8"))
    spec = document["spec"]
    document["spec"] = Spec(spec["kind"], Mode(spec["mode"]), Departure(spec["departure"]))
    document["happened"] = [Happened(*each) for each in document["happened"]]
    document["bridges"] = [BridgeState(*each) for each in document["bridges"]]
    document["arrived"] = {
        broker: {int(qos): [Arrival(*each) for each in arrivals] for qos, arrivals in by_qos.items()}
        for broker, by_qos in document["arrived"].items()
    }
    return Record(**document)
