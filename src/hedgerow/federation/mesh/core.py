"""What a node knows of one core: its announcements, and the ways to it.

"Any broker learns which neighboring brokers lead to the corresponding core, having as many parents as the
allowed mesh redundancy" (§4). A node takes its distance from the neighbour from which it hears an
announcement first and passes it on once, so that each announcement crosses a link at most once in each
direction (Theorem 1). A parent is a neighbour that announced a smaller distance than this node did: along
parents the distance falls, so they lead to the core and never in a circle. Where the links are equally fast
the distance is the number of hops; otherwise it is that of the fastest way.

The ways belong to the core, not to the filter: all meshes of one core share them.
"""

from __future__ import annotations

from hedgerow.federation.mesh.roster import Pending, Roster
from hedgerow.federation.mesh.serial import NONE_YET, is_after

NEVER = float("inf")


def order(node_id: str) -> tuple[bool, int, str]:
    """The smallest id becomes the core: numbers before texts, by their value. Comparing two numbers by value
    and all else as text would be no order at all: 9 < 10, 10 < 1a, 1a < 9."""
    if node_id.isascii() and node_id.isdecimal():
        return False, int(node_id), node_id
    return True, 0, node_id


class Core:
    __slots__ = (
        "announced_version",
        "asked_at",
        "asked_of",
        "distance",
        "expires_at",
        "heard",
        "id",
        "introduced_by",
        "is_lost",
        "members",
        "order",
        "parents",
        "pending",
        "previous_sequence",
        "repaired_sequence",
        "roster",
        "sequence",
        "settles_at",
        "suspected_until",
        "timer_at",
        "told",
        "wanted_by",
    )

    def __init__(self, core_id: str, introduced_by: str) -> None:
        self.id = core_id
        self.order = order(core_id)
        self.introduced_by = introduced_by
        """The neighbour that told of it first."""
        self.sequence = NONE_YET
        self.previous_sequence = NONE_YET
        self.distance = 0
        """From here, as we announced it."""
        self.heard: dict[str, tuple[int, int]] = {}
        """Neighbour → the sequence and distance that it announced last."""
        self.parents: list[str] = []
        """The best first: outside of the mesh it is the one that gets publications."""
        self.is_lost = False
        self.expires_at = NEVER
        self.settles_at = NEVER
        self.suspected_until = NEVER
        self.timer_at = NEVER
        self.repaired_sequence = NONE_YET
        """The last announcement after which an early one was asked for."""
        # The filters of whose meshes it is the core.
        self.roster = Roster()
        self.announced_version = 0
        self.asked_of: str | None = None
        self.asked_at = -NEVER
        self.wanted_by: set[str] = set()
        """Neighbours that asked for the list while it was not complete."""
        # The filters of its meshes of which this node is a member.
        self.members: set[str] = set()
        self.pending = Pending()
        """What the parents have not been told of it."""
        self.told: dict[str, list[int]] = {}
        """Parent → [the version of `members` that it has, the sequence with which it was told last]."""

    @property
    def is_complete(self) -> bool:
        """Is the list the one of the last announcement?"""
        return self.roster.version == self.announced_version

    @property
    def due_at(self) -> float:
        return min(self.expires_at, self.settles_at, self.suspected_until)

    def hear(self, neighbour: str, sequence: int, distance: int, redundancy: int) -> bool:
        """An announcement that is not outdated. True when it is a fresh one, to be passed on."""
        self.heard[neighbour] = sequence, distance
        is_fresh = is_after(sequence, self.sequence)
        if is_fresh:
            self.previous_sequence = self.sequence
            self.sequence = sequence
            self.distance = distance + 1
            self.is_lost = False
            self.suspected_until = NEVER
        if distance < self.distance and neighbour not in self.parents and len(self.parents) < redundancy:
            self.parents.append(neighbour)
            self._sort_parents()
        return is_fresh

    @property
    def has_way(self) -> bool:
        """Has a parent passed on the last announcement? Those of the one before may lead nowhere."""
        return any(self._is_current(parent) for parent in self.parents)

    @property
    def is_settled(self) -> bool:
        """Has every parent passed on the last announcement?"""
        return all(self._is_current(parent) for parent in self.parents)

    def settle(self, redundancy: int) -> None:
        """From now on only who passed on the last announcement is a parent. "Which are known to be closer to
        the core" (§5); among equals the largest id, as small ones have the work of cores already."""
        closer = [
            neighbour
            for neighbour, (sequence, distance) in self.heard.items()
            if sequence == self.sequence and distance < self.distance
        ]
        self.parents = closer
        self._sort_parents()
        del self.parents[redundancy:]

    def lose(self, neighbour: str, redundancy: int) -> bool:
        """The link to a neighbour is gone. True when it was a parent; others have taken over, if there are
        any."""
        self.heard.pop(neighbour, None)
        self.told.pop(neighbour, None)
        self.wanted_by.discard(neighbour)
        if self.asked_of == neighbour:
            self.asked_of, self.asked_at = None, -NEVER
        if neighbour not in self.parents:
            return False
        self.parents.remove(neighbour)
        for other, (sequence, distance) in self.heard.items():
            if len(self.parents) >= redundancy:
                break
            if sequence == self.sequence and distance < self.distance and other not in self.parents:
                self.parents.append(other)
        self._sort_parents()
        return True

    def _is_current(self, neighbour: str) -> bool:
        return self.heard[neighbour][0] == self.sequence

    def _sort_parents(self) -> None:
        self.parents.sort(key=order, reverse=True)
        self.parents.sort(key=lambda parent: self.heard[parent][1])
