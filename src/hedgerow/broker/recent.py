"""What has just flowed between brokers at QoS 1 and 2, for a peer that comes a moment too late.

When links are rearranged a message may reach a new hub before another broker has subscribed there, while the
old way is gone already: nobody would send it again. So a broker keeps for a few seconds what came from a peer
or went to one, and a subscription that is new gets what matches. Who has it already knows it by its id.

Whether a way was lost, or somebody has just subscribed behind that peer, this broker cannot know. So what it
sends once more says its age (`ids.py`), and whichever broker has clients for it gives it to those alone who
were subscribed when it was published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.broker.deliveries import enqueue
from hedgerow.broker.ids import is_before, is_newest
from hedgerow.broker.routes import ALWAYS
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import matches

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.session import Session

KEEP_S = 10.0  # An agent that finds a broker gone has given its last command long before.
MAX_MESSAGES = 10_000
MAX_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 300  # What one takes beside its bytes.


class Recent:
    def __init__(self) -> None:
        self._runs: deque[tuple[float, list[Message], int]] = deque()  # when, what, and its bytes
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: Message, now: float) -> None:
        self.add_run([message], message.size, now)

    def add_run(self, messages: list[Message], size: int, now: float) -> None:
        """Messages of one topic, that take so many bytes together."""
        runs = self._runs
        size += MESSAGE_BYTES * len(messages)
        runs.append((now, messages, size))
        self._count += len(messages)
        self._bytes += size
        while runs and (runs[0][0] + KEEP_S <= now or self._count > MAX_MESSAGES or self._bytes > MAX_BYTES):
            _, oldest, oldest_size = runs.popleft()
            self._count -= len(oldest)
            self._bytes -= oldest_size

    def matching(self, topic_filter: str, now: float) -> list[tuple[float, Message]]:
        """Each with the time at which it was here."""
        return [
            (at, message)
            for at, messages, _ in self._runs
            if at + KEEP_S > now and matches(topic_filter, messages[0].topic)
            for message in messages
        ]


def send_recent(
    broker: Broker,
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
    if not subscription.qos:
        return
    known = {each.message.id for each in session.waiting()}
    broker.work += len(broker.recent)  # A SUBSCRIBE of thousands of filters is not one turn.
    for at, message in broker.recent.matching(subscription.topic_filter, broker.now):
        assert message.id is not None
        if message.id in known or message.id.origin == session.far_origin or has_it(message.id):
            continue
        if message.retain and not (with_past_values or (not message.payload and is_newest(broker, message))):
            continue
        message.first_at = message.first_at or at
        if is_before(message, since) and not message.retain:
            continue
        if session.may_read(broker.access, message.topic):
            broker.durability.store_separately()
            retain = message.retain and subscription.retain_as_published
            enqueue(broker, session, Delivery(message, min(message.qos, subscription.qos), retain))
