"""With two parents, what is published at a broker that lives reaches every subscriber at one that lives,
whichever one node or link fails, when, and how; and soon after that was noticed.

Each broker drops what it has had: that nothing comes twice is the broker's own affair (`arrived`)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow_workshop.sim.broker import Broker
from hedgerow_workshop.sim.graphs import Edge, distances, graph_of
from hedgerow_workshop.sim.network import Network
from hedgerow_workshop.sim.topologies import grid
from tests.workshop.sim.federations import TOPIC, Load, Trial, federation, two_connected

seeds = st.integers(0, 2**32)
GRID = grid(9, Random(1))
FLOWS_AGAIN_S = 0.5
HEALED_S = 1.0


def check(trial: Trial) -> None:
    assert len(trial.expected()) > 50
    assert trial.lost() == []
    assert trial.flows_again_after_s() < FLOWS_AGAIN_S


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
@pytest.mark.parametrize("node", range(9))
def test_any_node_of_the_documents_grid_may_fail(node: int, silent: bool) -> None:
    trial = Trial(9, GRID, [2, 7], [6, 0], seed=node)
    trial.kill(node, silent=silent)
    check(trial)


@pytest.mark.parametrize("edge", GRID, ids=lambda edge: f"{edge[0]}-{edge[1]}")
def test_any_link_of_the_documents_grid_may_be_cut(edge: Edge) -> None:
    trial = Trial(9, GRID, [2, 7], [6, 0], seed=sum(edge))
    trial.cut(edge)
    check(trial)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(4, 16), st.sampled_from(["kill", "silence", "cut"]))
def test_any_single_failure_of_a_graph_that_it_does_not_take_apart(seed: int, size: int, kind: str) -> None:
    random = Random(seed)
    edges = two_connected(random, size) if random.random() < 0.7 else grid(size, random)
    subscribers, publishers = random.sample(range(size), random.randint(2, 4)), random.sample(range(size), 3)
    trial = Trial(size, edges, subscribers, publishers, seed)
    if kind == "cut":
        trial.cut(random.choice(edges))
    else:
        trial.kill(random.randrange(size), silent=kind == "silence")
    check(trial)


def side_of(random: Random, size: int, edges: list[Edge]) -> set[int]:
    """Some of the nodes, that hang together."""
    side = {random.randrange(size)}
    for _ in range(random.randrange(size - 1)):
        near = {end for edge in edges if side & set(edge) for end in edge} - side
        side.add(random.choice(sorted(near)))
    return side


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(4, 16))
def test_a_partition_works_on_both_sides_and_heals_to_one_core(seed: int, size: int) -> None:
    """And what one side published meanwhile reaches the other."""
    random = Random(seed)
    edges = two_connected(random, size)
    side = side_of(random, size, edges)
    across = [edge for edge in edges if len(side & set(edge)) == 1]
    subscribers = sorted(random.sample(range(size), random.randint(2, 4)))
    network = federation(size, edges, subscribers, seed)
    network.run(12)
    load = Load(network, random.sample(range(size), 3))
    for a, b in across:
        network.events.plan(
            network.now + random.choice([0.0, 0.4]) * random.random(), network.cut, str(a), str(b)
        )
    load.run(network.now + 3)
    apart = graph_of(size, [edge for edge in edges if edge not in across])
    for node, broker in brokers_of(network).items():
        inside = [subscriber for subscriber in subscribers if subscriber in distances(apart, node)]
        assert not inside or broker.federator.core_of(TOPIC) == str(inside[0])
    load.run(network.now + random.uniform(0, 4), gap_s=0.1)
    for a, b in across:
        network.restore(str(a), str(b))
    network.run(network.now + HEALED_S)
    cores = {broker.federator.core_of(TOPIC) for broker in brokers_of(network).values()}
    assert cores == {str(subscribers[0])}
    network.run(network.now + 1)
    for subscriber in subscribers:
        assert [number for number in load.sent if load.arrived_at(number, subscriber) is None] == []


def brokers_of(network: Network[Broker]) -> dict[int, Broker]:
    return {int(name): node.machine for name, node in network.nodes.items()}
