"""What each topology promises, said in the plainest way: paths are counted by cuts, not by flows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, combinations

Pair = tuple[str, str]


def subsets(items: Iterable[Pair]) -> Iterator[frozenset[Pair]]:
    items = list(items)
    return map(frozenset, chain.from_iterable(combinations(items, size) for size in range(len(items) + 1)))


def groups(nodes: Collection[str], links: Collection[Pair]) -> list[frozenset[str]]:
    """Who is connected with whom."""
    found: list[frozenset[str]] = []
    waiting = set(nodes)
    while waiting:
        group = {waiting.pop()}
        while more := {b for pair in links for a, b in (pair, pair[::-1]) if a in group and b in waiting}:
            group |= more
            waiting -= more
        found.append(frozenset(group))
    return sorted(found, key=sorted)


def degrees(nodes: Collection[str], links: Collection[Pair]) -> list[int]:
    return [sum(node in pair for pair in links) for node in nodes]


def is_tree(nodes: Collection[str], links: Collection[Pair]) -> bool:
    return len(groups(nodes, links)) == 1 and len(links) == len(nodes) - 1


def is_ring(nodes: Collection[str], links: Collection[Pair]) -> bool:
    return len(groups(nodes, links)) == 1 and set(degrees(nodes, links)) == {2}


def excess(nodes: Collection[str], links: Collection[Pair], degree: int) -> int:
    return sum(max(0, found - degree) for found in degrees(nodes, links))


def smallest_cuts(nodes: Collection[str], links: Collection[Pair]) -> dict[Pair, int]:
    """Pair → the links that part them at least: as many as edge-disjoint paths (Menger)."""
    ordered = sorted(nodes)
    least = dict.fromkeys(combinations(ordered, 2), len(links))
    for bits in range(1, 1 << len(ordered) - 1):
        side = {node for index, node in enumerate(ordered) if bits >> index & 1}
        size = sum((a in side) != (b in side) for a, b in links)
        for a, b in least:
            if (a in side) != (b in side):
                least[a, b] = min(least[a, b], size)
    return least


def has_paths(nodes: Collection[str], links: Collection[Pair], possible: dict[Pair, int], count: int) -> bool:
    found = smallest_cuts(nodes, links)
    return all(found[pair] >= min(count, most) for pair, most in possible.items())
