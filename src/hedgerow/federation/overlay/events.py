"""What an overlay reports to people, as facts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.facts import NodeFact


@dataclass(frozen=True, slots=True)
class NeighbourGained(NodeFact):
    history_kind: ClassVar[str] = "joined"
    node_id: str
    round_trip_s: float

    def __str__(self) -> str:
        return f"{self.node_id} is a neighbour, {self.round_trip_s * 1000:.1f} ms away"


@dataclass(frozen=True, slots=True)
class NeighbourLost(NodeFact):
    history_kind: ClassVar[str] = "lost"
    node_id: str
    why: str

    def __str__(self) -> str:
        return f"{self.node_id} is no neighbour any more: {self.why}"


@dataclass(frozen=True, slots=True)
class PeerRefused(NodeFact):
    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "refused"
    node_id: str
    why: str

    def __str__(self) -> str:
        return f"{self.node_id!r} is refused: {self.why}"


OverlayEvent = NeighbourGained | NeighbourLost | PeerRefused
