"""Deliveries that a part of the node directs: to one session, whether the broker itself would or not.

Who published is not known here, so No Local is for who directs them to see to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.deliveries import DELIVERY_WORK, enqueue
from hedgerow.broker.routes import ALWAYS, Entry, Recipient, Route
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.topics import matches

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.session import Session


def deliver_to(
    broker: Broker, session: Session, message: Message, route: Route, qos: int, is_again: bool = False
) -> Delivery | None:
    """Deliver a message now, at `qos` at most; None: it leaves nothing in the outbox, or was dropped."""
    broker.work += DELIVERY_WORK
    broker.identify_late(message)
    recipient = route.recipient(session) or _as_guest(broker, session, route.topic)
    if recipient is None and not session.may_read(broker.access, route.topic):
        return None
    qos = min(message.qos, qos)
    identifiers: tuple[int, ...] = ()
    retain = False
    if recipient is not None:
        qos = min(qos, recipient.qos)
        identifiers = recipient.identifiers
        retain = message.retain and recipient.retain_as_published
    if qos:
        delivery = Delivery(message, qos, retain, identifiers)
        delivery.is_again = is_again
        return delivery if enqueue(broker, session, delivery) else None
    if session.connection is not None:
        session.connection.send_message(message, retain, identifiers)
    return None


def _as_guest(broker: Broker, session: Session, topic: str) -> Recipient | None:
    """A guest's subscriptions are in no table, but it is to get their identifiers."""
    held = session.subscriptions
    if not held or not session.may_read(broker.access, topic):
        return None
    broker.work += len(held)
    entries = [
        Entry(session, topic_filter, record.subscription, record.subscription_identifier, ALWAYS)
        for topic_filter, record in held.items()
        if matches(topic_filter, topic)
    ]
    return Recipient(session, entries) if entries else None
