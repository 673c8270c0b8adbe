"""A federation falls apart and comes together again: what was published on one side reaches the other."""

from __future__ import annotations

import pytest

from tests.federation.fabric_of_nodes import Fabric

LEFT, RIGHT = ("00", "10", "20"), ("01", "11", "21", "02", "12", "22")


def grid(**options: object) -> Fabric:
    fabric = Fabric()
    fabric.grid(**options)
    fabric.settle_links()
    return fabric


def part(fabric: Fabric) -> None:
    fabric.part(LEFT, RIGHT)
    fabric.advance(5)


def heal(fabric: Fabric) -> None:
    fabric.heal()
    fabric.settle_links()


def test_what_waited_on_both_sides_arrives_once() -> None:
    fabric = grid()
    inboxes = [fabric[name].subscribe("t/#") for name in ("00", "20", "11", "22")]
    fabric.advance(1)
    part(fabric)
    sent = []
    for index in range(20):
        for name in ("10", "00", "12", "21"):
            sent.append(f"{name} {index}".encode())
            fabric[name].publish("t/x", sent[-1], qos=1 + index % 2)
        fabric.advance(0.1)
    near = [payload for payload in sent if payload[:2].decode() in LEFT]
    assert sorted(inboxes[0].payloads) == sorted(near)
    heal(fabric)
    fabric.advance(5)
    for inbox in inboxes:
        assert sorted(inbox.payloads) == sorted(sent)


@pytest.mark.parametrize("others", [(), ("10",), ("00",)], ids=["nobody", "one aside", "the publisher's"])
def test_a_long_partition(others: tuple[str, ...]) -> None:
    """Who has subscribers only on the other side of the cut is stood in for by the nodes at its edge."""
    fabric = grid()
    inbox = fabric["22"].subscribe("t/#")
    near = [fabric[name].subscribe("t/#") for name in others]
    fabric.advance(1)
    fabric.part(LEFT, RIGHT)
    sent = [b"%d" % index for index in range(30)]
    for payload in sent:
        fabric["00"].publish("t/x", payload)
        fabric.advance(3)
    assert inbox.payloads == []
    heal(fabric)
    fabric.advance(5)
    for each in (inbox, *near):
        assert sorted(each.payloads) == sorted(sent)


@pytest.mark.parametrize("edge", LEFT)
def test_a_node_at_the_edge_restarts_during_the_partition(edge: str) -> None:
    fabric = grid(durable=True)
    inbox = fabric["22"].subscribe("t/#")
    fabric.advance(1)
    fabric.part(LEFT, RIGHT)
    sent = [b"%d" % index for index in range(20)]
    for payload in sent:
        fabric["00"].publish("t/x", payload)
        fabric.advance(3)
        if payload == b"10":
            fabric[edge].crash(0.5)
            fabric.advance(10)
    heal(fabric)
    fabric.advance(5)
    assert sorted(inbox.payloads) == sorted(sent)


def test_retained_values_are_the_same_everywhere_within_five_seconds() -> None:
    fabric = grid()
    for node in fabric.nodes:
        node.subscribe("r/#")
    fabric.advance(1)
    for topic in ("both", "left", "right", "gone-left", "gone-right", "changed-and-gone"):
        fabric["11"].publish(f"r/{topic}", b"before", retain=True)
    fabric.advance(2)
    assert all(len(node.retained) == 6 for node in fabric.nodes)
    part(fabric)
    fabric["00"].publish("r/both", b"left, first", retain=True)
    fabric["00"].publish("r/left", b"left", retain=True)
    fabric["10"].publish("r/gone-left", b"", retain=True)
    fabric["20"].publish("r/changed-and-gone", b"left", retain=True)
    fabric.advance(1)
    fabric["22"].publish("r/both", b"right, second", retain=True)
    fabric["12"].publish("r/right", b"right", retain=True)
    fabric["01"].publish("r/gone-right", b"", retain=True)
    fabric["02"].publish("r/changed-and-gone", b"", retain=True)
    fabric.advance(30)
    heal(fabric)
    expected = {"r/both": b"right, second", "r/left": b"left", "r/right": b"right"}
    fabric.wait_for(lambda: all(node.retained == expected for node in fabric.nodes), 5)


def test_one_core_remains() -> None:
    fabric = grid()
    for name in ("00", "22", "12"):
        fabric[name].subscribe("t/#")
    fabric.advance(1)
    assert {node.federation.federator.core_of("t/#") for node in fabric.nodes} == {"00"}
    part(fabric)
    fabric.advance(20)
    assert {fabric[name].federation.federator.core_of("t/#") for name in LEFT} == {"00"}
    assert len({fabric[name].federation.federator.core_of("t/#") for name in RIGHT}) == 1
    heal(fabric)
    fabric.advance(2)
    assert {node.federation.federator.core_of("t/#") for node in fabric.nodes} == {"00"}


def test_who_subscribes_during_the_partition_is_found_after_it() -> None:
    fabric = grid()
    part(fabric)
    inbox = fabric["22"].subscribe("new/#")
    fabric.advance(1)
    fabric["00"].publish("new/retained", b"kept", retain=True)
    heal(fabric)
    fabric["20"].publish("new/x", b"after")
    fabric.advance(2)
    assert sorted(inbox.payloads) == [b"after", b"kept"]
