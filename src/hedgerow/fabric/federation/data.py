"""DATA: a publication between federators, with its fabric-wide id, as one packet.

"Once reaching a broker with local subscribers, the payload contains a full regular topic packet" (§6). What
arrives is read with the rules of a PUBLISH; `decode_data` raises `WireError` and nothing else.
"""

from __future__ import annotations

from hedgerow.errors import HedgerowError
from hedgerow.fabric.federation.limits import MAX_ID_BYTES, MAX_SEQUENCE
from hedgerow.fabric.federation.wire import VERSION, Kind, Reader, WireError, encode_numbers, encode_text
from hedgerow.message import Message, MessageId
from hedgerow.mqtt import properties
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.topics import validate_name

RETAIN = 0x04
TIME = 0x08
_MICROSECONDS = 1_000_000
_MAX_MICROSECONDS = 1 << 52  # The year 2112: beyond, a float no longer tells two microseconds apart.
_CONNECTION_PROPERTIES = {"topic_alias", "subscription_identifier"}


def encode_data(message: Message) -> bytes:
    """The message must have its id."""
    if message.id is None:
        raise ValueError("a message between federators has an id")
    flags = message.qos | (RETAIN if message.retain else 0)
    time = b""
    if message.published_at is not None:
        flags |= TIME
        time = encode_numbers(round(message.published_at * _MICROSECONDS))
    origin, epoch, sequence = message.id
    return b"".join(
        (
            bytes((VERSION, Kind.DATA, flags)),
            encode_text(origin),
            encode_numbers(epoch, sequence),
            time,
            encode_text(message.topic),
            properties.encode(message.properties, PUBLISH),
            message.payload,
        )
    )


def decode_data(payload: bytes) -> Message:
    if len(payload) < 3 or payload[0] != VERSION or payload[1] != Kind.DATA:
        raise WireError("malformed" if len(payload) < 3 or payload[0] == VERSION else "version")
    flags = payload[2]
    if flags & ~(0x03 | RETAIN | TIME) or flags & 0x03 == 3:
        raise WireError("malformed")
    reader = Reader(payload, 3)
    origin = reader.text(MAX_ID_BYTES)
    message_id = MessageId(origin, reader.number(), reader.number(MAX_SEQUENCE))
    published_at = reader.number(_MAX_MICROSECONDS) / _MICROSECONDS if flags & TIME else None
    topic = reader.text(65_535)
    if topic[:1] == "$":
        raise WireError("local topic")  # A neighbour must not write what is this broker's own.
    try:
        validate_name(topic)
        own, end = properties.decode(payload, reader.position, PUBLISH)
    except (HedgerowError, ValueError):
        raise WireError("malformed") from None
    if "\0" in origin or not own.keys().isdisjoint(_CONNECTION_PROPERTIES):
        raise WireError("malformed")
    return Message(
        topic,
        payload[end:],
        flags & 0x03,
        bool(flags & RETAIN),
        own,
        message_id,
        published_at=published_at,
    )
