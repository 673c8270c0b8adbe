"""What is read from records, and the grid that they are of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms, spread
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.record import Misfortune
from tests.workshop.lab.spohn_records import BEGAN_AT, make_delays, make_failures, make_states

TOPIC = "grid/any"


def test_the_grid_is_the_documents() -> None:
    assert len(grid.NODES) == 9
    assert len(grid.LINKS) == 12
    assert grid.neighbours("4") == ["1", "3", "5", "7"]
    assert grid.neighbours("6") == ["3", "7"]
    assert (grid.floor_ms("6", "7"), grid.floor_ms("6", "2")) == (5, 20)
    way = grid.path("6", "2")
    assert len(way) == 5
    assert all(b in grid.neighbours(a) for a, b in pairwise(way))


def test_parents_of_the_document_are_nearer_to_the_core() -> None:
    """No more of them than the redundancy, and all that there are."""
    for node, parents in grid.PARENTS.items():
        nearer = {
            other
            for other in grid.neighbours(node)
            if len(grid.path(other, grid.CORE)) < len(grid.path(node, grid.CORE))
        }
        assert parents == nearer
        assert len(parents) <= grid.REDUNDANCY


def test_delays_are_of_the_first_arrival() -> None:
    record = make_delays("hedgerow", 4, {"7": 0.005, "2": 0.020})
    record.arrived["7"][1] = Received("6", 1, record.sent["6"][1] + 0.009)
    record.arrived["7"].append(Received("6", 0, BEGAN_AT + 5))
    found = spread(delays_ms(record.heard("7")))
    assert found == pytest.approx((6, 3**0.5))
    assert delays_ms(record.heard("2")) == pytest.approx([20] * 4)
    record.arrived["2"].clear()
    assert spread(delays_ms(record.heard("2"))) is None


def test_delays_of_one_publisher() -> None:
    record = make_failures("hedgerow")
    assert len(delays_ms(record.heard("2"))) == 200
    assert max(delays_ms(record.heard("2", "6"))) == pytest.approx(20)
    assert max(delays_ms(record.heard("2", "0"))) > 1_400


def test_lost_and_doubled_are_counted_at_every_subscriber_and_of_every_publisher() -> None:
    record = make_failures("hedgerow")
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)
    record.arrived["7"].remove(next(each for each in record.arrived["7"] if each.publisher == "0"))
    del record.arrived["2"][-1]
    record.arrived["2"] += record.arrived["2"][:3]
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (2, 3)


def test_healed_is_when_every_subscriber_hears_every_publisher() -> None:
    record = make_failures("hedgerow")
    assert dict(measure.heals(record, Misfortune.KILL)) == pytest.approx({"4": 0.22})
    assert dict(measure.heals(record, Misfortune.CUT)) == pytest.approx({"4-5": 1.52})
    record.arrived["2"] = [each for each in record.arrived["2"] if each.at < BEGAN_AT + 3]
    assert dict(measure.heals(record, Misfortune.CUT)) == pytest.approx({"4-5": 4})  # to the end


def test_the_documents_mesh_has_no_differences() -> None:
    assert measure.mesh_differences(make_states(TOPIC), TOPIC) == []


@pytest.mark.parametrize(
    ("node", "change", "said"),
    [
        ("7", {"parents": ["4"]}, "node 7 has the parents 4, not 4, 8"),
        ("2", {"parents": ["1"]}, "node 2 has the parents 1, not none"),
        ("0", {"member": True}, "node 0 is a member"),
        ("4", {"member": False}, "node 4 is no member"),
        ("3", {"core": "7"}, "node 3 takes 7 for the core, not 2"),
    ],
)
def test_what_is_not_as_in_the_document_is_named(node: str, change: dict[str, Any], said: str) -> None:
    states = make_states(TOPIC)
    states[node]["filters"][TOPIC].update(change)
    assert measure.mesh_differences(states, TOPIC) == [said]


def test_neighbours_that_are_not_the_grids_are_named() -> None:
    states = make_states(TOPIC)
    del states["0"]
    del states["1"]["neighbours"]["4"]
    states["8"]["neighbours"]["2"] = {}
    assert (
        measure.link_differences(states)
        == measure.mesh_differences(states, TOPIC)
        == [
            "node 0 has said nothing",
            "node 1 has the neighbours 0, 2, not 0, 2, 4",
            "node 8 has the neighbours 2, 5, 7, not 5, 7",
        ]
    )
    assert "node 5 knows no mesh" in measure.mesh_differences(states, "another/filter")
