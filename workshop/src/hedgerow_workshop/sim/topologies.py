"""Who is whose neighbour: connected graphs of any size, without loops and double links, from a seed.

Links are pairs (a, b) with a < b, in ascending order, so that equal seeds give equal networks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from random import Random

from hedgerow_workshop.sim.graphs import Edge, graph_of, is_connected

BRANCHES = 3
DEGREE = 4
LINKS_OF_A_NEWCOMER = 2
SWAPS_PER_LINK = 10  # after about this many, a random regular graph shows nothing of what it was made from


def grid(size: int, random: Random) -> list[Edge]:
    """As square as the size allows, numbered row by row; the last row may be short."""
    columns = isqrt(max(size - 1, 0)) + 1
    right = [(node, node + 1) for node in range(size - 1) if (node + 1) % columns]
    down = [(node, node + columns) for node in range(size - columns)]
    return sorted(right + down)


def ring(size: int, random: Random) -> list[Edge]:
    return _circle(size, 1)


def tree(size: int, random: Random) -> list[Edge]:
    """Balanced: each node but the leaves has `BRANCHES` children."""
    return sorted(((node - 1) // BRANCHES, node) for node in range(1, size))


def random_regular(size: int, random: Random) -> list[Edge]:
    """Each node has `DEGREE` neighbours, or all others if there are fewer.

    From a circle where each is joined to the nearest ones, links are taken in pairs and change partners,
    which keeps every degree; whatever would become a loop or a double link is left."""
    edges = _circle(size, DEGREE // 2)
    if size <= DEGREE + 1:
        return edges
    taken = set(edges)
    while True:
        for _ in range(SWAPS_PER_LINK * len(edges)):
            i, j = random.randrange(len(edges)), random.randrange(len(edges))
            (a, b), (c, d) = edges[i], edges[j]
            if random.random() < 0.5:
                c, d = d, c
            first, second = _edge(a, c), _edge(b, d)
            if len({a, b, c, d}) == 4 and first not in taken and second not in taken:
                taken -= {edges[i], edges[j]}
                taken |= {first, second}
                edges[i], edges[j] = first, second
        if is_connected(graph_of(size, edges)):
            return sorted(edges)


def scale_free(size: int, random: Random) -> list[Edge]:
    """A few hubs and many leaves: each newcomer joins `LINKS_OF_A_NEWCOMER` others, and those that have many
    neighbours are joined by more (Barabási and Albert 1999)."""
    edges = _circle(min(size, LINKS_OF_A_NEWCOMER + 1), 1)
    ends = [end for edge in edges for end in edge]
    for node in range(LINKS_OF_A_NEWCOMER + 1, size):
        chosen: list[int] = []
        while len(chosen) < LINKS_OF_A_NEWCOMER:
            other = random.choice(ends)
            if other not in chosen:
                chosen.append(other)
        for other in chosen:
            edges.append((other, node))
            ends += (other, node)
    return sorted(edges)


def _circle(size: int, reach: int) -> list[Edge]:
    """Each node is joined to the `reach` next ones on either side."""
    steps = range(1, reach + 1)
    return sorted(
        {_edge(node, (node + step) % size) for node in range(size) for step in steps if step % size}
    )


def _edge(a: int, b: int) -> Edge:
    return (a, b) if a < b else (b, a)


TOPOLOGIES: dict[str, Callable[[int, Random], list[Edge]]] = {
    "grid": grid,
    "ring": ring,
    "tree": tree,
    "regular": random_regular,
    "scale-free": scale_free,
}
