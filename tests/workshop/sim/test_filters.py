"""What many filters cost: once they are known, what one costs."""

from __future__ import annotations

import pytest

from hedgerow_workshop.sim.filters import FilterParameters, FilterTraffic, LinkTraffic, measure_filters


def measure(placing: str, count: int) -> FilterTraffic:
    return measure_filters(FilterParameters(placing, count))


@pytest.mark.parametrize("placing", ["one", "spread"])
def test_an_announcement_and_a_change_cost_the_same_with_any_number_of_filters(placing: str) -> None:
    few, many = measure(placing, 20), measure(placing, 1_000)
    assert many.announcement.packets <= 1.1 * few.announcement.packets
    assert many.announcement.size <= 1.2 * few.announcement.size
    assert 0 < few.change.size < 600  # A list that is short travels whole.
    assert many.change.size <= 1.2 * few.change.size
    # The filters themselves, once over most links and once more as memberships.
    assert many.beginning.size < 2 * 20 * 1_000


def test_an_announcement_crosses_a_link_twice_at_most_and_is_answered_in_the_mesh_alone() -> None:
    """Of twelve links, eight are of the mesh."""
    announcement = measure("one", 1).announcement
    assert 1 < announcement.packets <= 2 + 8 / 12


def test_what_a_wider_filter_covers_costs_nothing() -> None:
    one, many = measure("covered", 1), measure("covered", 500)
    assert (many.beginning, many.announcement) == (one.beginning, one.announcement)
    assert many.change == LinkTraffic(0, 0)


def test_a_run_is_a_function_of_its_parameters() -> None:
    assert measure("spread", 30) == measure("spread", 30)
