"""The client's receiving half: PUBLISH packets to messages, and their acknowledgements in order.

A `Receiver` outlives connections, as the session does: a QoS 2 message that the server sends again
is not given to the application again. For each connection it gets a `PublishDecoder`. A message
without properties on a topic that was seen before takes a short path that only slices bytes;
everything else, and whatever is wrong, goes through the codec. A client that gives ids has an
`IdentifyingDecoder`, which reads those of others too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from typing import Any

from hedgerow.errors import ProtocolError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt import codec, extension
from hedgerow.mqtt.client.events import ConnectOptions, Event, MessageReceived, MessageRefused, Receipt
from hedgerow.mqtt.client.sender import MAX_CACHED_TOPICS, MAX_PACKET_SIZE
from hedgerow.mqtt.client.sightings import Sightings, parse_id
from hedgerow.mqtt.ids import ID_HEAD, MAX_PREFIXES, identify_from
from hedgerow.mqtt.ids import parse_id as parse_fabric_id
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Pubcomp, Publish
from hedgerow.mqtt.properties import of_message
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.refusals import read_refused
from hedgerow.mqtt.wire import PUBACK_HEAD, PUBCOMP_HEAD, PUBREC_HEAD, Reader

# What a `Message` has behind its properties, and a PUBLISH without any does not say. By position, since
# a message made by names costs 415 ns, and so 330.
_UNKNOWN: tuple[Any, ...] = (None,) * (len(fields(Message)) - 5)


class PublishDecoder:
    """PUBLISH packets to messages."""

    def __init__(self, version: int, topic_alias_maximum: int = 0) -> None:
        self.version = version
        self._topic_alias_maximum = topic_alias_maximum
        self._aliases: dict[int, str] = {}
        self._topics: dict[bytes, str] = {}
        # Bytes between topic and payload, by the flags of the first byte: packet identifier and
        # property length. Flags that are wrong get a size that never fits, and so the codec's word.
        property_length = 1 if version == MQTT_5 else 0
        never = MAX_PACKET_SIZE
        self._overheads = tuple(
            never
            if flags >> 1 & 3 == 3 or flags & 0b1110 == 0b1000
            else property_length + 2 * bool(flags & 6)
            for flags in range(16)
        )

    def decode(self, first_byte: int, data: bytes, start: int, stop: int, now: float) -> MessageReceived:
        """The message in the body `data[start:stop]`; ProtocolError when it breaks a rule."""
        flags = first_byte & 0x0F
        if stop - start > 2:
            topic_start = start + 2
            topic_stop = topic_start + (data[start] << 8 | data[start + 1])
            payload_start = topic_stop + self._overheads[flags]
            # The byte before the payload is the property length in MQTT 5: 0 when there are none.
            if payload_start <= stop and (self.version != MQTT_5 or not data[payload_start - 1]):
                topic = self._topics.get(data[topic_start:topic_stop])
                packet_id = data[topic_stop] << 8 | data[topic_stop + 1] if flags & 6 else 0
                if topic is not None and (packet_id or not flags & 6):
                    return MessageReceived(  # type: ignore[call-arg]  # mypy cannot count the unknown
                        topic,
                        data[payload_start:stop],
                        flags >> 1 & 3,
                        flags & 1 == 1,
                        {},
                        *_UNKNOWN,
                        packet_id,
                        flags & 8 == 8,
                    )
        return self._decode_slowly(first_byte, data[start:stop], now)

    def _decode_slowly(self, first_byte: int, body: bytes, now: float) -> MessageReceived:
        packet = codec.decode(first_byte, body, self.version)
        assert isinstance(packet, Publish)
        properties = packet.properties
        topic = self._resolve(packet.topic, properties.get("topic_alias"))
        if packet.topic:
            if len(self._topics) >= MAX_CACHED_TOPICS:
                self._topics.clear()
            self._topics[topic.encode()] = topic
        expiry = properties.get("message_expiry_interval")
        return MessageReceived(
            topic,
            packet.payload,
            packet.qos,
            packet.retain,
            of_message(properties),
            expires_at=None if expiry is None else now + expiry,
            packet_id=packet.packet_id,
            dup=packet.dup,
            subscription_identifiers=properties.get("subscription_identifier", ()),
        )

    def _resolve(self, topic: str, alias: int | None) -> str:
        if alias is None:
            return topic
        if not 0 < alias <= self._topic_alias_maximum:
            raise ProtocolError(
                Reason.TOPIC_ALIAS_INVALID,
                f"topic alias {alias} is beyond our maximum {self._topic_alias_maximum}",
                "MQTT-3.1.2-26",
            )
        if topic:
            self._aliases[alias] = topic
            return topic
        if alias not in self._aliases:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"topic alias {alias} is not set", "§3.3.4")
        return self._aliases[alias]


class IdentifyingDecoder(PublishDecoder):
    """Sets what a message tells of its id, its time and its age, and takes these properties away."""

    def __init__(self, version: int, topic_alias_maximum: int = 0) -> None:
        super().__init__(version, topic_alias_maximum)
        self._lives: dict[bytes, tuple[str, int]] = {}  # origin and epoch, as they stand before a sequence

    def decode(self, first_byte: int, data: bytes, start: int, stop: int, now: float) -> MessageReceived:
        flags = first_byte & 0x0F
        if stop - start < 3 or self._overheads[flags] == MAX_PACKET_SIZE:
            return super().decode(first_byte, data, start, stop, now)
        topic_stop = start + 2 + (data[start] << 8 | data[start + 1])
        block = topic_stop + (2 if flags & 6 else 0)
        # Nearly always the id is the only property, and its length a single byte.
        if block < stop and data.startswith(ID_HEAD, block + 1):
            value = block + 1 + len(ID_HEAD) + 2
            payload_start = block + 1 + data[block]
            topic = self._topics.get(data[start + 2 : topic_stop])
            packet_id = data[topic_stop] << 8 | data[topic_stop + 1] if flags & 6 else 0
            if (
                data[block] < 128
                and value < payload_start <= stop
                and payload_start - value == data[value - 2] << 8 | data[value - 1]
                and topic is not None
                and (packet_id or not flags & 6)
                and (message_id := self._read_id(data[value:payload_start])) is not None
            ):
                return MessageReceived(
                    topic,
                    data[payload_start:stop],
                    flags >> 1 & 3,
                    flags & 1 == 1,
                    {},
                    message_id,
                    packet_id=packet_id,
                    dup=flags & 8 == 8,
                )
        return super().decode(first_byte, data, start, stop, now)

    def _read_id(self, text: bytes) -> MessageId | None:
        """None: it is no id, or one that has to be looked at closely."""
        digits = text.rfind(b"/") + 1
        life = self._lives.get(text[:digits])
        number = text[digits:]
        # Another way to write a number would be another id; 18 digits are below the largest one.
        if life is not None and number.isdigit() and number[0] != 48 and len(number) <= 18:
            return MessageId(*life, int(number))
        try:
            message_id = parse_fabric_id(text.decode())
        except ValueError:
            return None
        if len(self._lives) >= MAX_PREFIXES:
            self._lives.clear()
        self._lives[text[:digits]] = message_id.origin, message_id.epoch
        return message_id

    def _decode_slowly(self, first_byte: int, body: bytes, now: float) -> MessageReceived:
        message = super()._decode_slowly(first_byte, body, now)
        if "user_property" in message.properties:
            identify_from(message, now)
        return message


class Receiver:
    """Writes to `output`, the list of packets that leave with the client's next `take_output`."""

    def __init__(self, output: list[bytes], options: ConnectOptions) -> None:
        self._output = output
        self._options = options
        self._automatic = not options.manual_acknowledgement
        self._holding = False
        self._receipts: dict[int, Receipt] = {}
        self._awaited: deque[Receipt] = deque()  # in the order in which the server expects its answers
        self._decoder: PublishDecoder = PublishDecoder(options.version)
        self.sightings = Sightings()
        self._connection = 0
        self.has_asked = False
        """The application has subscribed to something on this connection."""

    @property
    def is_idle(self) -> bool:
        """Are all handshakes over?"""
        return not self._receipts

    def connected(self, session_present: bool) -> None:
        options = self._options
        kind = IdentifyingDecoder if options.identifies else PublishDecoder
        self._decoder = kind(options.version, options.topic_alias_maximum)
        self._awaited.clear()
        self._connection = self.sightings.begin()
        # In a resumed session the server sends QoS 1 again; of QoS 2 the application has each already.
        kept = [receipt for receipt in self._receipts.values() if session_present and receipt.qos == 2]
        for receipt in self._receipts.values():
            receipt.is_void = True
        self._receipts = {receipt.packet_id: receipt for receipt in kept}
        for receipt in kept:
            receipt.awaited = receipt.is_void = False

    def handle_publish(
        self, first_byte: int, data: bytes, start: int, stop: int, now: float, events: list[Event]
    ) -> None:
        try:
            message = self._decoder.decode(first_byte, data, start, stop, now)
        except ProtocolError as error:
            if not self._refuse(first_byte, data[start:stop], error, events):
                raise
            return
        if not message.qos:
            events.append(message)
            return
        is_new = self._answer(message)
        if message.id is not None and self.sightings.is_repeated(message, self._connection, self.has_asked):
            self._send_acknowledgements()
        elif is_new:
            events.append(message)

    def _refuse(self, first_byte: int, body: bytes, error: ProtocolError, events: list[Event]) -> bool:
        """Answer a message whose content breaks a rule with an error, and go on: if we closed, a server that
        keeps the session would send it again first thing, for ever."""
        refused = read_refused(first_byte, body, error)
        if refused is None:
            return False
        events.append(MessageRefused(refused.topic, str(error)))
        if refused.qos:
            version = self._options.version
            refusal = refused.answer(version) if version == MQTT_5 else b""
            self._note(MessageReceived(refused.topic, b"", refused.qos, packet_id=refused.packet_id), refusal)
        return True

    def handle_pubcallback(
        self, first_byte: int, data: bytes, start: int, stop: int, now: float, events: list[Event]
    ) -> None:
        reader = Reader(data, start, stop)
        callbacks, message_id = extension.read_callbacks(reader)
        message = self._decoder.decode(PUBLISH << 4 | first_byte, data, reader.position, stop, now)
        message.callbacks = callbacks
        message.id = parse_id(message_id)
        is_new = not message.qos or self._answer(message)
        if self.sightings.is_again(message, self._connection, self.has_asked):
            self._send_acknowledgements()
        elif is_new:
            events.append(message)

    def _answer(self, message: MessageReceived) -> bool:
        """Acknowledge, or owe it; False when the server sent a message again that the application has."""
        if message.qos == 1 and self._automatic and not (self._holding or self._awaited):
            self._output.append(PUBACK_HEAD + message.packet_id.to_bytes(2, "big"))
            return True
        return self._note(message)

    def _note(self, message: MessageReceived, refusal: bytes | None = None) -> bool:
        """Owe the server an answer; False when it sent a message again that the application has. A `refusal`,
        which may be empty: the application does not get it."""
        packet_id = message.packet_id
        receipt = self._receipts.get(packet_id)
        is_new = receipt is None or receipt.qos != 2 or message.qos != 2
        if receipt is None or is_new:
            receipt = Receipt(packet_id, message.qos, self._automatic or refusal is not None)
            receipt.refusal = refusal or b""
            self._receipts[packet_id] = receipt
            options = self._options
            if (
                len(self._receipts) > options.receive_maximum
                and options.version == MQTT_5
                and not options.puts_up_with_more
            ):
                raise ProtocolError(
                    Reason.RECEIVE_MAXIMUM_EXCEEDED,
                    f"more than {self._options.receive_maximum} publications in flight",
                    "MQTT-3.3.4-9",
                )
        if not receipt.awaited:
            receipt.awaited = True
            self._awaited.append(receipt)
        message.receipt = receipt
        self._send_acknowledgements()
        return is_new

    def acknowledge(self, message: MessageReceived) -> None:
        if message.receipt is not None:
            message.receipt.acknowledged = True
            self._send_acknowledgements()

    def hold_acknowledgements(self, holding: bool) -> None:
        self._holding = holding
        self._send_acknowledgements()

    def _send_acknowledgements(self) -> None:
        awaited = self._awaited
        while awaited and awaited[0].is_done and not self._holding:
            receipt = awaited.popleft()
            receipt.awaited = False
            packet_id = receipt.packet_id.to_bytes(2, "big")
            if receipt.qos == 2 and not receipt.refusal:
                self._output.append(PUBREC_HEAD + packet_id)
                continue
            self._output.append(receipt.refusal or PUBACK_HEAD + packet_id)
            if self._receipts.get(receipt.packet_id) is receipt:
                del self._receipts[receipt.packet_id]

    def handle_pubrel(self, packet_id: int, reason_code: int, reason: str, events: list[Event]) -> None:
        receipt = self._receipts.get(packet_id)
        if receipt is not None and receipt.qos == 2:
            del self._receipts[packet_id]
            self._output.append(PUBCOMP_HEAD + packet_id.to_bytes(2, "big"))
        else:
            packet = Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
            self._output.append(codec.encode(packet, self._options.version))
