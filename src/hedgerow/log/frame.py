"""A frame: the messages of one commit, in the form in which they are read back as columns.

    header       marker, first position, counts and sizes, earliest and latest time of reception, checksums
    strings      how long each is, then all: topics, clients, …, each once; runs name them by number
    runs         what messages in a row have in common: topic, client, QoS, times, the id of the first; first
                 one of these of all runs, then the next
    lengths      of the payloads
    payloads     one after the other; those of a run may each have a *head* of one size before them

A frame needs nothing outside of itself, so one that is damaged takes no other with it. Its parts are laid
out so that the writer makes them in a few calls a frame, without numpy or pyarrow,
and the reader turns those of many frames into columns with a few array operations. The payloads have a
checksum of their own: who wants only topics and times does not read them. All numbers are little-endian;
string 0 is none, the others count from 1.

Heads are there for the busiest publishers. Their packets are stored as they came, with the bytes before each
payload: to take these out costs a writer in Python more than all the rest, and the reader, which has numpy,
next to nothing. Nobody is given a head.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise, repeat
from itertools import count as count_from
from struct import Struct, calcsize, unpack
from typing import Any, NamedTuple

from hedgerow.log.checksum import crc32, crc32_of
from hedgerow.message import MessageId

MAX_ROWS = 32_768  # of a frame
MAX_RUNS = 10_000  # of a frame: each may have six strings of its own, and two bytes name one.
MAX_BYTES = 4 * 1024 * 1024  # A frame that has so many is full; a payload is never cut.
NO_TIME = -(2**63)

HEADER = Struct("<8sQIIIIIqqII")
# What a run has, and its type in the words of `array` and `struct`. Those of type H are numbers of strings.
# `packet_id` is no column: a recorder knows by it what its broker sends once more (`deliveries.py`).
RUN_FIELDS = {
    "rows": "I", "broker": "H", "transport": "H", "client": "H", "origin": "H", "topic": "H",
    "properties": "H", "epoch": "q", "sequence": "q", "published_at": "q", "received_at": "q", "flags": "B",
    "head": "I", "packet_id": "I",
}  # fmt: skip
_FIELD_BYTES = [calcsize(f"<{code}") for code in RUN_FIELDS.values()]
_FIELD_BEGINS = dict(zip(RUN_FIELDS, accumulate([0, *_FIELD_BYTES]), strict=False))
RUN_BYTES = sum(_FIELD_BYTES)
_CHECKSUM = Struct("<I")
_NO_ID = (None, 0, 0)
HEADER_BYTES = HEADER.size + _CHECKSUM.size
_WINDOW_BYTES = 64 * 1024  # Read at once: small frames without a call of the system each, large ones in part.
_NEAR_BYTES = 65_536  # some tens of small frames
_PIECE_BYTES = 4_096  # Payloads, and packets in a row, that are longer are written from where they are.


class Group:
    """The messages of a frame to be, as they are appended."""

    def __init__(self, first_position: int) -> None:
        self.first_position = first_position
        self.rows = 0
        self.bytes = 0
        """About what it takes in memory and on the disk."""
        self.is_full = False
        self._runs: list[tuple[object, ...]] = []  # in the order of RUN_FIELDS
        self._payloads: list[bytes] = []  # with their heads, where they have some
        self._lengths = array("I")

    @property
    def end_position(self) -> int:
        return self.first_position + self.rows

    @property
    def room(self) -> int:
        """How many messages it may still get."""
        return 0 if self.is_full else MAX_ROWS - self.rows

    def add(
        self,
        payloads: Sequence[bytes],
        broker: str | None,
        transport: str | None,
        client: str | None,
        topic: str,
        properties: str | None,
        first_id: MessageId | None,
        published_at: int,
        received_at: int,
        flags: int,
        packet_id: int = 0,
    ) -> None:
        """Messages in a row, with what they have in common. Their sequences count up from that of `first_id`;
        times are in microseconds, or NO_TIME; `flags` are the QoS, and 4 for RETAIN."""
        origin, epoch, sequence = first_id or _NO_ID
        count = len(payloads)
        self._runs.append(
            (count, broker, transport, client, origin, topic, properties, epoch, sequence, published_at,
             received_at, flags, 0, packet_id)
        )  # fmt: skip
        if count == 1:
            self._payloads.append(payloads[0])
            size = len(payloads[0])
            self._lengths.append(size)
        else:
            self._payloads += payloads
            lengths = array("I", map(len, payloads))
            self._lengths += lengths
            size = sum(lengths)
        self._grow(count, size, topic, client, properties)

    def add_each(
        self,
        payloads: Sequence[bytes],
        clients: Sequence[str | None],
        topics: Sequence[str],
        ids: Sequence[MessageId | None],
        received_at: int,
        flags: Sequence[int],
    ) -> None:
        """As `add` for each of these, which have nothing in common."""
        none: Iterator[None] = repeat(None)
        origins, epochs, sequences = zip(*[each or _NO_ID for each in ids], strict=True)
        self._runs += zip(
            repeat(1), none, none, clients, origins, topics, none, epochs, sequences, repeat(NO_TIME),
            repeat(received_at), flags, repeat(0), repeat(0)
        )  # fmt: skip
        self._payloads += payloads
        lengths = array("I", map(len, payloads))
        self._lengths += lengths
        count = len(payloads)
        self.rows += count
        self.bytes += sum(lengths) + (RUN_BYTES + 4) * count + sum(map(len, topics))
        self.bytes += sum([len(each) for each in clients if each is not None])
        self._note_full()

    def add_packets(
        self,
        packets: bytes,
        count: int,
        head: int,
        broker: str,
        transport: str,
        client: str | None,
        topic: str,
        first_id: MessageId | None,
        received_at: int,
        flags: int,
    ) -> None:
        """As `add`, for so many payloads of one size with `head` bytes before each."""
        origin, epoch, sequence = first_id or _NO_ID
        self._runs.append(
            (count, broker, transport, client, origin, topic, None, epoch, sequence, NO_TIME, received_at,
             flags, head, 0)
        )  # fmt: skip
        self._payloads.append(packets)
        self._lengths += array("I", (len(packets) // count - head,)) * count
        self._grow(count, len(packets), topic, client, None)

    def _grow(self, count: int, size: int, topic: str, client: str | None, properties: str | None) -> None:
        self.rows += count
        self.bytes += size + RUN_BYTES + 4 * count + len(topic)
        if client is not None:
            self.bytes += len(client)  # up to 64 KB, and a stranger may have another for each message
        if properties is not None:
            self.bytes += len(properties)
        self._note_full()

    def _note_full(self) -> None:
        if self.rows >= MAX_ROWS or self.bytes >= MAX_BYTES or len(self._runs) >= MAX_RUNS:
            self.is_full = True

    def encode(self, marker: bytes) -> list[bytes]:
        """What stands before the payloads, and these, in pieces: to be written one behind the other."""
        fields = dict(zip(RUN_FIELDS, zip(*self._runs, strict=True), strict=True))
        # Most are the same in all runs: that is found out faster than each is looked up.
        fields = {name: _first_if_all_are(column) for name, column in fields.items()}
        texts = [fields[name] for name, code in RUN_FIELDS.items() if code == "H"]
        numbers = dict.fromkeys(chain((None,), *texts))
        # Whatever someone gave for a text: this thread must not fail on what nobody can take back.
        encoded = [str(text).encode(errors="replace") for text in islice(numbers, 1, None)]
        numbers = dict(zip(numbers, count_from(0), strict=False))
        count = len(self._runs)
        runs = [
            _to_bytes(code, map(numbers.__getitem__, fields[name]) if code == "H" else fields[name])
            * (count // len(fields[name]))
            for name, code in RUN_FIELDS.items()
        ]
        payloads = self._payloads
        payload_bytes = sum(map(len, payloads))
        if payload_bytes < _PIECE_BYTES * len(payloads):
            payloads = [b"".join(payloads)]  # A copy is cheaper than so many pieces.
        strings = b"".join(encoded)
        lengths = _to_bytes("I", self._lengths)
        meta = b"".join((_to_bytes("I", map(len, encoded)), strings, *runs, lengths))
        header = HEADER.pack(
            marker,
            self.first_position,
            self.rows,
            len(encoded),
            len(strings),
            len(self._runs),
            payload_bytes,
            min(fields["received_at"]),
            max(fields["received_at"]),
            crc32(meta),
            crc32_of(payloads),
        )
        return [b"".join((header, _CHECKSUM.pack(crc32(header)), meta)), *payloads]


def _first_if_all_are(column: tuple[Any, ...]) -> tuple[Any, ...]:
    return column[:1] if column.count(column[0]) == len(column) else column


def _to_bytes(code: str, numbers: Iterable[Any]) -> bytes:
    written = array(code, numbers)
    if sys.byteorder == "big":
        written.byteswap()
    return written.tobytes()


class LogFrame(NamedTuple):
    """The header of a frame, and where in its file it begins."""

    offset: int
    first_position: int
    rows: int
    strings: int
    string_bytes: int
    runs: int
    payload_bytes: int
    earliest: int
    latest: int
    meta_checksum: int
    payload_checksum: int

    @classmethod
    def read(cls, data: bytes | memoryview, offset: int, marker: bytes) -> LogFrame | None:
        """The header that the data begin with. None: there is none, or it is damaged."""
        if len(data) < HEADER_BYTES or data[: len(marker)] != marker:
            return None
        if crc32(data[: HEADER.size]) != _CHECKSUM.unpack_from(data, HEADER.size)[0]:
            return None
        return cls(offset, *HEADER.unpack_from(data)[1:])

    @property
    def end_position(self) -> int:
        return self.first_position + self.rows

    @property
    def meta_bytes(self) -> int:
        return 4 * self.strings + self.string_bytes + RUN_BYTES * self.runs + 4 * self.rows

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.meta_bytes + self.payload_bytes

    def read_meta(self, file: SegmentFile) -> memoryview | None:
        """Strings, runs and lengths. None: they are damaged."""
        meta = file.read(self.offset + HEADER_BYTES, self.meta_bytes)
        return meta if crc32(meta) == self.meta_checksum else None

    def read_payloads(self, file: SegmentFile) -> memoryview | None:
        """One after the other, with their heads. None: they are damaged."""
        payloads = file.read(self.offset + HEADER_BYTES + self.meta_bytes, self.payload_bytes)
        return payloads if crc32(payloads) == self.payload_checksum else None

    def string_parts(self, meta: memoryview) -> tuple[memoryview, memoryview]:
        """How long each is, and all of them."""
        return meta[: 4 * self.strings], meta[4 * self.strings : 4 * self.strings + self.string_bytes]

    def field(self, meta: memoryview, name: str) -> memoryview:
        """One of RUN_FIELDS, of all runs."""
        begin = 4 * self.strings + self.string_bytes + self.runs * _FIELD_BEGINS[name]
        return meta[begin : begin + self.runs * calcsize(f"<{RUN_FIELDS[name]}")]

    def lengths(self, meta: memoryview) -> memoryview:
        """Of the payloads."""
        return meta[self.meta_bytes - 4 * self.rows :]

    def numbers(self, meta: memoryview, name: str) -> tuple[int, ...]:
        return unpack(f"<{self.runs}{RUN_FIELDS[name]}", self.field(meta, name))

    def texts(self, meta: memoryview) -> list[str]:
        """The strings; the first, which is none, is empty."""
        sizes, strings = self.string_parts(meta)
        ends = [0, 0, *accumulate(unpack(f"<{self.strings}I", sizes))]
        return [str(strings[begin:end], "utf-8") for begin, end in pairwise(ends)]

    def read_ids(self, meta: memoryview) -> Iterator[tuple[MessageId, int]]:
        """The first id of each run that has some, and how many follow each other from there."""
        texts = self.texts(meta)
        names = ("origin", "epoch", "sequence", "rows")
        for origin, epoch, sequence, rows in zip(*(self.numbers(meta, name) for name in names), strict=True):
            if origin:
                yield MessageId(texts[origin], epoch, sequence), rows


class Damage(NamedTuple):
    """Bytes of a file that are no frame."""

    offset: int
    end_offset: int


class SegmentFile:
    """A segment, open for reading."""

    def __init__(self, descriptor: int, marker: bytes) -> None:
        self.marker = marker
        self._descriptor = descriptor
        self._bytes = os.fstat(descriptor).st_size
        self._window = memoryview(b"")
        self._window_at = 0

    def read(self, offset: int, size: int) -> memoryview:
        """Less than `size` where the file ends before."""
        at = offset - self._window_at
        if at < 0 or at + size > len(self._window):
            self._window = memoryview(os.pread(self._descriptor, max(size, _WINDOW_BYTES), offset))
            self._window_at = offset
            at = 0
        return self._window[at : at + size]

    def sync(self) -> None:
        """What was written to it is durable."""
        os.fsync(self._descriptor)

    def frames(self, position: int = 0) -> Iterator[LogFrame | Damage]:
        """By their headers, in order; what lies between those is not looked at.

        From the frame that holds `position`, or one not far before it.
        """
        return self.frames_after(lambda frame: frame.first_position <= position)

    def frames_after(self, is_before: Callable[[LogFrame], bool]) -> Iterator[LogFrame | Damage]:
        """The same from the last frame of which this is true, or one not far before it. It is true of the
        first ones, if of any."""
        offset = self._offset_before(is_before)
        while offset < self._bytes:
            frame = self._read_header(offset)
            if frame is None:
                found = self._find_frame(offset + 1)
                yield Damage(offset, found)
                offset = found
            else:
                yield frame
                offset += frame.size

    def _read_header(self, offset: int) -> LogFrame | None:
        frame = LogFrame.read(self.read(offset, HEADER_BYTES), offset, self.marker)
        return frame if frame is not None and offset + frame.size <= self._bytes else None

    def _offset_before(self, is_before: Callable[[LogFrame], bool]) -> int:
        """Of a frame of which it is true; the last of them is not far.

        Who reads what has just been written would else walk through the headers of all that was before: 0.4 s
        for 15 MiB of small frames.
        """
        first = self._read_header(0)
        if first is None or not is_before(first):
            return 0
        low, high = 0, self._bytes
        while high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            found = self._find_frame(middle)
            frame = self._read_header(found) if found < high else None
            if frame is not None and is_before(frame):
                low = found
            else:
                high = middle
        return low

    def _find_frame(self, offset: int) -> int:
        """Where the next frame begins, or the end of the file."""
        while offset < self._bytes:
            data = os.pread(self._descriptor, _WINDOW_BYTES, offset)
            at = data.find(self.marker)
            while at >= 0:
                if self._read_header(offset + at):
                    return offset + at
                at = data.find(self.marker, at + 1)
            if len(data) < len(self.marker):
                break
            offset += len(data) - len(self.marker) + 1  # One may lie across the end of what was read.
        return self._bytes
