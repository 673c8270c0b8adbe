"""Connected networks from a seed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_workshop.sim.graphs import distances, graph_of, is_connected
from hedgerow_workshop.sim.topologies import DEGREE, TOPOLOGIES, grid, random_regular, scale_free, tree


@given(st.sampled_from(sorted(TOPOLOGIES)), st.integers(1, 200), st.integers(0, 9))
def test_every_topology_is_simple_and_connected_and_the_same_from_the_same_seed(
    name: str, size: int, seed: int
) -> None:
    edges = TOPOLOGIES[name](size, Random(seed))
    assert edges == sorted(set(edges))
    assert all(0 <= a < b < size for a, b in edges)
    assert is_connected(graph_of(size, edges))
    assert edges == TOPOLOGIES[name](size, Random(seed))


def test_a_grid_is_numbered_row_by_row() -> None:
    assert graph_of(9, grid(9, Random(1))) == [
        [1, 3], [0, 2, 4], [1, 5],
        [0, 4, 6], [1, 3, 5, 7], [2, 4, 8],
        [3, 7], [4, 6, 8], [5, 7],
    ]  # fmt: skip


@pytest.mark.parametrize("size", [6, 7, 100, 1001])
def test_in_a_regular_graph_all_have_the_same_number_of_neighbours(size: int) -> None:
    graph = graph_of(size, random_regular(size, Random(1)))
    assert {len(neighbours) for neighbours in graph} == {DEGREE}


def test_a_regular_graph_is_random_and_therefore_of_small_diameter() -> None:
    graph = graph_of(1000, random_regular(1000, Random(1)))
    assert max(distances(graph, 0).values()) < 12  # the circle that it was made from: 250
    assert random_regular(1000, Random(1)) != random_regular(1000, Random(2))


def test_a_scale_free_graph_has_hubs() -> None:
    degrees = sorted(map(len, graph_of(1000, scale_free(1000, Random(1)))))
    assert degrees[0] == 2
    assert degrees[-1] > 30


def test_a_tree_has_one_link_less_than_nodes() -> None:
    edges = tree(40, Random(1))
    assert len(edges) == 39
    assert max(distances(graph_of(40, edges), 0).values()) == 3


def test_distances_go_around_those_who_are_away() -> None:
    graph = graph_of(9, grid(9, Random(1)))
    assert distances(graph, 6)[2] == 4
    assert distances(graph, 6, without=frozenset({3, 4}))[0] == 6
    assert 0 not in distances(graph, 6, without=frozenset({1, 3}))
