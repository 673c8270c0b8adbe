"""What goes wrong in a network, as data: who dies or returns, which link is cut or restored, and when.

A schedule is made from a seed before the run, so that two runs of different machines suffer the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hedgerow_workshop.sim.network import Network


class Kind(enum.Enum):
    KILL = "kill"
    """The connections are closed by the system."""
    SILENCE = "silence"
    """Without a word: stopped, or without power."""
    RETURN = "return"
    CUT = "cut"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: Kind
    node: str
    neighbour: str = ""
    """Of a link: its other end."""


def plan(network: Network[Any], faults: Iterable[Fault]) -> None:
    """They happen while the network runs."""
    for fault in faults:
        network.events.plan(fault.at, commit, network, fault)


def commit(network: Network[Any], fault: Fault) -> None:
    match fault.kind:
        case Kind.KILL | Kind.SILENCE:
            network.kill(fault.node, silent=fault.kind is Kind.SILENCE)
        case Kind.RETURN:
            network.bring_back(fault.node)
        case Kind.CUT:
            network.cut(fault.node, fault.neighbour)
        case Kind.RESTORE:
            network.restore(fault.node, fault.neighbour)


def churn(
    nodes: Sequence[str],
    random: Random,
    *,
    begin_at: float,
    end_at: float,
    deaths_per_s: float,
    away_s: float,
) -> list[Fault]:
    """Nodes die at random moments, half of them silently, and return after about `away_s`; all are back at
    the end."""
    faults: list[Fault] = []
    back_at: dict[str, float] = {}
    at = begin_at
    while deaths_per_s:
        at += random.expovariate(deaths_per_s)
        if at >= end_at:
            break
        node = nodes[random.randrange(len(nodes))]
        kind = Kind.SILENCE if random.random() < 0.5 else Kind.KILL
        return_at = min(at + away_s * random.uniform(0.5, 1.5), end_at)
        # Whoever is drawn while away has been drawn in vain: the others do not pay for it.
        if back_at.get(node, begin_at) < at:
            back_at[node] = return_at
            faults += (Fault(at, kind, node), Fault(return_at, Kind.RETURN, node))
    return sorted(faults, key=lambda fault: fault.at)
