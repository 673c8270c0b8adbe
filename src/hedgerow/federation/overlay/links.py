"""What a node knows of its open links, and what it counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from hedgerow.federation.overlay.limits import PACKETS_PER_S, ROUND_TRIPS
from hedgerow.federation.overlay.wire import Peer
from hedgerow.rates import Allowance

BURST_S = 10.0  # A contact whom hundreds join at once has hundreds of names to pass on.


class OverlayLinkState(Enum):
    IDLE = auto()
    """Open; nobody has asked yet, or nobody is a neighbour any more."""
    ASKED = auto()
    ACTIVE = auto()


class Purpose(Enum):
    """What a link is wanted for."""

    JOIN = auto()
    NEIGHBOUR = auto()
    STATIC = auto()
    PROBE = auto()
    """To see how far it is, and to be its neighbour if it is nearer than one that we have."""


@dataclass(slots=True)
class OverlayLink:
    peer: Peer
    round_trip_s: float
    """At first how long the other end took to answer, busy or not; then as probes say."""
    until: float
    """When it is closed unless it has become a neighbour's."""
    state: OverlayLinkState = OverlayLinkState.IDLE
    purpose: Purpose | None = None
    is_static: bool = False
    others: dict[str, Peer] = field(default_factory=dict)
    """Its neighbours, as it last told."""
    told: frozenset[str] = frozenset()
    """Our neighbours, as we last told it,"""
    told_us: int = 0
    """and how far it is, in microseconds."""
    round_trips: deque[float] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))
    """What this end has measured last; nothing where the other end dialled, which measures and tells."""
    allowance: Allowance = field(default_factory=lambda: Allowance(PACKETS_PER_S, BURST_S))


@dataclass(slots=True)
class OverlayStats:
    sent: int = 0
    received: int = 0
    malformed: int = 0
    other_version: int = 0
    forged: int = 0
    """Without the key, or in another's name."""
    replayed: int = 0
    flooded: int = 0
    """Links closed because too much came."""
    strangers: int = 0
    """Packets from nodes to whom there is no link."""
    crowded: int = 0
    """Links refused, and newcomers not connected to, because there were too many."""
    evicted: int = 0
    swapped: int = 0
    """Neighbours let go because nearer ones had come."""

    def ignored(self) -> dict[str, int]:
        """Packets by the reason for which they were passed over."""
        names = ("malformed", "other_version", "forged", "replayed", "flooded", "strangers")
        return {name: getattr(self, name) for name in names}
