"""Agents keep a topology while brokers die and return, pairs are cut, and agents come and go."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from hedgerow.agent.agent import Action
from hedgerow.agent.plan import PUBLISHED_TOPOLOGIES, Ghosts, TopologyPlan
from tests.agent.checks import excess, has_paths, is_ring, is_tree, smallest_cuts
from tests.agent.simulation import Simulation

DETECTION_S = 1.5
OURS = [Ghosts.DELETE, Ghosts.KEEP]  # which never part a network
ALL = ["star", "line", "tree 2", "tree 3", "ring", "redundant 2", "redundant 3"]


def holds(simulation: Simulation) -> bool:
    """The topology's own invariant, among the bridges that carry; no pair is cut."""
    nodes, links = simulation.alive, simulation.carrying
    parameter = simulation.topology.parameter
    match simulation.topology.name:
        case "star":
            hub = max(nodes)
            return links == {(node, hub) for node in nodes if node != hub}
        case "line":
            return links == set(zip(sorted(nodes), sorted(nodes)[1:], strict=False))
        case "tree":
            return is_tree(nodes, links) and not excess(nodes, links, parameter)
        case "ring":
            return is_ring(nodes, links) if len(nodes) > 2 else is_tree(nodes, links)
        case _:
            possible = smallest_cuts(nodes, [(a, b) for a in nodes for b in nodes if a < b])
            return has_paths(nodes, links, possible, parameter)


def die_or_return(simulation: Simulation) -> None:
    broker = simulation.random.choice(simulation.brokers)
    if broker in simulation.alive and len(simulation.alive) > 1:
        simulation.alive.remove(broker)
    else:
        simulation.alive.add(broker)


def agents_come_and_go(simulation: Simulation) -> None:
    agent_id = simulation.random.choice(["agent1", "agent2", "agent3"])
    if agent_id not in simulation.agents:
        simulation.start_agent(agent_id)
    elif len(simulation.agents) > 1:
        del simulation.agents[agent_id]


@pytest.mark.parametrize("topology", ALL)
@pytest.mark.parametrize("ghosts", OURS)
def test_after_the_detection_time_the_invariant_holds(topology: str, ghosts: Ghosts) -> None:
    """With three agents that come and go, and with no change that is not needed."""
    for seed in range(3):
        simulation = Simulation(Random(seed), 5, topology, ghosts)
        simulation.start_agent("agent2")
        simulation.run(DETECTION_S + 1.0)
        assert holds(simulation), seed
        for _ in range(8):
            simulation.done.clear()
            die_or_return(simulation)
            needed = simulation.plan()
            if simulation.random.random() < 0.5:
                agents_come_and_go(simulation)
            # A broker and the acting agent may go at once: the others notice both after the same time. A new
            # agent needs as long again before it may act, if it is the only one left.
            simulation.run(2 * DETECTION_S + 1.0)
            assert holds(simulation), seed
            assert simulation.plan() == TopologyPlan(), seed
            counts = [
                sum(command.action is action for command in simulation.done)
                for action in (Action.CREATE, Action.DELETE)
            ]
            if topology in ("star", "line"):
                assert counts == [len(needed.create), len(needed.delete)], seed


@pytest.mark.parametrize("topology", ALL)
def test_cuts_and_lost_commands(topology: str) -> None:
    """Connected as far as it can be; star and line become exactly what they should be, cuts and all."""
    for seed in range(3):
        simulation = Simulation(Random(seed), 5, topology, loss=0.1)
        simulation.start_agent("agent1")
        simulation.start_agent("agent2")
        simulation.run_until(lambda simulation=simulation: simulation.is_connected, 8.0)  # type: ignore[misc]
        for _ in range(5):
            event = simulation.random.random()
            if event < 0.3:
                die_or_return(simulation)
            elif event < 0.8 and simulation.existing:
                simulation.cut.add(simulation.random.choice(sorted(simulation.existing)))
            else:
                simulation.cut.clear()
            simulation.run_until(lambda simulation=simulation: simulation.is_connected, 15.0)  # type: ignore[misc]
            simulation.run(3.0)
        if topology in ("star", "line"):
            simulation.run_until(lambda simulation=simulation: simulation.plan() == TopologyPlan(), 90.0)  # type: ignore[misc]
        simulation.cut.clear()
        simulation.run_until(lambda simulation=simulation: holds(simulation), 90.0)  # type: ignore[misc]


@pytest.mark.parametrize("ghosts", OURS)
@pytest.mark.parametrize("topology", ["star", "line", "ring", "redundant 2"])
def test_what_is_whole_stays_connected_while_a_cut_is_tried_again(topology: str, ghosts: Ghosts) -> None:
    simulation = Simulation(Random(7), 5, topology, ghosts)
    simulation.start_agent("agent1")
    simulation.run(4.0)
    simulation.cut.add(max(simulation.existing))
    simulation.run(4.0)

    def connected() -> None:
        assert simulation.is_connected

    simulation.done.clear()
    simulation.run(100.0, connected)
    # Tried after 10, 20 and 40 seconds; each try is a few commands, not a stream of them.
    assert len(simulation.done) <= 20
    simulation.cut.clear()
    simulation.run_until(lambda: holds(simulation) and simulation.plan() == TopologyPlan(), 100.0)
    simulation.run(5.0)
    simulation.done.clear()
    simulation.run(100.0, connected)
    assert simulation.done == []


def test_a_silent_cut_is_routed_around_in_two_seconds() -> None:
    """Of which 1.5 are the bridge's own, until it says that it is down."""
    took_s = []
    for seed in range(15):
        simulation = Simulation(Random(seed), 5, "star")
        simulation.start_agent("agent1")
        simulation.run(4.0)
        simulation.cut.add(simulation.link("b2", "b5"))
        assert not simulation.is_connected
        took_s.append(simulation.run_until(lambda s=simulation: s.is_connected, 3.0))  # type: ignore[misc]
    assert 1.5 < median(took_s) <= 2.0
    assert max(took_s) <= 2.5  # the answer that confirms it was late


def test_two_agents_with_an_equal_view_never_act_at_once() -> None:
    simulation = Simulation(Random(3), 4, "line")
    for agent_id in ("agent1", "agent2", "agent3"):
        simulation.start_agent(agent_id)

    def one_acts() -> None:
        assert sum(agent.is_acting for agent in simulation.agents.values()) <= 1

    simulation.run(0.5)
    simulation.run(1.2)  # until they have heard each other
    simulation.run(5.0, one_acts)
    assert simulation.agents["agent1"].is_acting
    del simulation.agents["agent1"]
    assert simulation.run_until(lambda: simulation.agents["agent2"].is_acting, 1.6) > 0.9
    simulation.run(5.0, one_acts)


@pytest.mark.parametrize("topology", PUBLISHED_TOPOLOGIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_published_policy_comes_to_its_topology_when_its_ghosts_have_connected(
    topology: str, seed: int
) -> None:
    simulation = Simulation(Random(seed), 5, topology, Ghosts.PUBLISHED)
    simulation.start_agent("agent1")
    simulation.run(DETECTION_S + 1.0)
    for _ in range(8):
        die_or_return(simulation)
        simulation.run(DETECTION_S + 1.0)
        assert holds(simulation)
        assert simulation.plan() == TopologyPlan()
