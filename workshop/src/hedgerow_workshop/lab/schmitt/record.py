"""What is kept of one run: who published what when, what arrived where, and what happened meanwhile.

All times are seconds of one clock, that of the machine. A record is data alone, and goes through JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow_workshop.lab.harness.record import Arrival, Hearing, RunRecord, Stream, numbered, times_alone

QOS = (0, 1)
TOPICS = {qos: f"schmitt/qos{qos}" for qos in QOS}


class Mode(StrEnum):
    """How the bridges are arranged."""

    STATIC = "static"
    """Made once, as by a configuration file."""
    PUBLISHED = "ghost-published"
    """By the agent, with ghost links as the document has them."""
    GHOST = "ghost"
    """By the agent, which leaves bridges to dead brokers in place, and makes before it breaks."""
    PURE = "pure"
    """By the agent, which deletes them."""
    LINE = "line"
    """As `PURE`, on the timeline of the broken line."""


class Departure(StrEnum):
    """How a broker goes."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class SchmittSpec:
    """Which run."""

    kind: str
    mode: Mode
    departure: Departure

    def __str__(self) -> str:
        return f"{self.kind} {self.mode} {self.departure}"

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.mode}-{self.departure}"


class StepTaken(NamedTuple):
    """A step of the timeline that was carried out. One that returns is ready at this time."""

    name: str
    at: float
    broker: str
    does: str


class BridgeState(NamedTuple):
    """A broker's word on one of its bridges; state "" when it is no more."""

    at: float
    broker: str
    far: str
    state: str


@dataclass(slots=True)
class SchmittRecord(RunRecord):
    spec: SchmittSpec
    brokers: list[str]
    publisher: str
    measured: str
    began_at: float = 0.0
    ended_at: float = 0.0
    happened: list[StepTaken] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    """When each number was published, on both topics."""
    arrived: dict[str, dict[int, list[Arrival]]] = field(default_factory=dict)
    """Broker → QoS → what its subscriber received."""
    bridges: list[BridgeState] = field(default_factory=list)
    agent: list[dict[str, Any]] = field(default_factory=list)
    """The agent's events, as it prints them."""

    is_monotonic = False

    @property
    def file_name(self) -> str:
        return self.spec.file_name

    def settings(self) -> dict[str, str]:
        spec = self.spec
        return {"kind": spec.kind, "mode": spec.mode, "departure": spec.departure, "measured": self.measured}

    def streams(self) -> list[Stream]:
        """Both topics have the same numbers, so each has a publisher of its own."""
        sent = numbered(self.sent)
        return [Stream(f"{self.publisher}/qos{qos}", TOPICS[qos], sent, qos, self.publisher) for qos in QOS]

    def hearings(self) -> Iterator[Hearing]:
        streams = self.streams()
        for broker, by_qos in self.arrived.items():
            for qos, arrivals in by_qos.items():
                yield Hearing(broker, streams[qos], arrivals, qos, broker, f"qos{qos}")

    def moments(self) -> list[tuple[float, str]]:
        return [(each.at, f"{each.name}: broker {each.broker} {each.does}") for each in self.happened]

    def document(self) -> dict[str, Any]:
        arrived = {
            broker: {qos: times_alone(arrivals) for qos, arrivals in by_qos.items()}
            for broker, by_qos in self.arrived.items()
        }
        return {**asdict(self), "arrived": arrived}


def read_record(path: Path) -> SchmittRecord:
    document = json.loads(path.read_text(encoding="utf-8"))
    spec = document["spec"]
    document["spec"] = SchmittSpec(spec["kind"], Mode(spec["mode"]), Departure(spec["departure"]))
    document["happened"] = [StepTaken(*each) for each in document["happened"]]
    document["bridges"] = [BridgeState(*each) for each in document["bridges"]]
    document["arrived"] = {
        broker: {int(qos): [Arrival(*each) for each in arrivals] for qos, arrivals in by_qos.items()}
        for broker, by_qos in document["arrived"].items()
    }
    return SchmittRecord(**document)
