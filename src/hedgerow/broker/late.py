"""What has just flowed between brokers, to a peer that comes a moment too late (`recent.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import enqueue
from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.broker.ids import is_before, is_newest
from hedgerow.broker.log_reading import newest_waiting
from hedgerow.broker.session import Session
from hedgerow.message import MessageId
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import matches

KNOWN_PER_WORK = 4  # deliveries of which it takes the ids in a unit of work


def send_recent(
    broker: BrokerCore,
    session: Session,
    subscription: Subscription,
    has_it: Callable[[MessageId], bool] = lambda message_id: False,
    *,
    with_past_values: bool = True,
    since: float = ALWAYS,
) -> None:
    """To a peer whose subscription is new. `has_it` knows what one has that does not look at ids.

    `with_past_values`: also what was retained and is the newest no more, or is told as a retained value.
    Who does not look at ages would take the older for the newer. `since`: for one that does not look at them
    either, when it subscribed.
    """
    if subscription.qos:
        topic_filter = subscription.topic_filter
        steps = send_recent_step_by_step(
            broker,
            session,
            subscription,
            lambda topic: matches(topic_filter, topic),
            has_it,
            with_past_values=with_past_values,
            since=since,
        )
        deque(steps, maxlen=0)


def send_recent_step_by_step(
    broker: BrokerCore,
    session: Session,
    subscription: Subscription,
    is_wanted: Callable[[str], bool],
    has_it: Callable[[MessageId], bool] = lambda message_id: False,
    *,
    with_past_values: bool = True,
    since: float = ALWAYS,
) -> Iterator[None]:
    """As `send_recent`, of topics that `is_wanted`: the filters may be many that have come together."""
    for found in _find_recent(broker, session, subscription, is_wanted, has_it, with_past_values, since):
        for delivery in found:
            broker.durability.store_separately()
            enqueue(broker, session, delivery)
        yield


def find_recent(
    broker: BrokerCore, session: Session, subscription: Subscription, has_it: Callable[[MessageId], bool]
) -> list[Delivery]:
    """As `send_recent`, for who is to send it later, and before what comes until then."""
    if not subscription.qos:
        return []
    topic_filter = subscription.topic_filter
    runs = _find_recent(
        broker, session, subscription, lambda topic: matches(topic_filter, topic), has_it, True, ALWAYS
    )
    return [delivery for found in runs for delivery in found]


def _find_recent(
    broker: BrokerCore,
    session: Session,
    subscription: Subscription,
    is_wanted: Callable[[str], bool],
    has_it: Callable[[MessageId], bool],
    with_past_values: bool,
    since: float,
) -> Iterator[list[Delivery]]:
    """Of one topic at a time."""
    known = {each.message.id for each in newest_waiting(broker, session)}
    broker.work += len(known) // KNOWN_PER_WORK
    for at, messages in broker.recent.runs(broker.now):
        broker.work += len(messages)  # A SUBSCRIBE of thousands of filters is not one turn.
        found: list[Delivery] = []
        for message in messages if is_wanted(messages[0].topic) else ():
            assert message.id is not None
            if message.id in known or message.id.origin == session.far_origin or has_it(message.id):
                continue
            if message.retain and not (
                with_past_values or (not message.payload and is_newest(broker, message))
            ):
                continue
            message.first_at = message.first_at or at
            if is_before(message, since) and not message.retain:
                continue
            if session.may_read(broker.access, message.topic):
                retain = message.retain and subscription.retain_as_published
                found.append(Delivery(message, min(message.qos, subscription.qos), retain))
        yield found
