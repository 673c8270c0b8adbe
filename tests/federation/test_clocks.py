"""Clocks that are wrong: a node's lives are counted by its clock where it has no store."""

from __future__ import annotations

from tests.federation.fabric_of_nodes import Fabric


def test_a_node_whose_clock_went_back_is_let_in_again() -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    inbox = fabric["c"].subscribe("t/#")
    fabric["b"].kill()
    fabric["b"].epoch = 5_000
    fabric["b"].start()
    fabric.settle_links()
    fabric["b"].kill()
    fabric["b"].epoch = 100
    fabric["b"].start()
    fabric.settle_links()
    fabric.advance(1)
    for name in ("a", "b"):
        fabric[name].publish("t/x", name.encode())
    fabric.advance(1)
    assert sorted(inbox.payloads) == [b"a", b"b"]
