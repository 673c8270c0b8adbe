"""The exchange: what a broker does with the packets of UDP sensors and their subscribers.

A publisher's packet is forwarded, byte for byte, to every subscriber of its topic, and becomes a `Message`
under the MQTT topic that the table has for its number. A `Message` of such a topic becomes a packet to the
same subscribers.

The protocol knows no names and no answers, and the source address of a datagram may be forged. So
everything that a stranger can make grow is bounded and goes away by itself: a subscription ends when it is
not renewed, each address has only so many of them and may send only so many packets a second. Where
subscriptions are to last for ever an address has fewer, and a new one takes the place of the one of that
address that was renewed longest ago: whoever comes back from another port each time is not locked out.
Packets go to the address that a subscription came from and nowhere else; the header chooses the port there,
not the host. The broker's own socket is never a subscriber, because it would forward to itself for ever.

A subscription may be forged in the name of another broker, or of a service that sends back what it gets, and
then one reading would go to and fro for ever. So no port where brokers listen is a subscriber's, at whatever
host; and what comes from a subscriber's port, and is what subscribers were sent a moment ago, is dropped.
The port is what counts there, because a machine with several addresses may answer from another one, and the
header does not, because another broker may write its own port there.

Nothing here costs time in proportion to all subscriptions: a packet costs as much as its topic has
subscribers. `receive_datagram` never raises on what was received.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hedgerow.message import Message
from hedgerow.rates import RatePerAddress, site_of
from hedgerow.sensors.packet import (
    DEFAULT_PORT,
    HEADER_BYTES,
    MAX_DATAGRAM_BYTES,
    PUBLISHER,
    SUBSCRIBER,
    Malformed,
    build,
    parse,
)

MAX_SUBSCRIPTIONS = 4_096  # forged sources could make very many; those that are renewed are never pushed out
MAX_SUBSCRIPTIONS_PER_ADDRESS = 256  # what one forged packet to each of them could aim at one victim
MAX_LASTING_PER_ADDRESS = 32  # the same, of those that nothing ends: forged ones stay
# An 8-byte subscription with a forged source brings its victim this many bytes, once. Larger values are
# forwarded but not kept.
MAX_LAST_VALUE_BYTES = 1_472  # what one Ethernet frame takes
MAX_REMEMBERED = 16_384  # more readings than a socket's buffer holds cannot be on their way
REMEMBER_S = 1.0  # and up to twice that: longer than a packet takes to any machine and back
MAX_HEADERS = 1_024  # 65,535 ports make as many headers of one topic

INFINITE = float("inf")

BURST_S = 10  # what an address may use up at once, in seconds of its rate

SocketAddress = tuple[Any, ...]
"""As sockets have it: host, port, and for IPv6 flow and scope."""
Destination = tuple[int, SocketAddress]
"""Which of the node's sockets it is reached by, and where."""


@dataclass(slots=True)
class SensorStats:
    received: int = 0
    published: int = 0
    """Publishers' packets that were taken."""
    forwarded: int = 0
    """Packets to subscribers, whether they came from a sensor or from the broker."""
    malformed: int = 0
    unknown_topic: int = 0
    limited: int = 0
    """Packets beyond the rate of their address."""
    refused: int = 0
    """Subscriptions beyond a bound or at a broker's port, and what an access rule forbids."""
    looped: int = 0
    """Publishers' packets that had just been sent to subscribers, one of which is at their port."""
    expired: int = 0
    replaced: int = 0
    """Subscriptions without an end, by a newer one of the same address."""
    too_large: int = 0
    """Messages of the broker that fit no datagram."""
    unsent: int = 0
    """Packets that the system did not take: no room, no route."""


@dataclass(slots=True)
class SensorPacketDropped:
    level: ClassVar[int] = logging.WARNING
    lines_a_minute: ClassVar[int] = 3
    address: str
    reason: str

    def __str__(self) -> str:
        return f"sensor packet from {self.address} dropped: {self.reason}"


class _Topic:
    __slots__ = (
        "destinations",
        "last_packet",
        "name",
        "number",
        "ports",
        "readable",
        "subscribers",
        "writable",
    )

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.readable = True
        self.writable = True
        self.subscribers: dict[Destination, None] = {}
        self.destinations: tuple[Destination, ...] | None = ()  # None: to be made from `subscribers`
        self.ports: frozenset[int] = frozenset()  # with `destinations`
        self.last_packet: bytes | None = None


class _Sent:
    """Hashes of what subscribers were sent within the last `REMEMBER_S` to twice that."""

    __slots__ = ("_begins_at", "_earlier", "_latest")

    def __init__(self) -> None:
        self._latest: set[int] = set()
        self._earlier: set[int] = set()
        self._begins_at = 0.0

    def add(self, number: int, payload: bytes, now: float) -> None:
        self._forget(now)
        self._latest.add(hash((number, payload)))

    def has(self, number: int, payload: bytes, now: float) -> bool:
        self._forget(now)
        key = hash((number, payload))
        return key in self._latest or key in self._earlier

    def _forget(self, now: float) -> None:
        age = now - self._begins_at
        if age >= REMEMBER_S or len(self._latest) >= MAX_REMEMBERED:
            self._earlier = self._latest if age < 2 * REMEMBER_S else set()
            self._latest = set()
            self._begins_at = now


_Subscription = tuple[_Topic, Destination]


class Exchange:
    """`topics` is the table: number → MQTT topic. `port` is the broker's own, for the packets it makes.

    `is_own(host, port)` says whether a subscriber there would be this broker itself. With an infinite
    `subscription_expiry_s` subscriptions last for ever.
    """

    def __init__(
        self,
        topics: Mapping[int, str],
        port: int,
        is_own: Callable[[str, int], bool],
        *,
        subscription_expiry_s: float = 600.0,
        keeps_last_value: bool = True,
        packets_per_s: float = 0.0,
        spares_loopback: bool = False,
    ) -> None:
        self.stats = SensorStats()
        self.per_site: dict[str, dict[_Subscription, None]] = {}
        """Subscriptions, by the address that they are counted for, and in the order of their last renewal."""
        self.headers: dict[bytes, _Topic] = {}
        """Those of packets that passed: they are not looked at again."""
        self._topics = {number: _Topic(number, name) for number, name in topics.items()}
        self._by_name = {topic.name: topic for topic in self._topics.values()}
        self._port = port
        self._is_own = is_own
        self._expiry_s = subscription_expiry_s
        self._keeps_last_value = keeps_last_value
        self._packets_per_s = packets_per_s
        self._rate = RatePerAddress(packets_per_s, BURST_S * packets_per_s, spares_loopback)
        # In the order of their last renewal, which is that of their end.
        self._expires_at: dict[_Subscription, float] = {}
        self._datagrams: list[tuple[bytes, tuple[Destination, ...]]] = []
        self._messages: list[Message] = []
        self._sent = _Sent()
        self._events: list[SensorPacketDropped] = []

    @property
    def topic_names(self) -> Collection[str]:
        return self._by_name.keys()

    @property
    def subscription_count(self) -> int:
        return len(self._expires_at)

    @property
    def deadline(self) -> float | None:
        """When `handle_timer` has something to do."""
        return next(iter(self._expires_at.values()), None)

    def permit(self, may_read: Callable[[str], bool], may_write: Callable[[str], bool]) -> None:
        """Access rules, by MQTT topic: what subscribers get and publishers may send from now on."""
        self.headers.clear()
        for topic in self._topics.values():
            topic.readable, topic.writable = may_read(topic.name), may_write(topic.name)

    # In

    def receive_datagram(self, data: bytes, via: int, source: SocketAddress, now: float) -> None:
        """A packet that came to the socket numbered `via`."""
        self.stats.received += 1
        address = source[0]
        if not self._rate.allows(address, now):
            self.stats.limited += 1
            self._drop(address, f"more than {self._packets_per_s:g} packets a second")
            return
        topic = self.headers.get(data[:HEADER_BYTES])
        if topic is None:
            topic = self._receive_new(data, via, source, now)
            if topic is None:
                return
        payload = data[HEADER_BYTES:]
        destinations = self._destinations(topic)
        if source[1] in topic.ports and self._sent.has(topic.number, payload, now):
            self.stats.looped += 1
            self._drop(
                address, f"subscribers of {topic.name} were just sent it, at port {source[1]} too: a loop"
            )
            return
        self.stats.published += 1
        self._messages.append(Message(topic.name, payload))
        self._forward(topic, data, payload, destinations, now)

    def _receive_new(self, data: bytes, via: int, source: SocketAddress, now: float) -> _Topic | None:
        """A subscription, or a header seen for the first time: its topic, if a publisher may use it."""
        address = source[0]
        packet = parse(data)
        if isinstance(packet, Malformed):
            self.stats.malformed += 1
            self._drop(address, packet.reason)
            return None
        topic = self._topics.get(packet.topic)
        if topic is None:
            self.stats.unknown_topic += 1
            number = f"{packet.topic:02}"
            self._drop(address, f"topic {number} is not in the table; --sensor-topic {number}=TOPIC adds it")
        elif packet.role == SUBSCRIBER:
            self._subscribe(topic, packet.port, via, source, now)
        elif not topic.writable:
            self._refuse(address, f"an access rule forbids to publish on {topic.name}")
        else:
            if len(self.headers) >= MAX_HEADERS:
                self.headers.clear()
            self.headers[data[:HEADER_BYTES]] = topic
            return topic
        return None

    def send_message(self, message: Message, now: float) -> None:
        """A message of the broker: to the subscribers of its topic, if the table has it."""
        topic = self._by_name.get(message.topic)
        if topic is None:
            return
        packet = build(self._port, PUBLISHER, topic.number, message.payload)
        if len(packet) > MAX_DATAGRAM_BYTES:
            self.stats.too_large += 1
            return
        self._forward(topic, packet, message.payload, self._destinations(topic), now)
        if message.retain and not message.payload:
            topic.last_packet = None  # MQTT's way to say that there is no last value any more

    def handle_timer(self, now: float) -> None:
        expired = []
        for subscription, expires_at in self._expires_at.items():
            if expires_at > now:
                break
            expired.append(subscription)
        for subscription in expired:
            self._end(subscription)
        self.stats.expired += len(expired)

    # Out

    def take_datagrams(self) -> list[tuple[bytes, tuple[Destination, ...]]]:
        """What to send, and where to."""
        taken, self._datagrams = self._datagrams, []
        return taken

    def take_messages(self) -> list[Message]:
        """What sensors published, for the broker."""
        taken, self._messages = self._messages, []
        return taken

    def take_events(self) -> list[SensorPacketDropped]:
        taken, self._events = self._events, []
        return taken

    # Inside

    def _destinations(self, topic: _Topic) -> tuple[Destination, ...]:
        destinations = topic.destinations
        if destinations is None:
            destinations = topic.destinations = tuple(topic.subscribers)
            topic.ports = frozenset(address[1] for _, address in destinations)
        return destinations

    def _forward(
        self, topic: _Topic, packet: bytes, payload: bytes, destinations: tuple[Destination, ...], now: float
    ) -> None:
        if self._keeps_last_value:
            topic.last_packet = packet if len(packet) <= MAX_LAST_VALUE_BYTES else None
        if destinations and topic.readable:
            self._sent.add(topic.number, payload, now)
            self.stats.forwarded += len(destinations)
            self._datagrams.append((packet, destinations))

    def _subscribe(self, topic: _Topic, port: int, via: int, source: SocketAddress, now: float) -> None:
        address = source[0]
        destination = (via, (address, port, *source[2:]))
        subscription = (topic, destination)
        owned = self.per_site.setdefault(site_of(address), {})
        if subscription in owned:
            # No last value again: repeating a forged packet must not repeat the answer.
            self._renew(subscription, owned, now)
        elif (reason := self._why_not(topic, address, port, len(owned))) is not None:
            self._refuse(address, reason)
        else:
            if self._lasts and len(owned) >= MAX_LASTING_PER_ADDRESS:
                self._end(next(iter(owned)))
                self.stats.replaced += 1
            self._renew(subscription, owned, now)
            topic.subscribers[destination] = None
            topic.destinations = None
            if topic.last_packet is not None:
                self.stats.forwarded += 1
                self._sent.add(topic.number, topic.last_packet[HEADER_BYTES:], now)
                self._datagrams.append((topic.last_packet, (destination,)))
        if not owned:
            del self.per_site[site_of(address)]

    def _why_not(self, topic: _Topic, address: str, port: int, owned: int) -> str | None:
        """Why a new subscription is refused; None: there is room for it, or an older one gives way."""
        if not topic.readable:
            return f"an access rule forbids to subscribe to {topic.name}"
        if self._is_own(address, port):
            return f"port {port:05} is this broker's own"
        if port in (self._port, DEFAULT_PORT):
            return f"port {port:05} is where brokers listen: choose another for a subscriber"
        if self._lasts and owned >= MAX_LASTING_PER_ADDRESS:
            return None
        if owned >= MAX_SUBSCRIPTIONS_PER_ADDRESS:
            return f"it has {owned} subscriptions already"
        if len(self._expires_at) >= MAX_SUBSCRIPTIONS:
            return f"there are {MAX_SUBSCRIPTIONS} subscriptions already"
        return None

    @property
    def _lasts(self) -> bool:
        return self._expiry_s == INFINITE

    def _renew(self, subscription: _Subscription, owned: dict[_Subscription, None], now: float) -> None:
        """To the end of both orders."""
        self._expires_at.pop(subscription, None)
        self._expires_at[subscription] = now + self._expiry_s
        owned.pop(subscription, None)
        owned[subscription] = None

    def _end(self, subscription: _Subscription) -> None:
        topic, destination = subscription
        del self._expires_at[subscription]
        del topic.subscribers[destination]
        topic.destinations = None
        site = site_of(destination[1][0])
        del self.per_site[site][subscription]
        if not self.per_site[site]:
            del self.per_site[site]

    def _refuse(self, address: str, reason: str) -> None:
        self.stats.refused += 1
        self._drop(address, reason)

    def _drop(self, address: str, reason: str) -> None:
        self._events.append(SensorPacketDropped(address, reason))
