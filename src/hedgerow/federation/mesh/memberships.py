"""Who is a member of which meshes: what this node tells its parents, and what its children tell it.

"Mesh membership is published only once to the broker's parents" for each announcement (§5), and here also
when the meshes that this node is in have changed. A membership is a roster (`roster.py`): it is told once,
and later what is new in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hedgerow.federation.mesh import wire
from hedgerow.federation.mesh.core import Core
from hedgerow.federation.mesh.limits import MeshBounds, weight_of
from hedgerow.federation.mesh.meshes import Meshes
from hedgerow.federation.mesh.neighbour import Neighbour
from hedgerow.federation.mesh.outgoing import OutgoingPackets
from hedgerow.federation.mesh.roster import chain
from hedgerow.federation.mesh.serial import NONE_YET, is_after
from hedgerow.federation.mesh.stats import MeshStats
from hedgerow.federation.mesh.wire import About, FilterChanges, MembershipAnnouncement, MeshKind, Question


class Memberships:
    def __init__(
        self,
        meshes: Meshes,
        neighbours: dict[str, Neighbour],
        out: OutgoingPackets,
        stats: MeshStats,
        bounds: MeshBounds,
    ) -> None:
        self._meshes = meshes
        self._neighbours = neighbours
        self._out = out
        self._stats = stats
        self._bounds = bounds

    def tell_parents(self) -> None:
        """Of every core for which there is something to tell."""
        for core in self._meshes.dirty:
            self._tell_parents_of(core)
        self._meshes.dirty.clear()

    def _tell_parents_of(self, core: Core) -> None:
        pending, count = core.pending, len(core.members)
        core.told = {parent: told for parent, told in core.told.items() if parent in core.parents}
        before = count - len(pending.added) + len(pending.removed)
        for parent in core.parents:
            version, sequence = core.told.get(parent, (0, NONE_YET))
            visible = self._visible(core, parent)
            is_part = visible is not core.members
            if not version or (is_part and pending):
                # Of a part each time all: what changed would say how many others there are.
                steps = list(chain(0, 0, visible)) if visible or version else []
            elif pending:
                steps = list(chain(version, before, pending.added, pending.removed))
            else:
                is_told = not is_after(core.sequence, sequence)
                steps = [] if is_told else [FilterChanges(version, version, len(visible))]
            for changes in steps:
                entry = MembershipAnnouncement(core.id, core.sequence, changes)
                self._out.put([parent], MeshKind.MESH_MEMB_ANN, wire.encode_membership(entry))
                core.told[parent] = [changes.version, core.sequence]
            if is_part and not visible:
                core.told.pop(parent, None)
        if not count:
            core.told.clear()
        pending.clear()

    def _visible(self, core: Core, parent: str) -> Collection[str]:
        """Of the filters of whose meshes this node is a member, those of which the parent may know. If it has
        told of all filters of the core, it knows them."""
        neighbour = self._neighbours[parent]
        return core.members if parent in core.whole_from else neighbour.visible(core.members)

    def tell_again(self, core: Core, neighbour: Neighbour) -> None:
        """It could not follow: the whole."""
        core.told.pop(neighbour.id, None)
        self._meshes.dirty[core] = None

    def receive(self, neighbour: Neighbour, entry: MembershipAnnouncement, now: float) -> None:
        membership = neighbour.membership(entry.core)
        if membership is None:
            self._stats.ignored["too many cores"] += 1
            return
        difference = membership.roster.difference(entry.changes)
        if difference is None:
            question = wire.encode_question(Question(About.MEMBERSHIP, entry.core))
            self._out.put([neighbour.id], MeshKind.ASK, question)
            return
        new, gone = difference
        more = weight_of(new) - weight_of(gone)
        if neighbour.filters + more > self._bounds.memberships:
            self._stats.ignored["too many filters"] += 1
            return
        neighbour.filters += more
        if is_after(entry.sequence, membership.sequence):
            membership.sequence = entry.sequence
        membership.roster.follow(entry.changes.version, new, gone)
        for topic_filter in new:
            self._meshes.add_child(topic_filter, entry.core, neighbour.id, now)
        for topic_filter in gone:
            self._meshes.remove_child(topic_filter, entry.core, neighbour.id, now)
        if not membership.roster.filters:
            del neighbour.memberships[entry.core]

    def end_silent(self, core: Core, neighbours: Iterable[Neighbour], now: float) -> None:
        """Those that answered neither the last announcement nor the one before are no children any more."""
        for neighbour in neighbours:
            membership = neighbour.memberships.get(core.id)
            if membership is not None and is_after(core.previous_sequence, membership.sequence):
                self._meshes.end_membership(neighbour, core.id, now)
