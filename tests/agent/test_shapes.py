"""Each topology beside the best that trying everything finds: is it right, and are there fewer changes?"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import pytest

from hedgerow.agent import shapes
from hedgerow.agent.graph import Edge, Graph, neighbours_of
from hedgerow.agent.plan import parse_topology, target_links
from tests.agent.checks import (
    Pair,
    degrees,
    excess,
    groups,
    has_paths,
    is_ring,
    is_tree,
    smallest_cuts,
    subsets,
)

BROKERS = list("abcdef")


class World:
    """Some brokers, cut pairs and bridges, from a seed. The uncut pairs would connect all of them."""

    def __init__(self, random: Random, most: int, is_cut: bool, is_forest: bool) -> None:
        self.nodes = BROKERS[: random.randint(1, most)]
        pairs = list(combinations(self.nodes, 2))
        self.cut: set[Pair] = set()
        for pair in random.sample(pairs, random.randint(0, len(pairs)) if is_cut else 0):
            if len(groups(self.nodes, set(pairs) - self.cut - {pair})) == 1:
                self.cut.add(pair)
        self.uncut = [pair for pair in pairs if pair not in self.cut]
        self.existing: set[Pair] = set()
        for pair in random.sample(self.uncut, random.randint(0, len(self.uncut))):
            parts = len(groups(self.nodes, self.existing))
            if not is_forest or len(groups(self.nodes, self.existing | {pair})) < parts:
                self.existing.add(pair)

    def target(self, topology: str) -> set[Pair]:
        found = target_links(parse_topology(topology), self.nodes, self.nodes, self.cut, self.existing)
        assert found <= set(self.uncut)
        return {(a, b) for a, b in found}

    def changes(self, links: set[Pair] | frozenset[Pair]) -> int:
        return len(links ^ self.existing)


def worlds(count: int, most: int = 5, is_cut: bool = False, is_forest: bool = False) -> list[World]:
    return [World(Random(seed), most, is_cut, is_forest) for seed in range(count)]


@pytest.mark.parametrize("degree", [2, 3])
def test_a_tree_with_the_fewest_changes(degree: int) -> None:
    for world in worlds(60, is_forest=True):
        links = world.target(f"tree {degree}")
        trees = [tree for tree in subsets(world.uncut) if is_tree(world.nodes, tree)]
        fitting = [tree for tree in trees if not excess(world.nodes, tree, degree)]
        assert links in fitting
        assert world.changes(links) == min(map(world.changes, fitting))


@pytest.mark.parametrize("degree", [2, 3])
def test_a_tree_where_pairs_are_cut_or_bridges_have_cycles(degree: int) -> None:
    """A tree always; with so few brokers its degree is the best there is, and a link more may change."""
    for world in worlds(60, is_cut=True):
        links = world.target(f"tree {degree}")
        assert is_tree(world.nodes, links)
        trees = [tree for tree in subsets(world.uncut) if is_tree(world.nodes, tree)]
        least = min(excess(world.nodes, tree, degree) for tree in trees)
        assert excess(world.nodes, links, degree) == least
        best = [tree for tree in trees if excess(world.nodes, tree, degree) == least]
        assert world.changes(links) <= min(map(world.changes, best)) + 2


@pytest.mark.parametrize("degree", [2, 3])
def test_of_a_forest_as_much_is_kept_as_can_be(degree: int) -> None:
    nodes = list(range(9))
    for seed in range(30):
        random = Random(seed)
        names = random.sample(nodes, len(nodes))
        edges = {tuple(sorted((names[i], names[random.randrange(max(0, i - 4), i)]))) for i in nodes[1:]}
        forest = {(a, b) for a, b in edges}
        kept = shapes.keep_forest(Graph(nodes, {}, frozenset(forest)), degree)
        fitting = [
            size
            for size in range(len(forest) + 1)
            if any(
                max(map(len, neighbours_of(nodes, some).values())) <= degree
                for some in combinations(forest, size)
            )
        ]
        assert kept <= forest
        assert max(map(len, neighbours_of(nodes, kept).values())) <= degree
        assert len(kept) == max(fitting)


def test_a_ring_with_the_fewest_changes() -> None:
    for world in worlds(60, is_forest=True):
        links = world.target("ring")
        rings = [ring for ring in subsets(world.uncut) if is_ring(world.nodes, ring)]
        if len(world.nodes) < 3:
            assert is_tree(world.nodes, links)
        else:
            assert links in rings
            assert world.changes(links) == min(map(world.changes, rings))


def test_a_ring_where_pairs_are_cut_or_bridges_have_cycles() -> None:
    """A ring if there can be one, else two paths without a common link wherever there can be two."""
    seen = Counter[bool]()
    for world in worlds(150, is_cut=True):
        links = world.target("ring")
        rings = [ring for ring in subsets(world.uncut) if is_ring(world.nodes, ring)]
        seen[bool(rings)] += 1
        if rings:
            assert links in rings
            assert world.changes(links) <= min(map(world.changes, rings)) + 2
        else:
            assert has_paths(world.nodes, links, smallest_cuts(world.nodes, world.uncut), 2)
    assert min(seen[True], seen[False]) > 20


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("is_cut", [False, True])
def test_redundant_paths(count: int, is_cut: bool) -> None:
    """As many as there can be, with no link too many, and at most one change more than is needed."""
    for world in worlds(50, is_cut=is_cut):
        links = world.target(f"redundant {count}")
        possible = smallest_cuts(world.nodes, world.uncut)
        serving = {s for s in subsets(world.uncut) if has_paths(world.nodes, s, possible, count)}
        minimal = [s for s in serving if not any(s - {link} in serving for link in s)]
        assert links in minimal
        assert world.changes(links) <= min(map(world.changes, minimal)) + 1


def test_a_smallest_redundant_network_from_nothing() -> None:
    for size in range(1, 12):
        for count in range(1, 6):
            nodes = list("abcdefghijk"[:size])
            links = target_links(parse_topology(f"redundant {count}"), nodes, nodes)
            possible = min(count, size - 1)
            needed = size - 1 if possible == 1 else -(-size * possible // 2)
            assert len(links) == needed
            assert all(cut >= possible for cut in smallest_cuts(nodes, links).values())


def test_a_death_in_a_redundant_network_costs_half_of_the_lost_links() -> None:
    nodes = list("abcdefgh")
    for count in (2, 3, 4):
        topology = parse_topology(f"redundant {count}")
        links = target_links(topology, nodes, nodes)
        for dead in nodes:
            alive = [node for node in nodes if node != dead]
            created = target_links(topology, nodes, alive, existing=links) - links
            assert len(created) <= -(-count // 2) + 1
            assert len(created) >= -(-count // 2)


def test_a_tree_from_nothing_is_low() -> None:
    nodes = [f"{number:02}" for number in range(22)]
    links = target_links(parse_topology("tree 4"), nodes, nodes)
    reached, steps = {"21"}, 0
    while len(reached) < len(nodes):
        reached |= {node for pair in links if reached & set(pair) for node in pair}
        steps += 1
    assert steps == 3  # 1 + 4 + 12 + 5
    assert max(degrees(nodes, links)) == 4


class LookedAt(frozenset[Edge]):
    """Links that there are already, and how often they were asked for."""

    looks = 0

    def __contains__(self, link: object) -> bool:
        self.looks += 1
        return super().__contains__(link)


def test_looking_for_a_ring_ends() -> None:
    """K(8, 10) has no ring and very many ways to find that out."""
    nodes = list(range(18))
    pairs = [(a, b) for a in nodes[:8] for b in nodes[8:]]
    existing = LookedAt()
    links = shapes.ring(Graph(nodes, neighbours_of(nodes, pairs), existing), 0)
    assert shapes.MAX_RING_STEPS < existing.looks < 50 * shapes.MAX_RING_STEPS
    assert all(len(others) >= 2 for others in neighbours_of(nodes, links).values())


def test_the_greatest_networks_are_planned_quickly_enough_to_be_tested() -> None:
    nodes = [f"{number:03}" for number in range(64)]
    random = Random(1)
    cut = random.sample(list(combinations(nodes, 2)), 1500)
    for topology in ("star", "line", "tree 3", "ring", "redundant 3"):
        links = target_links(parse_topology(topology), nodes, nodes, cut)
        assert groups(nodes, links) == groups(nodes, set(combinations(nodes, 2)) - set(cut))
