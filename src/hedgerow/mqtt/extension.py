"""The extension of MQTT for brokers that move: protocol version 0xFF, renewals, PUBCALLBACK.

A client asks for it with a CONNECT of protocol name `MQIsdp` and version 0xFF. A server that does not know
it answers CONNACK 1, "unacceptable protocol version", and the client connects again with a version that it
does. Otherwise the connection is one of MQTT 3.1.1, with two more packets, which are protocol errors on every
other connection. Lengths of strings are two bytes, the high one first, as in all of MQTT.

A session outlives a connection that was lost by up to five minutes, and ends with DISCONNECT; Clean Session
says no more than that an earlier one is not taken up.

CONNACK with a code from 6 to 8, as the answer to CONNECT or at any time after it, from the server:

    0x20, remaining length
    session present: 0 or 1 (0 but with code 6 as the answer to CONNECT)
    code
    string: HOST:PORT, an IPv6 address in brackets
    then, with code 7, to the end of the packet: one string for each topic filter

    6  Connection Renew: accepted. HOST:PORT is the broker that supports this one: not yet to go there.
    7  Connection Renew, Active Topics: go there; it has the session, and the filters that are listed are
       active there (none listed: all). HOST:PORT may be empty: the one that came last with code 6.
    8  Connection Renew, Renew Topics: go there and subscribe again; it knows nothing of this client.

After 7 and 8 the server serves the client until it has left.

PUBCALLBACK, from the server. It has number 16 in its document, which a packet type of four bits cannot say;
it is sent as type 0, 16 modulo 16, which no other packet has:

    0x00 | DUP << 3 | QoS << 1 | RETAIN, remaining length
    string: the callbacks, `{first"second"third}`; `{}`: for the client that receives it
    string: the fabric-wide id of the message, ORIGIN/EPOCH/SEQUENCE, or empty
    from here on the body of a PUBLISH with these flags:
    string: topic name
    with QoS 1 and 2: packet identifier, two bytes
    payload

It is acknowledged as a PUBLISH is. On these connections the server sends every message so: a client that is
handed from one server to another tells by the id what it has already.

Between brokers the connection is one of MQTT 5 instead: CONNECT has the protocol name `MQTT` and version
0xFF, and all else is as in MQTT 5, with PUBCALLBACK both ways. Its body then has the properties of a PUBLISH
in front of the payload. A broker that does not know it answers "unsupported protocol version", and is asked
again with version 5: there the callbacks travel in a user property (`mobility/delegation/codec.py`).
"""

from __future__ import annotations

import ipaddress
import re
from enum import IntEnum

from hedgerow.mqtt import properties
from hedgerow.mqtt.packets import (
    CONNACK,
    MQTT_5,
    MQTT_EXTENDED,
    PUBCALLBACK,
    PUBLISH,
    Pubcallback,
    Renew,
)
from hedgerow.mqtt.wire import Reader, encode_two_byte_integer, encode_utf8_string, malformed
from hedgerow.topics import validate_name

CLAUSE = "§extension"
MAX_CALLBACKS = 4_096  # Each is a delivery: one packet must not ask for tens of thousands.
MAX_ACTIVE_TOPICS = 10_000  # As many as a SUBSCRIBE may have.
SESSION_EXPIRY_S = 300.0
MAX_HOST = 253  # of a name in the DNS

_ADDRESS = re.compile(
    r"(\[(?P<literal>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})"
)


class Renewal(IntEnum):
    """The return codes of CONNACK that the extension adds."""

    CONNECTION = 6
    ACTIVE_TOPICS = 7
    RENEW_TOPICS = 8


RENEWALS = frozenset(Renewal)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises ValueError for all else: paths, schemes, users, spaces."""
    matched = _ADDRESS.fullmatch(text)
    if matched is None:
        raise ValueError(f"not HOST:PORT: {text[:80]!r}")
    host, port = matched["literal"] or matched["host"], int(matched["port"])
    if matched["literal"]:
        ipaddress.IPv6Address(host)
    if not 0 < port < 65_536 or len(host) > MAX_HOST:
        raise ValueError(f"not HOST:PORT: {text[:80]!r}")
    return host, port


def _check_renew(packet: Renew) -> None:
    """Raises ValueError for what a CONNACK of the extension does not say."""
    code = Renewal(packet.code)
    if packet.address or code != Renewal.ACTIVE_TOPICS:
        parse_address(packet.address)
    if packet.topics and code != Renewal.ACTIVE_TOPICS:
        raise ValueError(f"topics with code {packet.code}")
    if packet.session_present and code != Renewal.CONNECTION:
        raise ValueError(f"session present with code {packet.code}")
    if len(packet.topics) > MAX_ACTIVE_TOPICS or not all(packet.topics):
        raise ValueError(f"an empty topic filter, or over {MAX_ACTIVE_TOPICS}")


def encode_renew(packet: Renew, version: int) -> tuple[int, bytes]:
    if version != MQTT_EXTENDED:
        raise ValueError("only clients of the extension read a renewal")
    _check_renew(packet)
    strings = (packet.address, *packet.topics)
    return CONNACK << 4, bytes((packet.session_present, packet.code)) + b"".join(
        map(encode_utf8_string, strings)
    )


def read_renew(reader: Reader, code: int, session_present: int) -> Renew:
    address = reader.utf8_string()
    topics: list[str] = []
    while reader.remaining and len(topics) <= MAX_ACTIVE_TOPICS:
        topics.append(reader.utf8_string())
    packet = Renew(code, address, topics, bool(session_present))
    try:
        _check_renew(packet)
    except ValueError as error:
        raise malformed(str(error), CLAUSE) from None
    return packet


def join_callbacks(callbacks: tuple[str, ...]) -> str:
    inner = '"'.join(callbacks)
    if "{" in inner or "}" in inner or inner.count('"') >= max(1, len(callbacks)) or not all(callbacks):
        raise ValueError(f"what is no callback: {inner[:80]!r}")
    if len(callbacks) > MAX_CALLBACKS or len(set(callbacks)) < len(callbacks):
        raise ValueError(f"a callback twice, or over {MAX_CALLBACKS}")
    return "{" + inner + "}"


def read_callbacks(reader: Reader) -> tuple[tuple[str, ...], str]:
    """What a PUBCALLBACK has before the body of its PUBLISH: callbacks and the message's id."""
    text = reader.utf8_string()
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise malformed("callbacks are not in braces", CLAUSE)
    inner = text[1:-1]
    # Counted before they are made.
    if inner.count('"') >= MAX_CALLBACKS:
        raise malformed(f"over {MAX_CALLBACKS} callbacks", CLAUSE)
    callbacks = tuple(inner.split('"')) if inner else ()
    try:
        join_callbacks(callbacks)
    except ValueError as error:
        raise malformed(str(error), CLAUSE) from None
    return callbacks, reader.utf8_string()


def encode_pubcallback(packet: Pubcallback, version: int) -> tuple[int, bytes]:
    is_for_broker = version == MQTT_5 and bool(packet.properties)
    if version != MQTT_EXTENDED and not is_for_broker:
        raise ValueError("only who has asked for the extension reads a PUBCALLBACK")
    if not 0 <= packet.qos <= 2 or bool(packet.qos) != bool(packet.packet_id) or packet.dup > packet.qos:
        raise ValueError(f"QoS, DUP and packet identifier do not fit: {packet.qos}, {packet.packet_id}")
    return PUBCALLBACK << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain, b"".join(
        (
            encode_utf8_string(join_callbacks(packet.callbacks)),
            encode_utf8_string(packet.message_id),
            encode_utf8_string(validate_name(packet.topic)),
            encode_two_byte_integer(packet.packet_id) if packet.qos else b"",
            properties.encode(packet.properties, PUBLISH) if is_for_broker else b"",
            packet.payload,
        )
    )
