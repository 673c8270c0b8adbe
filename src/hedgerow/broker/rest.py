"""A publication to very many is passed on in turns, so that the others are heard in between.

Behind it waits what is published to the same topic, by whomever: all who get a topic get it in one order.
Its publisher waits as well: it is not heard, and has no acknowledgement, before all have the message. Should
it go away meanwhile, they get it all the same. Parts of the node cannot wait; what they publish is dropped,
and counted, when more of it waits than may wait for a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.session import Channel, Pause, Publisher, Session, share_of
from hedgerow.message import Message


class Rest:
    """What is left of one publication: each of `steps` is a delivery."""

    __slots__ = ("_waiting", "publisher", "size", "steps")

    def __init__(self, steps: Iterator[None], publisher: Publisher | None, size: int) -> None:
        self.steps = steps
        self.publisher = publisher
        self.size = size  # for as long as it waits and its publisher does not
        self._waiting: list[tuple[Channel, Callable[[], None] | None]] = []

    def hold(self, broker: BrokerCore, connection: Channel, then: Callable[[], None] | None = None) -> None:
        """Nothing is read from this client until all have the message. That is when `then` is called."""
        self._waiting.append((connection, then))
        connection.pause(Pause.DELIVERING)
        broker.end_turn()

    def finish(self, broker: BrokerCore) -> None:
        for connection, then in self._waiting:
            if then is not None:
                then()
            connection.resume(Pause.DELIVERING)
            if connection.is_connected:
                broker.postpone(connection)


def deliver_in_turns(
    broker: BrokerCore, message: Message, steps: Iterator[None], publisher: Publisher | None
) -> None:
    """Take the steps now, as far as the turn lasts, and the rest later."""
    topic, size = message.topic, 0
    if not isinstance(publisher, Session):
        size = message.size
        if broker.undelivered_bytes + size > broker.limits.queue_bytes_in_memory:
            broker.stats.publish_dropped += 1
            return
    if topic not in broker.undelivered and broker.take_steps(steps):
        return
    broker.undelivered_bytes += size
    rest = Rest(steps, publisher, size)
    connection = _connection_of(publisher)
    if connection is not None:
        rest.hold(broker, connection)
    queue = broker.undelivered.get(topic)
    if queue is not None:
        queue.append(rest)
        return
    broker.undelivered[topic] = deque([rest])
    broker.end_later(partial(_go_on, broker, topic))


def when_delivered(broker: BrokerCore, topic: str, connection: Channel, then: Callable[[], None]) -> bool:
    """False: nothing of the topic waits. Else have this client wait, until `then` is called."""
    queue = broker.undelivered.get(topic)
    if queue is None:
        return False
    queue[-1].hold(broker, connection, then)
    return True


def _connection_of(publisher: Publisher | None) -> Channel | None:
    return publisher.connection if isinstance(publisher, Session) else None


def _go_on(broker: BrokerCore, topic: str) -> bool:
    """Is nothing of this topic left?"""
    queue = broker.undelivered[topic]
    while queue:
        rest = queue[0]
        try:
            broker.durability.publisher = share_of(rest.publisher)
            if not broker.take_steps(rest.steps):
                return False
        except Exception as error:
            _report(broker, rest.publisher, error)
        finally:
            broker.durability.publisher = ""
        queue.popleft()
        broker.undelivered_bytes -= rest.size
        if not queue:
            del broker.undelivered[topic]
        rest.finish(broker)
    return True


def _report(broker: BrokerCore, publisher: Publisher | None, error: Exception) -> None:
    connection = _connection_of(publisher)
    if connection is not None:
        connection.fail(error)
    else:
        name = (publisher.source[1] if publisher is not None else None) or ""
        broker.note_failure(name, error)
