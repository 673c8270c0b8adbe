"""The control messages between federators, as bytes.

A packet is a version, a kind, and entries of that kind up to its end. The kinds are the document's CORE_ANN,
MESH_MEMB_ANN, NEW_REGULAR_TOPIC and DATA, and some that it does not have: ASK and LIST, by which filters are
told once and not with each announcement, REPAIR, by which an early announcement is asked for, DISTANCE, by
which one that was passed on is corrected, and PART_ANN and PART_LIST, which are CORE_ANN and LIST of a core
of whose filters the sender may not tell all, or does not know all. No entry names its sender: that is whoever
is at the other end of the link. The number of DATA is reserved: publications travel on the neighbours' own
MQTT connection, or in the frames of a tunnel (`federation/tunnel`).

Numbers are little-endian in groups of seven bits; texts are UTF-8 behind their length; of a row of filters
each says how many bytes it shares with the one before. `decode` takes what anyone may have sent: it raises
`WireError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from hedgerow.errors import TopicError
from hedgerow.federation.mesh.limits import (
    MAX_EXPANDED_BYTES,
    MAX_ID_BYTES,
    MAX_PACKET_BYTES,
    MAX_SEQUENCE,
)
from hedgerow.topics import is_local, validate_filter

VERSION = 1

E = TypeVar("E")


class WireError(ValueError):
    """A packet that is to be ignored; its text is the reason under which it is counted."""


class MeshKind(IntEnum):
    CORE_ANN = 1  # these are cores, this far from here
    MESH_MEMB_ANN = 2  # the sender is a mesh member, and the receiver its parent
    NEW_REGULAR_TOPIC = 3  # a client to its federator: it subscribed, or no longer does
    DATA = 4  # reserved: a tunnel's frame
    ASK = 5  # please send this list whole
    LIST = 6  # the filters of a core
    REPAIR = 7  # a way to this core is lost: may it announce itself anew
    DISTANCE = 8  # this core, whose last announcement I have passed on, is nearer than I said
    PART_ANN = 9  # as CORE_ANN, with some of the filters
    PART_LIST = 10  # as LIST


_KINDS = {kind.value: kind for kind in MeshKind}


class FilterChanges(NamedTuple):
    """How a set of filters came from version `since` to `version`; from 0 it is the whole set.

    Where both are the same, nothing is told of it: who has another version has to ask.
    """

    version: int
    since: int
    size: int
    """How many filters it holds then, by which a mistake is noticed."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class CoreAnnouncement(NamedTuple):
    core: str
    sequence: int
    distance: int
    """From the sender to the core."""
    lifetime_s: float
    changes: FilterChanges
    """Of the filters of whose meshes it is the core."""
    edition: int = 0
    """0: of all of them. Else of some: the same number stands for the same ones of that version."""


class MembershipAnnouncement(NamedTuple):
    core: str
    sequence: int
    changes: FilterChanges
    """Of the filters of whose meshes the sender is a member."""


class About(IntEnum):
    LIST = 1  # the filters of this core
    MEMBERSHIP = 2  # the filters of this core of whose meshes the asked one is a member


class Question(NamedTuple):
    about: About
    core: str


class FilterList(NamedTuple):
    core: str
    version: int
    is_first: bool
    is_last: bool
    size: int
    filters: tuple[str, ...]
    edition: int = 0
    """As in `CoreAnnouncement`."""


class Repair(NamedTuple):
    core: str
    sequence: int
    """The announcement by which the lost way was known."""


class Correction(NamedTuple):
    core: str
    sequence: int
    """Of the announcement that was passed on."""
    distance: int
    """From the sender to the core: smaller than it was told."""


class RegularTopic(NamedTuple):
    topic_filter: str
    is_subscribed: bool


Entry = CoreAnnouncement | MembershipAnnouncement | RegularTopic | Question | FilterList | Repair | Correction


def encode_packet(kind: MeshKind, entries: Iterable[bytes]) -> bytes:
    return bytes((VERSION, kind)) + b"".join(entries)


def encode_core_announcement(entry: CoreAnnouncement) -> bytes:
    tenths = max(1, round(entry.lifetime_s * 10))
    numbers = encode_numbers(entry.sequence, entry.distance, tenths, *_edition(entry))
    return encode_text(entry.core) + numbers + _changes(entry.changes)


def encode_membership(entry: MembershipAnnouncement) -> bytes:
    return encode_text(entry.core) + encode_numbers(entry.sequence) + _changes(entry.changes)


def encode_regular_topic(entry: RegularTopic) -> bytes:
    return encode_numbers(entry.is_subscribed) + _filters((entry.topic_filter,))


def encode_question(entry: Question) -> bytes:
    return encode_numbers(entry.about) + encode_text(entry.core)


def encode_list(entry: FilterList) -> bytes:
    flags = entry.is_first | entry.is_last << 1
    numbers = encode_numbers(*_edition(entry), entry.version, flags, entry.size)
    return encode_text(entry.core) + numbers + _filters(entry.filters)


def _edition(entry: CoreAnnouncement | FilterList) -> tuple[int, ...]:
    return (entry.edition,) if entry.edition else ()


def encode_repair(entry: Repair) -> bytes:
    return encode_text(entry.core) + encode_numbers(entry.sequence)


def encode_correction(entry: Correction) -> bytes:
    return encode_text(entry.core) + encode_numbers(entry.sequence, entry.distance)


def kind_of(payload: bytes) -> MeshKind:
    """What the packet is; raises WireError for what is none of ours."""
    if len(payload) > MAX_PACKET_BYTES:
        raise WireError("too large")
    if len(payload) < 2:
        raise WireError("malformed")
    if payload[0] != VERSION:
        raise WireError("version")
    kind = _KINDS.get(payload[1])
    if kind is None:
        raise WireError("kind")
    return kind


def decode(payload: bytes) -> tuple[MeshKind, list[Entry]]:
    """The kind and every entry; one that is wrong makes all of them void."""
    kind = kind_of(payload)
    read = _READERS.get(kind)
    if read is None:
        raise WireError("kind")
    reader = MeshPacketReader(payload, 2)
    entries = []
    while reader.position < len(payload):
        entries.append(read(reader))
    return kind, entries


def parts(filters: Sequence[str], part_bytes: int) -> list[tuple[str, ...]]:
    """The filters, cut where a packet is full. Counted without what they share, so that a reader's bound on
    what it unfolds is kept too. There is always one part."""
    cut: list[tuple[str, ...]] = []
    start = size = 0
    for position, topic_filter in enumerate(filters):
        length = len(topic_filter) * 3 + 4  # UTF-8 takes three bytes for a character at most, four for a pair
        if size and size + length > part_bytes * 3:
            cut.append(tuple(filters[start:position]))
            start, size = position, 0
        size += length
    cut.append(tuple(filters[start:]))
    return cut


class MeshPacketReader:
    """Takes a packet apart; raises WireError where it is not as it should be."""

    __slots__ = ("_data", "_expanded", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._expanded = 0
        self.position = position

    def numbers(self, count: int) -> list[int]:
        """Together: one by one, they were half of the time that an announcement took."""
        data, position = self._data, self.position
        found = []
        try:
            for _ in range(count):
                value = byte = data[position]
                position += 1
                if byte > 0x7F:
                    value &= 0x7F
                    shift = 7
                    while byte > 0x7F and shift <= 63:
                        byte = data[position]
                        position += 1
                        value |= (byte & 0x7F) << shift
                        shift += 7
                    if not byte or byte > 0x7F or value > MAX_SEQUENCE:  # One number has one form.
                        raise WireError("malformed")
                found.append(value)
        except IndexError:
            raise WireError("malformed") from None
        self.position = position
        return found

    def number(self, maximum: int = MAX_SEQUENCE) -> int:
        (value,) = self.numbers(1)
        if value > maximum:
            raise WireError("malformed")
        return value

    def flag(self) -> bool:
        return self.number(1) == 1

    def bytes(self) -> bytes:
        length = self.number()
        end = self.position + length
        if end > len(self._data):
            raise WireError("malformed")
        value = self._data[self.position : end]
        self.position = end
        return value

    def name(self) -> str:
        """The id of a node."""
        raw = self.bytes()
        if not 0 < len(raw) <= MAX_ID_BYTES:
            raise WireError("malformed")
        return _decode_text(raw)

    def filters(self) -> tuple[str, ...]:
        count = self.number(len(self._data))
        found: list[str] = []
        before = b""
        for _ in range(count):
            shared = self.number(len(before))
            before = before[:shared] + self.bytes()
            self._expanded += len(before)
            if self._expanded > MAX_EXPANDED_BYTES:
                raise WireError("too large")
            topic_filter = _decode_text(before)
            # A broker's own affair: a neighbour must not get our $SYS by asking for it.
            if is_local(topic_filter):
                raise WireError("local topic")
            try:
                found.append(validate_filter(topic_filter))
            except TopicError:
                raise WireError("malformed") from None
        return tuple(found)

    def changes(self, version: int, since: int, size: int) -> FilterChanges:
        if since == version:
            return FilterChanges(version, since, size)
        return FilterChanges(version, since, size, self.filters(), self.filters())


def _decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise WireError("malformed") from None


def _read_core_announcement(reader: MeshPacketReader) -> CoreAnnouncement:
    name = reader.name()
    sequence, distance, tenths, version, since, size = reader.numbers(6)
    return CoreAnnouncement(name, sequence, distance, tenths / 10, reader.changes(version, since, size))


def _read_part_announcement(reader: MeshPacketReader) -> CoreAnnouncement:
    name = reader.name()
    sequence, distance, tenths, edition, version, since, size = reader.numbers(7)
    changes = reader.changes(version, since, size)
    return CoreAnnouncement(name, sequence, distance, tenths / 10, changes, _known_edition(edition))


def _known_edition(edition: int) -> int:
    if not edition:
        raise WireError("malformed")
    return edition


def _read_membership(reader: MeshPacketReader) -> MembershipAnnouncement:
    name = reader.name()
    sequence, version, since, size = reader.numbers(4)
    return MembershipAnnouncement(name, sequence, reader.changes(version, since, size))


def _read_regular_topic(reader: MeshPacketReader) -> RegularTopic:
    is_subscribed = reader.flag()
    filters = reader.filters()
    if len(filters) != 1:
        raise WireError("malformed")
    return RegularTopic(filters[0], is_subscribed)


def _read_question(reader: MeshPacketReader) -> Question:
    try:
        about = About(reader.number())
    except ValueError:
        raise WireError("malformed") from None
    return Question(about, reader.name())


def _read_list(reader: MeshPacketReader) -> FilterList:
    name, version, flags, size = reader.name(), reader.number(), reader.number(3), reader.number()
    return FilterList(name, version, bool(flags & 1), bool(flags & 2), size, reader.filters())


def _read_part_list(reader: MeshPacketReader) -> FilterList:
    name, edition = reader.name(), _known_edition(reader.number())
    version, flags, size = reader.number(), reader.number(3), reader.number()
    return FilterList(name, version, bool(flags & 1), bool(flags & 2), size, reader.filters(), edition)


def _read_repair(reader: MeshPacketReader) -> Repair:
    return Repair(reader.name(), reader.number())


def _read_correction(reader: MeshPacketReader) -> Correction:
    return Correction(reader.name(), *reader.numbers(2))


_READERS: dict[MeshKind, Callable[[MeshPacketReader], Entry]] = {
    MeshKind.CORE_ANN: _read_core_announcement,
    MeshKind.MESH_MEMB_ANN: _read_membership,
    MeshKind.NEW_REGULAR_TOPIC: _read_regular_topic,
    MeshKind.ASK: _read_question,
    MeshKind.LIST: _read_list,
    MeshKind.REPAIR: _read_repair,
    MeshKind.DISTANCE: _read_correction,
    MeshKind.PART_ANN: _read_part_announcement,
    MeshKind.PART_LIST: _read_part_list,
}


def encode_numbers(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        value = int(value)
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def encode_text(text: str) -> bytes:
    raw = text.encode()
    return encode_numbers(len(raw)) + raw


def _filters(filters: Sequence[str]) -> bytes:
    out = [encode_numbers(len(filters))]
    before = b""
    for topic_filter in filters:
        raw = topic_filter.encode()
        shared = _shared(before, raw)
        out += encode_numbers(shared, len(raw) - shared), raw[shared:]
        before = raw
    return b"".join(out)


def _shared(one: bytes, other: bytes) -> int:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def _changes(changes: FilterChanges) -> bytes:
    head = encode_numbers(changes.version, changes.since, changes.size)
    if changes.since == changes.version:
        return head
    return head + _filters(changes.added) + _filters(changes.removed)
