"""MQTT 5 properties (§2.2.2): one table says what each is called, made of, and where it belongs.

`decode` refuses what the table does not allow: an identifier that is unknown or that the packet may
not carry is Malformed Packet (§2.2.2.2), a property given twice or outside its range is a Protocol
Error as the section of each property says. `encode` holds our own code to the same table, with
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple, cast

from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.wire import (
    MAX_FOUR_BYTE_INTEGER,
    Reader,
    encode_binary_data,
    encode_byte,
    encode_four_byte_integer,
    encode_two_byte_integer,
    encode_utf8_string,
    encode_utf8_string_pair,
    encode_variable_byte_integer,
    malformed,
)
from hedgerow.topics import is_wildcard

# User properties in one packet: one of the largest size could hold a million, and reading them would
# keep every other client waiting for seconds.
MAX_REPETITIONS = 1_000
# Beside those, in a PUBLISH from another node: the id, the time, the age and whatever nodes may come to add.
# What is taken from a client can so be carried between nodes.
OWN_REPETITIONS = 16

WILL = 0  # The Will Properties of CONNECT (§3.1.3.2) have rules of their own; 0 is no packet type.


class WireType(NamedTuple):
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


BYTE = WireType(Reader.byte, encode_byte)
TWO_BYTE_INTEGER = WireType(Reader.two_byte_integer, encode_two_byte_integer)
FOUR_BYTE_INTEGER = WireType(Reader.four_byte_integer, encode_four_byte_integer)
VARIABLE_BYTE_INTEGER = WireType(Reader.variable_byte_integer, encode_variable_byte_integer)
BINARY_DATA = WireType(Reader.binary_data, encode_binary_data)
UTF8_STRING = WireType(Reader.utf8_string, encode_utf8_string)
UTF8_STRING_PAIR = WireType(Reader.utf8_string_pair, encode_utf8_string_pair)


class Property(NamedTuple):
    identifier: int
    name: str
    wire_type: WireType
    packets: Set[int]
    clause: str
    """Where the specification says that it is given once, and in which range."""
    lowest: int | None = None
    """None: the wire type is the only bound."""
    highest: int = MAX_FOUR_BYTE_INTEGER
    out_of_range: tuple[Reason, str] | None = None
    """The reason code and clause for a value out of range, where they are not the usual ones."""

    def check_range(self, value: Any) -> None:
        if self.lowest is not None and not self.lowest <= value <= self.highest:
            reason_code, clause = self.out_of_range or (Reason.PROTOCOL_ERROR, self.clause)
            raise ProtocolError(reason_code, f"{self.name} is {value}", clause)


_ACKNOWLEDGEMENTS = {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}
_EVERY_PACKET = _ACKNOWLEDGEMENTS | {CONNECT, WILL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE}
_MESSAGE = {PUBLISH, WILL}

# Table 2-4 of the specification, with the ranges of each property's own section.
TABLE = (
    Property(0x01, "payload_format_indicator", BYTE, _MESSAGE, "§3.3.2.3.2", 0, 1),
    Property(0x02, "message_expiry_interval", FOUR_BYTE_INTEGER, _MESSAGE, "§3.3.2.3.3"),
    Property(0x03, "content_type", UTF8_STRING, _MESSAGE, "§3.3.2.3.9"),
    Property(0x08, "response_topic", UTF8_STRING, _MESSAGE, "§3.3.2.3.5"),
    Property(0x09, "correlation_data", BINARY_DATA, _MESSAGE, "§3.3.2.3.6"),
    Property(
        0x0B, "subscription_identifier", VARIABLE_BYTE_INTEGER, {PUBLISH, SUBSCRIBE}, "§3.8.2.1.2", 1
    ),
    Property(
        0x11, "session_expiry_interval", FOUR_BYTE_INTEGER, {CONNECT, CONNACK, DISCONNECT}, "§3.1.2.11.2"
    ),
    Property(0x12, "assigned_client_identifier", UTF8_STRING, {CONNACK}, "§3.2.2.3.7"),
    Property(0x13, "server_keep_alive", TWO_BYTE_INTEGER, {CONNACK}, "§3.2.2.3.14"),
    Property(0x15, "authentication_method", UTF8_STRING, {CONNECT, CONNACK, AUTH}, "§3.1.2.11.9"),
    Property(0x16, "authentication_data", BINARY_DATA, {CONNECT, CONNACK, AUTH}, "§3.1.2.11.10"),
    Property(0x17, "request_problem_information", BYTE, {CONNECT}, "§3.1.2.11.7", 0, 1),
    Property(0x18, "will_delay_interval", FOUR_BYTE_INTEGER, {WILL}, "§3.1.3.2.2"),
    Property(0x19, "request_response_information", BYTE, {CONNECT}, "§3.1.2.11.6", 0, 1),
    Property(0x1A, "response_information", UTF8_STRING, {CONNACK}, "§3.2.2.3.15"),
    Property(0x1C, "server_reference", UTF8_STRING, {CONNACK, DISCONNECT}, "§3.2.2.3.16"),
    Property(0x1F, "reason_string", UTF8_STRING, _ACKNOWLEDGEMENTS, "§3.2.2.3.9"),
    Property(0x21, "receive_maximum", TWO_BYTE_INTEGER, {CONNECT, CONNACK}, "§3.1.2.11.3", 1),
    Property(0x22, "topic_alias_maximum", TWO_BYTE_INTEGER, {CONNECT, CONNACK}, "§3.1.2.11.5"),
    Property(
        0x23, "topic_alias", TWO_BYTE_INTEGER, {PUBLISH}, "§3.3.2.3.4", 1,
        out_of_range=(Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
    ),
    Property(0x24, "maximum_qos", BYTE, {CONNACK}, "§3.2.2.3.4", 0, 1),
    Property(0x25, "retain_available", BYTE, {CONNACK}, "§3.2.2.3.5", 0, 1),
    Property(0x26, "user_property", UTF8_STRING_PAIR, _EVERY_PACKET, "§3.1.2.11.8"),
    Property(0x27, "maximum_packet_size", FOUR_BYTE_INTEGER, {CONNECT, CONNACK}, "§3.1.2.11.4", 1),
    Property(0x28, "wildcard_subscription_available", BYTE, {CONNACK}, "§3.2.2.3.11", 0, 1),
    Property(0x29, "subscription_identifier_available", BYTE, {CONNACK}, "§3.2.2.3.12", 0, 1),
    Property(0x2A, "shared_subscription_available", BYTE, {CONNACK}, "§3.2.2.3.13", 0, 1),
)  # fmt: skip

_BY_IDENTIFIER = {rule.identifier: rule for rule in TABLE}
_BY_NAME = {rule.name: rule for rule in TABLE}
_COLLECTED = {"user_property", "subscription_identifier"}  # Their values are tuples.


# A will has them too, though its connection is gone when it is published. PUBLISH alone has a Topic Alias and
# Subscription Identifiers, which mean something on the connection that they came by, and on no other.
OF_MESSAGE = frozenset(rule.name for rule in TABLE if rule.packets >= _MESSAGE)


def of_message(properties: Properties) -> Properties:
    """Those that belong to a message, and go with it from its publisher to each subscriber."""
    if properties.keys() <= OF_MESSAGE:
        return properties
    return cast(Properties, {name: value for name, value in properties.items() if name in OF_MESSAGE})


def decode(data: bytes, position: int, packet_type: int) -> tuple[Properties, int]:
    """The properties whose length stands at `position`, and the position after them."""
    reader = Reader(data, position)
    size = reader.variable_byte_integer()
    end = reader.advance(size) + size
    if size == 0:
        return {}, end
    reader = Reader(data, end - size, end)
    found: dict[str, Any] = {}
    while reader.remaining:
        rule = _find_rule(reader.variable_byte_integer(), packet_type)
        name = rule.name
        value = rule.wire_type.read(reader)
        rule.check_range(value)
        if name in found and not _may_repeat(name, packet_type):
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"{name} is given twice", rule.clause)
        if name in _COLLECTED:
            values = found.setdefault(name, [])
            values.append(value)
            if len(values) > MAX_REPETITIONS + OWN_REPETITIONS * (packet_type == PUBLISH):
                raise ProtocolError(Reason.QUOTA_EXCEEDED, f"{name} is given too often", "§4.13.2")
        else:
            found[name] = value
    for name in _COLLECTED & found.keys():
        found[name] = tuple(found[name])
    _check_together(found)
    return cast(Properties, found), end


def _find_rule(identifier: int, packet_type: int) -> Property:
    rule = _BY_IDENTIFIER.get(identifier)
    if rule is None:
        raise malformed(f"unknown property 0x{identifier:02x}", "§2.2.2.2")
    if packet_type not in rule.packets:
        raise malformed(f"{rule.name} does not belong into this packet", "§2.2.2.2")
    return rule


def _may_repeat(name: str, packet_type: int) -> bool:
    """A PUBLISH names every subscription that it answers (§3.3.4); a SUBSCRIBE gives one (§3.8.2.1.2)."""
    return name in _COLLECTED and (name == "user_property" or packet_type == PUBLISH)


def _check_together(found: Mapping[str, Any]) -> None:
    """The rules that are about more than one property's type and range."""
    if "authentication_data" in found and "authentication_method" not in found:
        raise ProtocolError(
            Reason.PROTOCOL_ERROR, "authentication_data without authentication_method", "§3.1.2.11.10"
        )
    if "response_topic" in found and is_wildcard(found["response_topic"]):
        raise malformed("response_topic contains a wildcard", "MQTT-3.3.2-14")


def encode(properties: Properties, packet_type: int) -> bytes:
    """The properties with their length before them. ValueError when the packet cannot carry them."""
    if not properties:
        return b"\0"  # MQTT-2.2.2-1: no properties are said with a length of zero.
    return with_length(encode_body(properties, packet_type))


def with_length(body: bytes) -> bytes:
    return encode_variable_byte_integer(len(body)) + body


def encode_body(properties: Properties, packet_type: int) -> bytes:
    """The properties without their length, so that two bodies can be joined."""
    pieces: list[bytes] = []
    try:
        for name, value in properties.items():
            rule = _BY_NAME[name]
            if packet_type not in rule.packets:
                raise ValueError(f"{name} does not belong into packet type {packet_type}")
            values = cast(tuple[Any, ...], value) if name in _COLLECTED else (value,)
            if len(values) > 1 and not _may_repeat(name, packet_type):
                raise ValueError(f"{name} is given {len(values)} times")
            for each in values:
                rule.check_range(each)
                pieces += bytes((rule.identifier,)), rule.wire_type.write(each)
        _check_together(properties)
    except KeyError as error:
        raise ValueError(f"unknown property {error}") from None
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    return b"".join(pieces)
