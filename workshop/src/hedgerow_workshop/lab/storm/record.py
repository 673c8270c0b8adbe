"""What is written down of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from hedgerow_workshop.lab.harness.record import Arrival, Hearing, RunRecord, Stream, numbered


class SubscriberKind(StrEnum):
    """The subscribers that there are, by what they are made with and the version that they speak."""

    EXTENSION = "extension"
    PAHO_5 = "paho5"
    GMQTT_5 = "gmqtt5"
    PAHO_3 = "paho311"


class StormFault(StrEnum):
    NONE = ""
    KILLED = "killed"
    """The fixed broker, by SIGKILL; it is started again."""
    CUT = "cut"
    """The link between the two brokers, silently; it is restored."""


@dataclass(slots=True)
class Tally:
    """What one subscriber received: numbers of the publications of its topic, as they came."""

    name: str
    kind: SubscriberKind
    topic: str
    numbers: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each came, by the clock that all processes of the machine have."""
    repeated: list[int] = field(default_factory=list)
    """Those that came with DUP."""
    connections: list[tuple[float, str]] = field(default_factory=list)
    """When it was connected, and where, as far as it is known."""
    distinct: int = 0
    _seen: set[int] = field(default_factory=set, repr=False)

    def receive(self, payload: bytes, is_repeated: bool, now: float) -> None:
        number = int(payload.split(b" ", 1)[0])
        self.numbers.append(number)
        self.times.append(now)
        self._seen.add(number)
        self.distinct = len(self._seen)
        if is_repeated:
            self.repeated.append(number)

    def arrivals(self) -> list[Arrival]:
        """It is known how often a number came with DUP, not which time: the later ones are taken for it."""
        left, repeated = Counter(self.numbers), Counter(self.repeated)
        found = []
        for number, at in zip(self.numbers, self.times, strict=True):
            found.append(Arrival(number, at, left[number] <= repeated[number]))
            left[number] -= 1
        return found


@dataclass(slots=True)
class StormRecord(RunRecord):
    fault: StormFault
    sent: dict[str, list[float]] = field(default_factory=dict)
    """By topic: when each publication was handed to the broker. Its index is its number."""
    tallies: list[Tally] = field(default_factory=list)
    flips: list[tuple[float, bool]] = field(default_factory=list)
    """When the mobile broker told that the storm's topic had changed sides, and whether it was delegated."""
    happened: list[tuple[float, str]] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """By process: the share of one processor that it took while there were publications."""
    tracebacks: list[str] = field(default_factory=list)
    """Which nodes wrote one into their logs."""
    began_at: float = 0.0
    ended_at: float = 0.0

    @property
    def file_name(self) -> str:
        return f"storm-{self.fault}" if self.fault else "storm"

    def settings(self) -> dict[str, str]:
        return {"fault": self.fault}

    def streams(self) -> list[Stream]:
        """Publications are numbered by topic: each topic has a publisher's name."""
        return [Stream(topic, topic, numbered(sent), 1) for topic, sent in self.sent.items()]

    def hearings(self) -> Iterator[Hearing]:
        streams = {stream.topic: stream for stream in self.streams()}
        for tally in self.tallies:
            yield Hearing(tally.name, streams[tally.topic], tally.arrivals(), 1, group=tally.kind)

    def moments(self) -> list[tuple[float, str]]:
        return self.happened

    def document(self) -> dict[str, Any]:
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**document, "tallies": [_plain(tally) for tally in self.tallies]}


def write_tallies(path: Path, tallies: list[Tally]) -> None:
    """At once: whoever finds it finds all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps([_plain(tally) for tally in tallies]), encoding="utf-8")
    part.rename(path)


def _plain(tally: Tally) -> dict[str, object]:
    return {each.name: getattr(tally, each.name) for each in fields(tally) if each.name[0] != "_"}


def read_tallies(path: Path) -> list[Tally]:
    return [Tally(**{**each, "kind": SubscriberKind(each["kind"])}) for each in json.loads(path.read_text())]
