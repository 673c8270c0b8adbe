"""The plan: which bridges to create and which to delete, so that the living brokers have their topology.

A pure function of what is known. Brokers are named in the order of their discovery: the later, the higher.
Brokers that cut pairs separate altogether get the topology for each group that can be connected.

Creations come before deletions, and those that join separate parts of the network before all others. After
the creations the whole topology is there, and deletions take nothing of it; so a network that is connected
stays so at every step, and one that is not becomes so as early as possible.

A bridge to a dead broker, or between two that cannot reach each other, is a *ghost*: it waits and is tried
again. The policy (`Ghosts`) says which ghosts are kept. A bridge to a broker that is not in the list is
somebody else's and is left alone.

Under the published policy (Schmitt, Carlier, Renault, 2018) a ghost stays as long as it would be a part of
the topology if its broker came back. In a star that is every ghost to a broker above the hub: it will be the
hub when it returns, and nothing has to be made then. A ghost to a broker below a new hub goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import NamedTuple

from hedgerow.agent.graph import Edge, Graph, Parts, components, edge_of, neighbours_of
from hedgerow.agent.shapes import TOPOLOGIES


class BrokerLink(NamedTuple):
    """A bridge between two brokers, whichever of them carries it."""

    lower: str
    higher: str

    def __str__(self) -> str:
        return f"{self.lower} – {self.higher}"


class Ghosts(Enum):
    KEEP = "keep"
    """All of them: make before break."""
    DELETE = "delete"
    """None of them."""
    PUBLISHED = "published"
    """Those that would serve again; what no longer serves goes before they are up. For star and line."""


PUBLISHED_TOPOLOGIES = ("star", "line")
"""What is wanted there depends on who lives alone, so it is known what a ghost would serve for."""


@dataclass(frozen=True, slots=True)
class Topology:
    name: str
    parameter: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.parameter}" if TOPOLOGIES[self.name].parameter else self.name


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """In the order in which it is to be done: all creations, then all deletions."""

    create: tuple[BrokerLink, ...] = ()
    delete: tuple[BrokerLink, ...] = ()

    def __str__(self) -> str:
        lines = [f"create {link}" for link in self.create] + [f"delete {link}" for link in self.delete]
        return "\n".join(lines) or "nothing to do"


def parse_topology(text: str) -> Topology:
    """As people write it: `star`, `tree 3`, `redundant 2`. Raises ValueError that says what is wrong."""
    name, *numbers = text.split() or [""]
    shape = TOPOLOGIES.get(name)
    if shape is None:
        raise ValueError(f"{name!r} is no topology: there are {', '.join(TOPOLOGIES)}")
    if not numbers:
        return Topology(name, shape.default)
    if shape.parameter is None or len(numbers) > 1:
        raise ValueError(f"{name} does not take {numbers[-1]!r}")
    if not (numbers[0].isascii() and numbers[0].isdigit()) or int(numbers[0]) < shape.least:
        raise ValueError(f"{name}: {shape.parameter} is a number from {shape.least} on, not {numbers[0]!r}")
    return Topology(name, int(numbers[0]))


def link_between(brokers: Sequence[str], a: str, b: str) -> BrokerLink:
    return BrokerLink(a, b) if brokers.index(a) < brokers.index(b) else BrokerLink(b, a)


def target_links(
    topology: Topology,
    brokers: Sequence[str],
    alive: Collection[str],
    cut: Iterable[tuple[str, str]] = (),
    existing: Iterable[tuple[str, str]] = (),
) -> frozenset[BrokerLink]:
    """The bridges that should be between the living brokers. Pairs may be given either way round."""
    rank = {broker: index for index, broker in enumerate(brokers)}
    living = [rank[broker] for broker in brokers if broker in alive]
    cut_edges = _edges(rank, cut)
    reachable = neighbours_of(living, (pair for pair in combinations(living, 2) if pair not in cut_edges))
    usable = {(a, b) for a, b in _edges(rank, existing) if a in reachable and b in reachable[a]}
    links: set[Edge] = set()
    for nodes in components(reachable):
        inside = frozenset(edge for edge in usable if edge[0] in nodes)
        graph = Graph(nodes, {node: reachable[node] for node in nodes}, inside)
        links |= TOPOLOGIES[topology.name].build(graph, topology.parameter)
    return frozenset(BrokerLink(brokers[a], brokers[b]) for a, b in links)


def awaited_links(
    topology: Topology,
    brokers: Sequence[str],
    alive: Collection[str],
    cut: Iterable[tuple[str, str]] = (),
) -> frozenset[BrokerLink]:
    """The links that a dead broker would have if it came back, and a cut pair if it could be linked again.

    For topologies that do not depend on which bridges exist.
    """
    cut = {link_between(brokers, *pair) for pair in cut if {*pair} <= {*brokers}}
    found: set[BrokerLink] = set()
    for broker in [each for each in brokers if each not in alive]:
        target = target_links(topology, brokers, {*alive, broker}, cut)
        found |= {link for link in target if broker in link}
    for link in cut:
        if link in target_links(topology, brokers, alive, cut - {link}):
            found.add(link)
    return frozenset(found)


def plan(
    topology: Topology,
    brokers: Sequence[str],
    alive: Collection[str],
    cut: Iterable[tuple[str, str]] = (),
    existing: Iterable[tuple[str, str]] = (),
    ghosts: Ghosts = Ghosts.DELETE,
) -> TopologyPlan:
    """What to do. Pairs with an unknown broker, or of a broker with itself, are no links and are ignored."""
    cut, existing = list(cut), list(existing)
    target = target_links(topology, brokers, alive, cut, existing)
    awaited: frozenset[BrokerLink] = frozenset()
    if ghosts is Ghosts.PUBLISHED:
        awaited = awaited_links(topology, brokers, alive, cut)
    return changes(target, brokers, alive, cut, existing, ghosts, awaited)


def changes(
    target: frozenset[BrokerLink],
    brokers: Sequence[str],
    alive: Collection[str],
    cut: Iterable[tuple[str, str]],
    existing: Iterable[tuple[str, str]],
    ghosts: Ghosts,
    awaited: frozenset[BrokerLink] = frozenset(),
) -> TopologyPlan:
    """From the bridges that exist to a target that was decided on. `awaited`: ghosts that are kept anyway."""
    rank = {broker: index for index, broker in enumerate(brokers)}
    dead = {index for index, broker in enumerate(brokers) if broker not in alive}
    cut_edges = _edges(rank, cut)
    wanted = _edges(rank, target)
    there = _edges(rank, existing)
    haunted = {edge for edge in there if edge in cut_edges or not dead.isdisjoint(edge)}
    # What connects separated parts of the network comes first.
    parts = Parts(range(len(brokers)), there - haunted)
    create = sorted(wanted - there)
    joins = {edge: parts.join(*edge) for edge in create}
    create.sort(key=lambda edge: (not joins[edge], edge))
    delete = there - wanted - _edges(rank, awaited)
    if ghosts is Ghosts.KEEP:
        delete -= haunted
    return TopologyPlan(
        tuple(BrokerLink(brokers[a], brokers[b]) for a, b in create),
        tuple(BrokerLink(brokers[a], brokers[b]) for a, b in sorted(delete)),
    )


def _edges(rank: dict[str, int], pairs: Iterable[tuple[str, str]]) -> set[Edge]:
    return {edge_of(rank[a], rank[b]) for a, b in pairs if a in rank and b in rank and a != b}
