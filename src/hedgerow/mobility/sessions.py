"""What mobile and fixed brokers do with whole sessions of their broker, beside delivering to them."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.broker.broker import Broker
from hedgerow.broker.log_reading import waiting
from hedgerow.broker.session import Session
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.reasons import Reason


def when_readable(broker: Broker, session: Session, act: Callable[[], None]) -> None:
    """Now, or when what waits in it and is just being written can be read."""
    written, stored = broker.durability.written_position, session.stored
    if stored is not None and any(chunk.end > written for chunk in stored.chunks):
        broker.durability.when_written(act)
    else:
        act()


def take_waiting(broker: Broker, session: Session) -> list[Delivery]:
    """What waits in it, in order: its client is at another broker, which is to deliver it. What the client
    has received at QoS 2 and only has yet to forget is not among it."""
    return _take(broker, session, list(waiting(broker, session)))


def take_queued(broker: Broker, session: Session) -> list[Delivery]:
    """Of this, what is not in flight."""
    queued = [each for each in waiting(broker, session) if each.stage == Stage.QUEUED]
    return _take(broker, session, queued)


def _take(broker: Broker, session: Session, taken: list[Delivery]) -> list[Delivery]:
    if session.outbox is not None:
        session.outbox.remove(set(taken))
    for delivery in taken:
        broker.durability.finish_delivery(session, delivery)
        broker.identify_late(delivery.message)
    return [delivery for delivery in taken if delivery.stage != Stage.RELEASED]


def may_have_come(delivery: Delivery) -> bool:
    """It was sent, and the client has not said that it got it."""
    return delivery.is_again or delivery.stage != Stage.QUEUED


def is_finished(session: Session, delivery: Delivery) -> bool:
    """Has the client acknowledged it, of what was put into its outbox?"""
    outbox = session.outbox
    if outbox is None:
        return True
    return delivery.stage != Stage.QUEUED and outbox.in_flight.get(delivery.packet_id) is not delivery


def end_session(broker: Broker, session: Session) -> None:
    """Its client, if there is one, hears that another has it."""
    if session.connection is not None:
        session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
    if broker.sessions.get(session.client_id) is session:
        broker.discard(session)


def find_own(broker: Broker, client_id: str) -> Session | None:
    """The session of a part of this node. A client that has chosen this very name loses it, since its
    subscriptions would be that part's."""
    session = broker.sessions.get(client_id)
    if session is None or session.role.is_own:
        return session
    end_session(broker, session)
    return None
