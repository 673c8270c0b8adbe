"""What packets are made of: the data types of MQTT 5 §1.5, shared by 3.1 and 3.1.1, and the flags.

A `Reader` walks a packet and never leaves it: whatever the peer's lengths claim, a value that does
not fit, or that its type forbids, is a `ProtocolError` with reason code Malformed Packet. The
`encode_…` functions are the way back; what they cannot express is a mistake of our own code and
raises ValueError. Clause ids are those of MQTT 5.
"""

from __future__ import annotations

from typing import Final

from hedgerow.errors import ProtocolError
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, MQTT_EXTENDED
from hedgerow.mqtt.reasons import Reason

PROTOCOL_NAMES = {MQTT_3_1: "MQIsdp", MQTT_3_1_1: "MQTT", MQTT_5: "MQTT", MQTT_EXTENDED: "MQIsdp"}
RENEWALS_BYTE = MQTT_EXTENDED & 0xFF

# Mosquitto's mark of a bridge, in the protocol version of a CONNECT before MQTT 5.
BRIDGE_BIT = 0x80


class ConnectFlag:
    """§3.1.2.3; the will's QoS stands between them."""

    RESERVED: Final = 0x01
    CLEAN_START: Final = 0x02
    WILL: Final = 0x04
    WILL_RETAIN: Final = 0x20
    PASSWORD: Final = 0x40
    USER_NAME: Final = 0x80


WILL_QOS_SHIFT = 3


class SubscriptionOption:
    """§3.8.3.1; the QoS stands below them, the retain handling above."""

    NO_LOCAL: Final = 0x04
    RETAIN_AS_PUBLISHED: Final = 0x08


RETAIN_HANDLING_SHIFT = 4


MAX_TWO_BYTE_INTEGER = 65_535
MAX_FOUR_BYTE_INTEGER = 4_294_967_295
MAX_VARIABLE_BYTE_INTEGER = 268_435_455
_VARIABLE_BYTE_INTEGER_SIZE = 4


def malformed(reason: str, clause: str) -> ProtocolError:
    return ProtocolError(Reason.MALFORMED_PACKET, reason, clause)


def _too_short(size: int, left: int) -> ProtocolError:
    return malformed(f"{size} bytes expected, {left} left", "§2.1.4")


class Reader:
    """Reads one value after another from `data[position:end]`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def advance(self, size: int) -> int:
        """Step over `size` bytes and return where they began."""
        start = self.position
        if size > self.end - start:
            raise _too_short(size, self.end - start)
        self.position = start + size
        return start

    def byte(self) -> int:
        return self.data[self.advance(1)]

    def two_byte_integer(self) -> int:
        start = self.advance(2)
        return self.data[start] << 8 | self.data[start + 1]

    def four_byte_integer(self) -> int:
        start = self.advance(4)
        return int.from_bytes(self.data[start : start + 4], "big")

    def variable_byte_integer(self) -> int:
        value = 0
        for index in range(_VARIABLE_BYTE_INTEGER_SIZE):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if byte == 0 and index > 0:
                    raise malformed("variable byte integer is longer than needed", "MQTT-1.5.5-1")
                return value
        raise malformed("variable byte integer is longer than 4 bytes", "§1.5.5")

    def binary_data(self) -> bytes:
        # Without the methods above: most of CONNECT and SUBSCRIBE is strings.
        data, end, start = self.data, self.end, self.position + 2
        if start > end:
            raise _too_short(2, end - self.position)
        stop = start + (data[start - 2] << 8 | data[start - 1])
        if stop > end:
            raise _too_short(stop - start, end - start)
        self.position = stop
        return data[start:stop]

    def utf8_string(self) -> str:
        try:
            text = self.binary_data().decode()
        except UnicodeDecodeError as error:
            raise malformed(f"string is not UTF-8: {error.reason}", "MQTT-1.5.4-1") from None
        if "\0" in text:
            raise malformed("string contains U+0000", "MQTT-1.5.4-2")
        return text

    def utf8_string_pair(self) -> tuple[str, str]:
        return self.utf8_string(), self.utf8_string()

    def rest(self) -> bytes:
        start = self.advance(self.remaining)
        return self.data[start : self.end]


def encode_byte(value: int) -> bytes:
    return _encode_integer(value, 1)


def encode_two_byte_integer(value: int) -> bytes:
    return _encode_integer(value, 2)


def encode_four_byte_integer(value: int) -> bytes:
    return _encode_integer(value, 4)


def _encode_integer(value: int, size: int) -> bytes:
    if not 0 <= value < 1 << 8 * size:
        raise ValueError(f"{value} does not fit into {size} bytes")
    return value.to_bytes(size, "big")


def encode_variable_byte_integer(value: int) -> bytes:
    if not 0 <= value <= MAX_VARIABLE_BYTE_INTEGER:
        raise ValueError(f"{value} is not in 0 to {MAX_VARIABLE_BYTE_INTEGER}")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary_data(value: bytes) -> bytes:
    if len(value) > MAX_TWO_BYTE_INTEGER:
        raise ValueError(f"{len(value)} bytes are more than {MAX_TWO_BYTE_INTEGER}")
    return len(value).to_bytes(2, "big") + value


def encode_utf8_string(value: str) -> bytes:
    if "\0" in value:
        raise ValueError(f"{value!r} contains U+0000")
    return encode_binary_data(value.encode())  # UnicodeEncodeError, for surrogates, is a ValueError


def encode_utf8_string_pair(value: tuple[str, str]) -> bytes:
    name, text = value
    return encode_utf8_string(name) + encode_utf8_string(text)


# First byte and remaining length of the acknowledgements that say nothing but success.
PUBACK_HEAD: Final = b"\x40\x02"
PUBREC_HEAD: Final = b"\x50\x02"
PUBREL_HEAD: Final = b"\x62\x02"
PUBCOMP_HEAD: Final = b"\x70\x02"
