"""The end of a connection, and of a session: the will, what waits, and when it is over (§3.1.2.5, §4.1).

A session outlives its connection for its expiry interval. Both that and the will's delay are one timer of the
broker's, armed when the connection ends; what it was for is looked up when it is due (`check_time`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from hedgerow.broker import suspects
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.log_reading import read_page
from hedgerow.broker.needed import MAX_POSITION
from hedgerow.broker.publishing import deliver_to_one_step_by_step, publish_message
from hedgerow.broker.role import EndedRole
from hedgerow.broker.session import Channel, Session
from hedgerow.broker.stored import Chunk
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery

MAX_ENDED_AT_ONCE = 500  # Subscriptions and deliveries of one session: others may have 100,000.
END_WORK = 4  # for each of them


def detach(broker: BrokerCore, connection: Channel, with_will: bool) -> None:
    """A connection is over: see to its will and its session (§3.1.2.5, §4.1)."""
    if connection in broker.connections:
        broker.connections.remove(connection)
        broker.owners.closed(connection)
    session = connection.session
    if session is None or session.connection is not connection:
        return
    session.connection = None
    broker.count_connection(session, -1)
    suspects.note_end(broker, session, connection)
    _connection_ended(broker, session, connection, with_will)


def _connection_ended(broker: BrokerCore, session: Session, connection: Channel, with_will: bool) -> None:
    """The session has no connection any more."""
    session.role.disconnected(connection)
    if session.role.keeps(session):
        session.will = None  # The other broker has it: the client lives.
        broker.owners.weigh(session)
        broker.durability.store_session(session)
        return
    if not with_will:
        session.will = None
    delay_s = float(session.will.properties.get("will_delay_interval", 0)) if session.will else 0.0
    # Thousands may end at one moment, each with a will for many: then it is as if their timers were due.
    is_later = broker.round_is_over
    broker.work += END_WORK
    if session.expiry_s <= 0 and not is_later:
        discard(broker, session)
        return
    session.expires_at = broker.now + session.expiry_s
    if session.will is not None and delay_s == 0 and not is_later:
        _publish_will(broker, session)
    elif session.will is not None:
        session.will_at = broker.now + delay_s
    arm(broker, session)
    broker.owners.weigh(session)
    broker.owners.went(session)
    broker.durability.store_session(session)


def discard(broker: BrokerCore, session: Session) -> None:
    """The session ends; a will that waited for its delay is published now (MQTT-3.1.2-8)."""
    session.role.discarded(session)
    if session.subscriptions:
        for source in broker.sources:
            source.discarded(session)
    _publish_will(broker, session)
    session.timer_at = None  # Else the broker would keep all of it until the timer is due.
    del broker.sessions[session.client_id]
    broker.links.pop(session.client_id, None)
    broker.owners.remove(session)
    if session.stored is None and not (session.durable or session.outbox or session.subscriptions):
        session.outbox = session.subscriptions = None
        return  # It came and went, as most do: nothing has to be taken apart.
    shared = _take_shared(session)
    waiting = session.loaded() + broker.durability.unwritten(session)
    broker.durability.discard_session(session)  # Nothing of it is stored from here on.
    filters, session.subscriptions = session.subscriptions or {}, None
    session.outbox = None
    steps = _take_apart(broker, session, filters, waiting)
    to_look_at = sum(len(each.group.members) for each in waiting if each.group is not None)
    if any(chunk.end > broker.durability.written_position for chunk, _ in shared):
        # What is being written cannot be read before it is.
        broker.durability.when_written(partial(_hand_over_written, broker, shared))
    else:
        to_look_at += sum(chunk.count for chunk, _ in shared)
        steps = chain(steps, _hand_over_all(broker, shared))
    if len(filters) + len(waiting) + to_look_at <= MAX_ENDED_AT_ONCE:
        deque(steps, maxlen=0)
        return
    session.role = EndedRole(session.role)  # It gets nothing any more, although it is in the table still.
    broker.subscriptions.forget_all_routes()
    broker.end_later(partial(broker.take_steps, steps))


def _take_apart(
    broker: BrokerCore, session: Session, filters: Iterable[str], waiting: Iterable[Delivery]
) -> Iterator[None]:
    for topic_filter in filters:
        broker.subscriptions.remove(session, topic_filter)
        broker.work += END_WORK
        yield
    for delivery in waiting:
        broker.work += END_WORK
        broker.durability.finish_delivery(session, delivery)
        if delivery.group is not None and delivery.qos == 1:
            # §4.8.2: to another of the shared subscription. Not at QoS 2 (MQTT-4.8.2-5).
            for _ in deliver_to_one_step_by_step(broker, delivery.group, delivery.message, None):
                yield
        yield


def _take_shared(session: Session) -> list[tuple[Chunk, int]]:
    """What came by shared subscriptions, and from which position on it is in the log alone."""
    stored = session.stored
    if stored is None:
        return []
    begin = stored.cursor if stored.unloaded else MAX_POSITION
    return [(chunk, begin) for chunk in stored.chunks if chunk.group is not None]


def _hand_over_written(broker: BrokerCore, shared: list[tuple[Chunk, int]]) -> None:
    steps = _hand_over_all(broker, shared)
    if sum(chunk.count for chunk, _ in shared) <= MAX_ENDED_AT_ONCE:
        deque(steps, maxlen=0)  # before the end of the session is stored
    else:
        broker.end_later(partial(broker.take_steps, steps))


def _hand_over_all(broker: BrokerCore, shared: list[tuple[Chunk, int]]) -> Iterator[None]:
    for chunk, begin in shared:
        yield from _hand_over(broker, chunk, begin)


def _hand_over(broker: BrokerCore, chunk: Chunk, begin: int) -> Iterator[None]:
    """The same as above for those in the log alone."""
    while chunk.qos == 1 and (runs := list(chunk.runs_from(begin))):
        deliveries, end = read_page(broker, [(chunk, run) for run in runs])
        if end == runs[0][0]:
            break  # It cannot be read now, and it is now that it has to be.
        begin = end
        for delivery in deliveries:
            broker.work += END_WORK
            for _ in deliver_to_one_step_by_step(broker, chunk.group, delivery.message, None):
                yield
    broker.durability.release(chunk)


def expire(broker: BrokerCore, session: Session, after_s: float) -> None:
    """End the session of a client that is not connected, unless it comes in time."""
    if session.connection is not None or broker.sessions.get(session.client_id) is not session:
        return
    if after_s <= 0:
        discard(broker, session)
        return
    session.expires_at = broker.now + after_s
    arm(broker, session)
    broker.durability.store_session(session)


def arm(broker: BrokerCore, session: Session) -> None:
    due = [at for at in (session.will_at, session.expires_at) if at is not None and at != float("inf")]
    if due:
        broker.arm(min(due), session)


def check_time(broker: BrokerCore, session: Session) -> None:
    """Its timer is due, or may be late."""
    if broker.sessions.get(session.client_id) is not session:
        return
    if session.connection is not None:
        suspects.check_time(broker, session)
        return
    if session.will_at is not None and session.will_at <= broker.now:
        _publish_will(broker, session)
        broker.durability.store_session(session)
    if session.expires_at is not None and session.expires_at <= broker.now:
        broker.stats.sessions_expired += session.expiry_s > 0
        discard(broker, session)
    else:
        arm(broker, session)


def _publish_will(broker: BrokerCore, session: Session) -> None:
    will, session.will, session.will_at = session.will, None, None
    if will is None:
        return
    broker.owners.weigh(session)
    if not session.role.may_write(session, will.topic):
        return
    properties = will.properties.copy()
    properties.pop("will_delay_interval", None)
    message = Message(will.topic, will.payload, will.qos, will.retain, properties)
    message.expire_from(broker.now)
    try:
        publish_message(broker, message, broker.find_route(will.topic), session)
    except Exception as error:  # The session has to end all the same.
        broker.note_failure(session.client_id, error)
