"""What carriers at a foreign broker write to each other: payloads to values and back, for `stamps.py` and
`admission.py`.

All numbers are big-endian, and each payload begins with the version. A reader raises ValueError for what it
does not know, and reads no more than its bounds.

    presence   version, flags, life (8), rank (4), number of filters (2), each: length (2) and UTF-8
    stamps     version, flags, life (8), groups: origin length (2) and UTF-8, epoch (8), first sequence (8),
               count (2), as many fingerprints (8)
    question   version, 0, asker's life (8), pairs of fingerprints: topic (8), message (8)
    ids        version, groups as of stamps, without the fingerprints
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from struct import Struct, error
from typing import NamedTuple

from hedgerow.errors import TopicError
from hedgerow.message import MAX_NUMBER, Message, MessageId
from hedgerow.topics import validate_filter

VERSION = 1
CARRIES_IDS = 1  # of a presence
GOES_BEFORE = 1  # of stamps: their messages follow
MAX_FILTERS = 64  # A carrier with more says that it takes everything.
MAX_FILTER_BYTES = 4_096  # in all
MAX_STAMPS = 1_000  # in a publication, and as many ids
MAX_ORIGIN_BYTES = 255
MAX_PAYLOAD = 300_000  # MAX_STAMPS groups of one, with long origins
FINGERPRINT_BYTES = 8

Stamp = tuple[MessageId, bytes]
"""An id, and the fingerprint of the message that has it."""

_PRESENCE = Struct("!BBQIH")
_HEAD = Struct("!BBQ")
_GROUP = Struct("!QQH")
_LENGTH = Struct("!H")


class Presence(NamedTuple):
    life: int
    rank: int
    """0: it has just come, and leads nobody."""
    carries_ids: bool
    filters: tuple[str, ...]


def fingerprint(message: Message) -> bytes:
    """Of topic and payload alone: QoS, RETAIN and properties may differ between subscribers of one broker.

    Messages that are alike come to all in the same order, so they need no telling apart.
    """
    digest = blake2b(message.topic.encode(errors="surrogatepass"), digest_size=FINGERPRINT_BYTES)
    digest.update(b"\0")  # which no topic has
    digest.update(message.payload)
    return digest.digest()


def fingerprint_topic(topic: str) -> bytes:
    return blake2b(topic.encode(errors="surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()


def encode_presence(presence: Presence) -> bytes:
    filters = [each.encode() for each in presence.filters]
    if len(filters) > MAX_FILTERS or sum(map(len, filters)) > MAX_FILTER_BYTES:
        filters = [b"#"]
    flags = CARRIES_IDS if presence.carries_ids else 0
    head = _PRESENCE.pack(VERSION, flags, presence.life, presence.rank, len(filters))
    return head + b"".join(_LENGTH.pack(len(each)) + each for each in filters)


def decode_presence(payload: bytes) -> Presence:
    try:
        version, flags, life, rank, count = _PRESENCE.unpack_from(payload)
        _check(version == VERSION and count <= MAX_FILTERS and len(payload) <= MAX_PAYLOAD)
        position = _PRESENCE.size
        filters = []
        for _ in range(count):
            text, position = _read_text(payload, position, MAX_FILTER_BYTES)
            filters.append(validate_filter(text))
    except (error, TopicError) as reason:
        raise ValueError(f"not a presence: {reason}") from None
    _check(position == len(payload))
    return Presence(life, rank, bool(flags & CARRIES_IDS), tuple(filters))


def encode_stamps(life: int, stamps: Sequence[Stamp], goes_before: bool = False) -> list[bytes]:
    """As few payloads as hold them all, in order. An id that no reader would take is left out."""
    head = _HEAD.pack(VERSION, GOES_BEFORE if goes_before else 0, life)
    return [head + groups for groups in _encode_groups(stamps)]


def decode_stamps(payload: bytes) -> tuple[int, list[Stamp], bool]:
    """The life of who stamped, the stamps, and whether their messages are still to come."""
    stamps: list[Stamp] = []
    try:
        flags, life = _read_head(payload)
        position = _HEAD.size
        while position < len(payload):
            (origin, epoch, first), count, position = _read_group(payload, position)
            end = position + count * FINGERPRINT_BYTES
            _check(end <= len(payload))
            _check(len(stamps) + count <= MAX_STAMPS)
            prints = _cut(payload[position:end])
            stamps += [(MessageId(origin, epoch, first + n), each) for n, each in enumerate(prints)]
            position = end
    except error as reason:
        raise ValueError(f"not stamps: {reason}") from None
    return life, stamps, bool(flags & GOES_BEFORE)


def encode_ids(ids: Sequence[MessageId]) -> list[bytes]:
    """As few payloads as hold them all, in order. An id that no reader would take is left out."""
    return [bytes([VERSION]) + groups for groups in _encode_groups([(each, b"") for each in ids])]


def decode_ids(payload: bytes) -> list[MessageId]:
    _check(payload[:1] == bytes([VERSION]) and len(payload) <= MAX_PAYLOAD)
    ids: list[MessageId] = []
    position = 1
    try:
        while position < len(payload):
            (origin, epoch, first), count, position = _read_group(payload, position)
            _check(len(ids) + count <= MAX_STAMPS)
            ids += [MessageId(origin, epoch, first + n) for n in range(count)]
    except error as reason:
        raise ValueError(f"not ids: {reason}") from None
    return ids


def encode_question(life: int, prints: Sequence[tuple[bytes, bytes]]) -> bytes:
    return _HEAD.pack(VERSION, 0, life) + b"".join(topic + message for topic, message in prints)


def decode_question(payload: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """The life of who asks, and the fingerprints of topics and messages."""
    try:
        _, life = _read_head(payload)
    except error as reason:
        raise ValueError(f"not a question: {reason}") from None
    body = payload[_HEAD.size :]
    _check(len(body) % (2 * FINGERPRINT_BYTES) == 0 and len(body) <= MAX_STAMPS * 2 * FINGERPRINT_BYTES)
    prints = _cut(body)
    return life, list(zip(islice(prints, 0, None, 2), islice(prints, 1, None, 2), strict=True))


def is_usable(message_id: MessageId) -> bool:
    """Can it be told to others? A node's own always can."""
    origin, epoch, sequence = message_id
    return (
        0 < len(origin.encode(errors="surrogatepass")) <= MAX_ORIGIN_BYTES
        and "\0" not in origin
        and 0 <= epoch <= MAX_NUMBER
        and 0 <= sequence < MAX_NUMBER
    )


def _encode_groups(stamps: Sequence[Stamp]) -> list[bytes]:
    usable = [stamp for stamp in stamps if is_usable(stamp[0])]
    pieces = (usable[start : start + MAX_STAMPS] for start in range(0, len(usable), MAX_STAMPS))
    return [b"".join(map(_encode_group, _group(piece))) for piece in pieces]


def _group(stamps: Sequence[Stamp]) -> list[list[Stamp]]:
    """Ids in a row of one life share a head."""
    groups: list[list[Stamp]] = []
    for stamp in stamps:
        origin, epoch, sequence = stamp[0]
        if groups and groups[-1][-1][0] == (origin, epoch, sequence - 1):
            groups[-1].append(stamp)
        else:
            groups.append([stamp])
    return groups


def _encode_group(group: list[Stamp]) -> bytes:
    origin, epoch, first = group[0][0]
    name = origin.encode(errors="surrogatepass")
    head = _LENGTH.pack(len(name)) + name + _GROUP.pack(epoch, first, len(group))
    return head + b"".join(each for _, each in group)


def _read_group(payload: bytes, position: int) -> tuple[MessageId, int, int]:
    """The first id, how many there are, and where their fingerprints begin."""
    origin, position = _read_text(payload, position, MAX_ORIGIN_BYTES)
    epoch, first, count = _GROUP.unpack_from(payload, position)
    _check(bool(origin) and "\0" not in origin and count > 0)
    _check(first + count <= MAX_NUMBER and epoch <= MAX_NUMBER)
    return MessageId(origin, epoch, first), count, position + _GROUP.size


def _read_head(payload: bytes) -> tuple[int, int]:
    """Flags and life."""
    _check(len(payload) <= MAX_PAYLOAD)
    version, flags, life = _HEAD.unpack_from(payload)
    _check(version == VERSION)
    return flags, life


def _read_text(payload: bytes, position: int, max_bytes: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(payload, position)
    start = position + _LENGTH.size
    _check(length <= max_bytes and start + length <= len(payload))
    return payload[start : start + length].decode(), start + length  # UnicodeDecodeError is a ValueError


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + FINGERPRINT_BYTES] for at in range(0, len(data), FINGERPRINT_BYTES)]


def _check(is_right: bool) -> None:
    if not is_right:
        raise ValueError("a length or a version that does not fit")
