"""Federations of the document's own rules, from start to figures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from random import Random

import pytest

from hedgerow_workshop.sim.broker import Activity, Broker
from hedgerow_workshop.sim.graphs import graph_of
from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.measurements import Announcements, Publications
from hedgerow_workshop.sim.network import Network
from hedgerow_workshop.sim.simulation import CHURN, TOPIC, WHOLE, Measured, Parameters, Simulation
from hedgerow_workshop.sim.topologies import TOPOLOGIES, grid, tree
from tests.workshop.sim.document import DocumentFederator, read_document
from tests.workshop.sim.flooding import line


def make(parameters: Parameters, name: str, now: float, chance: Callable[[], float]) -> DocumentFederator:
    return DocumentFederator(name, now, parameters.redundancy, parameters.announce_interval_s)


def simulate(**parameters: object) -> Measured:
    settings: dict[str, object] = {"topology": "grid", "size": 64, "failures": (), "jitter_s": 0.0}
    return Simulation(Parameters(**settings | parameters), make, read_document).run()  # type: ignore[arg-type]


def federation(edges: list[tuple[int, int]], subscribers: list[int]) -> Network[Broker]:
    """Of the document, on links of 5 ms."""
    activity = Activity()

    def make_broker(name: str, now: float) -> Broker:
        broker = Broker(DocumentFederator(name, now), activity)
        if int(name) in subscribers:
            broker.subscribe(TOPIC, now)
        return broker

    network = Network(make_broker, Random(1))
    for node in sorted({end for edge in edges for end in edge}):
        network.add(str(node))
    for a, b in edges:
        network.join(str(a), str(b), VirtualConditions())
    return network


def test_the_documents_grid_has_the_documents_mesh() -> None:
    network = federation(grid(9, Random(1)), [2, 7])
    network.run(4)
    federators = {name: node.machine.federator for name, node in network.nodes.items()}
    assert {federator.core_of(TOPIC) for federator in federators.values()} == {"2"}
    members = {name for name, federator in federators.items() if federator.is_member(TOPIC)}
    assert members == {"1", "2", "4", "5", "7", "8"}
    assert sorted(federators["7"].targets(TOPIC, None)) == ["4", "8"]


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_a_federation_converges_and_delivers_all(topology: str) -> None:
    measured = simulate(topology=topology, size=60)
    assert measured.converged_after_s is not None
    assert 0 < measured.converged_after_s < 5
    assert measured.late_changes == 0
    assert measured.deliveries == {WHOLE: 1}
    assert 0 < measured.messages_per_link <= 2
    assert measured.stretch_mean is not None
    assert measured.stretch_max is not None
    assert 1 <= measured.stretch_mean <= measured.stretch_max
    assert 10 <= measured.mesh <= 60


def test_failures_are_measured_before_and_after_the_repair() -> None:
    measured = simulate(topology="ring", redundancy=1, failures=(1, 2), publications=40)
    assert list(measured.deliveries) == [
        WHOLE, "k1/unnoticed", "k1/recovered", "k1/repaired", "k2/unnoticed", "k2/recovered", "k2/repaired",
    ]  # fmt: skip
    # On a ring with one parent there is no other way until the loss is noticed.
    assert measured.deliveries["k1/unnoticed"] is not None
    assert measured.deliveries["k1/unnoticed"] < 1
    assert measured.deliveries["k1/repaired"] == 1
    assert measured.repaired_after_s[1] is not None
    assert 1.5 <= measured.repaired_after_s[1] < 30  # nobody can have noticed before


def test_churn_is_measured_while_it_lasts() -> None:
    measured = simulate(topology="ring", redundancy=1, churn=0.5, churn_s=20)
    ratio = measured.deliveries[CHURN]
    assert ratio is not None
    assert 0.5 < ratio < 1
    assert measured.simulated_s > 20


def test_what_never_agrees_is_said_not_to_have_converged() -> None:
    measured = simulate(loss=1.0)
    assert measured.converged_after_s is None
    ratio = measured.deliveries[WHOLE]
    assert ratio is not None
    assert ratio < 0.2  # a subscriber hears its own broker


def test_a_run_is_a_function_of_its_parameters_and_seed() -> None:
    settings = {
        "topology": "regular",
        "failures": (1,),
        "jitter_s": 0.001,
        "loss": 0.01,
        "churn": 0.2,
        "churn_s": 10,
    }
    first = simulate(**settings)
    assert first == simulate(**settings)
    assert first.events != simulate(**settings, seed=2).events
    assert pickle.loads(pickle.dumps(first)) == first


def test_announcements_are_counted_one_by_one() -> None:
    network = line("1", "2")
    network.run(1)
    counted = Announcements(read_document, network)
    for data in (b"A 1 1 0", b"A 1 1 1", b"A 1 2 0", b"M 1 1 0", object()):
        counted.watch("1", "2", data)
    assert counted.packets == {("1", "1"): 2, ("1", "2"): 1}
    assert (counted.control_packets, counted.control_bytes) == (4, 28)
    assert counted.worst_per_link == 2


def test_a_link_that_comes_up_again_while_an_announcement_spreads_is_another() -> None:
    network = line("1", "2")
    network.run(1)
    counted = Announcements(read_document, network)
    counted.watch("1", "2", b"A 1 1 0")
    network.kill("2")
    network.run(2)
    network.bring_back("2")
    network.run(3)
    for _ in range(3):
        counted.watch("1", "2", b"A 1 1 0")
    for _ in range(2):
        counted.watch("1", "2", b"A 1 2 0")
    assert counted.packets == {("1", "1"): 4, ("1", "2"): 2}
    assert counted.worst_per_link == 2


def test_only_subscribers_that_live_on_and_can_be_reached_are_counted() -> None:
    # 0 is the root of 1, 2 and 3; 4, 5 and 6 hang on 1.
    edges = tree(7, Random(1))
    network = federation(edges, [2, 3, 4])
    network.run(1)
    publications = Publications(network, graph_of(7, edges), [2, 3, 4], Random(1), TOPIC)
    network.kill("1")  # nobody reaches 4 from elsewhere, and what is published there stays there
    for other in ("4", "5", "6"):
        network.kill(other)
    network.run(2)
    publications.publish(5)
    network.kill("3")
    network.run(3)
    network.bring_back("3")
    network.run(4)
    delivery = publications.take_delivery()
    assert (delivery.expected, delivery.delivered, delivery.ratio) == (5, 5, 1)
    assert publications.take_delivery().ratio is None


def test_stretch_is_of_the_way_that_was_travelled() -> None:
    # On a line of three, the document sends what begins at 1 to the core only: 0 is one link away.
    network = federation([(0, 1), (1, 2)], [0, 2])
    network.run(1)
    publications = Publications(network, graph_of(3, [(0, 1), (1, 2)]), [0, 2], Random(1), TOPIC)
    publications.publish(10)
    network.run(2)
    delivery = publications.take_delivery()
    assert delivery.ratio == 1
    assert set(delivery.stretches) == {1.0}
