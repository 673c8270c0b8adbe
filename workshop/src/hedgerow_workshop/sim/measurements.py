"""What is measured of a federation: what its announcements cost, and what becomes of publications."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hedgerow_workshop.sim.broker import Broker, VirtualPublication
from hedgerow_workshop.sim.graphs import Graph, distances
from hedgerow_workshop.sim.network import Network


class Announcements:
    """Counts, for each core announcement, the packets that carried it (the document's Theorem 1).

    `read(data)` names the announcements in a packet. The same bytes go to all neighbours of a broker, so what
    was read of them is kept for the next one.

    The theorem's links are those that an announcement found while it spread: a link that went down and came
    up meanwhile is two, as the new connection has to be told of everything."""

    def __init__(self, read: Callable[[bytes], Iterable[Hashable]], network: Network[Any]) -> None:
        self.packets: Counter[Hashable] = Counter()
        self.control_packets = 0
        self.control_bytes = 0
        self._read = read
        self._network = network
        self._before: dict[Hashable, int] = {}
        """Connections that had ended before an announcement's first packet."""
        self._until: dict[Hashable, int] = {}
        """Connections that had begun by its last one."""
        self._last: bytes = b""
        self._names: list[Hashable] = []

    def watch(self, sender: str, receiver: str, data: object) -> None:
        if not isinstance(data, bytes):
            return
        self.control_packets += 1
        self.control_bytes += len(data)
        if data != self._last:
            self._last, self._names = data, list(self._read(data))
        begun = self._network.connections
        for name in self._names:
            if name not in self._before:
                self._before[name] = begun - self._network.up
            self.packets[name] += 1
            self._until[name] = begun

    @property
    def worst_per_link(self) -> float:
        return max(
            (count / (self._until[name] - self._before[name]) for name, count in self.packets.items()),
            default=0.0,
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Of some publications, to all brokers with subscribers that lived on and could be reached."""

    expected: int = 0
    delivered: int = 0
    stretches: tuple[float, ...] = ()
    """Links travelled / links of the shortest way, of each delivery to another broker."""

    @property
    def ratio(self) -> float | None:
        return self.delivered / self.expected if self.expected else None


@dataclass(frozen=True, slots=True)
class _Sent:
    number: int
    at: float
    reachable: dict[int, int]
    """Broker with subscribers → links of the shortest way, when it was sent."""


@dataclass(slots=True)
class Publications:
    """Publishes at random live brokers, and finds out what arrived."""

    network: Network[Broker]
    graph: Graph
    subscribers: list[int]
    random: Random
    topic: str
    _published: int = 0
    _sent: list[_Sent] = field(default_factory=list)

    def publish(self, count: int = 1) -> None:
        dead = self.dead()
        alive = [node for node in range(len(self.graph)) if node not in dead]
        for _ in range(count):
            publisher = self.random.choice(alive)
            found = distances(self.graph, publisher, dead)
            reachable = {node: found[node] for node in self.subscribers if node in found}
            self._published += 1
            publication = VirtualPublication(self._published, self.topic)
            self._sent.append(_Sent(publication.number, self.network.now, reachable))
            self._publish_at(publisher, publication)

    def _publish_at(self, node: int, publication: VirtualPublication) -> None:
        self.network.tell(str(node), lambda broker, now: broker.publish(publication, now))

    def take_delivery(self) -> Delivery:
        """Of what was published since this was last called; to be called when it has had its time."""
        delivery = self.delivery_by(math.inf)
        self._sent.clear()
        return delivery

    def delivery_by(self, until_at: float) -> Delivery:
        """What of it had arrived by then."""
        expected = delivered = 0
        stretches = []
        for sent in self._sent:
            for subscriber, shortest in sent.reachable.items():
                node = self.network.nodes[str(subscriber)]
                if not node.lives or node.lives_since > sent.at:
                    continue
                expected += 1
                arrived = node.machine.arrived.get(sent.number)
                if arrived is not None and arrived[0] <= until_at:
                    delivered += 1
                    if shortest:
                        stretches.append(arrived[1] / shortest)
        return Delivery(expected, delivered, tuple(stretches))

    def dead(self) -> frozenset[int]:
        return frozenset(int(name) for name, node in self.network.nodes.items() if not node.lives)
