"""Brokers as numbers (their ranks), links as pairs of them, and what the shapes ask of such a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

Edge = tuple[int, int]
"""The lower rank first."""
Neighbours = Mapping[int, set[int]]


@dataclass(frozen=True, slots=True)
class Graph:
    """Brokers that can all be connected with each other, at least by way of others."""

    nodes: list[int]
    """Ascending."""
    reachable: Neighbours
    """Whom each of them can have a bridge with."""
    existing: frozenset[Edge]
    """The bridges between them that carry."""


class Parts:
    """What is connected so far (union-find)."""

    def __init__(self, nodes: Iterable[int], edges: Iterable[Edge] = ()) -> None:
        self._above = {node: node for node in nodes}
        for edge in edges:
            self.join(*edge)

    def find(self, node: int) -> int:
        while (above := self._above[node]) != node:
            self._above[node] = self._above[above]
            node = above
        return node

    def join(self, a: int, b: int) -> bool:
        """Did that connect two parts?"""
        a, b = self.find(a), self.find(b)
        self._above[max(a, b)] = min(a, b)
        return a != b


def edge_of(a: int, b: int) -> Edge:
    return (a, b) if a < b else (b, a)


def neighbours_of(nodes: Iterable[int], edges: Iterable[Edge]) -> dict[int, set[int]]:
    neighbours: dict[int, set[int]] = {node: set() for node in nodes}
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    return neighbours


def components(neighbours: Neighbours) -> list[list[int]]:
    """Those that are connected with each other, each list ascending."""
    parts = Parts(neighbours)
    for node, others in neighbours.items():
        for other in others:
            parts.join(node, other)
    found: dict[int, list[int]] = {}
    for node in sorted(neighbours):
        found.setdefault(parts.find(node), []).append(node)
    return list(found.values())


def is_spanning_tree(nodes: list[int], edges: Iterable[Edge]) -> bool:
    parts = Parts(nodes)
    joined = [parts.join(*edge) for edge in edges]
    return all(joined) and len(joined) == len(nodes) - 1


def path_between(neighbours: Neighbours, start: int, end: int) -> list[int]:
    """The nodes of a shortest path, both ends included; empty if there is none."""
    return _augmenting_path(neighbours, start, end, set())[0]


def edge_disjoint_paths(neighbours: Neighbours, start: int, end: int, limit: int) -> tuple[int, set[int]]:
    """How many paths without a common link (no more than `limit` are looked for).

    If there are fewer than `limit`, also the side of `start` of a smallest cut between the two.
    """
    used: set[tuple[int, int]] = set()
    for count in range(limit):
        path, side = _augmenting_path(neighbours, start, end, used)
        if not path:
            return count, side
        for a, b in pairwise(path):
            if (b, a) in used:
                used.remove((b, a))
            else:
                used.add((a, b))
    return limit, set()


def _augmenting_path(
    neighbours: Neighbours, start: int, end: int, used: set[tuple[int, int]]
) -> tuple[list[int], set[int]]:
    """A shortest path that takes no link in a direction already used, and all that was seen on the way."""
    came_from = {start: start}
    queue = [start]
    for node in queue:
        for other in neighbours[node]:
            if other not in came_from and (node, other) not in used:
                came_from[other] = node
                queue.append(other)
        if end in came_from:
            path = [end]
            while path[-1] != start:
                path.append(came_from[path[-1]])
            return path[::-1], set(queue)
    return [], set(queue)
