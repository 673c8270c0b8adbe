"""Schedules of what goes wrong."""

from __future__ import annotations

from collections import Counter
from random import Random

from hedgerow_workshop.sim.faults import Fault, Kind, churn, plan
from tests.workshop.sim.flooding import line

NODES = [str(number) for number in range(50)]


def make(seed: int = 1) -> list[Fault]:
    return churn(NODES, Random(seed), begin_at=10, end_at=110, deaths_per_s=2, away_s=10)


def test_churn_has_the_rate_asked_for_and_everyone_is_back_at_the_end() -> None:
    faults = make()
    kinds = Counter(fault.kind for fault in faults)
    deaths = kinds[Kind.KILL] + kinds[Kind.SILENCE]
    # Of 200 that are drawn, about three in ten are away already.
    assert 110 < deaths < 200
    assert min(kinds[Kind.KILL], kinds[Kind.SILENCE]) > deaths / 4
    assert kinds[Kind.RETURN] == deaths
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert faults[0].at > 10
    assert faults[-1].at <= 110


def test_each_node_dies_and_returns_by_turns() -> None:
    away: set[str] = set()
    for fault in make():
        if fault.kind is Kind.RETURN:
            away.remove(fault.node)
        else:
            assert fault.node not in away
            away.add(fault.node)
    assert not away


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert make(1) == make(1)
    assert make(1) != make(2)


def test_no_churn_is_no_fault() -> None:
    assert churn(NODES, Random(1), begin_at=0, end_at=9, deaths_per_s=0, away_s=1) == []


def test_faults_happen_when_they_are_planned() -> None:
    network = line("a", "b", "c")
    plan(
        network,
        [
            Fault(1, Kind.SILENCE, "a"),
            Fault(3, Kind.RETURN, "a"),
            Fault(4, Kind.CUT, "b", "c"),
            Fault(6, Kind.RESTORE, "c", "b"),
            Fault(7, Kind.KILL, "c"),
        ],
    )
    network.run(10)
    told = [(round(at, 6), other, up) for at, other, up in network.nodes["b"].machine.told]
    assert told == [
        (0.01, "a", True),
        (0.01, "c", True),
        (2.0, "a", False),
        (3.01, "a", True),
        (5.0, "c", False),
        (6.01, "c", True),
        (7.1, "c", False),
    ]
