"""A federator of the document's wire: bytes in, bytes out, for all topics and neighbours.

What it says goes to the brokers of its neighbours (`take_packets`), and what they say comes by the broker
beside which it stands (`receive`). It tells which topics it has to hear of there (`take_listens`), and which
publications are for that broker's clients (`take_publications`).

A neighbour is known by the address of its broker, and in what it says by its number: `neighbours.py` says
whose word counts as that of which. What others say in its name, and what cannot be true, is ignored and
counted, and all that comes is bounded (`limits.py`).

Where a broker does not say who publishes, anybody there may speak as any neighbour. So a claim that it has a
publication keeps nothing from it: another copy, and that of this node first of all, goes to whoever is not
known to have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from hedgerow.broker.pool import Pool
from hedgerow.federation.document import limits
from hedgerow.federation.document.data_log import DataLog, key_of
from hedgerow.federation.document.limits import MAX_NUMBER
from hedgerow.federation.document.mesh import NEVER, DocumentMesh
from hedgerow.federation.document.neighbours import (
    DocumentPeer,
    NumberedNeighbour,
    NumberedNeighbours,
    Speaker,
)
from hedgerow.federation.document.numbers import PublicationId
from hedgerow.federation.document.wire import (
    Beacon,
    CoreAnn,
    DocumentEntry,
    DocumentWireError,
    FederatedPublication,
    MembAnn,
    RoutedPublication,
    decode,
    encode,
    is_federated,
    is_probe,
)
from hedgerow.rates import Allowance
from hedgerow.topics import TopicTree, is_wildcard


class DocumentPacket(NamedTuple):
    """To be published at the broker of a neighbour."""

    neighbour: str
    topic: str
    payload: bytes
    is_data: bool
    """What is not is void when that broker comes back."""


class DocumentPublication(NamedTuple):
    """From another federator, or from a client that follows the document (then it has no id)."""

    topic: str
    payload: bytes
    id: PublicationId | None
    sender: int | None


class DocumentFederator:
    """`own_origin`: of what begins at this node. `token`: any number, which nobody can guess.
    `knows_speakers`: does its broker tell who published what?"""

    def __init__(
        self,
        number: int,
        neighbours: Iterable[DocumentPeer],
        log: DataLog,
        *,
        own_origin: int | None = None,
        token: Callable[[], int],
        knows_speakers: bool = True,
        redundancy: int = 2,
        announce_interval_s: float = 5.0,
    ) -> None:
        self.number = number
        self.neighbours = NumberedNeighbours(number, neighbours, token, knows_speakers)
        self.sent: Counter[str] = Counter()
        """Messages by kind."""
        self.received: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        """By reason."""
        self._own_origin = own_origin
        self._log = log
        self._redundancy = redundancy
        self._interval_s = announce_interval_s
        self._meshes: dict[str, DocumentMesh] = {}
        self._by_name: TopicTree[str, DocumentMesh] = TopicTree()  # the same
        self._invented = Pool(limits.MAX_TOPICS, limits.LEAST_TOPICS, 1)  # meshes that others began
        self._wanted: set[str] = set()
        self._wide: TopicTree[str, None] = TopicTree()  # those among them with wildcards
        self._timers: list[tuple[float, str]] = []
        self._packets: list[DocumentPacket] = []
        self._publications: list[DocumentPublication] = []
        self._listens: dict[str, bool] = {}
        self._proved: list[NumberedNeighbour] = []
        self._allowance = Allowance(limits.ENTRIES_PER_S, limits.ENTRIES_BURST_S)  # of all but neighbours

    def set_neighbours(self, neighbours: Iterable[DocumentPeer]) -> None:
        """These from now on. Those that are gone are forgotten by their meshes when they are not heard."""
        self.neighbours.set(neighbours)

    # What people see

    @property
    def deadline(self) -> float:
        first = self._timers[0][0] if self._timers else NEVER
        return min(first, self.neighbours.deadline)

    def number_of(self, address: str) -> int | None:
        known = self.neighbours.get(address)
        return None if known is None else known.number

    @property
    def meshes(self) -> Iterable[DocumentMesh]:
        return self._meshes.values()

    @property
    def visited(self) -> int:
        """What it has cost so far to find the topics that filters match: steps from level to level."""
        return self._by_name.visited

    def mesh_of(self, topic: str) -> DocumentMesh | None:
        return self._meshes.get(topic)

    def take_packets(self) -> list[DocumentPacket]:
        packets, self._packets = self._packets, []
        return packets

    def take_publications(self) -> list[DocumentPublication]:
        publications, self._publications = self._publications, []
        return publications

    def take_proved(self) -> list[NumberedNeighbour]:
        """Neighbours that have told their numbers."""
        proved, self._proved = self._proved, []
        return proved

    def take_listens(self) -> list[tuple[str, bool]]:
        """Topics of which this node is to hear what is published at its broker, or no longer."""
        listens, self._listens = self._listens, {}
        return list(listens.items())

    # Neighbours

    def linked(self, address: str, now: float) -> None:
        """Its broker is reached: it is told of the meshes whose core this node is, or knows."""
        neighbour = self.neighbours.get(address)
        if neighbour is not None:
            self.neighbours.linked(neighbour, now)
            self._ask(now)
        for mesh in self._meshes.values():
            if mesh.core is not None:
                entry = CoreAnn(mesh.core, mesh.sequence, mesh.distance, self.number)
                self._send([address], mesh.topic, entry)

    def unlinked(self, address: str) -> None:
        neighbour = self.neighbours.get(address)
        if neighbour is not None:
            self.neighbours.unlinked(neighbour)

    def _ask(self, now: float) -> None:
        for address, topic in self.neighbours.take_questions(now):
            self._send([address], topic, Beacon())

    def _receive_probe(self, topic: str, entry: DocumentEntry, speaker: Speaker, now: float) -> None:
        # From one of ours, which asks as we do. The answer's name is longer than the question's.
        if isinstance(entry, Beacon) and len(topic.encode()) <= limits.MAX_TOPIC_BYTES:
            answer = CoreAnn(self.number, _sequence_at(now), 0, self.number)
            self._send(self.neighbours.to_answer(topic, speaker, now), topic, answer)
        elif isinstance(entry, CoreAnn):
            proved = self.neighbours.hear_answer(topic, entry, speaker)
            if proved is not None:
                self._proved.append(proved)

    def _is_neighbour(self, sender: int, speaker: Speaker, now: float) -> bool:
        reason = self.neighbours.why_not(sender, speaker, now)
        if reason is not None:
            self.ignored[reason] += 1
        return reason is None

    def _address_of(self, number: int) -> list[str]:
        known = self.neighbours.with_number(number)
        return [] if known is None else [known.address]

    # What is wanted here, or behind our own links

    def set_wanted(self, topic_filter: str, is_wanted: bool, now: float) -> None:
        if is_wanted == (topic_filter in self._wanted) or not is_federated(topic_filter):
            return
        (self._wanted.add if is_wanted else self._wanted.discard)(topic_filter)
        if is_wildcard(topic_filter):
            if is_wanted:
                self._wide.set(topic_filter, topic_filter, None)
            else:
                self._wide.remove(topic_filter, topic_filter)
            for _, mesh in list(self._by_name.match_filter(topic_filter)):
                self._follow(mesh, now)
        elif is_wanted:
            admitted = self._admit(topic_filter, None)
            if admitted is not None:
                self._follow(admitted, now)
        elif topic_filter in self._meshes:
            self._follow(self._meshes[topic_filter], now)

    def _is_wanted(self, topic: str) -> bool:
        return topic in self._wanted or bool(self._wide.match(topic))

    def _admit(self, topic: str, speaker: Speaker) -> DocumentMesh | None:
        """The mesh of a topic that is wanted here, or that somebody else speaks of."""
        mesh = self._meshes.get(topic)
        if mesh is None:
            is_ours = topic in self._wanted
            own_count = len(self._meshes) - self._invented.used
            has_room = own_count < limits.MAX_TOPICS if is_ours else self._invented.has_room(speaker, 1)
            if not has_room or len(topic.encode()) > limits.MAX_TOPIC_BYTES:
                self.ignored["too many topics"] += 1
                return None
            mesh = self._meshes[topic] = DocumentMesh(topic, self.number, self._interval_s)
            self._by_name.set(topic, topic, mesh)
            if not is_ours:
                mesh.is_invented, mesh.inventor = True, speaker
                self._invented.change(speaker, 1)
        return mesh

    def _forget(self, mesh: DocumentMesh) -> None:
        del self._meshes[mesh.topic]
        self._by_name.remove(mesh.topic, mesh.topic)
        if mesh.is_invented:
            self._invented.change(mesh.inventor, -1)

    # Publications

    def publish(self, topic: str, publication: PublicationId, payload: bytes, now: float) -> None:
        """Published at this broker, by whoever: to the mesh of its topic, if there is one."""
        mesh = self._meshes.get(topic)
        if mesh is not None:
            self._route(mesh, publication, payload, None, now)

    def wants_federated(self, topic: str, now: float) -> bool:
        """Is there a client of the document, which gets it under `federated/`?"""
        mesh = self._meshes.get(topic)
        return mesh is not None and mesh.beacon_until > now

    def _route(
        self, mesh: DocumentMesh, publication: PublicationId, payload: bytes, sender: int | None, now: float
    ) -> bool:
        """To those of the mesh who do not have it yet. False: it was here before."""
        key = key_of(mesh.topic, publication, payload)
        before = self._log.holders(key)
        holders = before or 0
        addresses: list[str] = []
        for target in mesh.targets(sender):
            known = self.neighbours.with_number(target)
            if known is not None and not holders & known.bit:
                holders |= known.bit
                addresses.append(known.address)
        if sender is not None and self.neighbours.knows_speakers:
            known = self.neighbours.with_number(sender)
            holders |= 0 if known is None else known.bit
        self._log.note(key, holders, now)
        self._send(sorted(addresses), mesh.topic, RoutedPublication(*publication, self.number, payload))
        return before is None

    # What is said at this broker

    def receive(self, name: str, payload: bytes, speaker: Speaker, now: float) -> None:
        """Any message to `federator/…` or `federated/…`."""
        try:
            topic, entry = decode(name, payload)
        except DocumentWireError as error:
            self.ignored[str(error)] += 1
            return
        self.received[type(entry).__name__] += 1
        neighbour = self.neighbours.spoken_by(speaker)
        if not (self._allowance if neighbour is None else neighbour.allowance).take(now):
            self.ignored["too fast"] += 1
        elif is_probe(topic):
            self._receive_probe(topic, entry, speaker, now)
        elif not is_federated(topic):
            self.ignored["local topic"] += 1
        else:
            self._receive(topic, entry, speaker, now)

    def _receive(self, topic: str, entry: DocumentEntry, speaker: Speaker, now: float) -> None:
        match entry:
            case Beacon():
                self._receive_beacon(topic, speaker, now)
            case FederatedPublication(payload):
                self._publications.append(DocumentPublication(topic, payload, None, None))
            case CoreAnn():
                if entry.core == self.number:
                    return  # an echo, or of an earlier life: what is announced next says what is true
                if self._is_neighbour(entry.sender, speaker, now):
                    self._receive_core_ann(topic, entry, speaker, now)
            case MembAnn():
                if self._is_neighbour(entry.sender, speaker, now):
                    self._receive_memb_ann(topic, entry, now)
            case RoutedPublication():
                if self._is_neighbour(entry.sender, speaker, now):
                    self._receive_routed(topic, entry, now)

    def _receive_beacon(self, topic: str, speaker: Speaker, now: float) -> None:
        mesh = self._admit(topic, speaker)
        if mesh is not None:
            mesh.beacon_until = now + limits.BEACON_S
            self._follow(mesh, now)

    def _receive_core_ann(self, topic: str, entry: CoreAnn, speaker: Speaker, now: float) -> None:
        if entry.distance >= limits.MAX_DISTANCE:
            self.ignored["impossible distance"] += 1
            return
        mesh = self._admit(topic, speaker)
        if mesh is None:
            return
        mesh.end(now)
        if mesh.hear(entry, self._redundancy, now):
            passed_on = CoreAnn(entry.core, entry.sequence, mesh.distance, self.number)
            others = set(self.neighbours.addresses) - set(self._address_of(entry.sender))
            self._send(sorted(others), topic, passed_on)
        self._follow(mesh, now)

    def _receive_memb_ann(self, topic: str, entry: MembAnn, now: float) -> None:
        mesh = self._meshes.get(topic)
        if mesh is None or not mesh.add_child(entry.core, entry.sequence, entry.sender, now):
            self.ignored["outdated"] += 1
        else:
            self._follow(mesh, now)

    def _receive_routed(self, topic: str, entry: RoutedPublication, now: float) -> None:
        mesh = self._meshes.get(topic)
        if mesh is None:
            self.ignored["no mesh"] += 1
            return
        if entry.origin == self._own_origin:
            # It comes back, or was made up: what began here all have had from here.
            self.ignored["our own"] += 1
            return
        publication = PublicationId(entry.origin, entry.sequence)
        if not self._route(mesh, publication, entry.payload, entry.sender, now):
            self.ignored["duplicate"] += 1
        elif mesh.is_wanted:
            self._publications.append(DocumentPublication(topic, entry.payload, publication, entry.sender))

    # What follows

    def handle_timer(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, topic = heappop(self._timers)
            due = self._meshes.get(topic)
            if due is not None and due.timer_at == at:
                due.timer_at = NEVER
                due.end(now)
                self._follow(due, now)
        self._ask(now)

    def _follow(self, mesh: DocumentMesh, now: float) -> None:
        mesh.is_wanted = self._is_wanted(mesh.topic) or mesh.beacon_until > now
        # A wide filter wants what others tell of: it does not make this node the core of it for ever.
        has_smaller = mesh.core is not None and mesh.core <= self.number
        if not has_smaller and mesh.is_wanted and self._may_be_core(mesh, now):
            mesh.become_core(_sequence_at(now), now)
        elif mesh.is_core and not self._may_be_core(mesh, now):
            mesh.lose_core()
        if mesh.announce_at <= now:
            self._announce(mesh, now)
        parents = mesh.take_unanswered()
        for parent in parents:
            entry = MembAnn(mesh.core or 0, mesh.sequence, self.number)
            self._send(self._address_of(parent), mesh.topic, entry)
        self._listen(mesh, now)
        if mesh.is_empty or (mesh.core is None and not self._may_be_core(mesh, now)):
            self._forget(mesh)
        elif mesh.deadline < mesh.timer_at:
            mesh.timer_at = mesh.deadline
            heappush(self._timers, (mesh.timer_at, mesh.topic))

    def _may_be_core(self, mesh: DocumentMesh, now: float) -> bool:
        return mesh.topic in self._wanted or mesh.beacon_until > now

    def _announce(self, mesh: DocumentMesh, now: float) -> None:
        mesh.sequence = (mesh.sequence + 1) & MAX_NUMBER
        self._send(self.neighbours.addresses, mesh.topic, CoreAnn(self.number, mesh.sequence, 0, self.number))
        mesh.announce_at = now + self._interval_s

    def _listen(self, mesh: DocumentMesh, now: float) -> None:
        leads_somewhere = mesh.core is not None and (not mesh.is_core or bool(mesh.children))
        is_listening = leads_somewhere or mesh.beacon_until > now
        if is_listening != mesh.is_listening:
            mesh.is_listening = is_listening
            if self._listens.pop(mesh.topic, is_listening) == is_listening:
                self._listens[mesh.topic] = is_listening

    def _send(self, addresses: Iterable[str], topic: str, entry: DocumentEntry) -> None:
        name, payload = encode(topic, entry)
        is_data = isinstance(entry, RoutedPublication)
        for address in addresses:
            self.sent[type(entry).__name__] += 1
            self._packets.append(DocumentPacket(address, name, payload, is_data))


def _sequence_at(now: float) -> int:
    """Later than any that this node has announced, before a restart too: it does so once a second at most."""
    return int(now) & MAX_NUMBER
