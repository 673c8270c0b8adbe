"""A node's part in a federation: broker, overlay (who is a neighbour) and federator (who gets what).

The overlay says to whom there should be links; the shell opens them, or a neighbour dials (`Link`s are
connections of the broker, see `neighbour_connection.py`). To every neighbour the broker has a session
(`neighbour_session.py`), and the federator decides which filters it is subscribed to: so that publications
travel as the broker's own routing, with ids, queues and acknowledgements as between any two brokers.

A link that is lost is taken from the federator at once, and others carry on. The session of the lost
neighbour stays, and what is published waits in it (`absences.py`).

What the machines have to say is done by `serve`, after whatever gave them work; `has_work` says that it is
due. Events for the log, links to open and a deadline are the shell's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import Connection
from hedgerow.broker.owners import owner_of
from hedgerow.broker.session import Channel, Session
from hedgerow.federation.absences import Absences
from hedgerow.federation.events import LinkNotOpen, RightMissing
from hedgerow.federation.identities import HEALTHY_S, Identities
from hedgerow.federation.interests.events import InterestEvent
from hedgerow.federation.key_proof import NONCE_BYTES, ProvingAcceptor, ProvingDialler
from hedgerow.federation.lingering import LINGER_INTERVALS, LingeringMeshes
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.limits import ANNOUNCE_INTERVAL_S
from hedgerow.federation.neighbour_connection import NeighbourConnection
from hedgerow.federation.neighbour_session import Gifts, Keeping, take_session
from hedgerow.federation.neighbours import ALREADY_LINKED, KEY_HERE, NEIGHBOUR_PREFIX, NeighbourRole
from hedgerow.federation.overlay.events import NeighbourGained, NeighbourLost, OverlayEvent, PeerRefused
from hedgerow.federation.overlay.limits import OverlaySettings
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.overlay.wire import Peer
from hedgerow.federation.signs_of_life import ALIVE_S, ALIVE_TOPIC, SignsOfLife
from hedgerow.federation.state import StateTeller
from hedgerow.federation.tunnel.tunnels import Tunnels
from hedgerow.federation.tunnel_links import TunnelSet
from hedgerow.mqtt.packets import Publish
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import CONTROL_PREFIX

if TYPE_CHECKING:
    from hedgerow.federation.home import Home

OVERLAY_TOPIC = CONTROL_PREFIX + "overlay"
MESH_TOPIC = CONTROL_PREFIX + "mesh"
# Behind all that a neighbour is told when it comes: that this was all, which it answers behind its own.
INTRODUCTION_TOPIC = CONTROL_PREFIX + "introduction"
THAT_WAS_ALL, HEARD = b"all", b"heard"
INTEREST_WORK = 40  # See `Broker.begin_turn`: for a filter that is new or gone,
SWEEP_WORK = 5  # and for each that it may cover.
MAX_SESSIONS = 256  # of nodes that are neighbours, or were: names can be invented
MIN_PLACES = 16  # for neighbours that an owner may always have, while there are any
MAX_TOLD = 256  # addresses of which the log says why there is no link
MAX_FOREIGN = 256  # addresses of brokers that are not ours: whoever tells of members can invent them

FederationEvent = OverlayEvent | LinkNotOpen | RightMissing | InterestEvent


class Federation:
    """`random` gives numbers from 0 to 1, `random_bytes` unpredictable ones. `addresses`: where others may
    reach this node. `is_certified`: does a certificate prove that a member is at this address?
    `takes_strangers`: may anybody connect here?"""

    def __init__(
        self,
        broker: Broker,
        addresses: Iterable[str],
        now: float,
        *,
        random: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        key: bytes | None = None,
        redundancy: int = 2,
        settings: OverlaySettings | None = None,
        keeping: Keeping | None = None,
        announce_interval_s: float = ANNOUNCE_INTERVAL_S,
        max_sessions: int = MAX_SESSIONS,
        is_certified: Callable[[str], bool] = lambda address: False,
        takes_strangers: bool = True,
    ) -> None:
        self.broker = broker
        self.keeping = keeping or Keeping()
        self._key = key
        self._max_sessions = max_sessions
        self._random_bytes = random_bytes
        self.home: Home | None = None  # where this node stands beside a broker that is not ours
        me = Peer(broker.node_id, tuple(addresses))
        epoch = broker.epoch
        self.overlay = Overlay(
            me, now, epoch=epoch, begun_at=broker.begun_at, random=random, key=key, settings=settings
        )
        self.federator = Federator(
            broker.node_id,
            now,
            random=random,
            redundancy=redundancy,
            announce_interval_s=announce_interval_s,
            epoch=epoch,
        )
        self.identities = Identities(
            broker,
            self.overlay.is_configured,
            lambda address: key is not None or is_certified(address),
            takes_strangers=takes_strangers,
        )
        self.has_work = True
        self._links: dict[str, Channel] = {}  # by node id: the one whose session is bound to it
        self._ended: list[tuple[str, Channel]] = []
        self._introduced: set[str] = set()  # neighbours that have just been told all
        self._to_answer: set[str] = set()  # and those that have told us all
        self._signs_of_life: dict[str, SignsOfLife] = {}  # on links that neighbours dialled
        self._alive_at = float("inf")
        self._answered_at: dict[Channel, float] = {}  # accepted, and yet to say its first word
        self._lingering = LingeringMeshes(broker, LINGER_INTERVALS * announce_interval_s)
        self._absences = Absences(broker, self.federator, self._lingering)
        self._gifts: dict[Session, Gifts] = {}
        self._giving: set[Session] = set()  # to whom they are under way
        self._told: dict[str, str] = {}  # by address: why a link could not be opened
        self._foreign: dict[str, None] = {}  # addresses of brokers that know nothing of our key
        self._again: list[Peer] = []  # to dial once more, now that this is known
        self._events: list[FederationEvent] = []
        self._tunnel_sets: set[TunnelSet] = set()
        self.ignored_frames: Counter[str] = Counter()  # of all tunnels that there ever were, by reason
        self.state = StateTeller(self)
        self.state.look(now)
        role = self._role = NeighbourRole(broker, self)
        broker.register(role)
        for session in list(broker.sessions.values()):
            if session.role is role:
                node_id = session.client_id.removeprefix(NEIGHBOUR_PREFIX)
                take_session(broker, node_id, self.keeping)
                self._absences.gone(node_id, now)
        local = broker.subscriptions.local
        for observer in broker.subscriptions.observers:
            for topic_filter in observer.interests:
                local.grow(topic_filter)
        local.watch(self._note_interest)

    def _note_interest(self, topic_filter: str, is_wanted: bool) -> None:
        swept = self.federator.swept
        if is_wanted:
            self.federator.subscribe(topic_filter, self.broker.now)
        else:
            self.federator.unsubscribe(topic_filter, self.broker.now)
        self.broker.work += INTEREST_WORK + SWEEP_WORK * (self.federator.swept - swept)
        self.state.look(self.broker.now)  # Of a node without neighbours nothing else would tell.
        self.has_work = True

    def keep_here(self, beginnings: tuple[str, ...]) -> None:
        """Topics that begin so are not for neighbours."""
        self._role.kept_here = beginnings

    # Links that this node opens

    def take_dials(self) -> list[Peer]:
        """To whom a link is to be opened, at any of the addresses: `open`, or `dial_failed`."""
        again, self._again = self._again, []
        return [dial for peer in again + self.overlay.take_connects() for dial in self._that_may_be(peer)]

    def _that_may_be(self, peer: Peer) -> Iterator[Peer]:
        """The peer, with those of its addresses at which it could be taken for a neighbour."""
        doubts = [self.identities.doubt_of_place(peer.node_id, address) for address in peer.addresses]
        addresses = [address for address, doubt in zip(peer.addresses, doubts, strict=True) if doubt is None]
        if addresses or not peer.addresses:
            yield peer._replace(addresses=tuple(addresses))
        else:
            self.dial_failed(peer, doubts[0] or "")

    def open(
        self,
        peer: Peer,
        address: str,
        now: float,
        username: str | None = None,
        password: bytes | None = None,
    ) -> NeighbourConnection:
        return NeighbourConnection(self, peer, address, now, username, password)

    def dial_failed(self, peer: Peer, reason: str) -> None:
        where = peer.addresses[0] if peer.addresses else peer.node_id
        if reason not in (ALREADY_LINKED, self._told.get(where)):
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[where] = reason
            self._events.append(LinkNotOpen(where, reason))
        self.overlay.not_opened(peer, self.broker.now)
        self.has_work = True

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def dialler(self, address: str) -> ProvingDialler | None:
        """By what this node proves that it has the key; None: it has none, or a broker is there that is not
        ours."""
        if self._key is None or address in self._foreign:
            return None
        return ProvingDialler(self._key, self.broker.node_id, self._random_bytes(NONCE_BYTES))

    def dial_foreign(self, peer: Peer, address: str) -> None:
        """A broker that is not ours is there, which takes no CONNECT with a proof. Whoever pretends that can
        do no more than carry a tunnel, in which there are proofs again."""
        if len(self._foreign) >= MAX_FOREIGN:
            del self._foreign[next(iter(self._foreign))]
        self._foreign[address] = None
        self._again.append(peer)
        self.has_work = True

    def forget_foreign(self, address: str) -> bool:
        """A node of ours answers there. Was it taken for a broker that is not?"""
        was_foreign = address in self._foreign
        self._foreign.pop(address, None)
        return was_foreign

    def dialled_again(self, peer: Peer, node_id: str, round_trip_s: float) -> None:
        """The node at this address is linked to us already."""
        self.overlay.connected(peer._replace(node_id=node_id), round_trip_s, self.broker.now)
        self.has_work = True

    def linked(self, connection: NeighbourConnection) -> None:
        assert connection.far_node is not None
        self.identities.answered(connection.far_node, connection.place)
        self._link(connection.far_node, connection, connection.peer.addresses, connection.round_trip_s)

    def measured(self, connection: NeighbourConnection, round_trip_s: float) -> None:
        node_id = connection.far_node
        if node_id is None or self._links.get(node_id) is not connection:
            return
        if self.overlay.measured(node_id, round_trip_s):
            self.state.look(self.broker.now)
            self.has_work = True

    def yields_to_accepted(self, node_id: str) -> bool:
        """Both dialled: the link of the smaller id stays."""
        link = self._links.get(node_id)
        return (
            link is not None and not isinstance(link, NeighbourConnection) and node_id < self.broker.node_id
        )

    def close(self, now: float) -> None:
        """Neighbours are told that this node goes, while there are connections that carry tunnels to them."""
        self.broker.now = now
        for link in list(self._links.values()):
            link.disconnect(Reason.SERVER_SHUTTING_DOWN, "")

    def is_linked(self, node_id: str) -> bool:
        return node_id in self._links

    # Tunnels, over connections to brokers that are not ours

    def make_tunnels(self, *, is_federator: bool) -> Tunnels:
        """For one such connection."""
        tunnels = Tunnels(
            self.broker.node_id, is_federator=is_federator, random_bytes=self._random_bytes, key=self._key
        )
        tunnels.ignored = self.ignored_frames
        return tunnels

    def draw_tunnel_id(self) -> int:
        return int.from_bytes(self._random_bytes(8), "big")

    def serve_tunnels(self, tunnels: TunnelSet, is_open: bool) -> None:
        """Their deadlines are this one's, from now on or no longer."""
        if is_open:
            self._tunnel_sets.add(tunnels)
        else:
            self._tunnel_sets.discard(tunnels)
        self.has_work = True

    def refuse(self, node_id: str, reason: str) -> None:
        self._events.append(PeerRefused(node_id, reason))
        self.has_work = True

    # Links that neighbours open (`Neighbourhood`)

    def acceptor(self, node_id: str, connect: bytes) -> ProvingAcceptor | None:
        if self._key is None:
            return None
        nonce = self._random_bytes(NONCE_BYTES)
        return ProvingAcceptor(self._key, self.broker.node_id, nonce, connect, expected=node_id)

    def claim_refusal(self, node_id: str, username: str | None, address: str) -> str | None:
        link = self._links.get(node_id)
        if isinstance(link, NeighbourConnection) and self._is_healthy(link):
            return None  # `refusal` has the answer, which is no complaint.
        return self.identities.refusal(node_id, username, address) or self._lack_of_places(
            node_id, owner_of(username, address)
        )

    def _lack_of_places(self, node_id: str, owner: str) -> str | None:
        """Ids can be invented: without a key, one owner gets no more places than it leaves free."""
        sessions = dict(self.neighbour_sessions())
        free = self._max_sessions - len(sessions)
        if node_id in sessions or self._key is not None:
            return None
        own = sum(session.owner == owner for session in sessions.values())
        if own >= max(free, MIN_PLACES):
            return f"{own} of {self._max_sessions} neighbours are of this user or address"
        return None

    def inherits(self, node_id: str) -> bool:
        return self.identities.inherits(node_id)

    def forgotten(self, node_id: str) -> None:
        self.identities.forget(node_id)

    def _is_healthy(self, link: NeighbourConnection) -> bool:
        return self.broker.now < link.heard_at + HEALTHY_S

    def refusal(self, node_id: str, proven_name: str | None) -> str | None:
        if node_id == self.broker.node_id:
            return "this node has that name itself"
        if self._key is not None and proven_name != node_id:
            self.refuse(node_id, KEY_HERE)
            return KEY_HERE
        link = self._links.get(node_id)
        if isinstance(link, NeighbourConnection):
            # It took that one, and did not know that it would dial the same node.
            return ALREADY_LINKED if self._is_healthy(link) else None
        sessions = self.neighbour_sessions()
        if len(sessions) >= self._max_sessions and node_id not in dict(sessions):
            return f"{self._max_sessions} nodes are neighbours, or were and may come back"
        return None

    def accepted(self, connection: Channel) -> None:
        session = connection.connected_session()
        node_id = session.client_id.removeprefix(NEIGHBOUR_PREFIX)
        # No longer than it asks for: a dashboard that is closed has missed nothing.
        keeping = replace(self.keeping, seconds=min(self.keeping.seconds, session.expiry_s))
        take_session(self.broker, node_id, keeping)
        self._answered_at[connection] = self.broker.now
        self._link(node_id, connection, (), 0.0)

    def ended(self, connection: Channel) -> None:
        self._answered_at.pop(connection, None)
        client_id = connection.connected_session().client_id
        # Not now: it may be that another takes its place in this very moment.
        self._ended.append((client_id.removeprefix(NEIGHBOUR_PREFIX), connection))
        self.has_work = True

    def receive_control(self, connection: Channel, topic: str, payload: bytes) -> None:
        node_id = connection.connected_session().client_id.removeprefix(NEIGHBOUR_PREFIX)
        now = self.broker.now
        if self._links.get(node_id) is not connection:
            return
        answered_at = self._answered_at.pop(connection, None)
        if answered_at is not None:
            # Its first word is the answer to CONNACK.
            self.overlay.connected(Peer(node_id, ()), now - answered_at, now)
        if topic == OVERLAY_TOPIC:
            self.overlay.receive(node_id, payload, now)
            # At once: what it announces as our neighbour is right behind the word that it is one.
            self._follow_overlay(now)
            self.state.look(now)  # It may have told how far it is.
        elif topic == MESH_TOPIC:
            self.federator.receive(node_id, payload, now)
        elif topic == INTRODUCTION_TOPIC and payload == THAT_WAS_ALL:
            self._to_answer.add(node_id)
        elif topic == INTRODUCTION_TOPIC and payload == HEARD:
            self._absences.heard(node_id, now)
        self.has_work = True

    def take_session(self, node_id: str) -> Session:
        """For a link that was dialled: the one that there was makes room."""
        session = take_session(self.broker, node_id, self.keeping)
        if session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "another link takes its place")
        return session

    def _link(
        self, node_id: str, connection: Channel, addresses: tuple[str, ...], round_trip_s: float
    ) -> None:
        now = self.broker.now
        self._links[node_id] = connection
        self._signs_of_life.pop(node_id, None)
        if isinstance(connection, Connection) and not isinstance(connection, NeighbourConnection):
            self._signs_of_life[node_id] = SignsOfLife(connection)
            self._alive_at = min(self._alive_at, now + ALIVE_S)
        self._absences.back(node_id, now)
        for address in addresses:
            self._told.pop(address, None)
        self.overlay.connected(Peer(node_id, addresses), round_trip_s, now)
        self.has_work = True

    # What follows

    def serve(self, now: float) -> None:
        self.broker.now = now
        while self.has_work:
            self.has_work = False
            self._take_ended(now)
            self._follow_overlay(now)
            changes = self.federator.take_changes()
            for node_id, topic_filter, is_wanted in changes:
                self._set_filter(node_id, topic_filter, is_wanted)
            self._lingering.end(self._links, self.federator.take_forgotten())
            self._deliver_gifts()
            self._send(OVERLAY_TOPIC, self.overlay.take_packets())
            packets = self.federator.take_packets()
            self._send(MESH_TOPIC, packets)
            self._tell_of_introductions()
            if self.home is not None:
                self._events += self.home.serve()
            for node_id in self.overlay.take_disconnects():
                link = self._links.get(node_id)
                if link is not None:
                    link.disconnect(Reason.SUCCESS, "no neighbour")
            if changes or packets:
                self.state.look(now)

    def _tell_of_introductions(self) -> None:
        introduced, self._introduced = sorted(self._introduced), set()
        self._send(INTRODUCTION_TOPIC, [(node_id, THAT_WAS_ALL) for node_id in introduced])
        # What is wanted of a list is said when all of it has come.
        heard = sorted(each for each in self._to_answer if not self.federator.is_hearing(each))
        self._to_answer.difference_update(heard)
        self._send(INTRODUCTION_TOPIC, [(node_id, HEARD) for node_id in heard])

    def _follow_overlay(self, now: float) -> None:
        for event in self.overlay.take_events():
            self._events.append(event)
            self.state.look(now)
            if isinstance(event, NeighbourGained):
                self.federator.add_neighbour(event.node_id, now, self._may_learn(event.node_id))
                self._introduced.add(event.node_id)
                self.identities.said(event.node_id, self.overlay.addresses_of(event.node_id))
            elif isinstance(event, NeighbourLost):
                self.federator.remove_neighbour(event.node_id, now)
                self._to_answer.discard(event.node_id)
        for node_id in self.overlay.take_asked_again():
            if self.federator.introduce_again(node_id, now):
                self._introduced.add(node_id)

    def _may_learn(self, node_id: str) -> Callable[[str], bool] | None:
        session = self.broker.sessions.get(NEIGHBOUR_PREFIX + node_id)
        rights = self._role.filter_rights(session) if session is not None else None
        return None if rights is None else rights.has_any

    def rights_changed(self) -> None:
        """The broker's access rules are others now."""
        for node_id in self.federator.neighbours:
            self.federator.set_rights(node_id, self._may_learn(node_id), self.broker.now)
        self.has_work = True

    def _take_ended(self, now: float) -> None:
        ended, self._ended = self._ended, []
        for node_id, connection in ended:
            if self._links.get(node_id) is connection:
                del self._links[node_id]
                self._signs_of_life.pop(node_id, None)
                self._lingering.forget(node_id)
                session = connection.connected_session()
                waits = session.expiry_s > 0 and bool(session.subscriptions or session.waiting_count)
                if waits and node_id in self.overlay.links:
                    self._absences.gone(node_id, now)
                else:
                    self._absences.left(node_id)
                self.overlay.lost(Peer(node_id, ()), now)

    def _set_filter(self, node_id: str, topic_filter: str, is_wanted: bool) -> None:
        session = self.broker.sessions.get(NEIGHBOUR_PREFIX + node_id)
        if session is None:
            return
        if is_wanted:
            if not self._lingering.resume(node_id, topic_filter):
                self._gifts.setdefault(session, Gifts(self.broker, session)).give(topic_filter)
        elif node_id in self._links:
            self._lingering.keep(node_id, topic_filter)

    def _deliver_gifts(self) -> None:
        for session, gifts in list(self._gifts.items()):
            if session in self._giving:
                continue
            self._giving.add(session)
            self.broker.begin_turn()
            go_on = partial(self._go_on_giving, session, gifts.deliver())
            if not go_on():
                self.broker.end_later(go_on)

    def _go_on_giving(self, session: Session, steps: Iterator[None]) -> bool:
        is_over = True
        try:
            is_over = self.broker.take_steps(steps)
        finally:
            if is_over:
                del self._gifts[session]
                self._giving.discard(session)
        return is_over

    def _send(self, topic: str, packets: list[tuple[str, bytes]]) -> None:
        for node_id, payload in packets:
            link = self._links.get(node_id)
            if link is not None and link.is_connected:
                link.send_packet(Publish(topic, payload))

    def _say_alive(self, now: float) -> None:
        due = [node_id for node_id, signs in self._signs_of_life.items() if signs.is_due]
        self._send(ALIVE_TOPIC, [(node_id, b"") for node_id in due])
        self._alive_at = now + ALIVE_S if self._signs_of_life else float("inf")

    # Time

    @property
    def deadline(self) -> float:
        of_tunnels = min((each.tunnels.deadline for each in self._tunnel_sets), default=float("inf"))
        of_home = self.home.deadline if self.home is not None else float("inf")
        own = min(self.overlay.deadline, self.federator.deadline, self._absences.deadline)
        own = min(own, self._lingering.deadline)
        return min(own, self.state.deadline, of_tunnels, of_home, self._alive_at)

    def handle_timer(self, now: float) -> None:
        self.broker.now = now
        self.overlay.handle_timer(now)
        self.federator.handle_timer(now)
        if self.home is not None:
            self.home.handle_timer(now)
        for tunnels in list(self._tunnel_sets):
            tunnels.handle_timer(now)
        if self.state.deadline <= now:
            self.state.handle_timer(now)
        self._absences.handle_timer(now)
        self._lingering.handle_timer(now)
        if self._alive_at <= now:
            self._say_alive(now)
        self.has_work = True

    # What people see

    def neighbour_sessions(self) -> list[tuple[str, Session]]:
        """Of every node that is a neighbour, or was one, by its id."""
        sessions = [each for each in self.broker.links.values() if each.role.name == NeighbourRole.name]
        return [(session.client_id.removeprefix(NEIGHBOUR_PREFIX), session) for session in sessions]

    @property
    def not_reached(self) -> Mapping[str, str]:
        """Addresses at which there should be a neighbour, and why there is no link to it."""
        return self._told

    def take_events(self) -> list[FederationEvent]:
        events, self._events = self._events, []
        return events
