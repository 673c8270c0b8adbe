"""One node's part in the overlay, after HyParView.

Guarantees: an active view of at most `active_at_most` neighbours beside the static ones, known as such at
both ends, and a passive view of bounded size. A newcomer JOINs any member; its name walks through the
overlay (FORWARD_JOIN) and where the walks end it finds more neighbours. Whoever has too few asks nodes of
its passive view (NEIGHBOUR), which SHUFFLEs keep fresh. A neighbour that must make room for a newcomer is
told of it, and links to it: the way between the two stays open. `nearer.py` trades far neighbours for near
ones.

The shell opens the links of `take_connects`, tells `connected` of every link that is open, whoever opened it,
`measured` when it knows anew how far one is, and `lost` of every link that closed and every peer that it
could not connect to. It sends `take_packets` first and then closes `take_disconnects`, of which `lost` need
not tell. A peer's node id is what the other end of the link said; with a key, a packet proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hedgerow.federation.overlay import handlers, nearer, shuffle, wire
from hedgerow.federation.overlay.dials import Dials, Statics
from hedgerow.federation.overlay.events import NeighbourGained, NeighbourLost, OverlayEvent, PeerRefused
from hedgerow.federation.overlay.limits import (
    ANSWER_S,
    DIAL_S,
    IDLE_S,
    MAX_CONTACTS,
    MAX_DEPARTED,
    MAX_DIALS,
    MAX_EVENTS,
    MAX_LINKS,
    MAX_SEQUENCES,
    REPAIR_S,
    REST_S,
    REUNION_S,
    OverlaySettings,
)
from hedgerow.federation.overlay.links import OverlayLink, OverlayLinkState, OverlayStats, Purpose
from hedgerow.federation.overlay.passive import PassiveView, pick
from hedgerow.federation.overlay.wire import OverlayKind, OverlayPacket, Peer


class Overlay:
    def __init__(
        self,
        me: Peer,
        now: float,
        *,
        epoch: int,
        begun_at: float = 0.0,
        random: Callable[[], float],
        key: bytes | None = None,
        settings: OverlaySettings | None = None,
    ) -> None:
        """`me` without addresses cannot be dialled by who hears of it, and looks for nobody either: it has
        the neighbours that it was given, and those that come to it.
        `epoch` grows with every start of this node: a count that it stores, or the time in seconds, of which
        `begun_at` is the fraction.
        `key` closes the membership: 16 to 64 bytes that all members share."""
        if key is not None and not 16 <= len(key) <= 64:
            raise ValueError(f"a key has 16 to 64 bytes, not {len(key)}")
        if not me.node_id:
            raise ValueError("a node needs an id")
        self.me = wire.check_peer(me)
        self.settings = settings or OverlaySettings()
        self.stats = OverlayStats()
        self.random = random
        self.links: dict[str, OverlayLink] = {}
        self.passive_view = PassiveView(self.settings.passive_at_most, random)
        self.release: nearer.Release | None = None
        self._key = key
        self._contacts: list[Peer] = []
        self._statics = Statics()
        self._dials = Dials()
        self._departed: dict[str, Peer] = {}
        self.shuffles = shuffle.Shuffles()
        self._sequences: dict[str, int] = {}
        self._sequence = ((epoch & 0xFFFF_FFFF) << 32) + int(begun_at * 2**32)
        self._packets: list[tuple[str, bytes]] = []
        self._connects: list[Peer] = []
        self._disconnects: list[str] = []
        self.asked_again: set[str] = set()
        self._events: list[OverlayEvent] = []
        self._repair_at = float("inf")
        self._contact_at = now  # A contact that refuses at once is not asked at once again.
        self._shuffle_at = now + self.settings.shuffle_s * random()
        self._optimise_at = now + self.settings.optimise_s * (1 + random())
        self._reunite_at = now + REUNION_S * (1 + random())

    # What people and the federation see

    @property
    def active(self) -> list[Peer]:
        return [link.peer for link in self.links.values() if link.state is OverlayLinkState.ACTIVE]

    @property
    def passive(self) -> list[Peer]:
        return self.passive_view.peers

    @property
    def round_trips(self) -> dict[str, float]:
        """Node id of each neighbour → seconds."""
        return {
            name: it.round_trip_s for name, it in self.links.items() if it.state is OverlayLinkState.ACTIVE
        }

    def addresses_of(self, node_id: str) -> tuple[str, ...]:
        """Where the node at the other end of a link says that it is."""
        link = self.links.get(node_id)
        return link.peer.addresses if link is not None else ()

    def is_configured(self, address: str) -> bool:
        """Did people list it? Contacts that were found by themselves are known by their ids."""
        listed = any(address in contact.addresses for contact in self._contacts if not contact.node_id)
        return listed or self._statics.is_at(address)

    # What the shell calls

    def join(self, contact: Peer, now: float) -> None:
        """Become a member through any member. It is turned to again whenever there is nobody else."""
        if not contact.addresses:
            raise ValueError("a contact needs an address")
        if contact not in self._contacts:
            self._contacts = [*self._contacts, wire.check_peer(contact)][-MAX_CONTACTS:]
        self.want(contact, Purpose.JOIN, now)
        self._repair_at = min(self._repair_at, now + DIAL_S)

    def add_static(self, peer: Peer, now: float) -> None:
        """A neighbour that is never dropped, and connected to again whenever it was lost."""
        self._statics.add(peer, now)

    def remove_static(self, peer: Peer, now: float) -> None:
        """It is one like others now, if the overlay chooses among others and has room; else it is left."""
        removed = self._statics.remove(peer)
        self._dials.take(removed)
        link = self.links.get(removed.node_id)
        if link is None or removed.node_id in self._statics:
            return
        link.is_static = False
        if self.me.addresses and self.room >= 0:
            return
        if link.state is OverlayLinkState.ACTIVE:
            self.send(removed.node_id, OverlayPacket(OverlayKind.DISCONNECT))
            self.drop(link, "it is listed no longer", now)
        else:
            self.close(link, now)

    def connected(self, peer: Peer, round_trip_s: float, now: float) -> None:
        """A link is open. `peer` has the node id that the other end told, and the address if we dialled."""
        dial = self._dials.take(peer)
        if peer.node_id == self.me.node_id or not peer.node_id:
            self._disconnects.append(peer.node_id)
            return
        link = self.links.get(peer.node_id)
        if link is None:
            if len(self.links) >= MAX_LINKS and dial is None:
                self.stats.crowded += 1
                self._disconnects.append(peer.node_id)
                return
            link = self.links[peer.node_id] = OverlayLink(peer, round_trip_s, now + IDLE_S)
            self._departed.pop(peer.node_id, None)
        if link.state is not OverlayLinkState.ACTIVE:
            link.round_trip_s = round_trip_s
        link.round_trips.clear()  # It may be the other end that dialled this one, and measures.
        if dial is not None:
            self._statics.learn(dial.peer, peer.node_id)
        link.is_static = peer.node_id in self._statics
        if link.state is OverlayLinkState.ACTIVE:
            self._statics.gained(peer.node_id)
        elif dial is not None:
            self._use(link, dial.purpose, now)

    def measured(self, node_id: str, round_trip_s: float) -> bool:
        """A probe of this end has been answered over the link. Is it further, or nearer, than it was?"""
        link = self.links.get(node_id)
        return link is not None and nearer.measured(self, link, round_trip_s)

    def lost(self, peer: Peer, now: float) -> None:
        """A link has closed, or could not be opened."""
        self.not_opened(peer, now)
        link = self.links.pop(peer.node_id, None)
        if link is None:
            return
        if link.state is OverlayLinkState.ACTIVE:
            self._remember_departed(link.peer)
            self._report(NeighbourLost(peer.node_id, "the link was lost"))
        elif link.purpose is not None:
            self._failed(link.purpose, now)
        self._gone(peer.node_id, now)

    def not_opened(self, peer: Peer, now: float) -> None:
        """A link could not be opened. One that the node opened meanwhile stays."""
        dial = self._dials.take(peer)
        if dial is not None:
            self._remember_departed(dial.peer)
            self._failed(dial.purpose, now)

    def receive(self, node_id: str, payload: bytes, now: float) -> None:
        """A packet on the link to this node. Never raises."""
        link = self.links.get(node_id)
        if link is None:
            self.stats.strangers += 1
            return
        if not link.allowance.take(now):
            self.stats.flooded += 1
            self._refuse(link, "it sends too much", now)
            return
        try:
            packet, sequence = wire.decode(payload, self._key, node_id, self.me.node_id)
        except wire.UnknownVersionError:
            self.stats.other_version += 1
            return
        except wire.ProofError as problem:
            self.stats.forged += 1
            self._refuse(link, str(problem), now)
            return
        except wire.PacketError:
            self.stats.malformed += 1
            return
        # Without a key anyone can write a larger one: this would only shut out a node whose clock went back.
        if self._key is not None and sequence <= self._sequences.get(node_id, -1):
            self.stats.replayed += 1
            self._refuse(link, "it sends what it has sent before", now)
            return
        self._sequences.pop(node_id, None)
        if len(self._sequences) >= MAX_SEQUENCES:
            del self._sequences[next(iter(self._sequences))]
        self._sequences[node_id] = sequence
        if packet.kind in handlers.NAMES_ITS_SENDER:
            if packet.peers[0].node_id != node_id:
                self.stats.forged += 1
                self._refuse(link, f"it speaks for {packet.peers[0].node_id!r}", now)
                return
            if packet.peers[0].addresses:
                link.peer = packet.peers[0]
        elif packet.kind in handlers.FOR_NEIGHBOURS and link.state is not OverlayLinkState.ACTIVE:
            # One end thinks that it is a neighbour: views are symmetric again as soon as it hears this.
            self.send(node_id, OverlayPacket(OverlayKind.DISCONNECT))
            return
        self.stats.received += 1
        handlers.HANDLERS[packet.kind](self, link, packet, now)

    @property
    def deadline(self) -> float:
        times = [self._repair_at, self._shuffle_at, self._optimise_at, self._reunite_at]
        times += [self._statics.deadline, self._dials.deadline]
        times += [link.until for link in self.links.values() if link.state is not OverlayLinkState.ACTIVE]
        if self.release is not None:
            times.append(self.release.until)
        return min(times)

    def handle_timer(self, now: float) -> None:
        for peer in self._dials.overdue(now):
            self.not_opened(peer, now)
        for link in list(self.links.values()):
            if link.state is not OverlayLinkState.ACTIVE and link.until <= now:
                self.close(link, now)
        if self.release is not None and self.release.until <= now:
            self.release = None
        for peer in self._statics.take_due(now):
            self.want(peer, Purpose.STATIC, now)
        if self._repair_at <= now:
            self._repair(now)
        if self._shuffle_at <= now:
            self._shuffle_at = now + self.settings.shuffle_s * (0.75 + 0.5 * self.random())
            shuffle.begin(self, now)
        if self._optimise_at <= now:
            self._optimise_at = now + self.settings.optimise_s * (0.75 + 0.5 * self.random())
            nearer.optimise(self, now)
        if self._reunite_at <= now:
            self._reunite_at = now + REUNION_S * (0.75 + 0.5 * self.random())
            self._reunite(now)

    def take_packets(self) -> list[tuple[str, bytes]]:
        packets, self._packets = self._packets, []
        return packets

    def take_connects(self) -> list[Peer]:
        """Whom to open a link to, at any of the addresses."""
        connects, self._connects = self._connects, []
        return connects

    def take_disconnects(self) -> list[str]:
        disconnects, self._disconnects = self._disconnects, []
        return disconnects

    def take_asked_again(self) -> list[str]:
        """Neighbours that asked to be some: they may have been started again, and know nothing of us."""
        asked_again, self.asked_again = sorted(self.asked_again), set()
        return asked_again

    def take_events(self) -> list[OverlayEvent]:
        events, self._events = self._events, []
        return events

    # Links and views, for the handlers below and for nearer.py

    def neighbours(self, *, besides: str | None = None) -> list[OverlayLink]:
        return [
            it for name, it in self.links.items() if it.state is OverlayLinkState.ACTIVE and name != besides
        ]

    @property
    def room(self) -> int:
        """How many more neighbours there may be. Static ones take none of it."""
        movable = sum(
            link.state is OverlayLinkState.ACTIVE and not link.is_static for link in self.links.values()
        )
        return self.settings.active_at_most - movable

    def take_sequence(self) -> int:
        """The next of this node's, which has had none as large."""
        self._sequence += 1
        return self._sequence

    def send(self, node_id: str, packet: OverlayPacket) -> None:
        self.stats.sent += 1
        payload = wire.encode(packet, self.take_sequence(), self._key, self.me.node_id, node_id)
        self._packets.append((node_id, payload))

    def want(self, peer: Peer, purpose: Purpose, now: float) -> bool:
        """Have a link opened, and used for `purpose`. False if that cannot be."""
        if not self.me.addresses and purpose not in (Purpose.STATIC, Purpose.JOIN):
            return False
        link = self.links.get(peer.node_id)
        if link is not None:
            if link.state is not OverlayLinkState.IDLE:
                return False
            self._use(link, purpose, now)
            return True
        if not peer.addresses or peer in self._dials or peer.node_id == self.me.node_id:
            return False
        if len(self._dials) >= MAX_DIALS and purpose is not Purpose.STATIC:
            self.stats.crowded += 1
            return False
        self._dials.add(peer, purpose, now)
        self._connects.append(peer)
        return True

    def ask(self, link: OverlayLink, purpose: Purpose, now: float) -> None:
        urgent = purpose is Purpose.STATIC or not self.neighbours()
        link.state, link.purpose, link.until = OverlayLinkState.ASKED, purpose, now + ANSWER_S
        kind = OverlayKind.JOIN if purpose is Purpose.JOIN else OverlayKind.NEIGHBOUR
        self.send(link.peer.node_id, OverlayPacket(kind, int(urgent), peers=(self.me,)))

    def drop(self, link: OverlayLink, why: str, now: float) -> None:
        """It is no neighbour any more; the link is closed, and the node is remembered."""
        node_id = link.peer.node_id
        if link.state is OverlayLinkState.ACTIVE:
            self._report(NeighbourLost(node_id, why))
        self.links.pop(node_id, None)
        self._disconnects.append(node_id)
        self.remember([link.peer])
        self.passive_view.rest(node_id, now + REST_S)
        self._gone(node_id, now)

    def close(self, link: OverlayLink, now: float) -> None:
        """The end of a link that is no neighbour's."""
        node_id, purpose = link.peer.node_id, link.purpose
        if link.state is OverlayLinkState.ASKED:
            self.send(node_id, OverlayPacket(OverlayKind.DISCONNECT))  # The answer may be on its way.
        del self.links[node_id]
        self._disconnects.append(node_id)
        self.passive_view.rest(node_id, now + REST_S)
        if purpose is not None:
            self._failed(purpose, now)

    def remember(self, peers: Iterable[Peer]) -> None:
        if not self.me.addresses:
            return
        for peer in peers:
            link = self.links.get(peer.node_id)
            is_active = link is not None and link.state is OverlayLinkState.ACTIVE
            if peer.addresses and peer.node_id != self.me.node_id and not is_active:
                self.passive_view.add(peer)

    def _use(self, link: OverlayLink, purpose: Purpose, now: float) -> None:
        if link.state is not OverlayLinkState.IDLE:
            return
        if purpose is Purpose.PROBE:
            nearer.probed(self, link, now)
        else:
            self.ask(link, purpose, now)

    def activate(self, link: OverlayLink, now: float) -> None:
        if link.state is OverlayLinkState.ACTIVE:
            return
        purpose, link.purpose, link.state = link.purpose, None, OverlayLinkState.ACTIVE
        node_id = link.peer.node_id
        self.passive_view.remove(node_id)
        self._report(NeighbourGained(node_id, link.round_trip_s))
        self._statics.gained(node_id)
        if purpose is Purpose.PROBE:
            nearer.gained(self, link, now)

    def make_room(self, newcomer: OverlayLink, now: float) -> None:
        while self.room <= 0 and not newcomer.is_static:
            movable = [it for it in self.neighbours(besides=newcomer.peer.node_id) if not it.is_static]
            evicted = pick(movable, self.random)
            self.stats.evicted += 1
            self.send(evicted.peer.node_id, OverlayPacket(OverlayKind.DISCONNECT, peers=(newcomer.peer,)))
            self.drop(evicted, f"it made room for {newcomer.peer.node_id}", now)

    def _failed(self, purpose: Purpose, now: float) -> None:
        if purpose in (Purpose.NEIGHBOUR, Purpose.JOIN):
            self._repair_soon(now)

    def _gone(self, node_id: str, now: float) -> None:
        nearer.lost(self, node_id)
        self._statics.lost(node_id, now)
        self._repair_soon(now)

    def _refuse(self, link: OverlayLink, why: str, now: float) -> None:
        node_id = link.peer.node_id
        self._report(PeerRefused(node_id, why))
        was_active = link.state is OverlayLinkState.ACTIVE
        del self.links[node_id]
        self._disconnects.append(node_id)
        self.passive_view.remove(node_id)
        if was_active:
            self._report(NeighbourLost(node_id, why))
        elif link.purpose is not None:
            self._failed(link.purpose, now)
        self._gone(node_id, now)

    def _report(self, event: OverlayEvent) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)

    def _remember_departed(self, peer: Peer) -> None:
        self.passive_view.remove(peer.node_id)
        if not peer.node_id or not peer.addresses:
            return
        if len(self._departed) >= MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]
        self._departed[peer.node_id] = peer

    # What is done from time to time

    def _repair_soon(self, now: float) -> None:
        if len(self.neighbours()) < self.settings.active_target:
            self._repair_at = min(self._repair_at, now)

    def _repair(self, now: float) -> None:
        asked = sum(link.state is OverlayLinkState.ASKED for link in self.links.values()) + len(self._dials)
        missing = self.settings.active_target - len(self.neighbours())
        self._repair_at = now + REPAIR_S * (0.75 + 0.5 * self.random()) if missing > 0 else float("inf")
        if missing <= asked:
            return
        peer = self.passive_view.pick(now)
        if peer is not None:
            self.passive_view.rest(peer.node_id, now + REST_S)
            self.want(peer, Purpose.NEIGHBOUR, now)
        if not self.neighbours() and self._contacts and self._contact_at <= now:
            # Beside the passive view, not after it: it may be full of names that somebody invented.
            self._contact_at = now + REPAIR_S
            self.want(pick(self._contacts, self.random), Purpose.JOIN, now)

    def _reunite(self, now: float) -> None:
        if self._departed and self.room > 0:
            peer = self._departed.pop(pick(list(self._departed), self.random))
            self.want(peer, Purpose.NEIGHBOUR, now)
