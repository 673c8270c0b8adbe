"""What an overlay may be set to, its times, and the bounds on what others can make grow."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ACTIVE = 16
MAX_ADDRESSES = 4  # of one member
MAX_WALK = 32


@dataclass(slots=True, frozen=True)
class OverlaySettings:
    active_target: int = 5
    """With fewer neighbours than this, more are looked for."""
    active_at_most: int = 7
    """With this many, only a node that would be alone is let in, for another. Static ones are not counted."""
    passive_at_most: int = 30
    forward_walk: int = 6
    """How many steps a newcomer's name walks before it becomes a neighbour (ARWL),"""
    passive_walk: int = 3
    """and with how many left it enters a passive view (PRWL)."""
    shuffle_s: float = 10.0
    optimise_s: float = 5.0
    """How often a nearer neighbour is looked for."""

    def __post_init__(self) -> None:
        if not 1 <= self.active_target <= self.active_at_most <= MAX_ACTIVE:
            raise ValueError(f"1 ≤ active_target ≤ active_at_most ≤ {MAX_ACTIVE} does not hold")
        if self.passive_at_most < 1 or not 0 <= self.passive_walk <= self.forward_walk <= MAX_WALK:
            raise ValueError(
                f"1 ≤ passive_at_most and 0 ≤ passive_walk ≤ forward_walk ≤ {MAX_WALK} do not hold"
            )


REPAIR_S = 1.0  # How often a node with too few neighbours tries another.
REST_S = 20.0  # A node that refused, or is not nearer, is left alone for so long.
# A static neighbour that is away is tried again. Not less often after a long absence: two parts of a
# federation are to be one within seconds of a mended link, however long it was cut.
STATIC_AGAIN_S = (0.5, 1.0, 2.0)
# How often one that was lost is tried: both halves of a partition have only themselves else.
REUNION_S = 15.0
DIAL_S = 10.0  # for the shell to open a link or give up
IDLE_S = 5.0  # A link on which nobody becomes a neighbour is closed.
ANSWER_S = 5.0
WALK_S = 10.0  # for the answer to a shuffle to come back

# Swapping neighbours costs packets and interrupts streams: only for one that is clearly nearer.
NEARER = 0.8

# How far a neighbour is: the least of so many answers. The others say how busy the two nodes are.
ROUND_TRIPS = 8
# As long as that differs by less, in part or in all, nothing has changed.
SAME_ROUND_TRIP = 0.25
SAME_ROUND_TRIP_S = 0.0005

SHUFFLE_ACTIVE = 3
SHUFFLE_PASSIVE = 6

MAX_STATIC = 64
MAX_CONTACTS = 16
MAX_LINKS = 128  # open, neighbours or not
MAX_DIALS = 8  # A flood of invented newcomers must not make this node a port scanner.
MAX_DEPARTED = 32
MAX_WALKS = 256  # shuffles of others whose answer may come back this way
MAX_SEQUENCES = 4_096  # Only who has the key takes a place.
MAX_EVENTS = 256
PACKETS_PER_S = 50.0  # of one link; a member needs two or three
