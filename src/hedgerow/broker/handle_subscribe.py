"""SUBSCRIBE and UNSUBSCRIBE at the broker (MQTT 5 §3.8 – §3.11)."""

from __future__ import annotations

from functools import partial

from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.connection import Connection
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import pump
from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.broker.late import send_recent
from hedgerow.broker.retaining import queue_retained
from hedgerow.broker.session import Session
from hedgerow.broker.source import Source, find_source, full_name
from hedgerow.errors import ProtocolError, TopicError
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    Packet,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import is_wildcard, split_shared, validate_filter

LEVELS_PER_SUBSCRIPTION = 16
FILTER_WORK = 5  # and one more for so many levels


def handle_subscribe(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Subscribe)
    session = connection.connected_session()
    if connection.broker.sources and packet.properties:
        _name_in_full(connection.broker, packet)
    identifiers = packet.properties.get("subscription_identifier")
    identifier = identifiers[0] if identifiers else None
    for wanted in packet.subscriptions:
        group = _validate(wanted.topic_filter)
        if group is not None and wanted.no_local:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "no local on a shared subscription", "MQTT-3.8.3-4")
    change_count = connection.broker.durability.change_count
    _subscribe_all(connection, session, packet, identifier, [], change_count)


def _name_in_full(broker: BrokerCore, packet: Subscribe) -> None:
    for wanted in packet.subscriptions:
        wanted.topic_filter = full_name(broker.sources, packet.properties, wanted.topic_filter)


def _subscribe_all(
    connection: Connection,
    session: Session,
    packet: Subscribe,
    identifier: int | None,
    codes: list[int],
    change_count: int,
) -> None:
    """Go on behind the filters that `codes` answers, for as long as the turn lasts."""
    broker = connection.broker
    # Each filter is answered and acted on as if it had come alone (MQTT-3.8.4-5).
    for wanted in packet.subscriptions[len(codes) :]:
        if broker.work > broker.turn_ends_at:
            connection.unfinished = partial(
                _subscribe_all, connection, session, packet, identifier, codes, change_count
            )
            broker.postpone(connection)
            return
        broker.work += FILTER_WORK + wanted.topic_filter.count("/") // LEVELS_PER_SUBSCRIPTION
        codes.append(_subscribe(connection, session, wanted, identifier))
    if connection.protocol_version == MQTT_3_1:
        # 3.1 has no failure code in SUBACK: it hears the QoS it asked for, and no messages.
        codes = [wanted.qos for wanted in packet.subscriptions]
    data = encode(Suback(packet.packet_id, codes), connection.protocol_version)
    _check_room(connection, data)
    must_wait = broker.durability.change_count != change_count
    broker.durability.acknowledge(connection, data, must_wait, is_of_messages=False)
    if not connection.held_acknowledgements:
        pump(broker, connection)  # else when the SUBACK has left


def _validate(topic_filter: str) -> str | None:
    """The share name, if it has one. A filter that breaks the rules of §4.7 is a malformed packet."""
    try:
        group, rest = split_shared(topic_filter)
        validate_filter(rest)
    except TopicError as error:
        raise ProtocolError(Reason.MALFORMED_PACKET, str(error)) from None
    return group


def _check_room(connection: Connection, data: bytes) -> None:
    if not connection.has_room_for(data):
        raise ProtocolError(Reason.PACKET_TOO_LARGE, "no room for the answer", "MQTT-3.1.2-24")


def _subscribe(connection: Connection, session: Session, wanted: Subscription, identifier: int | None) -> int:
    broker = connection.broker
    group, topic_filter = split_shared(wanted.topic_filter)
    answer = session.role.subscribing(connection, wanted, group is not None)
    if answer is not None:
        return answer
    most = session.role.maximum_qos
    if wanted.qos > most:
        options = wanted.no_local, wanted.retain_as_published, wanted.retain_handling
        wanted = Subscription(wanted.topic_filter, most, *options)
    if topic_filter[:1] == "$" and (source := find_source(broker.sources, topic_filter)) is not None:
        return _subscribe_at(source, broker, session, SubscriptionRecord(wanted, identifier))
    # A filter with wildcards is granted and its messages are checked one by one, as in Mosquitto.
    if (
        not is_wildcard(topic_filter)
        and not broker.access.may_read(session.username, session.client_id, topic_filter)
        and not session.may_read(broker.access, topic_filter)
    ):
        return Reason.NOT_AUTHORIZED
    held = session.subscriptions
    existed = held is not None and wanted.topic_filter in held
    if not existed and not _take_room(broker, session, wanted.topic_filter):
        return Reason.QUOTA_EXCEEDED
    record = SubscriptionRecord(wanted, identifier)
    if session.role.subscribes(session, record):
        _hold_as_guest(broker, session, record)
    else:
        _hold(broker, session, record)
    # §3.8.3.1: retain handling 0 always, 1 for a new subscription, 2 never; shared ones never.
    if group is None and (wanted.retain_handling == 0 or (wanted.retain_handling == 1 and not existed)):
        queue_retained(broker, connection, wanted, identifier)
    if session.role.gives_ids and not existed and group is None:
        send_recent(broker, session, wanted)
    return wanted.qos


def _subscribe_at(source: Source, broker: BrokerCore, session: Session, record: SubscriptionRecord) -> int:
    wanted = record.subscription
    if split_shared(wanted.topic_filter)[0] is not None:
        return Reason.TOPIC_FILTER_INVALID
    refusal = source.refusal(session, wanted.topic_filter)
    if refusal is not None:
        return refusal
    is_new = session.subscriptions is None or wanted.topic_filter not in session.subscriptions
    if is_new and not _take_room(broker, session, wanted.topic_filter):
        return Reason.QUOTA_EXCEEDED
    _hold(broker, session, record)
    source.subscribed(session, record, is_new)
    return wanted.qos


def _take_room(broker: BrokerCore, session: Session, topic_filter: str) -> bool:
    """Count one more filter for it, unless it has too many."""
    held = session.subscriptions
    # A deep filter counts for several: each level takes a node of the tree.
    weight = 1 + topic_filter.count("/") // LEVELS_PER_SUBSCRIPTION
    if held is not None and len(held) * weight >= broker.limits.subscriptions:
        return False
    return broker.owners.take_filter(session, topic_filter)


def _hold(broker: BrokerCore, session: Session, record: SubscriptionRecord) -> None:
    if session.subscriptions is None:
        session.subscriptions = {}
    wanted = record.subscription
    session.subscriptions[wanted.topic_filter] = record
    # Behind a peer may be those who were subscribed all the time: it decides itself.
    since = ALWAYS if session.role.gives_ids else broker.now
    broker.subscriptions.add(session, wanted, record.subscription_identifier, since)
    broker.durability.store_subscription(session, wanted.topic_filter, record)


def _hold_as_guest(broker: BrokerCore, session: Session, record: SubscriptionRecord) -> None:
    """The broker that keeps it stores it: brought back here by a restart, it would be this broker's own."""
    topic_filter = record.subscription.topic_filter
    if session.subscriptions is None:
        session.subscriptions = {}
    elif topic_filter in session.subscriptions:
        broker.subscriptions.remove(session, topic_filter)
        broker.durability.store_subscription(session, topic_filter, None)
    session.subscriptions[topic_filter] = record


def subscribe_for(broker: BrokerCore, session: Session, record: SubscriptionRecord) -> bool:
    """A client that another broker serves subscribes there. False: it has too many.

    Rights are those that it has here, message by message. What is retained is for who serves it.
    """
    topic_filter = record.subscription.topic_filter
    existed = topic_filter in (session.subscriptions or ())
    if not existed and not _take_room(broker, session, topic_filter):
        return False
    _hold(broker, session, record)
    return True


def unsubscribe_for(broker: BrokerCore, session: Session, topic_filter: str) -> bool:
    """False: it had no such subscription."""
    if session.subscriptions is None or session.subscriptions.pop(topic_filter, None) is None:
        return False
    broker.owners.unsubscribed(session, topic_filter)
    if session.connection is not None and session.connection.backlog:
        session.connection.backlog.pop(topic_filter, None)  # MQTT-3.10.4-2
    broker.subscriptions.remove(session, topic_filter)
    broker.durability.store_subscription(session, topic_filter, None)
    if topic_filter[:1] == "$" and (source := find_source(broker.sources, topic_filter)) is not None:
        source.unsubscribed(session, topic_filter)
    return True


def handle_unsubscribe(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Unsubscribe)
    sources = connection.broker.sources
    if sources and packet.properties:
        packet.topic_filters = [full_name(sources, packet.properties, each) for each in packet.topic_filters]
    for topic_filter in packet.topic_filters:
        _validate(topic_filter)
    _unsubscribe_all(connection, connection.connected_session(), packet, [])


def _unsubscribe_all(connection: Connection, session: Session, packet: Unsubscribe, codes: list[int]) -> None:
    """Go on behind the filters that `codes` answers, for as long as the turn lasts."""
    broker = connection.broker
    for topic_filter in packet.topic_filters[len(codes) :]:
        if broker.turn_is_over:
            connection.unfinished = partial(_unsubscribe_all, connection, session, packet, codes)
            broker.postpone(connection)
            return
        broker.work += FILTER_WORK
        # A guest may have subscribed where it was before.
        is_passed_on = session.role.unsubscribes(session, topic_filter)
        existed = unsubscribe_for(broker, session, topic_filter) or is_passed_on
        codes.append(Reason.SUCCESS if existed else Reason.NO_SUBSCRIPTION_EXISTED)
    data = encode(Unsuback(packet.packet_id, codes), connection.protocol_version)
    _check_room(connection, data)
    # It may be that an earlier connection unsubscribed, and that is not stored yet.
    broker.durability.acknowledge(connection, data, must_wait=session.durable, is_of_messages=False)
