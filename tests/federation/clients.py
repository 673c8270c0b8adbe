"""Clients of the brokers of a fabric: one that gets messages, and one that publishes them."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.broker.harness import KEPT
from tests.packets import PacketReader

if TYPE_CHECKING:
    from tests.federation.fabric_of_nodes import Fabric
    from tests.federation.hosts import Host


class Inbox:
    """A client that acknowledges all that it gets, and keeps it."""

    def __init__(
        self,
        host: Host,
        client_id: str,
        *,
        kept: bool = False,
        properties: Any = None,
        username: str | None = None,
        address: str = "192.0.2.9:1",
    ) -> None:
        self.host = host
        self.messages: list[Publish] = []
        self.answers: list[Packet] = []
        self.at: dict[bytes, float] = {}  # by payload: when it came first
        self._reader = PacketReader()
        self._packet_ids = count(1)
        self._unreleased: set[int] = set()
        self.connection = host.broker.open(host.now, address, True, username)
        self.connection.link = self
        properties = {"session_expiry_interval": KEPT if kept else 0} | (properties or {})
        self.send(Connect(client_id, MQTT_5, not kept, properties=properties))

    def silent_s(self) -> float:
        return float("inf")

    @property
    def connack(self) -> Connack:
        assert isinstance(self.answers[0], Connack), self.answers
        return self.answers[0]

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    @property
    def tally(self) -> Counter[bytes]:
        return Counter(self.payloads)

    def send(self, *packets: Packet) -> None:
        self.connection.receive_data(
            b"".join(codec.encode(packet, MQTT_5) for packet in packets), self.host.now
        )
        self.host.settle()

    def subscribe(self, topic_filter: str, qos: int = 1, **options: Any) -> None:
        self.send(Subscribe(next(self._packet_ids), [Subscription(topic_filter, qos, **options)]))
        assert isinstance(self.answers[-1], Suback), self.answers
        assert self.answers[-1].reason_codes == [qos], self.answers

    def unsubscribe(self, topic_filter: str) -> None:
        self.send(Unsubscribe(next(self._packet_ids), [topic_filter]))

    def publish(self, topic: str, payload: bytes, qos: int = 1, **fields: Any) -> None:
        packet_id = next(self._packet_ids) % 60_000 + 1 if qos else 0
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **fields))

    def leave(self) -> None:
        self.connection.link = None
        self.connection.lost(self.host.now)
        self.host.settle()

    def transmit(self) -> None:
        self._reader.feed(self.connection.take_output())
        replies: list[Packet] = []
        while (packet := self._reader.take(MQTT_5)) is not None:
            replies += self._answer(packet)
        if self.connection.closing:
            self.connection.link = None
            self.connection.lost(self.host.now)
        elif replies:
            data = b"".join(codec.encode(each, MQTT_5) for each in replies)
            self.connection.receive_data(data, self.host.now)

    def _answer(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish):
            if packet.qos == 2:
                if packet.packet_id in self._unreleased:
                    return [Pubrec(packet.packet_id)]
                self._unreleased.add(packet.packet_id)
            self.messages.append(packet)
            self.at.setdefault(packet.payload, self.host.now)
            kinds: dict[int, list[Packet]] = {
                0: [],
                1: [Puback(packet.packet_id)],
                2: [Pubrec(packet.packet_id)],
            }
            return kinds[packet.qos]
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            return [Pubcomp(packet.packet_id)]
        if isinstance(packet, Pubrec):
            return [Pubrel(packet.packet_id)]
        self.answers.append(packet)
        return []


class Load:
    """A client that publishes at QoS 1, one message every so often."""

    def __init__(self, fabric: Fabric, at: str, topic: str = "t/load", every_s: float = 0.1) -> None:
        self.fabric = fabric
        self.at = at
        self.sent: dict[bytes, float] = {}
        self.is_on = True
        self._topic = topic
        self._every_s = every_s
        self._publish()

    def _publish(self) -> None:
        if self.is_on:
            payload = f"{self.at}-{len(self.sent)}".encode()
            self.sent[payload] = self.fabric.now
            self.fabric[self.at].publish(self._topic, payload)
            self.fabric.later(self._every_s, self._publish)

    def stop(self) -> None:
        self.is_on = False

    def check(self, *inboxes: Inbox) -> None:
        """Each message came once."""
        for inbox in inboxes:
            came = {payload: n for payload, n in inbox.tally.items() if payload in self.sent}
            lost = [payload for payload in self.sent if payload not in came]
            assert not lost, f"{len(lost)} lost: {lost[:5]}"
            doubled = [payload for payload, times in came.items() if times > 1]
            assert not doubled, f"{len(doubled)} doubled: {doubled[:5]}"

    def longest_wait_s(self, inbox: Inbox, since: float) -> float:
        return max(inbox.at[payload] - at for payload, at in self.sent.items() if at >= since)
