"""A broker of the federation with nothing but its routing: it passes publications on to whom its federator
says, each once, and writes down which ones came.

A neighbour has a session here, as at a node's broker (`federation/neighbour_session.py`), and publications
are of QoS 1. What was sent in the last seconds of a connection counts as not acknowledged, and is sent
again on the next one: to send acknowledgements would be a third of a run's events. A filter that is new to
a session brings along what matches of the last seconds, of which the neighbour drops what it has. The
session of a neighbour that is gone keeps its filters, so that more waits for it; when it has been back for
a while it has those that the federator says.

A publication travels as an object beside the federator's own packets, since only its way counts here. The log
of what came is not bounded: a run ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from hedgerow.topics import matches

KEEP_S = 10.0
SETTLE_S = 10.0


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
    def take_changes(self) -> Iterable[tuple[str, str, bool]]: ...
    def filters_of(self, neighbour_id: str) -> Iterable[str]: ...
    def targets(self, topic: str, sender: str | None) -> Iterable[str]: ...
    def core_of(self, topic_filter: str) -> str | None: ...
    def is_member(self, topic_filter: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class VirtualPublication:
    number: int
    topic: str
    hops: int = 0


Data = bytes | VirtualPublication


@dataclass(slots=True)
class Activity:
    """What all brokers of a network tell together."""

    changes: int = 0
    """How often one of them began or ended to send the filter to a neighbour."""
    arrivals: int = 0
    """Publications that came to a broker, for the first time."""
    copies: int = 0
    """And again."""


@dataclass(slots=True)
class Session:
    is_up: bool = False
    filters: set[str] = field(default_factory=set)
    sent: deque[tuple[float, VirtualPublication]] = field(default_factory=deque)
    """On this connection, with the time."""
    waiting: dict[int, VirtualPublication] = field(default_factory=dict)
    """For the next connection, while there is none."""

    def wants(self, publication: VirtualPublication) -> bool:
        return any(matches(topic_filter, publication.topic) for topic_filter in self.filters)


class Broker:
    __slots__ = ("_activity", "_out", "_recent", "_sessions", "_settle_at", "arrived", "federator")

    def __init__(self, federator: Router, activity: Activity) -> None:
        self.federator = federator
        self.arrived: dict[int, tuple[float, int]] = {}
        """Number of a publication → when it came, and over how many links."""
        self._activity = activity
        self._sessions: dict[str, Session] = {}
        self._settle_at: dict[str, float] = {}
        """Neighbour that is back → when it has had the time to be given its filters."""
        self._recent: deque[tuple[float, VirtualPublication]] = deque()
        self._out: list[tuple[str, VirtualPublication]] = []

    @property
    def deadline(self) -> float | None:
        deadline = self.federator.deadline
        if not self._settle_at:
            return deadline
        settle_at = min(self._settle_at.values())
        return settle_at if deadline is None else min(deadline, settle_at)

    def add_neighbour(self, neighbour: str, now: float) -> None:
        session = self._sessions.setdefault(neighbour, Session())
        session.is_up = True
        waiting, session.waiting = session.waiting, {}
        for publication in waiting.values():
            self._send(neighbour, session, publication, now)
        if session.filters:
            self._settle_at[neighbour] = now + SETTLE_S
        self.federator.add_neighbour(neighbour, now)
        self._follow_changes(now)

    def remove_neighbour(self, neighbour: str, now: float) -> None:
        session = self._sessions[neighbour]
        session.is_up = False
        session.waiting = {each.number: each for at, each in session.sent if at > now - KEEP_S}
        session.sent.clear()
        self._settle_at.pop(neighbour, None)
        self.federator.remove_neighbour(neighbour, now)
        self._follow_changes(now)

    def subscribe(self, topic_filter: str, now: float) -> None:
        self.federator.subscribe(topic_filter, now)
        self._follow_changes(now)

    def handle_timer(self, now: float) -> None:
        deadline = self.federator.deadline
        if deadline is not None and deadline <= now:
            self.federator.handle_timer(now)
            self._follow_changes(now)
        for neighbour in [each for each, at in self._settle_at.items() if at <= now]:
            del self._settle_at[neighbour]
            self._sessions[neighbour].filters.intersection_update(self.federator.filters_of(neighbour))

    def receive(self, neighbour: str, data: Data, now: float) -> None:
        if isinstance(data, bytes):
            self.federator.receive(neighbour, data, now)
            self._follow_changes(now)
        else:
            self._pass_on(data, neighbour, now)

    def publish(self, publication: VirtualPublication, now: float) -> None:
        self._pass_on(publication, None, now)

    def take_packets(self) -> Iterable[tuple[str, Data]]:
        packets = self.federator.take_packets()
        if not self._out:
            return packets
        out, self._out = self._out, []
        return [*packets, *out]

    def _pass_on(self, publication: VirtualPublication, sender: str | None, now: float) -> None:
        if publication.number in self.arrived:
            self._activity.copies += 1
            return
        self._activity.arrivals += 1
        self.arrived[publication.number] = now, publication.hops
        onward = replace(publication, hops=publication.hops + 1)
        self._recent.append((now, onward))
        for neighbour, session in self._sessions.items():
            if neighbour != sender and session.wants(publication):
                self._send(neighbour, session, onward, now)

    def _send(self, neighbour: str, session: Session, publication: VirtualPublication, now: float) -> None:
        if session.is_up:
            session.sent.append((now, publication))
            self._out.append((neighbour, publication))
        else:
            session.waiting[publication.number] = publication

    def _follow_changes(self, now: float) -> None:
        for neighbour, topic_filter, is_wanted in self.federator.take_changes():
            self._activity.changes += 1
            session = self._sessions[neighbour]
            if not is_wanted:
                if session.is_up:
                    session.filters.discard(topic_filter)
            elif topic_filter not in session.filters:
                session.filters.add(topic_filter)
                self._replay(neighbour, session, topic_filter, now)

    def _replay(self, neighbour: str, session: Session, topic_filter: str, now: float) -> None:
        """What has just flowed, and what waits for those who are away: this may be the way that is left."""
        while self._recent and self._recent[0][0] + KEEP_S <= now:
            self._recent.popleft()
        away = [other.waiting for other in self._sessions.values() if not other.is_up]
        found = {publication.number: publication for _, publication in self._recent}
        found |= {number: publication for waiting in away for number, publication in waiting.items()}
        for publication in found.values():
            if matches(topic_filter, publication.topic):
                self._send(neighbour, session, publication, now)
