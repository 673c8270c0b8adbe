"""Neighbours become nearer, and the overlay is never split by it."""

from __future__ import annotations

import pytest

from hedgerow.federation.overlay.limits import OverlaySettings
from tests.federation.overlay.network import joined, kill_some

QUICK = OverlaySettings(optimise_s=1.0)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_the_mean_round_trip_falls_and_the_overlay_holds(seed: int) -> None:
    network = joined(seed, 100, settings=OverlaySettings(optimise_s=1e9))
    network.run(10)
    at_first_s = network.mean_round_trip_s()
    network = joined(seed, 100, settings=QUICK)
    for _ in range(60):
        network.run(1)
        assert len(network.groups()) == 1
    assert network.mean_round_trip_s() < 0.7 * at_first_s
    assert sum(node.stats.swapped for node in network.nodes.values()) > 100
    assert all(len(node.active) <= QUICK.active_at_most for node in network.nodes.values())
    # Near ones alone would be an overlay that a local misfortune splits for good.
    kill_some(network, 0.3)
    network.run(20)
    assert len(network.groups()) == 1


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.soak) for each in (2, 3, 4))])
def test_swaps_split_not_even_a_sparse_overlay(seed: int) -> None:
    """Nearly a tree: most links are the only way between their ends."""
    sparse = OverlaySettings(active_target=1, active_at_most=3, optimise_s=1.0)
    network = joined(seed, 40, settings=sparse)
    network.run(5)
    for _ in range(300):
        network.run(0.1)
        assert len(network.groups()) == 1
    assert sum(node.stats.swapped for node in network.nodes.values()) > 0


def test_an_overlay_that_cannot_become_nearer_is_quiet() -> None:
    network = joined(0, 20, settings=QUICK)
    for name in network.places:
        network.places[name] = (0.5, 0.5)
    network.run(60)
    before = {name: network.neighbours(name) for name in network.nodes}
    network.run(30)
    changed = sum(before[name] != network.neighbours(name) for name in network.nodes)
    assert changed == 0
