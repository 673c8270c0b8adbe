"""Nine real brokers on the grid: they form the document's mesh, and what is published arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.delays import measure_federated
from hedgerow_workshop.lab.spohn.federation import GridFederation
from tests.programs import need_program


@pytest.mark.parametrize("kind", ["hedgerow", "mosquitto"])
async def test_the_documents_mesh_forms_and_carries(kind: str, tmp_path: Path) -> None:
    if kind == "mosquitto":
        need_program("mosquitto")
    async with GridFederation(kind, tmp_path) as federation:
        record = await measure_federated(federation, 5)
    for states in record.states:
        assert measure.mesh_differences(states, record.topic) == []
    assert list(record.arrived) == ["7", "2"]
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)
    for subscriber in record.arrived:
        floor_ms = grid.floor_ms(grid.PUBLISHER, subscriber)
        assert min(delays_ms(record.heard(subscriber))) >= floor_ms
