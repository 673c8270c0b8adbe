"""Federators in virtual time: links with a delay each, cut and joined, nodes that die and return.

Packets on a link arrive in order. Publications are flooded by `targets` with a log of packets at each node,
as brokers do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.limits import BOUNDS, MeshBounds
from hedgerow.federation.mesh.wire import MeshKind, kind_of

Link = frozenset[str]


def grid(width: int, height: int) -> list[tuple[str, str]]:
    """Numbered row by row."""
    links = []
    for node in range(width * height):
        if node % width < width - 1:
            links.append((str(node), str(node + 1)))
        if node + width < width * height:
            links.append((str(node), str(node + width)))
    return links


def layers(count: int, width: int) -> list[tuple[str, str]]:
    """Node 0 and layers around it, each fully linked with the next: `width` ways inward but for the first."""
    rows = [["0"]] + [[str(1 + row * width + column) for column in range(width)] for row in range(count)]
    return [(one, other) for near, far in pairwise(rows) for one in near for other in far]


def random_graph(random: Random, size: int, more: int) -> list[tuple[str, str]]:
    """A random tree and up to `more` links beside it: connected."""
    links = {frozenset((str(node), str(random.randrange(node)))) for node in range(1, size)}
    for _ in range(more):
        links.add(frozenset(map(str, random.sample(range(size), 2))))
    return sorted((min(link), max(link)) for link in links)


class Network:
    def __init__(
        self,
        links: Iterable[tuple[str, str]],
        *,
        seed: int = 1,
        redundancy: int = 2,
        delay_s: Callable[[], float] = lambda: 0.005,
        loss: float = 0.0,
        bounds: MeshBounds = BOUNDS,
        rights: Mapping[tuple[str, str], Callable[[str], bool]] | None = None,
    ) -> None:
        """`rights`: (teller, told) → of which filters the one may tell the other, where that is not all."""
        self.rights = dict(rights or {})
        self.random = Random(seed)
        self.now = 100.0
        self.redundancy = redundancy
        self.bounds = bounds
        self.links: dict[Link, float] = {}
        self.nodes: dict[str, Federator] = {}
        self.sent: Counter[MeshKind] = Counter()
        self.bytes = 0
        self.crossings: Counter[tuple[str, str]] = Counter()
        """Core announcements by link and direction."""
        self.subscribed: dict[str, set[str]] = {}
        self.routes: dict[str, set[tuple[str, str]]] = {}
        """Node → (neighbour, filter), as `take_changes` tells."""
        self.hung: set[str] = set()
        """Nodes that do nothing more, though their links stand."""
        self._delay_s = delay_s
        self.loss = loss
        self._queue: list[tuple[float, int, str, str, bytes, int]] = []
        self._number = 0
        self._lives: Counter[Link] = Counter()
        self._starts: Counter[str] = Counter()
        links = list(links)
        for node in sorted({node for link in links for node in link}):
            self.start(node)
        for one, other in links:
            self.join(one, other)

    def start(self, node: str, *, epoch: int = 0) -> Federator:
        federator = Federator(
            node,
            self.now,
            random=self.random.random,
            redundancy=self.redundancy,
            epoch=epoch,
            bounds=self.bounds,
        )
        self.nodes[node] = federator
        self.subscribed[node] = set()
        self.routes[node] = set()
        return federator

    def join(self, one: str, other: str, delay_s: float | None = None) -> None:
        link = frozenset((one, other))
        self.links[link] = self._delay_s() if delay_s is None else delay_s
        self._lives[link] += 1
        self.nodes[one].add_neighbour(other, self.now, self.rights.get((one, other)))
        self.nodes[other].add_neighbour(one, self.now, self.rights.get((other, one)))
        self._collect(one)
        self._collect(other)

    def cut(self, one: str, other: str) -> None:
        """What was on its way is lost, and both ends notice."""
        self.interrupt(one, other)
        self.notice(one, other)
        self.notice(other, one)

    def interrupt(self, one: str, other: str) -> None:
        """What was on its way is lost, and all that is sent until both ends have noticed (`notice`)."""
        del self.links[frozenset((one, other))]
        self._lives[frozenset((one, other))] += 1

    def notice(self, node: str, neighbour: str) -> None:
        if node in self.nodes:
            self.nodes[node].remove_neighbour(neighbour, self.now)
            self._collect(node)

    def kill(self, node: str) -> list[tuple[str, str]]:
        """Returns the links that it had."""
        del self.nodes[node], self.subscribed[node], self.routes[node]
        gone = [(node, other) for link in self.links if node in link for other in link - {node}]
        for link in gone:
            self.cut(*link)
        return gone

    def subscribe(self, node: str, topic_filter: str) -> None:
        self.subscribed[node].add(topic_filter)
        self.nodes[node].subscribe(topic_filter, self.now)
        self._collect(node)

    def unsubscribe(self, node: str, topic_filter: str) -> None:
        self.subscribed[node].discard(topic_filter)
        self.nodes[node].unsubscribe(topic_filter, self.now)
        self._collect(node)

    def inject(self, sender: str, node: str, payload: bytes) -> None:
        self.nodes[node].receive(sender, payload, self.now)
        self._collect(node)

    def run(self, seconds: float) -> None:
        end_at = self.now + seconds
        while True:
            due, node = min((self.nodes[node].deadline, node) for node in self.nodes.keys() - self.hung)
            if self._queue and self._queue[0][0] <= due:
                if self._queue[0][0] > end_at:
                    break
                self._deliver()
            elif due <= end_at:
                self.now = max(self.now, due)
                self.nodes[node].handle_timer(self.now)
                self._collect(node)
                assert self.nodes[node].deadline > self.now, "a timer that is never done"
            else:
                break
        self.now = end_at

    def _deliver(self) -> None:
        at, _, sender, node, payload, life = heappop(self._queue)
        self.now = max(self.now, at)
        link = frozenset((sender, node))
        if self._lives[link] == life and link in self.links and node not in self.hung:
            self.nodes[node].receive(sender, payload, self.now)
            self._collect(node)

    def _collect(self, node: str) -> None:
        for neighbour, payload in self.nodes[node].take_packets():
            link = frozenset((node, neighbour))
            kind = kind_of(payload)
            self.sent[kind] += 1
            self.crossings[node, neighbour] += kind is MeshKind.CORE_ANN
            self.bytes += len(payload)
            if link in self.links and self.random.random() >= self.loss:
                self._number += 1
                at = self.now + self.links[link]
                heappush(self._queue, (at, self._number, node, neighbour, payload, self._lives[link]))
        for neighbour, topic_filter, is_wanted in self.nodes[node].take_changes():
            pair = neighbour, topic_filter
            assert (pair in self.routes[node]) != is_wanted, f"{node}: {pair} was so before"
            (self.routes[node].add if is_wanted else self.routes[node].discard)(pair)

    def publish(self, node: str, topic: str) -> Counter[str]:
        """How often each broker got it before its log dropped what had been there, itself once."""
        got: Counter[str] = Counter([node])
        waiting: deque[tuple[str, str | None]] = deque([(node, None)])
        while waiting:
            here, sender = waiting.popleft()
            for target in self.nodes[here].targets(topic, sender):
                assert target != sender
                if frozenset((here, target)) not in self.links:
                    continue
                got[target] += 1
                if got[target] == 1:
                    waiting.append((target, here))
        return got

    def subscribers(self, topic_filter: str) -> set[str]:
        return {node for node, filters in self.subscribed.items() if topic_filter in filters}

    def members(self, topic_filter: str) -> set[str]:
        return {node for node, federator in self.nodes.items() if federator.is_member(topic_filter)}

    def cores(self, topic_filter: str) -> set[str | None]:
        return {federator.core_of(topic_filter) for federator in self.nodes.values()}

    def distances(self, start: str) -> dict[str, int]:
        """In hops, by breadth first search."""
        found = {start: 0}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            for link in self.links:
                if here in link:
                    (other,) = link - {here}
                    if other not in found:
                        found[other] = found[here] + 1
                        waiting.append(other)
        return found
