"""Deliveries on their way out: from a session's queue, or its backlog, to the client that is connected.

At QoS 1 and 2 a delivery waits in the session's outbox until the client's window and its reading allow it
to leave. `pump` sends what may leave, a bounded piece at a time, so that a long queue delays nobody else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence, Set
from typing import Final

from hedgerow.broker.backlog import Backlog
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.durability import MAX_UNWRITTEN_BYTES
from hedgerow.broker.events import DeliveriesDropped, MessageSetAside, ShareExceeded
from hedgerow.broker.log_reading import PAGE_MESSAGES, read_page, unloaded
from hedgerow.broker.needed import MAX_POSITION
from hedgerow.broker.sending_runs import pump_run
from hedgerow.broker.session import DELIVERY_BYTES, Channel, Session
from hedgerow.broker.stored import Chunk, Run
from hedgerow.message import Message, Properties
from hedgerow.mqtt import properties
from hedgerow.mqtt.outbox import Delivery, Outbox, Stage
from hedgerow.mqtt.packets import PUBLISH

PUMP_BYTES = 256 * 1024  # How much of a queue or backlog goes out before others have their turn.
PUMPED_BYTES = 128  # What each message counts for beside its bytes, sent or not: many have one byte.
# Of a session that is stored so much of its queue is in memory; what is behind that is read from the log
# when its turn comes.
MAX_QUEUED = 512
PURGE_S = 10.0  # How long what has expired may still take up room.
# So long a message for another broker waits before it says its age. What has one cannot be read in runs: a
# queue that is only a little behind would fall further behind by it.
WAITED_S = 2.0
# Units of work: see `Broker.begin_turn`.
BYTES_PER_WORK: Final = 16  # encoded
PUMPED_BYTES_PER_WORK = 32
PUBLICATION_WORK: Final = 2
DELIVERY_WORK: Final = 4


def encode_properties(broker: BrokerCore, message: Message, own: Properties) -> bytes:
    return properties.with_length(encode_property_block(broker, message, own))


def encode_property_block(broker: BrokerCore, message: Message, own: Properties) -> bytes:
    """The properties of a PUBLISH: what all recipients get is encoded once for all of them."""
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
    return shared + properties.encode_body(own, PUBLISH)


def enqueue(broker: BrokerCore, session: Session, delivery: Delivery, is_followed: bool = False) -> bool:
    """False: there is no room for it. `is_followed`: somebody looks at what becomes of the delivery, which is
    to be the one that is sent."""
    outbox = session.outbox
    if outbox is None:
        outbox = session.outbox = Outbox(broker.limits.in_flight)
    connection = session.connection
    if session.role.gives_ids:
        delivery.queued_at = broker.now
    if session.ledger is not None:
        session.ledger.published += 1
    has_room = _has_room(broker, session, outbox, delivery)
    if not (has_room or _make_room(broker, session, outbox, delivery)):
        _drop(broker, session)
        return False
    stored = session.stored
    if (
        stored is not None
        and not (is_followed or session.role.is_own)
        and (connection is None or stored.is_behind or len(outbox.queue) >= MAX_QUEUED)
    ):
        broker.durability.leave(session, delivery)
        return True
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
    return True


def enqueue_first(broker: BrokerCore, session: Session, deliveries: Iterable[Delivery]) -> None:
    """Before what waits already, to a session that is not connected."""
    outbox = session.outbox
    if outbox is None:
        outbox = session.outbox = Outbox(broker.limits.in_flight)
    behind, outbox.queue = outbox.queue, deque()
    for delivery in deliveries:
        broker.durability.store_separately()
        enqueue(broker, session, delivery)
    outbox.queue.extend(behind)


def send_counted(broker: BrokerCore, session: Session, message: Message, retain: bool) -> None:
    """QoS 0 for a link, whose ledger says what became of it."""
    ledger, connection = session.ledger, session.connection
    assert ledger is not None
    ledger.published += 1
    if connection is None:
        ledger.away += 1
        return
    data = connection.encode_publish(message, 0, retain, ())
    if data is None:
        _count_unsent(broker, session, connection, message.topic)
    elif connection.send_at_most_once(data, 1):
        ledger.relayed += 1
    else:
        ledger.overflowed += 1


def _count_unsent(broker: BrokerCore, session: Session, connection: Channel, topic: str) -> None:
    """This link cannot carry it, and that is known before it is sent."""
    ledger = session.ledger
    if connection.has_name_for(topic):
        reason = f"its packet is larger than {connection.maximum_packet_size} bytes, the far end's limit"
        if ledger is not None:
            ledger.too_large += 1
    else:
        reason = "it has no valid name at the far end"
        if ledger is not None:
            ledger.refused += 1
    note_set_aside(broker, session, topic, reason)


def is_tracked(session: Session) -> bool:
    """Is it told of each message that its peer does not take?"""
    return session.role.is_link or session.role.gives_ids


def note_set_aside(broker: BrokerCore, session: Session, topic: str, reason: str) -> None:
    if is_tracked(session):
        broker.stats.publish_set_aside += 1
        broker.events.append(MessageSetAside(session.client_id, topic, reason))


def _drop(broker: BrokerCore, session: Session) -> None:
    """There is no room for one delivery."""
    if session.ledger is not None:
        session.ledger.overflowed += 1
    broker.stats.publish_dropped += 1
    note_dropped(broker, session, 1)


def drop_parked(broker: BrokerCore, session: Session) -> None:
    """There is no room for the oldest of those that the far end closes on (`suspects.py`)."""
    outbox, suspicion = session.outbox, session.suspicion
    assert outbox is not None
    assert suspicion is not None
    delivery = next(iter(suspicion.parked))
    del suspicion.parked[delivery]
    if session.connection is not None:
        outbox.window -= 1
    if outbox.in_flight.get(delivery.packet_id) is delivery:
        outbox.finish(delivery.packet_id)
        _drop(broker, session)
        broker.durability.finish_delivery(session, delivery)


def _has_room(broker: BrokerCore, session: Session, outbox: Outbox, delivery: Delivery) -> bool:
    queued, size, limits = len(outbox.queue), outbox.bytes + delivery.size, broker.limits
    stored = session.stored
    if stored is not None:
        durability = broker.durability
        if not durability.takes_publications(broker.now, 2 * MAX_UNWRITTEN_BYTES):
            return False
        if durability.shares.half and durability.shares.refuses(stored.owner, durability.publisher):
            note_payer(broker, stored.owner)
            return False
        # The log has a bound for all (`LogBounds`); a session has one where somebody chose it.
        bound = limits.queue_bytes if session.queue_limits is None else session.queue_limits.bytes
        most = limits.queue_messages if session.queue_limits is None else None
        if most is not None and stored.unloaded + stored.pending + queued >= most:
            return False
        return bound is None or stored.bytes + delivery.size <= bound
    wanted = size + DELIVERY_BYTES * (queued + len(outbox.in_flight) + 1)
    if session.queue_limits is not None:
        if wanted > session.queue_limits.bytes_in_memory:
            return False
    elif queued >= limits.queue_messages_in_memory or size > limits.queue_bytes_in_memory:
        return False
    # Of its owner's room. What the client left unread is asked for where it grows.
    return wanted <= session.queue_share or broker.owners.may_queue(session, wanted, broker.now)


def _has_expired(broker: BrokerCore, message: Message) -> bool:
    return message.expires_at is not None and message.expires_at <= broker.now


def _make_room(broker: BrokerCore, session: Session, outbox: Outbox, delivery: Delivery) -> bool:
    """Let go of what has expired in a full queue, but not look for it at every message."""
    if session.purged_at + PURGE_S <= broker.now:
        session.purged_at = broker.now
        for expired in outbox.drop(lambda message: _has_expired(broker, message)):
            _expire(broker, session, expired)
        for each in unloaded(broker, session):
            if _has_expired(broker, each.message):
                _expire(broker, session, each)
    while session.suspicion and session.suspicion.parked and not _has_room(broker, session, outbox, delivery):
        drop_parked(broker, session)
    limits = session.queue_limits
    if limits is not None and limits.drops_oldest:
        # One that has no room at all would push out everything for nothing.
        if delivery.size + sum(each.size for each in outbox.in_flight.values()) > limits.bytes_in_memory:
            return False
        while outbox.queue and not _has_room(broker, session, outbox, delivery):
            _drop(broker, session)
            broker.durability.finish_delivery(session, outbox.drop_oldest())
        while session.has_queue and not _has_room(broker, session, outbox, delivery):
            _drop_oldest_stored(broker, session)
    return _has_room(broker, session, outbox, delivery)


def _drop_oldest_stored(broker: BrokerCore, session: Session) -> None:
    stored = session.stored
    assert stored is not None
    _, (position, _) = stored.runs_after(stored.cursor, MAX_POSITION, 1)[0]
    _drop(broker, session)
    broker.durability.give_up(session, position, position + 1)


def _expire(broker: BrokerCore, session: Session, delivery: Delivery) -> None:
    broker.stats.publish_expired += 1
    if session.ledger is not None:
        session.ledger.expired += 1
    broker.durability.finish_delivery(session, delivery)


def _pass_over(broker: BrokerCore, session: Session, delivery: Delivery) -> None:
    """The far end has it, and would drop it as a duplicate."""
    if session.ledger is not None:
        session.ledger.relayed += 1
    broker.durability.finish_delivery(session, delivery)


def drop_expired(broker: BrokerCore, session: Session, delivery: Delivery) -> bool:
    """Is it over with a delivery that is in flight, and has not been sent on this connection?"""
    is_over = _has_expired(broker, delivery.message)
    if is_over and session.outbox is not None:
        session.outbox.finish(delivery.packet_id)
        _expire(broker, session, delivery)
    return is_over


def drop_aged(broker: BrokerCore, session: Session, with_in_flight: bool = False) -> None:
    """Let go of what has waited for longer than the session's own limit.

    In flight too, where nobody is left to acknowledge it.
    """
    limits, outbox = session.queue_limits, session.outbox
    if limits is None or not limits.age_s:
        return
    if outbox is None:
        outbox = Outbox()
    oldest_at = broker.now - limits.age_s
    if with_in_flight:
        for packet_id in [key for key, each in outbox.in_flight.items() if each.queued_at <= oldest_at]:
            _expire(broker, session, outbox.finish(packet_id))
    while outbox.queue and outbox.queue[0].queued_at <= oldest_at:
        _expire(broker, session, outbox.drop_oldest())
    if not outbox.queue:
        drop_aged_stored(broker, session, oldest_at)


def drop_aged_stored(broker: BrokerCore, session: Session, oldest_at: float) -> None:
    """The same of what is in the log alone: chunks of which all is so old."""
    stored = session.stored
    if stored is None or not stored.unloaded or stored.chunks[0].at > oldest_at:
        return
    end = next((chunk.base for chunk in stored.chunks if chunk.at > oldest_at), MAX_POSITION)
    count = broker.durability.give_up(session, stored.cursor, end)
    broker.stats.publish_expired += count
    if session.ledger is not None:
        session.ledger.expired += count


def keep_age(delivery: Delivery) -> None:
    """It goes another way than the one that it waited for."""
    message = delivery.message
    message.first_at = message.first_at or delivery.queued_at


def _note_wait(broker: BrokerCore, delivery: Delivery) -> None:
    """What has waited for another broker says since when."""
    if delivery.queued_at < broker.now - WAITED_S:
        keep_age(delivery)


def transmit(
    broker: BrokerCore, connection: Channel, session: Session, delivery: Delivery, dup: bool = False
) -> int:
    """Send a delivery that is in flight; how many bytes it took."""
    data = connection.encode_publish(
        delivery.message,
        delivery.qos,
        delivery.retain,
        delivery.subscription_identifiers,
        delivery.packet_id,
        dup or delivery.is_again,
        may_alias=not (delivery.qos == 2 and session.durable),  # held: others leave before it
    )
    if data is None:
        # MQTT-3.1.2-25: too large for this client counts as sent and complete.
        _count_unsent(broker, session, connection, delivery.message.topic)
        if session.outbox is not None:
            session.outbox.finish(delivery.packet_id)
        broker.durability.finish_delivery(session, delivery)
        return 0
    stats = broker.stats
    stats.publish_sent += 1
    stats.packets_sent += 1
    stats.publish_bytes_sent += len(data)
    # A newer value must not overtake one that waits for the store: a broker that compares their ages would
    # drop the older one as outdated.
    if delivery.qos == 2 or (delivery.retain and connection.held_packets and connection.compares_ages):
        broker.durability.send_exactly_once(connection, session, data, delivery)
    else:
        connection.send(data)
    return len(data)


def pump(broker: BrokerCore, connection: Channel) -> None:
    """Send what waits for this client, as far as its window and its reading allow."""
    session = connection.session
    if session is None or not connection.is_connected or connection.pumping:
        return
    left = _pump(broker, connection, session, PUMP_BYTES)
    if left == PUMP_BYTES:
        return
    broker.work += (PUMP_BYTES - left) // PUMPED_BYTES_PER_WORK
    waits = connection.backlog or connection.resending or session.has_queue
    if not connection.congested and left <= 0 and waits:
        broker.pump_later(connection)


def _pump(broker: BrokerCore, connection: Channel, session: Session, budget: int) -> int:
    """What is left of the budget."""
    outbox = session.outbox
    if connection.resending and outbox is not None:
        budget = _resend(broker, connection, session, outbox, budget)
        if connection.resending and budget > 0:
            return budget
    waited = broker.now - WAITED_S if session.role.gives_ids else 0.0
    while outbox is not None and not connection.congested and budget > 0:
        if not outbox.queue and (outbox.is_full or not load(broker, session, outbox)):
            break
        if not outbox.queue:
            continue
        if _has_expired(broker, outbox.queue[0].message):
            _expire(broker, session, outbox.drop_oldest())
            budget -= PUMPED_BYTES
            continue
        if connection.told and outbox.queue[0].message.id in connection.told:
            _pass_over(broker, session, outbox.drop_oldest())
            budget -= PUMPED_BYTES
            continue
        count, size = pump_run(broker, connection, session, outbox, budget, waited)
        if count:
            budget -= PUMPED_BYTES * count + size
            continue
        delivery = outbox.take()
        if delivery is None:
            return budget
        broker.durability.store_delivery(session, delivery)
        if session.role.gives_ids:
            _note_wait(broker, delivery)
        budget -= PUMPED_BYTES + transmit(broker, connection, session, delivery)
    backlog = connection.backlog
    while backlog and not connection.congested and budget > 0 and not session.has_queue:
        budget -= PUMPED_BYTES + _send_retained(broker, connection, session, backlog)
        outbox = session.outbox
    return budget


def load(broker: BrokerCore, session: Session, outbox: Outbox) -> bool:
    """Read what waits in the log, a page of it, into the queue. False: there is none that may be read yet."""
    stored, durability = session.stored, broker.durability
    if stored is None or not stored.unloaded:
        return False
    parts = stored.runs_after(stored.cursor, durability.written_position, PAGE_MESSAGES)
    if not parts:
        return False
    deliveries, end = read_page(broker, parts)
    if end == parts[0][1][0]:  # It cannot be read now: the process has no descriptor left, say.
        if session.connection is not None and not session.connection.pumping:
            broker.pump_later(session.connection)
        return False
    broker.work += len(deliveries)
    ahead = stored.ahead
    if ahead:
        stored.ahead = {each for each in ahead if each >= end}
    lost = -len(deliveries)
    for at, (chunk, (first, count)) in enumerate(parts):
        if first >= end:
            break
        after = min(first + count, end)
        lost += after - first
        if at + 1 == len(parts) or parts[at + 1][0] is not chunk or parts[at + 1][1][0] >= end:
            durability.mark_sent(session, chunk, after - 1)
    stored.unloaded -= len(deliveries) + lost
    stored.cursor = end
    for delivery in deliveries:
        if delivery.position in ahead:
            continue  # in flight since an earlier life
        if session.may_read(broker.access, delivery.message.topic):
            outbox.push(delivery)
            continue
        if session.ledger is not None:
            session.ledger.refused += 1
        durability.finish_delivery(session, delivery)
    if lost:
        _give_up_damaged(broker, session, parts, end, {each.position for each in deliveries})
    return True


def _give_up_damaged(
    broker: BrokerCore, session: Session, parts: Sequence[tuple[Chunk, Run]], end: int, found: Set[int]
) -> None:
    for _, (first, count) in parts:
        for position in range(first, min(first + count, end)):
            if position not in found:
                _drop(broker, session)
                broker.durability.give_up(session, position, position + 1)


def _send_retained(
    broker: BrokerCore, connection: Channel, session: Session, backlog: OrderedDict[str, Backlog]
) -> int:
    """Look at one retained topic for the first subscription that waits, and send it; bytes read and sent."""
    topic_filter, waiting = next(iter(backlog.items()))
    message = waiting.step(broker.retained, broker.now)
    if waiting.is_done:
        del backlog[topic_filter]
    if message is None or not session.may_read(broker.access, message.topic):
        return waiting.looked_at
    suspicion = session.suspicion
    if suspicion is not None and message.id is not None:
        is_shunned = suspicion.shunned.get(message.id, 0.0) > broker.now
        if is_shunned or message.id in suspicion.parked.values():
            return waiting.looked_at  # It is sent on each connection, and must not end each.
    qos = min(message.qos, waiting.qos)
    if qos:
        broker.durability.store_separately()
        enqueue(broker, session, Delivery(message, qos, True, waiting.identifiers))
    elif session.ledger is not None:
        send_counted(broker, session, message, True)
    else:
        connection.send_message(message, True, waiting.identifiers)
    return waiting.looked_at + message.size


def _resend(broker: BrokerCore, connection: Channel, session: Session, outbox: Outbox, budget: int) -> int:
    """Send again what an earlier connection sent, within this one's window; what is left to spend."""
    resending = connection.resending
    while resending and not connection.congested and budget > 0:
        if len(outbox.in_flight) - len(resending) >= outbox.window:
            break  # MQTT-3.3.4-9
        delivery = resending.popleft()
        if outbox.in_flight.get(delivery.packet_id) is delivery and delivery.stage == Stage.SENT:
            if session.role.gives_ids:
                _note_wait(broker, delivery)
            budget -= PUMPED_BYTES + transmit(broker, connection, session, delivery, dup=True)
    return budget


def note_payer(broker: BrokerCore, owner: str) -> None:
    """Its sessions do without what they had, or would get."""
    shares = broker.durability.shares
    if shares.is_news(owner):
        broker.events.append(ShareExceeded(owner, shares.share))


def note_dropped(broker: BrokerCore, session: Session | None, count: int) -> None:
    if session is None:
        return
    if not session.dropped:
        broker.events.append(DeliveriesDropped(session.client_id, session.waiting_count))
    session.dropped += count


def drop_unreadable(broker: BrokerCore, session: Session) -> None:
    """What waits for a session that may no longer read it is not sent after all."""

    def is_unreadable(message: Message) -> bool:
        return not session.may_read(broker.access, message.topic)

    if session.outbox is not None:  # What is in the log alone is looked at when it is read.
        for delivery in session.outbox.drop(is_unreadable):
            if session.ledger is not None:
                session.ledger.refused += 1
            broker.durability.finish_delivery(session, delivery)
