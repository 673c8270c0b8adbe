"""What can be reached in a network of nodes 0, 1, … and how far it is: the truth that machines are measured
against."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Edge = tuple[int, int]
Graph = list[list[int]]
"""Node → its neighbours, in ascending order."""


def graph_of(size: int, edges: Iterable[Edge]) -> Graph:
    graph: Graph = [[] for _ in range(size)]
    for a, b in edges:
        graph[a].append(b)
        graph[b].append(a)
    for neighbours in graph:
        neighbours.sort()
    return graph


def distances(graph: Graph, start: int, without: frozenset[int] = frozenset()) -> dict[int, int]:
    """Node → hops from the start, for all that can be reached when those nodes are away."""
    found = {start: 0}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for neighbour in graph[node]:
            if neighbour not in found and neighbour not in without:
                found[neighbour] = found[node] + 1
                waiting.append(neighbour)
    return found


def is_connected(graph: Graph) -> bool:
    return not graph or len(distances(graph, 0)) == len(graph)
