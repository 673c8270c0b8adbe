"""The client's sending half: messages to PUBLISH packets, and QoS 1 and 2 until they are over.

A `Sender` outlives connections, as the session does. For each connection it gets a `PublishEncoder`,
which knows what the server agreed to: the version, the topic aliases, the largest packet. A message
without properties on a topic that was used before takes a short path that only joins bytes;
everything else goes through the codec. A client that gives ids has an `IdentifyingEncoder`, and a message
keeps its id however often it is sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import ClassVar, NamedTuple

from hedgerow.errors import RefusedError
from hedgerow.message import MAX_ORIGIN, Message, Properties
from hedgerow.mqtt import codec, properties
from hedgerow.mqtt.client.events import MAX_RECEIVE_MAXIMUM, ConnectOptions, Event, Published
from hedgerow.mqtt.client.requests import Requests
from hedgerow.mqtt.ids import ID_PROPERTY, Prefixes, encode_block
from hedgerow.mqtt.outbox import Delivery, Outbox, Stage
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Publish, Pubrel
from hedgerow.mqtt.reasons import FAILURE, Reason
from hedgerow.mqtt.wire import MAX_VARIABLE_BYTE_INTEGER, PUBREL_HEAD
from hedgerow.topics import validate_name

MAX_CACHED_TOPICS = 16_384  # An application may use a new topic for every message.
MAX_PACKET_SIZE = MAX_VARIABLE_BYTE_INTEGER + 5

# Packet identifiers that publications leave to SUBSCRIBE and UNSUBSCRIBE, so that one is always free.
MAX_WINDOW = MAX_RECEIVE_MAXIMUM - 535

# MQTT 3 cannot say how much it takes, and Mosquitto (2.0) acknowledges and drops QoS 2 publications
# beyond its default of this many in flight: of 5,000 sent with a window of 1,000, 177 arrived.
MAX_QOS_2_MQTT_3 = 20

# A topic alias costs three bytes of property and saves the name, so it pays beyond this many.
_ALIAS_PAYS_BEYOND_BYTES = 3

_FIRST_BYTES = tuple(bytes((0x30 | flags,)) for flags in range(16))
_SHORT_LENGTHS = tuple(bytes((size,)) for size in range(128))


class _Head(NamedTuple):
    """What a PUBLISH without properties has before and after its packet identifier."""

    topic: bytes
    properties: bytes
    joined: bytes


class PublishEncoder:
    """Messages to PUBLISH packets, within what the server's CONNACK allows."""

    _overhead: ClassVar = (
        16  # bytes of a packet, at most, beside topic, payload and the message's own properties
    )

    def __init__(
        self,
        version: int,
        topic_alias_maximum: int = 0,
        maximum_packet_size: int = MAX_PACKET_SIZE,
        maximum_qos: int = 2,
        retain_available: bool = True,
    ) -> None:
        self.version = version
        self.maximum_packet_size = maximum_packet_size
        self.maximum_qos = maximum_qos
        self.retain_available = retain_available
        self._topic_alias_maximum = topic_alias_maximum
        self._aliases: dict[str, int] = {}
        self._seen: set[str] = set()  # topics used once: the second use gets an alias
        self._heads: dict[str, _Head] = {}
        self._prefixes: Prefixes = {}  # of ids, where messages go with theirs

    def check(self, message: Message) -> None:
        """Raise RefusedError for a message that the server has said it would not take."""
        if message.qos > self.maximum_qos:
            raise RefusedError("the server does not take this QoS", Reason.QOS_NOT_SUPPORTED)
        if message.retain and not self.retain_available:
            raise RefusedError("the server does not keep retained messages", Reason.RETAIN_NOT_SUPPORTED)
        # At most four bytes of UTF-8 a character.
        most = 4 * len(message.topic) + len(message.payload) + self._overhead
        if message.properties or most > self.maximum_packet_size:
            size = len(self._encode(message, message.qos and 1, False, message.properties))
            if size > self.maximum_packet_size:
                raise RefusedError(
                    f"a packet of {size} bytes is more than the server's {self.maximum_packet_size}",
                    Reason.PACKET_TOO_LARGE,
                )

    def encode(self, message: Message, now: float, packet_id: int = 0, dup: bool = False) -> bytes:
        """The packet. What `check` refuses must not come here."""
        head = self._heads.get(message.topic)
        if head is None or message.properties or message.expires_at is not None:
            return self._encode_slowly(message, now, packet_id, dup)
        payload = message.payload
        if packet_id:
            first = _FIRST_BYTES[dup << 3 | message.qos << 1 | message.retain]
            rest = head.topic + packet_id.to_bytes(2, "big") + head.properties + payload
        else:
            first = _FIRST_BYTES[message.retain]
            rest = head.joined + payload
        size = len(rest)
        return first + (_SHORT_LENGTHS[size] if size < 128 else codec.encode_remaining_length(size)) + rest

    def _encode_slowly(self, message: Message, now: float, packet_id: int, dup: bool) -> bytes:
        properties = message.properties
        if message.expires_at is not None:
            interval = message.remaining_interval(now)
            properties = properties | Properties(message_expiry_interval=interval)
        topic = message.topic
        alias = self._aliases.get(topic)
        if alias is not None:
            self._remember_alias(topic, alias)
            return self._encode(message, packet_id, dup, properties, "", alias)
        if self._may_alias(topic):
            if topic in self._seen:
                alias = len(self._aliases) + 1
                encoded = self._encode(message, packet_id, dup, properties, topic, alias)
                if len(encoded) <= self.maximum_packet_size:
                    self._aliases[topic] = alias
                    self._remember_alias(topic, alias)
                    return encoded
            elif len(self._seen) < MAX_CACHED_TOPICS:
                self._seen.add(topic)
        else:
            name = topic.encode()
            self._remember(
                topic, len(name).to_bytes(2, "big") + name, b"\0" if self.version == MQTT_5 else b""
            )
        return self._encode(message, packet_id, dup, properties)

    def _may_alias(self, topic: str) -> bool:
        return len(self._aliases) < self._topic_alias_maximum and len(topic) > _ALIAS_PAYS_BEYOND_BYTES

    def _remember_alias(self, topic: str, alias: int) -> None:
        self._remember(topic, b"\0\0", b"\3\x23" + alias.to_bytes(2, "big"))

    def _remember(self, topic: str, topic_field: bytes, properties_field: bytes) -> None:
        if len(self._heads) >= MAX_CACHED_TOPICS:
            self._heads.clear()
        self._heads[topic] = _Head(topic_field, properties_field, topic_field + properties_field)

    def _encode(
        self,
        message: Message,
        packet_id: int,
        dup: bool,
        properties: Properties,
        topic: str | None = None,
        alias: int = 0,
    ) -> bytes:
        if alias:
            properties = properties | Properties(topic_alias=alias)
        packet = Publish(
            message.topic if topic is None else topic,
            message.payload,
            message.qos,
            message.retain,
            dup,
            packet_id,
            properties,
        )
        return codec.encode(packet, self.version)


class IdentifyingEncoder(PublishEncoder):
    """Each message goes with its id."""

    _overhead: ClassVar = PublishEncoder._overhead + 64 + 4 * MAX_ORIGIN

    def encode(self, message: Message, now: float, packet_id: int = 0, dup: bool = False) -> bytes:
        head = self._heads.get(message.topic)
        if head is None or message.properties or message.expires_at is not None or message.id is None:
            return self._encode_slowly(message, now, packet_id, dup)
        # Behind its length, `head.properties` has the topic alias, if there is one.
        block = encode_block(self._prefixes, message.id) + head.properties[1:]
        size = len(block)
        length = _SHORT_LENGTHS[size] if size < 128 else codec.encode_remaining_length(size)
        identifier = packet_id.to_bytes(2, "big") if packet_id else b""
        first = _FIRST_BYTES[dup << 3 | (message.qos << 1 if packet_id else 0) | message.retain]
        rest = b"".join((head.topic, identifier, length, block, message.payload))
        return first + codec.encode_remaining_length(len(rest)) + rest

    def _encode(
        self,
        message: Message,
        packet_id: int,
        dup: bool,
        properties: Properties,
        topic: str | None = None,
        alias: int = 0,
    ) -> bytes:
        if message.id is not None:
            # First: who reads it takes the first one, and not what the application says besides.
            pairs = ((ID_PROPERTY, str(message.id)), *properties.get("user_property", ()))
            properties = properties | Properties(user_property=pairs)
        return super()._encode(message, packet_id, dup, properties, topic, alias)


class _ClientOutbox(Outbox):
    """An outbox whose packet identifiers SUBSCRIBE and UNSUBSCRIBE use too (MQTT-2.2.1-3)."""

    __slots__ = ("qos_2_window", "requests")

    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self.requests = requests
        self.qos_2_window = self.window

    def take(self) -> Delivery | None:
        if self.queue and self.queue[0].qos == 2 and len(self.in_flight) >= self.qos_2_window:
            return None
        return super().take()

    def allocate_packet_id(self) -> int:
        packet_id = super().allocate_packet_id()
        while packet_id in self.requests.sent:
            packet_id = super().allocate_packet_id()
        return packet_id


class Sender:
    """Writes to `output`, the list of packets that leave with the client's next `take_output`."""

    def __init__(self, output: list[bytes], requests: Requests, options: ConnectOptions) -> None:
        self.outbox = _ClientOutbox(requests)
        self.outbox.next_packet_id = options.first_packet_id
        self._options = options
        self._output = output
        self._encoder: PublishEncoder | None = None
        self._resending: deque[Delivery] = deque()

    def connection_ended(self) -> None:
        self._encoder = None
        self._resending.clear()

    def connected(
        self, encoder: PublishEncoder, window: int, session_present: bool, events: list[Event]
    ) -> None:
        """Take the session up again on a new connection; `send_queued` then sends what is due."""
        self._encoder = encoder
        self.outbox.window = max(1, min(window, MAX_WINDOW))
        self.outbox.qos_2_window = MAX_QOS_2_MQTT_3 if encoder.version < MQTT_5 else MAX_WINDOW
        if not session_present:
            self._restart(events)
        self._refuse_unsendable(events)
        self._resending.extend(self.outbox.resend())

    def follow(self, other: Sender, events: list[Event]) -> None:
        """Take over what the other, which is bound to another server, has not sent yet."""
        for _ in range(len(other.outbox.queue)):
            self.outbox.push(other.outbox.drop_oldest())
        if self._encoder is not None:
            self._refuse_unsendable(events)

    def inherit(self, other: Sender, events: list[Event]) -> None:
        """Take over what the other has sent, and will hear no more of."""
        waiting = [self.outbox.drop_oldest() for _ in range(len(self.outbox.queue))]
        other._restart(events)
        self.follow(other, events)
        for delivery in waiting:
            self.outbox.push(delivery)

    def _restart(self, events: list[Event]) -> None:
        """The server knows nothing of what was in flight: all of it is sent as new.

        Except a QoS 2 message that the server had taken with PUBREC: it must not be published again
        (MQTT-4.3.3-6), and nobody can tell any more whether the server delivered it. With an id it may: if it
        was delivered, this one is dropped on its way.
        """
        outbox = self.outbox
        again: list[Delivery] = []
        for delivery in outbox.in_flight.values():
            if delivery.stage == Stage.RELEASED and not self._options.identifies:
                reason = (
                    "the server lost the session after it took the message, and may not have delivered it"
                )
                events.append(Published(delivery.handle, Reason.UNSPECIFIED_ERROR, reason))
                outbox.bytes -= delivery.size
            else:
                delivery.stage = Stage.QUEUED
                again.append(delivery)
        outbox.in_flight.clear()
        outbox.queue.extendleft(reversed(again))

    def _refuse_unsendable(self, events: list[Event]) -> None:
        """Give up what this server has said that it would not take."""
        outbox = self.outbox
        waiting = [outbox.drop_oldest() for _ in range(len(outbox.queue))]
        for delivery in waiting:
            if not self._is_refused(delivery, events):
                outbox.push(delivery)
        for packet_id, delivery in list(outbox.in_flight.items()):
            if delivery.stage == Stage.SENT and self._is_refused(delivery, events):
                outbox.finish(packet_id)

    def _is_refused(self, delivery: Delivery, events: list[Event]) -> bool:
        assert self._encoder is not None
        try:
            self._encoder.check(delivery.message)
        except RefusedError as error:
            events.append(Published(delivery.handle, error.reason_code, str(error)))
            return True
        return False

    def publish(self, message: Message, handle: int, now: float) -> None:
        """Whatever is wrong with the message itself raises here, not when it is sent some day."""
        qos = message.qos
        if qos not in (0, 1, 2):
            raise ValueError(f"QoS is {qos} [MQTT-3.3.1-4]")
        if message.properties:
            message = _check_properties(message, now)
        encoder = self._encoder
        if encoder is not None:
            encoder.check(message)
        if qos:
            validate_name(message.topic)
            if not isinstance(message.payload, bytes):
                raise TypeError(f"a payload is bytes, not {type(message.payload).__name__}")
            delivery = Delivery(message, qos, message.retain)
            delivery.handle = handle
            self.outbox.push(delivery)
            self.send_queued(now)
        elif encoder is None:
            raise RuntimeError("publish: QoS 0 needs a connection")
        else:
            self._output.append(encoder.encode(message, now))

    def send_queued(self, now: float) -> None:
        """Send as much as the server's Receive Maximum allows: first what is sent again, then the queue."""
        outbox, resending, encoder = self.outbox, self._resending, self._encoder
        if encoder is None:
            return
        while resending and len(outbox.in_flight) - len(resending) < outbox.window:
            delivery = resending.popleft()
            if delivery.stage == Stage.RELEASED:
                self._output.append(PUBREL_HEAD + delivery.packet_id.to_bytes(2, "big"))
            else:
                self._output.append(encoder.encode(delivery.message, now, delivery.packet_id, dup=True))
        while (taken := outbox.take()) is not None:
            self._output.append(encoder.encode(taken.message, now, taken.packet_id))

    def handle_puback(self, packet_id: int, reason_code: int, reason: str, events: list[Event]) -> None:
        delivery = self.outbox.acknowledged(packet_id)
        if delivery is not None:
            events.append(Published(delivery.handle, reason_code, reason))

    def handle_pubrec(self, packet_id: int, reason_code: int, reason: str, events: list[Event]) -> None:
        if reason_code >= FAILURE:
            delivery = self.outbox.completed(packet_id)
            if delivery is not None:
                events.append(Published(delivery.handle, reason_code, reason))
        elif self.outbox.received(packet_id) is not None:
            self._output.append(PUBREL_HEAD + packet_id.to_bytes(2, "big"))
        elif self._encoder is not None:
            packet = Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
            self._output.append(codec.encode(packet, self._encoder.version))

    def handle_pubcomp(self, packet_id: int, reason_code: int, reason: str, events: list[Event]) -> None:
        delivery = self.outbox.completed(packet_id)
        if delivery is not None:
            # Packet identifier not found: the server had finished it before the link was lost.
            if reason_code == Reason.PACKET_IDENTIFIER_NOT_FOUND:
                reason_code = Reason.SUCCESS
            events.append(Published(delivery.handle, reason_code, reason))


def _check_properties(message: Message, now: float) -> Message:
    if not message.properties.keys() <= properties.OF_MESSAGE:
        strange = sorted(message.properties.keys() - properties.OF_MESSAGE)
        raise ValueError(f"not properties of a message: {', '.join(strange)}")
    properties.encode(message.properties, PUBLISH)  # raises for values that cannot be said
    expiry = message.properties.get("message_expiry_interval")
    if expiry is None or message.expires_at is not None:
        return message
    return replace(message, expires_at=now + expiry)
