"""The payloads of the experiment, and what of them a reader has seen.

A payload begins with its publisher (one byte) and its number (four). All packets of a run have one length, so
that a chunk of them is taken apart by slices: a reader must not be what a rate is limited by.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

HEAD_BYTES = 5
MAX_SEEN = 255


def payload(publisher: int, number: int, size: int) -> bytes:
    return (bytes((publisher,)) + number.to_bytes(4, "little")).ljust(size, b".")


class Tally:
    """Which numbers came, by publisher."""

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts`: how many there can be of each publisher."""
        self.count = 0
        """Messages, each once."""
        self.doubled = 0
        """What came again without DUP."""
        self.repeated = 0
        """What came again with DUP."""
        self._seen = [bytearray(count) for count in counts]

    def add(self, publishers: Iterable[int], numbers: Iterable[int], firsts: Iterable[int]) -> None:
        """`firsts`: the first bytes of the packets, with DUP."""
        seen = self._seen
        for publisher, number, first in zip(publishers, numbers, firsts, strict=True):
            if not seen[publisher][number]:
                seen[publisher][number] = 1
                self.count += 1
            elif first & 0x08:
                self.repeated += 1
            else:
                self.doubled += 1

    def has(self, publisher: int, number: int) -> bool:
        return bool(self._seen[publisher][number])

    def missing(self, publisher: int, acknowledged: bytearray) -> int:
        """How many never came of those marked as acknowledged."""
        return acknowledged.count(1) - sum(
            1 for sent, came in zip(acknowledged, self._seen[publisher], strict=True) if sent and came
        )


class Layout:
    """Where in a PUBLISH everything is, if it has a topic and a payload of these sizes, and a packet id."""

    def __init__(self, topic_bytes: int, payload_bytes: int) -> None:
        body_bytes = 2 + topic_bytes + 2 + payload_bytes
        self.length = _remaining_length(body_bytes)
        self.size = 1 + len(self.length) + body_bytes
        self.packet_id_at = 1 + len(self.length) + 2 + topic_bytes
        self.payload_at = self.packet_id_at + 2

    def run(self, data: bytes, start: int) -> int:
        """How many such packets at QoS 1 follow each other from here on."""
        size = self.size
        most = (len(data) - start) // size
        end = start + most * size
        firsts = data[start:end:size]
        whole = len(firsts) - len(firsts.lstrip(b"\x32\x3a"))
        for place, byte in enumerate(self.length, 1):
            column = data[start + place : start + whole * size : size]
            whole = len(column) - len(column.lstrip(bytes((byte,))))
        return whole

    def firsts(self, data: bytes, start: int, count: int) -> bytes:
        return self._column(data, start, count, 0)

    def publishers(self, data: bytes, start: int, count: int) -> bytes:
        return self._column(data, start, count, self.payload_at)

    def numbers(self, data: bytes, start: int, count: int) -> array[int]:
        joined = bytearray(4 * count)
        for place in range(4):
            joined[place::4] = self._column(data, start, count, self.payload_at + 1 + place)
        numbers = array("I", bytes(joined))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def acknowledgements(self, data: bytes, start: int, count: int) -> bytes:
        """The PUBACKs of a run."""
        joined = bytearray(b"\x40\x02\x00\x00" * count)
        joined[2::4] = self._column(data, start, count, self.packet_id_at)
        joined[3::4] = self._column(data, start, count, self.packet_id_at + 1)
        return bytes(joined)

    def _column(self, data: bytes, start: int, count: int, place: int) -> bytes:
        return data[start + place : start + count * self.size : self.size]


def _remaining_length(size: int) -> bytes:
    """§2.1.4."""
    found = bytearray()
    while True:
        size, byte = divmod(size, 128)
        found.append(byte | (0x80 if size else 0))
        if not size:
            return bytes(found)
