"""One configuration of the federation, as a plain function of a plain value to another one. Both can be
pickled: a sweep can be spread over processes or machines."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

from hedgerow.federation.mesh import wire
from hedgerow.federation.mesh.federator import Federator
from hedgerow_workshop.sim.simulation import Measured, Parameters, Simulation


def run_configuration(parameters: Parameters) -> Measured:
    # Federators are full of references and make hardly any garbage in circles: with 10,000 of them, looking
    # for it took three seconds of ten.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return Simulation(parameters, make_federator, read_announcements).run()
    finally:
        if was_enabled:
            gc.enable()


def make_federator(parameters: Parameters, name: str, now: float, chance: Callable[[], float]) -> Federator:
    return Federator(
        name,
        now,
        redundancy=parameters.redundancy,
        announce_interval_s=parameters.announce_interval_s,
        random=chance,
        epoch=int(now),  # A node that returns was away for seconds.
    )


def read_announcements(payload: bytes) -> Iterable[tuple[str, int]]:
    """Of the core announcements in a packet: whose each is, and its number."""
    if wire.kind_of(payload) is not wire.MeshKind.CORE_ANN:
        return ()
    _, entries = wire.decode(payload)
    return [(entry.core, entry.sequence) for entry in entries if isinstance(entry, wire.CoreAnnouncement)]
