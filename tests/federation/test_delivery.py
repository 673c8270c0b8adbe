"""Messages between federated nodes: each subscriber gets each message once, whatever the topology."""

from __future__ import annotations

import pytest

from tests.federation.fabric_of_nodes import Fabric, grid_edges

LINE = [("a", "b"), ("b", "c"), ("c", "d")]
RING = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
TOPOLOGIES = pytest.mark.parametrize("edges", [LINE, RING, grid_edges()], ids=["line", "ring", "grid"])


def build(edges: list[tuple[str, str]], **options: object) -> Fabric:
    fabric = Fabric()
    fabric.build(edges, **options)
    fabric.settle_links()
    return fabric


@TOPOLOGIES
def test_published_anywhere_heard_everywhere(edges: list[tuple[str, str]]) -> None:
    fabric = build(edges)
    inboxes = [node.subscribe("t/#", qos=2) for node in fabric.nodes]
    fabric.advance(1)
    sent = []
    for node in fabric.nodes:
        for qos in (0, 1, 2):
            sent.append(f"{node.name} {qos}".encode())
            node.publish(f"t/{node.name}", sent[-1], qos)
    fabric.advance(2)
    for inbox in inboxes:
        assert sorted(inbox.payloads) == sorted(sent)
        assert {message.payload[-1:]: message.qos for message in inbox.messages} == {
            b"0": 0,
            b"1": 1,
            b"2": 2,
        }


@TOPOLOGIES
def test_overlapping_filters_and_wildcards(edges: list[tuple[str, str]]) -> None:
    fabric = build(edges)
    first, *_, last = fabric.nodes
    wide, narrow = first.subscribe("site/#"), last.subscribe("site/+/temperature", qos=2)
    both = last.subscribe("site/kitchen/temperature")
    other = fabric.nodes[1].subscribe("elsewhere/#")
    fabric.advance(1)
    middle = fabric.nodes[2]
    for index in range(3):
        middle.publish("site/kitchen/temperature", b"t%d" % index)
        middle.publish("site/kitchen/light", b"l%d" % index)
    fabric.advance(1)
    assert sorted(wide.payloads) == [b"l0", b"l1", b"l2", b"t0", b"t1", b"t2"]
    assert narrow.payloads == [b"t0", b"t1", b"t2"]
    assert both.payloads == [b"t0", b"t1", b"t2"]
    assert other.payloads == []


@TOPOLOGIES
def test_one_member_of_a_shared_subscription_gets_each_message(edges: list[tuple[str, str]]) -> None:
    fabric = build(edges)
    near, *_, far = fabric.nodes
    members = [far.subscribe("$share/workers/jobs/#") for _ in range(2)]
    fabric.advance(1)
    for index in range(10):
        near.publish("jobs/x", b"%d" % index)
    fabric.advance(1)
    assert sorted(members[0].payloads + members[1].payloads) == sorted(b"%d" % index for index in range(10))
    assert members[0].payloads
    assert members[1].payloads


@TOPOLOGIES
def test_a_filter_that_nobody_wants_any_more_leaves_the_neighbours_sessions(
    edges: list[tuple[str, str]],
) -> None:
    fabric = build(edges)
    near, *_, far = fabric.nodes
    inbox = far.subscribe("t/#")
    fabric.advance(1)
    assert any("t/#" in node.filters_of(other) for node in fabric.nodes for other in node.linked)
    inbox.unsubscribe("t/#")
    fabric.advance(3)
    assert not any(node.filters_of(other.node_id) for node in fabric.nodes for other in fabric.nodes)
    sent = near.broker.stats.bytes_sent
    near.publish("t/x", bytes(5_000))
    fabric.advance(0.01)
    assert near.broker.stats.bytes_sent - sent < 5_000


def test_publications_of_one_client_stay_in_order() -> None:
    fabric = build(LINE)
    inbox = fabric["d"].subscribe("t", qos=2)
    fabric.advance(1)
    sent = [b"%d" % index for index in range(200)]
    for payload in sent:
        fabric["a"].publish("t", payload, qos=1)
        fabric.advance(0.001)
    fabric.advance(1)
    assert inbox.payloads == sent


@TOPOLOGIES
def test_a_late_subscriber_gets_what_is_retained_anywhere(edges: list[tuple[str, str]]) -> None:
    fabric = build(edges)
    near, *_, far = fabric.nodes
    for index in range(5):
        near.publish("r/value", b"%d" % index, retain=True)
    near.publish("r/gone", b"x", retain=True)
    near.publish("r/gone", b"", retain=True)
    fabric.advance(1)
    assert far.retained == {}
    inbox = far.subscribe("r/#")
    fabric.advance(2)
    assert inbox.payloads == [b"4"]
    assert far.retained == {"r/value": b"4"}


def test_what_begins_with_a_dollar_is_each_brokers_own() -> None:
    fabric = build(LINE)
    inbox = fabric["d"].subscribe("$mine/x", "#")
    fabric.advance(1)
    fabric["a"].publish("$mine/x", b"secret")
    fabric["a"].publish("$SYS/broker/federation/state", b"forged", retain=True)
    fabric["a"].publish("ours", b"open")
    fabric.advance(1)
    assert inbox.payloads == [b"open"]


def test_a_subscriber_that_moves_is_found_where_it_is() -> None:
    fabric = build(LINE)
    for name in "abcd":
        inbox = fabric[name].subscribe("t", client_id="mover")
        fabric.advance(1)
        fabric["b"].publish("t", name.encode())
        fabric.advance(1)
        assert inbox.payloads == [name.encode()]
        inbox.unsubscribe("t")
        inbox.leave()
        fabric.advance(1)
