"""Whether brokers know the shortest distance to the core (Theorem 2), on links of which none is like another.

The simulator's brokers are real federators. Links take 1 to 100 ms, so that the quickest way is often not the
one of the fewest links. Of each graph every broker is asked between two announcements, and again while one
spreads.
"""

from __future__ import annotations

from random import Random

from hedgerow.federation.mesh.federator import Federator
from hedgerow_workshop.lab.spohn.record import Setting, SpohnRecord, SpohnSpec
from hedgerow_workshop.sim.graphs import Edge, distances, graph_of
from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.network import Network

GRAPHS, GRAPHS_FAST = 100, 20
SIZES = (3, 20)
TOPIC = "t"
SETTLED_S = 12.0
LOOKS = 20
LOOK_S = 0.37
DETECTION_S, DIAL_S = 1.5, 0.01


def measure_distances(graphs: int) -> SpohnRecord:
    record = SpohnRecord(SpohnSpec("simulator", Setting.DISTANCES, graphs))
    for seed in range(graphs):
        record.distances += look_at(seed)
    return record


def look_at(seed: int) -> list[tuple[int, int]]:
    """Of one random graph: what each broker takes its distance for, and the fewest links to the core."""
    random = Random(seed)
    size = random.randint(*SIZES)
    edges = _connected(random, size)

    def make(name: str, now: float) -> Federator:
        return Federator(name, now, random=random.random)

    network = Network(make, random, detection_s=DETECTION_S, dial_s=DIAL_S)
    for node in range(size):
        network.add(str(node))
    for a, b in edges:
        network.join(str(a), str(b), VirtualConditions(delay_s=10 ** random.uniform(-3, -1)))
    core = random.randrange(size)
    network.tell(str(core), lambda federator, now: federator.subscribe(TOPIC, now))
    network.run(network.now + SETTLED_S)
    fewest = distances(graph_of(size, edges), core)
    found = []
    for _ in range(LOOKS):
        network.run(network.now + LOOK_S)
        for name, known in network.nodes.items():
            said = known.machine.distance_of(TOPIC)
            found.append((-1 if said is None else said, fewest[int(name)]))
    return found


def _connected(random: Random, size: int) -> list[Edge]:
    edges = {(random.randrange(node), node) for node in range(1, size)}
    for _ in range(random.randrange(2 * size)):
        a, b = sorted(random.sample(range(size), 2))
        edges.add((a, b))
    return sorted(edges)
