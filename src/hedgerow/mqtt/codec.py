"""Packets to bytes and back, for MQTT 3.1, 3.1.1 and 5.0 and for both ends of a connection.

    header = read_header(data, position)            # None: not enough bytes yet
    packet = decode(data[position], data[header[0] : header[1]], version)
    data = encode(packet, version)

Every packet that `encode` writes, `decode` reads back, up to the number of topic filters and user
properties that it bounds; it raises nothing but `ProtocolError`, whatever the bytes. Common packets
never come here: the short path reads and writes them in place.
"""

from __future__ import annotations

from hedgerow.mqtt.decoder import decode, peek_version, read_header
from hedgerow.mqtt.encoder import encode, encode_plain_publish, encode_publish_run
from hedgerow.mqtt.wire import encode_variable_byte_integer as encode_remaining_length

__all__ = [
    "decode",
    "encode",
    "encode_plain_publish",
    "encode_publish_run",
    "encode_remaining_length",
    "peek_version",
    "read_header",
]
