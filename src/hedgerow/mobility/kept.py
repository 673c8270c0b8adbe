"""What a mobile or fixed broker has acknowledged and not yet done, over a crash.

A broker with a store keeps it there as it keeps what waits for a client: as deliveries of a session, but one
that no client has (`KEPT_PREFIX`). The store knows nothing of streams. What was written into one is stored
before the publisher hears that it was taken, and let go when the other side has handled it; where that is
before the batch is written, nothing is. After a crash it is written again, and who has had it knows it by its
id.

Here is the part that both have: records of a stream, and the deliveries that stand for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.log_reading import load_all
from hedgerow.broker.resting import packed_records
from hedgerow.broker.session import Session
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.limits import FORGET_AFTER_S, MAX_WAITING_BYTES
from hedgerow.mobility.delegation.stream import Record, Stream
from hedgerow.mobility.roles import KEPT_PREFIX, KeptRole
from hedgerow.mobility.sessions import find_own
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription
from hedgerow.packed import PartlyPacked

Key = tuple[str, MessageId]
"""Whom it is for, a callback, or "" for whoever matches; and which event."""

EVENTS = KEPT_PREFIX + "events"
FOR_MOBILE = KEPT_PREFIX + "for-"
FOR_GUEST = KEPT_PREFIX + "guest-"
LIMITS = QueueLimits(MAX_WAITING_BYTES, 0.0, True)
QOS = 2  # A message keeps the QoS that it was published with.


@dataclass(slots=True, eq=False)
class Stored:
    session: Session
    delivery: Delivery
    number: int = 0
    """Of the record in the stream; 0: it is not written."""


class RecordReader:
    """Takes note of the events that are written into a stream."""

    def __init__(self) -> None:
        self._life: tuple[Stream, int] | None = None
        self._noted = 0

    def is_anew(self, stream: Stream) -> bool:
        return self._life is not None and self._life != (stream, stream.lives)

    def take(self, stream: Stream) -> list[Record]:
        """Those since the last time; all of them, where the stream has begun anew."""
        content = stream.content
        if self._life != (stream, stream.lives):
            self._life, self._noted = (stream, stream.lives), 0
        fresh = min(content.number - self._noted, len(content.records))
        self._noted = content.number
        return [content.records[index] for index in range(-fresh, 0)]


def open_session(broker: Broker, client_id: str) -> Session:
    """That of an earlier life, if there is one. Without its mobile broker it is gone in a day."""
    session = find_own(broker, client_id)
    if session is None:
        session = broker.create_session(client_id, None, broker.roles[KeptRole.name])
        session.durable = broker.durability.enabled
        session.expiry_s = FORGET_AFTER_S
        broker.durability.store_session(session)
    session.queue_limits = LIMITS
    session.subscriptions = packed_records(session.subscriptions or {})
    return session


def store(broker: Broker, session: Session, message: Message, qos: int, is_again: bool = False) -> Stored:
    delivery = Delivery(message, qos, message.retain)
    delivery.is_again = is_again
    broker.durability.store_delivery(session, delivery)
    return Stored(session, delivery)


def take_stored(broker: Broker, session: Session) -> Iterator[Stored]:
    """What the store had for a session, out of its queue."""
    taken = load_all(broker, session)
    session.outbox = None
    for delivery in taken:
        yield Stored(session, delivery)


def finish(broker: Broker, stored: Stored) -> None:
    # A session that has ended took it along.
    if stored.session.durable:
        broker.durability.finish_delivery(stored.session, stored.delivery)


def store_filter(broker: Broker, session: Session, topic_filter: str, is_wanted: bool) -> None:
    """As a row of the store: whether it is in the broker's table is another matter."""
    held = session.subscriptions
    assert isinstance(held, PartlyPacked)
    if is_wanted and topic_filter not in held:
        record = held[topic_filter] = SubscriptionRecord(
            Subscription(topic_filter, QOS, no_local=False, retain_as_published=True)
        )
        held.pack(topic_filter)
        broker.durability.store_subscription(session, topic_filter, record)
    elif not is_wanted and held.pop(topic_filter, None) is not None:
        broker.durability.store_subscription(session, topic_filter, None)
