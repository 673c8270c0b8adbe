"""A PUBLISH that is in order as a packet, and whose content its receiver does not take: refused alone.

Brokers pass on what other brokers refuse: Mosquitto takes a Response Topic with wildcards, say, and the
specification has the receiver close. On a link that would end it at every attempt, since the message comes
again first thing. So whoever is at the end of one answers such a message with an error, counts it, and goes
on.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.errors import ProtocolError
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Puback, Pubrec
from hedgerow.mqtt.reasons import Reason

# What may be wrong with the content, and how PUBACK and PUBREC call it, which have few words (§3.4.2.1).
_WORDS: dict[int, Reason] = {
    Reason.MALFORMED_PACKET: Reason.UNSPECIFIED_ERROR,
    Reason.PROTOCOL_ERROR: Reason.UNSPECIFIED_ERROR,
    Reason.PACKET_TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Reason.TOPIC_NAME_INVALID: Reason.TOPIC_NAME_INVALID,
    Reason.QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Reason.PAYLOAD_FORMAT_INVALID: Reason.PAYLOAD_FORMAT_INVALID,
}
_WRONG_FLAGS = {0b0110, 0b0111, 0b1110, 0b1111, 0b1000, 0b1001}  # QoS 3, or DUP at QoS 0


class RefusedPublish(NamedTuple):
    topic: str
    """Or what stands in its place."""
    qos: int
    packet_id: int
    """0 at QoS 0."""
    reason_code: int

    def answer(self, version: int) -> bytes:
        """PUBACK or PUBREC. Before MQTT 5 they have no word for it: it is acknowledged, and dropped."""
        reason_code = self.reason_code if version == MQTT_5 else Reason.SUCCESS
        packet = (Puback if self.qos == 1 else Pubrec)(self.packet_id, reason_code)
        return codec.encode(packet, version)


def read_refused(first_byte: int, body: bytes, error: ProtocolError) -> RefusedPublish | None:
    """The PUBLISH with this first byte and body, which may be cut off behind the packet identifier. None: it
    is not its content that is wrong, or nobody can say which one it is. One with an alias alone for its topic
    is about the connection: what set the alias may have been refused."""
    word, qos = _WORDS.get(error.reason_code), first_byte >> 1 & 3
    if first_byte >> 4 != PUBLISH or word is None or first_byte & 0x0F in _WRONG_FLAGS:
        return None
    topic_end = 2 + int.from_bytes(body[:2], "big")
    end = topic_end + 2 * bool(qos)
    packet_id = int.from_bytes(body[topic_end:end], "big")
    if end > len(body) or topic_end == 2 or (qos and not packet_id):
        return None
    return RefusedPublish(body[2:topic_end].decode(errors="replace"), qos, packet_id, word)
