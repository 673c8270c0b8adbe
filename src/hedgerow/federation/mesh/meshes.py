"""All meshes that a node knows, and what follows from a change in one of them.

Whatever changes, `refresh` finds out anew for that one filter: whether this node is to announce itself as its
core, who is, whether this node is a member, and who is to get its publications. What others have to be told
of it is left for the federator: `own.pending` (this node's list as a core) and `dirty` (cores whose parents
are told of memberships).
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from hedgerow.federation.mesh.core import NEVER, Core, order
from hedgerow.federation.mesh.limits import BOUNDS, OVERLAP_S, MeshBounds, weight_of
from hedgerow.federation.mesh.mesh import Mesh
from hedgerow.federation.mesh.neighbour import Neighbour
from hedgerow.topics import TopicTree

Change = tuple[str, str, bool]


class FilterState(NamedTuple):
    """The mesh of a filter, for people."""

    topic_filter: str
    core: str | None
    distance: int | None
    """From the core, in links; None without one."""
    parents: tuple[str, ...]
    children: tuple[str, ...]
    is_member: bool
    is_local: bool
    """Has this broker subscribers of it?"""


class Meshes:
    def __init__(self, own: Core, bounds: MeshBounds = BOUNDS) -> None:
        self.by_filter: dict[str, Mesh] = {}
        self.dirty: dict[Core, None] = {}
        self.unclaimed: set[str] = set()
        """Filters whose core is lost, and of which this node may have to become the core."""
        self.forgotten: list[str] = []
        """Filters whose mesh is gone, for whoever takes them."""
        self._own = own
        self._bounds = bounds
        self._tree: TopicTree[str, Mesh] = TopicTree()
        self._changes: dict[tuple[str, str], bool] = {}
        self._overlaps: deque[tuple[float, str]] = deque()

    @property
    def deadline(self) -> float:
        return self._overlaps[0][0] if self._overlaps else NEVER

    def targets(self, topic: str, sender: str | None) -> list[str]:
        meshes = (mesh for _, mesh in self._tree.match(topic))
        found = dict.fromkeys(receiver for mesh in meshes for receiver in mesh.receivers)
        if sender is not None:
            found.pop(sender, None)
        return list(found)

    def describe(self, most: int | None) -> list[FilterState]:
        return [_state_of(mesh) for mesh in islice(self.by_filter.values(), most)]

    def take_changes(self) -> list[Change]:
        changes = [(neighbour, name, is_wanted) for (neighbour, name), is_wanted in self._changes.items()]
        self._changes.clear()
        return changes

    def set_local(self, topic_filter: str, is_local: bool, now: float) -> None:
        mesh = self._mesh(topic_filter)
        mesh.is_local = is_local
        self.refresh(mesh, now)

    def add_core(self, topic_filter: str, core: Core, now: float) -> None:
        mesh = self._mesh(topic_filter)
        mesh.cores[core.id] = core
        self.refresh(mesh, now)

    def remove_core(self, topic_filter: str, core: Core, now: float) -> None:
        mesh = self.by_filter[topic_filter]
        mesh.cores.pop(core.id, None)
        self.refresh(mesh, now, is_loss=True)

    def forget_core(self, core: Core, now: float) -> None:
        """It is gone with all that was known of it, so that its ways lead nowhere."""
        core.heard.clear()
        core.parents.clear()
        for topic_filter in core.roster.filters | core.members:
            mesh = self.by_filter[topic_filter]
            mesh.cores.pop(core.id, None)
            mesh.core = None if mesh.core is core else mesh.core
            mesh.previous_core = None if mesh.previous_core is core else mesh.previous_core
            self.refresh(mesh, now, is_loss=True)
        core.members.clear()
        self.dirty.pop(core, None)

    def forget_neighbour(self, neighbour: str, now: float) -> None:
        """No core has it as a parent any more, and no mesh as a child."""
        for mesh in [mesh for mesh in self.by_filter.values() if neighbour in mesh.receivers]:
            self.refresh(mesh, now)

    def refresh_core(self, core: Core, now: float) -> None:
        """Its parents, or whether it lives, are no longer the same."""
        for topic_filter in core.roster.filters | core.members:
            self.refresh(self.by_filter[topic_filter], now, is_loss=core.is_lost)

    def add_child(self, topic_filter: str, core_id: str, neighbour: str, now: float) -> None:
        mesh = self._mesh(topic_filter)
        mesh.children.setdefault(core_id, set()).add(neighbour)
        self.refresh(mesh, now)

    def remove_child(self, topic_filter: str, core_id: str, neighbour: str, now: float) -> None:
        mesh = self.by_filter[topic_filter]
        children = mesh.children[core_id]
        children.discard(neighbour)
        if not children:
            del mesh.children[core_id]
        self.refresh(mesh, now)

    def end_membership(self, neighbour: Neighbour, core_id: str, now: float) -> None:
        """It is no child any more in any mesh of this core."""
        membership = neighbour.memberships.pop(core_id, None)
        if membership is None:
            return
        neighbour.filters -= weight_of(membership.roster.filters)
        for topic_filter in membership.roster.filters:
            self.remove_child(topic_filter, core_id, neighbour.id, now)

    def claim(self, now: float) -> None:
        """Become the core of what nobody with a smaller id has claimed meanwhile."""
        waiting = sorted(self.unclaimed)
        self.unclaimed.clear()
        for topic_filter in waiting:
            mesh = self.by_filter.get(topic_filter)
            if mesh is not None:
                self.refresh(mesh, now)

    def end_overlaps(self, now: float) -> None:
        while self._overlaps and self._overlaps[0][0] <= now:
            mesh = self.by_filter.get(self._overlaps.popleft()[1])
            if mesh is not None:
                self.refresh(mesh, now)

    def refresh(self, mesh: Mesh, now: float, *, is_loss: bool = False) -> None:
        self._claim_or_yield(mesh, is_loss)
        core = mesh.elect()
        if core is not mesh.core:
            if mesh.core is not None:
                if mesh.previous_core is not core:
                    self._set_member(mesh.previous_core, mesh.topic_filter, False)
                mesh.previous_core = mesh.core
            elif mesh.previous_core is core:
                mesh.previous_core = None
            mesh.core = core
            if len(self._overlaps) >= self._bounds.filters:
                self._set_member(mesh.previous_core, mesh.topic_filter, False)
                # A list that changes all the time would keep all that it ever held.
                mesh.previous_core = None
            if mesh.previous_core is not None:
                mesh.overlaps_until = now + OVERLAP_S
                self._overlaps.append((mesh.overlaps_until, mesh.topic_filter))
        if mesh.previous_core is not None and now >= mesh.overlaps_until:
            self._set_member(mesh.previous_core, mesh.topic_filter, False)
            mesh.previous_core = None
        for each in (core, mesh.previous_core):
            if each is not None:
                self._set_member(each, mesh.topic_filter, mesh.is_member(each))
        self._tell(mesh, mesh.find_receivers(now))
        if mesh.is_empty and mesh.previous_core is None:
            del self.by_filter[mesh.topic_filter]
            self.forgotten.append(mesh.topic_filter)
            self._tree.remove(mesh.topic_filter, mesh.topic_filter)

    def _claim_or_yield(self, mesh: Mesh, is_loss: bool) -> None:
        """ "Brokers with local subscribers start by advertising themselves as the core" (§3), unless they
        know of a smaller id."""
        own, topic_filter = self._own, mesh.topic_filter
        is_wanted = mesh.is_local and not mesh.has_smaller(own)
        if is_wanted == (own.id in mesh.cores):
            return
        if not is_wanted:
            del mesh.cores[own.id]
            own.roster.filters.discard(topic_filter)
            own.pending.remove(topic_filter)
        elif is_loss:
            self.unclaimed.add(topic_filter)
        elif topic_filter not in self.unclaimed:
            mesh.cores[own.id] = own
            own.roster.filters.add(topic_filter)
            own.pending.add(topic_filter)

    def _set_member(self, core: Core | None, topic_filter: str, is_member: bool) -> None:
        if core is None or core is self._own or is_member == (topic_filter in core.members):
            return
        if is_member:
            core.members.add(topic_filter)
            core.pending.add(topic_filter)
        else:
            core.members.discard(topic_filter)
            core.pending.remove(topic_filter)
        self.dirty[core] = None

    def _tell(self, mesh: Mesh, receivers: tuple[str, ...]) -> None:
        if receivers == mesh.receivers:
            return
        for neighbour in mesh.receivers:
            if neighbour not in receivers:
                self._change(neighbour, mesh.topic_filter, False)
        for neighbour in receivers:
            if neighbour not in mesh.receivers:
                self._change(neighbour, mesh.topic_filter, True)
        mesh.receivers = receivers

    def _change(self, neighbour: str, topic_filter: str, is_wanted: bool) -> None:
        key = neighbour, topic_filter
        if self._changes.get(key, is_wanted) != is_wanted:
            del self._changes[key]  # There and back: nobody has to know.
        else:
            self._changes[key] = is_wanted

    def _mesh(self, topic_filter: str) -> Mesh:
        mesh = self.by_filter.get(topic_filter)
        if mesh is None:
            mesh = self.by_filter[topic_filter] = Mesh(topic_filter)
            self._tree.set(topic_filter, topic_filter, mesh)
        return mesh


def _state_of(mesh: Mesh) -> FilterState:
    core = mesh.core
    if core is None:
        return FilterState(mesh.topic_filter, None, None, (), (), False, mesh.is_local)
    children = tuple(sorted(mesh.children.get(core.id, ()), key=order))
    return FilterState(
        mesh.topic_filter,
        core.id,
        core.distance,
        tuple(core.parents),
        children,
        mesh.is_member(core),
        mesh.is_local,
    )
