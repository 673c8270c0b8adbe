"""What is kept of one run: who published what when, what arrived where, and what happened meanwhile.

All times are seconds of the machine's monotonic clock. A record is data alone, and is written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from hedgerow_workshop.lab.harness.record import (
    Hearing,
    Received,
    RunRecord,
    Stream,
    from_publisher,
    numbered,
)


class Setting(StrEnum):
    FEDERATED = "federated"
    FAILURES = "failures"
    """Federated, while nodes die and links are cut."""
    CENTRALISED = "centralised"
    DOCUMENT_WIRE = "document wire"
    """Federated, with a federator that is not ours at one node."""
    DISTANCES = "distances"
    """On the simulator, on links of all kinds."""


class Misfortune(StrEnum):
    KILL = "kill"
    """SIGKILL of all that runs at a node."""
    CUT = "cut"
    """A link that passes nothing, and tells nobody."""


@dataclass(frozen=True, slots=True)
class SpohnSpec:
    """Which run. `node` is that of the broker in a centralised one."""

    kind: str
    setting: Setting
    count: int = 0
    """Publications that were asked for."""
    node: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.setting, self.node and f"node {self.node}")))

    @property
    def file_name(self) -> str:
        words = (self.kind, self.setting.replace(" ", "-"), self.node, str(self.count or ""))
        return "-".join(filter(None, words))


class Transmissions(NamedTuple):
    """Of publications, from one node to its neighbour."""

    sent: int
    redundant: int
    """They came to the neighbour by another way before."""


class Failure(NamedTuple):
    """`what` is a node, or a link as "4-5"."""

    misfortune: Misfortune
    what: str
    at: float
    whole_at: float | None = None
    """When the nodes said that all was as before; None: not while anybody waited for it."""


State = Mapping[str, Any]
"""What a federator says of itself."""


@dataclass(slots=True)
class SpohnRecord(RunRecord):
    spec: SpohnSpec
    sent: dict[str, list[float]] = field(default_factory=dict)
    """Publisher → when each number was published."""
    arrived: dict[str, list[Received]] = field(default_factory=dict)
    """Subscriber → what it received."""
    states: list[dict[str, State]] = field(default_factory=list)
    """What the nodes said at the first publication, and at the end."""
    happened: list[Failure] = field(default_factory=list)
    transmissions: dict[str, Transmissions] = field(default_factory=dict)
    """By link and direction, "6-7"."""
    distances: list[tuple[int, int]] = field(default_factory=list)
    """On the simulator: what each broker takes its distance for, and the fewest links to the core."""
    ended_at: float = 0.0

    @property
    def file_name(self) -> str:
        return self.spec.file_name

    @property
    def topic(self) -> str:
        """A mesh of its own for each federated run."""
        spec = self.spec
        return f"grid/{spec.setting.replace(' ', '-')}/{spec.count}"

    def settings(self) -> dict[str, str]:
        spec = self.spec
        return {"kind": spec.kind, "setting": spec.setting, "count": str(spec.count), "node": spec.node}

    def streams(self) -> list[Stream]:
        return [
            Stream(publisher, self.topic, numbered(sent), self._qos, self.spec.node or publisher)
            for publisher, sent in self.sent.items()
        ]

    def hearings(self) -> Iterator[Hearing]:
        streams = self.streams()
        for subscriber, received in self.arrived.items():
            for stream in streams:
                arrivals = from_publisher(received, stream.publisher)
                yield Hearing(subscriber, stream, arrivals, self._qos, self.spec.node or subscriber)

    def moments(self) -> list[tuple[float, str]]:
        return [(each.at, f"{each.misfortune} {each.what}") for each in self.happened]

    @property
    def _qos(self) -> int:
        return int(self.spec.setting in (Setting.FAILURES, Setting.DOCUMENT_WIRE))

    def document(self) -> dict[str, Any]:
        arrived = {subscriber: [each[:3] for each in found] for subscriber, found in self.arrived.items()}
        return {**asdict(self), "arrived": arrived}
