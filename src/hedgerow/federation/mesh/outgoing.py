"""What waits to be sent: entries for the same neighbour share a packet of their kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hedgerow.federation.mesh.limits import PART_BYTES
from hedgerow.federation.mesh.wire import MeshKind, encode_packet


class OutgoingPackets:
    def __init__(self, sent: Counter[str]) -> None:
        self._sent = sent
        self._waiting: dict[str, list[tuple[MeshKind, bytes]]] = {}

    def put(self, neighbours: Iterable[str], kind: MeshKind, entry: bytes) -> None:
        for neighbour in neighbours:
            self._waiting.setdefault(neighbour, []).append((kind, entry))

    def forget(self, neighbour: str) -> None:
        self._waiting.pop(neighbour, None)

    def take(self) -> list[tuple[str, bytes]]:
        """In the order in which they were put, as an answer relies on what was announced before it."""
        packets: list[tuple[str, bytes]] = []
        for neighbour, entries in self._waiting.items():
            row: list[bytes] = []
            size = 0
            before = entries[0][0]
            for kind, entry in entries:
                if row and (kind != before or size + len(entry) > PART_BYTES):
                    packets.append((neighbour, self._packet(before, row)))
                    row, size = [], 0
                before = kind
                row.append(entry)
                size += len(entry)
            packets.append((neighbour, self._packet(before, row)))
        self._waiting.clear()
        return packets

    def _packet(self, kind: MeshKind, row: list[bytes]) -> bytes:
        self._sent[kind.name] += 1
        return encode_packet(kind, row)
