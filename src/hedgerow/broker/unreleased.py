"""The packet identifiers of QoS 2 publications that a peer has opened and not released (§4.3.3).

A peer decides how many these are, and for how long: as a set, 65,535 of them took 6 MB for a session. So
where they are many they are one bit each of a map that has room for all there are.
"""

from __future__ import annotations

from collections.abc import Iterator

FEW = 64  # A set of these is smaller than the map, and nobody is charged for it.
MAP_BYTES = 65_536 // 8
# Of a client before MQTT 5, which cannot be told how many it may have: honest ones have 20 or so. Each is a
# row in the store.
MAX_BEFORE_MQTT_5 = 4_096


class Unreleased:
    __slots__ = ("_count", "_few", "_map")

    def __init__(self) -> None:
        self._few: set[int] = set()
        self._map: bytearray | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, packet_id: int) -> bool:
        if self._map is None:
            return packet_id in self._few
        return bool(self._map[packet_id >> 3] & 1 << (packet_id & 7))

    def __iter__(self) -> Iterator[int]:
        if self._map is None:
            return iter(self._few)
        return (each for each in range(65_536) if each in self)

    @property
    def size(self) -> int:
        """The bytes that its owner is charged for."""
        return 0 if self._map is None else MAP_BYTES

    @property
    def is_to_grow(self) -> bool:
        """Would one more make it larger?"""
        return self._map is None and self._count == FEW

    @property
    def room(self) -> int:
        """How many more it may have without becoming larger."""
        return FEW - self._count if self._map is None else 65_536 - self._count

    def add(self, packet_id: int) -> bool:
        """One that is not there yet. Does it take more bytes now?"""
        self._count += 1
        if self._map is not None:
            self._map[packet_id >> 3] |= 1 << (packet_id & 7)
            return False
        self._few.add(packet_id)
        if self._count <= FEW:
            return False
        self._map = bytearray(MAP_BYTES)
        for each in self._few:
            self._map[each >> 3] |= 1 << (each & 7)
        self._few.clear()
        return True

    def remove(self, packet_id: int) -> bool:
        """One that is there. Does it take fewer bytes now?"""
        self._count -= 1
        if self._map is None:
            self._few.remove(packet_id)
            return False
        self._map[packet_id >> 3] &= ~(1 << (packet_id & 7))
        if self._count:
            return False
        self._map = None
        return True
