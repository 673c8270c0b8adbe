"""Values by text of which many rest: kept as bytes in two blocks of memory, until they are asked for.

A few objects for each of ten thousand topic filters take megabytes. When most of such objects are gone, those
that stay lie scattered over all the memory that the others had, and Python can give none of it back to the
system. So what is to stay and is seldom looked at is packed: nothing but bytes is left of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from struct import Struct
from typing import Generic, TypeVar

V = TypeVar("V")

_HEAD = Struct("<HI")  # of an entry: the lengths of key and value
_GONE = 1 << 31  # in the second: the entry is no more
_FEWEST_SLOTS = 8
_EMPTY, _FREED, _TAKEN = 0, 1, 2  # a slot: never used, free again, or the place of its entry and so much


class PackedMap:
    """Text (of at most 65,535 bytes) → bytes, in the order in which the keys came.

    One block has the entries, the other the places of them by the hash of the key.
    """

    __slots__ = ("_count", "_entries", "_gone", "_slots", "_used")

    def __init__(self) -> None:
        self._entries = bytearray()
        self._slots = _no_slots(_FEWEST_SLOTS)
        self._count = 0
        self._used = 0  # of the slots, those that are not empty
        self._gone = 0  # bytes of entries that are no more

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        entries, at = self._entries, 0
        while at < len(entries):
            key, value = _HEAD.unpack_from(entries, at)
            at += _HEAD.size
            if not value & _GONE:
                yield entries[at : at + key].decode()
            at += key + (value & ~_GONE)

    def __sizeof__(self) -> int:
        return self._entries.__sizeof__() + self._slots.__sizeof__()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key.encode()) is not None

    def get(self, key: str) -> bytes | None:
        slot = self._find(key.encode())
        if slot is None:
            return None
        at = self._slots[slot] - _TAKEN
        name, value = _HEAD.unpack_from(self._entries, at)
        at += _HEAD.size + name
        return bytes(self._entries[at : at + value])

    def set(self, key: str, value: bytes) -> None:
        """A key whose value gets another length counts as one that came last."""
        name = key.encode()
        slot = self._find(name)
        if slot is not None:
            at = self._slots[slot] - _TAKEN
            if _HEAD.unpack_from(self._entries, at)[1] == len(value):
                at += _HEAD.size + len(name)
                self._entries[at : at + len(value)] = value
                return
            self._take_out(slot)
        if 3 * (self._used + 1) > 2 * len(self._slots) or 2 * self._gone > len(self._entries):
            self._make_anew()
        self._put_in(name, len(self._entries))
        self._entries += _HEAD.pack(len(name), len(value))
        self._entries += name
        self._entries += value
        self._count += 1

    def pop(self, key: str) -> bytes | None:
        value = self.get(key)
        if value is not None:
            slot = self._find(key.encode())
            assert slot is not None
            self._take_out(slot)
            if 2 * self._gone > len(self._entries):
                self._make_anew()
        return value

    def _find(self, name: bytes) -> int | None:
        entries, slots = self._entries, self._slots
        last = len(slots) - 1
        slot = hash(name) & last
        while (place := slots[slot]) != _EMPTY:
            at = place - _TAKEN
            is_as_long = at >= 0 and _HEAD.unpack_from(entries, at)[0] == len(name)
            if is_as_long and entries.startswith(name, at + _HEAD.size):
                return slot
            slot = slot + 1 & last
        return None

    def _put_in(self, name: bytes, at: int) -> None:
        slots = self._slots
        last = len(slots) - 1
        slot = hash(name) & last
        while slots[slot] >= _TAKEN:
            slot = slot + 1 & last
        self._used += slots[slot] == _EMPTY
        slots[slot] = at + _TAKEN

    def _take_out(self, slot: int) -> None:
        at = self._slots[slot] - _TAKEN
        key, value = _HEAD.unpack_from(self._entries, at)
        _HEAD.pack_into(self._entries, at, key, value | _GONE)
        self._slots[slot] = _FREED
        self._count -= 1
        self._gone += _HEAD.size + key + value

    def _make_anew(self) -> None:
        """Without what is gone, and with slots for half as many entries more at least."""
        size = _FEWEST_SLOTS
        while size < 2 * (self._count + 1):
            size *= 2
        before, self._entries = self._entries, bytearray()
        self._slots, self._used, self._gone = _no_slots(size), 0, 0
        at = 0
        while at < len(before):
            key, value = _HEAD.unpack_from(before, at)
            end = at + _HEAD.size + key + (value & ~_GONE)
            if not value & _GONE:
                name = bytes(before[at + _HEAD.size : at + _HEAD.size + key])
                self._put_in(name, len(self._entries))
                self._entries += before[at:end]
            at = end


def _no_slots(count: int) -> array[int]:
    return array("I", [_EMPTY]) * count


class PartlyPacked(MutableMapping[str, V], Generic[V]):
    """As a dictionary; the values of some keys are packed, and made anew whenever they are asked for. So what
    is changed in such a value is to be set again."""

    __slots__ = ("_decode", "_encode", "_open", "_packed")

    def __init__(
        self,
        encode: Callable[[V], bytes],
        decode: Callable[[str, bytes], V],
        entries: Iterable[tuple[str, V]] = (),
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._open: dict[str, V] = dict(entries)
        self._packed = PackedMap()

    def __len__(self) -> int:
        return len(self._open) + len(self._packed)

    def __iter__(self) -> Iterator[str]:
        """What is not packed comes first."""
        yield from self._open
        yield from self._packed

    def __contains__(self, key: object) -> bool:
        return key in self._open or key in self._packed

    def __getitem__(self, key: str) -> V:
        if key in self._open:
            return self._open[key]
        data = self._packed.get(key)
        if data is None:
            raise KeyError(key)
        return self._decode(key, data)

    def __setitem__(self, key: str, value: V) -> None:
        if key not in self._open and key in self._packed:
            self._packed.set(key, self._encode(value))
        else:
            self._open[key] = value

    def __delitem__(self, key: str) -> None:
        if key in self._open:
            self._remove(key)
        elif self._packed.pop(key) is None:
            raise KeyError(key)

    def pack(self, key: str) -> None:
        if key in self._open:
            self._packed.set(key, self._encode(self._open[key]))
            self._remove(key)

    def unpack(self, key: str) -> None:
        data = self._packed.pop(key)
        if data is not None:
            self._open[key] = self._decode(key, data)

    def _remove(self, key: str) -> None:
        del self._open[key]
        if not self._open:
            self._open = {}  # A dictionary that was large stays so.
