"""A federation from its start to its figures.

All brokers start at once, some of them with subscribers of one filter. When all works (`Simulation.works`),
publications are sent at random brokers. Then brokers of the mesh fall silent, one after the other up to each
number asked for: publications are sent at once, before anybody can have noticed, and again after the repair.
Of the first, it is counted what arrived before the failure was noticed, and after the repair.
With churn, brokers come and go afterwards while publications go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

from hedgerow_workshop.sim.broker import Activity, Broker, Router
from hedgerow_workshop.sim.chance import stream
from hedgerow_workshop.sim.faults import churn, plan
from hedgerow_workshop.sim.graphs import distances, graph_of
from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.measurements import Announcements, Delivery, Publications
from hedgerow_workshop.sim.network import Network
from hedgerow_workshop.sim.topologies import TOPOLOGIES

TOPIC = "scale/topic"
WHOLE, UNNOTICED, RECOVERED, REPAIRED, CHURN = "whole", "unnoticed", "recovered", "repaired", "churn"
GIVE_UP_INTERVALS = 30
RESOLUTION_S = 0.01
PROBES = 5
PUBLICATION_GAP_S = 0.25
AWAY_S = 10.0
Make = Callable[["Parameters", str, float, Callable[[], float]], Router]
Read = Callable[[bytes], Iterable[Hashable]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    topology: str
    size: int
    redundancy: int = 2
    subscribers: int = 10
    failures: tuple[int, ...] = (1, 2, 4)
    """How many brokers of the mesh are dead, ascending."""
    churn: float = 0.0
    """The share of brokers that dies each minute."""
    churn_s: float = 60.0
    publications: int = 20
    delay_s: float = 0.005
    jitter_s: float = 0.001
    loss: float = 0.0
    detection_s: float = 1.5
    announce_interval_s: float = 5.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    parameters: Parameters
    links: int
    converged_after_s: float | None
    """None: it did not."""
    late_changes: int
    """Ways that came and went in an interval when nothing should change any more."""
    mesh: int
    """Brokers in the mesh, when it had converged."""
    messages_per_link: float
    """Of the dearest announcement; on links that came and went, per connection."""
    announcements: int
    control_packets: int
    control_bytes: int
    stretch_mean: float | None
    stretch_max: float | None
    deliveries: dict[str, float | None] = field(default_factory=dict)
    """`whole`, `k1/unnoticed`, `k1/recovered`, `k1/repaired`, …, `churn` → the share that was delivered."""
    repaired_after_s: dict[int, float | None] = field(default_factory=dict)
    """Number of dead → from the last death until all worked again; 0 when it never ceased to."""
    copies_per_arrival: float = 0.0
    """Publications that came to a broker again, for each that came first: the price of redundancy."""
    events: int = 0
    simulated_s: float = 0.0


def failed(count: int, phase: str) -> str:
    return f"k{count}/{phase}"


class Simulation:
    """`make` gives the federator of a node; `read` names the announcements in a packet of it."""

    def __init__(self, parameters: Parameters, make: Make, read: Read) -> None:
        self.parameters = parameters
        self._make = make
        self._chance = stream(parameters.seed, "brokers").random
        self._faults = stream(parameters.seed, "faults")
        self._probes = stream(parameters.seed, "probes")
        self.activity = Activity()
        edges = TOPOLOGIES[parameters.topology](parameters.size, stream(parameters.seed, "topology"))
        self.graph = graph_of(parameters.size, edges)
        count = min(parameters.subscribers, parameters.size)
        self.subscribers = sorted(
            stream(parameters.seed, "subscribers").sample(range(parameters.size), count)
        )
        self.network = Network(
            self._make_broker, stream(parameters.seed, "links"), detection_s=parameters.detection_s
        )
        self.announcements = Announcements(read, self.network)
        self.network.watch = self.announcements.watch
        self._start(edges)
        self.publications = Publications(
            self.network, self.graph, self.subscribers, stream(parameters.seed, "publications"), TOPIC
        )

    def run(self) -> Measured:
        parameters = self.parameters
        converged_after_s = self._settle()
        before = self.activity.changes
        self.network.run(self.network.now + parameters.announce_interval_s)
        late_changes = self.activity.changes - before
        mesh = self.mesh()
        self.publications.publish(parameters.publications)
        self._let_arrive()
        whole = self.publications.take_delivery()
        copies_per_arrival = self.activity.copies / self.activity.arrivals
        deliveries = {WHOLE: whole.ratio}
        repaired_after_s: dict[int, float | None] = {}
        for count in parameters.failures:
            ratios, repaired_after_s[count] = self._fail(count)
            deliveries.update({failed(count, phase): ratio for phase, ratio in ratios.items()})
        if parameters.churn:
            deliveries[CHURN] = self._suffer_churn().ratio
        links = sum(1 for _ in self.network.links())
        return Measured(
            parameters,
            links=links,
            converged_after_s=converged_after_s,
            late_changes=late_changes,
            mesh=len(mesh),
            messages_per_link=self.announcements.worst_per_link,
            announcements=len(self.announcements.packets),
            control_packets=self.announcements.control_packets,
            control_bytes=self.announcements.control_bytes,
            stretch_mean=fmean(whole.stretches) if whole.stretches else None,
            stretch_max=max(whole.stretches, default=None),
            deliveries=deliveries,
            repaired_after_s=repaired_after_s,
            copies_per_arrival=copies_per_arrival,
            events=self.network.events.happened,
            simulated_s=self.network.now,
        )

    def mesh(self) -> list[int]:
        return [
            int(name)
            for name, node in self.network.nodes.items()
            if node.lives and node.machine.federator.is_member(TOPIC)
        ]

    def works(self, cores: dict[int, str | None], probes: dict[int, set[int]]) -> bool:
        """Does every broker follow the core that it should, and would what is published at each of the probed
        ones reach all subscribers?"""
        nodes = self.network.nodes
        return all(
            nodes[str(node)].machine.federator.core_of(TOPIC) == core for node, core in cores.items()
        ) and all(expected <= self.would_reach(publisher) for publisher, expected in probes.items())

    def right_cores(self) -> dict[int, str | None]:
        """Live broker → the smallest one with subscribers that it can reach."""
        dead = self.publications.dead()
        cores: dict[int, str | None] = {}
        for start in range(self.parameters.size):
            if start not in dead and start not in cores:
                part = distances(self.graph, start, dead)
                core = next((str(node) for node in self.subscribers if node in part), None)
                cores.update(dict.fromkeys(part, core))
        return cores

    def would_reach(self, publisher: int) -> set[int]:
        """Who gets what is published there, by the ways as they are at this moment."""
        nodes = self.network.nodes
        reached = {publisher}
        waiting: deque[tuple[int, str | None]] = deque([(publisher, None)])
        while waiting:
            node, sender = waiting.popleft()
            for target in nodes[str(node)].machine.federator.targets(TOPIC, sender):
                if int(target) not in reached and nodes[target].lives:
                    reached.add(int(target))
                    waiting.append((int(target), str(node)))
        return reached

    def _draw_probes(self) -> dict[int, set[int]]:
        """Some live brokers, and the subscribers that each can reach."""
        dead = self.publications.dead()
        alive = [node for node in range(self.parameters.size) if node not in dead]
        drawn = [self._probes.choice(alive) for _ in range(PROBES)]
        return {node: set(self.subscribers) & distances(self.graph, node, dead).keys() for node in drawn}

    def _make_broker(self, name: str, now: float) -> Broker:
        broker = Broker(self._make(self.parameters, name, now, self._chance), self.activity)
        if int(name) in self.subscribers:
            broker.subscribe(TOPIC, now)
        return broker

    def _start(self, edges: list[tuple[int, int]]) -> None:
        parameters = self.parameters
        conditions = VirtualConditions(
            delay_s=parameters.delay_s, jitter_s=parameters.jitter_s, loss=parameters.loss
        )
        for node in range(parameters.size):
            self.network.add(str(node))
        for a, b in edges:
            self.network.join(str(a), str(b), conditions)

    def _crossing_s(self) -> float:
        """As long as a packet needs from the core to the farthest broker, and back."""
        hops = max(distances(self.graph, self.subscribers[0]).values())
        return 2 * hops * (self.parameters.delay_s + self.parameters.jitter_s)

    def _settle(self) -> float | None:
        """Run until all works and goes on to; how long it took."""
        interval_s, crossing_s = self.parameters.announce_interval_s, self._crossing_s()
        cores, probes = self.right_cores(), self._draw_probes()
        began_at = self.network.now
        works_since: float | None = None
        give_up_at = began_at + GIVE_UP_INTERVALS * interval_s + 4 * crossing_s
        while (now := self.network.now) < give_up_at:
            if not self.works(cores, probes):
                works_since = None
                self.network.run(now + max(RESOLUTION_S, crossing_s / 100))
                continue
            if works_since is None:
                works_since = now
            elif now >= works_since + 2 * interval_s + crossing_s:
                return works_since - began_at
            self.network.run(now + interval_s / 5)
        return None

    def _let_arrive(self) -> None:
        self.network.run(self.network.now + 2 * self._crossing_s() + 0.1)

    def _fail(self, count: int) -> tuple[dict[str, float | None], float | None]:
        noticed_at = self.network.now + self.parameters.detection_s
        while len(self.publications.dead()) < count and (mesh := self.mesh()):
            self.network.kill(str(self._faults.choice(mesh)), silent=True)
        self.publications.publish(self.parameters.publications)
        repaired_after_s = self._settle()
        ratios = {UNNOTICED: self.publications.delivery_by(noticed_at).ratio}
        ratios[RECOVERED] = self.publications.take_delivery().ratio
        self.publications.publish(self.parameters.publications)
        self._let_arrive()
        ratios[REPAIRED] = self.publications.take_delivery().ratio
        return ratios, repaired_after_s

    def _suffer_churn(self) -> Delivery:
        parameters = self.parameters
        for node in sorted(self.publications.dead()):
            self.network.bring_back(str(node))
        self._settle()
        begin_at, end_at = self.network.now, self.network.now + parameters.churn_s
        faults = churn(
            list(self.network.nodes),
            self._faults,
            begin_at=begin_at,
            end_at=end_at,
            deaths_per_s=parameters.churn * parameters.size / 60,
            away_s=AWAY_S,
        )
        plan(self.network, faults)
        while self.network.now < end_at:
            self.publications.publish()
            self.network.run(self.network.now + PUBLICATION_GAP_S)
        self._let_arrive()
        return self.publications.take_delivery()
