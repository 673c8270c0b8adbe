"""The session of a neighbour at this node's broker: what goes to the neighbour, and what waits for it.

The federator gives it filters and takes them back. A filter that is new brings along what the neighbour may
have missed: the retained values, with those that were deleted; at QoS 1 and 2 what has flowed in the last
seconds (`recent.py`) and what waits for neighbours that are away, since this may be the way that is left. Who
has a message already knows it by its id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.deliveries import enqueue, keep_age, pump
from hedgerow.broker.late import send_recent_step_by_step
from hedgerow.broker.ledger import Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.log_reading import newest_waiting, waiting
from hedgerow.broker.retaining import queue_retained
from hedgerow.broker.session import Session
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX, NeighbourRole
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import TopicTree

FILTERS_AT_ONCE = 500  # of those that came together: each message is looked at once for all of them
QOS = 2  # A message keeps the QoS that it was published with; ids alone make it come once.


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much waits for a neighbour that is away, and for how long."""

    seconds: float = 86_400.0
    queue_bytes: int | None = None

    @property
    def limits(self) -> QueueLimits:
        return QueueLimits(self.queue_bytes, self.seconds, drops_oldest=True)


def take_session(broker: Broker, node_id: str, keeping: Keeping) -> Session:
    """The one of an earlier link, if there is one."""
    client_id = NEIGHBOUR_PREFIX + node_id
    role = broker.roles[NeighbourRole.name]
    session = broker.sessions.get(client_id) or broker.create_session(client_id, None, role)
    session.far_origin = node_id
    session.ledger = session.ledger or Outbound(published=session.waiting_count)
    session.queue_limits = keeping.limits
    session.expiry_s = keeping.seconds
    session.durable = session.durable or broker.durability.enabled
    if session.subscriptions is None:
        session.subscriptions = {}
    broker.durability.store_session(session)
    return session


class Gifts:
    """What a neighbour gets of what was here before its filters.

    A neighbour may send thousands of filters while thousands of messages have just flowed, and more wait for
    nodes that are away. So its filters hold at once, and what there was for them is looked for in turns, for
    many filters together.
    """

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self._session = session
        self._new: deque[str] = deque()

    def give(self, topic_filter: str) -> None:
        """From now on; `deliver` does the rest."""
        broker, session, held = self._broker, self._session, self._session.subscriptions
        assert held is not None
        subscription = _subscription(topic_filter)
        if topic_filter not in held:
            record = held[topic_filter] = SubscriptionRecord(subscription)
            broker.owners.subscribed(session, topic_filter)
            broker.subscriptions.add(session, subscription, None)
            broker.durability.store_subscription(session, topic_filter, record)
            self._new.append(topic_filter)
        if session.connection is not None:
            queue_retained(broker, session.connection, subscription, None)

    def deliver(self) -> Iterator[None]:
        """Step by step, to the last filter."""
        broker, session = self._broker, self._session
        while self._new:
            some = [self._new.popleft() for _ in range(min(len(self._new), FILTERS_AT_ONCE))]
            broker.work += len(some)
            yield from self._deliver_some(_Filters(broker, some))
        if session.connection is not None:
            pump(broker, session.connection)

    def _deliver_some(self, filters: _Filters) -> Iterator[None]:
        broker, session = self._broker, self._session
        steps = (
            send_recent_step_by_step(broker, session, _subscription("#"), filters.match),
            _send_waiting(broker, session, filters),
        )
        for _ in chain(*steps):
            yield
            if broker.sessions.get(session.client_id) is not session:
                self._new.clear()
                return


class _Filters:
    """Several as one."""

    def __init__(self, broker: Broker, topic_filters: Iterable[str]) -> None:
        self._broker = broker
        self._tree: TopicTree[str, None] = TopicTree()
        for each in topic_filters:
            self._tree.set(each, each, None)

    def match(self, topic: str) -> bool:
        visited = self._tree.visited
        found = self._tree.match(topic)
        self._broker.work += self._tree.visited - visited
        return bool(found)


def _subscription(topic_filter: str) -> Subscription:
    return Subscription(topic_filter, QOS, no_local=True, retain_as_published=True)


def take_back(broker: Broker, session: Session, topic_filter: str) -> None:
    if session.subscriptions and session.subscriptions.pop(topic_filter, None) is not None:
        broker.owners.unsubscribed(session, topic_filter)
        broker.subscriptions.remove(session, topic_filter)
        broker.durability.store_subscription(session, topic_filter, None)


def _send_waiting(broker: Broker, session: Session, filters: _Filters) -> Iterator[None]:
    """What waits for others that are away."""
    known = {delivery.message.id for delivery in newest_waiting(broker, session)}
    for other in list(broker.links.values()):
        if other.role is not session.role or other is session or other.connection is not None:
            continue
        for delivery in waiting(broker, other):
            message = delivery.message
            broker.work += 1
            if filters.match(message.topic):
                message_id = broker.identify_late(message)
                is_known = message_id in known or delivery.position in (session.stored or ())
                if not is_known and message_id.origin != session.far_origin:
                    known.add(message_id)
                    broker.durability.store_separately()
                    keep_age(delivery)
                    enqueue(broker, session, Delivery(message, delivery.qos, delivery.retain))
            yield
