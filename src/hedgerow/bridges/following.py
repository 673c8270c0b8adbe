"""A bridge whose filters change while it runs: a node's own link to a broker that others use.

Other parts of the node say what goes out (`listen`), what comes in (`ask_for`), and what they want to hear
themselves (`watch`), at any time and before there is a connection. Topics have the same name on both sides.
What brokers and bridges tell each other (`RESERVED`) neither leaves nor enters. What is watched does not
enter either, by whichever filter it comes.

What is listened to are the subscriptions of the bridge's session, which the store keeps: `listened` has them
after a restart. What was asked for is not kept. The far broker's session may be, with messages that wait in
it, so ask again before the first connection: what comes by a filter that nobody asked for is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hedgerow.bridges.admission import Admission
from hedgerow.bridges.bridge import Bridge
from hedgerow.bridges.bridge_session import add_subscription, unsubscribe
from hedgerow.bridges.fabric_key import FabricKey
from hedgerow.bridges.far_connection import FarConnection
from hedgerow.bridges.far_filters import MAX_FAR_FILTERS, Deliver, FarFilters, is_reserved
from hedgerow.bridges.following_connection import FollowingConnection
from hedgerow.bridges.section import FarAddress, Section
from hedgerow.broker.broker import Broker
from hedgerow.broker.deliveries import pump
from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.broker.late import send_recent
from hedgerow.broker.retaining import queue_retained
from hedgerow.broker.role import Role
from hedgerow.message import Message
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Publish, Subscription
from hedgerow.topics import TopicTree, validate_filter

MAX_SHOWN = 20  # filters, in the bridge's state


class FollowingBridge(Bridge):
    """`on_connected(is_first)`: before it subscribes; is it unknown to the far broker? `on_subscribed(filter,
    reason code)`: what the far broker answers to each filter, each time. `on_disconnected()`.
    `on_refused_by_node(node id)`: it is a node of ours that takes no such bridge. It is dialled no more."""

    def __init__(
        self,
        broker: Broker,
        section: Section,
        role: Role,
        now: float,
        random: Callable[[], float],
        token: Callable[[], int],
        admission: Admission,
        key: FabricKey,
    ) -> None:
        self.far_filters = FarFilters()
        self.on_subscribed: Callable[[str, int], None] = lambda topic_filter, reason_code: None
        self.on_connected: Callable[[bool], None] = lambda is_first: None
        self.on_disconnected: Callable[[], None] = lambda: None
        self.on_refused_by_node: Callable[[str], None] = lambda node_id: None
        self._listening: TopicTree[str, int] = TopicTree()  # → QoS
        self.heard_with_own: set[str] = set()  # of what is watched
        self._new_here: dict[str, Subscription] = {}  # whose retained values the far broker has not got
        super().__init__(broker, section, role, now, random, token, admission, key)

    def _subscribe_here(self) -> tuple[set[str], list[Delivery]]:
        for topic_filter, record in (self.session.subscriptions or {}).items():
            self._listening.set(topic_filter, topic_filter, record.subscription.qos)
        return set(self.session.subscriptions or ()), []

    def take_over(self, other: FollowingBridge) -> None:
        """Another of the same name was here, with filters that are still wanted."""
        self.far_filters, self.on_subscribed = other.far_filters, other.on_subscribed
        self.on_connected, self.on_disconnected = other.on_connected, other.on_disconnected
        self.on_refused_by_node = other.on_refused_by_node
        self.heard_with_own = other.heard_with_own
        self._new_here.update(other._new_here)

    # Out

    @property
    def listened(self) -> Sequence[str]:
        return list(self.session.subscriptions or ())

    def listen(self, topic_filter: str, qos: int = 2, since: float = ALWAYS) -> bool:
        """What is published here to this filter goes to the far broker, but for what comes late and is from
        before `since`. False: there is no room, or it is nothing that leaves."""
        held = self.session.subscriptions or {}
        known = held.get(validate_filter(topic_filter))
        if known is not None and known.subscription.qos == qos:
            return True
        if is_reserved(topic_filter) or (known is None and len(held) >= MAX_FAR_FILTERS):
            return False
        broker, connection = self.broker, self.connection
        subscription = Subscription(topic_filter, qos, True, self.section.bridge_outgoing_retain)
        # What a wider one listens to the far broker has got, or will: its clients would hear it twice.
        is_new = known is None and not any(wide != topic_filter for wide in self._wider(topic_filter, qos))
        if is_new:
            was_admitted = self.admission.was_admitted
            # Its values are told below; an old one would replace what the far broker's own clients have set.
            send_recent(broker, self.session, subscription, was_admitted, with_past_values=False, since=since)
        add_subscription(broker, self.session, subscription, since)
        self._listening.set(topic_filter, topic_filter, qos)
        if known is None and not self.is_up:
            self._new_here[topic_filter] = subscription
        elif is_new and connection is not None:
            queue_retained(broker, connection, subscription, None)
            pump(broker, connection)
        return True

    def _wider(self, topic_filter: str, qos: int) -> list[str]:
        """What is listened to at that QoS and covers the filter, itself included."""
        return [wide for wide, wide_qos in self._listening.match_wider(topic_filter) if wide_qos >= qos]

    def stop_listening_to(self, topic_filter: str) -> None:
        """What waits for the far broker still goes there."""
        held = self.session.subscriptions
        if held is not None and held.pop(topic_filter, None) is not None:
            unsubscribe(self.broker, self.session, topic_filter)
            self._listening.remove(topic_filter, topic_filter)
            self._new_here.pop(topic_filter, None)
            self.listened_before.discard(topic_filter)

    def _untold(self, connection: FarConnection) -> list[Subscription]:
        new = list(self._new_here.values())
        self._new_here.clear()
        untold = super()._untold(connection) or new
        told = {each.topic_filter for each in untold}
        return [
            each
            for each in untold
            if told.isdisjoint(set(self._wider(each.topic_filter, each.qos)) - {each.topic_filter})
        ]

    def name_there(self, topic: str) -> str | None:
        return None if is_reserved(topic) else topic

    def carries(self, topic: str) -> bool:
        return not is_reserved(topic) and bool(self._listening.match(topic))

    def listens(self, topic: str) -> bool:
        return any(qos for _, qos in self._listening.match(topic))

    def publish_there(self, message: Message) -> bool:
        """A message of the node's own, at QoS 0. False: the bridge is not up, or too much waits there."""
        connection = self.connection
        if connection is None or not self.is_up:
            return False
        packet = Publish(message.topic, message.payload, 0, message.retain)
        data = encode(packet, connection.protocol_version)
        return connection.has_room_for(data) and connection.send_at_most_once(data, 1)

    # In

    def ask_for(self, topic_filter: str, qos: int = 2) -> bool:
        """What is published at the far broker to this filter comes here. False: there is no room, or it is
        nothing that enters."""
        validate_filter(topic_filter)
        if is_reserved(topic_filter):
            return False
        self._ask(topic_filter, qos, None)
        return self.far_filters.find(topic_filter) is not None

    def no_longer_ask_for(self, topic_filter: str) -> None:
        filters, connection = self.far_filters, self._following_connection
        dropped = filters.drop(topic_filter)
        if connection is not None:
            if dropped is not None:
                connection.unsubscribe_from(dropped)
            connection.filters_changed()

    def watch(self, topic_filter: str, deliver: Deliver, qos: int = 1, *, with_own: bool = False) -> bool:
        """What is published at the far broker to this filter goes to `deliver(topic, payload, retain)`, and
        not here. RETAIN is as published, and set for last values, which are told with each connection.
        `with_own`: what `publish_there` sends there too.
        """
        if with_own:
            self.heard_with_own.add(topic_filter)
        self._ask(topic_filter, qos, deliver)
        return self.far_filters.find(topic_filter) is not None

    def _ask(self, topic_filter: str, qos: int, deliver: Deliver | None) -> None:
        asked, connection = self.far_filters.ask(topic_filter, qos, deliver), self._following_connection
        if connection is not None:
            connection.filters_changed()
            if asked is not None:
                connection.subscribe_to(asked)

    @property
    def _following_connection(self) -> FollowingConnection | None:
        """If it has subscribed already."""
        connection = self.connection
        return connection if isinstance(connection, FollowingConnection) and connection.has_begun else None

    def name_here(self, topic: str) -> str | None:
        return topic if not is_reserved(topic) and self.far_filters.is_wanted(topic) else None

    def filters_there(self) -> Sequence[str]:
        return self.far_filters.claimed()

    # The connection, and what people see

    def _connect(self, address: FarAddress, now: float) -> FarConnection:
        return FollowingConnection(self, now, str(address))

    def handle_refused(self, connection: FarConnection, reason_code: int, reason: str) -> None:
        node_id = connection.far_node
        if node_id is None:
            super().handle_refused(connection, reason_code, reason)
        else:
            self._stop(connection, f"the far broker is the node {node_id}, which refuses: {reason}")
            self.on_refused_by_node(node_id)

    def handle_end(self, connection: FarConnection, reason: str) -> None:
        was_connected = connection is self._following_connection
        super().handle_end(connection, reason)
        if was_connected:
            self.on_disconnected()

    def _notify_here(self, payload: bytes) -> None:
        """Nobody here needs to be told of a part of the node."""

    def handle_timer(self, now: float) -> None:
        super().handle_timer(now)
        self.far_filters.expire(now)

    def topics(self) -> list[str]:
        """As topic lines, or how many there are."""
        listened, asked = self.session.subscriptions or {}, list(self.far_filters.asked)
        if len(listened) + len(asked) > MAX_SHOWN:
            return [f"{len(listened)} filters out, {len(asked)} in"]
        lines = [f"{each} out {record.subscription.qos}" for each, record in listened.items()]
        found = [self.far_filters.find(each) for each in asked]
        return lines + [f"{each.topic_filter} in {each.qos}" for each in found if each is not None]
