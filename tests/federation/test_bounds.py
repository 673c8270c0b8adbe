"""What bounds a node: limits of its own, and those of a broker between; and how soon it reacts, or late."""

from __future__ import annotations

import json

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.federation.state import MAX_FILTERS, STATE_TOPIC
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.reasons import Reason
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric


def test_names_can_be_invented_and_their_sessions_are_bounded() -> None:
    fabric = Fabric()
    fabric.line("a", "b", federation={"max_sessions": 2})
    fabric.settle_links()
    answers = []
    for name in ("x", "y", "z"):
        properties = {"user_property": ((NODE_PROPERTY, name),)}
        inbox = Inbox(fabric["a"], f"hedgerow-federation-{name}", kept=True, properties=properties)
        answers.append(inbox.connack.reason_code)
    assert answers == [Reason.SUCCESS, Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED]
    fabric.close("a", "b")
    fabric.settle_links()  # One that is known has its place.


def test_the_state_names_some_filters_and_counts_the_rest() -> None:
    fabric = Fabric()
    fabric.line("a", "b")
    fabric.settle_links()
    fabric["a"].subscribe(*map(str, range(MAX_FILTERS + 2)))
    fabric.advance(1)
    for name in ("a", "b"):
        told = json.loads(fabric[name].broker.retained.get(STATE_TOPIC).payload)
        assert (len(told["filters"]), told["more_filters"]) == (MAX_FILTERS, 2)


def test_a_filter_stays_at_home_for_a_while() -> None:
    """Subscribed to anew, it would have missed what was published in between."""
    fabric = Fabric()
    home = fabric.add_foreign("home")
    fabric.add("sidecar", home="home")
    fabric.add("node", "home")
    fabric.wait_for(lambda: fabric["node"].linked == {"sidecar"}, 5)

    def is_asked_for() -> bool:
        return any("t" in (session.subscriptions or ()) for session in home.broker.sessions.values())

    inbox = fabric["node"].subscribe("t")
    fabric.wait_for(is_asked_for, 2)
    for _ in range(3):
        inbox.unsubscribe("t")
        fabric.advance(3)
        assert is_asked_for()
        inbox.subscribe("t")
        fabric.advance(0.5)
    fabric.advance(10)
    assert is_asked_for()
    inbox.unsubscribe("t")
    fabric.wait_for(lambda: not is_asked_for(), 10)


def test_who_is_gone_from_a_broker_between_is_missed_at_once() -> None:
    fabric = Fabric()
    fabric.add_foreign("home")
    sidecar = fabric.add("sidecar", home="home")
    fabric.add("node", "home")
    fabric.wait_for(lambda: sidecar.linked == {"node"}, 5)
    fabric["node"].kill()
    fabric.advance(0.1)  # It did not say goodbye: the broker says so for it.
    assert sidecar.linked == set()


@pytest.mark.parametrize("packet_bytes", [2_048, 8_192])
def test_frames_fit_into_the_packets_of_the_broker_between(packet_bytes: int) -> None:
    fabric = Fabric()
    fabric.add_foreign("home", limits=Limits(packet_bytes=packet_bytes))
    fabric.add("far")
    sidecar = fabric.add("sidecar", "far", home="home")
    fabric.add("node", "home")
    fabric.wait_for(lambda: sidecar.linked == {"node", "far"}, 5)
    inbox = fabric["far"].subscribe("t")
    fabric.advance(1)
    payloads = [bytes([number]) * 20_000 for number in range(5)]
    for payload in payloads:
        fabric["node"].publish("t", payload)
    fabric.advance(2)
    assert inbox.payloads == payloads
    assert fabric["node"].linked == {"sidecar"}


def test_a_tunnel_that_is_full_holds_its_writer_back() -> None:
    fabric = Fabric()
    fabric.add_foreign("home")
    fabric.add("far")
    sidecar = fabric.add("sidecar", "far", home="home")
    node = fabric.add("node", "home")
    fabric.wait_for(lambda: sidecar.linked == {"node", "far"}, 5)
    inbox = fabric["far"].subscribe("t")
    fabric.advance(1)
    link = node.session_of("sidecar").connection
    assert link is not None
    sidecar.is_frozen = True
    payloads = [bytes([number]) * 20_000 for number in range(40)]
    for payload in payloads:
        node.publish("t", payload)
    assert link.congested
    fabric.advance(0.3)
    sidecar.thaw()
    fabric.advance(2)
    assert not link.congested
    assert inbox.payloads == payloads
