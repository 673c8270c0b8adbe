"""Nodes that find their neighbours by themselves: who joins any member is in the federation."""

from __future__ import annotations

from hedgerow.federation.overlay.events import NeighbourLost
from hedgerow.federation.overlay.limits import OverlaySettings
from tests.federation.fabric_of_nodes import Fabric

NAMES = "abcdefghij"
SMALL = {"settings": OverlaySettings(active_target=2, active_at_most=3)}


def joined() -> Fabric:
    fabric = Fabric()
    for name in NAMES:
        node = fabric.add(name, join=[] if name == "a" else ["a"], is_found=True, federation=SMALL)
        node.subscribe("early")
        fabric.advance(0.5)
    fabric.wait_for(lambda: all(node.linked for node in fabric.nodes), 20)
    return fabric


def test_who_joins_a_member_hears_all() -> None:
    fabric = joined()
    inboxes = [node.subscribe("t/#") for node in fabric.nodes]
    fabric.advance(20)
    sent = []
    for node in fabric.nodes:
        sent.append(node.name.encode())
        node.publish("t/x", sent[-1])
        fabric.advance(1)
    fabric.advance(2)
    for inbox in inboxes:
        assert sorted(inbox.payloads) == sent


def test_nothing_is_kept_for_one_that_is_a_neighbour_no_more() -> None:
    """It made room for another, and is served by others."""
    fabric = joined()
    fabric.advance(30)
    former = {
        (node, event.node_id)
        for node in fabric.nodes
        for event in node.told(NeighbourLost)
        if event.node_id not in node.linked
    }
    assert former
    assert not any(node.filters_of(other) for node, other in former)
    fabric["a"].publish("early", b"x")
    fabric.advance(2)
    for node, other in former:
        assert not dict(node.federation.neighbour_sessions()).get(other)


def test_a_contact_that_is_gone_is_not_missed() -> None:
    fabric = joined()
    inbox = fabric["j"].subscribe("t/#")
    fabric.advance(5)
    fabric["a"].kill()
    fabric.advance(5)
    for node in fabric.nodes[1:]:
        node.publish("t/x", node.name.encode())
    fabric.advance(5)
    assert sorted(inbox.payloads) == [name.encode() for name in NAMES[1:]]
