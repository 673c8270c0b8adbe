"""Eclipse Paho for Python as a peer: connected, with everything that arrived in `inbox`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.interop.conftest import Reach
from tests.paho_sockets import close_sockets
from tests.programs import wait_until

VERSIONS = {
    "3.1": MQTTProtocolVersion.MQTTv31,
    "3.1.1": MQTTProtocolVersion.MQTTv311,
    "5": MQTTProtocolVersion.MQTTv5,
}
PATIENCE_S = 20.0

Will = tuple[str, str, int, bool]  # topic, payload, QoS, retain


class Paho:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.session_present = False
        self.connect_properties: Any = None
        self.inbox: list[MQTTMessage] = []
        self._answers: dict[int, list[int]] = {}
        client.on_message = lambda client, userdata, message: self.inbox.append(message)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_subscribe

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self.connect_properties = properties

    def _on_subscribe(self, client: Any, userdata: Any, mid: int, reasons: Any, properties: Any) -> None:
        self._answers[mid] = [reason.value for reason in reasons]

    def subscribe(self, topic_filter: str, qos: int = 0, properties: Properties | None = None) -> list[int]:
        return self._answer(*self.client.subscribe(topic_filter, qos, properties=properties))

    def subscribe_with(
        self, topic_filter: str, options: SubscribeOptions, properties: Properties | None = None
    ) -> list[int]:
        answer = self.client.subscribe(topic_filter, options=options, properties=properties)
        return self._answer(*answer)

    def unsubscribe(self, topic_filter: str) -> None:
        self._answer(*self.client.unsubscribe(topic_filter))

    def _answer(self, error: int, mid: int | None) -> list[int]:
        assert error == 0
        assert mid is not None
        wait_until(lambda: mid in self._answers, "SUBACK or UNSUBACK", PATIENCE_S)
        return self._answers[mid]

    def publish(self, topic: str, payload: bytes | str, qos: int = 0, **options: Any) -> MQTTMessageInfo:
        return self.client.publish(topic, payload, qos, **options)

    def publish_and_wait(self, topic: str, payload: bytes | str, qos: int = 1, **options: Any) -> None:
        self.acknowledged([self.publish(topic, payload, qos, **options)])

    def acknowledged(self, published: Iterable[MQTTMessageInfo]) -> None:
        for info in published:
            info.wait_for_publish(PATIENCE_S)
            assert info.is_published()

    def expect(self, count: int) -> list[MQTTMessage]:
        """The first `count` messages, which must be all that arrived."""
        wait_until(lambda: len(self.inbox) >= count, f"{count} messages", PATIENCE_S)
        assert len(self.inbox) == count
        return self.inbox


@contextmanager
def paho(
    reach: Reach,
    version: str = "5",
    client_id: str = "",
    *,
    clean: bool = True,
    expiry_s: int = 0,
    in_flight: int = 20,
    will: Will | None = None,
    **connect_properties: Any,
) -> Iterator[Paho]:
    """A connected client; `connect_properties` by their names in Paho: `ReceiveMaximum=10`."""
    client = _client(reach, version, client_id, clean, will)
    client.max_inflight_messages_set(in_flight)
    peer = Paho(client)
    options: dict[str, Any] = {}
    if version == "5":
        wanted = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s, **connect_properties)
        options = {"clean_start": clean, "properties": wanted}
    client.connect("127.0.0.1", reach.port, **options)
    client.loop_start()
    try:
        wait_until(client.is_connected, "CONNACK", PATIENCE_S)
        yield peer
    finally:
        client.disconnect()
        client.loop_stop()
        close_sockets(client)


def connect_and_vanish(reach: Reach, version: str, client_id: str, will: Will) -> None:
    """Connect, and close the socket without DISCONNECT."""
    client = _client(reach, version, client_id, True, will)
    client.connect("127.0.0.1", reach.port)
    while not client.is_connected():
        assert client.loop(PATIENCE_S) == 0
    close_sockets(client)


def _client(reach: Reach, version: str, client_id: str, clean: bool, will: Will | None) -> Client:
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        clean if version != "5" else None,
        protocol=VERSIONS[version],
        transport="websockets" if reach.is_websocket else "tcp",
    )
    if reach.is_tls:
        client.tls_set(str(reach.authority))
    if will is not None:
        client.will_set(*will)
    return client


def properties(packet_type: int, **values: Any) -> Properties:
    """Properties of a packet, by their names in Paho: `properties(PUBLISH, ContentType="text")`."""
    made = Properties(packet_type)  # type: ignore[no-untyped-call]
    for key, value in values.items():
        setattr(made, key, value)
    return made
