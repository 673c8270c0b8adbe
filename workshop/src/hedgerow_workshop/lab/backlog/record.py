"""What is written down of the parts of the experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow_workshop.lab.backlog.clients import Publisher
from hedgerow_workshop.lab.backlog.numbers import Tally

MIB = 1024 * 1024


@dataclass(slots=True)
class Heard:
    """What became of acknowledged messages at a reader, or at all readers together."""

    acknowledged: int = 0
    """What a reader was to get, of all readers."""
    missing: int = 0
    doubled: int = 0
    """What came again without DUP."""
    repeated: int = 0
    """What came again with DUP."""

    def add(self, publishers: list[Publisher], tally: Tally) -> None:
        self.acknowledged += sum(each.count for each in publishers)
        self.missing += sum(tally.missing(each.index, each.acknowledged) for each in publishers)
        self.doubled += tally.doubled
        self.repeated += tally.repeated


@dataclass(slots=True)
class Reading:
    """How fast a reader was that read as fast as it could."""

    count: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        return self.count / self.seconds if self.seconds > 0 else None


@dataclass(slots=True)
class LineRecord:
    is_killed: bool
    """The middle node was."""
    heard: Heard = field(default_factory=Heard)
    reading: Reading = field(default_factory=Reading)
    published_s: float = 0.0
    passed_on_s: float = 0.0
    """From the end of publishing until the last node had everything."""
    read_meanwhile: int = 0
    """By the slow reader, while there were publications."""
    memory: dict[str, float] = field(default_factory=dict)
    """By node: MiB, the most that it had at once."""


@dataclass(slots=True)
class FullRecord:
    heard: Heard = field(default_factory=Heard)
    filled_bytes: int = 0
    """Of payloads that were acknowledged when publishers began to wait, or when they did not."""
    has_waited: bool = False
    has_continued: bool = False
    memory_mib: float = 0.0


@dataclass(slots=True)
class SharedRecord:
    heard: Heard = field(default_factory=Heard)
    reading: Reading = field(default_factory=Reading)
    message_bytes: int = 0
    """Topics and payloads, each message once."""
    disk_bytes: int = 0
    """What the node's files grew by."""
    memory_mib: float = 0.0

    @property
    def disk_ratio(self) -> float | None:
        return self.disk_bytes / self.message_bytes if self.message_bytes else None


@dataclass(slots=True)
class StartRecord:
    heard: Heard = field(default_factory=Heard)
    reading: Reading = field(default_factory=Reading)
    seconds: float = 0.0
    """From the start of the program to its first answer to a ping."""
    memory_mib: float = 0.0


Record = LineRecord | FullRecord | SharedRecord | StartRecord
