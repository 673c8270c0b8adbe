"""An overlay of many nodes forms, stays connected, and repairs itself."""

from __future__ import annotations

import pytest

from hedgerow.federation.overlay.events import NeighbourGained, NeighbourLost, PeerRefused
from hedgerow.federation.overlay.limits import OverlaySettings
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.overlay.wire import Peer
from tests.federation.overlay.network import Network, joined, kill_some, names, peer

SETTINGS = OverlaySettings()
STILL = OverlaySettings(optimise_s=1e9)  # Without swaps views come to rest.
seeds = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])


def assert_well_formed(network: Network) -> None:
    assert [len(group) for group in network.groups()] == [len(network.nodes)]
    for name, node in network.nodes.items():
        active = {it.node_id for it in node.active}
        passive = {it.node_id for it in node.passive}
        assert 1 <= len(active) <= SETTINGS.active_at_most
        assert len(passive) <= SETTINGS.passive_at_most
        assert name not in active | passive
        assert not active & passive


@seeds
@pytest.mark.parametrize("gap_s", [0.0, 0.05], ids=["at once", "in a row"])
def test_200_nodes_join_through_one_contact(seed: int, gap_s: float) -> None:
    network = joined(seed, 200, gap_s, STILL)
    network.run(40)
    assert_well_formed(network)
    assert network.is_symmetric()
    assert all(len(node.active) >= STILL.active_target for node in network.nodes.values())
    # The contact bears no more than others, and what is open is open for a neighbour.
    assert len(network.links) == sum(len(node.active) for node in network.nodes.values()) / 2
    assert sum(len(node.passive) for node in network.nodes.values()) / 200 > 10


@seeds
def test_a_third_dies_at_once(seed: int) -> None:
    network = joined(seed, 200)
    network.run(10)
    kill_some(network, 0.3)
    network.run(20)
    assert_well_formed(network)
    dead = set(names(200)) - set(network.nodes)
    assert not any(network.neighbours(name) & dead for name in network.nodes)
    assert all(len(node.active) >= SETTINGS.active_target - 1 for node in network.nodes.values())


@seeds
def test_the_contact_dies_and_nobody_needs_it(seed: int) -> None:
    network = joined(seed, 50)
    network.run(5)
    network.kill("n0")
    network.run(5)
    assert_well_formed(network)


@seeds
def test_churn(seed: int) -> None:
    """Each second for a minute two nodes die and two come, through whoever is there."""
    network = joined(seed, 60)
    network.run(10)
    for number in range(60, 180, 2):
        for name in network.random.sample(sorted(network.nodes), 2):
            network.kill(name)
        for name in (f"n{number}", f"n{number + 1}"):
            contact = network.random.choice(sorted(network.nodes))
            network.add(name)
            network.join(name, contact)
        network.run(1)
    network.run(20)
    assert_well_formed(network)


@seeds
def test_a_partition_heals(seed: int) -> None:
    network = joined(seed, 40)
    network.run(10)
    one_side = set(names(20))
    network.cut = lambda a, b: (a in one_side) != (b in one_side)
    for pair in [pair for pair in network.links if network.cut(*pair)]:
        network.break_link(pair)
    network.run(60)
    assert sorted(len(group) for group in network.groups()) == [20, 20]
    network.cut = lambda a, b: False
    network.run(60)
    assert_well_formed(network)


def test_a_node_that_comes_back_under_its_name_is_taken_in_again() -> None:
    network = joined(0, 10)
    network.run(5)
    network.kill("n5")
    network.run(0.1)  # before anybody noticed
    network.add("n5")
    network.join("n5", "n0")
    network.run(20)
    assert_well_formed(network)
    assert network.nodes["n5"].stats.replayed == 0


def test_two_nodes_are_an_overlay() -> None:
    network = Network(0)
    a, b = network.add("a"), network.add("b")
    network.join("b", "a")
    network.run(1)
    assert [it.node_id for it in a.active] == ["b"]
    assert b.active == [peer("a")]
    assert [event for event in a.take_events() if isinstance(event, NeighbourGained)]
    network.kill("b")
    network.run(1)
    assert a.active == []
    assert a.take_events() == [NeighbourLost("b", "the link was lost")]


def test_a_contact_that_is_not_there_yet_is_tried_again() -> None:
    network = Network(0)
    network.add("b")
    network.join("b", "a")
    network.run(5)
    network.add("a")
    network.run(15)
    assert network.neighbours("b") == {"a"}


def test_a_contact_that_refuses_at_once_is_not_hammered() -> None:
    network = Network(0)
    network.add("b", place=(0.0, 0.0))
    network.places["a"] = (0.0, 0.0)
    network.join("b", "a")
    network.run(60)
    assert 30 <= network.dials <= 62


def test_a_contact_that_is_oneself() -> None:
    network = Network(0)
    network.add("a")
    network.join("a", "a")
    network.run(30)
    assert network.nodes["a"].active == []


def test_static_neighbours_are_kept_whatever_comes() -> None:
    network = joined(1, 60)
    network.run(5)
    hub, far = "n7", "n50"
    network.nodes[hub].add_static(Peer("", peer(far).addresses), network.now)
    network.serve(hub)
    network.run(5)
    assert far in network.neighbours(hub)
    network.places[far] = (9.0, 9.0)  # further away than anybody
    for number in range(40):
        network.add(f"late{number}")
        network.join(f"late{number}", hub)
    network.run(60)
    assert far in network.neighbours(hub)
    assert len(network.nodes[hub].active) <= SETTINGS.active_at_most + 1
    network.kill(far)
    network.run(5)
    assert far not in network.neighbours(hub)
    network.add(far)
    network.run(15)
    assert far in network.neighbours(hub)
    assert hub in network.neighbours(far)


def test_a_static_neighbour_that_is_listed_no_longer() -> None:
    """Who has no other reason to be a neighbour is left; where the overlay chooses, it is as others are."""
    network = Network(0)
    given = network.nodes["given"] = Overlay(Peer("given", ()), network.now, epoch=1, random=lambda: 0.5)
    network.places["given"] = (0.0, 0.0)
    for name in ("stays", "goes", "away", "chooser"):
        network.add(name)
    for node, far in ((given, "stays"), (given, "goes"), (network.nodes["chooser"], "stays")):
        node.add_static(Peer("", peer(far).addresses), network.now)
    network.serve("given")
    network.serve("chooser")
    network.run(2)
    assert network.neighbours("given") == {"stays", "goes"}

    given.add_static(peer("away"), network.now)
    network.kill("away")
    network.run(1)
    given.take_events()
    for far in ("goes", "away"):
        given.remove_static(Peer("", peer(far).addresses), network.now)
    network.nodes["chooser"].remove_static(Peer("", peer("stays").addresses), network.now)
    network.serve("given")
    network.serve("chooser")
    network.add("away")
    network.run(30)
    assert network.neighbours("given") == {"stays"}
    assert "given" not in network.neighbours("goes")
    assert given.take_events() == [NeighbourLost("goes", "it is listed no longer")]
    assert "stays" in network.neighbours("chooser")


def test_a_closed_overlay_refuses_and_names_who_has_not_the_key() -> None:
    network = Network(0, key=b"k" * 32)
    inside, other = network.add("inside"), network.add("other")
    network.join("other", "inside")
    network.run(1)
    outside = network.add("outside", key=b"x" * 32)
    network.join("outside", "inside")
    network.run(5)
    assert network.neighbours("inside") == {"other"}
    assert inside.active != []
    assert PeerRefused("outside", "wrong federation key") in inside.take_events()
    assert inside.stats.forged >= 1
    assert outside.active == []
    assert "outside" not in {it.node_id for node in (inside, other) for it in node.passive}


@pytest.mark.parametrize(
    "wrong",
    [
        {"active_target": 0},
        {"active_target": 8},
        {"active_at_most": 17},
        {"passive_at_most": 0},
        {"passive_walk": 7},
        {"forward_walk": 33},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        OverlaySettings(**wrong)
