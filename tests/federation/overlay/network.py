"""Overlay machines on a virtual network with a virtual clock: links with delays, nodes that die."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import dist
from random import Random

from hedgerow.federation.overlay.limits import OverlaySettings
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.overlay.wire import Peer

DETECTION_S = 0.5  # until the other end of a link notices that a node is dead
START = 1_700_000_000.0


class Network:
    """A run is decided by its seed."""

    def __init__(self, seed: int, settings: OverlaySettings | None = None, key: bytes | None = None) -> None:
        self.random = Random(seed)
        self.now = START
        self.nodes: dict[str, Overlay] = {}
        self.places: dict[str, tuple[float, float]] = {}
        self.links: dict[frozenset[str], int] = {}
        self.cut: Callable[[str, str], bool] = lambda a, b: False
        self.dials = 0
        self._settings = settings
        self._key = key
        self._due_at: dict[str, float] = {}
        self._opened = 0
        self._epoch = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def add(self, name: str, key: bytes | None = None, place: tuple[float, float] | None = None) -> Overlay:
        node = Overlay(
            peer(name),
            self.now,
            epoch=self._next_epoch(),
            random=Random(self.random.random()).random,
            key=key or self._key,
            settings=self._settings,
        )
        self.nodes[name] = node
        self.places.setdefault(name, place or (self.random.random(), self.random.random()))
        self._due_at.pop(name, None)
        self._plan(name)
        return node

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def join(self, name: str, contact: str) -> None:
        self.nodes[name].join(Peer("", peer(contact).addresses), self.now)
        self.serve(name)

    def kill(self, name: str) -> None:
        del self.nodes[name]
        for pair in [pair for pair in self.links if name in pair]:
            self.break_link(pair)

    def break_link(self, pair: frozenset[str]) -> None:
        self.links.pop(pair)
        for one in pair:
            (other,) = pair - {one}
            self.after(DETECTION_S, lambda one=one, other=other: self._tell_lost(one, other, pair))  # type: ignore[misc]

    def round_trip_s(self, a: str, b: str) -> float:
        return 0.002 + 0.1 * dist(self.places[a], self.places[b])

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, action))

    def _plan(self, name: str) -> None:
        """Have the node called at its deadline, which may have moved since it was last looked at."""
        node = self.nodes[name]
        due_at = max(node.deadline, self.now + 0.001)
        if due_at >= self._due_at.get(name, float("inf")):
            return
        self._due_at[name] = due_at

        def due() -> None:
            if self.nodes.get(name) is node and self._due_at.get(name) == due_at:
                del self._due_at[name]
                node.handle_timer(self.now)
                self.serve(name)

        self.after(due_at - self.now, due)

    def run(self, seconds: float, watch: Callable[[], None] | None = None) -> None:
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if watch is not None:
                watch()
        self.now = until

    def serve(self, name: str) -> None:
        node = self.nodes[name]
        for other, payload in node.take_packets():
            self._deliver(name, other, payload)
        for other in node.take_disconnects():
            self._close(name, other)
        for wanted in node.take_connects():
            self._dial(name, wanted)
        self._plan(name)

    def _deliver(self, name: str, other: str, payload: bytes) -> None:
        number = self.links.get(frozenset((name, other)))

        def arrive() -> None:
            is_same_link = self.links.get(frozenset((name, other)), number) == number
            if number is not None and is_same_link and other in self.nodes:
                self.nodes[other].receive(name, payload, self.now)
                self.serve(other)

        self.after(self.round_trip_s(name, other) / 2, arrive)

    def _close(self, name: str, other: str) -> None:
        pair = frozenset((name, other))
        if self.links.pop(pair, None) is not None:
            delay_s = self.round_trip_s(name, other) / 2 if name != other else 0.0
            self.after(delay_s, lambda: self._tell_lost(other, name, pair))

    def _tell_lost(self, name: str, other: str, pair: frozenset[str]) -> None:
        if name in self.nodes and pair not in self.links:
            self.nodes[name].lost(Peer(other, ()), self.now)
            self.serve(name)

    def _dial(self, name: str, wanted: Peer) -> None:
        self.dials += 1
        other = wanted.addresses[0].removeprefix("mqtt://")

        def done() -> None:
            if name not in self.nodes:
                return
            if other not in self.nodes or self.cut(name, other):
                self.nodes[name].lost(wanted, self.now)
                self.serve(name)
                return
            pair = frozenset((name, other))
            if pair not in self.links:
                self._opened += 1
                self.links[pair] = self._opened
            round_trip_s = self.round_trip_s(name, other)
            self.nodes[other].connected(Peer(name, ()), round_trip_s, self.now)
            self.nodes[name].connected(Peer(other, wanted.addresses), round_trip_s, self.now)
            self.serve(other)
            self.serve(name)

        self.after(self.round_trip_s(name, other) if other in self.places else 0.05, done)

    # What is asked of an overlay

    def neighbours(self, name: str) -> set[str]:
        return {peer.node_id for peer in self.nodes[name].active}

    def groups(self) -> list[set[str]]:
        """Who is connected with whom, over links that both ends take for a neighbour's."""
        found: list[set[str]] = []
        waiting = set(self.nodes)
        while waiting:
            group = {waiting.pop()}
            edge = list(group)
            while edge:
                name = edge.pop()
                more = {it for it in self.neighbours(name) & waiting if name in self.neighbours(it)}
                waiting -= more
                group |= more
                edge += more
            found.append(group)
        return found

    def is_symmetric(self) -> bool:
        return all(
            other in self.nodes and name in self.neighbours(other)
            for name in self.nodes
            for other in self.neighbours(name)
        )

    def mean_round_trip_s(self) -> float:
        found = [it for node in self.nodes.values() for it in node.round_trips.values()]
        return sum(found) / len(found)


def peer(name: str) -> Peer:
    return Peer(name, (f"mqtt://{name}",))


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def joined(seed: int, count: int, gap_s: float = 0.05, settings: OverlaySettings | None = None) -> Network:
    """Nodes that joined through the first of them, one after the other."""
    network = Network(seed, settings)
    first, *others = names(count)
    network.add(first)
    for name in others:
        network.add(name)
        network.join(name, first)
        network.run(gap_s)
    return network


def kill_some(network: Network, share: float) -> None:
    for name in network.random.sample(sorted(network.nodes), int(share * len(network.nodes))):
        network.kill(name)
