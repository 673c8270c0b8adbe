"""A batch: publications of one topic from one sender, in order. The one unit in which messages flow.

A batch is made of payloads, of the very packets that came (`of_packets`: of one size, so that the payloads
need not be cut out unless somebody needs them), or of one `Message` with whatever it carries (`of_message`).
All of its messages have ids of one origin, or none has one yet. What several recipients need alike is
encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.broker.session import Publisher
from hedgerow.message import NO_PROPERTIES, Message, MessageId
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.ids import ID_HEAD

MAX_ID_BYTES = 600  # of an id and what stands around it, at most: the name of a node is not long


class Batch:
    __slots__ = (
        "_encoded",
        "_id_blocks",
        "_messages",
        "_payloads",
        "count",
        "epoch",
        "head",
        "message",
        "origin",
        "packets",
        "publisher",
        "qos",
        "sequences",
        "size",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        publisher: Publisher | None,
        qos: int,
        payloads: list[bytes] | None,
        count: int,
        origin: str | None = None,
        epoch: int = 0,
        sequences: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.publisher = publisher
        self.qos = qos
        self.count = count
        self.origin = origin  # None: no message has an id
        self.epoch = epoch
        self.sequences = sequences
        self.packets: bytes | None = None
        self.message: Message | None = None  # where it is one, with whatever it carries
        self.size = 0
        self.head = 0
        self._payloads = payloads
        self._messages: list[Message] | None = None
        self._id_blocks: list[bytes] | None = None
        self._encoded: dict[bytes, bytes] = {}

    @classmethod
    def of_packets(
        cls,
        topic: str,
        publisher: Publisher | None,
        packets: bytes,
        size: int,
        head: int,
        origin: str,
        epoch: int,
        sequence: int,
    ) -> Batch:
        """Packets at QoS 0 in a row: `size` bytes of each, `head` of them before the payload. The sequences
        of their ids count up from that of the first."""
        count = len(packets) // size
        batch = cls(topic, publisher, 0, None, count, origin, epoch, range(sequence, sequence + count))
        batch.packets, batch.size, batch.head = packets, size, head
        return batch

    @classmethod
    def of_message(cls, publisher: Publisher | None, message: Message) -> Batch:
        batch = cls(message.topic, publisher, message.qos, [message.payload], 1)
        batch.message, batch._messages = message, [message]
        if message.id is not None:
            batch.origin, batch.epoch = message.id.origin, message.id.epoch
            batch.sequences = (message.id.sequence,)
        return batch

    @classmethod
    def of_messages(cls, publisher: Publisher | None, messages: list[Message]) -> Batch:
        """Messages without properties: of one topic and QoS, and with ids of one life, or all without."""
        first = messages[0]
        batch = cls(first.topic, publisher, first.qos, [each.payload for each in messages], len(messages))
        batch._messages = messages
        if first.id is not None:
            batch.origin, batch.epoch, _ = first.id
            batch.sequences = [each.id.sequence for each in messages if each.id is not None]
        return batch

    def identify(self, origin: str, epoch: int, first_sequence: int) -> None:
        """Give ids to messages that came without."""
        self.origin, self.epoch = origin, epoch
        self.sequences = range(first_sequence, first_sequence + self.count)
        if self._messages is not None:
            for sequence, message in zip(self.sequences, self._messages, strict=True):
                message.id = MessageId(origin, epoch, sequence)

    @property
    def source(self) -> tuple[str, str | None]:
        """By which way it came, and from whom."""
        return ("node", None) if self.publisher is None else self.publisher.source

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            packets, size, head = self.packets, self.size, self.head
            assert packets is not None
            self._payloads = [packets[at + head : at + size] for at in range(0, len(packets), size)]
        return self._payloads

    @property
    def messages(self) -> list[Message]:
        if self._messages is None:
            topic, qos, origin, epoch = self.topic, self.qos, self.origin, self.epoch
            if origin is None:
                self._messages = [
                    Message(topic, payload, qos, False, NO_PROPERTIES) for payload in self.payloads
                ]
            else:
                self._messages = [
                    Message(topic, payload, qos, False, NO_PROPERTIES, MessageId(origin, epoch, sequence))
                    for sequence, payload in zip(self.sequences, self.payloads, strict=True)
                ]
        return self._messages

    @property
    def largest(self) -> int:
        """Bytes of its largest payload."""
        return self.size - self.head if self.packets is not None else max(map(len, self.payloads))

    @property
    def total_bytes(self) -> int:
        """Of topics and payloads."""
        return sum(map(len, self.payloads)) + len(self.topic) * self.count

    # With ids, for peers

    def set_id_blocks(self, blocks: list[bytes]) -> None:
        """The properties of each as they came, where these are what peers are to get."""
        self._id_blocks = blocks

    def id_blocks(self) -> list[bytes]:
        """The properties of each that hold its id, and nothing else."""
        if self._id_blocks is None:
            prefix = self._prefix()
            heads: dict[int, bytes] = {}
            blocks = []
            for sequence in self.sequences:
                digits = b"%d" % sequence
                head = heads.get(len(digits))
                if head is None:
                    head = heads[len(digits)] = id_block_head(prefix, len(digits))
                blocks.append(head + digits)
            self._id_blocks = blocks
        return self._id_blocks

    def encode_at_most_once(self, topic: bytes) -> bytes:
        """As QoS 0 packets with ids, under the name that a peer has for the topic."""
        chunk = self._encoded.get(topic)
        if chunk is None:
            prefix = self._prefix()
            name = len(topic).to_bytes(2, "big") + topic
            if isinstance(self.sequences, range) and len(set(map(len, self.payloads))) == 1:
                chunk = self._encoded[topic] = self._encode_alike(name, prefix, self.sequences)
                return chunk
            heads: dict[tuple[int, int], bytes] = {}
            packets = []
            for sequence, payload in zip(self.sequences, self.payloads, strict=True):
                digits = b"%d" % sequence
                sizes = len(digits), len(payload)
                head = heads.get(sizes)
                if head is None:
                    block = id_block_head(prefix, sizes[0])
                    remaining = len(name) + len(block) + sum(sizes)
                    head = heads[sizes] = b"\x30" + encode_remaining_length(remaining) + name + block
                packets.append(head + digits + payload)
            chunk = self._encoded[topic] = b"".join(packets)
        return chunk

    def _encode_alike(self, name: bytes, prefix: bytes, sequences: range) -> bytes:
        """The same, of payloads of one size, where sequences count up."""
        payloads = self.payloads
        size = len(payloads[0])
        pieces: list[bytes] = []
        begin = 0
        while begin < self.count:
            digits = len(b"%d" % sequences[begin])
            end = min(self.count, begin + 10**digits - sequences[begin])
            block = id_block_head(prefix, digits)
            remaining = len(name) + len(block) + digits + size
            head = b"\x30" + encode_remaining_length(remaining) + name + block
            pieces += [
                b"%b%d%b" % (head, sequence, payload)
                for sequence, payload in zip(sequences[begin:end], payloads[begin:end], strict=True)
            ]
            begin = end
        return b"".join(pieces)

    def _prefix(self) -> bytes:
        """Of its ids, up to their sequences."""
        return f"{self.origin}/{self.epoch}/".encode()


def id_block_head(prefix: bytes, digits_size: int) -> bytes:
    """The properties of a PUBLISH that has nothing but its id, up to the digits of the sequence."""
    value_size = len(prefix) + digits_size
    # A property length is written as a remaining length is.
    length = encode_remaining_length(len(ID_HEAD) + 2 + value_size)
    return length + ID_HEAD + value_size.to_bytes(2, "big") + prefix


def encode_plain(topic_name: str, payloads: Sequence[bytes], after: bytes) -> bytes:
    """As QoS 0 packets without ids; `after` stands behind the topic: the property length, or nothing."""
    topic = topic_name.encode()
    name = len(topic).to_bytes(2, "big") + topic + after
    if len(set(map(len, payloads))) == 1:
        head = b"\x30" + encode_remaining_length(len(name) + len(payloads[0])) + name
        return head.join((b"", *payloads))
    heads: dict[int, bytes] = {}
    packets = []
    for payload in payloads:
        size = len(payload)
        if size not in heads:
            heads[size] = b"\x30" + encode_remaining_length(len(name) + size) + name
        packets.append(heads[size] + payload)
    return b"".join(packets)
