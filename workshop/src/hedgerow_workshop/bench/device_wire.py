"""What devices say: small JSON in packets that are built beforehand, over TCP, TLS or WebSocket.

Payloads have 60 to 300 bytes, another size for each device, and begin with a number (`MARKER`, then
`INDEX_DIGITS` digits), so that a paced run can tell how long each message took. WebSocket frames are masked
with zeros, which leaves the packet in them as it is.
"""

from __future__ import annotations

import base64
import datetime
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Connect, Publish, Subscribe, Subscription
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.wire import ANSWER_S, Dialect, Nats

MARKER = b'{"n":"'
INDEX_DIGITS = 8
SMALLEST, SIZES = 60, 241
"""Payloads have `SMALLEST` bytes, or up to `SIZES` - 1 more."""
_MEMBER = b"%0*d" % (INDEX_DIGITS, 0)
_BINARY, _MASKED = 0x82, 0x80


def payload(number: int) -> bytes:
    """Of device `number`."""
    begin = MARKER + _MEMBER + b'","value":21.5,"text":"'
    size = SMALLEST + number * 37 % SIZES
    return begin + b"x" * (size - len(begin) - 2) + b'"}'


class DevicePacket(NamedTuple):
    """A PUBLISH, where its number stands in it, and how many bytes a subscriber gets for it at QoS 0."""

    data: bytes
    index_at: int
    delivered_bytes: int


def publication(
    dialect: Dialect,
    topic: str,
    number: int,
    qos: int = 0,
    *,
    retain: bool = False,
    version: int = MQTT_3_1_1,
    frame: Callable[[bytes], bytes] = lambda packet: packet,
) -> DevicePacket:
    said = payload(number)
    if isinstance(dialect, Nats):
        subject = topic.replace("/", ".").encode()
        data = b"PUB %b %d\r\n%b\r\n" % (subject, len(said), said)
        delivered = len(b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(said), said))
        return DevicePacket(data, data.index(MARKER) + len(MARKER), delivered)
    packet = encode(Publish(topic, said, qos, retain, packet_id=1 if qos else 0), version)
    data = frame(packet)
    return DevicePacket(data, data.index(MARKER) + len(MARKER), len(packet))


def framed(packet: bytes) -> bytes:
    """In a WebSocket frame of a client (RFC 6455 §5.2)."""
    size = len(packet)
    head = (
        bytes((_BINARY, _MASKED | size))
        if size < 126
        else bytes((_BINARY, _MASKED | 126, size >> 8, size & 0xFF))
    )
    return head + bytes(4) + packet


def connect_packet(client_id: str, version: int = MQTT_3_1_1, clean_start: bool = True) -> bytes:
    packet = Connect(client_id=client_id, protocol_version=version, clean_start=clean_start)
    return encode(packet, version)


def subscribe_packet(filters: list[str], qos: int, version: int = MQTT_3_1_1) -> bytes:
    return encode(Subscribe(1, [Subscription(each, qos) for each in filters]), version)


def open_tcp(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), ANSWER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def open_tls(port: int) -> ssl.SSLSocket:
    return client_context().wrap_socket(open_tcp(port))


def open_websocket(port: int) -> socket.socket:
    connection = open_tcp(port)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        received = connection.recv(1)  # What follows is a frame.
        if not received:
            raise BenchError("closed the connection instead of opening a WebSocket")
        answer += received
    if not answer.startswith(b"HTTP/1.1 101 "):
        raise BenchError(f"refused a WebSocket: {answer[:80]!r}")
    return connection


def greet(connection: socket.socket, packet: bytes, expected: int, waiting_for: str) -> None:
    """Send one packet, and take the one answer, whose type is the first half of the byte `expected`."""
    connection.sendall(packet)
    try:
        answer = connection.recv(4_096)
    except TimeoutError:
        raise BenchError(f"no {waiting_for} within {ANSWER_S:g} s") from None
    if answer[:1] == bytes((_BINARY,)):
        answer = answer[2:]  # a short frame
    if answer[:1] != bytes((expected,)) or (expected == 0x20 and answer[3] != 0):
        raise BenchError(f"{answer[:20]!r} instead of {waiting_for}")


# TLS


def client_context() -> ssl.SSLContext:
    """Who the server is does not matter on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key: P-256, as devices have them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files
