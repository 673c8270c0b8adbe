"""The federator: which neighbour gets which filter, decided by each broker for itself.

The protocol is that of Spohn (2021), §3 to §6, and `mesh.py` and `core.py` follow its text. A broker with
subscribers announces itself as the core of their filters; announcements flood the neighbours; the smallest id
remains; members tell their parents, up to the core. What the document leaves open is done like this:

- Many filters: a core has one announcement for all of its filters, and its list of filters has a version.
  Announcements name the version; what changed travels with one if it is short, and who lacks a list asks the
  neighbour. Memberships are told in the same way. Filters that a wider one of the same broker covers are not
  announced.
- A lost neighbour: the other parents carry on at once. A member, or a node without any parent left, floods a
  REPAIR that names the core and its last announcement; each node passes it on once for each announcement, and
  the core answers with a fresh one. Where none comes for a moment, the core is lost too. A link that comes up
  meanwhile carries the REPAIR as well, and one that comes up later the question whether there is a way again.
- A lost core (that, or silence for its lifetime) is replaced by those who have subscribers, of whom the
  smallest id remains. Until then its ways are still used.
- A core that hears of an announcement of its own that is later than its last one goes on from there, at once:
  it may be of an earlier life, or invented by somebody who would silence it (`serial.py`).

What comes from a neighbour is ignored and counted if it cannot be true, and bounded by `limits.py` if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from hedgerow.federation.mesh import limits, wire
from hedgerow.federation.mesh.core import NEVER, Core, Heard
from hedgerow.federation.mesh.cores import Cores
from hedgerow.federation.mesh.limits import BOUNDS, MeshBounds
from hedgerow.federation.mesh.local_filters import LocalFilters, Told
from hedgerow.federation.mesh.memberships import Memberships
from hedgerow.federation.mesh.meshes import Change, FilterState, Meshes
from hedgerow.federation.mesh.neighbour import Neighbour
from hedgerow.federation.mesh.outgoing import OutgoingPackets
from hedgerow.federation.mesh.serial import following, is_after
from hedgerow.federation.mesh.stats import MeshStats
from hedgerow.federation.mesh.wire import (
    About,
    CoreAnnouncement,
    Correction,
    FilterChanges,
    FilterList,
    MembershipAnnouncement,
    MeshKind,
    Question,
    Repair,
    WireError,
)
from hedgerow.topics import is_local, validate_filter


class Federator:
    """One node's. `random` gives numbers from 0 to 1; `epoch` grows with each start of the node."""

    def __init__(
        self,
        node_id: str,
        now: float,
        *,
        random: Callable[[], float],
        redundancy: int = 2,
        announce_interval_s: float = limits.ANNOUNCE_INTERVAL_S,
        epoch: int = 0,
        bounds: MeshBounds = BOUNDS,
    ) -> None:
        if not 0 < len(node_id.encode()) <= limits.MAX_ID_BYTES:
            raise ValueError(f"a node's id has 1 to {limits.MAX_ID_BYTES} bytes: {node_id!r}")
        if redundancy < 1:
            raise ValueError("a redundancy below 1 is no mesh")
        if not 0 <= epoch <= limits.MAX_SEQUENCE >> limits.EPOCH_SHIFT + 1:
            raise ValueError(f"no epoch: {epoch}")
        self.node_id = node_id
        self.redundancy = redundancy
        self.stats = MeshStats()
        self._interval_s = announce_interval_s
        self._lifetime_s = min(announce_interval_s * limits.LIFETIME_INTERVALS, limits.MAX_LIFETIME_S)
        self._random = random
        self._own = Core(node_id, node_id)
        # Not the same again, should an epoch be: others take the same number for the same announcement.
        self._own.sequence = (epoch << limits.EPOCH_SHIFT) + int(random() * (1 << 24))
        self._first_sequence = self._own.sequence
        self._bounds = bounds
        self._neighbours: dict[str, Neighbour] = {}
        self._local = LocalFilters()
        self._meshes = Meshes(self._own, bounds)
        self._out = OutgoingPackets(self.stats.sent)
        first_edition = 1 + int(random() * (1 << 30))
        self._cores = Cores(
            self._own, self._meshes, self._neighbours, self._out, self.stats, bounds, first_edition
        )
        self._memberships = Memberships(self._meshes, self._neighbours, self._out, self.stats, bounds)
        self._parts_due: dict[tuple[Core, Neighbour], float] = {}  # announcements → their lifetime
        self._timers: list[tuple[float, str]] = []
        self._announce_at = NEVER
        self._announced_at = -NEVER
        self._claim_at = NEVER
        self._sweep_at = NEVER
        self._has_news = False

    @property
    def neighbours(self) -> list[str]:
        return list(self._neighbours)

    @property
    def deadline(self) -> float:
        """When `handle_timer` has something to do."""
        first = self._timers[0][0] if self._timers else NEVER
        return min(first, self._announce_at, self._claim_at, self._sweep_at, self._meshes.deadline)

    def core_of(self, topic_filter: str) -> str | None:
        core = self._core_of(topic_filter)
        return None if core is None else core.id

    def parents_of(self, topic_filter: str) -> list[str]:
        core = self._core_of(topic_filter)
        return [] if core is None else list(core.parents)

    def distance_of(self, topic_filter: str) -> int | None:
        core = self._core_of(topic_filter)
        return None if core is None else core.distance

    def sequence_of(self, topic_filter: str) -> int | None:
        """The number of its core's last announcement."""
        core = self._core_of(topic_filter)
        return None if core is None else core.sequence

    def is_member(self, topic_filter: str) -> bool:
        mesh = self._meshes.by_filter.get(topic_filter)
        return mesh is not None and mesh.core is not None and mesh.is_member(mesh.core)

    def targets(self, topic: str, sender: str | None) -> list[str]:
        """Whom a publication goes to that came from `sender`; None is a client of this broker."""
        return self._meshes.targets(topic, sender)

    def filters_of(self, neighbour_id: str) -> list[str]:
        """What the neighbour is to get now."""
        meshes = self._meshes.by_filter.values()
        return [mesh.topic_filter for mesh in meshes if neighbour_id in mesh.receivers]

    def take_forgotten(self) -> list[str]:
        """Filters that had a mesh, and have none now; some may have got another one meanwhile."""
        forgotten, self._meshes.forgotten = self._meshes.forgotten, []
        return [topic_filter for topic_filter in forgotten if topic_filter not in self._meshes.by_filter]

    def is_hearing(self, neighbour_id: str) -> bool:
        """Is a list of filters yet to come from this neighbour?"""
        return any(core.asked_of == neighbour_id for core in self._cores.by_id.values())

    @property
    def filter_count(self) -> int:
        return len(self._meshes.by_filter)

    @property
    def core_count(self) -> int:
        """Cores other than this node."""
        return len(self._cores.by_id)

    def describe(self, most: int | None = None) -> list[FilterState]:
        """Of at most so many filters: there may be very many, and this is asked again and again."""
        return self._meshes.describe(most)

    def take_changes(self) -> list[Change]:
        """(neighbour, filter, whether it is to get it from now on); of a neighbour that is gone too."""
        return self._meshes.take_changes()

    def take_packets(self) -> list[tuple[str, bytes]]:
        return self._out.take()

    # What happens at this broker

    def subscribe(self, topic_filter: str, now: float) -> None:
        """The first local subscriber of it has come. Most topics that begin with $ are each broker's own."""
        if not is_local(validate_filter(topic_filter)):
            self._set_local(self._local.add(topic_filter), now, is_news=True)

    def unsubscribe(self, topic_filter: str, now: float) -> None:
        """The last local subscriber of it has gone."""
        self._set_local(self._local.remove(topic_filter), now, is_news=True)

    @property
    def swept(self) -> int:
        """What it has cost so far to find out which local filters are to be announced."""
        return self._local.visited

    def _set_local(self, told: Told, now: float, *, is_news: bool = False) -> None:
        self._sweep_at = NEVER if self._local.is_swept else now + limits.SWEEP_S
        for topic_filters, is_local_now in zip(told, (True, False), strict=True):
            for topic_filter in topic_filters:
                self._meshes.set_local(topic_filter, is_local_now, now)
        self._has_news = self._has_news or is_news
        self._finish(now)

    # Neighbours

    def add_neighbour(
        self, neighbour_id: str, now: float, may_learn: Callable[[str], bool] | None = None
    ) -> None:
        """A link is up: it is told of every core, as if their announcements had just come by. `may_learn`: of
        which filters it may know; None: of all."""
        if neighbour_id == self.node_id:
            raise ValueError(f"{neighbour_id!r} is this node itself")
        if neighbour_id in self._neighbours:
            self.remove_neighbour(neighbour_id, now)
        self._neighbours[neighbour_id] = Neighbour(neighbour_id, self._bounds.cores, now, may_learn)
        self._introduce(neighbour_id, now)

    def set_rights(self, neighbour_id: str, may_learn: Callable[[str], bool] | None, now: float) -> None:
        """It may know of others from now on. What it knows already it does not forget."""
        neighbour = self._neighbours.get(neighbour_id)
        if neighbour is not None and (may_learn is not None or neighbour.may_learn is not None):
            neighbour.set_rights(may_learn)
            for core in self._cores.by_id.values():
                if core.told.get(neighbour_id) is not None:
                    self._memberships.tell_again(core, neighbour)
            self._introduce(neighbour_id, now)

    def introduce_again(self, neighbour_id: str, now: float) -> bool:
        """The link is up, and the node at its other end may have forgotten what it was told. False: it was
        told all just now."""
        neighbour = self._neighbours.get(neighbour_id)
        if neighbour is None or now < neighbour.introduced_at + limits.ASK_AGAIN_S:
            return False
        neighbour.introduced_at = now
        for core in self._cores.by_id.values():
            if core.told.pop(neighbour_id, None) is not None:
                self._meshes.dirty[core] = None
        self._introduce(neighbour_id, now)
        return True

    def _introduce(self, neighbour_id: str, now: float) -> None:
        own = [self._own] if self._own.announced_version and self._own.roster.filters else []
        for core in (*own, *self._cores.by_id.values()):
            if not core.is_lost:
                self._send_announcement([neighbour_id], core, self._cores.whole(core), now)
                self._send_parts()
            if core.suspected_until != NEVER or core.id == neighbour_id:
                # Or it would follow a core that everyone else gives up in a moment, for its lifetime. A core
                # that comes back, perhaps without subscribers, is to say what it is now.
                self._send_repair([neighbour_id], core)
        self._finish(now)

    def remove_neighbour(self, neighbour_id: str, now: float) -> None:
        """The link is closed, or silent for too long."""
        neighbour = self._neighbours.pop(neighbour_id, None)
        if neighbour is None:
            return
        self._out.forget(neighbour_id)
        for due in [due for due in self._parts_due if due[1] is neighbour]:
            del self._parts_due[due]
        self._own.wanted_by.discard(neighbour_id)
        for core_id in list(neighbour.memberships):
            self._meshes.end_membership(neighbour, core_id, now)
        for core in self._cores.by_id.values():
            was_parent = core.lose(neighbour_id, self.redundancy)
            if core.held is not None and not core.awaits_shorter:
                self._end_hold(core, now)
            if was_parent:
                self._parents_changed(core, now)
                if core.members or (core.roster.filters and not core.has_way):
                    self._ask_repair(core, None, now)
        self._meshes.forget_neighbour(neighbour_id, now)
        self._finish(now)

    # What neighbours send

    def receive(self, neighbour_id: str, payload: bytes, now: float) -> None:
        neighbour = self._neighbours.get(neighbour_id)
        if neighbour is None:
            self._ignore("no neighbour")
            return
        try:
            kind, entries = wire.decode(payload)
        except WireError as error:
            self._ignore(str(error))
            return
        self.stats.received[kind.name] += 1
        for entry in entries:
            if not neighbour.allowance.take(now):
                self._ignore("too fast")
                break
            match entry:
                case CoreAnnouncement():
                    self._receive_core_announcement(neighbour, entry, now)
                case MembershipAnnouncement():
                    self._memberships.receive(neighbour, entry, now)
                case Question():
                    self._receive_question(neighbour, entry, now)
                case FilterList():
                    self._cores.receive_list(neighbour, entry, now)
                case Repair():
                    self._receive_repair(neighbour, entry, now)
                case Correction():
                    self._receive_correction(neighbour, entry, now)
                case _:
                    self._ignore("not from a client")
        self._finish(now)

    def _receive_core_announcement(self, neighbour: Neighbour, entry: CoreAnnouncement, now: float) -> None:
        if entry.core == self.node_id:
            self._hear_of_own(entry.sequence, now)
            return
        if not self._is_possible(neighbour, entry.core, entry.distance):
            return
        if not 0 < entry.lifetime_s <= limits.MAX_LIFETIME_S:
            self._ignore("impossible lifetime")
            return
        core = self._cores.admit(entry.core, neighbour, now)
        if core is None or is_after(core.sequence, entry.sequence):
            self._ignore("too many cores" if core is None else "outdated")
            return
        was_lost, parents, sequence = core.is_lost, list(core.parents), core.sequence
        heard = core.hear(neighbour.id, entry.sequence, entry.distance, self.redundancy, now)
        is_fresh = core.sequence != sequence
        if is_fresh:
            core.expires_at = now + entry.lifetime_s
            core.announced_version = entry.changes.version
            if heard is Heard.LATER:
                core.hold(entry, now)
            core.settles_at = max(now + limits.SETTLE_S, core.held_until if core.held else now)
        elif core.is_lost:
            # By a link that came up, one tells of it who may still have a way to it, or lost it as well.
            self._send_repair([neighbour.id], core)
        self._tell_of_heard(core, heard, entry, neighbour.id)
        self._cores.follow(core, neighbour, entry, now)
        if core.is_settled:
            core.settle(self.redundancy)
        if was_lost != core.is_lost or parents != core.parents:
            self._parents_changed(core, now)
        elif is_fresh:
            self._meshes.dirty[core] = None  # Membership is "published for every new core announcement" (§4).

    def _receive_correction(self, neighbour: Neighbour, entry: Correction, now: float) -> None:
        core = self._cores.by_id.get(entry.core)
        if core is None or core.sequence != entry.sequence:
            self._ignore("unknown core" if core is None else "outdated")
        elif self._is_possible(neighbour, entry.core, entry.distance):
            parents = list(core.parents)
            heard = core.hear(neighbour.id, entry.sequence, entry.distance, self.redundancy, now)
            self._tell_of_heard(core, heard, core.held, neighbour.id)
            if parents != core.parents:
                self._parents_changed(core, now)

    def _is_possible(self, neighbour: Neighbour, core_id: str, distance: int) -> bool:
        is_possible = distance < limits.MAX_DISTANCE and (distance == 0) == (core_id == neighbour.id)
        if not is_possible:
            self._ignore("impossible distance")
        return is_possible

    def _tell_of_heard(self, core: Core, heard: Heard, entry: CoreAnnouncement | None, by: str) -> None:
        if heard is Heard.FRESH and entry is not None:
            self._pass_on(core, core.end_hold() or entry, by)
        elif heard is Heard.SHORTER:
            correction = wire.encode_correction(Correction(core.id, core.sequence, core.distance))
            others = [each for each in self._neighbours if each != by and core.gains(each)]
            self._out.put(others, MeshKind.DISTANCE, correction)
        self._schedule(core)

    def _pass_on(self, core: Core, entry: CoreAnnouncement, heard_from: str | None) -> None:
        others = [other for other in self._neighbours if other != heard_from]
        knows_all = not entry.edition or (core.is_complete and not core.edition)
        self._put_announcement(others, core, entry._replace(distance=core.distance, edition=0), knows_all)

    def _put_announcement(
        self, to: Iterable[str], core: Core, entry: CoreAnnouncement, knows_all: bool
    ) -> None:
        """To those who may know all of its filters, where this node does; others are told of their part once
        the list is as it was announced (`_send_parts`)."""
        whole: list[str] = []
        for neighbour in map(self._neighbours.__getitem__, to):
            if knows_all and neighbour.may_learn is None:
                whole.append(neighbour.id)
            else:
                self._parts_due[core, neighbour] = entry.lifetime_s
        if whole:
            self._out.put(whole, MeshKind.CORE_ANN, wire.encode_core_announcement(entry))

    def _send_parts(self) -> None:
        for (core, neighbour), lifetime_s in self._parts_due.items():
            edition = self._cores.edition_for(neighbour, core)
            changes = self._cores.part(core, neighbour)
            entry = CoreAnnouncement(core.id, core.sequence, core.distance, lifetime_s, changes, edition)
            kind = MeshKind.PART_ANN if edition else MeshKind.CORE_ANN
            self._out.put([neighbour.id], kind, wire.encode_core_announcement(entry))
        self._parts_due.clear()

    def _end_hold(self, core: Core, now: float) -> None:
        """Nobody who is nearer to the core passes it on."""
        held = core.end_hold()
        if held is not None:
            core.measure(now)
            self._pass_on(core, held, core.nearest)

    def _hear_of_own(self, sequence: int, now: float) -> None:
        """Of this node as a core: an echo; or one of an earlier life or an invented one. This life's replaces
        it, and goes on from a later one. `EARLY_S` bounds how often somebody can make it announce."""
        if is_after(sequence, self._own.sequence):
            self._own.sequence = sequence
            self._own.roster.version = 0
            self._announce_early(now)
        elif is_after(self._first_sequence, sequence):
            # Others follow this node as the core that it was then.
            self._announce_early(now)

    def _receive_question(self, neighbour: Neighbour, entry: Question, now: float) -> None:
        core = self._cores.find(entry.core)
        if core is None:
            self._ignore("unknown core")
        elif not neighbour.may_ask(entry, now):
            self._ignore("asked too often")
        elif entry.about == About.MEMBERSHIP:
            self._memberships.tell_again(core, neighbour)
        else:
            self._cores.answer(core, neighbour)

    def _receive_repair(self, neighbour: Neighbour, entry: Repair, now: float) -> None:
        core = self._cores.find(entry.core)
        if core is self._own:
            if entry.sequence == core.sequence:
                self._announce_early(now)
            else:
                self._hear_of_own(entry.sequence, now)
        elif core is None or core.is_lost or is_after(entry.sequence, core.sequence):
            self._ignore("unknown core")
        elif is_after(core.sequence, entry.sequence):
            pass  # The answer is on its way already; a second one would cross the link in vain (Theorem 1).
        else:
            self._ask_repair(core, neighbour.id, now)

    # Cores

    def _ask_repair(self, core: Core, asked_by: str | None, now: float) -> None:
        if core.repaired_sequence == core.sequence or core.is_lost:
            return
        core.repaired_sequence = core.sequence
        grace_s = limits.GRACE_S + limits.GRACE_PER_HOP_S * core.distance
        core.suspected_until = now + (grace_s if self._neighbours else 0.0)
        self._schedule(core)
        others = [neighbour for neighbour in self._neighbours if neighbour != asked_by]
        self._send_repair(others, core)

    def _send_repair(self, to: Iterable[str], core: Core) -> None:
        self._out.put(to, MeshKind.REPAIR, wire.encode_repair(Repair(core.id, core.sequence)))

    def _parents_changed(self, core: Core, now: float) -> None:
        self._meshes.refresh_core(core, now)
        self._meshes.dirty[core] = None

    # Announcements of this node

    def _announce_early(self, now: float) -> None:
        self._announce_at = min(self._announce_at, max(now, self._announced_at + limits.EARLY_S))

    def _announce(self, now: float) -> None:
        own = self._own
        own.previous_sequence = own.sequence
        own.sequence = following(own.sequence)
        changes = self._cores.own_changes()
        own.roster.version = own.announced_version = changes.version
        own.pending.clear()
        self._has_news = False
        self._send_announcement(self._neighbours, own, changes, now)
        self._cores.answer_waiting(own)
        self.stats.announcements += 1
        self._announced_at = now
        jitter = 1 + limits.INTERVAL_JITTER * (self._random() - 1)
        self._announce_at = now + self._interval_s * jitter if own.roster.filters else NEVER
        own.settles_at = now + limits.SETTLE_S
        self._schedule(own)

    def _send_announcement(self, to: Iterable[str], core: Core, changes: FilterChanges, now: float) -> None:
        lifetime_s = self._lifetime_s if core is self._own else max(core.expires_at - now, 0.1)
        entry = CoreAnnouncement(core.id, core.sequence, core.distance, lifetime_s, changes)
        self._put_announcement(to, core, entry, knows_all=not core.edition)

    # Time

    def handle_timer(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, core_id = heappop(self._timers)
            core = self._cores.find(core_id)
            if core is not None and core.timer_at == at:
                core.timer_at = NEVER
                self._handle_core_timer(core, now)
        if self._claim_at <= now:
            self._claim_at = NEVER
            self._meshes.claim(now)
        self._meshes.end_overlaps(now)
        if self._sweep_at <= now:
            self._set_local(self._local.sweep(), now)
        else:
            self._finish(now)

    def _handle_core_timer(self, core: Core, now: float) -> None:
        if core.expires_at <= now:
            self._cores.drop(core, now)
            return
        if core.suspected_until <= now:
            core.suspected_until = NEVER
            core.is_lost = True
            self._parents_changed(core, now)
        if core.held_until <= now:
            parents = list(core.parents)
            self._end_hold(core, now)
            if parents != core.parents:
                self._parents_changed(core, now)
        if core.settles_at <= now:
            core.settles_at = NEVER
            self._settle(core, now)
        self._schedule(core)

    def _settle(self, core: Core, now: float) -> None:
        """Everyone had time to pass on the last announcement, and to answer it."""
        if core is not self._own:
            parents = list(core.parents)
            core.settle(self.redundancy)
            if parents != core.parents:
                self._parents_changed(core, now)
            if not core.parents and core.roster.filters:
                # Who passed on the last announcement was lost before it had become a parent.
                self._ask_repair(core, None, now)
        self._memberships.end_silent(core, self._neighbours.values(), now)

    def _schedule(self, core: Core) -> None:
        if core.due_at < core.timer_at:
            core.timer_at = core.due_at
            heappush(self._timers, (core.timer_at, core.id))

    def _finish(self, now: float) -> None:
        """What follows from an input, once all of it has been taken in."""
        # What follows from a wide filter by and by is told together: each time others would ask for the list.
        if self._own.pending and (self._has_news or self._sweep_at == NEVER):
            self._announce_early(now)
        if self._announce_at <= now:
            self._announce(now)
        self._send_parts()
        self._memberships.tell_parents()
        if self._meshes.unclaimed and self._claim_at == NEVER:
            self._claim_at = now + self._random() * limits.CLAIM_WITHIN_S

    def _core_of(self, topic_filter: str) -> Core | None:
        mesh = self._meshes.by_filter.get(topic_filter)
        return None if mesh is None else mesh.core

    def _ignore(self, reason: str) -> None:
        self.stats.ignored[reason] += 1
