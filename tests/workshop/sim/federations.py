"""Small federations of real federators under load, one of whose parts fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from hedgerow.federation.mesh.federator import Federator
from hedgerow_workshop.sim.broker import Activity, Broker, VirtualPublication
from hedgerow_workshop.sim.graphs import Edge, distances, graph_of
from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.network import Network

TOPIC = "t"
SETTLED_S = 12.0
DETECTION_S = 1.5
GAP_S = 0.02
LATE_S = 0.1


def federation(size: int, edges: Sequence[Edge], subscribers: Sequence[int], seed: int) -> Network[Broker]:
    random = Random(seed)
    activity = Activity()

    def make(name: str, now: float) -> Broker:
        broker = Broker(Federator(name, now, random=random.random, epoch=int(now)), activity)
        if int(name) in subscribers:
            broker.subscribe(TOPIC, now)
        return broker

    network = Network(make, random, detection_s=DETECTION_S)
    for node in range(size):
        network.add(str(node))
    for a, b in edges:
        network.join(str(a), str(b), VirtualConditions(jitter_s=0.001))
    return network


def two_connected(random: Random, size: int) -> list[Edge]:
    """A graph that no single failure takes apart: a circle, and ears on it."""
    names = random.sample(range(size), size)
    done = random.randint(3, size)
    paths = [[*names[:done], names[0]]]
    while done < size:
        ear = names[done : done + random.randint(1, 3)]
        begin, end = random.sample(names[:done], 2)
        paths.append([begin, *ear, end])
        done += len(ear)
    paths += [random.sample(names, 2) for _ in range(random.randrange(size))]
    return sorted({(min(pair), max(pair)) for path in paths for pair in pairwise(path)})


class Load:
    """Publications at some brokers, evenly spread over time."""

    def __init__(self, network: Network[Broker], publishers: Sequence[int]) -> None:
        self.network = network
        self.publishers = publishers
        self.sent: dict[int, tuple[int, float]] = {}
        """Number → where it was published, and when."""

    def run(self, until_at: float, gap_s: float = GAP_S) -> None:
        while self.network.now < until_at:
            for publisher in self.publishers:
                self._publish(publisher)
            self.network.run(self.network.now + gap_s)

    def _publish(self, publisher: int) -> None:
        publication = VirtualPublication(len(self.sent), TOPIC)
        if self.network.nodes[str(publisher)].lives:
            self.sent[publication.number] = publisher, self.network.now
            self.network.tell(str(publisher), lambda broker, now: broker.publish(publication, now))

    def arrived_at(self, number: int, subscriber: int) -> float | None:
        arrived = self.network.nodes[str(subscriber)].machine.arrived.get(number)
        return None if arrived is None else arrived[0]


class Trial:
    """A load, and in the middle of it one failure: of a node, or of a link."""

    def __init__(
        self,
        size: int,
        edges: Sequence[Edge],
        subscribers: Sequence[int],
        publishers: Sequence[int],
        seed: int,
    ) -> None:
        self.size = size
        self.edges = edges
        self.subscribers = subscribers
        self.network = federation(size, edges, subscribers, seed)
        self.network.run(SETTLED_S + Random(seed).uniform(0, 5))  # anywhere between two announcements
        self.load = Load(self.network, publishers)
        self.failed_at = self.network.now + 0.5

    def kill(self, node: int, *, silent: bool) -> None:
        self.detected_at = self.failed_at + (DETECTION_S if silent else 0.0)
        self._suffer(lambda: self.network.kill(str(node), silent=silent))
        self._left = graph_of(self.size, [edge for edge in self.edges if node not in edge])
        self._dead = node

    def cut(self, edge: Edge) -> None:
        self.detected_at = self.failed_at + DETECTION_S
        self._suffer(lambda: self.network.cut(str(edge[0]), str(edge[1])))
        self._left = graph_of(self.size, [other for other in self.edges if other != edge])
        self._dead = -1

    def _suffer(self, fail: Callable[[], None]) -> None:
        self.network.events.plan(self.failed_at, fail)
        self.load.run(self.detected_at + 1)
        self.network.run(self.detected_at + 4)

    def expected(self) -> list[tuple[int, int, float]]:
        """(publication, subscriber, when it was published), both ends of which live and are connected."""
        reachable = {publisher: distances(self._left, publisher) for publisher in self.load.publishers}
        return [
            (number, subscriber, at)
            for number, (publisher, at) in self.load.sent.items()
            for subscriber in self.subscribers
            if self._dead not in (publisher, subscriber) and subscriber in reachable[publisher]
        ]

    def lost(self) -> list[tuple[int, int, float]]:
        return [each for each in self.expected() if self.load.arrived_at(*each[:2]) is None]

    def flows_again_after_s(self) -> float:
        """From the detection until nothing is late any more."""
        arrivals = [
            (self.load.arrived_at(number, subscriber), at) for number, subscriber, at in self.expected()
        ]
        late = [
            arrived_at for arrived_at, at in arrivals if arrived_at is not None and arrived_at > at + LATE_S
        ]
        return max((arrived_at - self.detected_at for arrived_at in late), default=0.0)
