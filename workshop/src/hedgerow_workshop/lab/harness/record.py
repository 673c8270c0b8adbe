"""What is kept of one run, and the form in which it is measured and written to a journal.

Each experiment has a record of its own, data alone, with the times of one clock in seconds. However it keeps
what happened, it can be read as streams (what was published) and hearings (what of a stream came to whom).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

MQTT = "mqtt"


@dataclass(frozen=True)
class Stream:
    """Publications on one topic, each with a number that with the publisher's name is its own."""

    publisher: str
    topic: str
    sent: Mapping[int, float]
    """Number → when it was published."""
    qos: int = 0
    broker: str = ""
    transport: str = MQTT
    warm_up: int = 0
    """Numbers below it count for no delay."""


class Arrival(NamedTuple):
    number: int
    at: float
    is_repeated: bool = False
    """With MQTT's DUP."""


class Received(NamedTuple):
    """An arrival where several publishers are heard."""

    publisher: str
    number: int
    at: float
    is_repeated: bool = False


@dataclass(frozen=True)
class Hearing:
    """What of a stream reached one subscriber, as it came."""

    subscriber: str
    stream: Stream
    arrivals: Sequence[Arrival]
    qos: int = 0
    """Of the subscription."""
    broker: str = ""
    group: str = ""
    """Such as a kind of client."""
    is_due: bool = True
    """Is the subscriber to get all of it: what is published from `since` on, if that is said."""
    since: float | None = None

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Those that came."""
        return frozenset(arrival.number for arrival in self.arrivals)


@dataclass(slots=True)
class RunRecord(ABC):
    is_monotonic = True
    """Its times are of the machine's monotonic clock; else of the calendar."""

    @property
    @abstractmethod
    def file_name(self) -> str:
        """Of the run, among those of its experiment."""

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """What tells this run from the others, by name."""

    @abstractmethod
    def streams(self) -> list[Stream]: ...

    @abstractmethod
    def hearings(self) -> Iterator[Hearing]: ...

    def moments(self) -> Sequence[tuple[float, str]]:
        """When something happened, and what, such as a broker that was killed."""
        return ()

    def heard(self, subscriber: str | None = None, publisher: str | None = None) -> list[Hearing]:
        """The hearings of one subscriber, or one publisher, or all."""
        return [
            hearing
            for hearing in self.hearings()
            if subscriber in (None, hearing.subscriber) and publisher in (None, hearing.stream.publisher)
        ]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document()), encoding="utf-8")


def numbered(times: Sequence[float]) -> dict[int, float]:
    """As a stream has them, from 0 on."""
    return dict(enumerate(times))


def from_publisher(received: Iterable[Received], publisher: str) -> list[Arrival]:
    """As a hearing has them."""
    return [Arrival(*each[1:]) for each in received if each.publisher == publisher]


def times_alone(arrivals: Iterable[Arrival]) -> list[tuple[int, float]]:
    """Numbers and times, for the JSON of a record in which nothing is repeated."""
    return [(each.number, each.at) for each in arrivals]
