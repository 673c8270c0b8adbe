"""The scene in which most tests begin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mobility.delegation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """m1 with a and b on t/1, and m2 with c, at f1; at the end everybody has got what was due."""
    world = World(("m1", "m2"), ("f1", "f2"))
    for mobile_id in ("m1", "m2"):
        world.move(mobile_id, "f1")
        world.connect(mobile_id, "f1")
    for client in ("a@m1", "b@m1", "c@m2"):
        world.subscribe(client, "t/1")
    world.run()
    yield world
    world.heal()
    world.check()
