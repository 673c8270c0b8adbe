"""What must hold of an exchange whatever it receives; for hypothesis in the test run, and for `make fuzz`."""

from __future__ import annotations

from hedgerow.message import Message
from hedgerow.sensors.exchange import (
    MAX_HEADERS,
    MAX_LASTING_PER_ADDRESS,
    MAX_SUBSCRIPTIONS,
    MAX_SUBSCRIPTIONS_PER_ADDRESS,
    Exchange,
)
from hedgerow.sensors.packet import HEADER_BYTES, PUBLISHER, SUBSCRIBER, Malformed, build, parse

TOPICS = {1: "farm/temperature", 2: "farm/wind", 99: "farm/soil"}
OWN = ("192.0.2.100", 12345)
HOSTS = ("192.0.2.1", "192.0.2.2", "2001:db8::1", OWN[0])


class Strangers:
    """An exchange among strangers, and a plain model of who is subscribed to what."""

    def __init__(self, packets_per_s: float = 0.0, subscription_expiry_s: float = 600.0) -> None:
        self.exchange = Exchange(
            TOPICS,
            OWN[1],
            lambda host, port: (host, port) == OWN,
            packets_per_s=packets_per_s,
            subscription_expiry_s=subscription_expiry_s,
        )
        self.lasts = subscription_expiry_s == float("inf")
        self.now = 0.0
        self._addresses: set[str] = set()

    def receive(self, data: bytes, host: str) -> None:
        exchange = self.exchange
        self._addresses.add(host)
        before = exchange.stats.received
        exchange.receive_datagram(data, 0, (host, 40_000), self.now)
        assert exchange.stats.received == before + 1
        events, messages = exchange.take_events(), exchange.take_messages()
        packet = parse(data)
        if isinstance(packet, Malformed) or packet.topic not in TOPICS:
            assert not messages
            assert len(events) == 1
            assert events[0].reason.isprintable()
        elif packet.role == SUBSCRIBER:
            assert not messages
        elif not events:
            assert messages == [Message(TOPICS[packet.topic], packet.payload)]
        for sent, destinations in exchange.take_datagrams():
            # Only what a publisher sent leaves, to those alone who have sent something themselves.
            assert not isinstance(parse(sent), Malformed)
            assert sent == data or (len(destinations) == 1 and destinations[0][1][0] == host)
            for _, address in destinations:
                assert address[0] in self._addresses
                assert tuple(address) != OWN
        self._check_bounds()

    def send(self, topic: str, payload: bytes) -> None:
        self.exchange.send_message(Message(topic, payload), self.now)
        for sent, _ in self.exchange.take_datagrams():
            number = next(number for number, name in TOPICS.items() if name == topic)
            assert sent == build(OWN[1], PUBLISHER, number, payload)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.exchange.handle_timer(self.now)
        deadline = self.exchange.deadline
        assert deadline is None or deadline > self.now

    def _check_bounds(self) -> None:
        exchange = self.exchange
        assert exchange.subscription_count <= MAX_SUBSCRIPTIONS
        assert len(exchange.headers) <= MAX_HEADERS
        assert sum(map(len, exchange.per_site.values())) == exchange.subscription_count
        assert max(map(len, exchange.per_site.values()), default=0) <= (
            MAX_LASTING_PER_ADDRESS if self.lasts else MAX_SUBSCRIPTIONS_PER_ADDRESS
        )


def check_packet(data: bytes) -> None:
    """Any bytes are a packet that is written back alike, or a reason in words."""
    packet = parse(data)
    if isinstance(packet, Malformed):
        assert packet.reason.isprintable()
    else:
        assert build(*packet) == data
        assert len(packet.payload) == len(data) - HEADER_BYTES
