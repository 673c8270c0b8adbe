"""Configurations of real federators."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from hedgerow_workshop.sim.configuration import make_federator, read_announcements, run_configuration
from hedgerow_workshop.sim.simulation import CHURN, WHOLE, Measured, Parameters, Simulation
from hedgerow_workshop.sim.topologies import TOPOLOGIES

IN_ANOTHER_PROCESS = """
import pickle, sys
from hedgerow_workshop.sim.configuration import run_configuration
sys.stdout.buffer.write(pickle.dumps(run_configuration(pickle.load(sys.stdin.buffer))))
"""


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_with_two_parents_a_failure_costs_nothing_after_the_repair(topology: str) -> None:
    measured = run_configuration(Parameters(topology=topology, size=50, failures=(1,)))
    assert measured.converged_after_s is not None
    assert measured.converged_after_s < 2
    assert measured.messages_per_link <= 2
    assert measured.deliveries[WHOLE] == 1
    assert measured.deliveries["k1/recovered"] == 1
    assert measured.deliveries["k1/repaired"] == 1


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_churn_leaves_the_federation_at_work(topology: str) -> None:
    measured = run_configuration(Parameters(topology=topology, size=50, failures=(), churn=0.5, churn_s=20))
    ratio = measured.deliveries[CHURN]
    assert ratio is not None
    assert ratio > 0.9
    assert measured.messages_per_link <= 2


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_theorem_1_no_announcement_crosses_a_connection_twice_in_one_direction(topology: str) -> None:
    """Repairs, deaths and returns included."""
    parameters = Parameters(topology=topology, size=40, failures=(1, 2), churn=1.0, churn_s=15)
    simulation = Simulation(parameters, make_federator, read_announcements)
    crossed: Counter[tuple[object, ...]] = Counter()

    def watch(sender: str, receiver: str, data: object) -> None:
        connection = simulation.network.link(sender, receiver).connection
        if isinstance(data, bytes):
            crossed.update((name, sender, receiver, connection) for name in read_announcements(data))

    simulation.network.watch = watch
    simulation.run()
    assert len(crossed) > 1_000
    assert crossed.most_common(1)[0][1] == 1


def test_a_configuration_gives_the_same_figures_in_every_process() -> None:
    parameters = Parameters(topology="scale-free", size=40, failures=(1, 2), loss=0.01, churn=0.5, churn_s=10)
    expected = run_configuration(parameters)
    for hash_seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            input=pickle.dumps(parameters),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            timeout=30,
        )
        measured: Measured = pickle.loads(ended.stdout)
        assert measured == expected


def test_only_core_announcements_are_counted_as_such() -> None:
    seen: set[str] = set()
    # A membership announcement with nothing in it, and a core announcement with no entry.
    for payload in (b"\x01\x02", b"\x01\x01"):
        seen.update(core for core, _ in read_announcements(payload))
    assert not seen
