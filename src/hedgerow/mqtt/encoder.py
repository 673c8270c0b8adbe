"""Packets to the bytes that a peer of each version reads.

A table leads from the packet's class to the function that writes it. What a version has no words for
(properties and reason codes in 3.1 and 3.1.1) is left out, so that one packet answers every peer;
what no peer could read is a mistake of our own code and raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hedgerow.message import Message, Properties
from hedgerow.mqtt import extension, properties
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_5,
    MQTT_EXTENDED,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import CONNACK_RETURN_CODES, CONNACK_SERVER_UNAVAILABLE, REASON_CODES, Reason
from hedgerow.mqtt.wire import (
    BRIDGE_BIT,
    PROTOCOL_NAMES,
    RENEWALS_BYTE,
    RETAIN_HANDLING_SHIFT,
    WILL_QOS_SHIFT,
    ConnectFlag,
    SubscriptionOption,
    encode_binary_data,
    encode_two_byte_integer,
    encode_utf8_string,
    encode_variable_byte_integer,
)
from hedgerow.topics import validate_name


def encode(packet: Packet, version: int) -> bytes:
    """The whole packet, fixed header included. A Connect brings its own version."""
    if isinstance(packet, Connect):
        version = packet.protocol_version
    if version not in PROTOCOL_NAMES:
        raise ValueError(f"{version} is not a protocol version")
    first_byte, body = _ENCODERS[type(packet)](packet, version)
    if len(body) < 0x80:
        return bytes((first_byte, len(body))) + body
    return bytes((first_byte,)) + encode_variable_byte_integer(len(body)) + body


# What several packets share.


def _write_properties(found: Properties, packet_type: int, version: int) -> bytes:
    return properties.encode(found, packet_type) if version == MQTT_5 else b""


def _write_packet_id(packet_id: int) -> bytes:
    if packet_id == 0:
        raise ValueError("packet identifier is 0 [MQTT-2.2.1-3]")
    return encode_two_byte_integer(packet_id)


def _write_reason_code(reason_code: int, packet_type: int) -> bytes:
    allowed, clause = REASON_CODES[packet_type]
    if reason_code not in allowed:
        raise ValueError(f"reason code 0x{reason_code:02x} in packet type {packet_type} [{clause}]")
    return bytes((reason_code,))


def _write_reason_codes(reason_codes: list[int], packet_type: int) -> bytes:
    if not reason_codes:
        raise ValueError(f"packet type {packet_type} without a reason code")
    allowed, _ = REASON_CODES[packet_type]
    for code in reason_codes:
        if code not in allowed:
            _write_reason_code(code, packet_type)
    return bytes(reason_codes)


def _write_reason_and_properties(
    reason_code: int, found: Properties, packet_type: int, version: int
) -> bytes:
    if version < MQTT_5:
        return b""
    encoded_reason = _write_reason_code(reason_code, packet_type)
    if found:
        return encoded_reason + properties.encode(found, packet_type)
    return encoded_reason if reason_code else b""


# CONNECT and CONNACK.


def _encode_connect(packet: Connect, version: int) -> tuple[int, bytes]:
    flags = ConnectFlag.CLEAN_START if packet.clean_start else 0
    will = packet.will
    payload = [encode_utf8_string(packet.client_id)]
    if will is not None:
        if not 0 <= will.qos <= 2:
            raise ValueError(f"will QoS is {will.qos}")
        flags |= ConnectFlag.WILL | will.qos << WILL_QOS_SHIFT
        flags |= ConnectFlag.WILL_RETAIN if will.retain else 0
        payload.append(_write_properties(will.properties, properties.WILL, version))
        payload += encode_utf8_string(validate_name(will.topic)), encode_binary_data(will.payload)
    if packet.username is not None:
        flags |= ConnectFlag.USER_NAME
        payload.append(encode_utf8_string(packet.username))
    if packet.password is not None:
        flags |= ConnectFlag.PASSWORD
        payload.append(encode_binary_data(packet.password))
    if version < MQTT_5 and packet.password is not None and packet.username is None:
        raise ValueError("password without a user name [MQTT-3.1.2-22]")
    if packet.is_bridge and version in (MQTT_5, MQTT_EXTENDED):
        raise ValueError("neither MQTT 5 nor the extension has a mark of a bridge")
    if packet.is_extended and version != MQTT_5:
        raise ValueError("a broker of the extension speaks MQTT 5")
    bridge_bit = BRIDGE_BIT if packet.is_bridge else 0
    return CONNECT << 4, b"".join(
        (
            encode_utf8_string(PROTOCOL_NAMES[version]),
            bytes((RENEWALS_BYTE if packet.is_extended else version & 0xFF | bridge_bit, flags)),
            encode_two_byte_integer(packet.keep_alive),
            _write_properties(packet.properties, CONNECT, version),
            *payload,
        )
    )


def _encode_connack(packet: Connack, version: int) -> tuple[int, bytes]:
    if not packet.reason_code and version < MQTT_5:
        return CONNACK << 4, b"\1\0" if packet.session_present and version != MQTT_3_1 else b"\0\0"
    if packet.session_present and packet.reason_code:
        raise ValueError("session present in a CONNACK that refuses [MQTT-3.2.2-6]")
    session_present = bytes((packet.session_present and version != MQTT_3_1,))
    reason_code = _write_reason_code(packet.reason_code, CONNACK)
    if version == MQTT_5:
        return CONNACK << 4, session_present + reason_code + properties.encode(packet.properties, CONNACK)
    return_code = CONNACK_RETURN_CODES.get(packet.reason_code, CONNACK_SERVER_UNAVAILABLE)
    return CONNACK << 4, session_present + bytes((return_code,))


# PUBLISH and its acknowledgements.


def _encode_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    if not 0 <= packet.qos <= 2:
        raise ValueError(f"QoS is {packet.qos} [MQTT-3.3.1-4]")
    if packet.qos == 0 and (packet.dup or packet.packet_id):
        raise ValueError("QoS 0 has neither DUP nor a packet identifier [MQTT-3.3.1-2, MQTT-2.2.1-2]")
    if packet.topic or version < MQTT_5 or "topic_alias" not in packet.properties:
        validate_name(packet.topic)
    first_byte = PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain
    return first_byte, b"".join(
        (
            encode_utf8_string(packet.topic),
            _write_packet_id(packet.packet_id) if packet.qos else b"",
            _write_properties(packet.properties, PUBLISH, version),
            packet.payload,
        )
    )


def _encode_acknowledgement(
    packet_type: int, flags: int = 0
) -> Callable[[Puback | Pubrec | Pubrel | Pubcomp, int], tuple[int, bytes]]:
    def write(packet: Puback | Pubrec | Pubrel | Pubcomp, version: int) -> tuple[int, bytes]:
        end = _write_reason_and_properties(packet.reason_code, packet.properties, packet_type, version)
        return packet_type << 4 | flags, _write_packet_id(packet.packet_id) + end

    return write


# SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.


def _encode_subscribe(packet: Subscribe, version: int) -> tuple[int, bytes]:
    if not packet.subscriptions:
        raise ValueError("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    pieces = [_write_packet_id(packet.packet_id), _write_properties(packet.properties, SUBSCRIBE, version)]
    for subscription in packet.subscriptions:
        if not (0 <= subscription.qos <= 2 and 0 <= subscription.retain_handling <= 2):
            raise ValueError(f"QoS and retain handling are at most 2: {subscription}")
        options = subscription.qos
        if version == MQTT_5:
            options |= SubscriptionOption.NO_LOCAL if subscription.no_local else 0
            options |= SubscriptionOption.RETAIN_AS_PUBLISHED if subscription.retain_as_published else 0
            options |= subscription.retain_handling << RETAIN_HANDLING_SHIFT
        pieces += encode_utf8_string(subscription.topic_filter), bytes((options,))
    return SUBSCRIBE << 4 | 2, b"".join(pieces)


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> tuple[int, bytes]:
    if not packet.topic_filters:
        raise ValueError("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    pieces = [_write_packet_id(packet.packet_id), _write_properties(packet.properties, UNSUBSCRIBE, version)]
    pieces += map(encode_utf8_string, packet.topic_filters)
    return UNSUBSCRIBE << 4 | 2, b"".join(pieces)


def _encode_suback(packet: Suback, version: int) -> tuple[int, bytes]:
    reason_codes = _write_reason_codes(packet.reason_codes, SUBACK)
    if version < MQTT_5 and max(reason_codes) > Reason.UNSPECIFIED_ERROR:
        # MQTT-3.9.3-2: it is the only failure that these versions know.
        reason_codes = bytes(min(code, Reason.UNSPECIFIED_ERROR) for code in reason_codes)
    return SUBACK << 4, b"".join(
        (
            _write_packet_id(packet.packet_id),
            _write_properties(packet.properties, SUBACK, version),
            reason_codes,
        )
    )


def _encode_unsuback(packet: Unsuback, version: int) -> tuple[int, bytes]:
    body = _write_packet_id(packet.packet_id)
    if version == MQTT_5:
        body += properties.encode(packet.properties, UNSUBACK)
        body += _write_reason_codes(packet.reason_codes, UNSUBACK)
    return UNSUBACK << 4, body


# PINGREQ, PINGRESP, DISCONNECT and AUTH.


def _encode_disconnect(packet: Disconnect, version: int) -> tuple[int, bytes]:
    return DISCONNECT << 4, _write_reason_and_properties(
        packet.reason_code, packet.properties, DISCONNECT, version
    )


def _encode_auth(packet: Auth, version: int) -> tuple[int, bytes]:
    if version < MQTT_5:
        raise ValueError("AUTH is a packet of MQTT 5")
    if (packet.reason_code or packet.properties) and "authentication_method" not in packet.properties:
        raise ValueError("AUTH without authentication_method [§3.15.2.2.2]")
    return AUTH << 4, _write_reason_and_properties(packet.reason_code, packet.properties, AUTH, version)


_ENCODERS: dict[type, Callable[[Any, int], tuple[int, bytes]]] = {
    Connect: _encode_connect,
    Connack: _encode_connack,
    Publish: _encode_publish,
    Puback: _encode_acknowledgement(PUBACK),
    Pubrec: _encode_acknowledgement(PUBREC),
    Pubrel: _encode_acknowledgement(PUBREL, flags=2),
    Pubcomp: _encode_acknowledgement(PUBCOMP),
    Subscribe: _encode_subscribe,
    Suback: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    Unsuback: _encode_unsuback,
    Pingreq: lambda packet, version: (PINGREQ << 4, b""),
    Pingresp: lambda packet, version: (PINGRESP << 4, b""),
    Disconnect: _encode_disconnect,
    Auth: _encode_auth,
    Renew: extension.encode_renew,
    Pubcallback: extension.encode_pubcallback,
}


def encode_plain_publish(
    message: Message,
    qos: int,
    retain: bool,
    packet_id: int,
    dup: bool,
    properties: bytes,
    topic_name: str | None = None,
) -> bytes:
    """A PUBLISH whose properties are encoded already: b"" before MQTT 5, b"\\0" for none in it.

    `topic_name` stands in for the message's own, which an alias makes empty.
    """
    topic = (message.topic if topic_name is None else topic_name).encode()
    payload = message.payload
    first = 0x30 | dup << 3 | qos << 1 | retain
    if qos:
        properties = packet_id.to_bytes(2, "big") + properties
    length = 2 + len(topic) + len(properties) + len(payload)
    if length < 0x80:
        return b"%c%c%c%c%b%b%b" % (
            first, length, len(topic) >> 8, len(topic) & 0xFF, topic, properties, payload
        )  # fmt: skip
    if length < 0x4000:
        return b"%c%c%c%c%c%b%b%b" % (
            first, length & 0x7F | 0x80, length >> 7, len(topic) >> 8, len(topic) & 0xFF, topic, properties,
            payload,
        )  # fmt: skip
    head = first.to_bytes(1, "big") + encode_variable_byte_integer(length) + len(topic).to_bytes(2, "big")
    return b"".join((head, topic, properties, payload))


def encode_publish_run(
    topic: bytes,
    qos: int,
    packet_ids: Iterable[bytes],
    properties: Iterable[bytes],
    messages: Iterable[Message],
) -> bytes:
    """PUBLISH packets for messages of one topic, with packet identifiers and properties encoded."""
    first = b"\x32" if qos == 1 else b"\x34"
    name = len(topic).to_bytes(2, "big") + topic
    heads: dict[int, bytes] = {}  # by size of what follows
    pieces: list[bytes] = []
    for packet_id, block, message in zip(packet_ids, properties, messages, strict=False):
        payload = message.payload
        size = len(block) + len(payload)
        head = heads.get(size)
        if head is None:
            head = heads[size] = first + encode_variable_byte_integer(len(name) + 2 + size) + name
        pieces += (head, packet_id, block, payload)
    return b"".join(pieces)
