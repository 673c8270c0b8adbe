"""Nodes keep their places on the map."""

from __future__ import annotations

from math import hypot

import pytest

from hedgerow.web.map_layout import HEIGHT, WIDTH, Point, place

CAPTION_WIDTH, CAPTION_HEIGHT = 110, 75  # of a node's name and rates, with the circles of both
COUNTS = [0, 1, 2, 3, 7, 18, 19, 50, 500]


def names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(count)]


def distance(a: Point, b: Point) -> float:
    return hypot(a.x - b.x, a.y - b.y)


@pytest.mark.parametrize("count", COUNTS)
def test_everybody_has_a_place_on_the_map(count: int) -> None:
    places = place(names(count))
    assert set(places) == set(names(count))
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in places.values())


def test_the_places_do_not_depend_on_the_order() -> None:
    assert place(names(20)) == place(reversed(names(20)))


@pytest.mark.parametrize(("count", "nearest"), [(2, 200), (8, 80), (18, 40), (50, 12)])
def test_nobody_stands_on_another(count: int, nearest: float) -> None:
    for family in range(20):
        points = list(place(f"{family}-{name}" for name in names(count)).values())
        assert min(distance(a, b) for at, a in enumerate(points) for b in points[:at]) > nearest


@pytest.mark.parametrize(("count", "mean", "most"), [(5, 60, 160), (10, 30, 110), (50, 8, 40)])
def test_a_node_that_comes_moves_the_others_little(count: int, mean: float, most: float) -> None:
    means, greatest = [], []
    for family in range(50):
        before = [f"{family}-{name}" for name in names(count)]
        old, new = place(before), place([*before, f"{family}-new"])
        moves = [distance(old[name], new[name]) for name in before]
        means.append(sum(moves) / count)
        greatest.append(max(moves))
    assert sum(means) / len(means) < mean
    assert sum(greatest) / len(greatest) < most


def test_what_hangs_on_a_node_stands_beside_it_further_out() -> None:
    nodes = names(8)
    places = place(nodes, {"van": "node-3", "cart": "node-3", "lost": "nobody", "node-1": "node-2"})
    assert "lost" not in places
    assert places["van"] != places["cart"]
    assert places["node-1"] == place(nodes)["node-1"], "who has a place of its own does not hang"
    for hanger in ("van", "cart"):
        assert min(nodes, key=lambda name: distance(places[name], places[hanger])) == "node-3"


def test_many_hangers_have_places_of_their_own() -> None:
    hangers = {f"van-{number}": "node-0" for number in range(60)}
    places = place(names(3), hangers)
    assert len({places[hanger] for hanger in hangers}) == 60
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in places.values())


def test_what_hangs_on_a_node_does_not_stand_on_its_caption() -> None:
    for number in range(200):
        nodes = [f"{number}-{name}" for name in names(4)]
        places = place(nodes, {"van": nodes[0]})
        anchor, van = places[nodes[0]], places["van"]
        above, beside = (anchor.y - van.y) * (1 if anchor.y < HEIGHT / 2 else -1), abs(anchor.x - van.x)
        assert beside > CAPTION_WIDTH / 2 or above > CAPTION_HEIGHT or above < 0, (anchor, van)
