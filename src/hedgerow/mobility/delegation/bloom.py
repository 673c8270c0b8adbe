"""A counting Bloom filter: a set that is told in few bytes, from which members can be taken out again.

`CountingBloomFilter(capacity)` holds `capacity` members at a false-positive rate of at most
`FALSE_POSITIVE_RATE`: of what was never added, three in a hundred are said to be in it. What was added is
always said to be in it. With 8 counters a member and k = 5 places for each, the rate at capacity is about
(1 - e^(-5/8))^5 = 0.022, and in filters of a few members somewhat more; beyond capacity it grows, and
`is_full` says so. More counters would cost more bytes than the exceptions that they spare (`codec`).

A counter has four bits. One that has reached 15 stays there, since nobody knows any more how many members
stand behind it: removing then leaves a false positive, never a false negative. Up to capacity that all but
never happens. Each place is four bytes of a BLAKE2b digest: with the cheaper h1 + i·h2, small filters had a
rate of 0.011, as the step may share a divisor with their size. Who chooses names can make them collide, so
nothing may rest on the filter alone: who writes one names those whom it says wrongly.

It is our own because the counters of pyprobables have 32 bits, and these are to travel often.

`encode` writes version 1, capacity 4, count 4, form 1, and the counters: two in a byte, or if that is shorter
those that are not zero (gap and count in one variable byte integer).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct

from hedgerow.errors import ProtocolError
from hedgerow.mqtt.wire import Reader, encode_variable_byte_integer

VERSION = 1
FALSE_POSITIVE_RATE = 0.03
COUNTERS_PER_MEMBER = 8
PLACES = 5
MAX_COUNT = 15
MAX_CAPACITY = 100_000  # 1.2 MB of counters: ten bytes of a peer must not ask for more.

_DENSE, _SPARSE = 0, 1
_PLACE = Struct("!I")


class BloomError(ValueError):
    """Bytes that are no filter."""


@lru_cache(maxsize=65_536)  # The same subscribers are asked of for one topic after the other.
def _hashes(member: str) -> tuple[int, ...]:
    digest = blake2b(member.encode(), digest_size=_PLACE.size * PLACES).digest()
    return tuple(place for (place,) in _PLACE.iter_unpack(digest))


class CountingBloomFilter:
    def __init__(self, capacity: int) -> None:
        if not 0 < capacity <= MAX_CAPACITY:
            raise ValueError(f"a capacity of {capacity} is not within 1 to {MAX_CAPACITY}")
        self.capacity = capacity
        self.count = 0
        """Members: what was added, without what was removed."""
        self._size = capacity * COUNTERS_PER_MEMBER
        self._counters = bytearray(self._size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CountingBloomFilter):
            return NotImplemented
        mine, others = (self.capacity, self.count), (other.capacity, other.count)
        return mine == others and self._counters == other._counters

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.count

    def __contains__(self, member: str) -> bool:
        counters, size = self._counters, self._size
        return all(counters[place % size] for place in _hashes(member))

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity

    def add(self, member: str) -> None:
        self.count += 1
        counters = self._counters
        for place in self._places(member):
            if counters[place] < MAX_COUNT:
                counters[place] += 1

    def remove(self, member: str) -> bool:
        """Take out what was added before. False: it was not in it, and nothing changed."""
        if member not in self:
            return False
        self.count -= 1
        counters = self._counters
        for place in self._places(member):
            if 0 < counters[place] < MAX_COUNT:
                counters[place] -= 1
        return True

    def _places(self, member: str) -> set[int]:
        """A set: a place that comes twice is counted once, by `add` and `remove` alike."""
        size = self._size
        return {place % size for place in _hashes(member)}

    def encode(self) -> bytes:
        head = bytes([VERSION]) + self.capacity.to_bytes(4, "big") + self.count.to_bytes(4, "big")
        sparse = self._encode_sparse()
        if len(sparse) <= (self._size + 1) // 2:
            return head + bytes([_SPARSE]) + sparse
        counters = self._counters
        pairs = zip(counters[::2], counters[1::2], strict=True)
        return head + bytes([_DENSE]) + bytes(high << 4 | low for high, low in pairs)

    def _encode_sparse(self) -> bytes:
        pieces = bytearray()
        before = -1
        for place, count in enumerate(self._counters):
            if count:
                # The gap and the count share a number: one byte for most.
                pieces += encode_variable_byte_integer((place - before - 1) << 4 | count)
                before = place
        return bytes(pieces)

    @classmethod
    def decode(cls, data: bytes, max_capacity: int = MAX_CAPACITY) -> CountingBloomFilter:
        """The filter that `encode` wrote. Raises BloomError for anything else, or for a larger one."""
        reader = Reader(data)
        try:
            if (version := reader.byte()) != VERSION:
                raise BloomError(f"version {version} of a filter")
            capacity, count, form = reader.four_byte_integer(), reader.four_byte_integer(), reader.byte()
            if not 0 < capacity <= max_capacity or form > _SPARSE:
                raise BloomError("a filter out of bounds")
            found = cls(capacity)
            found.count = count
            if form == _SPARSE:
                found._read_sparse(reader)
            else:
                found._read_dense(reader.rest())
        except ProtocolError as error:
            raise BloomError(error.reason) from None
        return found

    def _read_sparse(self, reader: Reader) -> None:
        place = -1
        while reader.remaining:
            value = reader.variable_byte_integer()
            place += (value >> 4) + 1
            if place >= self._size or not value & MAX_COUNT:
                raise BloomError("a counter where there is none")
            self._counters[place] = value & MAX_COUNT

    def _read_dense(self, packed: bytes) -> None:
        if len(packed) * 2 != self._size:
            raise BloomError(f"{len(packed)} bytes of counters for {self._size}")
        self._counters[::2] = bytes(byte >> 4 for byte in packed)
        self._counters[1::2] = bytes(byte & MAX_COUNT for byte in packed)
