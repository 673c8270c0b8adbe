"""The document's theorems and its grid, and delivery by `targets`, over random connected graphs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.mesh.wire import MeshKind
from tests.federation.mesh.network import Network, grid, random_graph

seeds = st.integers(0, 2**32)
sizes = st.integers(2, 24)
redundancies = st.integers(1, 4)
SETTLED_S = 12.0  # Who is no parent any more has forgotten its child two announcements later.


def network_of(seed: int, size: int, redundancy: int = 2, *, uneven: bool = False) -> Network:
    random = Random(seed)
    links = random_graph(random, size, random.randrange(2 * size))
    delay = (lambda: random.uniform(0.001, 0.02)) if uneven else (lambda: 0.005)
    return Network(links, seed=seed, redundancy=redundancy, delay_s=delay)


def subscribe_some(network: Network, seed: int, topic_filter: str = "t") -> set[str]:
    random = Random(seed + 1)
    nodes = sorted(network.nodes)
    chosen = random.sample(nodes, random.randint(1, min(len(nodes), 6)))
    for node in chosen:
        network.subscribe(node, topic_filter)
        network.run(random.uniform(0, 0.3))
    return set(chosen)


def test_the_grid_of_the_document() -> None:
    network = Network(grid(3, 3))
    network.subscribe("7", "t")
    network.subscribe("2", "t")
    network.run(1)
    assert network.cores("t") == {"2"}
    assert network.members("t") == {"1", "2", "4", "5", "7", "8"}
    parents = {node: set(network.nodes[node].parents_of("t")) for node in network.members("t")}
    assert parents == {"2": set(), "1": {"2"}, "5": {"2"}, "4": {"1", "5"}, "8": {"5"}, "7": {"4", "8"}}
    # The publisher is at node 6, one hop from 7 and four from 2 (§7).
    assert network.nodes["6"].targets("t", None) == ["7"]
    assert set(network.publish("6", "t")) == {"6", "1", "2", "4", "5", "7", "8"}


def test_an_id_is_a_number_before_it_is_a_text() -> None:
    network = Network([("10", "9"), ("9", "1a"), ("1a", "b")])
    for node in network.nodes:
        network.subscribe(node, "t")
    network.run(1)
    assert network.cores("t") == {"9"}
    network.kill("9")
    network.run(1)
    assert network.nodes["b"].core_of("t") == "1a"


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, redundancies, st.booleans())
def test_theorem_1_an_announcement_crosses_each_link_at_most_twice(
    seed: int, size: int, redundancy: int, uneven: bool
) -> None:
    network = network_of(seed, size, redundancy, uneven=uneven)
    chosen = subscribe_some(network, seed)
    network.run(2)
    core = network.nodes[min(chosen, key=int)]
    sent, announced = network.sent[MeshKind.CORE_ANN], core.stats.announcements
    network.run(30)
    periodic = core.stats.announcements - announced
    assert periodic >= 5
    assert network.sent[MeshKind.CORE_ANN] - sent <= 2 * len(network.links) * periodic


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, redundancies)
def test_theorem_2_it_converges_and_everyone_knows_the_distance(
    seed: int, size: int, redundancy: int
) -> None:
    network = network_of(seed, size, redundancy)
    chosen = subscribe_some(network, seed)
    network.run(SETTLED_S)
    core = min(chosen, key=int)
    assert network.cores("t") == {core}
    distances = network.distances(core)
    for node, federator in network.nodes.items():
        assert federator.distance_of("t") == distances[node]
        closer = [
            other
            for link in network.links
            if node in link
            for other in link - {node}
            if distances[other] < distances[node]
        ]
        assert len(federator.parents_of("t")) == min(redundancy, len(closer))
        assert set(federator.parents_of("t")) <= set(closer)
    before = {node: network.nodes[node].parents_of("t") for node in network.nodes}
    routes = {node: set(pairs) for node, pairs in network.routes.items()}
    network.run(30)
    assert before == {node: network.nodes[node].parents_of("t") for node in network.nodes}
    assert routes == network.routes


@settings(max_examples=60, deadline=None)
@given(seeds, sizes, redundancies)
def test_distances_are_the_fewest_links_however_slow_these_are(seed: int, size: int, redundancy: int) -> None:
    """Theorem 2 on links whose delays differ by up to a hundred times, and Theorem 1 once the distances are
    known."""
    random = Random(seed)
    links = random_graph(random, size, random.randrange(2 * size))
    network = Network(links, seed=seed, redundancy=redundancy, delay_s=lambda: 10 ** random.uniform(-3, -1))
    chosen = subscribe_some(network, seed)
    network.run(SETTLED_S)
    core = min(chosen, key=int)
    distances = network.distances(core)
    for node, federator in network.nodes.items():
        assert federator.distance_of("t") == distances[node]
        assert all(distances[parent] == distances[node] - 1 for parent in federator.parents_of("t"))
        assert bool(federator.parents_of("t")) == (node != core)
    network.crossings.clear()
    corrections = network.sent[MeshKind.DISTANCE]
    announced = network.nodes[core].stats.announcements
    network.run(30)
    periodic = network.nodes[core].stats.announcements - announced
    assert periodic >= 5
    assert max(network.crossings.values(), default=0) <= periodic
    assert network.sent[MeshKind.DISTANCE] == corrections
    assert {node: each.distance_of("t") for node, each in network.nodes.items()} == distances


@settings(max_examples=30, deadline=None)
@given(seeds, sizes)
def test_the_first_announcement_crosses_links_once_and_corrections_end(seed: int, size: int) -> None:
    """Each time that a node corrects itself its distance is smaller."""
    random = Random(seed)
    links = random_graph(random, size, random.randrange(2 * size))
    network = Network(links, seed=seed, delay_s=lambda: 10 ** random.uniform(-3, -1))
    network.subscribe("0", "t")
    network.run(4)
    assert network.nodes["0"].stats.announcements == 1
    assert max(network.crossings.values(), default=0) <= 1
    distances = network.distances("0")
    assert {node: each.distance_of("t") for node, each in network.nodes.items()} == distances
    for node, federator in network.nodes.items():
        neighbours = sum(node in link for link in network.links)
        # The longest way has a link fewer than there are nodes.
        assert federator.stats.sent["DISTANCE"] <= neighbours * max(0, size - 1 - distances[node])


def test_a_slow_link_to_the_core_is_the_shortest_way_at_every_moment() -> None:
    """A triangle: 0 and 2 are neighbours, and 0.4 s from each other; by 1 it is quicker."""
    network = Network([("0", "1"), ("1", "2")])
    network.join("0", "2", delay_s=0.4)
    network.subscribe("0", "t")
    network.subscribe("2", "t")
    network.run(SETTLED_S)
    for _ in range(300):
        network.run(0.1)
        assert network.nodes["2"].distance_of("t") == 1
        assert network.nodes["2"].parents_of("t") == ["0"]
    # Where that link is silently cut, the other way is used, and known.
    network.cut("0", "2")
    network.run(SETTLED_S)
    assert network.nodes["2"].distance_of("t") == 2
    assert network.nodes["2"].parents_of("t") == ["1"]


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, redundancies, st.booleans())
def test_every_subscriber_is_reached_from_everywhere(
    seed: int, size: int, redundancy: int, uneven: bool
) -> None:
    network = network_of(seed, size, redundancy, uneven=uneven)
    chosen = subscribe_some(network, seed)
    network.run(SETTLED_S)
    members = network.members("t")
    for publisher in network.nodes:
        assert chosen <= set(network.publish(publisher, "t"))
    # What begins inside stays inside: a mesh is not the whole network.
    assert set(network.publish(min(chosen), "t")) <= members
    # With one parent each, the mesh is a tree: nothing comes twice.
    if redundancy == 1:
        assert set(network.publish(min(chosen), "t").values()) == {1}


@settings(max_examples=15, deadline=None)
@given(seeds, sizes)
def test_routes_do_not_change_while_nothing_happens(seed: int, size: int) -> None:
    """Each announcement comes by several neighbours in any order; no route may follow it back and forth."""
    network = network_of(seed, size, uneven=True)
    subscribe_some(network, seed)
    network.run(SETTLED_S)
    changes = 0
    for federator in network.nodes.values():
        take = federator.take_changes

        def counted(take=take):  # type: ignore[no-untyped-def]
            nonlocal changes
            found = take()
            changes += len(found)
            return found

        federator.take_changes = counted  # type: ignore[method-assign]
    network.run(30)
    assert changes == 0


@pytest.mark.parametrize("redundancy", [1, 2, 3])
def test_wildcards_meet_in_one_publication(redundancy: int) -> None:
    network = Network(grid(4, 4), redundancy=redundancy)
    wanted = {"0": "a/#", "5": "+/b", "10": "a/b", "15": "a/b/c", "3": "x/#"}
    for node, topic_filter in wanted.items():
        network.subscribe(node, topic_filter)
    network.run(2)
    for publisher in network.nodes:
        assert {"0", "5", "10"} <= set(network.publish(publisher, "a/b"))
        assert {"0", "15"} <= set(network.publish(publisher, "a/b/c"))
        assert "3" in network.publish(publisher, "x")
    assert network.nodes["7"].targets("nobody", None) == []


def test_unsubscribing_shrinks_the_mesh_at_once() -> None:
    network = Network(grid(3, 3))
    for node in ("2", "7", "6"):
        network.subscribe(node, "t")
    network.run(1)
    assert network.members("t") >= {"6", "3"}
    network.unsubscribe("6", "t")
    network.run(0.1)
    assert network.members("t") == {"1", "2", "4", "5", "7", "8"}
    network.unsubscribe("2", "t")
    network.run(2)
    assert network.cores("t") == {"7"}
    assert network.members("t") == {"7"}
    network.unsubscribe("7", "t")
    network.run(2)
    assert network.cores("t") == {None}
    assert all(not routes for routes in network.routes.values())
    network.run(60)
    assert all(federator.filter_count == 0 for federator in network.nodes.values())
    assert all(federator.core_count == 0 for federator in network.nodes.values())
