"""The connection of a bridge that follows: subscriptions at the far broker that come and go.

To a foreign broker that has subscription identifiers each filter goes in a SUBSCRIBE of its own, since an
identifier is that of a packet; to others many go in one. A bounded number of packets is unanswered at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.bridges.far_connection import OWN_FILTERS, FarConnection
from hedgerow.bridges.far_filters import Deliver, FarFilter
from hedgerow.bridges.short_paths import FOREIGN_SHORT_PATH, publish_born_row, publish_born_run
from hedgerow.bridges.stamps import is_control
from hedgerow.broker.dialled import MAX_CACHED_NAMES
from hedgerow.broker.short_path import PUBLISH_AT_LEAST_ONCE
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Publish, Subscription
from hedgerow.mqtt.properties import encode_body

if TYPE_CHECKING:
    from hedgerow.bridges.following import FollowingBridge

MAX_UNANSWERED = 500  # packets: PINGREQ and messages wait behind them at the far broker
MAX_BATCH = 100  # filters in one packet
MAX_BATCH_BYTES = 16_384


class Way(NamedTuple):
    """Where PUBLISH packets of a topic go, without RETAIN, by the identifier that they have: at QoS 0, and at
    QoS 1 where one filter matches."""

    topic: str
    is_watched: bool
    copies: dict[bytes, Deliver | None]
    """By the properties of the packet: to whom; None: that copy does not count."""


def _publish_here(topic: str, payload: bytes, retain: bool) -> None:
    """In the place of who watches: it becomes a publication."""


class FollowingConnection(FarConnection):
    __slots__ = ("_unsubscribing", "_waiting", "_ways", "has_begun")

    bridge: FollowingBridge

    def __init__(self, bridge: FollowingBridge, now: float, address: str) -> None:
        self.has_begun = False  # to subscribe to the bridge's filters
        self._waiting: deque[tuple[FarFilter, bool]] = deque()  # to SUBSCRIBE, or to UNSUBSCRIBE
        self._unsubscribing: dict[int, list[str]] = {}
        self._ways: dict[bytes, Way] = {}
        super().__init__(bridge, now, address)

    # Subscriptions

    def subscribe(self) -> None:
        self.bridge.on_connected(self.is_first)
        super().subscribe()
        if self.has_identifiers:
            self.short_path = FOLLOWING_SHORT_PATH
        self.has_begun = True
        wanted, unwanted = self.bridge.far_filters.begin(self.is_first, self.broker.now)
        self._claim()
        self._waiting.extend((each, False) for each in unwanted)
        self._waiting.extend((each, True) for each in wanted)
        self._send_waiting()

    def subscribe_to(self, each: FarFilter) -> None:
        self._claim()
        self._waiting.append((each, True))
        self._send_waiting()

    def unsubscribe_from(self, each: FarFilter) -> None:
        self._waiting.append((each, False))
        self._send_waiting()
        self._claim()

    def unsubscribe(self, kept: Collection[str] = ()) -> None:
        if not self.is_connected or kept:
            return
        self._waiting.clear()
        filters = self.bridge.far_filters
        self._waiting.extend((each, False) for each in filters.standing())
        self._send_waiting()

    def filters_changed(self) -> None:
        """Another topic may be wanted, or one by another filter."""
        self._ways.clear()
        if self.topics:
            self.topics.clear()

    def _claim(self) -> None:
        if self.foreign is not None:
            self.foreign.claim(self.bridge.far_filters.claimed(), self.broker.now)

    def _send_waiting(self) -> None:
        while self._waiting and len(self._subscribing) + len(self._unsubscribing) < MAX_UNANSWERED:
            wants = self._waiting[0][1]
            batch: list[FarFilter] = []
            size = 0
            most = 1 if wants and self.has_identifiers else MAX_BATCH
            while self._waiting and self._waiting[0][1] is wants and len(batch) < most:
                size += len(self._waiting[0][0].topic_filter)
                if batch and size > MAX_BATCH_BYTES:
                    break
                batch.append(self._waiting.popleft()[0])
            if wants:
                self._send_subscribe(batch)
            else:
                filters = [each.topic_filter for each in batch]
                self._unsubscribing[self.unsubscribe_there(filters)] = filters

    def _send_subscribe(self, batch: list[FarFilter]) -> None:
        now = self.broker.now
        if self.foreign is not None and any(each.is_new for each in batch):
            self.foreign.stamps.subscribing(now)
        for each in batch:
            self.bridge.far_filters.subscribing(each, now)
        identifier = batch[0].identifier if self.has_identifiers else 0
        self.subscribe_there([self._subscription_of(each) for each in batch], identifier)

    def _subscription_of(self, each: FarFilter) -> Subscription:
        if each.deliver is None or self.protocol_version < MQTT_5:
            return self._subscription(each.topic_filter, each.qos)
        no_local = each.topic_filter not in self.bridge.heard_with_own
        return Subscription(each.topic_filter, each.qos, no_local=no_local)

    @property
    def is_hurried(self) -> bool:
        return self.foreign is not None or super().is_hurried

    @property
    def is_subscribed(self) -> bool:
        return super().is_subscribed and not self._waiting

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        filters = self.bridge.far_filters
        for each, code in zip(answered, codes, strict=False):
            if each.topic_filter not in OWN_FILTERS:
                if filters.answered(each.topic_filter, code):
                    self.filters_changed()
                self.bridge.on_subscribed(each.topic_filter, code)
        self._send_waiting()
        super().handle_subscribed(answered, codes)

    def handle_unsubscribed(self, packet_id: int) -> None:
        for topic_filter in self._unsubscribing.pop(packet_id, ()):
            again = self.bridge.far_filters.left(topic_filter, self.broker.now)
            if again is not None:
                self._claim()
                self._waiting.append((again, True))
        self.filters_changed()
        self._send_waiting()

    # Messages

    def handle_control(self, packet: Publish) -> bool:
        if super().handle_control(packet):
            return True
        filters, topic, now = self.bridge.far_filters, packet.topic, self.broker.now
        identifiers = packet.properties.get("subscription_identifier", ())
        watching = filters.watching(topic)
        for each in watching:
            if not identifiers or each.identifier in identifiers:
                assert each.deliver is not None
                each.deliver(topic, packet.payload, packet.retain)
        if watching:
            return True
        if not filters.counts(topic, packet.payload, identifiers, now, packet.retain):
            assert self.inbound is not None
            self.inbound.published += 1
            self.inbound.duplicates += 1
            return True
        self.may_be_told = filters.may_be_told(identifiers, now)
        return False

    def find_way(self, topic_bytes: bytes) -> Way | None:
        """None: each packet has to be looked at."""
        way = self._ways.get(topic_bytes)
        if way is None:
            way = self._make_way(topic_bytes)
            if len(self._ways) >= MAX_CACHED_NAMES:
                self._ways.clear()
            if way is not None:
                self._ways[topic_bytes] = way
        return way

    def _make_way(self, topic_bytes: bytes) -> Way | None:
        try:
            topic = topic_bytes.decode()
        except UnicodeDecodeError:
            return None
        found = self.bridge.far_filters.settled(topic, self.broker.now)
        if not found or is_control(topic):
            return None
        is_watched = any(each.deliver is not None for each in found)
        copies = {_properties_of(each): each.deliver for each in found}
        if not is_watched:
            copies[_properties_of(found[0])] = _publish_here
        return Way(topic, is_watched, copies)


def _properties_of(each: FarFilter) -> bytes:
    return encode_body({"subscription_identifier": (each.identifier,)}, PUBLISH)


def publish_followed(
    connection: FollowingConnection, data: bytes, position: int, body: int, stop: int
) -> int:
    """PUBLISH at QoS 0, without RETAIN, whose only property is the identifier of a filter that matches.

    Such copies come in order with the answers to our packets, so that nothing has to be remembered of them.
    """
    if stop - body < 3:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end >= stop or data[topic_end] >= 0x80:
        return 0
    payload_at = topic_end + 1 + data[topic_end]
    topic_bytes = data[body + 2 : topic_end]
    way = connection.find_way(topic_bytes)
    properties = data[topic_end + 1 : payload_at]
    if way is None or payload_at > stop or properties not in way.copies:
        return 0
    deliver = way.copies[properties]
    if deliver is _publish_here:
        return publish_born_row(connection, data, position, body, stop, topic_end, payload_at)
    stats, inbound = connection.broker.stats, connection.inbound
    stats.packets_received += 1
    stats.publish_bytes_received += stop - position
    if deliver is not None:
        deliver(way.topic, data[payload_at:stop], False)
    elif not way.is_watched and inbound is not None:
        inbound.published += 1
        inbound.duplicates += 1
    return stop


def publish_followed_at_least_once(
    connection: FollowingConnection, data: bytes, position: int, body: int, stop: int
) -> int:
    """PUBLISH at QoS 1, without DUP and RETAIN, and all that follow, by the only filter which matches.

    Where several match, the copies of one message may come far from each other.
    """
    if stop - body < 5:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    block = topic_end + 2
    if block >= stop or data[block] >= 0x80:
        return 0
    payload_at = block + 1 + data[block]
    way = connection.find_way(data[body + 2 : topic_end])
    if way is None or len(way.copies) != 1 or payload_at > stop:
        return 0
    if way.copies.get(data[block + 1 : payload_at]) is not _publish_here:
        return 0
    return publish_born_run(connection, data, position, body, stop, topic_end, data[block:payload_at])


FOLLOWING_SHORT_PATH = FOREIGN_SHORT_PATH | {
    0x30: publish_followed,
    PUBLISH_AT_LEAST_ONCE: publish_followed_at_least_once,
}
