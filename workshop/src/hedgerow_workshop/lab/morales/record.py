"""What is kept of one run: what was published when, what arrived when, and, on the farm, what happened.

All times are seconds of the machine's monotonic clock. A record is data alone, and is written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
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
    random: list[bool] = field(default_factory=list)
    """Of each publication of mixed traffic: was it of a burst of random traffic?"""
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

    def bursts(self) -> Iterator[MoralesRecord]:
        """Of mixed traffic, what arrived of random bursts and of biased ones; of other traffic, itself."""
        if not any(self.random):
            yield self
            return
        for name, is_random in (("random", True), ("biased", False)):
            spec = replace(self.spec, traffic=f"{self.spec.traffic}/{name}")
            arrived = [arrival for arrival in self.arrived if self.random[arrival.number] is is_random]
            yield MoralesRecord(spec, self.warm_up, self.topics, self.random, self.sent, arrived)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "arrived": times_alone(self.arrived)}


class Growth(NamedTuple):
    """MiB."""

    before: float
    after: float

    @property
    def grown(self) -> float:
        return self.after - self.before


class Memory(NamedTuple):
    """Of a mobile broker that delegates many subscriptions, and of one that does not."""

    on: Growth
    off: Growth

    @property
    def ratio(self) -> float | None:
        """Of what the subscriptions take."""
        return self.on.grown / self.off.grown if self.off.grown else None

    @property
    def ratio_of_all(self) -> float | None:
        """With all that the program takes without them."""
        return self.on.after / self.off.after if self.off.after else None


class Saving(NamedTuple):
    """Processor time for each event, in ms, of a mobile broker that delegates and of one that does not."""

    on: float
    off: float
    is_delegated: bool = True
    """Clients of what is delegated were where they are to be."""

    @property
    def ratio(self) -> float | None:
        return self.on / self.off if self.off else None


class Bytes(NamedTuple):
    """That delegations take on the link, and that full lists of the subscribers would."""

    subscribers: int
    """Of each topic."""
    topics: int
    sent: int
    listed: int

    @property
    def ratio(self) -> float:
        return self.sent / self.listed


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


@dataclass(slots=True)
class Outcome:
    """Of the whole experiment; a part that was not carried out is missing."""

    delays: list[MoralesRecord] = field(default_factory=list)
    farm: FarmRecord | None = None
    scenes: dict[str, SceneRecord] = field(default_factory=dict)
    """By name."""
    processor: Saving | None = None
    memory: Memory | None = None
    bytes: dict[int, Bytes] = field(default_factory=dict)
    """By the number of subscribers of each topic."""

    @property
    def runs(self) -> list[RunRecord]:
        farm = [] if self.farm is None else [self.farm]
        return [*self.delays, *farm, *self.scenes.values()]
