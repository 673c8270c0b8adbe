"""One sensor packet: a header of 8 ASCII digits, and the payload to the end of the datagram.

    bytes 0–4   a port: a subscriber's own, or the broker's in what a publisher sends
    byte  5     the role of the sender: 0 subscriber, 1 publisher
    bytes 6–7   the topic's number

`parse` never raises: what is no packet is a `Malformed` that says why in words. docs/sensors.md has the
protocol whole.
"""

from __future__ import annotations

from typing import NamedTuple

HEADER_BYTES = 8
MAX_DATAGRAM_BYTES = 65_507  # what IPv4 leaves of 65,535 for the payload of a UDP datagram
MAX_PAYLOAD_BYTES = MAX_DATAGRAM_BYTES - HEADER_BYTES

SUBSCRIBER = 0
PUBLISHER = 1

DEFAULT_PORT = 12_345
DEFAULT_TOPICS = {1: "temperature", 2: "wind speed", 3: "humidity"}
MAX_TOPIC_NUMBER = 99
MAX_PORT = 65_535


class SensorPacket(NamedTuple):
    port: int
    role: int
    topic: int
    payload: bytes


class Malformed(NamedTuple):
    reason: str


def parse(data: bytes) -> SensorPacket | Malformed:
    if len(data) < HEADER_BYTES:
        return Malformed(f"{len(data)} bytes are shorter than the header of {HEADER_BYTES}")
    port, role, topic = data[:5], data[5:6], data[6:8]
    if not port.isdigit():
        return Malformed(f"port {_show(port)} is not five digits")
    if not 0 < int(port) <= MAX_PORT:
        return Malformed(f"port {port.decode()} is not from 00001 to {MAX_PORT}")
    if role not in (b"0", b"1"):
        return Malformed(f"role {_show(role)} is neither 0, a subscriber, nor 1, a publisher")
    if not topic.isdigit():
        return Malformed(f"topic {_show(topic)} is not two digits")
    return SensorPacket(int(port), int(role), int(topic), data[HEADER_BYTES:])


def build(port: int, role: int, topic: int, payload: bytes = b"") -> bytes:
    """The datagram. What does not fit the header is a mistake of the caller: ValueError."""
    if not 0 < port <= MAX_PORT:
        raise ValueError(f"port {port} is not from 1 to {MAX_PORT}")
    if role not in (SUBSCRIBER, PUBLISHER):
        raise ValueError(f"role {role} is neither 0 nor 1")
    if not 0 <= topic <= MAX_TOPIC_NUMBER:
        raise ValueError(f"topic {topic} is not from 0 to {MAX_TOPIC_NUMBER}")
    return b"%05d%d%02d%b" % (port, role, topic, payload)


def read_number(text: str) -> int | None:
    """The topic number that people write as 7 or 07; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 2 else None


def _show(raw: bytes) -> str:
    """Safe in a log line, whatever was sent."""
    return repr(raw)[1:]
