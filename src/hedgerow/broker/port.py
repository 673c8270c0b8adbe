"""A port: a part of this process that publishes and subscribes at the broker, with no connection or bytes.

`deliver` is called for each message that others publish to a topic that the port's filters match: at once,
inside the publication, once per message however many filters match, with its fabric-wide id, and with QoS
and RETAIN as published. A subscription first gets the retained messages that match, as a client's does,
whoever published them. A port is part of the node, so the ACL does not apply to it; the wildcard rules for
`$` topics do.

`deliver` may publish, subscribe and close, at this port or another. What two ports pass to each other goes
round until one of them stops it, by the message's id. Inside `deliver` the broker knows the time; who
publishes or subscribes from outside says `now`.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.events import PublicationRefused
from hedgerow.broker.ids import is_duplicate
from hedgerow.broker.publishing import find_full, publish_message
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher
from hedgerow.compiling import mypyc_attr
from hedgerow.errors import TopicError
from hedgerow.message import Message
from hedgerow.topics import split_shared, validate_filter, validate_name

NODE = "node"  # what the node itself publishes


@mypyc_attr(allow_interpreted_subclasses=True)  # the rooms' ports
class Port:
    """`name` is what the log calls it, `transport` what observers call the way of its publications."""

    gives_ids = False

    def __init__(
        self, broker: BrokerCore, name: str, deliver: Callable[[Message], None], transport: str = NODE
    ) -> None:
        self.name = name
        self.source: tuple[str, str | None] = (transport, None)
        # What others publish by way of the part.
        self.share = None if transport == NODE else f"part:{transport}"
        self.closed = False
        self.deliver = deliver
        self._broker = broker
        self._filters: set[str] = set()

    def subscribe(self, topic_filter: str, now: float | None = None) -> None:
        """Raises TopicError for a filter that breaks the rules, and for a shared one."""
        self.listen(topic_filter, now)
        broker = self._broker
        for message in broker.retained.match(topic_filter, broker.now):
            if self.closed:
                return
            broker.identify_late(message)
            self.deliver(message)

    def listen(self, topic_filter: str, now: float | None = None) -> None:
        """As `subscribe`, for one who does not want what is retained."""
        self._begin(now)
        if split_shared(topic_filter)[0] is not None:
            raise TopicError(f"a port has no shared subscriptions: {topic_filter!r}")
        validate_filter(topic_filter)
        self._filters.add(topic_filter)
        self._broker.subscriptions.add_port(self, topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        if topic_filter in self._filters:
            self._filters.remove(topic_filter)
            self._broker.subscriptions.remove_port(self, topic_filter)

    def publish(self, message: Message, now: float | None = None) -> bool:
        """Publish as a client would, under the message's own id if it has one.

        False when it was refused: there is no room for one more retained message. The broker sets `id` and
        `expires_at` where they are not set. Raises TopicError for a topic name that breaks the rules.
        """
        self._begin(now)
        broker = self._broker
        route = broker.subscriptions.known_route(message.topic)
        if route is None:
            route = broker.find_route(validate_name(message.topic))
        stats = broker.stats
        stats.publish_received += 1
        stats.publish_bytes_received += len(message.payload) + len(message.topic)
        if message.retain and not broker.retained.has_room_for(message, self.share):
            stats.publish_refused += 1
            reason = "no room for more retained messages"
            broker.events.append(PublicationRefused("this node", self.name, message.topic, reason))
            return False
        message.expire_from(broker.now)
        publish_message(broker, message, route, self)
        return True

    def has_room_for(self, message: Message) -> bool:
        """Will each observer take it at QoS 1 or 2? `publish` passes it on even where one would miss it."""
        route = self._broker.subscriptions.known_route(message.topic)
        if route is None:
            route = self._broker.find_route(validate_name(message.topic))
        return find_full(route, len(message.payload)) is None

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        """A publication for this port, for a subclass that asks where else it goes and who published it."""
        self.deliver(message)

    def is_duplicate(self, message: Message) -> bool:
        """Has the message been at this node before, by whatever way? From now on it has."""
        return message.id is not None and is_duplicate(self._broker, message.id)

    def close(self) -> None:
        """Nothing is delivered from now on, not even of a publication that is being passed on."""
        self.closed = True
        for topic_filter in list(self._filters):
            self.unsubscribe(topic_filter)

    def _begin(self, now: float | None) -> None:
        if self.closed:
            raise RuntimeError(f"port {self.name} is closed")
        if now is not None:
            self._broker.now = now
