"""The map's SVG: what is drawn, how it is reached, and that names cannot break out of it."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from hedgerow.web.fabric import Fabric
from hedgerow.web.map import MANY_EDGES, MAX_EDGES, MAX_GHOSTS, Edge, draw, edges_of, places_of
from tests.web.statuses import HOSTILE, NOW, farm, link, mesh, tell, tell_meshes

AFTER = NOW + 2.5


def drawn(fabric: Fabric, now: float = AFTER, topic: str = "", chosen: str = "") -> ElementTree.Element:
    nodes = fabric.visible(lambda topic: True)
    meshes = fabric.meshes.get(topic) if topic else None
    svg = draw(nodes, edges_of(nodes, now), now, chosen=chosen, mesh=meshes)
    return ElementTree.fromstring(svg.encode(errors="strict"))


def by_id(svg: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {each.attrib["id"]: each for each in svg.iter() if "id" in each.attrib}


def edges(fabric: Fabric, now: float = AFTER) -> dict[tuple[str, str], Edge]:
    return {(edge.a, edge.b): edge for edge in edges_of(fabric.visible(lambda topic: True), now)}


def test_both_ends_of_a_link_are_one_edge() -> None:
    found = edges(farm())
    assert set(found) == {("barn", "north"), ("barn", "cloud.example:8883"), ("north", "south")}
    assert [name for name, _ in found["barn", "north"].ends] == ["barn", "north"]
    assert {pair: edge.state for pair, edge in found.items()} == {
        ("barn", "north"): "up", ("barn", "cloud.example:8883"): "up", ("north", "south"): "down",
    }  # fmt: skip


def test_one_end_that_is_down_is_enough_and_a_silent_node_tells_nothing() -> None:
    fabric = Fabric()
    tell(fabric, "a", links=[link("b")])
    tell(fabric, "b", links=[link("a", state="connecting")])
    assert edges(fabric)["a", "b"].state == "waiting"
    assert edges(fabric, NOW + 60)["a", "b"].state == "silent"


def test_the_broker_at_localhost_is_each_machines_own() -> None:
    fabric = Fabric()
    for node, far in (("a", "localhost"), ("b", "localhost"), ("c", "127.0.0.1:1884"), ("d", "[::1]:1884")):
        tell(fabric, node, links=[link(far, kind="bridge"), link("localhost.example", kind="bridge")])
    assert {name for pair in edges(fabric) for name in pair} - set("abcd") == {
        "localhost@a", "localhost@b", "127.0.0.1:1884@c", "[::1]:1884@d", "localhost.example",
    }  # fmt: skip
    ghosts = [each for name, each in by_id(drawn(fabric)).items() if name.startswith("ghost-")]
    assert sorted("".join(each.itertext()) for each in ghosts) == [
        "127.0.0.1:1884@c: no status is heard of it127.0.0.1:1884",
        "[::1]:1884@d: no status is heard of it[::1]:1884",
        "localhost.example: no status is heard of itlocalhost.example",
        "localhost@a: no status is heard of itlocalhost",
        "localhost@b: no status is heard of itlocalhost",
    ]


def test_nodes_and_links_are_drawn_and_can_be_reached_by_keyboard() -> None:
    elements = by_id(drawn(farm()))
    assert elements["edge-barn-north"].attrib["class"] == "link up near"
    assert elements["edge-north-south"].attrib["class"] == "link down near"
    node, hit = elements["node-barn"], elements["hit-edge-barn-north"]
    assert (node.tag, node.attrib["href"]) == ("a", "/?node=barn")
    assert (hit.tag, hit.attrib["href"]) == ("a", "/?link=edge-barn-north")
    assert hit.attrib["aria-label"] == "Link barn – north · neighbour · up"


def test_the_panel_of_a_link_is_its_ledger_from_both_ends() -> None:
    words = [each.text for each in by_id(drawn(farm()))["tip-edge-barn-north"].iter() if each.tag == "tspan"]
    assert words == [
        "barn – north · neighbour · up",
        "barn: up · 1.2 ms · 3 queued",
        "   out published 1204, away 14",
        "   in published 880, duplicates 10",
        "north: up · 1.2 ms · 3 queued",
        "   out published 1204, away 14",
        "   in published 880, duplicates 10",
    ]


def test_panels_are_brief_where_there_are_many() -> None:
    fabric = farm()
    tell(fabric, "hub", links=[link(f"far-{number}") for number in range(MANY_EDGES)])
    words = [each.text for each in by_id(drawn(fabric))["tip-edge-barn-north"].iter() if each.tag == "tspan"]
    assert words[1:] == ["barn: up · 1.2 ms · out 1204, in 880", "north: up · 1.2 ms · out 1204, in 880"]


def test_a_mesh_is_drawn_over_the_map() -> None:
    fabric = farm()
    tell(fabric, "far")
    tell_meshes(fabric, "far", {"farm/#": mesh("north", ["south"], member=False)})
    elements = by_id(drawn(fabric, topic="farm/#"))
    assert "aware" in elements["node-far"].attrib["class"].split()
    assert elements["arrow-barn-north"].attrib["marker-end"] == "url(#arrow)"
    assert "core" in elements["node-north"].attrib["class"].split()
    assert "local" in elements["node-barn"].attrib["class"].split()
    assert "member" in elements["node-north"].attrib["class"].split()
    assert "outside" in elements["node-south"].attrib["class"].split()


def test_a_core_that_nobody_has_heard_of_is_no_harm() -> None:
    fabric = farm()
    tell_meshes(fabric, "south", {"far/#": mesh("elsewhere", ["nobody", "south"])})
    assert not [key for key in by_id(drawn(fabric, topic="far/#")) if key.startswith("arrow-")]


def test_silent_troubled_and_chosen_nodes_can_be_told_apart() -> None:
    fabric = farm()
    tell(fabric, "south", 4, problem="the disk is full")
    elements = by_id(drawn(fabric, NOW + 8, chosen="north"))
    assert "troubled" in elements["node-south"].attrib["class"].split()
    assert {"silent", "chosen"} <= set(elements["node-north"].attrib["class"].split())


@pytest.mark.parametrize("is_up_first", [False, True])
def test_a_mobile_broker_hangs_on_the_link_that_is_up(is_up_first: bool) -> None:
    fabric = farm()
    ends = [link("north", kind="mobile", state="down"), link("south", kind="mobile")]
    tell(fabric, "van", links=ends[::-1] if is_up_first else ends, kind="mobile")
    nodes = fabric.visible(lambda topic: True)
    places = places_of(nodes, edges_of(nodes, AFTER))
    without = places_of(nodes[:3], edges_of(nodes[:3], AFTER))
    assert {name: places[name] for name in without} == without, "it moves nobody"
    assert min(without, key=lambda name: math.dist(places[name], places["van"])) == "south"


def test_ids_are_unique_and_the_same_at_each_render() -> None:
    fabric = farm()
    first, second = drawn(fabric), drawn(fabric)
    ids = [each.attrib["id"] for each in first.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids))
    assert list(by_id(second)) == ids


def test_every_element_with_an_id_stands_in_others_that_have_one() -> None:
    """htmx would make an element of HTML, not of SVG, for a parent without an id that holds a known one."""
    svg = drawn(farm(), topic="farm/#")
    parents = {child: parent for parent in svg.iter() for child in parent}
    for element in svg.iter():
        if "id" in element.attrib and element is not svg:
            assert "id" in parents[element].attrib


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_break_out(name: str) -> None:
    fabric = Fabric()
    tell(fabric, "barn", links=[link(name, kind=name, state=name, name=name, out={name[:100]: 1})], kind=name)
    svg = drawn(fabric)
    tags = {each.tag for each in svg.iter()}
    assert tags <= {
        "svg",
        "defs",
        "marker",
        "path",
        "g",
        "a",
        "line",
        "circle",
        "rect",
        "title",
        "text",
        "tspan",
    }
    for each in svg.iter():
        assert not any(key.startswith("on") or key == "style" for key in each.attrib)
        assert each.attrib.get("href", "/?").startswith("/?")
        assert len(each.text or "") < 300
        assert (each.text or "").isprintable()


def test_a_link_to_itself_and_too_many_links_are_no_harm() -> None:
    fabric = Fabric()
    for name in ("barn", "house"):
        tell(fabric, name, links=[link(name), *(link(f"{name}-{number}") for number in range(400))])
    assert len(edges(fabric)) == MAX_EDGES
    elements = by_id(drawn(fabric))
    assert "edge-barn-barn" not in elements
    assert 1 < sum(key.startswith("ghost") for key in elements) <= MAX_GHOSTS + 2
