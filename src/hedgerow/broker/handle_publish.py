"""PUBLISH and its four acknowledgements, at the broker (MQTT 5 §3.3 – §3.7, §4.3).

`accept` is where every publication at QoS 1 or 2 arrives, by the short path or the long one: it
answers for QoS 1 and 2, once the broker has stored what must survive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hedgerow.broker.connection import MAX_ALIAS_BYTES, Connection
from hedgerow.broker.deliveries import note_set_aside, pump
from hedgerow.broker.events import PublicationRefused
from hedgerow.broker.ids import has_age, is_again, is_known, is_outdated
from hedgerow.broker.publishing import Outcome, find_full, merge, publish_message
from hedgerow.broker.rest import when_delivered
from hedgerow.broker.retaining import retainer
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Session
from hedgerow.broker.unreleased import MAX_BEFORE_MQTT_5, Unreleased
from hedgerow.errors import ProtocolError
from hedgerow.message import Message
from hedgerow.mqtt.codec import decode, encode
from hedgerow.mqtt.outbox import Delivery, Outbox
from hedgerow.mqtt.packets import (
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Packet,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hedgerow.mqtt.properties import MAX_REPETITIONS
from hedgerow.mqtt.reasons import FAILURE, Reason, describe
from hedgerow.mqtt.wire import PUBACK_HEAD, PUBCOMP_HEAD, PUBREC_HEAD, PUBREL_HEAD


def handle_publish(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Publish)
    broker = connection.broker
    _resolve_alias(connection, packet)
    properties = packet.properties
    if "subscription_identifier" in properties:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "subscription identifier from a client", "MQTT-3.3.4-6")
    properties.pop("topic_alias", None)
    _check_offered(connection, packet)
    if connection.connected_session().role.receive(connection, packet):
        return
    message = Message(packet.topic, packet.payload, packet.qos, packet.retain, properties)
    if connection.carries_ids:
        connection.identify(message)
    if has_too_many_pairs(message):
        raise ProtocolError(Reason.QUOTA_EXCEEDED, f"more than {MAX_REPETITIONS} user properties", "§4.13.2")
    message.expire_from(broker.now)
    is_again = packet.qos == 2 and packet.packet_id in (connection.connected_session().received or ())
    # What was taken once is not refused when it comes again: the client would use its identifier for
    # another message, and we would take that for the one that we know.
    reason = None if is_again else _refusal(connection, message)
    if reason is not None:
        _refuse_publication(connection, message, packet.packet_id, *reason)
        return
    route = broker.find_route(packet.topic)
    accept(connection, message, route, packet.packet_id)


def _check_offered(connection: Connection, packet: Publish) -> None:
    role = connection.connected_session().role
    if packet.qos > role.maximum_qos:
        raise ProtocolError(Reason.QOS_NOT_SUPPORTED, f"QoS {packet.qos} is not taken here", "MQTT-3.2.2-11")
    if packet.retain and not role.takes_retained:
        raise ProtocolError(
            Reason.RETAIN_NOT_SUPPORTED, "retained messages are not taken here", "MQTT-3.2.2-14"
        )


def handle_pubcallback(connection: Connection, packet: Packet) -> None:
    """The extension's, of a broker: of others the codec reads none."""
    assert isinstance(packet, Pubcallback)
    connection.connected_session().role.receive_pubcallback(connection, packet)


def has_too_many_pairs(message: Message) -> bool:
    """More user properties of its own than could be carried to another broker, beside what that adds."""
    return len(message.properties.get("user_property", ())) > MAX_REPETITIONS


def _resolve_alias(connection: Connection, packet: Publish) -> None:
    """§3.3.2.3.4: a topic with an alias sets it, an empty topic uses it."""
    alias = packet.properties.get("topic_alias")
    if alias is not None:
        if not 0 < alias <= connection.broker.limits.topic_alias_maximum:
            raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}", "MQTT-3.3.2-9")
        if connection.aliases_in is None:
            connection.aliases_in = {}
        if packet.topic:
            connection.alias_bytes += len(packet.topic) - len(connection.aliases_in.get(alias, ""))
            if connection.alias_bytes > MAX_ALIAS_BYTES:
                raise ProtocolError(Reason.QUOTA_EXCEEDED, "topics with aliases are too long together")
            connection.aliases_in[alias] = packet.topic
        else:
            packet.topic = connection.aliases_in.get(alias, "")
    if not packet.topic:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "a topic alias that was never set", "§3.3.2.3.4")


def _refusal(connection: Connection, message: Message) -> tuple[int, str] | None:
    session = connection.connected_session()
    if not session.role.may_write(session, message.topic):
        return Reason.NOT_AUTHORIZED, "not authorized"
    if message.topic in connection.broker.commands:
        refusal = _command_refusal(connection, message)
        if refusal is not None:
            return refusal
    if message.retain and not connection.broker.retained.has_room_for(message, retainer(session)):
        reason = "no room for more retained messages of this user or address, or in all"
        if message.qos and connection.protocol_version != MQTT_5:
            reason += "; it was acknowledged, since its version of MQTT has no word for that"
        return Reason.QUOTA_EXCEEDED, reason
    return None


def _command_refusal(connection: Connection, message: Message) -> tuple[int, str] | None:
    if message.retain:
        # It would be carried out again at every start, whatever was commanded since.
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR, "a command is not retained"
    session = connection.connected_session()
    response_topic = message.properties.get("response_topic")
    # The ACL does not apply to the node, which answers: so it asks for whom it does.
    if response_topic is not None and not session.role.may_write(session, response_topic):
        return Reason.NOT_AUTHORIZED, "not authorized to publish to the response topic"
    return None


def refuse_for_quota(connection: Connection, first: int, body: bytes) -> bool:
    """Answer a PUBLISH of MQTT 5 at QoS 1 or 2 with Quota exceeded. False: it is one that was taken before,
    or is wrong, and goes the usual way."""
    try:
        packet = decode(first, body, connection.protocol_version)
    except ProtocolError:
        return False
    assert isinstance(packet, Publish)
    if packet.dup or packet.packet_id in (connection.connected_session().received or ()):
        return False
    _resolve_alias(connection, packet)
    message = Message(packet.topic, packet.payload, packet.qos, packet.retain)
    connection.broker.stats.packets_received += 1
    reason = "more than the quota of this client, user or listener allows"
    _refuse_publication(connection, message, packet.packet_id, Reason.QUOTA_EXCEEDED, reason)
    return True


def _refuse_publication(
    connection: Connection, message: Message, packet_id: int, reason_code: int, reason: str
) -> None:
    """Not this one, but the connection stays: the reason code travels in the acknowledgement.

    3.1 and 3.1.1 have no word for it: they acknowledge, and drop (MQTT-3.3.5-2 there).
    """
    broker = connection.broker
    session = connection.connected_session()
    broker.stats.publish_received += 1
    broker.stats.publish_refused += 1
    broker.events.append(PublicationRefused(connection.address, session.client_id, message.topic, reason))
    version = connection.protocol_version
    problem = connection.problem(reason) if connection.problem_information else {}
    code = reason_code if version == MQTT_5 else 0
    if message.qos == 1:
        broker.durability.acknowledge(
            connection, encode(Puback(packet_id, code, problem), version), must_wait=False
        )
    elif message.qos == 2:
        broker.durability.acknowledge(
            connection, encode(Pubrec(packet_id, code, problem), version), must_wait=False
        )


def accept(connection: Connection, message: Message, route: Route, packet_id: int) -> None:
    """Take a publication, pass it on, and acknowledge it when what must survive is stored."""
    broker = connection.broker
    session = connection.connected_session()
    broker.stats.publish_received += 1
    qos = message.qos
    if not packet_id:
        # Its own QoS may be higher than that of the packet that brought it. Where it would not be recorded,
        # it is dropped before it counts as seen: it may come again in a packet that is acknowledged.
        is_full = find_full(route, len(message.payload)) is not None
        if qos and (is_full or not broker.durability.takes_publications(broker.now)):
            broker.stats.publish_dropped += 1
        else:
            _publish_once(connection, message, route)
        return
    # Mosquitto (2.0) with max_inflight_messages 0 goes beyond it: a far broker is slowed down, not refused.
    is_beyond = session.role.holds_receive_maximum and not _has_room(connection, session, qos)
    if is_beyond and packet_id not in (session.received or ()):
        raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "receive maximum exceeded", "MQTT-3.3.4-7")
    if not is_taken(connection, route, len(message.payload)):
        return
    if qos == 1:
        count, must_wait = _publish_once(connection, message, route)
        head = PUBACK_HEAD
    else:
        count, must_wait = _accept_exactly_once(connection, session, message, route, packet_id)
        head = PUBREC_HEAD
    data = head + packet_id.to_bytes(2, "big")
    if not count and connection.protocol_version == MQTT_5:
        data = head[:1] + b"\x03" + data[2:] + b"\x10"  # No matching subscribers
    if broker.undelivered:
        then = partial(_acknowledge_late, connection, session, qos, packet_id, data)
        if when_delivered(broker, message.topic, connection, then):
            return
    broker.durability.acknowledge(connection, data, must_wait)


def _acknowledge_late(
    connection: Connection, session: Session, qos: int, packet_id: int, data: bytes
) -> None:
    """All recipients have it."""
    durability = connection.broker.durability
    if qos == 2 and packet_id in (session.received or ()):
        durability.store_received(session, packet_id, True)
    if connection.is_connected:
        durability.acknowledge(connection, data, durability.is_behind, is_late=True)


def is_taken(connection: Connection, route: Route, size: int) -> bool:
    """Before publications at QoS 1 or 2 are passed on: have observers room for payloads of so many bytes, and
    the memory room for what waits for the log?

    If they have not, the connection is at its end, and whoever sent them sends them again.
    """
    full = find_full(route, size) if route.observers else None
    broker = connection.broker
    if full is not None:
        reason = f"the {full.name} has no room until its disk takes more"
    elif not broker.durability.takes_publications(broker.now):
        reason = "too much waits until the store takes more"
    elif not broker.durability.takes_from(connection.connected_session().share):
        reason = "too much of this user or address waits until the store takes more"
    else:
        return True
    if not connection.connected_session().role.hears_errors:
        # It may be a timer that passes on what was received: nobody there waits for an error.
        connection.disconnect(Reason.SERVER_BUSY, reason)
        return False
    raise ProtocolError(Reason.SERVER_BUSY, reason)


def _has_room(connection: Connection, session: Session, qos: int) -> bool:
    """For one more publication that is not finished. MQTT 3 has no Receive Maximum, and what it leaves
    unreleased has to be remembered all the same."""
    broker = connection.broker
    if connection.protocol_version == MQTT_5:
        if room_to_receive(connection, session) <= 0:
            return False
    elif qos == 2 and len(session.received or ()) >= MAX_BEFORE_MQTT_5:
        return False
    return qos == 1 or broker.owners.may_remember(session)


def room_to_receive(connection: Connection, session: Session) -> int:
    """How many more publications at QoS 1 and 2 the client may send before one is finished."""
    unfinished = connection.held_publications + len(session.received or ()) - connection.received_before
    return most_to_receive(connection) - unfinished


def most_to_receive(connection: Connection) -> int:
    limits = connection.broker.limits
    return limits.peer_receive_maximum if connection.carries_ids else limits.receive_maximum


def _publish_once(connection: Connection, message: Message, route: Route) -> Outcome:
    """Pass it on, unless it came with the id of one that was here before."""
    broker = connection.broker
    inbound = connection.inbound
    if inbound is not None:
        inbound.published += 1
        was_here = is_again(broker, message)
        is_value = has_age(message)
        is_old = is_value and is_outdated(broker, message)
        if was_here or is_old or (is_value and is_known(broker, message)):
            inbound.duplicates += was_here
            inbound.outdated += not was_here
            if is_value and not is_old:
                merge(broker, message, route, connection.session)
            # The first may not be stored yet, and whoever hears that this was taken forgets it.
            return 1, broker.durability.is_behind
    return publish_message(broker, message, route, connection.session)


def _accept_exactly_once(
    connection: Connection, session: Session, message: Message, route: Route, packet_id: int
) -> Outcome:
    """§4.3.3, method of the receiver: the identifier is remembered until its PUBREL."""
    broker, received = connection.broker, session.received
    if received is None:
        received = session.received = Unreleased()
    elif packet_id in received:
        # Sent again, perhaps while the first is not yet stored: then its PUBREC waits for that too.
        return 1, session.durable or broker.durability.is_behind
    if received.add(packet_id):
        broker.owners.weigh(session)
    count, must_wait = _publish_once(connection, message, route)
    if message.topic not in broker.undelivered:  # Else nobody would send it again after a crash.
        broker.durability.store_received(session, packet_id, True)
    return count, must_wait or session.durable


# Acknowledgements: each takes (connection, packet identifier, reason code).


def handle_puback(connection: Connection, packet_id: int, reason_code: int) -> None:
    session = connection.connected_session()
    outbox = session.outbox
    if outbox is not None:
        delivery = outbox.acknowledged(packet_id)
        if delivery is None:
            _refuse_wrong_type(outbox, packet_id, "PUBACK")
        _finish(connection, session, delivery, reason_code)


def _refuse_wrong_type(outbox: Outbox, packet_id: int, name: str) -> None:
    """What is not known any more is passed over; what was sent at the other QoS is not acknowledged so."""
    delivery = outbox.in_flight.get(packet_id)
    if delivery is not None:
        clause = "MQTT-4.3.2-2" if delivery.qos == 1 else "MQTT-4.3.3-4"
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"{name} for a message of QoS {delivery.qos}", clause)


def _refuse_wrong_types(outbox: Outbox, packet_ids: list[int], finished: int, name: str) -> None:
    """The same, of a run in which so many were right, and are in flight no more."""
    if finished < len(packet_ids):
        for packet_id in packet_ids:
            _refuse_wrong_type(outbox, packet_id, name)


def _finish(connection: Connection, session: Session, delivery: Delivery | None, reason_code: int) -> None:
    """A delivery is over: the window has room for another."""
    if delivery is None:
        return
    if reason_code >= FAILURE:
        if session.ledger is not None:
            session.ledger.refused += 1
        reason = f"the far end refuses it: {describe(reason_code)}"
        note_set_aside(connection.broker, session, delivery.message.topic, reason)
    elif session.ledger is not None:
        session.ledger.relayed += 1
    connection.broker.durability.finish_delivery(session, delivery, is_acknowledged=True)
    if connection.resending or session.has_queue:
        pump(connection.broker, connection)


def finish_run(connection: Connection, packet_ids: list[int]) -> None:
    """PUBACKs in a row that say success: as `handle_puback` for each, but the window is filled once."""
    session = connection.connected_session()
    outbox = session.outbox
    if outbox is None:
        return
    finished = outbox.finish_run(packet_ids, 1)
    connection.broker.durability.finish_run(session, finished)
    _refuse_wrong_types(outbox, packet_ids, len(finished), "PUBACK")
    _note_finished(connection, session, finished)


def _note_finished(connection: Connection, session: Session, finished: list[Delivery]) -> None:
    if session.ledger is not None:
        session.ledger.relayed += len(finished)
    if finished and (connection.resending or session.has_queue):
        pump(connection.broker, connection)


def handle_pubrec(connection: Connection, packet_id: int, reason_code: int) -> None:
    session = connection.connected_session()
    broker = connection.broker
    outbox = session.outbox
    if reason_code >= FAILURE:
        handle_pubcomp(connection, packet_id, reason_code)
        return
    delivery = outbox.received(packet_id) if outbox is not None else None
    if delivery is None:
        if outbox is not None:
            _refuse_wrong_type(outbox, packet_id, "PUBREC")
        # Answered all the same, so that the client can let the identifier go (§4.3.3).
        connection.send(release(packet_id, found=False, version=connection.protocol_version))
        return
    broker.durability.store_delivery(session, delivery)
    broker.durability.send_exactly_once(connection, session, release(packet_id))


def handle_pubrel(connection: Connection, packet_id: int, reason_code: int) -> None:
    session = connection.connected_session()
    broker, received = connection.broker, session.received
    if received is None or packet_id not in received:
        # It may be that an earlier connection released it, and that is not stored yet.
        found = connection.protocol_version < MQTT_5
        broker.durability.acknowledge(connection, complete(packet_id, found), must_wait=session.durable)
        return
    if received.remove(packet_id):
        broker.owners.weigh(session)
    # The client may use the identifier again once it has the PUBCOMP: if we then remembered the old
    # one after a crash, the new message would be taken for a duplicate and lost.
    broker.durability.store_received(session, packet_id, False)
    broker.durability.acknowledge(connection, complete(packet_id), must_wait=session.durable)


def handle_pubcomp(connection: Connection, packet_id: int, reason_code: int) -> None:
    session = connection.connected_session()
    outbox = session.outbox
    if outbox is not None:
        if reason_code == Reason.PACKET_IDENTIFIER_NOT_FOUND:
            reason_code = Reason.SUCCESS  # It was finished before the connection was lost.
        delivery = outbox.completed(packet_id)
        if delivery is None:
            _refuse_wrong_type(outbox, packet_id, "PUBCOMP")
        _finish(connection, session, delivery, reason_code)


def receive_run(connection: Connection, packet_ids: list[int]) -> None:
    """PUBRECs in a row that say success: as `handle_pubrec` for each, and one answer to all."""
    session = connection.connected_session()
    outbox = session.outbox
    if outbox is None or session.durable or connection.congested:
        for packet_id in packet_ids:
            handle_pubrec(connection, packet_id, Reason.SUCCESS)
        return
    answers = []
    for packet_id in packet_ids:
        found = outbox.received(packet_id) is not None
        if not found:
            _refuse_wrong_type(outbox, packet_id, "PUBREC")
        answers.append(release(packet_id, found, connection.protocol_version))
    connection.send(b"".join(answers))


def release_run(connection: Connection, packet_ids: list[int]) -> None:
    """PUBRELs in a row: as `handle_pubrel` for each, and one answer to all."""
    session = connection.connected_session()
    broker, received = connection.broker, session.received
    if received is None or session.durable or connection.congested:
        for packet_id in packet_ids:
            handle_pubrel(connection, packet_id, Reason.SUCCESS)
        return
    is_smaller = False
    answers = []
    for packet_id in packet_ids:
        found = packet_id in received
        if found and received.remove(packet_id):
            is_smaller = True
        answers.append(complete(packet_id, found or connection.protocol_version < MQTT_5))
    if is_smaller:
        broker.owners.weigh(session)
    broker.durability.acknowledge(connection, b"".join(answers), False, len(answers))


def complete_run(connection: Connection, packet_ids: list[int]) -> None:
    """PUBCOMPs in a row that say success: as `handle_pubcomp` for each, but the window is filled once."""
    session = connection.connected_session()
    outbox = session.outbox
    if outbox is None or session.stored is not None:
        for packet_id in packet_ids:
            handle_pubcomp(connection, packet_id, Reason.SUCCESS)
        return
    finished = outbox.finish_run(packet_ids, 2)
    _refuse_wrong_types(outbox, packet_ids, len(finished), "PUBCOMP")
    _note_finished(connection, session, finished)


def release(packet_id: int, found: bool = True, version: int = MQTT_5) -> bytes:
    if found or version < MQTT_5:
        return PUBREL_HEAD + packet_id.to_bytes(2, "big")
    return encode(Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND), MQTT_5)


def complete(packet_id: int, found: bool = True) -> bytes:
    if found:
        return PUBCOMP_HEAD + packet_id.to_bytes(2, "big")
    return encode(Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND), MQTT_5)


ACKNOWLEDGEMENTS: dict[int, Callable[[Connection, int, int], None]] = {
    PUBACK: handle_puback,
    PUBREC: handle_pubrec,
    PUBREL: handle_pubrel,
    PUBCOMP: handle_pubcomp,
}
ACKNOWLEDGEMENT_RUNS: dict[int, Callable[[Connection, list[int]], None]] = {
    PUBACK: finish_run,
    PUBREC: receive_run,
    PUBREL: release_run,
    PUBCOMP: complete_run,
}
_ACKNOWLEDGEMENT_TYPES = {Puback: PUBACK, Pubrec: PUBREC, Pubrel: PUBREL, Pubcomp: PUBCOMP}


def handle_acknowledgement(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp)
    if connection.session is None:  # Nothing that has to be acknowledged is sent on it.
        raise ProtocolError(Reason.PROTOCOL_ERROR, "it acknowledges what was not sent", "§4.3")
    acknowledge = ACKNOWLEDGEMENTS[_ACKNOWLEDGEMENT_TYPES[type(packet)]]
    acknowledge(connection, packet.packet_id, packet.reason_code)
