"""What is written down of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from hedgerow_workshop.lab.harness.record import (
    MQTT,
    Hearing,
    Received,
    RunRecord,
    Stream,
    from_publisher,
)
from hedgerow_workshop.lab.overload.settings import TOPICS

JOURNAL = "journal"


class Readers(StrEnum):
    """How those read who have subscribed."""

    FAST = "fast"
    SLOW = "slow"


@dataclass(slots=True)
class Sensors:
    """What became of the UDP sensors' readings."""

    sent: int = 0
    recorded: int = 0
    """In the journal."""
    counted: int = 0
    """Those that the node counts as dropped: by the system, by itself, or not recorded."""

    @property
    def uncounted(self) -> int:
        return max(0, self.sent - self.recorded - self.counted)


@dataclass(slots=True)
class OverloadRecord(RunRecord):
    readers: Readers
    sent: dict[str, dict[int, float]] = field(default_factory=dict)
    """By publisher: what was acknowledged to it, number → when it was handed over."""
    multicast: list[str] = field(default_factory=list)
    """The publishers among them that have no broker."""
    arrived: dict[str, list[Received]] = field(default_factory=dict)
    """By subscriber, and for the journal: what came, as it came."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    """By subscriber: when it lost its connection."""
    sensors: Sensors = field(default_factory=Sensors)
    flaps: list[tuple[float, str]] = field(default_factory=list)
    """When a link between two that lived was dropped, and what the node told of it."""
    memory: dict[str, float] = field(default_factory=dict)
    """By node: MiB, the most that it had at once."""
    happened: list[tuple[float, str]] = field(default_factory=list)
    began_at: float = 0.0
    published_s: float = 0.0
    """How long publishing took."""
    settled_s: float = 0.0
    """How long, after that, until all had come."""
    tracebacks: list[str] = field(default_factory=list)
    """Which nodes wrote one into their logs."""

    @property
    def file_name(self) -> str:
        return f"overload-{self.readers}"

    def settings(self) -> dict[str, str]:
        return {"readers": self.readers}

    @property
    def rate(self) -> float:
        """Acknowledged publications a second, of those at brokers."""
        count = sum(len(sent) for name, sent in self.sent.items() if name not in self.multicast)
        return count / self.published_s if self.published_s else 0.0

    def streams(self) -> list[Stream]:
        return [
            Stream(name, f"{TOPICS}{name}", sent, 1, transport=self._transport(name))
            for name, sent in self.sent.items()
        ]

    def _transport(self, publisher: str) -> str:
        return "multicast" if publisher in self.multicast else MQTT

    def hearings(self) -> Iterator[Hearing]:
        streams = self.streams()
        for subscriber, received in self.arrived.items():
            group = JOURNAL if subscriber == JOURNAL else self.readers
            for stream in streams:
                arrivals = from_publisher(received, stream.publisher)
                yield Hearing(subscriber, stream, arrivals, 1, group=group)

    def moments(self) -> list[tuple[float, str]]:
        return sorted([*self.happened, *self.flaps])
