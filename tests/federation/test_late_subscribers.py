"""Who subscribes gets what is published from then on, though nodes send each other again what just flowed."""

from __future__ import annotations

import pytest

from hedgerow.federation.interests.log_lines import SUBSCRIBE_TOPIC
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC
from tests.federation.clients import Load
from tests.federation.fabric_of_nodes import Fabric, grid_edges
from tests.federation.hosts import Host
from tests.federation.test_tunnels import sidecars


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("later", ["b", "c", "d"])
def test_a_subscriber_that_comes_later_gets_what_is_published_later(later: str, qos: int) -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c", "d")
    fabric.settle_links()
    first = fabric["b"].subscribe("t/#", qos=2)
    fabric.advance(1)
    for index in range(10):
        fabric["a"].publish("t/x", b"%d" % index, qos)
    fabric.advance(3)
    second = fabric[later].subscribe("t/x", qos=2)
    fabric.advance(1)
    fabric["a"].publish("t/x", b"new", qos)
    fabric.advance(1)
    assert len(first.payloads) == 11
    assert second.payloads == [b"new"]


def test_what_waits_for_a_neighbour_is_for_who_was_there() -> None:
    fabric = Fabric()
    fabric.line("a", "b")
    fabric.settle_links()
    early = fabric["b"].subscribe("t/#")
    away = fabric["b"].subscribe("t/#", client_id="away")
    away.leave()
    fabric.advance(1)
    fabric.cut("a", "b")
    fabric.advance(5)
    fabric["a"].publish("t/x", b"old")
    fabric.advance(5)
    later = fabric["b"].subscribe("t/#")
    fabric.advance(5)
    fabric["a"].publish("t/x", b"new")
    fabric.advance(5)
    fabric.heal()
    fabric.settle_links()
    assert early.payloads == [b"old", b"new"]
    assert later.payloads == [b"new"]
    assert fabric["b"].subscribe(client_id="away").payloads == [b"old", b"new"]


def test_what_goes_by_another_way_is_for_who_was_there() -> None:
    """From a to c by b, which is lost with what a has for it; then a is linked to c."""
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    early = fabric["c"].subscribe("t/#")
    fabric.advance(1)
    fabric.cut("a", "b")
    fabric.advance(20)
    fabric["a"].publish("t/x", b"old")
    fabric.advance(10)
    later = fabric["c"].subscribe("t/#")
    fabric.advance(10)
    fabric["a"].link_to("c")
    fabric.advance(3)
    assert (early.payloads, later.payloads) == ([b"old"], [])


def test_while_subscribers_come_those_who_are_there_lose_nothing() -> None:
    """A node of the grid dies and comes back under load, and each second somebody subscribes somewhere."""
    fabric = Fabric()
    fabric.build(grid_edges())
    fabric.settle_links()
    early = [fabric[name].subscribe("t/#") for name in ("02", "21")]
    fabric.advance(1)
    load = Load(fabric, "20", every_s=0.05)
    came = []
    for name in ("00", "12", "22", "01", "10"):
        if name == "12":
            fabric["11"].kill()
        fabric.advance(1)
        came.append((fabric.now, fabric[name].subscribe(f"t/{'+' if name < '1' else '#'}")))
    fabric["11"].start()
    fabric.advance(5)
    load.stop()
    fabric.advance(5)
    load.check(*early)
    for since, inbox in came:
        assert max(inbox.tally.values()) == 1
        assert min(load.sent[payload] for payload in inbox.payloads) > since - 1
        # From its mesh on, which takes less than a second, it gets them all.
        assert {payload for payload, at in load.sent.items() if at > since + 1} <= set(inbox.payloads)


def test_a_late_subscriber_gets_the_value_and_not_those_before_it() -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    first = fabric["b"].subscribe("r/#")
    fabric.advance(1)
    for payload in (b"1", b"2", b"3"):
        fabric["a"].publish("r/x", payload, retain=True)
        fabric.advance(1)
    second = fabric["c"].subscribe("r/#")
    fabric.advance(2)
    assert first.payloads == [b"1", b"2", b"3"]
    assert second.payloads == [b"3"]


# Beside foreign brokers


def log(home: Host, client_id: bytes, topic_filter: bytes) -> None:
    for line in (
        b"hedgerow-federation-b-home 1 " + SUBSCRIBE_TOPIC.encode(),
        client_id + b" 1 " + topic_filter,
    ):
        home.publish(SUBSCRIBE_TOPIC, b"1700000000: " + line)


def three_brokers() -> Fabric:
    """Clients of A and C are there from the start; what they get passes B, where nobody is subscribed."""
    fabric = sidecars("a", "b", "c", assume=())
    fabric["C"].publish(NEW_REGULAR_TOPIC, b"t/#")
    fabric.advance(2)
    return fabric


def test_a_client_of_a_foreign_broker_that_comes_later() -> None:
    fabric = three_brokers()
    first = fabric["C"].subscribe("t/#")
    for index in range(5):
        fabric["A"].publish("t/x", b"%d" % index)
    fabric.advance(3)
    second = fabric["B"].subscribe("t/#")
    log(fabric["B"], b"inbox-1", b"t/#")
    fabric.advance(1)
    fabric["A"].publish("t/x", b"new")
    fabric.advance(1)
    assert len(first.payloads) == 6
    assert second.payloads == [b"new"]


def test_an_announcement_that_was_retained_is_from_before() -> None:
    """The sidecar has forgotten all, and hears of what it missed by what its broker retains."""
    fabric = three_brokers()
    inbox = fabric["B"].subscribe("t/#")
    fabric["B"].publish(f"{NEW_REGULAR_TOPIC}/inbox", b"t/#", retain=True)
    fabric.advance(2)
    fabric["b"].kill()
    fabric.advance(2)
    fabric["A"].publish("t/x", b"while it was away")
    fabric.advance(2)
    fabric["b"].start(is_empty=True)
    fabric.advance(10)
    assert inbox.payloads == [b"while it was away"]
