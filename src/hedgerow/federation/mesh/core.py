"""What a node knows of one core: its announcements, and the ways to it.

"Any broker learns which neighboring brokers lead to the corresponding core, having as many parents as the
allowed mesh redundancy" (§4). The distance is the number of hops by the shortest way (Theorem 2), however
fast the links are. A parent is a neighbour that announced a smaller distance than this node did: along
parents the distance falls, so they lead to the core and never in a circle.

An announcement is passed on once, so that it crosses a link at most once in each direction (Theorem 1). Where
links are equally fast it comes by a shortest way first. Where they are not, it may come by a longer way
before. The first time, the node passes it on at once, and corrects what it said when it has come by a shorter
one: a correction goes to those alone whom it may bring nearer. From then on the node knows which neighbours
are nearer to the core than the one that was faster, and waits for them (`hold`) before it passes the next
announcement on. So corrections end when the distances are known.

The ways belong to the core, not to the filter: all meshes of one core share them.
"""

from __future__ import annotations

from enum import Enum

from hedgerow.federation.mesh.limits import HOLD_LATE, HOLD_S, MAX_HOLD_S
from hedgerow.federation.mesh.roster import Pending, Roster
from hedgerow.federation.mesh.serial import NONE_YET, is_after
from hedgerow.federation.mesh.wire import CoreAnnouncement

NEVER = float("inf")


def order(node_id: str) -> tuple[bool, int, str]:
    """The smallest id becomes the core: numbers before texts, by their value. Comparing two numbers by value
    and all else as text would be no order at all: 9 < 10, 10 < 1a, 1a < 9."""
    if node_id.isascii() and node_id.isdecimal():
        return False, int(node_id), node_id
    return True, 0, node_id


class Heard(Enum):
    """What an announcement is to a node."""

    FRESH = "fresh"  # to be passed on
    LATER = "later"  # to be passed on when it has come by a shorter way
    SHORTER = "shorter"  # It was passed on, with a distance that was too large.
    KNOWN = "known"


class Core:
    __slots__ = (
        "announced_version",
        "arrived_at",
        "asked_at",
        "asked_of",
        "distance",
        "edition",
        "expires_at",
        "heard",
        "held",
        "held_until",
        "id",
        "introduced_by",
        "is_lost",
        "late_s",
        "members",
        "order",
        "parents",
        "parts",
        "pending",
        "previous_sequence",
        "repaired_sequence",
        "roster",
        "sequence",
        "settles_at",
        "suspected_until",
        "timer_at",
        "told",
        "told_by",
        "wanted_by",
        "whole_from",
    )

    def __init__(self, core_id: str, introduced_by: str) -> None:
        self.id = core_id
        self.order = order(core_id)
        self.introduced_by = introduced_by
        """The neighbour that told of it first."""
        self.sequence = NONE_YET
        self.previous_sequence = NONE_YET
        self.distance = 0
        """From here, as we announced it, or will."""
        self.held: CoreAnnouncement | None = None
        """The last announcement, while it is not passed on."""
        self.held_until = NEVER
        self.arrived_at = -NEVER
        """When the last announcement came first."""
        self.late_s = 0.0
        """How long after that it came by the shortest way."""
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
        self.edition = 0
        """0: all of them are known. Else some, as `told_by` numbers them."""
        self.told_by: str | None = None
        self.parts = 0
        """How often others than these were known instead."""
        self.whole_from: set[str] = set()
        """Neighbours that told last of all of them."""
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
        return min(self.expires_at, self.settles_at, self.suspected_until, self.held_until)

    def hear(self, neighbour: str, sequence: int, distance: int, redundancy: int, now: float) -> Heard:
        """An announcement that is not outdated."""
        self.heard[neighbour] = sequence, distance
        if is_after(sequence, self.sequence):
            may_wait = not self.is_lost and self.repaired_sequence != self.sequence
            self.previous_sequence = self.sequence
            self.sequence = sequence
            self.arrived_at = now
            self.is_lost = False
            self.suspected_until = NEVER
            self.end_hold()
            found = Heard.LATER if may_wait and self.awaits_shorter else Heard.FRESH
            if found is Heard.FRESH:
                self.distance = distance + 1
        elif self.held is not None:
            found = Heard.LATER if self.awaits_shorter else Heard.FRESH
            if found is Heard.FRESH:
                self.measure(now)
        else:
            found = Heard.SHORTER if distance + 1 < self.distance else Heard.KNOWN
            if found is Heard.SHORTER:
                self._shorten(distance + 1, now)
        if distance < self.distance and neighbour not in self.parents and len(self.parents) < redundancy:
            self.parents.append(neighbour)
            self._sort_parents()
        return found

    @property
    def awaits_shorter(self) -> bool:
        """Was another neighbour nearer to the core at the last announcement than any that has passed on this
        one?"""
        return self._nearest(self.previous_sequence) < self._nearest(self.sequence)

    def _nearest(self, sequence: int) -> float:
        return min((far for of, far in self.heard.values() if of == sequence), default=NEVER)

    @property
    def nearest(self) -> str | None:
        """The neighbour nearest to the core of those that have passed on the last announcement."""
        current = [neighbour for neighbour in self.heard if self._is_current(neighbour)]
        return min(current, key=lambda neighbour: self.heard[neighbour][1], default=None)

    def hold(self, announcement: CoreAnnouncement, now: float) -> None:
        """Until it has come by the shortest way, but no longer than that takes as a rule."""
        self.held = announcement
        self.held_until = now + min(HOLD_S + HOLD_LATE * self.late_s, MAX_HOLD_S)

    def end_hold(self) -> CoreAnnouncement | None:
        """What was held."""
        held, self.held, self.held_until = self.held, None, NEVER
        return held

    def measure(self, now: float) -> None:
        """What was held is passed on: with the distance that is known by now."""
        nearest = self._nearest(self.sequence)
        if nearest != NEVER:
            self._shorten(int(nearest) + 1, now)

    def _shorten(self, distance: int, now: float) -> None:
        self.distance = distance
        self.late_s = now - self.arrived_at
        self.parents = [
            parent
            for parent in self.parents
            if not self._is_current(parent) or self.heard[parent][1] < distance
        ]

    def gains(self, neighbour: str) -> bool:
        """May this node's distance be news that brings the neighbour nearer, or gives it a parent?"""
        sequence, distance = self.heard.get(neighbour, (NONE_YET, 0))
        return sequence != self.sequence or distance > self.distance

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
        self.whole_from.discard(neighbour)
        if self.told_by == neighbour:
            self.told_by = None
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
