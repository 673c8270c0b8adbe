"""A client as the specification wants it, for tests that lose connections and brokers at any moment.

It keeps its session for ever: what it published and saw no acknowledgement for is sent again, in
order, on the next connection, and a QoS 2 identifier that it received is remembered until its PUBREL.
What the broker sent waits in the network until `process` takes it, and is gone when the connection is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow.message import Properties
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
    Unsuback,
    Unsubscribe,
)
from tests.broker.harness import KEPT, Client, World

IDENTIFIERS = range(1, 3)  # few, so that each is soon used again
SUBSCRIBE_ID = 100
UNSUBSCRIBE_ID = 200


@dataclass
class Outgoing:
    publish: Publish
    released: bool = False  # PUBREC came: PUBREL is what is sent again


@dataclass
class ModelClient:
    world: World
    client_id: str
    version: int = MQTT_5
    receive_maximum: int = 65_535
    connection: Client | None = None
    connected: bool = False
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    wanted: dict[str, int] = field(default_factory=dict)  # topic filter → QoS that it wants
    granted: set[str] = field(default_factory=set)  # those that a SUBACK answered
    unwanted: list[str] = field(default_factory=list)  # UNSUBSCRIBE sent, or to be sent again
    renewing: bool = False  # a clean start was not accepted yet
    had_session: bool = False  # it has seen an acknowledgement that speaks of its session
    acknowledged: list[bytes] = field(default_factory=list)  # payloads that the broker took
    unsubscribed: list[str] = field(default_factory=list)  # filters, as UNSUBACK answered them
    delivered: list[Publish] = field(default_factory=list)  # what the application saw
    unfinished: set[int] = field(default_factory=set)  # QoS 2 identifiers that came on this connection
    asked: list[list[str]] = field(default_factory=list)  # SUBSCRIBEs of this connection, unanswered

    def connect(self) -> None:
        properties: Properties = {}
        if self.version == MQTT_5:
            properties = {"session_expiry_interval": KEPT, "receive_maximum": self.receive_maximum}
        self.lose()
        self.connection = self.open()
        self.connection.send(Connect(self.client_id, self.version, self.renewing, properties=properties))

    def open(self) -> Client:
        return self.world.open()

    def renew(self) -> None:
        """Forget the session, and connect with a clean start until one is accepted."""
        for each in self.outgoing, self.received, self.wanted, self.granted, self.unwanted:
            each.clear()
        self.had_session = False
        self.renewing = True
        self.connect()

    def lose(self) -> None:
        if self.connection is not None and not self.connection.closed:
            self.connection.lose()
        self.forget_connection()

    def forget_connection(self) -> None:
        self.connection = None
        self.connected = False
        self.unfinished.clear()
        self.asked.clear()

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> bool:
        """False when no packet identifier is free, or there is no connection."""
        free = [number for number in IDENTIFIERS if number not in self.outgoing]
        if not free or not self.connected:
            return False
        packet = Publish(topic, payload, qos, retain, packet_id=free[0])
        self.outgoing[free[0]] = Outgoing(packet)
        self._send(packet)
        return True

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.wanted[topic_filter] = qos
        if self.connected:
            self._send_subscribe()

    def unsubscribe(self, topic_filter: str) -> None:
        if topic_filter in self.granted and self.connected:
            self.wanted.pop(topic_filter)
            self.granted.discard(topic_filter)
            self.unwanted.append(topic_filter)
            self._send(Unsubscribe(UNSUBSCRIBE_ID, [topic_filter]))

    def process(self, count: int | None = None) -> bool:
        """Take packets from the network and answer them; False when there were none."""
        taken = 0
        while self.connection is not None and self.connection.has_bytes and taken != count:
            self._handle(self.connection.take_packet())
            taken += 1
        return taken > 0

    def _send(self, *packets: Packet) -> None:
        assert self.connection is not None
        self.connection.send(*packets)

    def _send_subscribe(self) -> None:
        missing = [Subscription(f, qos) for f, qos in self.wanted.items() if f not in self.granted]
        if missing:
            self.asked.append([subscription.topic_filter for subscription in missing])
            self._send(Subscribe(SUBSCRIBE_ID, missing))

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Connack():
                self._resume(packet)
            case Publish():
                self._receive(packet)
            case Puback(packet_id):
                self.acknowledged.append(self.outgoing.pop(packet_id).publish.payload)
            case Pubrec(packet_id):
                self.had_session = True
                outgoing = self.outgoing.pop(packet_id)
                if not outgoing.released:
                    self.acknowledged.append(outgoing.publish.payload)
                # To the end: PUBRELs are sent in the order of the PUBRECs.
                self.outgoing[packet_id] = Outgoing(outgoing.publish, released=True)
                self._send(Pubrel(packet_id))
            case Pubcomp(packet_id):
                del self.outgoing[packet_id]
            case Pubrel(packet_id):
                self.unfinished.discard(packet_id)
                self.received.discard(packet_id)
                self._send(Pubcomp(packet_id))
            case Suback():
                self.had_session = True
                self.granted |= self.wanted.keys() & self.asked.pop(0)
            case Unsuback():
                self.had_session = True
                self.unsubscribed.append(self.unwanted.pop(0))
            case _:
                raise AssertionError(packet)

    def _resume(self, connack: Connack) -> None:
        assert connack.reason_code == 0
        assert connack.session_present or not self.had_session, "a session that was acknowledged is gone"
        assert not (connack.session_present and self.renewing), "a clean start resumed a session"
        self.renewing = False
        self.connected = True
        if not connack.session_present:
            self.received.clear()
            self.granted.clear()
        for packet_id, outgoing in list(self.outgoing.items()):
            if outgoing.released:
                self._send(Pubrel(packet_id))
            else:
                outgoing.publish.dup = True
                self._send(outgoing.publish)
        for topic_filter in self.unwanted:
            self._send(Unsubscribe(UNSUBSCRIBE_ID, [topic_filter]))
        self._send_subscribe()

    def _receive(self, packet: Publish) -> None:
        if packet.qos == 0:
            self.delivered.append(packet)
            return
        if packet.qos == 1:
            self.delivered.append(packet)
            self._send(Puback(packet.packet_id))
            return
        self.unfinished.add(packet.packet_id)
        assert len(self.unfinished) <= self.receive_maximum, "more in flight than the Receive Maximum"
        if packet.packet_id in self.received:
            assert packet.dup, "an identifier that is in use came without DUP"
        else:
            self.received.add(packet.packet_id)
            self.delivered.append(packet)
        self._send(Pubrec(packet.packet_id))
