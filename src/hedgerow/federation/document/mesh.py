"""The mesh of one topic, as one federator of the document's wire sees it (Spohn 2021, §3, §4 and §6).

A federator whose clients want the topic announces itself as core unless it knows of a smaller number; the
smallest remains. A fresh announcement, or one by a shorter way, begins the parents anew; those that come by
an equally short way are added, as many as the redundancy allows, small numbers first. A member tells each
parent once for each announcement that it is its child. A core that was not heard for three intervals is gone.

Other federators' intervals may be longer than ours, so a core's lifetime goes by the longer of the two.
"""

from __future__ import annotations

from hedgerow.federation.document.limits import LIFETIME_INTERVALS, MAX_CHILDREN, MAX_NUMBER, OVERLAP_S
from hedgerow.federation.document.wire import CoreAnn

NEVER = float("inf")


def is_later(sequence: int, other: int) -> bool:
    """Of two numbers of 32 bits the later one is at most half the circle ahead."""
    return 0 < (sequence - other) & MAX_NUMBER < 2**31


class DocumentMesh:
    __slots__ = (
        "_interval_s",
        "announce_at",
        "answered",
        "beacon_until",
        "children",
        "core",
        "distance",
        "heard_at",
        "inventor",
        "is_invented",
        "is_listening",
        "is_wanted",
        "me",
        "parents",
        "sequence",
        "timer_at",
        "topic",
    )

    def __init__(self, topic: str, me: int, interval_s: float) -> None:
        self.topic = topic
        self.me = me
        self.core: int | None = None
        self.sequence = 0
        """Of the core's last announcement."""
        self.distance = 0
        self.parents: list[int] = []
        self.answered: set[int] = set()
        """Parents that know that this node is their child, of the last announcement."""
        self.children: dict[int, float] = {}
        """→ when they said so last."""
        self.is_wanted = False
        """Here or behind our own links."""
        self.is_invented = False
        """Others began it,"""
        self.inventor: str | None = None
        """and it counts for the owner of who said it first."""
        self.beacon_until = -NEVER
        """Clients that follow the document want it until then."""
        self.heard_at = -NEVER
        self.announce_at = NEVER
        self.timer_at = NEVER
        self.is_listening = False
        """Does what is published here go to its members?"""
        self._interval_s = interval_s

    @property
    def is_core(self) -> bool:
        return self.core == self.me

    @property
    def is_member(self) -> bool:
        return self.is_wanted or bool(self.children)

    @property
    def is_empty(self) -> bool:
        return self.core is None and not self.is_wanted and not self.children

    @property
    def lifetime_s(self) -> float:
        return LIFETIME_INTERVALS * self._interval_s

    @property
    def deadline(self) -> float:
        lost_at = NEVER if self.core is None or self.is_core else self.heard_at + self.lifetime_s
        child = min(self.children.values(), default=NEVER) + self.lifetime_s
        beacon = self.beacon_until if self.beacon_until > -NEVER else NEVER
        return min(lost_at, child, beacon, self.announce_at)

    def hear(self, entry: CoreAnn, redundancy: int, now: float) -> bool:
        """A neighbour's announcement. True: it is to be passed on, with `distance`."""
        distance = entry.distance + 1
        if self.core is None or entry.core < self.core:
            self._adopt(entry, now)
        elif entry.core > self.core:
            return False
        elif is_later(entry.sequence, self.sequence) or self._begins_anew(entry):
            gap_s = now - self.heard_at
            # One that was lost on the way makes the gap twice as long, and no more.
            self._interval_s = max(self._interval_s, min(gap_s, 2 * self._interval_s))
            self.sequence = entry.sequence
        elif entry.sequence != self.sequence or distance > self.distance:
            return False
        elif distance == self.distance:
            self._add_parent(entry.sender, redundancy)
            return False
        self.heard_at = now
        self.distance = distance
        self.parents = [entry.sender]
        self.answered.clear()
        return True

    def _begins_anew(self, entry: CoreAnn) -> bool:
        """What a parent says comes in order: an earlier number is that of a core which was started again."""
        return entry.sender in self.parents and is_later(self.sequence, entry.sequence)

    def _adopt(self, entry: CoreAnn, now: float) -> None:
        """The children of the last core stay for a moment: the mesh of this one is yet to form."""
        self.core, self.sequence = entry.core, entry.sequence
        self.announce_at = NEVER
        self._keep_children(now)

    def _keep_children(self, now: float) -> None:
        latest = now - self.lifetime_s + OVERLAP_S
        self.children = {child: min(at, latest) for child, at in self.children.items()}

    def _add_parent(self, sender: int, redundancy: int) -> None:
        if sender not in self.parents:
            self.parents = sorted((*self.parents, sender))[:redundancy]

    def become_core(self, sequence: int, now: float) -> None:
        self._keep_children(now)
        self.core, self.sequence, self.distance = self.me, sequence, 0
        self.parents = []
        self.answered.clear()
        self.announce_at = now

    def lose_core(self) -> None:
        self.core, self.announce_at = None, NEVER
        self.parents = []
        self.children.clear()

    def add_child(self, core: int, sequence: int, sender: int, now: float) -> bool:
        """A neighbour says that this node is its parent. False: that was of another announcement."""
        if core != self.core or is_later(sequence, self.sequence):
            return False
        if not self.is_core and sequence != self.sequence:
            return False
        if sender not in self.children and len(self.children) >= MAX_CHILDREN:
            return False
        self.children[sender] = now
        return True

    def take_unanswered(self) -> list[int]:
        """Parents that are to hear that this node is their child."""
        if not self.is_member or self.is_core:
            return []
        found = [parent for parent in self.parents if parent not in self.answered]
        self.answered.update(found)
        return found

    def end(self, now: float) -> None:
        """What was not heard for too long is gone."""
        if self.core is not None and not self.is_core and self.heard_at + self.lifetime_s <= now:
            self.lose_core()
        for child in [each for each, at in self.children.items() if at + self.lifetime_s <= now]:
            del self.children[child]
        if self.beacon_until <= now:
            self.beacon_until = -NEVER

    def targets(self, sender: int | None) -> list[int]:
        """Neighbours that a publication goes to: of a member all, of another node one, which leads to the
        core; the largest, as small numbers have the work of cores. There are none where nobody wants it."""
        if self.core is None:
            return []
        if not self.is_member:
            found = self.parents[-1:]
        else:
            found = list(dict.fromkeys((*self.parents, *self.children)))
        return [each for each in found if each != sender]
