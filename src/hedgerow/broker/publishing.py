"""Publications, from wherever they enter to whoever gets them. Every one passes here once.

`publish` takes a batch, `publish_message` a single message, which is a batch of one. Both say how many get
it, and whether its acknowledgement has to wait for the store or an observer. QoS 0 packets that suit all
recipients as they are leave as the very bytes received (`fan_out`), without an object for each.

Anything unusual about a recipient, such as a full window or a name of its own for the topic, sends it the
messages of a batch one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hedgerow.broker.batch import MAX_ID_BYTES, Batch, encode_plain
from hedgerow.broker.core import TURN_WORK, BrokerCore
from hedgerow.broker.deliveries import (
    DELIVERY_WORK,
    PUBLICATION_WORK,
    enqueue,
    send_counted,
)
from hedgerow.broker.elsewhere import entry_of
from hedgerow.broker.ids import is_before
from hedgerow.broker.observer import Observer
from hedgerow.broker.recipients import Recipient, SharedGroup
from hedgerow.broker.rest import deliver_in_turns
from hedgerow.broker.retaining import may_have_forgotten, retain
from hedgerow.broker.routes import Listener, Route
from hedgerow.broker.sending_runs import PLAIN_FORMS, name_for, send_run
from hedgerow.broker.session import DELIVERY_BYTES, Channel, Publisher, Session, WireForm, share_of
from hedgerow.message import NO_PROPERTIES, Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.topics import matches

MAX_RUN = 4_096  # Publications in a row before the turn is looked at.
MOST_AT_ONCE = TURN_WORK // DELIVERY_WORK  # Recipients that get a message before the turn is looked at.

Outcome = tuple[int, bool]
"""How many recipients there were, and whether the acknowledgement must wait."""


# Observers


def observe(broker: BrokerCore, batch: Batch, route: Route) -> bool:
    """Have observers see publications, here alone. True: their acknowledgement waits for one of them."""
    must_wait = False
    for observer in route.observers:
        must_wait |= observer.observe(batch, broker.now)
    return must_wait


def observe_matched(broker: BrokerCore, batch: Batch) -> None:
    """The same for what another broker has matched: it goes to clients, and takes no route here."""
    for observer in broker.subscriptions.observers:
        if observer.wants(batch.topic, has_clients=True):
            observer.observe(batch, broker.now)


def find_full(route: Route, size: int) -> Observer | None:
    """An observer that has no room for payloads of so many bytes at QoS 1 or 2."""
    return next((observer for observer in route.observers if not observer.has_room(size)), None)


# One message


def publish_message(
    broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None
) -> Outcome:
    """Pass a publication on, with whatever it carries."""
    durability = broker.durability
    was_relaying, before, publisher_before = (
        durability.is_relaying,
        durability.publication,
        durability.publisher,
    )
    durability.publisher = share_of(publisher)
    durability.is_relaying = publisher is not None and publisher.gives_ids
    durability.publications += 1
    durability.publication = durability.publications
    try:
        return _publish_message(broker, message, route, publisher)
    finally:
        durability.is_relaying, durability.publication = was_relaying, before
        durability.publisher = publisher_before


def _publish_message(
    broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None
) -> Outcome:
    durability = broker.durability
    change_count = durability.change_count
    broker.sequence += 1
    if message.retain:
        retain(broker, message, route, publisher)
    if message.qos and (route.peers or durability.is_relaying):
        broker.identify(message)
        broker.recent.add(message, broker.now)
        durability.store_seen((message,))
    must_wait = False
    if route.observers:
        broker.identify(message)
        must_wait = observe(broker, Batch.of_message(publisher, message), route)
    recipients = route.recipients
    count = len(recipients) + len(route.elsewhere) + len(route.inactive)
    broker.work += PUBLICATION_WORK
    if message.first_at is not None:
        # It comes late: for those who were subscribed when it was published.
        recipients = [each for each in recipients if not is_before(message, each.since)]
    if is_divided(broker, route, recipients):
        broker.identify(message)  # before others take the next number
        steps = _deliver_step_by_step(broker, message, recipients, route, publisher)
        deliver_in_turns(broker, message, steps, publisher)
        count += len(route.groups) + len(route.ports)
        return count, must_wait or durability.change_count != change_count
    broker.work += DELIVERY_WORK * len(recipients)
    for recipient in recipients:
        deliver(broker, recipient, message, publisher)
    for group in route.groups:
        count += deliver_to_one(broker, group, message, publisher)
    if route.ports:
        # Last: they may publish in turn, which is behind this message for everyone.
        broker.work += DELIVERY_WORK * len(route.ports)
        count += _deliver_to_ports(broker, message, route, publisher)
    return count, must_wait or durability.change_count != change_count


def is_divided(broker: BrokerCore, route: Route, recipients: Sequence[Recipient]) -> bool:
    """Is a publication to so many passed on in turns, or behind one that is?"""
    looks = len(recipients) + _to_look_at(route) if route.groups else len(recipients)
    is_long = looks > MOST_AT_ONCE
    return is_long or (bool(broker.undelivered) and route.topic in broker.undelivered)


def _to_look_at(route: Route) -> int:
    """Of shared subscriptions: to find one who takes a message, all members may have to be looked at."""
    looks = 0
    for group in route.groups:
        looks += DELIVERY_WORK + len(group.members)
    return looks // DELIVERY_WORK


def _deliver_step_by_step(
    broker: BrokerCore,
    message: Message,
    recipients: Sequence[Recipient],
    route: Route,
    publisher: Publisher | None,
) -> Iterator[None]:
    for recipient in recipients:
        broker.work += DELIVERY_WORK
        # Between two steps subscriptions and rights may change.
        if not route.stale or _still_gets(broker, recipient, message.topic):
            deliver(broker, recipient, message, publisher)
        yield
    for group in route.groups:
        for _ in deliver_to_one_step_by_step(broker, group, message, publisher):
            yield
    if route.ports:
        broker.work += DELIVERY_WORK * len(route.ports)
        _deliver_to_ports(broker, message, route, publisher)


def _still_gets(broker: BrokerCore, recipient: Recipient, topic: str) -> bool:
    session, holds = recipient.session, broker.subscriptions.holds
    return any(holds(session, entry.topic_filter) for entry in recipient.entries) and session.may_read(
        broker.access, topic
    )


def deliver(
    broker: BrokerCore,
    recipient: Recipient,
    message: Message,
    publisher: Publisher | None,
    group: SharedGroup | None = None,
) -> None:
    """Give a message to one recipient, as its subscription has it."""
    session = recipient.session
    if recipient.no_local and session is publisher:
        own = recipient.for_own_publication()
        if own is None:
            return
        recipient = own
    if session is publisher and session.wire_form == WireForm.PEER:
        return  # The other broker has it.
    began_there = message.id is not None and message.id.origin == session.far_origin
    if began_there and not may_have_forgotten(session, message):
        return
    qos = message.qos if message.qos < recipient.qos else recipient.qos  # noqa: FURB136 (min is a call)
    retain = message.retain and recipient.retain_as_published
    if qos:
        if session.wire_form == WireForm.PEER:
            broker.identify(message)
        delivery = Delivery(message, qos, retain, recipient.identifiers)
        delivery.group = group
        enqueue(broker, session, delivery)
    elif session.ledger is not None:
        send_counted(broker, session, message, retain)
    elif session.connection is not None:
        session.connection.send_message(message, retain, recipient.identifiers)


def deliver_to_one(
    broker: BrokerCore, group: SharedGroup, message: Message, publisher: Publisher | None
) -> bool:
    """To a member of a shared subscription (§4.8.2); False: there is none that may read it."""
    chosen = group.next_if_ready()
    if chosen is None or not chosen.session.may_read(broker.access, message.topic):
        return any(list(deliver_to_one_step_by_step(broker, group, message, publisher)))
    broker.work += DELIVERY_WORK
    _deliver_in_group(broker, group, chosen, message, publisher)
    return True


def _deliver_in_group(
    broker: BrokerCore, group: SharedGroup, chosen: Recipient, message: Message, publisher: Publisher | None
) -> None:
    broker.durability.store_separately()
    deliver(broker, chosen, message, publisher, group)


def deliver_to_one_step_by_step(
    broker: BrokerCore, group: SharedGroup, message: Message, publisher: Publisher | None
) -> Iterator[bool]:
    """The last step says whether there was one."""
    broker.work += DELIVERY_WORK

    def may_read(session: Session) -> bool:
        return session.may_read(broker.access, message.topic)

    for looked_at, chosen in group.look_for_one(may_read):
        broker.work += looked_at
        if chosen is not None:
            _deliver_in_group(broker, group, chosen, message, publisher)
        yield chosen is not None


def _deliver_to_ports(broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None) -> int:
    """Hand a publication to the ports of its route; how many took it."""
    broker.identify(message)  # before a port publishes in turn, and takes the next number
    count = 0
    for port in route.ports:
        if port is not publisher and not port.closed:
            port.take(message, route, publisher)
            count += 1
    return count


# Batches


def most_of_run(broker: BrokerCore, route: Route) -> int:
    """How many publications at QoS 0 in a row the turn has room for; one at least."""
    one_by_one = len(route.others) + _to_look_at(route) + len(route.ports) + len(route.peers)
    if not one_by_one:
        return MAX_RUN
    return max(1, min(MAX_RUN, (broker.turn_ends_at - broker.work) // (DELIVERY_WORK * one_by_one)))


def publish(broker: BrokerCore, batch: Batch, route: Route) -> Outcome:
    """Pass on publications without properties and RETAIN, together where that is possible."""
    durability = broker.durability
    change_count = durability.change_count
    if batch.origin is None:
        if route.peers or durability.enabled or route.observers or _gives_ids(batch):
            batch.identify(broker.node_id, broker.epoch, broker.sequence + 1)
        broker.sequence += batch.count
    must_wait = bool(route.observers) and observe(broker, batch, route)
    if batch.qos:
        durability.is_relaying = _gives_ids(batch)
        durability.publisher = share_of(batch.publisher)
        try:
            _publish_acknowledged(broker, batch, route)
        finally:
            durability.is_relaying = False
            durability.publisher = ""
    else:
        _publish_at_most_once(broker, batch, route)
    return len(route.recipients), must_wait or durability.change_count != change_count


def _gives_ids(batch: Batch) -> bool:
    return batch.publisher is not None and batch.publisher.gives_ids


def _publish_acknowledged(broker: BrokerCore, batch: Batch, route: Route) -> None:
    messages = batch.messages
    if route.peers or _gives_ids(batch):
        broker.recent.add_run(messages, batch.total_bytes, broker.now)
        broker.durability.store_seen(messages)
    broker.work += PUBLICATION_WORK * batch.count
    for recipient in route.recipients:
        if _leave_together(broker, recipient, batch):
            broker.work += DELIVERY_WORK
            continue
        broker.work += DELIVERY_WORK * batch.count
        if not _deliver_together(broker, recipient, batch):
            for message in messages:
                deliver(broker, recipient, message, batch.publisher)


def _publish_at_most_once(broker: BrokerCore, batch: Batch, route: Route) -> None:
    """To those who take plain packets, in one chunk for each wire form; to peers; to each of the others."""
    for sessions, after in ((route.mqtt_3, b""), (route.mqtt_5, b"\0")):
        if sessions:
            fan_out(broker, sessions, encode_plain(route.topic, batch.payloads, after), batch.count)
    if route.peers:
        send_to_peers(broker, batch, route)
    if route.others or route.groups or route.ports:
        for message in batch.messages:
            deliver_individually(broker, message, route, batch.publisher)


def forward(
    broker: BrokerCore,
    route: Route,
    batch: Batch,
    same: tuple[Session, ...],
    other: tuple[Session, ...],
    translated: bytes,
) -> None:
    """Pass on packets at QoS 0 as they came, to `same`, and in the other wire form, to `other`."""
    assert batch.packets is not None
    if route.observers:
        observe(broker, batch, route)
    if same:
        fan_out(broker, same, batch.packets, batch.count)
    if other:
        fan_out(broker, other, translated, batch.count)
    if route.peers:
        broker.work += batch.count // 2
        send_to_peers(broker, batch, route)
    if route.others or route.groups or route.ports:
        # Without ids where nobody has a use for them: a link that has none on the wire tells of them too.
        needs_ids = bool(route.ports or route.peers)
        for message in batch.messages if needs_ids else _without_ids(batch):
            deliver_individually(broker, message, route, batch.publisher)


def _without_ids(batch: Batch) -> Iterable[Message]:
    return (Message(batch.topic, payload, 0, False, NO_PROPERTIES) for payload in batch.payloads)


def fan_out(broker: BrokerCore, sessions: tuple[Session, ...], chunk: bytes, count: int) -> None:
    """Send the same packets at QoS 0 to each."""
    dirty = broker.dirty
    sent = 0
    for session in sessions:
        connection = session.connection
        if connection is None:
            continue
        if connection.congested:
            connection.send_at_most_once(chunk, count)
            continue
        sent += 1
        out = connection.out
        if not out:
            dirty.append(connection)
        out.append(chunk)
    stats = broker.stats
    count *= sent
    stats.publish_sent += count
    stats.packets_sent += count
    stats.publish_bytes_sent += sent * len(chunk)


def deliver_individually(
    broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None
) -> None:
    """To the recipients that take no plain packet. QoS 0."""
    if is_divided(broker, route, route.others):
        steps = _deliver_step_by_step(broker, message, route.others, route, publisher)
        deliver_in_turns(broker, message, steps, publisher)
        return
    broker.work += DELIVERY_WORK * (len(route.others) + len(route.ports))
    for recipient in route.others:
        deliver(broker, recipient, message, publisher)
    for group in route.groups:
        deliver_to_one(broker, group, message, publisher)
    if route.ports:
        _deliver_to_ports(broker, message, route, publisher)


def send_to_peers(broker: BrokerCore, batch: Batch, route: Route) -> None:
    """With ids, to every peer of the route but the one that it came from. QoS 0."""
    count = batch.count
    packet_bytes = batch.largest + MAX_ID_BYTES
    for session in route.peers:
        if session is batch.publisher or batch.origin == session.far_origin:
            continue
        ledger, connection = session.ledger, session.connection
        if connection is None:
            if ledger is not None:
                ledger.published += count
                ledger.away += count
            continue
        topic = connection.name_on_wire(route.topic)
        size = connection.maximum_packet_size
        if topic is None or (size and packet_bytes + len(topic) > size):
            # Some of the packets may be larger than the peer takes.
            _send_one_by_one(broker, batch, session, connection)
            continue
        is_sent = connection.send_at_most_once(connection.encode_run(batch, topic), count)
        assert batch.origin is not None
        connection.note_run(batch.origin, batch.epoch, batch.sequences)
        if ledger is not None:
            ledger.published += count
            if is_sent:
                ledger.relayed += count
            else:
                ledger.overflowed += count


def _send_one_by_one(broker: BrokerCore, batch: Batch, session: Session, connection: Channel) -> None:
    for message in batch.messages:
        if session.ledger is not None:
            send_counted(broker, session, message, False)
        else:
            connection.send_message(message, False, ())


def _deliver_together(broker: BrokerCore, recipient: Recipient, batch: Batch) -> bool:
    """At QoS 1 or 2, to one recipient, in one piece. False: one by one, since something is unusual."""
    session = recipient.session
    form = session.wire_form
    publisher = batch.publisher
    if form == WireForm.PEER and (session is publisher or session.far_origin == batch.origin):
        return True  # The other broker has it.
    connection, outbox = session.connection, session.outbox
    if not recipient.qos or recipient.identifiers or (recipient.no_local and session is publisher):
        return False
    count, qos = batch.count, min(batch.qos, recipient.qos)
    stored = session.stored
    if qos == 2 and (stored is not None or form not in PLAIN_FORMS):
        return False
    if connection is None or outbox is None or (stored is not None and stored.is_behind):
        return False
    if connection.congested or connection.resending or not outbox.has_room_for(count):
        return False
    limits = session.queue_limits
    most_bytes = broker.limits.queue_bytes_in_memory if limits is None else limits.bytes_in_memory
    wanted = outbox.bytes + batch.total_bytes + DELIVERY_BYTES * (len(outbox) + count)
    if wanted > most_bytes or not broker.owners.may_queue(session, wanted, broker.now):
        return False
    topic = name_for(connection, form, batch)
    if topic is None:
        return False
    deliveries = outbox.start_run(batch.messages, qos, broker.now if session.role.gives_ids else 0.0)
    if stored is not None:
        broker.durability.store_run(session, deliveries)
    if session.ledger is not None:
        session.ledger.published += count
    send_run(broker, connection, form, batch, topic, deliveries)
    return True


def _leave_together(broker: BrokerCore, recipient: Recipient, batch: Batch) -> bool:
    """To one that reads them from the log when it comes to them."""
    session = recipient.session
    began_there = session.far_origin is not None and session.far_origin == batch.origin
    if began_there or session is batch.publisher or not may_leave(broker, recipient):
        return False
    if session.ledger is not None:
        session.ledger.published += batch.count
    broker.durability.leave_run(session, batch.messages)
    return True


def may_leave(broker: BrokerCore, recipient: Recipient) -> bool:
    """Does its session read what comes now from the log, with nothing to be seen to for each message?"""
    session = recipient.session
    stored, limits = session.stored, session.queue_limits
    if stored is None or not (session.connection is None or stored.is_behind) or session.role.is_own:
        return False
    if stored.owner in broker.durability.shares.half:  # It may have to do without.
        return False
    if limits is None:
        is_bounded = broker.limits.queue_messages is not None or broker.limits.queue_bytes is not None
    else:
        is_bounded = limits.bytes is not None
    return recipient.qos > 0 and not (recipient.identifiers or recipient.no_local or is_bounded)


# Deliveries that a part of the node directs


def deliver_batch(broker: BrokerCore, recipient: Recipient, batch: Batch) -> None:
    """To one recipient, which is not asked for its route: whoever calls has looked at its rights."""
    broker.work += DELIVERY_WORK
    may_go_together = batch.qos and recipient.qos and batch.message is None
    if may_go_together and (
        _leave_together(broker, recipient, batch) or _deliver_together(broker, recipient, batch)
    ):
        return
    broker.work += DELIVERY_WORK * (batch.count - 1)
    for message in batch.messages:
        deliver(broker, recipient, message, None)


def deliver_to(
    broker: BrokerCore,
    session: Session,
    message: Message,
    route: Route | None,
    qos: int,
    is_again: bool = False,
    is_followed: bool = False,
    filters: Iterable[str] | None = None,
) -> Delivery | None:
    """To one session, whether this broker itself would or not, at `qos` at most; what its outbox has by it.

    `route`: None where another broker has matched, and its subscriptions are looked at alone, or those of
    them that are in `filters`.

    `is_again`: it may have got it already, from another broker. `is_followed`: see `enqueue`. Who published
    is not known here, so No Local is for whoever directs it to see to. None: it leaves nothing in the
    outbox, or was dropped.
    """
    broker.work += DELIVERY_WORK
    broker.identify_late(message)
    topic = message.topic
    recipient = route.recipient(session) if route is not None else None
    recipient = recipient or _as_held(broker, session, topic, filters)
    if recipient is None and not session.may_read(broker.access, topic):
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
        return delivery if enqueue(broker, session, delivery, is_followed) else None
    if session.connection is not None:
        session.connection.send_message(message, retain, identifiers)
    return None


def _as_held(
    broker: BrokerCore, session: Session, topic: str, filters: Iterable[str] | None = None
) -> Recipient | None:
    """The session as a recipient of what another broker matches: its subscriptions are in no table for that,
    but the client is to get it as they say. `filters`: those among which they are, if that is known."""
    held = session.subscriptions
    if not held or not session.may_read(broker.access, topic):
        return None
    if filters is None:
        filters = held
        broker.work += len(held)
    entries = [
        entry
        for each in filters
        if (each == topic or matches(each, topic)) and (entry := entry_of(session, each)) is not None
    ]
    return Recipient(session, entries) if entries else None


def deliver_to_rest(broker: BrokerCore, message: Message, route: Route, but: Listener) -> None:
    """To all who are never served elsewhere: links, shared subscriptions, and ports but one."""
    broker.identify_late(message)
    recipients = [each for each in route.recipients if not each.session.role.is_movable]
    if is_divided(broker, route, recipients):
        steps = _deliver_step_by_step(broker, message, recipients, route, but)
        deliver_in_turns(broker, message, steps, but)
        return
    broker.work += DELIVERY_WORK * (len(route.recipients) + len(route.ports))
    for recipient in recipients:
        deliver(broker, recipient, message, but)
    for group in route.groups:
        deliver_to_one(broker, group, message, but)
    if route.ports:
        _deliver_to_ports(broker, message, route, but)


def merge(broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None) -> None:
    """A retained value that is the newest, and no news here: keep it, and tell other brokers alone."""
    broker.identify_late(message)
    retain(broker, message, route, publisher)
    kept = broker.retained.newest(message.topic, broker.now)
    if kept is None or kept.id != message.id:
        return
    for recipient in route.recipients:
        connection = recipient.session.connection
        # One that is away is told of all that is retained when it comes back.
        if connection is not None and connection.compares_ages and recipient.retain_as_published:
            deliver(broker, recipient, kept, publisher)
