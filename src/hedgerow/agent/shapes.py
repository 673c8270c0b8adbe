"""The topologies: from the brokers that live to the bridges that should be, keeping those that serve.

Each shape gets brokers that can be connected (`Graph`) and gives the links of a connected network. Where cut
pairs leave no way to draw the shape itself, being connected goes before the shape.

How near to the fewest changes each of them comes, which the tests compare with trying everything:

- `star` and `line` depend on nothing but who lives and who is cut off, so the changes are the difference.
- `tree` and `ring` are exact while no pair is cut and the bridges that exist have no cycle of their own, or
  are the shape already. Otherwise the best choice is as hard as finding a Hamiltonian path, and they choose
  greedily: a third of the bridges that could be kept is kept at least, since a bridge that was taken rules
  out at most three others of the best choice (one at each end, one in a cycle).
- `redundant` is greedy too. No link of its result can be left out, so it has at most K(n - 1) of them, less
  than twice the Kn/2 that the smallest such network needs. From nothing it makes a Harary graph, which is
  a smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from hedgerow.agent.graph import (
    Edge,
    Graph,
    Neighbours,
    Parts,
    edge_disjoint_paths,
    edge_of,
    is_spanning_tree,
    neighbours_of,
    path_between,
)

# Whether cut pairs leave a ring can take for ever to find out. This is enough to be sure with up to 7
# brokers, and takes a few hundredths of a second.
MAX_RING_STEPS = 5_000


def star(graph: Graph, _: int) -> set[Edge]:
    """All to the highest; who cannot reach it, to the highest of those that are a step nearer to it."""
    hub = graph.nodes[-1]
    links: set[Edge] = set()
    attached = {hub}
    while len(attached) < len(graph.nodes):
        hubs = {node: graph.reachable[node] & attached for node in graph.nodes if node not in attached}
        nearest = {node: max(among) for node, among in hubs.items() if among}
        links |= {edge_of(node, hub) for node, hub in nearest.items()}
        attached |= nearest.keys()
    return links


def line(graph: Graph, _: int) -> set[Edge]:
    """Each to the nearest higher that it can reach; what that leaves apart is joined where it is nearest."""
    links = {
        (node, min(higher))
        for node in graph.nodes
        if (higher := [other for other in graph.reachable[node] if other > node])
    }
    position = {node: index for index, node in enumerate(graph.nodes)}
    parts = Parts(graph.nodes, links)
    uncut = [pair for pair in combinations(graph.nodes, 2) if pair[1] in graph.reachable[pair[0]]]
    uncut.sort(key=lambda pair: (position[pair[1]] - position[pair[0]], pair))
    return links | {pair for pair in uncut if parts.join(*pair)}


def tree(graph: Graph, degree: int) -> set[Edge]:
    """No broker has more than `degree` bridges, unless cut pairs force it to."""
    links = _grow_tree(graph, degree)
    excess = _excess(graph, links, degree)
    # Another start may need less. What was found last is kept the next time, so plans do not go in circles.
    while excess:
        other = _grow_tree(replace(graph, existing=frozenset(links)), degree)
        if _excess(graph, other, degree) >= excess:
            break
        links, excess = other, _excess(graph, other, degree)
    if is_spanning_tree(graph.nodes, graph.existing) and _excess(graph, graph.existing, degree) <= excess:
        return set(graph.existing)
    return links


def ring(graph: Graph, _: int) -> set[Edge]:
    """A cycle through all. Where none is found it is `redundant 2`: what a ring is for, with more links."""
    if len(graph.nodes) < 3:
        return redundant(graph, 1)
    if all(len(graph.reachable[node]) >= 2 for node in graph.nodes):
        for kept in (keep_forest(graph, 2), set[Edge]()):
            if links := _close_cycle(graph, kept):
                return links
    return redundant(graph, 2)


def redundant(graph: Graph, count: int) -> set[Edge]:
    """`count` paths without a common link between any two, or as many as there could be between these two."""
    count = min(count, len(graph.nodes) - 1)  # Nobody has more links, and each path is looked for.
    wanted = _possible_paths(graph, count)
    neighbours = neighbours_of(graph.nodes, graph.existing)
    ideal = harary(graph.nodes, count)
    created: list[Edge] = []

    def lacks(node: int) -> bool:
        return len(neighbours[node]) < min(count, len(graph.reachable[node]))

    def create(a: int, b: int) -> None:
        created.append(edge_of(a, b))
        neighbours[a].add(b)
        neighbours[b].add(a)

    # Who has fewer than `count` links needs more in any case, best to another such one.
    parts = Parts(graph.nodes, graph.existing)
    for only_joins in (True, False):
        for a, b in [*ideal, *combinations(filter(lacks, graph.nodes), 2)]:
            possible = b in graph.reachable[a] and b not in neighbours[a]
            if possible and lacks(a) and lacks(b) and (parts.join(a, b) or not only_joins):
                create(a, b)
    for (a, b), paths in wanted.items():
        while True:
            found, side = edge_disjoint_paths(neighbours, a, b, paths)
            if found >= paths:
                break
            create(*min(
                (edge_of(x, y) for x in side for y in graph.reachable[x] - side - neighbours[x]),
                key=lambda e: (-lacks(e[0]) - lacks(e[1]), e not in ideal, _degrees(neighbours, e), e),
            ))  # fmt: skip
    _leave_out(neighbours, created, wanted)
    # Fewer go in this order, from brokers with few links to brokers with many, than in any other tried.
    _leave_out(neighbours, sorted(graph.existing, key=lambda e: (_degrees(neighbours, e), e)), wanted)
    return {edge_of(a, b) for a, others in neighbours.items() for b in others}


class Shape(NamedTuple):
    build: Callable[[Graph, int], set[Edge]]
    parameter: str | None = None
    """What the number after the name is."""
    least: int = 0
    default: int = 0


TOPOLOGIES: dict[str, Shape] = {
    "star": Shape(star),
    "line": Shape(line),
    "tree": Shape(tree, "degree", least=2, default=3),
    "ring": Shape(ring),
    "redundant": Shape(redundant, "paths", least=1, default=2),
}


def harary(nodes: list[int], count: int) -> list[Edge]:
    """The fewest links with `count` edge-disjoint paths between any two (Harary, 1962), nearest first."""
    n = len(nodes)
    count = min(count, n - 1)
    links = [edge_of(nodes[i], nodes[(i + step) % n]) for step in range(1, count // 2 + 1) for i in range(n)]
    if count == 1:
        links = [(nodes[i], nodes[i + 1]) for i in range(n - 1)]
    elif count % 2:
        links += [edge_of(nodes[i], nodes[(i + n // 2) % n]) for i in range((n + 1) // 2)]
    return list(dict.fromkeys(links))


def keep_forest(graph: Graph, degree: int) -> set[Edge]:
    """Of the bridges that exist, many without a cycle and with no more than `degree` at a broker.

    Who has the fewest to choose from chooses first. In a forest that is a leaf, whose only bridge is in some
    best choice, so there the result is a best one.
    """
    choice = neighbours_of(graph.nodes, graph.existing)
    free = dict.fromkeys(graph.nodes, degree)
    parts = Parts(graph.nodes)
    kept: set[Edge] = set()
    while open_nodes := [node for node in graph.nodes if choice[node]]:
        a = min(open_nodes, key=lambda node: len(choice[node]))
        b = min(choice[a], key=lambda node: (len(choice[node]), node))
        choice[a].remove(b)
        choice[b].remove(a)
        if not parts.join(a, b):
            continue
        kept.add(edge_of(a, b))
        for node in (a, b):
            free[node] -= 1
            if not free[node]:
                for other in choice[node]:
                    choice[other].remove(node)
                choice[node].clear()
    return kept


def _grow_tree(graph: Graph, degree: int) -> set[Edge]:
    links = keep_forest(graph, degree)
    neighbours = neighbours_of(graph.nodes, links)
    for _ in range(len(graph.nodes) - 1 - len(links)):
        a, b = _next_branch(graph, neighbours, degree)
        neighbours[a].add(b)
        neighbours[b].add(a)
    _relieve(graph, neighbours, degree)
    return {edge_of(a, b) for a, others in neighbours.items() for b in others}


def _next_branch(graph: Graph, neighbours: Neighbours, degree: int) -> Edge:
    """From the part of the highest broker to another: near to the highest, so that the tree stays low."""
    depth = {graph.nodes[-1]: 0}
    queue = [graph.nodes[-1]]
    for node in queue:
        for other in sorted(neighbours[node], reverse=True):
            if other not in depth:
                depth[other] = depth[node] + 1
                queue.append(other)

    def cost(pair: Edge) -> tuple[int, int, int, int, int]:
        inner, outer = pair
        excess = sum(max(0, len(neighbours[node]) + 1 - degree) for node in pair)
        return excess, depth[inner], -inner, len(neighbours[outer]), -outer

    return min(((a, b) for a in depth for b in graph.reachable[a] if b not in depth), key=cost)


def _excess(graph: Graph, links: Iterable[Edge], degree: int) -> int:
    return sum(max(0, len(others) - degree) for others in neighbours_of(graph.nodes, links).values())


def _relieve(graph: Graph, neighbours: dict[int, set[int]], degree: int) -> None:
    """Exchange links of brokers that have too many for links between brokers that have room."""
    while crowded := {node for node in graph.nodes if len(neighbours[node]) > degree}:
        for a, b in combinations([n for n in graph.nodes if len(neighbours[n]) < degree], 2):
            if b not in graph.reachable[a]:
                continue
            path = path_between(neighbours, a, b)
            relieved = next((i for i, node in enumerate(path[1:-1], 1) if node in crowded), None)
            if relieved is not None:
                x, y = path[relieved], path[relieved + 1]
                neighbours[x].remove(y)
                neighbours[y].remove(x)
                neighbours[a].add(b)
                neighbours[b].add(a)
                break
        else:
            return


def _close_cycle(graph: Graph, kept: set[Edge]) -> set[Edge] | None:
    """A cycle through all brokers with these links, which are paths; None if none was found in time."""
    inside = neighbours_of(graph.nodes, kept)
    far_end: dict[int, int] = {}
    for part in [node for node in graph.nodes if len(inside[node]) < 2]:
        node, before = part, -1
        while onward := inside[node] - {before}:
            before, node = node, onward.pop()
        far_end[part] = node
    start, here = next(iter(far_end.items()))
    waiting = far_end.keys() - {start, here}
    added: list[Edge] = []
    steps = 0

    def extend(here: int) -> bool:
        nonlocal steps
        steps += 1
        if not waiting and start in graph.reachable[here]:
            added.append(edge_of(here, start))
            return True
        if steps > MAX_RING_STEPS:
            return False
        for entry in sorted(graph.reachable[here] & waiting, key=lambda node: rank(here, node)):
            ends = {entry, far_end[entry]}
            waiting.difference_update(ends)
            added.append(edge_of(here, entry))
            if extend(far_end[entry]):
                return True
            added.pop()
            waiting.update(ends)
        return False

    def rank(here: int, node: int) -> tuple[bool, int, int]:
        """Bridges that exist first, then whoever will be the hardest to reach later."""
        return edge_of(here, node) not in graph.existing, len(graph.reachable[node] & waiting), node

    return kept.union(added) if extend(here) else None


def _possible_paths(graph: Graph, count: int) -> dict[Edge, int]:
    """Pair → how many edge-disjoint paths it can and shall have; what the pairs have, all others have too.

    "At least so many paths" is transitive, so it is enough to look at one pair for each broker and number.
    """
    wanted: dict[Edge, int] = {}
    classes = [graph.nodes]
    for paths in range(1, count + 1):
        finer: list[list[int]] = []
        for group in classes:
            groups: list[list[int]] = []
            for node in group:
                for equal in groups:
                    if edge_disjoint_paths(graph.reachable, equal[0], node, paths)[0] == paths:
                        wanted[equal[0], node] = paths
                        equal.append(node)
                        break
                else:
                    groups.append([node])
            finer += groups
        classes = finer
    return wanted


def _leave_out(neighbours: dict[int, set[int]], links: Iterable[Edge], wanted: dict[Edge, int]) -> None:
    """Take away each of the links that the wanted paths do not need."""
    numbers = set(wanted.values())
    for a, b in links:
        neighbours[a].remove(b)
        neighbours[b].remove(a)
        # Only cuts between its ends become smaller; if all want the same, no other pair needs a look.
        affected = {(a, b): numbers.copy().pop()} if len(numbers) == 1 else wanted
        if any(edge_disjoint_paths(neighbours, *pair, n)[0] < n for pair, n in affected.items()):
            neighbours[a].add(b)
            neighbours[b].add(a)


def _degrees(neighbours: Neighbours, edge: Edge) -> int:
    return len(neighbours[edge[0]]) + len(neighbours[edge[1]])
