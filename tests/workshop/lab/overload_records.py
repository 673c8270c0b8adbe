"""A record of an overload, as a run would leave it."""

from __future__ import annotations

from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.overload.record import JOURNAL, OverloadRecord, Readers, Sensors


def make_overload(readers: Readers, published_s: float = 2.0) -> OverloadRecord:
    """Its reader misses two, got one again for no reason, and two as QoS 1 allows."""
    return OverloadRecord(
        readers,
        sent={"north": {0: 10.0, 1: 10.1, 3: 10.3}, "robot": {0: 10.0}},
        multicast=["robot"],
        arrived={
            "reader": [
                Received("north", 0, 10.2),
                Received("north", 1, 11.8),
                Received("north", 2, 11.9),
                Received("north", 0, 12.5),
                Received("north", 1, 12.6),
                Received("north", 2, 12.7, True),
            ],
            JOURNAL: [*(Received("north", number, 10.5) for number in (0, 1, 3)), Received("robot", 0, 10.5)],
        },
        losses={"reader": [12.3]},
        sensors=Sensors(sent=20, recorded=15, counted=4),
        flaps=[(11.0, "north: east is no neighbour any more")],
        memory={"north": 80.0, "east": 200.0},
        happened=[(12.3, "west killed")],
        began_at=10.0,
        published_s=published_s,
        settled_s=1.0,
    )
