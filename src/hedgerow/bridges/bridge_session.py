"""The session of a bridge at this node's own broker.

It holds the bridge's subscriptions at this broker and, at QoS 1 and 2, what the far broker has yet to
acknowledge: it is stored like any durable session, so that a bridge goes on after a restart where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.broker.late import find_recent
from hedgerow.broker.ledger import Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.log_reading import drop_all
from hedgerow.broker.role import Role
from hedgerow.broker.session import Session
from hedgerow.broker.watching import set_role
from hedgerow.message import MessageId
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox
from hedgerow.mqtt.packets import Subscription

if TYPE_CHECKING:
    from hedgerow.bridges.section import Section


def take_session(broker: Broker, section: Section, role: Role, token: Callable[[], int]) -> Session:
    """The one of an earlier life, if there is one; `subscribe` is next."""
    client_id = section.local_clientid_on(broker.node_id)
    session = broker.sessions.get(client_id)
    if session is None:
        session = broker.create_session(client_id, section.local_username, role)
        # The far broker may remember packet identifiers of a session that was lost here, and would take
        # a new message for the old one (QoS 2).
        session.outbox = Outbox(broker.limits.in_flight)
        session.outbox.next_packet_id = 1 + token() % MAX_PACKET_ID
    session.username = section.local_username
    set_role(broker, session, role)
    session.ledger = session.ledger or Outbound(published=session.waiting_count)
    session.queue_limits = QueueLimits(
        section.queue_bytes, section.queue_age_s, section.queue_overflow == "drop-oldest"
    )
    session.expiry_s = session.expires_at = float("inf")
    session.durable = session.durable or (broker.durability.enabled and not section.is_local_session_clean)
    broker.durability.store_session(session)
    return session


def subscribe(
    broker: Broker, session: Session, section: Section, was_admitted: Callable[[MessageId], bool]
) -> tuple[set[str], list[Delivery]]:
    """The session's subscriptions are those of the lines that go out, and no others.

    Returns those of their filters that it had before, and what has just flowed that those match which are new
    (`late.py`). `was_admitted`: has the far broker got it already?
    """
    recent: dict[MessageId | None, Delivery] = {}
    retain = section.bridge_outgoing_retain
    wanted: dict[str, Subscription] = {}
    for line in section.topics:
        if line.is_out:
            known = wanted.get(line.local_filter)
            qos = max(line.qos, known.qos) if known is not None else line.qos
            wanted[line.local_filter] = Subscription(line.local_filter, qos, True, retain)
    held = session.subscriptions or {}
    for topic_filter in held.keys() - wanted.keys():
        unsubscribe(broker, session, topic_filter)
    session.subscriptions = {}
    for topic_filter, subscription in wanted.items():
        if topic_filter not in held:
            found = find_recent(broker, session, subscription, was_admitted)
            recent = {each.message.id: each for each in found} | recent
        add_subscription(broker, session, subscription)
    return held.keys() & wanted.keys(), list(recent.values())


def add_subscription(
    broker: Broker, session: Session, subscription: Subscription, since: float = ALWAYS
) -> None:
    record = SubscriptionRecord(subscription)
    if session.subscriptions is None:
        session.subscriptions = {}
    session.subscriptions[subscription.topic_filter] = record
    broker.subscriptions.add(session, subscription, None, since)
    broker.durability.store_subscription(session, subscription.topic_filter, record)


def unsubscribe(broker: Broker, session: Session, topic_filter: str) -> None:
    broker.subscriptions.remove(session, topic_filter)
    broker.durability.store_subscription(session, topic_filter, None)


def stop_listening(broker: Broker, session: Session) -> None:
    """Nothing more is taken from this broker."""
    for topic_filter in session.subscriptions or ():
        unsubscribe(broker, session, topic_filter)
    session.subscriptions = {}


def drop_queue(broker: Broker, session: Session, ledger: Outbound) -> None:
    ledger.discarded += drop_all(broker, session)
