"""A small machine for networks under test: it floods what it hears for the first time, and writes down what
it is told of its neighbours."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.network import Network


class Flooder:
    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.neighbours: list[str] = []
        self.heard: dict[bytes, float] = {}
        self.told: list[tuple[float, str, bool]] = []
        self.deadline: float | None = None
        self.rang: list[float] = []
        self._packets: list[tuple[str, bytes]] = []

    def add_neighbour(self, neighbour: str, now: float) -> None:
        assert neighbour not in self.neighbours
        self.neighbours.append(neighbour)
        self.told.append((now, neighbour, True))

    def remove_neighbour(self, neighbour: str, now: float) -> None:
        self.neighbours.remove(neighbour)
        self.told.append((now, neighbour, False))

    def say(self, data: bytes, now: float, sender: str | None = None) -> None:
        self.heard[data] = now
        self._packets += ((neighbour, data) for neighbour in self.neighbours if neighbour != sender)

    def send(self, neighbour: str, data: bytes) -> None:
        self._packets.append((neighbour, data))

    def receive(self, neighbour: str, data: bytes, now: float) -> None:
        if data not in self.heard:
            self.say(data, now, neighbour)

    def handle_timer(self, now: float) -> None:
        self.rang.append(now)
        self.deadline = None

    def take_packets(self) -> list[tuple[str, bytes]]:
        packets, self._packets = self._packets, []
        return packets


def line(*names: str, seed: int = 1, conditions: VirtualConditions | None = None) -> Network[Flooder]:
    """Each is joined to the next; links are up at 10 ms, and silence is noticed after a second."""
    network = Network(Flooder, Random(seed), detection_s=1, dial_s=0.01)
    for name in names:
        network.add(name)
    for a, b in pairwise(names):
        network.join(a, b, conditions or VirtualConditions(delay_s=0.1))
    return network
