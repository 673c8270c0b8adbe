"""Deliveries on their way out: from a session's queue, or its backlog, to the client that is connected.

At QoS 1 and 2 a delivery waits in the session's outbox until the client's window and its reading allow it
to leave. `pump` sends what may leave, a bounded piece at a time, so that a long queue delays nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.message import Message, Properties
from hedgerow.mqtt import properties
from hedgerow.mqtt.broker.events import DeliveriesDropped
from hedgerow.mqtt.outbox import Delivery, Outbox, Stage
from hedgerow.mqtt.packets import PUBLISH

if TYPE_CHECKING:
    from hedgerow.mqtt.broker.broker import Broker
    from hedgerow.mqtt.broker.connection import Connection
    from hedgerow.mqtt.broker.session import Session

PUMP_BYTES = 256 * 1024  # How much of a queue or backlog goes out before others have their turn.
PURGE_S = 10.0  # How long what has expired may still take up room.
BYTES_PER_WORK = 16  # encoded, per unit of work: see `Broker.begin_turn`


def encode_properties(broker: Broker, message: Message, own: Properties) -> bytes:
    """The property block of a PUBLISH: what all recipients get is encoded once for all of them."""
    interval = 0
    if message.expires_at is not None:
        interval = message.remaining_interval(broker.now)
    encoded_for, encoded_interval, shared = broker.encoded_properties
    if encoded_for is not message or encoded_interval != interval:
        common = message.properties.copy()
        if interval:
            common["message_expiry_interval"] = interval
        shared = properties.encode_body(common, PUBLISH)
        broker.encoded_properties = (message, interval, shared)
        broker.work += len(shared) // BYTES_PER_WORK
    return properties.with_length(shared + properties.encode_body(own, PUBLISH))


def enqueue(broker: Broker, session: Session, delivery: Delivery) -> None:
    outbox = session.outbox
    if outbox is None:
        outbox = session.outbox = Outbox(broker.limits.in_flight)
    connection = session.connection
    if not (_has_room(broker, outbox, delivery) or _make_room(broker, session, outbox, delivery)):
        broker.stats.publish_dropped += 1
        note_dropped(broker, session, 1)
        return
    may_start = (
        connection is not None
        and not connection.congested
        and not connection.resending
        and not outbox.queue
        and not outbox.is_full
    )
    if may_start and connection is not None:
        outbox.start(delivery)
        broker.durability.store_delivery(session, delivery)
        transmit(broker, connection, session, delivery)
    else:
        outbox.push(delivery)
        broker.durability.store_delivery(session, delivery)


def _has_room(broker: Broker, outbox: Outbox, delivery: Delivery) -> bool:
    limits = broker.limits
    return len(outbox.queue) < limits.queue_messages and outbox.bytes + delivery.size <= limits.queue_bytes


def _has_expired(broker: Broker, message: Message) -> bool:
    return message.expires_at is not None and message.expires_at <= broker.now


def _make_room(broker: Broker, session: Session, outbox: Outbox, delivery: Delivery) -> bool:
    """Let go of what has expired in a full queue, but not look for it at every message."""
    if session.purged_at + PURGE_S > broker.now:
        return False
    session.purged_at = broker.now
    for expired in outbox.drop(lambda message: _has_expired(broker, message)):
        broker.stats.publish_expired += 1
        broker.durability.finish_delivery(session, expired)
    return _has_room(broker, outbox, delivery)


def transmit(
    broker: Broker, connection: Connection, session: Session, delivery: Delivery, dup: bool = False
) -> int:
    """Send a delivery that is in flight; how many bytes it took."""
    data = connection.encode_publish(
        delivery.message,
        delivery.qos,
        delivery.retain,
        delivery.subscription_identifiers,
        delivery.packet_id,
        dup,
        may_alias=not (delivery.qos == 2 and session.durable),  # held: others leave before it
    )
    if data is None:
        # MQTT-3.1.2-25: too large for this client counts as sent and complete.
        if session.outbox is not None:
            session.outbox.finish(delivery.packet_id)
        broker.durability.finish_delivery(session, delivery)
        return 0
    stats = broker.stats
    stats.publish_sent += 1
    stats.packets_sent += 1
    stats.publish_bytes_sent += len(data)
    if delivery.qos == 2:
        broker.durability.send_exactly_once(connection, session, data)
    else:
        connection.send(data)
    return len(data)


def pump(connection: Connection) -> None:
    """Send what waits for this client, as far as its window and its reading allow."""
    broker = connection.broker
    session = connection.session
    if session is None or not connection.is_connected or connection.pumping:
        return
    outbox = session.outbox
    budget = PUMP_BYTES
    if connection.resending and outbox is not None:
        budget = _resend(broker, connection, session, outbox, budget)
        if connection.resending and budget > 0:
            return
    while outbox is not None and outbox.queue and not connection.congested and budget > 0:
        if _has_expired(broker, outbox.queue[0].message):
            broker.stats.publish_expired += 1
            broker.durability.finish_delivery(session, outbox.drop_oldest())
            continue
        delivery = outbox.take()
        if delivery is None:
            return
        broker.durability.store_delivery(session, delivery)
        budget -= transmit(broker, connection, session, delivery)
    backlog = connection.backlog
    while backlog and not connection.congested and budget > 0 and not (outbox and outbox.queue):
        delivery = backlog.popleft()
        message = delivery.message
        if broker.retained.get(message.topic) is not message:
            continue  # The client has been sent the newer one, as any live message.
        budget -= message.size
        if delivery.qos:
            broker.durability.store_separately()
            enqueue(broker, session, delivery)
            outbox = session.outbox
        else:
            connection.send_message(message, True, delivery.subscription_identifiers)
    waits = backlog or connection.resending or (outbox and outbox.queue)
    if not connection.congested and budget <= 0 and waits:
        broker.pump_later(connection)


def _resend(broker: Broker, connection: Connection, session: Session, outbox: Outbox, budget: int) -> int:
    """Send again what an earlier connection sent, within this one's window; what is left to spend."""
    resending = connection.resending
    while resending and not connection.congested and budget > 0:
        if len(outbox.in_flight) - len(resending) >= outbox.window:
            break  # MQTT-3.3.4-9
        delivery = resending.popleft()
        if outbox.in_flight.get(delivery.packet_id) is delivery and delivery.stage == Stage.SENT:
            budget -= transmit(broker, connection, session, delivery, dup=True)
    return budget


def note_dropped(broker: Broker, session: Session | None, count: int) -> None:
    if session is None:
        return
    if not session.dropped:
        broker.events.append(DeliveriesDropped(session.client_id, len(session.outbox or ())))
    session.dropped += count
