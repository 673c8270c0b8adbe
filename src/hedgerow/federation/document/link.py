"""The connection to the broker of a neighbour that speaks the document's wire, and the session behind it.

What goes there is published as any client publishes, at QoS 2 in MQTT 3.1.1, and waits in the session while
that broker is away: with a store, on the disk. Nothing is subscribed to: what the neighbour says comes to the
broker beside which this node stands.
"""

from __future__ import annotations

from typing import Protocol

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import State
from hedgerow.broker.deliveries import enqueue
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.handle_connect import resume
from hedgerow.broker.ledger import Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.role import Role
from hedgerow.broker.session import Session
from hedgerow.federation.document.wire import QOS
from hedgerow.message import Message
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox
from hedgerow.mqtt.packets import MQTT_3_1_1, Connack, Connect, Publish, Subscription

DOCUMENT_PREFIX = "hedgerow-document-"  # of the client id here of a neighbour, and of this node there
TRANSPORT = "document"
KEEP_ALIVE_S = 5
PROBE_INTERVAL_S = 0.5
PROBE_MISSES = 3


class DocumentNeighbourRole(Role):
    """Of the session of such a neighbour."""

    name = "document neighbour"
    is_link = True
    is_own = True
    description = "a neighbour that speaks the document's wire"
    is_interest_here = False
    hears_errors = False
    holds_receive_maximum = False
    transport = TRANSPORT

    def may_write(self, session: Session, topic: str) -> bool:
        return False


class LinkOwner(Protocol):
    """Whoever has such neighbours."""

    def linked(self, link: DocumentLink) -> None: ...

    def ended(self, link: DocumentLink, reason: str) -> None: ...


class DocumentLink(DialledConnection):
    __slots__ = ("_owner", "_session", "is_up", "neighbour", "password", "round_trip_s", "username")

    def __init__(
        self,
        owner: LinkOwner,
        broker: Broker,
        neighbour: str,
        session: Session,
        now: float,
        username: str | None = None,
        password: bytes | None = None,
    ) -> None:
        super().__init__(broker, now, neighbour, TRANSPORT, PROBE_INTERVAL_S, PROBE_MISSES)
        self._owner = owner
        self._session = session
        self.neighbour = neighbour
        self.username = username
        self.password = password
        self.is_up = False
        self.round_trip_s: float | None = None
        self.protocol_version = MQTT_3_1_1
        self.short_path = {}  # Nothing is subscribed to.
        self.open()

    def connect_packet(self) -> Connect:
        client_id = DOCUMENT_PREFIX + self.broker.node_id
        return Connect(client_id, MQTT_3_1_1, False, KEEP_ALIVE_S, self.username, self.password)

    def handle_accepted(self, packet: Connack) -> None:
        self.is_up = True
        self.bind(self._session, packet)
        resume(self)
        self._owner.linked(self)

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        """Nothing is subscribed to."""

    def handle_control(self, packet: Publish) -> bool:
        return True  # What an earlier life subscribed to, or the broker invents.

    def name_here(self, topic: str) -> str | None:
        return None

    def handle_round_trip(self, round_trip_s: float) -> None:
        self.round_trip_s = round_trip_s

    def end(self, reason: str, with_will: bool = True) -> None:
        was_open = self.state is not State.CLOSED
        super().end(reason, with_will)
        if was_open:
            self._owner.ended(self, reason)


def take_session(broker: Broker, client_id: str, limits: QueueLimits, token: int) -> Session:
    """The one of an earlier life, if there is one. `token` is any number."""
    role = broker.roles[DocumentNeighbourRole.name]
    session = broker.sessions.get(client_id)
    if session is None:
        session = broker.create_session(client_id, None, role)
        # The broker there may remember packet identifiers of a session that was lost here, and would take a
        # new message for the old one.
        session.outbox = Outbox(broker.limits.in_flight)
        session.outbox.next_packet_id = 1 + token % MAX_PACKET_ID
    session.ledger = session.ledger or Outbound(published=session.waiting_count)
    session.queue_limits = limits
    session.expiry_s = session.expires_at = float("inf")
    session.durable = session.durable or broker.durability.enabled
    broker.durability.store_session(session)
    return session


def write(broker: Broker, session: Session, topic: str, payload: bytes) -> bool:
    """False: no more may wait for this neighbour."""
    message = Message(topic, payload, QOS)
    broker.identify_late(message)
    return enqueue(broker, session, Delivery(message, QOS, False))
