"""The other end for tests of the client machine: a server's packets in, the client's packets out."""

from __future__ import annotations

from typing import Any

from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.client import Client
from hedgerow.mqtt.client.events import ConnectOptions, Event
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Packet
from tests.packets import read_packets

NOW = 1_700_000_000.0


class Peer:
    """A client machine, and the hand that plays its server."""

    def __init__(self, **options: Any) -> None:
        self.client = Client(ConnectOptions(**{"client_id": "c", **options}))
        self.now = NOW

    @property
    def version(self) -> int:
        return self.client.options.version

    def connect(self, session_present: bool = False, properties: Properties | None = None) -> list[Event]:
        """Connect with success; the CONNECT has been taken, what follows CONNACK has not."""
        self.client.connect(self.now)
        (connect,) = self.sent()
        assert isinstance(connect, Connect)
        return self.answer(Connack(session_present, 0, properties or {}))

    def answer(self, *packets: Packet) -> list[Event]:
        data = b"".join(codec.encode(packet, self.version) for packet in packets)
        return self.client.receive_data(data, self.now)

    def sent(self) -> list[Packet]:
        return read_packets(self.client.take_output(), self.version)

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **rest: Any) -> int:
        return self.client.publish(Message(topic, payload, qos, **rest), self.now)

    def lose(self) -> list[Event]:
        return self.client.lost(self.now)


def connected(properties: Properties | None = None, version: int = MQTT_5, **options: Any) -> Peer:
    peer = Peer(version=version, **options)
    peer.connect(properties=properties)
    return peer
