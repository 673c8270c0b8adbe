"""Links between neighbours: both dial, one end is silent, a node dies, stops, or comes back.

Two nodes that have each other as neighbours dial at the same time, and one link stays. What is lost is made
again, and of QoS 1 nothing is lost or comes twice at subscribers that are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from hedgerow.federation.overlay.events import NeighbourGained, NeighbourLost
from hedgerow.federation.state import STATE_TOPIC
from tests.federation.clients import Inbox, Load
from tests.federation.fabric_of_nodes import Fabric, grid_edges

SILENT_S = 2.0  # within which flow goes on after a silent cut
CLOSED_S = 0.5  # and after a close


def pair(**options: object) -> Fabric:
    fabric = Fabric()
    fabric.line("a", "b", **options)
    fabric.settle_links()
    return fabric


def test_both_dial_and_one_link_stays() -> None:
    fabric = pair()
    assert len(fabric.between("a", "b")) == 1
    fabric.advance(30)
    assert len(fabric.between("a", "b")) == 1
    assert fabric["a"].told(NeighbourLost) == fabric["b"].told(NeighbourLost) == []
    assert len(fabric.dials) <= 4


@pytest.mark.parametrize("delay_s", [0.0005, 0.02, 0.2])
@pytest.mark.parametrize("later_s", [0.0, 0.001, 0.03, 0.25])
@pytest.mark.parametrize("first", ["a", "b"])
def test_both_dial_whenever_and_nothing_is_lost(delay_s: float, later_s: float, first: str) -> None:
    fabric = Fabric(delay_s=delay_s)
    second = "b" if first == "a" else "a"
    fabric.add(first)
    fabric.add(second)
    inboxes = {name: fabric[name].subscribe("t/#") for name in "ab"}
    loads = {name: Load(fabric, name, every_s=0.1) for name in "ab"}
    fabric[first].link_to(second)
    fabric.advance(later_s)
    fabric[second].link_to(first)
    fabric.settle_links()
    link = fabric.between("a", "b")
    fabric.advance(5)
    for load in loads.values():
        load.stop()
    fabric.advance(2)
    assert fabric.between("a", "b") == link
    assert len(link) == 1
    settled_at = fabric.now - 7
    for name, inbox in inboxes.items():
        for load in loads.values():
            assert {each for each, at in load.sent.items() if at > settled_at} <= set(inbox.payloads), name
        assert max(inbox.tally.values()) == 1


@pytest.mark.parametrize("silent", ["a", "b"])
def test_one_end_thinks_that_the_link_is_up(silent: str) -> None:
    """The other has restarted, and its goodbye did not arrive."""
    fabric = pair(durable=True)
    other = "b" if silent == "a" else "a"
    inboxes = {name: fabric[name].subscribe("t/#", client_id=f"inbox-{name}") for name in "ab"}
    fabric.advance(1)
    for pipe in fabric.between("a", "b"):
        pipe.cut()
    fabric[other].crash()
    inboxes[other] = fabric[other].subscribe(client_id=f"inbox-{other}")
    load = Load(fabric, silent)
    back = Load(fabric, other, "t/back")
    fabric.wait_for(lambda: bool(inboxes[silent].payloads and inboxes[other].payloads), SILENT_S + 1)
    fabric.advance(3)
    load.stop()
    back.stop()
    fabric.advance(1)
    assert len(fabric.between("a", "b")) == 1
    load.check(inboxes[other])
    back.check(inboxes[silent])


@pytest.mark.parametrize("durable", [True, False])
def test_a_lost_link_is_made_again_and_nothing_is_lost(durable: bool) -> None:
    fabric = pair(durable=durable)
    inbox = fabric["b"].subscribe("t/#")
    fabric.advance(1)
    load = Load(fabric, "a")
    for _ in range(5):
        fabric.advance(0.7)
        fabric.close("a", "b")
    for _ in range(3):
        fabric.advance(4)
        for pipe in fabric.between("a", "b"):
            pipe.cut()  # not between the hosts: a dial gets through
    fabric.advance(5)
    load.stop()
    fabric.advance(2)
    load.check(inbox)
    assert len(fabric.between("a", "b")) == 1


def grid(**options: object) -> tuple[Fabric, list[Inbox], list[Load]]:
    fabric = Fabric()
    fabric.grid(**options)
    fabric.settle_links()
    inboxes = [fabric["00"].subscribe("t/#"), fabric["12"].subscribe("t/#")]
    fabric.advance(1)
    return fabric, inboxes, [Load(fabric, "20"), Load(fabric, "02")]


def carry_on(
    fabric: Fabric, inboxes: list[Inbox], loads: list[Load], fault: Callable[[], None], within_s: float
) -> None:
    fabric.advance(0.3)
    since = fabric.now
    fault()
    fabric.advance(within_s + 0.5)
    for load in loads:
        load.stop()
    fabric.advance(1)
    for load in loads:
        load.check(*inboxes)
        for inbox in inboxes:
            assert load.longest_wait_s(inbox, since - 0.1) <= within_s


@pytest.mark.parametrize("edge", grid_edges(), ids="-".join)
def test_a_silent_cut_of_any_link(edge: tuple[str, str]) -> None:
    fabric, inboxes, loads = grid()
    carry_on(fabric, inboxes, loads, lambda: fabric.cut(*edge), SILENT_S)


@pytest.mark.parametrize("edge", grid_edges(), ids="-".join)
def test_a_close_of_any_link(edge: tuple[str, str]) -> None:
    fabric, inboxes, loads = grid()

    def fault() -> None:
        fabric.close(*edge)
        fabric.cut(*edge)

    carry_on(fabric, inboxes, loads, fault, CLOSED_S)


@pytest.mark.parametrize("victim", ["01", "10", "21", "22"])
def test_a_node_is_killed(victim: str) -> None:
    fabric, inboxes, loads = grid()
    carry_on(fabric, inboxes, loads, fabric[victim].kill, CLOSED_S)


@pytest.mark.parametrize("victim", ["01", "10", "21", "22"])
def test_a_node_loses_its_power(victim: str) -> None:
    fabric, inboxes, loads = grid()
    carry_on(fabric, inboxes, loads, lambda: fabric.part([victim]), SILENT_S)


@pytest.mark.parametrize("victim", ["01", "10", "21", "22"])
def test_a_node_is_stopped_and_goes_on(victim: str) -> None:
    fabric, inboxes, loads = grid()
    fabric.advance(0.3)
    since = fabric.now
    fabric[victim].is_frozen = True
    fabric.advance(4)
    fabric[victim].thaw()
    thawed_at = fabric.now
    fabric.advance(3)
    for load in loads:
        load.stop()
    fabric.advance(2)
    for load in loads:
        load.check(*inboxes)
        for inbox in inboxes:
            assert load.longest_wait_s(inbox, since - 0.1) <= SILENT_S
            assert load.longest_wait_s(inbox, thawed_at) <= SILENT_S
    fabric.settle_links()


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_node_comes_back(is_empty: bool) -> None:
    fabric, inboxes, loads = grid(durable=True)
    for victim in ("11", "01", "10"):
        fabric.advance(1)
        fabric[victim].crash(1.0, is_empty=is_empty)
        fabric.settle_links()
    fabric.advance(1)
    for load in loads:
        load.stop()
    fabric.advance(2)
    for load in loads:
        load.check(*inboxes)
    again = Load(fabric, "01", every_s=0.1)
    fabric.advance(2)
    again.stop()
    fabric.advance(1)
    for inbox in inboxes:
        assert {f"01-{index}".encode() for index in range(10)} <= set(inbox.payloads)


def far_s(fabric: Fabric) -> list[float]:
    """How far each of two neighbours takes the other to be."""
    return [trip_s for name in "ab" for trip_s in fabric[name].federation.overlay.round_trips.values()]


@pytest.mark.parametrize(("at_first_s", "then_s"), [(0.05, 0.002), (0.002, 0.05), (0.4, 0.4)])
def test_how_far_a_neighbour_is_follows_what_is_measured_at_both_ends(
    at_first_s: float, then_s: float
) -> None:
    fabric = Fabric(delay_s=at_first_s)
    fabric.line("a", "b")
    fabric.settle_links()
    fabric.advance(5)
    assert far_s(fabric) == pytest.approx([2 * at_first_s] * 2, rel=0.3)
    fabric.delay_s = then_s
    fabric.advance(6)
    assert far_s(fabric) == pytest.approx([2 * then_s] * 2, rel=0.3)


def test_a_node_that_was_busy_when_its_link_began_is_not_far() -> None:
    fabric = Fabric(delay_s=0.002)
    fabric.line("a", "b")
    fabric.wait_for(lambda: bool(fabric.between("a", "b")), 5)
    for name in "ab":
        fabric[name].is_frozen = True
    fabric.advance(0.4)
    for name in "ab":
        fabric[name].thaw()
    fabric.settle_links()
    assert max(event.round_trip_s for name in "ab" for event in fabric[name].told(NeighbourGained)) > 0.3
    fabric.advance(2)
    assert far_s(fabric) == pytest.approx([0.004] * 2, rel=0.3)
    for name, other in ("ab", "ba"):
        told = json.loads(fabric[name].broker.retained.get(STATE_TOPIC).payload)
        assert told["neighbours"][other]["round_trip_ms"] == pytest.approx(4, rel=0.3)


def test_a_neighbour_that_is_busy_for_a_moment_is_no_further() -> None:
    fabric = pair()
    fabric.advance(10)
    before = far_s(fabric)
    fabric["b"].is_frozen = True
    fabric.advance(0.7)
    fabric["b"].thaw()
    fabric.advance(1)
    assert far_s(fabric) == before
