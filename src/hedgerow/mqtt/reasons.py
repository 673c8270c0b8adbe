"""Reason codes (MQTT 5 §2.4), and how MQTT 3.1 and 3.1.1 say the same in CONNACK."""

from __future__ import annotations

from enum import IntEnum

from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

FAILURE = 0x80  # Reason codes from here on say that something was not done (§2.4).


class Reason(IntEnum):
    SUCCESS = 0x00  # also: Normal disconnection, Granted QoS 0
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# CONNACK return codes of 3.1 and 3.1.1 (§3.2.2.3): 3 is "Server unavailable", the nearest word
# that these versions have for whatever they cannot name.
CONNACK_RETURN_CODES: dict[int, int] = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
}
CONNACK_SERVER_UNAVAILABLE = 3

# What a client makes of those return codes, so that its callers see one vocabulary.
CONNACK_REASONS: dict[int, Reason] = {
    0: Reason.SUCCESS,
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}


_PUBLISH_REASONS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}

# The reason codes that each packet may carry, and the clause that says so.
REASON_CODES: dict[int, tuple[set[int], str]] = {
    CONNACK: (
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F},
        "MQTT-3.2.2-8",
    ),
    PUBACK: (_PUBLISH_REASONS, "MQTT-3.4.2-1"),
    PUBREC: (_PUBLISH_REASONS, "MQTT-3.5.2-1"),
    PUBREL: ({0x00, 0x92}, "MQTT-3.6.2-1"),
    PUBCOMP: ({0x00, 0x92}, "MQTT-3.7.2-1"),
    SUBACK: ({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}, "MQTT-3.9.3-2"),
    UNSUBACK: ({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}, "MQTT-3.11.3-2"),
    DISCONNECT: (
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)},
        "MQTT-3.14.2-1",
    ),
    AUTH: ({0x00, 0x18, 0x19}, "MQTT-3.15.2-1"),
}


def describe(reason_code: int) -> str:
    """The reason code in words, for people."""
    try:
        return Reason(reason_code).name.lower().replace("_", " ")
    except ValueError:
        return f"reason code 0x{reason_code:02x}"
