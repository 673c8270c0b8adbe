"""Nine real brokers on the grid: they form the document's mesh, and what is published arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.delays import measure_federated
from hedgerow_workshop.lab.spohn.distances import measure_distances
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.mixed import FOREIGN, MixedFederation, measure_document_wire
from tests.programs import need_program


@pytest.mark.parametrize("kind", ["hedgerow", "mosquitto"])
@pytest.mark.timeout(120)
async def test_a_federator_that_is_not_ours_takes_part(kind: str, tmp_path: Path) -> None:
    need_program("mosquitto")
    async with MixedFederation(kind, tmp_path) as federation:
        record = await measure_document_wire(federation, 20)
    assert list(record.arrived) == ["7", "2", FOREIGN]
    assert list(record.sent) == ["6", FOREIGN]
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)


def test_distances_are_the_fewest_links_on_any_links() -> None:
    record = measure_distances(5)
    assert len(record.distances) > 100
    assert all(said == fewest for said, fewest in record.distances)


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
    # A tree of the mesh has six links; others are crossed by what comes by another way as well.
    assert sum(each.sent - each.redundant for each in record.transmissions.values()) >= 6 * 5
    assert record.transmissions["6-7"] == (5, 0)
    for subscriber in record.arrived:
        floor_ms = grid.floor_ms(grid.PUBLISHER, subscriber)
        assert min(delays_ms(record.heard(subscriber))) >= floor_ms
