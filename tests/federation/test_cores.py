"""A core that withdraws, while others still have subscribers: nothing is lost until the next one is known."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric, grid_edges

STEP_S = 0.005
GONE_S = 5.0  # of which half is for those who come back a moment later


def publish(fabric: Fabric, publishers: tuple[str, ...], seconds: float) -> list[bytes]:
    """From each of them, all the time."""
    sent = []
    for step in range(int(seconds / STEP_S)):
        for name in publishers:
            payload = b"%s %.3f %d" % (name.encode(), fabric.now, step)
            fabric[name].publish("t/x", payload)
            sent.append(payload)
        fabric.advance(STEP_S)
    fabric.advance(2)
    return sent


def assert_once(inbox: Inbox, sent: list[bytes]) -> None:
    tally = Counter(inbox.payloads)
    assert [payload for payload in sent if tally[payload] != 1] == []


@pytest.mark.parametrize(("leaves", "core"), [("a", "c"), ("c", "a")], ids=["core", "member"])
def test_a_subscriber_leaves_and_others_stay(leaves: str, core: str) -> None:
    """`a` has the smallest id, so that it is the core."""
    fabric = Fabric(delay_s=0.01)
    fabric.line("a", "b", "c", "d")
    fabric.settle_links()
    inboxes = {name: fabric[name].subscribe("t/#") for name in ("a", "c", "d")}
    fabric.advance(2)
    fabric.later(0.1, lambda: inboxes[leaves].unsubscribe("t/#"))
    sent = publish(fabric, ("a", "b"), 1.5)
    assert fabric["b"].federation.federator.core_of("t/#") == core
    for name in inboxes.keys() - {leaves}:
        assert_once(inboxes[name], sent)


def test_a_node_that_was_the_core_for_one_that_was_away() -> None:
    """Neighbours of the one that died take its interests for theirs, and give them up when it has settled."""
    fabric = Fabric(delay_s=0.005)
    fabric.grid(durable=True)
    fabric.settle_links()
    inboxes = [fabric[name].subscribe("t/#") for name in ("02", "21")]
    fabric.advance(2)
    fabric["11"].crash(1.0)
    fabric.advance(2)
    assert fabric["00"].federation.federator.core_of("t/#") == "01"
    sent = publish(fabric, ("00", "20"), 2.0)
    assert fabric["00"].federation.federator.core_of("t/#") == "02"
    for inbox in inboxes:
        assert_once(inbox, sent)


def test_nothing_flows_when_nobody_is_left() -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    inbox = fabric["c"].subscribe("t/#")
    fabric.advance(2)
    inbox.unsubscribe("t/#")
    fabric.advance(2)
    for name, other in (("a", "b"), ("b", "c"), ("b", "a")):
        assert not fabric[name].filters_of(other)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("edges", [[("a", "b"), ("b", "c"), ("c", "d")], grid_edges()], ids=["line", "grid"])
def test_a_node_that_was_started_again_gets_nothing_for_nobody(
    edges: list[tuple[str, str]], durable: bool
) -> None:
    """Its subscriber is gone with it; what others kept for it, and knew it to be the core of, goes too."""
    fabric = Fabric()
    fabric.build(edges, durable=durable)
    fabric.settle_links()
    last = fabric.nodes[-1]
    last.subscribe("t/#")
    fabric.advance(2)
    last.crash()

    def is_over() -> bool:
        sessions = [each for node in fabric.nodes for _, each in node.federation.neighbour_sessions()]
        meshes = [node for node in fabric.nodes if node.federation.federator.filter_count]
        return not meshes and not any(session.subscriptions for session in sessions)

    fabric.wait_for(is_over, GONE_S)


def test_what_is_published_while_the_next_core_is_cut_off_waits_for_it() -> None:
    """The core withdraws at that moment, and nobody has announced to be the next."""
    fabric = Fabric()
    fabric.line("a", "b")
    fabric.settle_links()
    leaving, inbox = fabric["a"].subscribe("t/#"), fabric["b"].subscribe("t/#")
    fabric.advance(2)
    assert fabric["a"].federation.federator.core_of("t/#") == "a"
    for pipe in fabric.between("a", "b"):
        pipe.cut()
    leaving.unsubscribe("t/#")
    sent = publish(fabric, ("a",), 2.5)
    fabric.advance(5)
    assert_once(inbox, sent)
