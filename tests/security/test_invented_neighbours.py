"""Neighbours that are invented, and what they say of the node that they are linked to."""

from __future__ import annotations

import pytest

from hedgerow.federation.federation import MIN_PLACES
from hedgerow.message import Properties
from hedgerow.mqtt.ids import ID_PROPERTY, NODE_PROPERTY
from hedgerow.mqtt.packets import Publish
from hedgerow.mqtt.reasons import Reason
from hedgerow.rates import is_loopback
from hedgerow.topics import STATUS_PREFIX
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric

PLACES = 64


def come(fabric: Fabric, node_id: str, username: str | None, address: str = "192.0.2.9:1") -> Inbox:
    return Inbox(
        fabric["x"],
        f"hedgerow-federation-{node_id}",
        kept=True,
        properties={"user_property": ((NODE_PROPERTY, node_id),)},
        username=username,
        address=address,
    )


def is_refused(inbox: Inbox) -> bool:
    return inbox.connack.reason_code == Reason.NOT_AUTHORIZED


@pytest.fixture
def fabric() -> Fabric:
    fabric = Fabric()
    fabric.add("x", federation={"max_sessions": PLACES})
    return fabric


@pytest.mark.parametrize("thief", ["mallory", None])
def test_one_owner_leaves_places_for_the_next(fabric: Fabric, thief: str | None) -> None:
    taken = [not is_refused(come(fabric, f"invented-{number}", thief)) for number in range(2 * PLACES)]
    assert taken.count(True) == PLACES // 2
    assert not is_refused(come(fabric, "y", "farm"))
    assert not is_refused(come(fabric, "z", None, "192.0.2.10:1"))
    assert not is_refused(come(fabric, "invented-0", thief))  # It has its place.


def test_several_owners_get_their_least(fabric: Fabric) -> None:
    for user in ("a", "b", "c"):
        granted = [not is_refused(come(fabric, f"{user}-{number}", user)) for number in range(PLACES)]
        assert granted.count(True) >= MIN_PLACES


def test_a_neighbour_does_not_tell_what_this_node_is(fabric: Fabric) -> None:
    watcher = fabric["x"].subscribe(STATUS_PREFIX + "#")
    member = come(fabric, "m", "farm")
    for number, (node, payload) in enumerate((("x", b"forged"), ("m", b"its own"))):
        pairs = ((ID_PROPERTY, f"m/1/{number}"),)
        member.publish(STATUS_PREFIX + node, payload, properties={"user_property": pairs})
    assert b"its own" in watcher.payloads
    assert b"forged" not in watcher.payloads


def test_a_neighbour_that_was_dialled_does_not_tell_it_either() -> None:
    fabric = Fabric()
    fabric.add("x", "y")
    fabric.add("y")  # It accepts, and never dials.
    fabric.settle_links()
    watcher = fabric["x"].subscribe(STATUS_PREFIX + "#")
    link = fabric["y"].session_of("x").connection
    assert link is not None
    before = fabric["x"].session_of("y").connection.inbound.refused
    topics = ("x", "x/meshes", "y", "z")
    for number, topic in enumerate(topics):
        pairs = ((ID_PROPERTY, f"y/1/{number}"),)
        properties: Properties = {"user_property": pairs}
        link.send_packet(
            Publish(STATUS_PREFIX + topic, topic.encode(), 1, True, False, 1 + number, properties)
        )
    fabric.advance(1)
    assert watcher.payloads == [b"y", b"z"]
    assert fabric["x"].broker.retained.get(STATUS_PREFIX + "x") is None
    assert fabric["x"].session_of("y").connection.inbound.refused == before + 2


@pytest.mark.parametrize(
    "name", ["127.0.0.1.evil.example", "127.evil.example", "::1.example", "localhost", ""]
)
def test_a_name_is_no_loopback_address(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses(address: str) -> None:
    assert is_loopback(address)
