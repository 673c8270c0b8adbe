"""The session of a neighbour at this node's broker: what goes to the neighbour, and what waits for it.

The federator gives it filters and takes them back. A filter that is new brings along what the neighbour may
have missed: the retained values, with those that were deleted; at QoS 1 and 2 what has flowed in the last
seconds (`recent.py`) and what waits for neighbours that are away, since this may be the way that is left. Who
has a message already knows it by its id.
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.deliveries import enqueue, keep_age, pump
from hedgerow.broker.late import send_recent
from hedgerow.broker.ledger import Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.retaining import queue_retained
from hedgerow.broker.session import Session
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX, NeighbourRole
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import matches

QOS = 2  # A message keeps the QoS that it was published with; ids alone make it come once.


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much waits for a neighbour that is away, and for how long."""

    seconds: float = 86_400.0
    queue_bytes: int = 64 * 1024 * 1024


def take_session(broker: Broker, node_id: str, keeping: Keeping) -> Session:
    """The one of an earlier link, if there is one."""
    client_id = NEIGHBOUR_PREFIX + node_id
    role = broker.roles[NeighbourRole.name]
    session = broker.sessions.get(client_id) or broker.create_session(client_id, None, role)
    session.far_origin = node_id
    session.ledger = session.ledger or Outbound(published=len(session.outbox or ()))
    session.queue_limits = QueueLimits(keeping.queue_bytes, keeping.seconds, drops_oldest=True)
    session.expiry_s = keeping.seconds
    session.durable = session.durable or broker.durability.enabled
    if session.subscriptions is None:
        session.subscriptions = {}
    broker.durability.store_session(session)
    return session


def give(broker: Broker, session: Session, topic_filter: str) -> None:
    held = session.subscriptions
    assert held is not None
    subscription = Subscription(topic_filter, QOS, no_local=True, retain_as_published=True)
    if topic_filter not in held:
        send_recent(broker, session, subscription)
        _send_waiting(broker, session, topic_filter)
        record = held[topic_filter] = SubscriptionRecord(subscription)
        broker.owners.subscribed(session, topic_filter)
        broker.subscriptions.add(session, subscription, None)
        broker.durability.store_subscription(session, topic_filter, record)
    if session.connection is not None:
        queue_retained(broker, session.connection, subscription, None)
        pump(broker, session.connection)


def take_back(broker: Broker, session: Session, topic_filter: str) -> None:
    if session.subscriptions and session.subscriptions.pop(topic_filter, None) is not None:
        broker.owners.unsubscribed(session, topic_filter)
        broker.subscriptions.remove(session, topic_filter)
        broker.durability.store_subscription(session, topic_filter, None)


def _send_waiting(broker: Broker, session: Session, topic_filter: str) -> None:
    """What waits for others that are away."""
    known = {delivery.message.id for delivery in session.waiting()}
    for other in list(broker.links.values()):
        if other.role is not session.role or other is session or other.connection is not None:
            continue
        waiting = other.waiting()
        broker.work += len(waiting)
        for delivery in waiting:
            message = delivery.message
            if not matches(topic_filter, message.topic):
                continue
            message_id = broker.identify_late(message)
            if message_id not in known and message_id.origin != session.far_origin:
                known.add(message_id)
                broker.durability.store_separately()
                keep_age(delivery)
                enqueue(broker, session, Delivery(message, delivery.qos, delivery.retain))
