"""The events of the last hour, in words that people look for: joined, lost, healed, delegated, refused.

Whatever is written to the event log comes here too, at whichever level the log is. Each kind has its own
room, so that a peer that is refused all the time pushes out neither the loss of a neighbour nor its return.
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from typing import NamedTuple

from hedgerow.broker import events as broker
from hedgerow.node.events import Event

KEPT_S = 3_600.0
MAX_OF_KIND = 200
MAX_LOST = 1_000  # names of whom it is remembered that they were lost
MAX_TEXT = 300

# Those of the broker, which are about clients; others say it themselves.
KINDS: dict[type, str] = {
    broker.ClientConnected: "connected",
    broker.ClientDisconnected: "disconnected",
    broker.ConnectionRefused: "refused",
    broker.ProtocolBroken: "refused",
    broker.PublicationRefused: "refused",
    broker.DeliveriesDropped: "dropped",
    broker.MessageSetAside: "dropped",
}
OTHER = "other"

# What a link is known by: so that its return is told as such.
NAMES = ("node_id", "fixed_broker", "name")


class Past(NamedTuple):
    number: int
    """Events are numbered from 1 in the order in which they happened."""
    at: float
    kind: str
    event: Event | str
    """Or its text. Thousands of clients may come at once, and nobody looks at most of what they do."""

    @property
    def text(self) -> str:
        return str(self.event)[:MAX_TEXT]


class History:
    def __init__(self) -> None:
        self._last = 0
        # By kind, and whether they are of nodes: what a `Past` has but for its kind.
        self._events: dict[tuple[str, bool], deque[tuple[int, float, Event | str]]] = {}
        self._lost: set[str] = set()

    def add(self, event: Event, now: float) -> None:
        self._last += 1
        kind, is_of_nodes = KINDS.get(type(event)), False
        if kind is None:
            kind = self._heal(getattr(event, "history_kind", OTHER), event)
            is_of_nodes = getattr(event, "is_of_nodes", False)
        key = (kind, is_of_nodes)
        events = self._events.get(key)
        if events is None:
            events = self._events[key] = deque(maxlen=MAX_OF_KIND)
        events.append((self._last, now, event if _is_small(event) else str(event)[:MAX_TEXT]))

    def newest(self, now: float, limit: int, *, with_clients: bool = True) -> list[Past]:
        """The newest first."""
        for events in self._events.values():
            while events and events[0][1] < now - KEPT_S:
                events.popleft()
        wanted = (
            [Past(number, at, kind, event) for number, at, event in reversed(each)]
            for (kind, is_of_nodes), each in self._events.items()
            if with_clients or is_of_nodes
        )
        in_order = merge(*wanted, key=lambda each: -each.number)
        return [past for past, _ in zip(in_order, range(limit), strict=False)]

    def _heal(self, kind: str, event: Event) -> str:
        if kind not in ("joined", "lost"):
            return kind
        name = next((str(getattr(event, each)) for each in NAMES if hasattr(event, each)), "")
        if not name:
            return kind
        if kind == "lost":
            if len(self._lost) < MAX_LOST:
                self._lost.add(name)
            return kind
        if name in self._lost:
            self._lost.discard(name)
            return "healed"
        return kind


def _is_small(event: Event) -> bool:
    """May it be kept as it is? What a peer says of itself may have 64 KiB."""
    if isinstance(event, broker.ClientConnected):
        return len(event.client_id) + len(event.username or "") <= MAX_TEXT
    return (
        isinstance(event, broker.ClientDisconnected) and len(event.client_id) + len(event.reason) <= MAX_TEXT
    )
