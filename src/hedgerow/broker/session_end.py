"""The end of a connection, and of a session: the will, what waits, and when it is over (§3.1.2.5, §4.1).

A session outlives its connection for its expiry interval. Both that and the will's delay are one timer of the
broker's, armed when the connection ends; what it was for is looked up when it is due (`check_time`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.handle_publish import may_publish
from hedgerow.broker.mobility import is_kept
from hedgerow.message import Message

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.session import Session


def connection_ended(broker: Broker, session: Session, connection: Connection, with_will: bool) -> None:
    """The session has no connection any more."""
    if session.is_neighbour and broker.neighbourhood is not None:
        broker.neighbourhood.ended(connection)
    if session.is_mobile and broker.mobility is not None:
        broker.mobility.ended(connection)
    if is_kept(broker, session):
        session.will = None  # The other broker has it: the client lives.
        broker.durability.store_session(session)
        return
    if not with_will:
        session.will = None
    delay_s = float(session.will.properties.get("will_delay_interval", 0)) if session.will else 0.0
    if session.expiry_s <= 0:
        discard(broker, session)
        return
    session.expires_at = broker.now + session.expiry_s
    if session.will is not None and delay_s == 0:
        _publish_will(broker, session)
    elif session.will is not None:
        session.will_at = broker.now + delay_s
    arm(broker, session)
    broker.durability.store_session(session)


def discard(broker: Broker, session: Session) -> None:
    """The session ends; a will that waited for its delay is published now (MQTT-3.1.2-8)."""
    if broker.mobility is not None and session.is_client:
        broker.mobility.discarded(session)
    _publish_will(broker, session)
    del broker.sessions[session.client_id]
    for topic_filter in session.subscriptions or ():
        broker.subscriptions.remove(session, topic_filter)
    session.subscriptions = None
    waiting, session.outbox = session.waiting(), None
    for delivery in waiting:
        broker.durability.finish_delivery(session, delivery)
        if delivery.group is not None and delivery.qos == 1:
            # §4.8.2: to another of the shared subscription. Not at QoS 2 (MQTT-4.8.2-5).
            broker.deliver_to_one(delivery.group, delivery.message, None)
    broker.durability.discard_session(session)


def expire(broker: Broker, session: Session, after_s: float) -> None:
    """End the session of a client that is not connected, unless it comes in time."""
    if session.connection is not None or broker.sessions.get(session.client_id) is not session:
        return
    if after_s <= 0:
        discard(broker, session)
        return
    session.expires_at = broker.now + after_s
    arm(broker, session)
    broker.durability.store_session(session)


def arm(broker: Broker, session: Session) -> None:
    due = [at for at in (session.will_at, session.expires_at) if at is not None and at != float("inf")]
    if due:
        broker.arm(min(due), session)


def check_time(broker: Broker, session: Session) -> None:
    """Its timer is due."""
    if session.connection is not None or broker.sessions.get(session.client_id) is not session:
        return
    if session.will_at is not None and session.will_at <= broker.now:
        _publish_will(broker, session)
        broker.durability.store_session(session)
    if session.expires_at is not None and session.expires_at <= broker.now:
        broker.stats.sessions_expired += 1
        discard(broker, session)
    else:
        arm(broker, session)


def _publish_will(broker: Broker, session: Session) -> None:
    will, session.will, session.will_at = session.will, None, None
    if will is None or not may_publish(broker, session, will.topic):
        return
    properties = will.properties.copy()
    properties.pop("will_delay_interval", None)
    message = Message(will.topic, will.payload, will.qos, will.retain, properties)
    message.expire_from(broker.now)
    broker.publish(message, broker.subscriptions.route(will.topic), session)
