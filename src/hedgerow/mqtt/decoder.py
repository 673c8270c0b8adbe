"""Bytes from a peer to packets: the side that trusts nothing.

`read_header` finds where a packet ends; `decode` reads its body by a table from packet type to the
function that reads it and the flags that its header must have. A rule that can be seen broken in
the packet alone is a `ProtocolError` with the reason code and the clause; what needs the state of a
connection (topic aliases, identifiers in use, who may send what) is for the machines. Functions cite
MQTT 5, and `_CLAUSES_3_1_1` gives a rule's older number to older connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt import extension, properties
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCALLBACK,
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
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import CONNACK_REASONS, REASON_CODES, Reason
from hedgerow.mqtt.wire import (
    BRIDGE_BIT,
    PROTOCOL_NAMES,
    RENEWALS_BYTE,
    RETAIN_HANDLING_SHIFT,
    WILL_QOS_SHIFT,
    ConnectFlag,
    Reader,
    SubscriptionOption,
    malformed,
)
from hedgerow.topics import is_wildcard

# A packet of the largest size could hold two million filters, and reading them would keep every other
# client waiting for seconds.
MAX_TOPIC_FILTERS = 10_000

# What is wrong with a message in the words of DISCONNECT. Mosquitto (2.0.11) answers one that is larger than
# its message_size_limit with a PUBACK of the third; whoever closed on it would send the message for ever.
_OF_MESSAGES = {
    Reason.MALFORMED_PACKET,
    Reason.PROTOCOL_ERROR,
    Reason.PACKET_TOO_LARGE,
    Reason.RETAIN_NOT_SUPPORTED,
    Reason.QOS_NOT_SUPPORTED,
}

_CLAUSES_3_1_1 = {
    "§2.1.2": "§2.2.1",
    "§2.1.4": "§2.2.3",
    "§1.5.5": "§2.2.3",
    "§3.8.3.1": "MQTT-3-8.3-4",
    "MQTT-1.5.4-1": "MQTT-1.5.3-1",
    "MQTT-1.5.4-2": "MQTT-1.5.3-2",
    "MQTT-2.1.3-1": "MQTT-2.2.2-2",
    "MQTT-2.2.1-3": "MQTT-2.3.1-1",
    "MQTT-2.2.1-5": "MQTT-2.3.1-6",
    "MQTT-2.2.1-6": "MQTT-2.3.1-7",
    "MQTT-3.1.2-11": "MQTT-3.1.2-13",
    "MQTT-3.1.2-12": "MQTT-3.1.2-14",
    "MQTT-3.1.2-13": "MQTT-3.1.2-15",
    "MQTT-3.2.2-1": "§3.2.2.1",
    "MQTT-3.2.2-6": "MQTT-3.2.2-4",
    "MQTT-3.2.2-8": "§3.2.2.3",
    "MQTT-3.8.3-2": "MQTT-3.8.3-3",
    "MQTT-3.8.3-5": "MQTT-3-8.3-4",
}


def _broken(reason: str, clause: str) -> ProtocolError:
    return ProtocolError(Reason.PROTOCOL_ERROR, reason, clause)


def read_header(data: bytes, position: int) -> tuple[int, int] | None:
    """Where the body of the packet at `position` begins and ends; None until its length has come.

    The end may lie beyond `data`: the length is known before the body is there, so that a packet
    that is too large can be refused without waiting for it.
    """
    size = 0
    for index, byte in enumerate(data[position + 1 : position + 5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            # 3.1 and 3.1.1 do not forbid it, but nobody writes it, and the short path takes lengths as
            # they are: what one version refuses must not reach it through another.
            if byte == 0 and index > 0:
                raise malformed("remaining length is longer than needed", "MQTT-1.5.5-1")
            start = position + 2 + index
            return start, start + size
    if len(data) >= position + 5:
        raise malformed("remaining length is longer than 4 bytes", "§1.5.5")
    return None


def peek_version(body: bytes) -> int:
    """The protocol version that a CONNECT claims, 0 when it is too short to say.

    A server needs it to refuse a CONNECT that it cannot decode in words that the client knows.
    """
    if body.startswith(_USUAL_BEGINNINGS):
        return body[6]
    at = 2 + (body[0] << 8 | body[1]) if len(body) > 2 else 2
    if at >= len(body):
        return 0
    version = _split_version(body[at])[0]
    return MQTT_5 if version == MQTT_EXTENDED and body[2:at] == _BROKERS_NAME else version


# Protocol name and version of nearly every CONNECT.
_USUAL_BEGINNINGS = (b"\0\4MQTT\4", b"\0\4MQTT\5")
# With 0xFF behind it: MQTT 5, and the extension between brokers.
_BROKERS_NAME = PROTOCOL_NAMES[MQTT_5].encode()


def _split_version(byte: int) -> tuple[int, bool]:
    """The protocol version, and whether a bridge says so; whatever we do not know stays as it is."""
    if byte == RENEWALS_BYTE:
        return MQTT_EXTENDED, False
    is_bridge = byte in (BRIDGE_BIT | MQTT_3_1, BRIDGE_BIT | MQTT_3_1_1)
    return byte & ~BRIDGE_BIT if is_bridge else byte, is_bridge


def decode(first_byte: int, body: bytes, version: int, is_extended: bool = False) -> Packet:
    """The packet with this first byte and body. A CONNECT brings its own version. `is_extended`: of a broker
    that speaks MQTT 5 and the extension."""
    packet_type = first_byte >> 4
    flags = first_byte & 0x0F
    if packet_type == CONNECT:
        version = peek_version(body)
    try:
        needed = _NEEDED_VERSIONS.get(packet_type, version)
        is_legal = version == needed or (is_extended and packet_type == PUBCALLBACK)
        if packet_type not in _DECODERS or not is_legal:
            raise malformed(f"packet type {packet_type} is reserved", "§2.1.2")
        read, legal_flags = _DECODERS[packet_type]
        # 3.1 does not use the flags of other packets than PUBLISH, and repeats some with DUP set.
        if legal_flags is not None and flags != legal_flags and version != MQTT_3_1:
            raise malformed(f"flags of packet type {packet_type} are {flags:04b}", "MQTT-2.1.3-1")
        reader = Reader(body)
        packet = read(reader, flags, version)
        if reader.remaining:
            raise malformed(f"{reader.remaining} bytes follow the end of the packet", "§2.1.4")
        return packet
    except ProtocolError as error:
        if version >= MQTT_5 or error.clause not in _CLAUSES_3_1_1:
            raise
        clause = _CLAUSES_3_1_1[error.clause]
        raise ProtocolError(error.reason_code, error.reason, clause) from None


# What several packets share.


def _read_properties(reader: Reader, packet_type: int, version: int = MQTT_5) -> Properties:
    if version < MQTT_5:
        return {}
    found, reader.position = properties.decode(reader.data, reader.position, packet_type)
    return found


def _read_packet_id(reader: Reader, clause: str) -> int:
    packet_id = reader.two_byte_integer()
    if packet_id == 0:
        raise _broken("packet identifier is 0", clause)
    return packet_id


def _read_reason_code(reader: Reader, packet_type: int) -> int:
    reason_code = reader.byte()
    allowed, clause = REASON_CODES[packet_type]
    if reason_code not in allowed and not (packet_type in (PUBACK, PUBREC) and reason_code in _OF_MESSAGES):
        raise _broken(f"reason code 0x{reason_code:02x} in packet type {packet_type}", clause)
    return reason_code


def _read_reason_codes(reader: Reader, packet_type: int) -> list[int]:
    reason_codes = list(reader.rest())
    allowed, clause = REASON_CODES[packet_type]
    if not reason_codes or not allowed.issuperset(reason_codes):
        raise _broken(f"no reason code, or a wrong one, in packet type {packet_type}", clause)
    return reason_codes


def _read_reason_and_properties(reader: Reader, packet_type: int, version: int) -> tuple[int, Properties]:
    """The end of an acknowledgement or DISCONNECT, either of which may be left out (§3.4.2.1, §3.14.2.1)."""
    if version < MQTT_5 or not reader.remaining:
        return Reason.SUCCESS, {}
    reason_code = _read_reason_code(reader, packet_type)
    return reason_code, _read_properties(reader, packet_type) if reader.remaining else {}


def _check_topic_name(topic: str) -> str:
    """A topic name that came in a packet. The string's own rules have been checked."""
    if not topic:
        raise malformed("topic name is empty", "MQTT-4.7.3-1")
    if is_wildcard(topic):
        raise malformed("topic name contains a wildcard", "MQTT-3.3.2-2")
    return topic


# CONNECT and CONNACK.


def _read_protocol(reader: Reader) -> tuple[int, bool, bool]:
    """The version, and whether a bridge says so, or a broker that speaks the extension."""
    if reader.data.startswith(_USUAL_BEGINNINGS):
        reader.position = 7
        return reader.data[6], False, False
    name = reader.utf8_string()
    if name not in PROTOCOL_NAMES.values():
        raise ProtocolError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol name {name[:16]!r}", "MQTT-3.1.2-1"
        )
    version, is_bridge = _split_version(reader.byte())
    is_extended = version == MQTT_EXTENDED and name == PROTOCOL_NAMES[MQTT_5]
    version = MQTT_5 if is_extended else version
    if PROTOCOL_NAMES.get(version) != name:
        raise ProtocolError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol {name} version {version & 0xFF}", "MQTT-3.1.2-2"
        )
    return version, is_bridge, is_extended


def _decode_connect(reader: Reader, flags: int, version: int) -> Connect:
    version, is_bridge, is_extended = _read_protocol(reader)
    connect_flags = _check_connect_flags(reader.byte(), version)
    packet = Connect(
        protocol_version=version,
        clean_start=bool(connect_flags & ConnectFlag.CLEAN_START),
        keep_alive=reader.two_byte_integer(),
        properties=_read_properties(reader, CONNECT, version),
        client_id=reader.utf8_string(),
        is_bridge=is_bridge,
        is_extended=is_extended,
    )
    if connect_flags | ConnectFlag.CLEAN_START == ConnectFlag.CLEAN_START:
        return packet  # with neither will nor name
    if connect_flags & ConnectFlag.WILL:
        packet.will = Will(
            properties=_read_properties(reader, properties.WILL, version),
            topic=_check_topic_name(reader.utf8_string()),
            payload=reader.binary_data(),
            qos=connect_flags >> WILL_QOS_SHIFT & 3,
            retain=bool(connect_flags & ConnectFlag.WILL_RETAIN),
        )
    # 3.1 §3.1: clients older than user names set the flags and end the packet before the fields.
    may_be_absent = version == MQTT_3_1
    if connect_flags & ConnectFlag.USER_NAME and (reader.remaining or not may_be_absent):
        packet.username = reader.utf8_string()
    if connect_flags & ConnectFlag.PASSWORD and (reader.remaining or not may_be_absent):
        packet.password = reader.binary_data()
    return packet


def _check_connect_flags(flags: int, version: int) -> int:
    if flags | ConnectFlag.CLEAN_START == ConnectFlag.CLEAN_START:
        return flags
    will_qos = flags >> WILL_QOS_SHIFT & 3
    if flags & ConnectFlag.RESERVED and version != MQTT_3_1:  # which calls it unused, and demands nothing
        raise malformed("reserved connect flag is set", "MQTT-3.1.2-3")
    if not flags & ConnectFlag.WILL and will_qos:
        raise malformed("will QoS without a will", "MQTT-3.1.2-11")
    if will_qos == 3:
        raise malformed("will QoS is 3", "MQTT-3.1.2-12")
    if not flags & ConnectFlag.WILL and flags & ConnectFlag.WILL_RETAIN:
        raise malformed("will retain without a will", "MQTT-3.1.2-13")
    if version < MQTT_5 and flags & ConnectFlag.PASSWORD and not flags & ConnectFlag.USER_NAME:
        raise malformed("password without a user name", "MQTT-3.1.2-22")
    return flags


def _decode_connack(reader: Reader, flags: int, version: int) -> Connack | Renew:
    acknowledge_flags = reader.byte()
    if version == MQTT_3_1:
        acknowledge_flags = 0  # Reserved and not used in 3.1, which has no session present.
    if acknowledge_flags > 1:
        raise malformed(f"acknowledge flags are {acknowledge_flags:08b}", "MQTT-3.2.2-1")
    if version == MQTT_5:
        reason_code = _read_reason_code(reader, CONNACK)
    else:
        return_code = reader.byte()
        if version == MQTT_EXTENDED and return_code in extension.RENEWALS:
            return extension.read_renew(reader, return_code, acknowledge_flags)
        if return_code not in CONNACK_REASONS:
            raise _broken(f"return code {return_code} in CONNACK", "MQTT-3.2.2-8")
        reason_code = CONNACK_REASONS[return_code]
    if acknowledge_flags and reason_code:
        raise _broken("session present in a CONNACK that refuses", "MQTT-3.2.2-6")
    found = _read_properties(reader, CONNACK, version)
    return Connack(bool(acknowledge_flags), reason_code, found)


# PUBLISH and its acknowledgements.


def _decode_publish(reader: Reader, flags: int, version: int) -> Publish:
    qos = flags >> 1 & 3
    dup = bool(flags & 8)
    if qos == 3:
        raise malformed("QoS is 3", "MQTT-3.3.1-4")
    if dup and qos == 0:
        raise malformed("DUP is set with QoS 0", "MQTT-3.3.1-2")
    topic = reader.utf8_string()
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-3") if qos else 0
    found = _read_properties(reader, PUBLISH, version)
    if version < MQTT_5 or topic:
        _check_topic_name(topic)
    elif "topic_alias" not in found:
        raise _broken("neither a topic name nor a topic alias", "§3.3.2.1")
    return Publish(topic, reader.rest(), qos, bool(flags & 1), dup, packet_id, found)


def _decode_pubcallback(reader: Reader, flags: int, version: int) -> Pubcallback:
    callbacks, message_id = extension.read_callbacks(reader)
    inner = _decode_publish(reader, flags, version)
    return Pubcallback(
        inner.topic,
        inner.payload,
        inner.qos,
        inner.retain,
        inner.dup,
        inner.packet_id,
        callbacks,
        message_id,
        inner.properties,
    )


Acknowledgement = TypeVar("Acknowledgement", Puback, Pubrec, Pubrel, Pubcomp)


def _decode_acknowledgement(
    packet_class: type[Acknowledgement], packet_type: int
) -> Callable[[Reader, int, int], Acknowledgement]:
    def read(reader: Reader, flags: int, version: int) -> Acknowledgement:
        packet_id = _read_packet_id(reader, "MQTT-2.2.1-5")
        return packet_class(packet_id, *_read_reason_and_properties(reader, packet_type, version))

    return read


# SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.


def _decode_subscribe(reader: Reader, flags: int, version: int) -> Subscribe:
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-3")
    found = _read_properties(reader, SUBSCRIBE, version)
    subscriptions: list[Subscription] = []
    while reader.position < reader.end:
        subscriptions.append(_read_subscription(reader, version))
        if len(subscriptions) > MAX_TOPIC_FILTERS:
            raise _too_many_filters()
    if not subscriptions:
        raise _broken("SUBSCRIBE without a topic filter", "MQTT-3.8.3-2")
    return Subscribe(packet_id, subscriptions, found)


def _too_many_filters() -> ProtocolError:
    return ProtocolError(Reason.QUOTA_EXCEEDED, f"over {MAX_TOPIC_FILTERS} topic filters", "§4.13.2")


def _read_subscription(reader: Reader, version: int) -> Subscription:
    topic_filter = reader.utf8_string()
    options = reader.byte()
    if options < 3:
        return Subscription(topic_filter, options)
    if options & (0xC0 if version == MQTT_5 else 0xFC):
        raise malformed(f"subscription options are {options:08b}", "MQTT-3.8.3-5")
    qos = options & 3
    retain_handling = options >> RETAIN_HANDLING_SHIFT
    if qos == 3:
        raise _broken("QoS of a subscription is 3", "§3.8.3.1")
    if retain_handling == 3:
        raise _broken("retain handling is 3", "§3.8.3.1")
    return Subscription(
        topic_filter,
        qos,
        bool(options & SubscriptionOption.NO_LOCAL),
        bool(options & SubscriptionOption.RETAIN_AS_PUBLISHED),
        retain_handling,
    )


def _decode_unsubscribe(reader: Reader, flags: int, version: int) -> Unsubscribe:
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-3")
    found = _read_properties(reader, UNSUBSCRIBE, version)
    topic_filters: list[str] = []
    while reader.remaining:
        topic_filters.append(reader.utf8_string())
        if len(topic_filters) > MAX_TOPIC_FILTERS:
            raise _too_many_filters()
    if not topic_filters:
        raise _broken("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, topic_filters, found)


def _decode_suback(reader: Reader, flags: int, version: int) -> Suback:
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-6")
    found = _read_properties(reader, SUBACK, version)
    reason_codes = _read_reason_codes(reader, SUBACK)
    if version < MQTT_5 and max(reason_codes) > Reason.UNSPECIFIED_ERROR:
        raise _broken("reserved return code in SUBACK", "MQTT-3.9.3-2")
    return Suback(packet_id, reason_codes, found)


def _decode_unsuback(reader: Reader, flags: int, version: int) -> Unsuback:
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-6")
    if version < MQTT_5:
        return Unsuback(packet_id)
    found = _read_properties(reader, UNSUBACK)
    return Unsuback(packet_id, _read_reason_codes(reader, UNSUBACK), found)


# PINGREQ, PINGRESP, DISCONNECT and AUTH.


def _decode_disconnect(reader: Reader, flags: int, version: int) -> Disconnect:
    return Disconnect(*_read_reason_and_properties(reader, DISCONNECT, version))


def _decode_auth(reader: Reader, flags: int, version: int) -> Auth:
    packet = Auth()
    if reader.remaining:
        packet.reason_code = _read_reason_code(reader, AUTH)
        packet.properties = _read_properties(reader, AUTH)
        if "authentication_method" not in packet.properties:
            raise _broken("AUTH without authentication_method", "§3.15.2.2.2")
    return packet


_DECODERS: dict[int, tuple[Callable[[Reader, int, int], Packet], int | None]] = {
    CONNECT: (_decode_connect, 0),
    CONNACK: (_decode_connack, 0),
    PUBLISH: (_decode_publish, None),  # Its flags say something.
    PUBACK: (_decode_acknowledgement(Puback, PUBACK), 0),
    PUBREC: (_decode_acknowledgement(Pubrec, PUBREC), 0),
    PUBREL: (_decode_acknowledgement(Pubrel, PUBREL), 2),
    PUBCOMP: (_decode_acknowledgement(Pubcomp, PUBCOMP), 0),
    SUBSCRIBE: (_decode_subscribe, 2),
    SUBACK: (_decode_suback, 0),
    UNSUBSCRIBE: (_decode_unsubscribe, 2),
    UNSUBACK: (_decode_unsuback, 0),
    PINGREQ: (lambda reader, flags, version: Pingreq(), 0),
    PINGRESP: (lambda reader, flags, version: Pingresp(), 0),
    DISCONNECT: (_decode_disconnect, 0),
    AUTH: (_decode_auth, 0),
    PUBCALLBACK: (_decode_pubcallback, None),
}
# The packets of one version only.
_NEEDED_VERSIONS = {AUTH: MQTT_5, PUBCALLBACK: MQTT_EXTENDED}
