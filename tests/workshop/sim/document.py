"""The document's rules as they stand there, for one filter, with text as its wire: what the simulator is
tested with, and what the federator's figures can be held against."""

from __future__ import annotations

from collections.abc import Iterable


class DocumentFederator:
    def __init__(self, node_id: str, now: float, redundancy: int = 2, interval_s: float = 5.0) -> None:
        self.id = int(node_id)
        self.deadline: float | None = None
        self.core: int | None = None
        self.sequence = 0
        self.distance = 0
        self.subscribed = False
        self._redundancy = redundancy
        self._interval_s = interval_s
        self._neighbours: list[str] = []
        self._heard: dict[str, tuple[int, int]] = {}  # neighbour → its last sequence number and distance
        self._children: dict[str, int] = {}
        self._announced_to: set[str] = set()
        self._packets: list[tuple[str, bytes]] = []
        self._ways: set[str] = set()

    def add_neighbour(self, neighbour_id: str, now: float) -> None:
        self._neighbours.append(neighbour_id)
        if self.core is not None:
            self._send(neighbour_id, "A", self.distance)

    def remove_neighbour(self, neighbour_id: str, now: float) -> None:
        self._neighbours.remove(neighbour_id)
        self._heard.pop(neighbour_id, None)
        self._children.pop(neighbour_id, None)
        self._announce_membership()

    def subscribe(self, topic_filter: str, now: float) -> None:
        self.subscribed = True
        self._lead(now)

    def _lead(self, now: float) -> None:
        self._adopt(self.id, self.sequence + 1, 0, None)
        self.deadline = now + self._interval_s

    def handle_timer(self, now: float) -> None:
        if self.core == self.id or self.subscribed:
            self._lead(now)
        else:
            self.core = self.deadline = None

    def receive(self, neighbour_id: str, payload: bytes, now: float) -> None:
        kind, *numbers = payload.decode().split()
        core, sequence, distance = map(int, numbers)
        if kind == "A":
            self._handle_announcement(neighbour_id, core, sequence, distance, now)
        elif (core, sequence) == (self.core, self.sequence):
            self._children[neighbour_id] = sequence
            self._announce_membership()

    def _handle_announcement(self, sender: str, core: int, sequence: int, distance: int, now: float) -> None:
        if self.core is None or core < self.core or (core == self.core and sequence > self.sequence):
            self._adopt(core, sequence, distance + 1, sender)
            self.deadline = now + 3 * self._interval_s
        elif (core, sequence) != (self.core, self.sequence):
            return
        self._heard[sender] = sequence, distance
        if core != self.id:
            self.distance = 1 + min(far for _, far in self._fresh().values())
        self._announce_membership()

    def _fresh(self) -> dict[str, tuple[int, int]]:
        """Those heard in this announcement or the last one: so that a new one changes nothing before all of
        it is there."""
        return {name: heard for name, heard in self._heard.items() if heard[0] >= self.sequence - 1}

    def _adopt(self, core: int, sequence: int, distance: int, sender: str | None) -> None:
        if core != self.core:
            self._heard.clear()
            self._children.clear()
            self.distance = distance
        self.core, self.sequence = core, sequence
        self._announced_to.clear()
        for neighbour in self._neighbours:
            if neighbour != sender:
                self._send(neighbour, "A", self.distance if core == self.id else distance)

    def _announce_membership(self) -> None:
        if self.is_member(""):
            for parent in self.parents():
                if parent not in self._announced_to:
                    self._announced_to.add(parent)
                    self._send(parent, "M", 0)

    def _send(self, neighbour: str, kind: str, distance: int) -> None:
        self._packets.append((neighbour, f"{kind} {self.core} {self.sequence} {distance}".encode()))

    def parents(self) -> list[str]:
        closer = [(far, int(name)) for name, (_, far) in self._fresh().items() if far < self.distance]
        return [str(name) for _, name in sorted(closer)[: self._redundancy]]

    def is_member(self, topic_filter: str) -> bool:
        return self.subscribed or any(seen >= self.sequence - 1 for seen in self._children.values())

    def core_of(self, topic_filter: str) -> str | None:
        return None if self.core is None else str(self.core)

    def targets(self, topic: str, sender: str | None) -> list[str]:
        if not self.is_member(topic):
            return [parent for parent in self.parents() if parent != sender][:1]
        children = [name for name, seen in self._children.items() if seen >= self.sequence - 1]
        return [name for name in dict.fromkeys(self.parents() + children) if name != sender]

    def filters_of(self, neighbour_id: str) -> list[str]:
        return ["#"] if neighbour_id in self._ways else []

    def take_packets(self) -> list[tuple[str, bytes]]:
        packets, self._packets = self._packets, []
        return packets

    def take_changes(self) -> list[tuple[str, str, bool]]:
        ways = set(self.targets("", None))
        changes = [(name, "#", name in ways) for name in sorted(ways ^ self._ways)]
        self._ways = ways
        return changes


def read_document(payload: bytes) -> Iterable[tuple[str, str]]:
    kind, core, sequence, _ = payload.decode().split()
    return [(core, sequence)] if kind == "A" else []
