"""The gateway: a node with neighbours that speak the document's wire, and its own fabric behind it.

To those neighbours this node is a federator of theirs, whose clients want what anyone wants here or behind
our own links. To the fabric it is a node whose clients want what those neighbours want. Messages pass through
a port of the broker, with an id that follows from their numbers there (`numbers.py`), so that whichever
gateways they pass they are taken once on both sides, and none goes round.

Each neighbour has a session here, and a link to its broker, which the shell opens (`take_dials`). What the
neighbours say is published at the broker beside which this node stands: its own, which knows who published
it, or the one of a sidecar, of which the shell passes it to `hear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hedgerow.broker.broker import Broker
from hedgerow.broker.port import Port
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher, Session
from hedgerow.federation.document.data_log import DataLog
from hedgerow.federation.document.federator import DocumentFederator, DocumentPublication
from hedgerow.federation.document.held import HeldPublications
from hedgerow.federation.document.link import (
    DOCUMENT_PREFIX,
    TRANSPORT,
    DocumentLink,
    DocumentNeighbourRole,
    take_session,
    write,
)
from hedgerow.federation.document.neighbours import DocumentPeer, Speaker
from hedgerow.federation.document.numbers import (
    fabric_id,
    is_of_gateway,
    number_of,
    origin_of,
    publication_id,
)
from hedgerow.federation.document.wire import BEACON, CORE_ANN, FEDERATED, MEMB_ANN, OWN_TOPICS, QOS, ROUTING
from hedgerow.federation.events import (
    DocumentLinkDown,
    DocumentLinkUp,
    DocumentNeighbourProved,
    LinkNotOpen,
)
from hedgerow.federation.neighbour_session import Keeping
from hedgerow.message import Message

FILTERS = tuple(prefix + "#" for prefix in (CORE_ANN, MEMB_ANN, ROUTING, BEACON, FEDERATED))
ALL_BELOW = "/#"  # and the topic itself
AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # between two dials
NEVER = float("inf")

GatewayEvent = LinkNotOpen | DocumentLinkUp | DocumentLinkDown | DocumentNeighbourProved


class DocumentNeighbour:
    def __init__(self, address: str, session: Session, now: float) -> None:
        self.address = address
        self.session = session
        self.link: DocumentLink | None = None
        self.dial_at = now
        self.tries = 0
        self.reason = ""
        """Why there is no link, as the log was told."""

    @property
    def is_up(self) -> bool:
        return self.link is not None and self.link.is_up


class _GatewayPort(Port):
    """Also tells who published."""

    def __init__(self, broker: Broker, take: Callable[[Message, Speaker], None]) -> None:
        super().__init__(broker, "the document's wire", lambda message: take(message, None), TRANSPORT)
        self._take = take

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        self._take(message, None if publisher is None else publisher.share)


class GatewaySettings(NamedTuple):
    neighbours: tuple[DocumentPeer, ...]
    log_bytes: int
    log_age_s: float
    redundancy: int
    announce_interval_s: float
    keeping: Keeping


class DocumentGateway:
    """`is_in_fabric`: has this node neighbours of our own kind? `token`: a number that nobody can guess."""

    def __init__(
        self,
        broker: Broker,
        settings: GatewaySettings,
        now: float,
        *,
        is_in_fabric: Callable[[], bool],
        token: Callable[[], int],
        is_sidecar: bool,
    ) -> None:
        self.broker = broker
        self.has_work = True
        self.federator = DocumentFederator(
            number_of(broker.node_id),
            settings.neighbours,
            DataLog(settings.log_bytes, settings.log_age_s),
            own_origin=origin_of(broker.node_id, broker.epoch),
            token=token,
            knows_speakers=not is_sidecar,
            redundancy=settings.redundancy,
            announce_interval_s=settings.announce_interval_s,
        )
        self.held = HeldPublications()
        self._is_in_fabric = is_in_fabric
        if DocumentNeighbourRole.name not in broker.roles:
            broker.register(DocumentNeighbourRole())
        self._limits = settings.keeping.limits
        self._token = token
        self.neighbours: dict[str, DocumentNeighbour] = {}
        self.set_neighbours(settings.neighbours, now)
        known = {each.session for each in self.neighbours.values()}
        for session in [
            each for each in broker.links.values() if each.role.name == DocumentNeighbourRole.name
        ]:
            if session not in known:
                broker.discard(session)  # of an earlier configuration
        self._events: list[GatewayEvent] = []
        self._port = _GatewayPort(broker, self._deliver)
        self._listening: dict[str, str] = {}  # topic → by which filter
        self._is_changing = False  # own interests, of which the first is not yet undone or done
        if not is_sidecar:
            for topic_filter in FILTERS:
                self._port.listen(topic_filter, now)
        broker.subscriptions.local.on_count = self._look
        broker.subscriptions.beyond.on_count = self._look
        for topic_filter in (*broker.subscriptions.local.counts, *broker.subscriptions.beyond.counts):
            self._look(topic_filter)

    def set_neighbours(self, neighbours: Iterable[DocumentPeer], now: float) -> None:
        """These from now on: links to new ones are opened, and what waits for others is given up."""
        wanted = {each.address: each for each in neighbours}
        self.broker.now = now
        for address in self.neighbours.keys() - wanted.keys():
            gone = self.neighbours.pop(address)
            if gone.link is not None:
                gone.link.leave("no neighbour any more", is_for_good=True)
            self.broker.discard(gone.session)
        for address in wanted.keys() - self.neighbours.keys():
            session = take_session(self.broker, DOCUMENT_PREFIX + address, self._limits, self._token())
            self.neighbours[address] = DocumentNeighbour(address, session, now)
        self.federator.set_neighbours(wanted.values())
        self.has_work = True

    # What is wanted

    def _look(self, topic_filter: str) -> None:
        """Somebody subscribed to it, or no longer is; perhaps this gateway."""
        if self._is_changing:
            return
        table = self.broker.subscriptions
        own = topic_filter == self._listening.get(_topic_of(topic_filter))
        local, beyond = table.local.counts.get(topic_filter, 0), table.beyond.counts.get(topic_filter, 0)
        visited = self.federator.visited
        self.federator.set_wanted(topic_filter, local > own or beyond > own, self.broker.now)
        self.broker.work += self.federator.visited - visited  # See `Broker.begin_turn`.
        if topic_filter in self._listening:
            self._listen(topic_filter, True)
        self.has_work = True

    def _listen(self, topic: str, is_listening: bool) -> None:
        """To what is published here, in the fabric, and at the broker that a sidecar stands beside.

        Other gateways would take this one's interest for that of a subscriber, and this one theirs, for ever.
        So it is in another filter than the topic itself, which no gateway has a mesh for, unless there is a
        subscriber here: then it must not hide behind the wider one.
        """
        before = self._listening.get(topic)
        has_own = before == topic
        is_wanted_here = self.broker.subscriptions.local.counts.get(topic, 0) > has_own
        after = (topic if is_wanted_here else topic + ALL_BELOW) if is_listening else None
        if after == before:
            return
        self._is_changing = True
        if after is not None:
            self._listening[topic] = after
            self.broker.subscriptions.beyond.grow(after)
            self._port.listen(after, self.broker.now)
        else:
            self._listening.pop(topic, None)
        if before is not None:
            self._port.unsubscribe(before)
            self.broker.subscriptions.beyond.shrink(before)
        self._is_changing = False
        for each in filter(None, (before, after)):
            self._look(each)

    # What is published at this broker

    def _deliver(self, message: Message, speaker: Speaker) -> None:
        assert message.id is not None
        if message.topic.startswith(OWN_TOPICS):
            # What others say at their brokers is for the federators there.
            if message.id.origin == self.broker.node_id:
                self._hear(message.topic, message.payload, speaker)
            return
        publication = publication_id(message.id)
        now = self.broker.now
        if publication.is_of_ours and not is_of_gateway(message.id.origin):
            self.held.hear(publication.origin, now)
        self.federator.publish(message.topic, publication, message.payload, now)
        self._give_to_clients_of_the_document(message.topic, message.payload)
        self.has_work = True

    def hear(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """What somebody published to one of `FILTERS` at the broker beside which a sidecar stands. What is
        retained is of some other time."""
        if not retain:
            self._hear(topic, payload, None)

    def _hear(self, topic: str, payload: bytes, speaker: Speaker) -> None:
        self.federator.receive(topic, payload, speaker, self.broker.now)
        self.has_work = True

    def _take(self, publication: DocumentPublication) -> None:
        if publication.id is None:
            self._publish_for_client(publication)
        elif self._is_in_fabric():
            for each in self.held.take(publication, self.broker.now):
                self._publish_here(each)
        else:
            self._publish_here(publication)

    def _publish_here(self, publication: DocumentPublication) -> None:
        topic, payload, numbers, _ = publication
        assert numbers is not None
        message = Message(topic, payload, QOS, id=fabric_id(topic, numbers, payload))
        if not self._port.is_duplicate(message):
            self._port.publish(message, self.broker.now)
            self._give_to_clients_of_the_document(topic, payload)

    def _publish_for_client(self, publication: DocumentPublication) -> None:
        """A client of the document has published; others of its kind have got it from the broker."""
        topic, payload = publication.topic, publication.payload
        message = Message(topic, payload, QOS)
        self.broker.identify_late(message)
        assert message.id is not None
        self._port.publish(message, self.broker.now)
        self.federator.publish(topic, publication_id(message.id), payload, self.broker.now)

    def _give_to_clients_of_the_document(self, topic: str, payload: bytes) -> None:
        if self.federator.wants_federated(topic, self.broker.now):
            self._port.publish(Message(FEDERATED + topic, payload, QOS), self.broker.now)

    # Links

    def take_dials(self) -> Iterable[str]:
        """Brokers to which a link is to be opened: `open`, or `dial_failed`."""
        now = self.broker.now
        due = [each for each in self.neighbours.values() if each.dial_at <= now]
        for neighbour in due:
            neighbour.dial_at = NEVER
        return [neighbour.address for neighbour in due]

    def open(self, address: str, now: float, username: str | None, password: bytes | None) -> DocumentLink:
        neighbour = self.neighbours[address]
        link = DocumentLink(self, self.broker, address, neighbour.session, now, username, password)
        neighbour.link = link
        return link

    def dial_failed(self, address: str, reason: str) -> None:
        neighbour = self.neighbours.get(address)
        if neighbour is None:
            return
        neighbour.dial_at = self.broker.now + AGAIN_S[min(neighbour.tries, len(AGAIN_S) - 1)]
        neighbour.tries += 1
        if reason != neighbour.reason:
            neighbour.reason = reason
            self._events.append(LinkNotOpen(address, reason))
        self.has_work = True

    def linked(self, link: DocumentLink) -> None:
        neighbour = self.neighbours[link.neighbour]
        neighbour.tries, neighbour.reason = 0, ""
        self._events.append(DocumentLinkUp(neighbour.address, self.federator.number))
        self.federator.linked(neighbour.address, self.broker.now)
        self.has_work = True

    def ended(self, link: DocumentLink, reason: str) -> None:
        neighbour = self.neighbours.get(link.neighbour)
        if neighbour is None or neighbour.link is not link:
            return
        neighbour.link = None
        if link.is_up:
            self._events.append(DocumentLinkDown(neighbour.address, reason))
            neighbour.dial_at = self.broker.now + AGAIN_S[0]
        else:
            self.dial_failed(neighbour.address, reason)
        self.federator.unlinked(neighbour.address)
        self.has_work = True

    def take_events(self) -> list[GatewayEvent]:
        events, self._events = self._events, []
        return events

    def close(self, now: float) -> None:
        self.broker.now = now
        for neighbour in self.neighbours.values():
            neighbour.dial_at = NEVER
            if neighbour.link is not None:
                neighbour.link.leave("this node stops", is_for_good=False)

    # What follows

    def serve(self, now: float) -> None:
        self.broker.now = now
        while self.has_work:
            self.has_work = False
            for publication in self.federator.take_publications():
                self._take(publication)
            for proved in self.federator.take_proved():
                assert proved.number is not None
                self._events.append(DocumentNeighbourProved(proved.address, proved.number, proved.owner))
            for topic, is_listening in self.federator.take_listens():
                self._listen(topic, is_listening)
            for neighbour, topic, payload, is_data in self.federator.take_packets():
                known = self.neighbours.get(neighbour)
                if known is not None and (is_data or known.is_up):
                    write(self.broker, known.session, topic, payload)

    @property
    def deadline(self) -> float:
        dial_at = min((each.dial_at for each in self.neighbours.values()), default=NEVER)
        return min(self.federator.deadline, self.held.deadline, dial_at)

    def handle_timer(self, now: float) -> None:
        self.broker.now = now
        self.federator.handle_timer(now)
        for publication in self.held.handle_timer(now):
            self._publish_here(publication)
        self.has_work = True


def _topic_of(topic_filter: str) -> str:
    """Of a filter by which a gateway listens to a topic."""
    return topic_filter.removesuffix(ALL_BELOW)
