"""`Message`: the one thing that flows through the fabric.

Every transport turns what it receives into a `Message` and sends `Message`s; a message keeps its
`MessageId` from the node that first accepted it to the last subscriber, which is what stops
loops, drops duplicates on redundant paths and lets the pipeline count a message once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

# What an id may have, wherever it is read, stored or given.
MAX_ORIGIN = 256  # characters; 64 KiB in each of many that are remembered would be memory for the taking
MAX_NUMBER = 2**63 - 1  # The store, Arrow and Spark have 64 bits and a sign: a larger one cannot be written.


class MessageId(NamedTuple):
    """Fabric-wide identity: who accepted it first, in which life of that node, under which number.

    `epoch` grows by one with each start of the node, so that `sequence` may begin anew.
    """

    origin: str
    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.origin}/{self.epoch}/{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """The id that `str()` wrote. Raises ValueError for anything else."""
        origin, epoch, sequence = text.rsplit("/", 2)
        message_id = cls(origin, int(epoch), int(sequence))
        # Comparing refuses the other ways to write a number: one message has one id.
        if not origin or message_id.epoch < 0 or message_id.sequence < 0 or str(message_id) != text:
            raise ValueError(f"not a message id: {text!r}")
        return message_id


class Properties(TypedDict, total=False):
    """MQTT 5 properties under the specification's names (§2.2.2.2), of any packet.

    A plain dict at run time: absent means absent. `user_property` keeps order and repetition.
    """

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_identifier: tuple[int, ...]
    session_expiry_interval: int
    assigned_client_identifier: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay_interval: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_property: tuple[tuple[str, str], ...]
    maximum_packet_size: int
    wildcard_subscription_available: int
    subscription_identifier_available: int
    shared_subscription_available: int


NO_PROPERTIES: Properties = {}
"""Of messages that have none, where they are many: one for all of them, which nobody changes."""
MAX_INTERVAL = 0xFFFFFFFF  # of a four byte integer
USER_PROPERTY_BYTES = 64  # What a pair takes beside its texts: thousands of empty ones are not nothing.


@dataclass(slots=True)
class Message:
    """An application message. Treated as immutable; not frozen because that doubles its cost.

    `properties` holds only what travels with a message end to end (payload format, expiry,
    content type, response topic, correlation data, user properties). `expires_at` is the absolute
    time that `message_expiry_interval` came to when the message was accepted.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=Properties)
    id: MessageId | None = None
    expires_at: float | None = None
    published_at: float | None = None
    """When, by the clock of who published it; kept where it decides which of two values is the newer."""
    first_at: float | None = field(default=None, compare=False)
    """About when it was published, by the clock of this node; known of what comes late, or has waited."""

    def expire_from(self, now: float) -> None:
        """Set `expires_at`, where the message says how long it lasts and nothing did so before."""
        interval = self.properties.get("message_expiry_interval")
        if interval is not None and self.expires_at is None:
            self.expires_at = now + interval

    def remaining_interval(self, now: float) -> int:
        """What its expiry interval comes to for those who get it now (MQTT-3.3.2-6).

        Never 0, about which brokers differ, and never more than was asked for, should the clock have gone
        back before a restart.
        """
        assert self.expires_at is not None
        asked = self.properties.get("message_expiry_interval", MAX_INTERVAL)
        return min(max(1, round(self.expires_at - now)), asked)

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep: topic, payload and what its properties say."""
        size = len(self.topic) + len(self.payload)
        if self.properties:
            properties = self.properties
            size += len(properties.get("content_type", "")) + len(properties.get("response_topic", ""))
            size += len(properties.get("correlation_data", b""))
            pairs = properties.get("user_property", ())
            size += sum(len(name) + len(value) + USER_PROPERTY_BYTES for name, value in pairs)
        return size
