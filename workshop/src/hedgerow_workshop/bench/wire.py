"""The bytes that the drivers send and expect, built before the clock starts.

A dialect is how a broker is spoken to: `Mqtt` (3.1.1, which every MQTT peer here speaks) or `Nats`
(its own text protocol). Both give blocking sockets that have finished their handshake, and packets
of one constant size, so that a driver can count messages by counting bytes. A refusal, or no answer
within `ANSWER_S`, is a `BenchError`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from hedgerow.mqtt.codec import decode, encode, read_header
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow_workshop.bench import BenchError

PAYLOAD = bytes(range(0x20, 0x60))
"""64 bytes, no two alike: it cannot overlap itself, so one search finds every delivery in a chunk."""
ANSWER_S = 10.0
_FILTERS_PER_SUBSCRIBE = 100
_RECEIVE_BYTES = 65_536


class Dialect(Protocol):
    stray: bytes
    """What the server may put between deliveries on its own account (b"": nothing)."""

    def connect(self, port: int, client_id: str = "", clean_start: bool = True) -> socket.socket:
        """A connection that the server has accepted."""

    def subscribe(self, connection: socket.socket, topic_filters: Sequence[str], qos: int = 0) -> None:
        """Subscriptions that the server has granted."""

    def publish(self, topic: str, qos: int = 0, packet_id: int = 0) -> bytes:
        """What a publisher sends for one message with `PAYLOAD`."""

    def delivery(self, topic: str, qos: int = 0) -> bytes:
        """What a subscriber receives for it; at QoS 1 and 2 the server's packet identifier differs."""


def _open(port: int, greet: Callable[[socket.socket], None]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), ANSWER_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, waiting_for: str) -> bytes:
    try:
        data = connection.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise BenchError(f"no {waiting_for} within {ANSWER_S:g} s") from None
    if not data:
        raise BenchError(f"closed the connection instead of sending {waiting_for}")
    return data


class Mqtt:
    stray = b""

    def connect(self, port: int, client_id: str = "", clean_start: bool = True) -> socket.socket:
        packet = Connect(client_id=client_id, protocol_version=MQTT_3_1_1, clean_start=clean_start)

        def greet(connection: socket.socket) -> None:
            connection.sendall(encode(packet, MQTT_3_1_1))
            answer = self._read(connection, "CONNACK")
            if not isinstance(answer, Connack) or answer.reason_code != 0:
                raise BenchError(f"refused the connection: {answer}")

        return _open(port, greet)

    def subscribe(self, connection: socket.socket, topic_filters: Sequence[str], qos: int = 0) -> None:
        for start in range(0, len(topic_filters), _FILTERS_PER_SUBSCRIBE):
            batch = topic_filters[start : start + _FILTERS_PER_SUBSCRIBE]
            packet = Subscribe(1, [Subscription(topic_filter, qos) for topic_filter in batch])
            connection.sendall(encode(packet, MQTT_3_1_1))
            answer = self._read(connection, "SUBACK")
            if not isinstance(answer, Suback) or set(answer.reason_codes) != {qos}:
                raise BenchError(f"refused subscriptions: {answer}")

    def publish(self, topic: str, qos: int = 0, packet_id: int = 0) -> bytes:
        return encode(Publish(topic, PAYLOAD, qos, packet_id=packet_id), MQTT_3_1_1)

    def delivery(self, topic: str, qos: int = 0) -> bytes:
        return self.publish(topic, qos, packet_id=1 if qos else 0)

    def _read(self, connection: socket.socket, waiting_for: str) -> Packet:
        """The next packet, which is all that the server sends at this point."""
        data = b""
        while (header := read_header(data, 0)) is None or header[1] > len(data):
            data += _receive(connection, waiting_for)
        return decode(data[0], data[header[0] : header[1]], MQTT_3_1_1)


class Nats:
    # nats-server measures the round trip two seconds after a client came, whatever its ping_interval.
    stray = b"PING\r\n"

    def connect(self, port: int, client_id: str = "", clean_start: bool = True) -> socket.socket:
        options = {"verbose": False, "pedantic": False, "name": client_id}

        def greet(connection: socket.socket) -> None:
            self._wait(connection, b"\r\n", "INFO")
            connection.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
            self._wait(connection, b"PONG\r\n", "PONG")

        return _open(port, greet)

    def subscribe(self, connection: socket.socket, topic_filters: Sequence[str], qos: int = 0) -> None:
        commands = (
            f"SUB {_subject(topic_filter)} {number}\r\n"
            for number, topic_filter in enumerate(topic_filters, 1)
        )
        connection.sendall("".join(commands).encode() + b"PING\r\n")
        self._wait(connection, b"PONG\r\n", "PONG")

    def publish(self, topic: str, qos: int = 0, packet_id: int = 0) -> bytes:
        return f"PUB {_subject(topic)} {len(PAYLOAD)}\r\n".encode() + PAYLOAD + b"\r\n"

    def delivery(self, topic: str, qos: int = 0) -> bytes:
        return f"MSG {_subject(topic)} 1 {len(PAYLOAD)}\r\n".encode() + PAYLOAD + b"\r\n"

    def _wait(self, connection: socket.socket, end: bytes, waiting_for: str) -> None:
        data = b""
        while not data.endswith(end):
            data += _receive(connection, waiting_for)
        if b"-ERR" in data:
            raise BenchError(f"refused: {data.decode(errors='replace').strip()}")


_SUBJECT = str.maketrans("/+#", ".*>")


def _subject(topic: str) -> str:
    """A topic name or filter in NATS's notation: the levels are the same, the signs differ."""
    return topic.translate(_SUBJECT)
