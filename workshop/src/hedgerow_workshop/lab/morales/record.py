"""What is kept of one run: what was published when, what arrived when, and, on the farm, what happened.

All times are seconds of the machine's monotonic clock. A record is data alone, and is written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from hedgerow_workshop.lab.harness.record import (
    Arrival,
    Hearing,
    Received,
    RunRecord,
    Stream,
    from_publisher,
    numbered,
    times_alone,
)
from hedgerow_workshop.lab.morales.setting import Algorithm, Uplink

DATAGRAM_TOPIC = "crop/temperature"
"""On the farm; any other topic is that of one sensor."""


@dataclass(frozen=True, slots=True)
class MoralesSpec:
    uplink: Uplink
    traffic: str
    algorithm: Algorithm

    def __str__(self) -> str:
        return f"{self.uplink} {self.traffic} {self.algorithm}"

    @property
    def file_name(self) -> str:
        return str(self).replace(" ", "-")


@dataclass(slots=True)
class MoralesRecord(RunRecord):
    """Of one mobile broker and one traffic."""

    spec: MoralesSpec
    warm_up: int = 0
    """So many of the publications, the first ones, count for no delay."""
    topics: list[str] = field(default_factory=list)
    """Of each publication."""
    sent: list[float] = field(default_factory=list)
    arrived: list[Arrival] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        return self.spec.file_name

    def settings(self) -> dict[str, str]:
        spec = self.spec
        return {"uplink": spec.uplink, "traffic": spec.traffic, "algorithm": str(spec.algorithm)}

    def streams(self) -> list[Stream]:
        """A stream for each topic; the numbers are those of all topics together."""
        sent: dict[str, dict[int, float]] = {topic: {} for topic in self.topics}
        for (number, at), topic in zip(enumerate(self.sent), self.topics, strict=False):
            sent[topic][number] = at
        return [Stream("publisher", topic, times, warm_up=self.warm_up) for topic, times in sent.items()]

    def hearings(self) -> Iterator[Hearing]:
        arrivals: dict[str, list[Arrival]] = {topic: [] for topic in self.topics}
        for arrival in self.arrived:
            arrivals[self.topics[arrival.number]].append(arrival)
        for stream in self.streams():
            subscriber = f"subscriber-{stream.topic.replace('/', '-')}"
            yield Hearing(subscriber, stream, arrivals[stream.topic])

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "arrived": times_alone(self.arrived)}


class Outage(NamedTuple):
    what: str
    began_at: float
    ended_at: float
    caught_up_at: float
    """When all that was published before its end had arrived, or nobody waited for it any longer."""


@dataclass(slots=True)
class SceneRecord(RunRecord):
    name: str = ""
    sent: dict[str, list[float]] = field(default_factory=dict)
    """Publisher → when each number was published."""
    topics: dict[str, str] = field(default_factory=dict)
    """Publisher → its topic."""
    arrived: dict[str, list[Received]] = field(default_factory=dict)
    """Subscriber → what it received."""
    wants: dict[str, list[str]] = field(default_factory=dict)
    """Subscriber → the publishers that it is to hear; without it, all."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Subscriber → the kind of client that it is."""
    since: dict[str, float] = field(default_factory=dict)
    """Subscriber → when all publishers' messages had begun to reach it: what counts is published after it."""
    connections: dict[str, list[float]] = field(default_factory=dict)
    """Client → when it was connected."""
    happened: list[tuple[float, str]] = field(default_factory=list)
    has_moved: bool = True
    """What was to move is where it was to be at the end."""
    ended_at: float = 0.0

    @property
    def file_name(self) -> str:
        return self.name

    def settings(self) -> dict[str, str]:
        return {"traffic": self.name}

    def heard_by(self, subscriber: str) -> list[str]:
        return self.wants.get(subscriber, list(self.sent))

    def streams(self) -> list[Stream]:
        return [Stream(name, self.topics[name], numbered(sent), 2) for name, sent in self.sent.items()]

    def hearings(self) -> Iterator[Hearing]:
        """Nobody is promised what is in no `sent`, such as datagrams: it may be delivered."""
        streams = self.streams()
        for subscriber, received in self.arrived.items():
            since, group = self.since.get(subscriber), self.kinds.get(subscriber, "")
            for stream in streams:
                if subscriber in self.wants and stream.publisher not in self.wants[subscriber]:
                    continue
                is_due = since is not None and stream.publisher in self.sent
                arrivals = from_publisher(received, stream.publisher)
                yield Hearing(subscriber, stream, arrivals, 1, group=group, is_due=is_due, since=since)

    def moments(self) -> list[tuple[float, str]]:
        return self.happened


@dataclass(slots=True)
class FarmRecord(SceneRecord):
    name: str = "farm"
    datagrams: dict[str, list[float]] = field(default_factory=dict)
    """UDP sensor → when each number was published."""
    outages: list[Outage] = field(default_factory=list)

    def heard_by(self, subscriber: str) -> list[str]:
        return [*self.sent, *self.datagrams]

    def streams(self) -> list[Stream]:
        datagrams = [
            Stream(name, DATAGRAM_TOPIC, numbered(sent), transport="udp")
            for name, sent in self.datagrams.items()
        ]
        return [*SceneRecord.streams(self), *datagrams]

    def moments(self) -> list[tuple[float, str]]:
        return [(outage.began_at, f"{outage.what} out of coverage") for outage in self.outages]
