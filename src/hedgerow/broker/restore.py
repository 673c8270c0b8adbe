"""Taking up a `Snapshot`: the broker as it was when it last committed."""

from __future__ import annotations

from hedgerow.broker import session_end
from hedgerow.broker.changes import SessionRecord, Snapshot
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.owners import owner_of
from hedgerow.broker.role import UnknownRole
from hedgerow.broker.session import Session
from hedgerow.broker.stored import StoredQueue
from hedgerow.broker.unreleased import Unreleased
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox


def restore(broker: BrokerCore, snapshot: Snapshot) -> None:
    sessions = {record.key: _restore_session(broker, record) for record in snapshot.sessions}
    for key, record in snapshot.subscriptions:
        session = sessions[key]
        if session.subscriptions is None:
            session.subscriptions = {}
        session.subscriptions[record.subscription.topic_filter] = record
        broker.owners.subscribed(session, record.subscription.topic_filter)
        if session.role.listens:
            broker.subscriptions.add(session, record.subscription, record.subscription_identifier)
    for key, packet_id in snapshot.received:
        session = sessions[key]
        if session.received is None:
            session.received = Unreleased()
        session.received.add(packet_id)
    durability = broker.durability
    durability.restore_log(snapshot.segments, snapshot.next_position, broker.now)
    for key, chunk in snapshot.chunks:
        durability.restore_chunk(sessions[key], chunk)
    durability.log_restored()
    for key, delivery in snapshot.deliveries:
        _restore_delivery(broker, sessions[key], delivery)
    for session in sessions.values():
        broker.owners.weigh(session)
        broker.owners.waits(session)
        broker.owners.went(session)
    for message in snapshot.retained:
        if message.payload:
            broker.retained.set(message)
        elif not broker.retained.tombstones.set(message, broker.now):
            broker.durability.store_retained(message.topic, None)
    broker.kept = snapshot.kept
    for page, bits in snapshot.seen:
        broker.duplicates.restore(page, bits)


def _restore_session(broker: BrokerCore, record: SessionRecord) -> Session:
    role = broker.roles.get(record.role) or UnknownRole(record.role)
    session = broker.create_session(record.client_id, record.username, role, record.key)
    if record.owner is not None:
        broker.owners.add(session, record.owner)
    elif not (role.is_link or role.is_own):
        broker.owners.add(session, owner_of(record.username, ""))  # of an older store
    session.protocol_version = record.protocol_version
    session.expiry_s = record.session_expiry_s
    session.durable = True
    session.stored = StoredQueue()
    # A client that was connected when the broker died has been away since then; when that was is
    # not known, so its time begins now.
    session.expires_at = record.expires_at
    if session.expires_at is None:
        session.expires_at = broker.now + record.session_expiry_s
    session.will = record.will
    if record.will is not None:
        session.will_at = broker.now + record.will.properties.get("will_delay_interval", 0)
        broker.owners.weigh(session)
    session_end.arm(broker, session)
    return session


def _restore_delivery(broker: BrokerCore, session: Session, delivery: Delivery) -> None:
    """One in flight. All else is read from the log when it is to be sent."""
    if session.outbox is None:
        session.outbox = Outbox(broker.limits.in_flight)
    delivery.queued_at = broker.now  # Since when is not stored.
    broker.durability.restore_delivery(session, delivery)
    session.outbox.in_flight[delivery.packet_id] = delivery
    session.outbox.bytes += delivery.size
    session.outbox.next_packet_id = delivery.packet_id % MAX_PACKET_ID + 1
