"""Nodes and links that fail, cores that vanish, partitions, churn, lost packets, restarts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.mesh.wire import MeshKind
from tests.federation.mesh.network import Network, grid, layers, random_graph

seeds = st.integers(0, 2**32)
SETTLED_S = 12.0
KILL_S = 0.5  # within which publications flow again after a node died


def started(seed: int = 1, redundancy: int = 2) -> Network:
    network = Network(grid(4, 4), seed=seed, redundancy=redundancy)
    for node in ("1", "6", "8", "11", "14"):
        network.subscribe(node, "t")
    network.run(SETTLED_S)
    return network


def assert_all_reached(network: Network, topic: str = "t") -> None:
    """Every subscriber from every node that it is connected with."""
    for publisher in network.nodes:
        connected = set(network.distances(publisher))
        reached = set(network.publish(publisher, topic))
        assert network.subscribers(topic) & connected <= reached, f"from {publisher}"


LINKS = grid(4, 4)
NODES = [str(number) for number in range(16)]


@pytest.mark.parametrize("link", LINKS, ids="-".join)
def test_any_one_link_may_fail(link: tuple[str, str]) -> None:
    network = started()
    network.cut(*link)
    network.run(KILL_S)
    assert_all_reached(network)
    network.run(SETTLED_S)
    assert_all_reached(network)
    assert network.cores("t") == {"1"}


@pytest.mark.parametrize("failed", [*layers(3, 3)[3:], *map(str, range(1, 10))], ids=str)
def test_who_has_two_parents_is_reached_before_any_repair(failed: str | tuple[str, str]) -> None:
    """No packet is sent between the failure and the publication."""
    network = Network(layers(3, 3))
    for node in ("0", "7", "8", "9"):
        network.subscribe(node, "t")
    network.run(SETTLED_S)
    assert all(
        len(network.nodes[node].parents_of("t")) == 2
        for node in network.members("t")
        if network.nodes[node].distance_of("t") in (2, 3)
    )
    if isinstance(failed, str):
        network.kill(failed)
    else:
        network.cut(*failed)
    for publisher in sorted(network.subscribers("t")):
        assert network.subscribers("t") <= set(network.publish(publisher, "t")), f"from {publisher}"


@pytest.mark.parametrize("node", NODES)
def test_any_one_node_may_die(node: str) -> None:
    network = started()
    network.kill(node)
    network.run(KILL_S)
    assert_all_reached(network)
    network.run(SETTLED_S)
    assert_all_reached(network)
    assert network.cores("t") == {"6" if node == "1" else "1"}


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(4, 20), st.booleans())
def test_any_one_failure_of_a_random_graph_is_repaired(seed: int, size: int, is_link: bool) -> None:
    random = Random(seed)
    network = Network(random_graph(random, size, size), seed=seed)
    for node in random.sample(sorted(network.nodes), 3):
        network.subscribe(node, "t")
    network.run(SETTLED_S)
    if is_link:
        network.cut(*random.choice(sorted(tuple(sorted(link)) for link in network.links)))
    else:
        network.kill(random.choice(sorted(network.nodes)))
    network.run(1)
    assert_all_reached(network)


def test_a_failed_way_is_repaired_by_one_early_announcement() -> None:
    network = Network(grid(3, 3))
    network.subscribe("2", "t")
    network.subscribe("7", "t")
    network.run(SETTLED_S)
    core = network.nodes["2"]
    announced, repairs = core.stats.announcements, network.sent[MeshKind.REPAIR]
    network.cut("4", "7")
    assert set(network.publish("6", "t")) >= {"2", "7"}
    network.run(0.1)
    assert core.stats.announcements == announced + 1
    assert 0 < network.sent[MeshKind.REPAIR] - repairs <= 2 * len(network.links)
    assert network.nodes["7"].parents_of("t") == ["8"]
    assert network.cores("t") == {"2"}


def test_a_core_that_falls_silent_is_replaced_after_its_lifetime() -> None:
    """Nobody loses a link, as if the node hung: its announcements end."""
    network = started()
    network.hung.add("1")
    network.run(10)
    assert network.nodes["11"].core_of("t") == "1"
    network.run(10)
    assert {network.nodes[node].core_of("t") for node in NODES if node != "1"} == {"6"}


def test_a_partition_has_a_core_on_both_sides_and_heals_to_one() -> None:
    network = started()
    across = [(one, other) for one, other in LINKS if int(other) - int(one) == 4 and 4 <= int(one) < 8]
    for link in across:
        network.cut(*link)
    network.run(1)
    assert {network.nodes[node].core_of("t") for node in NODES[:8]} == {"1"}
    assert {network.nodes[node].core_of("t") for node in NODES[8:]} == {"8"}
    assert_all_reached(network)
    network.run(20)
    assert_all_reached(network)
    for link in across:
        network.join(*link)
    network.run(1)
    assert network.cores("t") == {"1"}
    assert_all_reached(network)
    network.run(SETTLED_S)
    assert_all_reached(network)
    assert network.cores("t") == {"1"}


def ring(size: int) -> list[tuple[str, str]]:
    return [(str(node), str((node + 1) % size)) for node in range(size)]


def assert_every_part_has_its_core(network: Network) -> None:
    """Every part with subscribers: the smallest of them."""
    for node, federator in network.nodes.items():
        inside = network.subscribers("t") & set(network.distances(node))
        assert not inside or federator.core_of("t") == min(inside, key=int), f"at {node}"


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(5, 16), st.booleans(), st.integers(1, 3))
def test_a_lost_core_is_replaced_at_once_however_the_ends_notice(
    seed: int, size: int, is_ring: bool, redundancy: int
) -> None:
    """Links are interrupted one soon after the other, and some come up again; each end notices on its own."""
    random = Random(seed)
    links = ring(size) if is_ring else random_graph(random, size, size // 2)
    network = Network(links, seed=seed, redundancy=redundancy, delay_s=lambda: random.uniform(0.001, 0.01))
    for node in random.sample(sorted(network.nodes), random.randint(2, 4)):
        network.subscribe(node, "t")
    network.run(random.uniform(10, 16))
    steps: list[tuple[float, Callable[..., None], str, str]] = []
    for one, other in random.sample(links, random.randint(1, 3)):
        at = network.now + random.choice([0.02, 0.3, 1]) * random.random()
        steps.append((at, network.interrupt, one, other))
        steps.append((at + 0.3 * random.random(), network.notice, one, other))
        steps.append((at + 0.3 * random.random(), network.notice, other, one))
        if random.random() < 0.3:
            steps.append((at + random.uniform(0.3, 0.8), network.join, one, other))
    for at, step, one, other in sorted(steps, key=lambda each: each[0]):
        network.run(max(at - network.now, 0))
        step(one, other)
    network.run(0.7)
    assert_every_part_has_its_core(network)


def test_who_loses_the_next_parent_before_the_last_one_is_forgotten_asks_for_a_repair() -> None:
    """
    0 1 2 … 12 0 is a ring, with subscribers at 2 and 12. The link 0 - 1 is lost, so that the way from 12 to
    the core turns round. While the parent of before is still one, the new way is lost as well, at 11 - 12.
    """
    network = Network(ring(13), redundancy=1)
    network.subscribe("2", "t")
    network.subscribe("12", "t")
    network.run(SETTLED_S)
    network.cut("0", "1")
    network.run(0.15)
    assert network.nodes["12"].parents_of("t") == ["0"]
    # By 11, since 0 has lost its own way to the core.
    assert network.nodes["12"].sequence_of("t") == network.nodes["2"].sequence_of("t")
    network.cut("11", "12")
    network.run(1)
    assert_every_part_has_its_core(network)


def test_who_comes_while_a_core_is_suspected_does_not_follow_it_for_its_lifetime() -> None:
    network = Network([("1", "3"), ("3", "4"), ("4", "6"), ("7", "8")])
    for node in ("1", "4", "8"):
        network.subscribe(node, "t")
    network.run(SETTLED_S)
    network.cut("1", "3")
    network.run(0.1)
    assert network.nodes["4"].core_of("t") == "1"  # Nobody has given up yet.
    network.join("6", "7")
    network.run(1)
    assert_every_part_has_its_core(network)


def test_a_core_that_was_given_up_is_followed_again_as_soon_as_there_is_a_way() -> None:
    network = started()
    network.cut("10", "11")
    for link in (("7", "11"), ("14", "15")):
        network.cut(*link)
    network.run(1)
    assert network.nodes["11"].core_of("t") == "11"
    network.join("7", "11")
    network.run(0.3)
    assert network.cores("t") == {"1"}
    assert_all_reached(network)


def test_the_last_way_is_used_until_the_next_core_has_its_mesh() -> None:
    """A smaller id subscribes: at no moment does a publication miss who was there before."""
    network = started()
    before = network.subscribers("t")
    network.subscribe("0", "t")
    for _ in range(100):
        network.run(0.003)
        for publisher in network.nodes:
            assert before <= set(network.publish(publisher, "t"))
    assert network.cores("t") == {"0"}


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_core_that_restarts_goes_on(epoch: int) -> None:
    """With a new epoch, or from what its neighbours tell."""
    network = started()
    sequence = network.nodes["2"].sequence_of("t")
    assert sequence is not None
    links = network.kill("1")
    network.start("1", epoch=epoch)
    for link in links:
        network.join(*link)
    network.subscribe("1", "t")
    network.subscribe("1", "other")
    network.run(1)
    assert network.cores("t") == {"1"}
    assert network.cores("other") == {"1"}
    later = network.nodes["15"].sequence_of("t")
    assert later is not None
    assert later > sequence
    assert_all_reached(network)


def test_a_core_that_restarts_without_subscribers_is_none() -> None:
    network = started()
    links = network.kill("1")
    network.start("1")
    for link in links:
        network.join(*link)
    network.run(1)
    assert network.cores("t") == {"6"}
    assert_all_reached(network)


@pytest.mark.parametrize("away_s", [0.0, 1.0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_core_that_restarts_without_subscribers_is_followed_by_nobody(away_s: float, epoch: int) -> None:
    """Not for the lifetime of what it announced before: nobody else has subscribers."""
    network = Network(grid(4, 4))
    network.subscribe("1", "t")
    network.run(1)
    assert network.cores("t") == {"1"}
    links = network.kill("1")
    network.run(away_s)
    network.start("1", epoch=epoch)
    for link in links:
        network.join(*link)
    network.run(1.5)
    assert not any(network.nodes[node].filter_count for node in network.nodes)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_churn(seed: int) -> None:
    """Whatever came and went, a while later everyone is reached and there is one core in each part."""
    random = Random(seed)
    network = Network(random_graph(random, 14, 14), seed=seed, redundancy=random.randint(1, 3))
    away: dict[str, list[tuple[str, str]]] = {}
    cut: list[tuple[str, str]] = []
    for _ in range(40):
        network.run(random.expovariate(3))
        step = random.random()
        alive = sorted(network.nodes)
        if step < 0.35:
            node = random.choice(alive)
            topic_filter = random.choice(["t", "t/#", "+"])
            wanted = topic_filter in network.subscribed[node]
            (network.unsubscribe if wanted else network.subscribe)(node, topic_filter)
        elif step < 0.5 and len(alive) > 5:
            node = random.choice(alive)
            away[node] = network.kill(node)
        elif step < 0.7 and away:
            node = random.choice(sorted(away))
            network.start(node, epoch=random.randint(0, 1))
            for one, other in away.pop(node):
                if other in network.nodes:
                    network.join(one, other)
        elif step < 0.85 and network.links:
            link = random.choice(sorted(tuple(sorted(link)) for link in network.links))
            network.cut(*link)
            cut.append(link)  # type: ignore[arg-type]
        elif cut:
            one, other = cut.pop()
            if {one, other} <= set(network.nodes) and frozenset((one, other)) not in network.links:
                network.join(one, other)
    network.run(20)
    interested = {node for node, filters in network.subscribed.items() if filters}
    for publisher in network.nodes:
        connected = set(network.distances(publisher))
        assert interested & connected <= set(network.publish(publisher, "t"))
        local = {
            node: {mesh.topic_filter for mesh in network.nodes[node].describe() if mesh.is_local}
            for node in connected
        }
        for topic_filter in set().union(*local.values()):
            subscribed = [node for node in connected if topic_filter in local[node]]
            assert {network.nodes[node].core_of(topic_filter) for node in connected} == {
                min(subscribed, key=int)
            }


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_lost_control_packets_are_made_good_by_later_ones(seed: int) -> None:
    random = Random(seed)
    network = Network(random_graph(random, 12, 12), seed=seed, loss=0.1)
    for node in random.sample(sorted(network.nodes), 4):
        for number in range(40):
            network.subscribe(node, f"{random.randrange(3)}/a longer name of a topic/{number}")
            network.run(0.02)
    network.loss = 0.0
    network.run(25)
    for number in (0, 20, 39):
        for first in range(3):
            name = f"{first}/a longer name of a topic/{number}"
            assert_all_reached(network, name)
