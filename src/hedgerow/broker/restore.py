"""Taking up a `Snapshot`: the broker as it was when it last committed."""

from __future__ import annotations

from hedgerow.broker import session_end
from hedgerow.broker.changes import SessionRecord, Snapshot
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.durability import ENTRUSTED
from hedgerow.broker.log_reading import load_until
from hedgerow.broker.owners import owner_of
from hedgerow.broker.role import UnknownRole
from hedgerow.broker.session import Session
from hedgerow.broker.stored import StoredQueue
from hedgerow.broker.unreleased import Unreleased
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox, Stage


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
    for key, session in sessions.items():
        if (ENTRUSTED, str(key)) in snapshot.kept:
            durability.entrust(session, is_proven=True)
    durability.restore_log(snapshot.segments, snapshot.next_position, broker.now, snapshot.kept)
    for key, chunk in snapshot.chunks:
        durability.restore_chunk(sessions[key], chunk)
    durability.log_restored()
    in_flight: dict[Session, dict[int, Delivery]] = {}
    for key, delivery in snapshot.deliveries:
        in_flight.setdefault(sessions[key], {})[delivery.position] = delivery
    for session, deliveries in in_flight.items():
        _restore_in_flight(broker, session, deliveries)
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
    session.stored = StoredQueue(session.owner or "")
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


def _restore_in_flight(broker: BrokerCore, session: Session, known: dict[int, Delivery]) -> None:
    """What is in flight, as far as the store has it, by position. What else was published before the last of
    it was in flight too, and leaves before it again: else newer values would overtake older ones."""
    assert session.stored is not None
    for position in [each for each in known if each not in session.stored]:
        broker.durability.forget_delivery(session, position)
        del known[position]
    if not known:
        return
    outbox = session.outbox = Outbox(broker.limits.in_flight)
    for position, delivery in known.items():
        broker.durability.restore_delivery(session, position, delivery.qos)
        outbox.in_flight[delivery.packet_id] = delivery
        outbox.next_packet_id = delivery.packet_id % MAX_PACKET_ID + 1
    found: list[Delivery] = []
    for delivery in load_until(broker, session, max(known) + 1):
        restored = known.get(delivery.position)
        if restored is None:
            restored = delivery
            restored.packet_id = outbox.allocate_packet_id()
            restored.stage = Stage.SENT
            restored.is_again = True
            outbox.in_flight[restored.packet_id] = restored
        restored.queued_at = broker.now  # Since when is not stored.
        found.append(restored)
    outbox.in_flight = {delivery.packet_id: delivery for delivery in found}
    outbox.bytes = sum(delivery.size for delivery in found)
