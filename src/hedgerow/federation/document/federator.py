"""A federator of the document's wire: bytes in, bytes out, for all topics and neighbours.

What it says goes to the brokers of its neighbours (`take_packets`), and what they say comes by the broker
beside which it stands (`receive`). It tells which topics it has to hear of there (`take_listens`), and which
publications are for that broker's clients (`take_publications`).

A neighbour is known by the address of its broker, and in what it says by its number. Where people have not
said which number is at which address, the federator asks: it publishes at that broker, as a client of it
would, that there is a subscriber of a topic which nobody else has. Its federator then announces itself as the
core of that topic, with its number. Until a number is known, what is for it goes to all addresses whose
numbers are not.

Whoever may publish there can say anything in the name of any neighbour, so all that comes is bounded
(`limits.py`), and what cannot be true is ignored and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NamedTuple

from hedgerow.federation.document import limits
from hedgerow.federation.document.data_log import DataLog, key_of
from hedgerow.federation.document.mesh import NEVER, DocumentMesh
from hedgerow.federation.document.numbers import PublicationId
from hedgerow.federation.document.wire import (
    MAX_NUMBER,
    PROBE,
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
    """`neighbours`: by address, with their numbers."""

    def __init__(
        self,
        number: int,
        neighbours: Iterable[tuple[str, int | None]],
        log: DataLog,
        *,
        redundancy: int = 2,
        announce_interval_s: float = 5.0,
    ) -> None:
        self.number = number
        self.sent: Counter[str] = Counter()
        """Messages by kind."""
        self.received: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        """By reason."""
        self._log = log
        self._redundancy = redundancy
        self._interval_s = announce_interval_s
        self._numbers: dict[str, int | None] = {}
        self._probe_topics: dict[str, str] = {}
        self._probe_at: dict[str, float] = {}  # of those that are linked and have no number
        self._meshes: dict[str, DocumentMesh] = {}
        self._wanted: set[str] = set()
        self._wide: TopicTree[str, None] = TopicTree()  # those among them with wildcards
        self._timers: list[tuple[float, str]] = []
        self._packets: list[DocumentPacket] = []
        self._publications: list[DocumentPublication] = []
        self._listens: dict[str, bool] = {}
        self._allowance = Allowance(limits.ENTRIES_PER_S, limits.ENTRIES_BURST_S)
        self.set_neighbours(neighbours)

    def set_neighbours(self, neighbours: Iterable[tuple[str, int | None]]) -> None:
        """These from now on. Those that are gone are forgotten by their meshes when they are not heard."""
        before, self._numbers = self._numbers, dict(neighbours)
        for address, number in self._numbers.items():
            self._numbers[address] = before.get(address) if number is None else number
        self._probe_topics = {self._probe_topic(address): address for address in self._numbers}
        for address in self._probe_at.keys() - self._numbers.keys():
            del self._probe_at[address]

    def _probe_topic(self, address: str) -> str:
        return f"{PROBE}{self.number}/{blake2b(address.encode(), digest_size=6).hexdigest()}"

    # What people see

    @property
    def deadline(self) -> float:
        first = self._timers[0][0] if self._timers else NEVER
        return min(first, *self._probe_at.values(), NEVER)

    def number_of(self, address: str) -> int | None:
        return self._numbers.get(address)

    @property
    def meshes(self) -> Iterable[DocumentMesh]:
        return self._meshes.values()

    def mesh_of(self, topic: str) -> DocumentMesh | None:
        return self._meshes.get(topic)

    def take_packets(self) -> list[DocumentPacket]:
        packets, self._packets = self._packets, []
        return packets

    def take_publications(self) -> list[DocumentPublication]:
        publications, self._publications = self._publications, []
        return publications

    def take_listens(self) -> list[tuple[str, bool]]:
        """Topics of which this node is to hear what is published at its broker, or no longer."""
        listens, self._listens = self._listens, {}
        return list(listens.items())

    # Neighbours

    def linked(self, address: str, now: float) -> None:
        """Its broker is reached: it is told of the meshes whose core this node is, or knows."""
        if self._numbers.get(address) is None:
            self._probe(address, now)
        for mesh in self._meshes.values():
            if mesh.core is not None:
                entry = CoreAnn(mesh.core, mesh.sequence, mesh.distance, self.number)
                self._send([address], mesh.topic, entry)

    def unlinked(self, address: str) -> None:
        self._probe_at.pop(address, None)

    def _probe(self, address: str, now: float) -> None:
        self._probe_at[address] = now + limits.PROBE_S
        self._send([address], self._probe_topic(address), Beacon())

    def _receive_probe(self, topic: str, entry: DocumentEntry, now: float) -> None:
        address = self._probe_topics.get(topic)
        # From one of ours, which asks as we do. The answer's name is longer than the question's.
        if isinstance(entry, Beacon) and len(topic.encode()) <= limits.MAX_TOPIC_BYTES:
            self._send(self._numbers, topic, CoreAnn(self.number, _sequence_at(now), 0, self.number))
        if address is None or not isinstance(entry, CoreAnn) or entry.core != entry.sender:
            return
        if self._numbers[address] is None and entry.core not in {self.number, *self._numbers.values()}:
            self._numbers[address] = entry.core
            self._probe_at.pop(address, None)

    def _is_neighbour(self, sender: int) -> bool:
        numbers = self._numbers.values()
        return sender != self.number and (sender in numbers or None in numbers)

    def _addresses_of(self, number: int) -> list[str]:
        known = [address for address, each in self._numbers.items() if each == number]
        return known or [address for address, each in self._numbers.items() if each is None]

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
            for mesh in list(self._meshes.values()):
                self._follow(mesh, now)
        elif is_wanted:
            admitted = self._admit(topic_filter)
            if admitted is not None:
                self._follow(admitted, now)
        elif topic_filter in self._meshes:
            self._follow(self._meshes[topic_filter], now)

    def _is_wanted(self, topic: str) -> bool:
        return topic in self._wanted or bool(self._wide.match(topic))

    def _admit(self, topic: str) -> DocumentMesh | None:
        mesh = self._meshes.get(topic)
        if mesh is None:
            if len(self._meshes) >= limits.MAX_TOPICS or len(topic.encode()) > limits.MAX_TOPIC_BYTES:
                self.ignored["too many topics"] += 1
                return None
            mesh = self._meshes[topic] = DocumentMesh(topic, self.number, self._interval_s)
        return mesh

    # Publications

    def publish(self, topic: str, publication: PublicationId, payload: bytes, now: float) -> None:
        """Published at this broker, by whoever: to the mesh of its topic, if there is one."""
        mesh = self._meshes.get(topic)
        if mesh is not None and not self._log.seen(key_of(topic, publication, payload), now):
            self._route(mesh, publication, payload, None)

    def was_here(self, topic: str, publication: PublicationId, payload: bytes) -> bool:
        return key_of(topic, publication, payload) in self._log

    def wants_federated(self, topic: str, now: float) -> bool:
        """Is there a client of the document, which gets it under `federated/`?"""
        mesh = self._meshes.get(topic)
        return mesh is not None and mesh.beacon_until > now

    def _route(
        self, mesh: DocumentMesh, publication: PublicationId, payload: bytes, sender: int | None
    ) -> None:
        targets = mesh.targets(sender)
        known = {address for target in targets for address in self._addresses_of(target)}
        entry = RoutedPublication(*publication, self.number, payload)
        self._send(sorted(known), mesh.topic, entry)

    # What is said at this broker

    def receive(self, name: str, payload: bytes, now: float) -> None:
        """Any message to `federator/…` or `federated/…`."""
        try:
            topic, entry = decode(name, payload)
        except DocumentWireError as error:
            self.ignored[str(error)] += 1
            return
        self.received[type(entry).__name__] += 1
        if not self._allowance.take(now):
            self.ignored["too fast"] += 1
        elif is_probe(topic):
            self._receive_probe(topic, entry, now)
        elif not is_federated(topic):
            self.ignored["local topic"] += 1
        else:
            self._receive(topic, entry, now)

    def _receive(self, topic: str, entry: DocumentEntry, now: float) -> None:
        match entry:
            case Beacon():
                self._receive_beacon(topic, now)
            case FederatedPublication(payload):
                self._publications.append(DocumentPublication(topic, payload, None, None))
            case CoreAnn():
                self._receive_core_ann(topic, entry, now)
            case MembAnn():
                self._receive_memb_ann(topic, entry, now)
            case RoutedPublication():
                self._receive_routed(topic, entry, now)

    def _receive_beacon(self, topic: str, now: float) -> None:
        mesh = self._admit(topic)
        if mesh is not None:
            mesh.beacon_until = now + limits.BEACON_S
            self._follow(mesh, now)

    def _receive_core_ann(self, topic: str, entry: CoreAnn, now: float) -> None:
        if entry.core == self.number:
            return  # an echo, or of an earlier life: `linked` and the next announcement say what is true
        if not self._is_neighbour(entry.sender):
            self.ignored["stranger"] += 1
            return
        if entry.distance >= limits.MAX_DISTANCE:
            self.ignored["impossible distance"] += 1
            return
        mesh = self._admit(topic)
        if mesh is None:
            return
        mesh.end(now)
        if mesh.hear(entry, self._redundancy, now):
            passed_on = CoreAnn(entry.core, entry.sequence, mesh.distance, self.number)
            others = set(self._numbers) - set(self._addresses_if_known(entry.sender))
            self._send(sorted(others), topic, passed_on)
        self._follow(mesh, now)

    def _addresses_if_known(self, number: int) -> list[str]:
        return [address for address, each in self._numbers.items() if each == number]

    def _receive_memb_ann(self, topic: str, entry: MembAnn, now: float) -> None:
        mesh = self._meshes.get(topic)
        if not self._is_neighbour(entry.sender):
            self.ignored["stranger"] += 1
        elif mesh is None or not mesh.add_child(entry.core, entry.sequence, entry.sender, now):
            self.ignored["outdated"] += 1
        else:
            self._follow(mesh, now)

    def _receive_routed(self, topic: str, entry: RoutedPublication, now: float) -> None:
        mesh = self._meshes.get(topic)
        if not self._is_neighbour(entry.sender):
            self.ignored["stranger"] += 1
            return
        if mesh is None:
            self.ignored["no mesh"] += 1
            return
        publication = PublicationId(entry.origin, entry.sequence)
        if self._log.seen(key_of(topic, publication, entry.payload), now):
            self.ignored["duplicate"] += 1
            return
        self._route(mesh, publication, entry.payload, entry.sender)
        if mesh.is_wanted:
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
        for address in [address for address, at in self._probe_at.items() if at <= now]:
            self._probe(address, now)

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
            self._send(self._addresses_of(parent), mesh.topic, entry)
        self._listen(mesh, now)
        if mesh.is_empty or (mesh.core is None and not self._may_be_core(mesh, now)):
            del self._meshes[mesh.topic]
        elif mesh.deadline < mesh.timer_at:
            mesh.timer_at = mesh.deadline
            heappush(self._timers, (mesh.timer_at, mesh.topic))

    def _may_be_core(self, mesh: DocumentMesh, now: float) -> bool:
        return mesh.topic in self._wanted or mesh.beacon_until > now

    def _announce(self, mesh: DocumentMesh, now: float) -> None:
        mesh.sequence = (mesh.sequence + 1) & MAX_NUMBER
        self._send(self._numbers, mesh.topic, CoreAnn(self.number, mesh.sequence, 0, self.number))
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
