"""A broker of the federation with nothing but its routing: it passes publications on to whom its federator
says, each once, and writes down which ones came.

A publication travels as an object beside the federator's own packets, since only its way counts here. The log
of what came is not bounded: a run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Protocol


class Router(Protocol):
    """What is needed of a federator."""

    @property
    def deadline(self) -> float | None: ...

    def add_neighbour(self, neighbour_id: str, now: float) -> None: ...
    def remove_neighbour(self, neighbour_id: str, now: float) -> None: ...
    def subscribe(self, topic_filter: str, now: float) -> None: ...
    def receive(self, neighbour_id: str, payload: bytes, now: float) -> None: ...
    def handle_timer(self, now: float) -> None: ...
    def take_packets(self) -> Iterable[tuple[str, bytes]]: ...
    def take_changes(self) -> Sized: ...
    def targets(self, topic: str, sender: str | None) -> Iterable[str]: ...
    def core_of(self, topic_filter: str) -> str | None: ...
    def is_member(self, topic_filter: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Publication:
    number: int
    topic: str
    hops: int = 0


@dataclass(slots=True)
class Activity:
    """What all brokers of a network tell together."""

    changes: int = 0
    """How often one of them began or ended to send the filter to a neighbour."""
    arrivals: int = 0
    """Publications that came to a broker, for the first time."""
    copies: int = 0
    """And again."""


class Broker:
    __slots__ = ("_activity", "_publications", "arrived", "federator")

    def __init__(self, federator: Router, activity: Activity) -> None:
        self.federator = federator
        self.arrived: dict[int, tuple[float, int]] = {}
        """Number of a publication → when it came, and over how many links."""
        self._activity = activity
        self._publications: list[tuple[str, Publication]] = []

    @property
    def deadline(self) -> float | None:
        return self.federator.deadline

    def add_neighbour(self, neighbour: str, now: float) -> None:
        self.federator.add_neighbour(neighbour, now)
        self._note_changes()

    def remove_neighbour(self, neighbour: str, now: float) -> None:
        self.federator.remove_neighbour(neighbour, now)
        self._note_changes()

    def subscribe(self, topic_filter: str, now: float) -> None:
        self.federator.subscribe(topic_filter, now)
        self._note_changes()

    def handle_timer(self, now: float) -> None:
        self.federator.handle_timer(now)
        self._note_changes()

    def receive(self, neighbour: str, data: bytes | Publication, now: float) -> None:
        if isinstance(data, bytes):
            self.federator.receive(neighbour, data, now)
            self._note_changes()
        else:
            self._pass_on(data, neighbour, now)

    def publish(self, publication: Publication, now: float) -> None:
        self._pass_on(publication, None, now)

    def take_packets(self) -> Iterable[tuple[str, bytes | Publication]]:
        packets = self.federator.take_packets()
        if not self._publications:
            return packets
        publications, self._publications = self._publications, []
        return [*packets, *publications]

    def _pass_on(self, publication: Publication, sender: str | None, now: float) -> None:
        if publication.number in self.arrived:
            self._activity.copies += 1
            return
        self._activity.arrivals += 1
        self.arrived[publication.number] = now, publication.hops
        onward = Publication(publication.number, publication.topic, publication.hops + 1)
        targets = self.federator.targets(publication.topic, sender)
        self._publications += ((target, onward) for target in targets)

    def _note_changes(self) -> None:
        self._activity.changes += len(self.federator.take_changes())
