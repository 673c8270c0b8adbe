"""What a mobile broker knows of one fixed broker: the stream, and what that one matches for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.fabric.delegation.registries import Registry
from hedgerow.fabric.delegation.stream import Record, Stream
from hedgerow.message import MessageId
from hedgerow.topics import TopicTree


class Unsettled(NamedTuple):
    """An event published here, until the fixed broker has done its part."""

    record: Record
    published: int
    """The how-manieth event of this broker."""


@dataclass(slots=True)
class Uplink:
    fixed_id: str
    stream: Stream
    outside: TopicTree[str, Registry] = field(default_factory=TopicTree)
    """What is matched here of the events that come from there, as the fixed broker sees it."""
    flips: deque[tuple[int, str, bool]] = field(default_factory=deque)
    """When this number is acknowledged, this topic filter is matched here, or no longer."""
    unsettled: dict[MessageId, Unsettled] = field(default_factory=dict)
    ever_served: set[str] = field(default_factory=set)
    """Clients that were there while something was unsettled: it may have been delivered to them there."""
    reclaimed: set[tuple[str, str]] = field(default_factory=set)
    """Events (ids) that were to follow these clients there, and were delivered here after all."""
    down_at: float | None = None
    is_lost: bool = False
    introduced: int | None = None
    """When this is acknowledged, the fixed broker knows every topic."""
    deactivated: int | None = None
    """When this is acknowledged, everything is recovered from there, to leave it."""
    farewell: int | None = None

    @property
    def handled(self) -> int:
        """How much of the stream the fixed broker has handled."""
        records = self.stream.records
        return records[0].number - 1 if records else self.stream.number

    def has_handled(self, number: int | None) -> bool:
        return number is not None and self.handled >= number
