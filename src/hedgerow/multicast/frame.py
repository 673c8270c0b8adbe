"""The multicast frame: one datagram. docs/multicast.md draws it byte by byte.

A frame begins with a header of 32 bytes. If it is sealed, a key id and a counter follow in clear and
the rest is encrypted (`keys.py`). The rest is a topic, where the receiver could not know it, and a body
whose form the kind decides. All integers are big-endian.

The `parse_…` functions take what anyone may have sent: they raise `FrameError` and nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from struct import Struct, error, unpack_from
from typing import Any, NamedTuple

from hedgerow.errors import HedgerowError, TopicError
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt import packets, properties
from hedgerow.topics import validate_filter, validate_name

VERSION = 1
HEADER = Struct(">BBHI8sQQ")
HEADER_BYTES = HEADER.size  # 32
SEAL = Struct(">IQ")  # key id, counter
TAG_BYTES = 16
SEAL_BYTES = SEAL.size + TAG_BYTES
SENDER_BYTES = 8
MAX_ORIGIN_BYTES = 64
MAX_TOPIC_BYTES = 1_024  # A frame that carries its topic still has room for a message.
MAX_RANGES = 64  # of one repair request
MAX_ACKNOWLEDGED = 64  # streams of one ACKNOWLEDGEMENT
MAX_NAMES = 512  # of one TOPICS, INTEREST or HELLO: a datagram of 64 KiB could hold 21,000 short ones
# Of a message id. The store's integers are signed, and a batch counts on from its first sequence: an id that
# does not fit would keep a gateway's broker from storing anything.
MAX_SEQUENCE = (1 << 62) - 1
MAX_MICROSECONDS = 1 << 52  # The year 2112: beyond, a float no longer tells two microseconds apart.


class FrameError(ValueError):
    """A datagram that is not a frame, or a wrong one."""


class FrameKind(IntEnum):
    DATA = 1  # one message, several, or a piece of one
    HEARTBEAT = 2  # how far the sender's stream of this topic has come
    REPAIR = 3  # please send these of a stream again
    GONE = 4  # these of a stream will not come again
    TOPICS = 5  # topics that the sender publishes to
    INTEREST = 6  # filters whose topics, and last values, the sender asks for
    PRESENCE = 7  # here I am
    HELLO = 8  # to one peer: here I am, and perhaps: send me copies
    WELCOME = 9  # the answer to it
    CHALLENGE = 10  # prove that you are alive
    PROOF = 11  # the answer to it
    LEAVE = 12  # the sender goes
    ACKNOWLEDGEMENT = 13  # how far a receiver of one sender's streams is
    ASK = 14  # whoever listens to the sender's streams is to acknowledge at once


class Flags(IntFlag):
    SEALED = 0x0001
    TOPIC = 0x0002  # the topic is in the frame
    FRAGMENT = 0x0004  # a piece of a message
    FOREIGN = 0x0008  # the message has an id of its own, not the sender's
    TIME = 0x0010  # when it was published
    PROPERTIES = 0x0020  # MQTT 5 properties
    BATCH = 0x0040  # several payloads
    RETAIN = 0x0080
    HELD = 0x0100  # a last value for someone who asked, not a new publication
    QOS_1 = 0x0200
    QOS_2 = 0x0400
    AGE = 0x0800  # sent again: how long ago it was sent first


SEALED, TOPIC, FRAGMENT, FOREIGN, TIME, PROPERTIES, BATCH, RETAIN, HELD, QOS_1, QOS_2, AGE = map(int, Flags)
QOS_SHIFT = QOS_1.bit_length() - 1
_KNOWN_FLAGS = sum(map(int, Flags))
# What only a DATA frame may have. A SEALED or TOPIC flag may be anywhere.
_DATA_FLAGS = _KNOWN_FLAGS & ~(SEALED | TOPIC)
_KINDS = frozenset(map(int, FrameKind))
_DATA = int(FrameKind.DATA)


class Header(NamedTuple):
    version: int
    kind: int
    flags: int
    crc: int
    """CRC-32 of the topic that the frame is about; 0 when it is about none, or many."""
    sender: bytes
    stream_sequence: int
    """The number of the frame in the sender's stream of this topic; 0 outside of streams (QoS 0)."""
    message_sequence: int
    """Of the id of the first message in it."""


def parse_header(data: bytes) -> Header:
    try:
        header = Header._make(HEADER.unpack_from(data))
    except error:
        raise FrameError(f"{len(data)} bytes are no frame") from None
    if header.version != VERSION:
        raise FrameError(f"version {header.version}")
    if header.kind not in _KINDS:
        raise FrameError(f"kind {header.kind}")
    if header.flags & ~_KNOWN_FLAGS or (header.kind != _DATA and header.flags & _DATA_FLAGS):
        raise FrameError(f"flags {header.flags:#x} in {FrameKind(header.kind).name}")
    if header.stream_sequence > MAX_SEQUENCE:
        raise FrameError(f"stream sequence {header.stream_sequence}")
    if header.message_sequence > MAX_SEQUENCE:
        raise FrameError(f"message sequence {header.message_sequence}")
    return header


def pack_header(
    kind: int, flags: int, crc: int, sender: bytes, stream_sequence: int = 0, message_sequence: int = 0
) -> bytes:
    return HEADER.pack(VERSION, kind, flags, crc, sender, stream_sequence, message_sequence)


# The topic, where the frame has one (flag TOPIC).


def pack_topic(topic: str) -> bytes:
    encoded = topic.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def parse_topic(data: bytes) -> tuple[str, bytes]:
    """The topic and what follows it."""
    topic, rest = _take_text(data, 2)
    if len(data) - len(rest) - 2 > MAX_TOPIC_BYTES:
        raise FrameError(f"a topic of more than {MAX_TOPIC_BYTES} bytes")
    try:
        return validate_name(topic), rest
    except TopicError as problem:
        raise FrameError(str(problem)) from None


def _take_text(data: bytes, length_bytes: int) -> tuple[str, bytes]:
    end = length_bytes + int.from_bytes(data[:length_bytes], "big")
    if len(data) < max(end, length_bytes):
        raise FrameError("a text longer than its frame")
    try:
        return data[length_bytes:end].decode(), data[end:]
    except UnicodeDecodeError:
        raise FrameError("a text that is not UTF-8") from None


# How long ago a frame that comes again was sent first (flag AGE), before everything else of its body.

AGE_BYTES = 4
MAX_AGE_MS = 0xFFFFFFFF


def pack_age(age_s: float) -> bytes:
    return min(max(round(age_s * 1000), 0), MAX_AGE_MS).to_bytes(AGE_BYTES, "big")


def parse_age(body: bytes) -> tuple[float, bytes]:
    """Seconds, and what follows."""
    if len(body) < AGE_BYTES:
        raise FrameError("a body that is too short")
    return int.from_bytes(body[:AGE_BYTES], "big") / 1000, body[AGE_BYTES:]


# DATA: one message is `content`, which may be cut into fragments. Several in one frame are a batch.

_FRAGMENT = Struct(">HH")  # index, count
FRAGMENT_BYTES = _FRAGMENT.size
_ID = Struct(">QQ")  # epoch, sequence


def pack_fragment(index: int, count: int, piece: bytes) -> bytes:
    return _FRAGMENT.pack(index, count) + piece


def parse_fragment(body: bytes) -> tuple[int, int, bytes]:
    """(index, count, piece)."""
    if len(body) <= FRAGMENT_BYTES:
        raise FrameError("a fragment with nothing in it")
    index, count = _FRAGMENT.unpack_from(body)
    if not index < count or count < 2:
        raise FrameError(f"fragment {index} of {count}")
    return index, count, body[FRAGMENT_BYTES:]


def pack_content(message: Message, origin: str, published_at: float | None) -> tuple[int, bytes]:
    """(flags, bytes) of a message whose sender is `origin`."""
    flags = message.qos << QOS_SHIFT
    parts = []
    message_id = message.id
    if message_id is not None and (message_id.origin, message_id.epoch) != (origin, 0):
        flags |= FOREIGN
        encoded = message_id.origin.encode()
        if len(encoded) > MAX_ORIGIN_BYTES:
            raise ValueError(f"an origin of {len(encoded)} bytes; at most {MAX_ORIGIN_BYTES} fit")
        parts += [bytes((len(encoded),)), encoded, _ID.pack(message_id.epoch, message_id.sequence)]
    if published_at is not None:
        flags |= TIME
        parts.append(round(published_at * 1e6).to_bytes(8, "big"))
    if message.properties:
        flags |= PROPERTIES
        parts.append(properties.encode(message.properties, packets.PUBLISH))
    if message.retain:
        flags |= RETAIN
    parts.append(message.payload)
    return flags, b"".join(parts)


def parse_content(topic: str, flags: int, message_id: MessageId, content: bytes) -> Message:
    """The message of a frame, or of the fragments put together; `message_id` unless it has its own."""
    published_at = None
    own: Properties = {}
    try:
        if flags & FOREIGN:
            origin, content = _take_text(content, 1)
            message_id = MessageId(origin, *_ID.unpack_from(content))
            content = content[_ID.size :]
            if not 0 < len(origin.encode()) <= MAX_ORIGIN_BYTES:
                raise FrameError("a message id whose origin is empty or too long")
            if max(message_id.epoch, message_id.sequence) > MAX_SEQUENCE:
                raise FrameError(f"message id {message_id}")
        if flags & TIME:
            (microseconds,) = unpack_from(">Q", content)
            if microseconds > MAX_MICROSECONDS:
                raise FrameError(f"published {microseconds} microseconds after 1970")
            published_at = microseconds / 1e6
            content = content[8:]
        if flags & PROPERTIES:
            own, end = properties.decode(content, 0, packets.PUBLISH)
            content = content[end:]
            if properties.of_message(own) != own:
                raise FrameError("a property that belongs to one MQTT connection")
    except FrameError:
        raise
    except (HedgerowError, ValueError, error) as problem:
        raise FrameError(f"a message that cannot be read: {problem}") from None
    qos = flags >> QOS_SHIFT & 3
    if qos == 3:
        raise FrameError("QoS 3")
    message = Message(topic, content, qos, bool(flags & RETAIN), own, message_id)
    message.published_at = published_at
    return message


def pack_batch(payloads: Iterable[bytes]) -> bytes:
    return b"".join([part for payload in payloads for part in (len(payload).to_bytes(2, "big"), payload)])


def parse_batch(body: bytes) -> list[bytes]:
    end = len(body)
    step = 2 + int.from_bytes(body[:2], "big")
    count = end // step
    if count * step == end and body[::step] == body[:1] * count and body[1::step] == body[1:2] * count:
        # All as long as the first, as they mostly are: cut without a look at each length, in a third of
        # the time.
        return [body[start : start + step - 2] for start in range(2, end + 1, step)]
    payloads = []
    position = 0
    while position < end:
        start = position + 2
        position = start + (body[start - 2] << 8 | body[start - 1]) if start <= end else end + 1
        if position > end:
            raise FrameError("a batch that ends within a payload")
        payloads.append(body[start:position])
    return payloads


# The other kinds.

_HEARTBEAT = Struct(">Q")
_REPAIR = Struct(">8sI")
_RANGE = Struct(">QH")
ANY_AGE = 0xFFFFFFFF


class RepairRequest(NamedTuple):
    sender: bytes
    """Whose stream: the request goes to all, so that those with the same gap need not ask."""
    newer_than_ms: int
    """Only what was published within this time: since then has the asker been subscribed."""
    ranges: list[tuple[int, int]]
    """(first, count) of stream sequences."""


def pack_heartbeat(oldest: int) -> bytes:
    """The header says the last sequence of the stream; this, the first that can still be had."""
    return _HEARTBEAT.pack(oldest)


def parse_heartbeat(body: bytes) -> int:
    return int(_unpack(_HEARTBEAT, body)[0])


_GONE = Struct(">8sQ")
_GONE_MESSAGES = Struct(">Q")
EVERYONE = bytes(SENDER_BYTES)


class Gone(NamedTuple):
    member: bytes
    """For whom: one that asked for what is older than its subscription, or EVERYONE."""
    last: int
    """Up to this sequence nothing comes again."""
    messages: int = 0
    """So many did this member miss by that; 0: not known, as where it acknowledged nothing."""


def pack_gone(gone: Gone) -> bytes:
    return _GONE.pack(gone.member, gone.last) + _GONE_MESSAGES.pack(gone.messages)


def parse_gone(body: bytes) -> Gone:
    member, last = _unpack(_GONE, body)
    rest = body[_GONE.size :]
    messages = _GONE_MESSAGES.unpack_from(rest)[0] if len(rest) >= _GONE_MESSAGES.size else 0
    return Gone(member, last, min(messages, MAX_SEQUENCE))


# ACKNOWLEDGEMENT names streams by their topics' hashes: two topics of one sender may have the same CRC.

_ACKNOWLEDGEMENT = Struct(">8sI")
_ACKNOWLEDGED = Struct(">8sQ")
HASH_BYTES = 8
CEASED = (1 << 64) - 1  # In the place of a sequence: this stream is no longer listened to.


class Acknowledgement(NamedTuple):
    sender: bytes
    """Whose streams."""
    window: int
    """So many bytes of them, as `WINDOW_FRAME_BYTES` counts, may be under way to this receiver."""
    streams: list[tuple[bytes, int]]
    """(topic hash, the last stream sequence that is taken, as are all before it), or CEASED."""


def pack_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    sender, window, streams = acknowledgement
    return _ACKNOWLEDGEMENT.pack(sender, window) + b"".join([_ACKNOWLEDGED.pack(*each) for each in streams])


def parse_acknowledgement(body: bytes) -> Acknowledgement:
    sender, window = _unpack(_ACKNOWLEDGEMENT, body)
    rest = body[_ACKNOWLEDGEMENT.size :]
    if len(rest) % _ACKNOWLEDGED.size or len(rest) > MAX_ACKNOWLEDGED * _ACKNOWLEDGED.size:
        raise FrameError("an acknowledgement with a torn stream")
    streams = list(_ACKNOWLEDGED.iter_unpack(rest))
    if any(MAX_SEQUENCE < sequence != CEASED for _, sequence in streams):
        raise FrameError("an acknowledgement beyond the last stream sequence")
    return Acknowledgement(sender, window, streams)


def pack_repair(repair: RepairRequest) -> bytes:
    ranges = [_RANGE.pack(first, count) for first, count in repair.ranges[:MAX_RANGES]]
    return _REPAIR.pack(repair.sender, repair.newer_than_ms) + b"".join(ranges)


def parse_repair(body: bytes) -> RepairRequest:
    sender, newer_than_ms = _unpack(_REPAIR, body)
    rest = body[_REPAIR.size :]
    if len(rest) % _RANGE.size or not 0 < len(rest) <= MAX_RANGES * _RANGE.size:
        raise FrameError("a repair request with a torn range")
    ranges = [(first, count) for first, count in _RANGE.iter_unpack(rest) if first and count]
    return RepairRequest(sender, newer_than_ms, ranges)


def pack_names(names: Iterable[str]) -> bytes:
    return b"".join(map(pack_topic, names))


def parse_names(body: bytes, are_filters: bool) -> list[str]:
    """The topics of TOPICS, or the filters of INTEREST and HELLO."""
    names = []
    while body:
        if are_filters:
            name, body = _take_text(body, 2)
            try:
                validate_filter(name)
            except TopicError as problem:
                raise FrameError(str(problem)) from None
        else:
            name, body = parse_topic(body)
        names.append(name)
        if len(names) > MAX_NAMES:
            raise FrameError(f"more than {MAX_NAMES} names")
    return names


class GroupInterest(NamedTuple):
    wants_values: bool
    """The last values of the topics too, not only their names."""
    filters: list[str]


def pack_interest(interest: GroupInterest) -> bytes:
    return bytes((interest.wants_values,)) + pack_names(interest.filters)


def parse_interest(body: bytes) -> GroupInterest:
    if not body:
        raise FrameError("a body that is too short")
    return GroupInterest(bool(body[0]), parse_names(body[1:], are_filters=True))


_HELLO = Struct(">8sB")
COOKIE_BYTES = 8
NO_COOKIE = bytes(COOKIE_BYTES)


class Hello(NamedTuple):
    cookie: bytes
    """What the peer's WELCOME said, which shows that we are where we say; zeros before."""
    wants_copies: bool
    """We do not hear the peer's multicast: it is to send what matches our filters to us alone."""
    filters: list[str]


def pack_hello(hello: Hello) -> bytes:
    return _HELLO.pack(hello.cookie, hello.wants_copies) + pack_names(hello.filters)


def parse_hello(body: bytes) -> Hello:
    cookie, wants_copies = _unpack(_HELLO, body)
    return Hello(cookie, bool(wants_copies), parse_names(body[_HELLO.size :], are_filters=True))


_CHALLENGE = Struct(">8s16s")
NONCE_BYTES = 16


class Challenge(NamedTuple):
    """CHALLENGE: whom it is for; PROOF: whose it answers."""

    member: bytes
    nonce: bytes


def pack_challenge(challenge: Challenge) -> bytes:
    return _CHALLENGE.pack(*challenge)


def parse_challenge(body: bytes) -> Challenge:
    return Challenge(*_unpack(_CHALLENGE, body))


def parse_welcome(body: bytes) -> bytes:
    """The cookie that a HELLO is to bring back."""
    if len(body) != COOKIE_BYTES:
        raise FrameError("a cookie of another length")
    return body


def _unpack(form: Struct, body: bytes) -> tuple[Any, ...]:
    try:
        return form.unpack_from(body)
    except error:
        raise FrameError("a body that is too short") from None
