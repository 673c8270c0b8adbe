"""A session (MQTT 5 §4.1): what the broker knows of a client, with or without a connection.

Idle sessions are many, so what a session may never need (subscriptions, an outbox, received packet
identifiers) is made when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.access import Access
from hedgerow.broker.changes import SessionRecord, SubscriptionRecord
from hedgerow.broker.ids import Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.mobility import MOBILE_PREFIX
from hedgerow.broker.neighbours import NEIGHBOUR_PREFIX
from hedgerow.broker.routes import WireForm
from hedgerow.mqtt.outbox import Delivery, Outbox
from hedgerow.mqtt.packets import Will

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection


class Session:
    __slots__ = (
        "client_id",
        "connection",
        "dropped",
        "durable",
        "expires_at",
        "expiry_s",
        "far_origin",
        "is_away",
        "is_bridge",
        "is_far_bridge",
        "is_mobile",
        "is_neighbour",
        "is_peer",
        "key",
        "ledger",
        "outbox",
        "protocol_version",
        "purged_at",
        "queue_limits",
        "received",
        "subscriptions",
        "timer_at",
        "username",
        "will",
        "will_at",
        "wire_form",
    )

    def __init__(self, key: int, client_id: str, username: str | None) -> None:
        self.key = key
        self.client_id = client_id
        self.username = username
        self.protocol_version = 0
        self.wire_form = WireForm.OWN
        self.connection: Connection | None = None
        self.expiry_s = 0.0
        self.expires_at: float | None = None
        self.durable = False  # kept in the store: the broker has one, and the session outlives connections
        self.will: Will | None = None
        self.will_at: float | None = None  # when a will that waits for its delay is published
        self.timer_at: float | None = None  # when the broker next looks at this session
        self.subscriptions: dict[str, SubscriptionRecord] | None = None
        self.outbox: Outbox | None = None
        self.received: set[int] | None = None  # QoS 2 from the client: PUBREC sent, PUBREL awaited
        self.purged_at = 0.0  # when a full queue was last searched for what has expired
        self.dropped = 0  # deliveries given up because the queue was full
        self.far_origin: str | None = None  # the broker at the other end: what began there is not sent back
        # Of another broker, here or there, or of a client that gives ids: what waits may go another way too.
        self.is_peer = False
        self.is_bridge = False  # of a bridge of this node: no client may take it
        self.is_far_bridge = False  # of a bridge of another broker, which has connected to this one
        self.is_neighbour = client_id.startswith(NEIGHBOUR_PREFIX)  # of a federated node
        self.is_mobile = client_id.startswith(MOBILE_PREFIX)  # of a mobile broker that this one supports
        self.is_away = False  # its client is served by another broker: see `Broker.set_away`
        self.ledger: Outbound | None = None  # of such a bridge, or neighbour
        self.queue_limits: QueueLimits | None = None  # where they are not the broker's

    @property
    def is_client(self) -> bool:
        """Of a client that gives no ids itself: what it gets may be withheld here, and it may be moved."""
        return not (self.is_peer or self.is_bridge or self.is_neighbour or self.is_mobile)

    @property
    def is_link(self) -> bool:
        """A link to another broker, or a part of one. All others are clients to people, with ids or not."""
        return self.is_bridge or self.is_far_bridge or self.is_neighbour or self.is_mobile

    def waiting(self) -> list[Delivery]:
        """What its client has yet to acknowledge, in order."""
        outbox = self.outbox
        return [] if outbox is None else [*outbox.in_flight.values(), *outbox.queue]

    def may_read(self, access: Access, topic: str) -> bool:
        """Rights are asked of who has a name; a bridge or neighbour without one is a part of the node."""
        if self.username is None and (self.is_bridge or self.is_neighbour):
            return True
        return access.may_read(self.username, self.client_id, topic)

    def record(self) -> SessionRecord:
        return SessionRecord(
            self.key,
            self.client_id,
            self.username,
            self.protocol_version,
            self.expiry_s,
            self.expires_at,
            self.will,
            self.is_peer,
            self.is_bridge,
            self.is_far_bridge,
        )
