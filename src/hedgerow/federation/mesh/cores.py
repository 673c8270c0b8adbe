"""The cores that a node knows, and their lists of filters.

A list is told once: announcements name its version, and carry what is new in it only if that is short. Who
lacks a version asks a neighbour that named it; who is asked and waits for it too answers when it has come.

Of some lists a node knows or may tell only a part (`Neighbour.may_learn`), and says so: then the part has an
edition, by its own count, beside the version. Whoever hears that another neighbour has the whole takes that;
otherwise the part of one neighbour, until that is gone. What is known of a core in parts never grows together
from several: what one of them no longer wants to know of would stay for ever.

There is room for so many cores and filters. Beyond, a neighbour that told of more than any other is not
heard, and what it told of makes room for what others tell: whoever invents them pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from hedgerow.federation.mesh import limits, wire
from hedgerow.federation.mesh.beginnings import Beginnings
from hedgerow.federation.mesh.core import Core
from hedgerow.federation.mesh.limits import MeshBounds, weight_of
from hedgerow.federation.mesh.meshes import Meshes
from hedgerow.federation.mesh.neighbour import Neighbour
from hedgerow.federation.mesh.outgoing import OutgoingPackets
from hedgerow.federation.mesh.serial import is_after
from hedgerow.federation.mesh.stats import MeshStats
from hedgerow.federation.mesh.wire import (
    About,
    CoreAnnouncement,
    FilterChanges,
    FilterList,
    MeshKind,
    Question,
)

MOST_INLINE = 100  # filters of which it is looked up, with each announcement, who may know of them


class Cores:
    def __init__(
        self,
        own: Core,
        meshes: Meshes,
        neighbours: dict[str, Neighbour],
        out: OutgoingPackets,
        stats: MeshStats,
        bounds: MeshBounds,
        first_edition: int = 1,
    ) -> None:
        """`first_edition`: another one in each life, since others remember those of the last."""
        self._first_edition = first_edition
        self.by_id: dict[str, Core] = {}
        """All but this node itself."""
        self._own = own
        self._meshes = meshes
        self._neighbours = neighbours
        self._out = out
        self._stats = stats
        self._bounds = bounds
        # By who told of them first.
        self._cores_by: Counter[str] = Counter()
        self._filters_by: Counter[str] = Counter()  # as `weight_of` counts them
        self._beginnings = Beginnings(bounds.filters)

    def find(self, core_id: str) -> Core | None:
        """This node itself, too."""
        return self._own if core_id == self._own.id else self.by_id.get(core_id)

    def admit(self, core_id: str, neighbour: Neighbour, now: float) -> Core | None:
        """The core, which may be new; None when there is no room for it."""
        core = self.by_id.get(core_id)
        if core is not None:
            return core
        if len(self.by_id) >= self._bounds.cores:
            payer, _ = self._cores_by.most_common(1)[0]
            if payer == neighbour.id:
                return None
            # The last of them: what was there before a flood is not part of it.
            last = next(core for core in reversed(self.by_id.values()) if core.introduced_by == payer)
            self._evict(last, now)
        core = self.by_id[core_id] = Core(core_id, neighbour.id)
        self._cores_by[neighbour.id] += 1
        return core

    def drop(self, core: Core, now: float) -> None:
        del self.by_id[core.id]
        self._cores_by[core.introduced_by] -= 1
        self._filters_by[core.introduced_by] -= weight_of(core.roster.filters)
        self._beginnings.end(core)
        for neighbour in self._neighbours.values():
            self._meshes.end_membership(neighbour, core.id, now)
        self._meshes.forget_core(core, now)

    def _evict(self, core: Core, now: float) -> None:
        self._stats.evicted += 1
        self.drop(core, now)

    # Lists of other cores

    def follow(self, core: Core, neighbour: Neighbour, entry: CoreAnnouncement, now: float) -> None:
        """An announcement told this of the list."""
        changes, edition = entry.changes, entry.edition
        if edition:
            core.whole_from.discard(neighbour.id)
        else:
            core.whole_from.add(neighbour.id)
        if changes.version != core.announced_version or (core.is_complete and not core.edition):
            return
        if (
            edition and core.whole_from
        ):  # It is with others, and comes from them a moment later at the latest.
            self._ask(core, self._neighbours[min(core.whole_from)], now)
            return
        if edition and core.is_complete and not self._replaces(core, neighbour.id, edition):
            return
        # What changed in the whole is told to whoever has the whole.
        may_follow = changes.since == 0 or not (edition or core.edition)
        difference = core.roster.difference(changes) if may_follow else None
        if difference is None:
            self._ask(core, neighbour, now)
        else:
            self._take(core, neighbour, entry, difference, now)

    @staticmethod
    def _replaces(core: Core, teller: str, edition: int) -> bool:
        """Does a part take the place of the part that is known, of the same version? The one of another
        neighbour only if whoever told that is gone: from one to the other would have no end."""
        return core.told_by is None or (core.told_by == teller and core.edition != edition)

    def _take(
        self,
        core: Core,
        neighbour: Neighbour,
        entry: CoreAnnouncement | FilterList,
        difference: tuple[set[str], set[str]],
        now: float,
    ) -> None:
        version = entry.version if isinstance(entry, FilterList) else entry.changes.version
        if self._apply(core, version, *difference, now):
            core.edition, core.told_by = entry.edition, neighbour.id
            core.parts += bool(entry.edition)
            self.answer_waiting(core)

    def receive_list(self, neighbour: Neighbour, entry: FilterList, now: float) -> None:
        core = self.by_id.get(entry.core)
        if core is None or core.asked_of != neighbour.id or not self._is_news(core, entry):
            self._stats.ignored["not asked for"] += 1
            return
        if entry.is_first:
            self._beginnings.begin(core, neighbour.id)
        filters = self._beginnings.add(core, neighbour.id, entry.filters)
        if filters is None:
            self._stats.ignored["incomplete list"] += 1
            return
        if not entry.is_last:
            return
        self._beginnings.end(core)
        core.asked_of = None
        if len(filters) != entry.size:
            self._stats.ignored["incomplete list"] += 1
            return
        known = core.roster.filters
        if entry.edition:
            core.whole_from.discard(neighbour.id)
        self._take(core, neighbour, entry, (filters - known, known - filters), now)
        if not core.is_complete:
            self._ask(core, neighbour, now)

    @staticmethod
    def _is_news(core: Core, entry: FilterList) -> bool:
        """The announced one is, even if somebody invented a later one in the name of this core before."""
        known, version = core.roster.version, entry.version
        if version == known:
            return core.edition not in (0, entry.edition)
        return version == core.announced_version or is_after(version, known)

    def _apply(self, core: Core, version: int, new: set[str], gone: set[str], now: float) -> bool:
        """False: there is no room."""
        payer, more = core.introduced_by, weight_of(new) - weight_of(gone)
        while self._filters_by.total() + more > self._bounds.filters:
            largest, _ = self._filters_by.most_common(1)[0] if self._filters_by else (payer, 0)
            if largest == payer:
                self._stats.ignored["too many filters"] += 1
                return False
            theirs = [other for other in self.by_id.values() if other.introduced_by == largest]
            self._evict(max(theirs, key=lambda other: len(other.roster.filters)), now)
        self._filters_by[payer] += more
        core.roster.follow(version, new, gone)
        for topic_filter in new:
            self._meshes.add_core(topic_filter, core, now)
        for topic_filter in gone:
            self._meshes.remove_core(topic_filter, core, now)
        return True

    def _ask(self, core: Core, neighbour: Neighbour, now: float) -> None:
        if core.asked_of is not None and now < core.asked_at + limits.ASK_AGAIN_S:
            return
        core.asked_of, core.asked_at = neighbour.id, now
        self._beginnings.end(core)
        self._out.put([neighbour.id], MeshKind.ASK, wire.encode_question(Question(About.LIST, core.id)))

    # Lists for others

    def answer(self, core: Core, neighbour: Neighbour) -> None:
        if self._is_ready(core):
            self._send([neighbour.id], core)
        else:
            core.wanted_by.add(neighbour.id)

    def answer_waiting(self, core: Core) -> None:
        if core.wanted_by and self._is_ready(core):
            self._send(sorted(core.wanted_by), core)
            core.wanted_by.clear()

    def whole(self, core: Core) -> FilterChanges:
        """For one who may not have the list: all of it if it is short; otherwise they ask."""
        version, filters = core.announced_version, core.roster.filters
        if not self._is_ready(core):
            return FilterChanges(version, version, 0)
        return _changes(version, 0, len(filters), filters)

    def own_changes(self) -> FilterChanges:
        """Of this node's list, for its next announcement. The version is the sequence with which it was first
        announced, which grows over restarts."""
        own, pending = self._own, self._own.pending
        since, size = own.roster.version, len(own.roster.filters)
        if since and not pending:
            return FilterChanges(since, since, size)
        whole = _changes(own.sequence, 0, size, own.roster.filters)
        if not since or whole.since == 0:
            return whole  # Who has no list yet, or has forgotten it, need not ask.
        return _changes(own.sequence, since, size, pending.added, pending.removed)

    def _is_ready(self, core: Core) -> bool:
        return core.is_complete and not (core is self._own and core.pending)

    def _send(self, neighbours: Iterable[str], core: Core) -> None:
        equal: list[str] = []
        for neighbour in map(self._neighbours.__getitem__, neighbours):
            if neighbour.may_learn is None:
                equal.append(neighbour.id)
            else:
                filters = neighbour.visible(core.roster.filters)
                self._send_list([neighbour.id], core, filters, self.edition_for(neighbour, core))
        if equal:
            self._send_list(equal, core, core.roster.filters, core.edition and self._edition_of(core))

    def _send_list(self, to: list[str], core: Core, filters: Collection[str], edition: int) -> None:
        rows = wire.parts(sorted(filters), limits.PART_BYTES)
        for number, row in enumerate(rows):
            is_last = number == len(rows) - 1
            entry = FilterList(core.id, core.roster.version, number == 0, is_last, len(filters), row, edition)
            self._out.put(to, MeshKind.PART_LIST if edition else MeshKind.LIST, wire.encode_list(entry))

    # Parts of lists

    def _edition_of(self, core: Core) -> int:
        return self._first_edition + core.parts

    def edition_for(self, neighbour: Neighbour, core: Core) -> int:
        """Another one whenever what it is told of the same version may be another; 0: all."""
        if neighbour.may_learn is None and not core.edition:
            return 0
        return self._edition_of(core) + neighbour.rights_changes

    def part(self, core: Core, neighbour: Neighbour) -> FilterChanges:
        """What an announcement tells one that is told a part: the whole of that, where it is short."""
        version, filters = core.announced_version, core.roster.filters
        if not self._is_ready(core) or len(filters) > MOST_INLINE:
            return FilterChanges(version, version, 0)
        visible = neighbour.visible(filters)
        return _changes(version, 0, len(visible), visible)


def _changes(
    version: int, since: int, size: int, added: Collection[str], removed: Collection[str] = ()
) -> FilterChanges:
    """As they are if they are short; otherwise the version alone. Nobody looks at all of a hundred thousand,
    each time that one changes."""
    room = limits.INLINE_BYTES
    for topic_filter in chain(added, removed):
        room -= len(topic_filter)
        if room < 0:
            return FilterChanges(version, version, size)
    return FilterChanges(version, since, size, tuple(sorted(added)), tuple(sorted(removed)))
