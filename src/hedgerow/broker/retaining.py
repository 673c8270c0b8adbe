"""Retained messages at the broker: what a publication changes of them, and what a subscription gets of them.

Another broker that subscribes is also told of what was deleted (`retained.py`), so that both come to the same
values after a cut of up to `TOMBSTONE_S`, whatever was published on either side. To a foreign broker this is
not told: it keeps what comes last, and a deletion of yesterday would take away what its own clients published
today. It gets deletions as they are published; at QoS 1 and 2 also those that waited in the link's session.
"""

from __future__ import annotations

from collections import OrderedDict

from hedgerow.broker.backlog import Backlog
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import PURGE_S
from hedgerow.broker.events import PublicationRefused
from hedgerow.broker.ids import age_key, has_age, remove_mark
from hedgerow.broker.retained import stamp
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Channel, Publisher, Session
from hedgerow.message import Message
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import is_wildcard

RETAIN_WORK = 25  # To a new topic, with the way that is looked up for it: see `Broker.begin_turn`.


def retain(broker: BrokerCore, message: Message, route: Route, publisher: Publisher | None) -> None:
    """Keep a publication with RETAIN, or what it deletes, if it is the newest of its topic."""
    retained = broker.retained
    broker.work += RETAIN_WORK
    kept = retained.newest(message.topic, broker.now)
    broker.identify(message)  # Which of two values of one moment is the newer goes by it, here as there.
    if message.published_at is None:
        message.published_at = stamp(broker.now, kept)
    elif kept is not None and age_key(kept) >= age_key(message):
        return  # A part of this node took it from elsewhere: it is passed on, and changes nothing.
    if not message.payload:
        remove_mark(message)
        _delete(broker, message, leaves_tombstone=kept is not None or _concerns_brokers(route, publisher))
    elif retained.set(message, retainer(publisher)):
        if message.expires_at is not None:
            broker.purge_later(message.expires_at, broker.now + PURGE_S)
        broker.durability.store_retained(message.topic, message)
    else:  # There was room when it came: it waited for something.
        _note_not_retained(broker, message, publisher)


def _note_not_retained(broker: BrokerCore, message: Message, publisher: Publisher | None) -> None:
    address, who = "this node", publisher.source[0] if publisher is not None else ""
    if isinstance(publisher, Session):
        who = publisher.client_id
        address = publisher.connection.address if publisher.connection is not None else address
    reason = "it was passed on, and there is no room to retain it"
    broker.events.append(PublicationRefused(address, who, message.topic, reason))


def retainer(publisher: Publisher | None) -> str | None:
    """In whose share a value is. A link that proved to be of this fabric brings those of many, and has none.
    Any other has one of its own: whoever publishes at a foreign broker leaves room for the clients here."""
    if not isinstance(publisher, Session):
        return publisher.share if publisher is not None else None
    if not publisher.role.is_link:
        return publisher.owner
    connection = publisher.connection
    is_proven = connection is not None and (connection.is_proven or connection.exchange is not None)
    return None if is_proven else publisher.share


def may_have_forgotten(session: Session, message: Message) -> bool:
    """Of what began at the other broker: a value may be of its former life, and go by age there (`is_again`).

    One that is away is told of all that is retained when it comes back."""
    connection = session.connection
    is_told = session.role.is_link and connection is not None and connection.compares_ages
    return is_told and has_age(message)


def _concerns_brokers(route: Route, publisher: Publisher | None) -> bool:
    """Others may have a value of which nothing is known here."""
    if publisher is not None and publisher.gives_ids:
        return True
    return any(recipient.session.gives_ids for recipient in route.recipients)


def _delete(broker: BrokerCore, deletion: Message, leaves_tombstone: bool) -> None:
    """MQTT-3.3.1-6."""
    retained, topic = broker.retained, deletion.topic
    had_value = retained.remove(topic)
    had_tombstone = retained.tombstones.remove(topic)
    # What begins with $ speaks of one broker.
    if leaves_tombstone and topic[0] != "$" and retained.tombstones.set(deletion, broker.now):
        broker.durability.store_retained(topic, retained.tombstones.get(topic))
        broker.purge_later(retained.tombstones.ends_at, broker.now + PURGE_S)
    elif had_value or had_tombstone:
        broker.durability.store_retained(topic, None)


def queue_retained(
    broker: BrokerCore, connection: Channel, subscription: Subscription, identifier: int | None
) -> None:
    """Have the retained messages of a subscription sent, as its client reads them (`deliveries.pump`)."""
    retained, topic_filter = broker.retained, subscription.topic_filter
    with_tombstones = subscription.retain_as_published and connection.compares_ages
    if is_wildcard(topic_filter):
        is_empty = not retained and not (with_tombstones and retained.tombstones)
    else:
        is_empty = retained.newest(topic_filter, broker.now) is None
    if is_empty:
        return
    if connection.backlog is None:
        connection.backlog = OrderedDict()
    # Subscribing again and again piles up nothing: what has begun begins anew, and is behind the others.
    connection.backlog.pop(topic_filter, None)
    connection.backlog[topic_filter] = Backlog(retained, subscription, identifier, with_tombstones)
