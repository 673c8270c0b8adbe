"""Whose a client id is: nobody keeps one from the user that it was given to, by coming first."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Disconnect, Publish, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import KEPT, Client, World

ACL = """
topic readwrite t
user alice
topic readwrite t
topic write $hedgerow/client/panel
topic write $hedgerow/client/a%2Fb
user eve
topic readwrite #
user bridge
topic write $hedgerow/client/south.north
"""


def ruled() -> World:
    return World(access=Access(Acl.parse(ACL, "acl")), durable=True)


def come(world: World, client_id: str, user: str | None) -> Client:
    client = world.open(certificate_name=user)
    client.send(Connect(client_id, MQTT_5, False, properties={"session_expiry_interval": KEPT}))
    client.connack = client.take_first(Connack)
    return client


def occupy(world: World, client_id: str, user: str = "eve") -> Client:
    """With a subscription, and what waits for it."""
    client = come(world, client_id, user)
    assert client.connack.reason_code == 0
    client.send(Subscribe(1, [Subscription("t", 1)]))
    client.take()
    return client


@pytest.mark.parametrize(
    ("client_id", "user"),
    [("panel", "alice"), ("a/b", "alice"), ("south.north", "bridge"), ("alice", "alice")],
)
def test_who_came_first_does_not_keep_a_client_id_from_whom_it_was_given_to(
    client_id: str, user: str
) -> None:
    world = ruled()
    occupy(world, client_id).lose()
    come(world, "publisher", None).send(Publish("t", b"for eve", qos=1, packet_id=1))
    client = come(world, client_id, user)
    assert client.connack.reason_code == 0
    assert not client.connack.session_present
    assert not client.has_bytes, "nothing of what waited for the other"
    assert come(world, client_id, "eve").connack.reason_code == Reason.NOT_AUTHORIZED
    assert not client.closed


def test_one_who_is_connected_makes_way_too() -> None:
    world = ruled()
    eve = occupy(world, "panel")
    assert come(world, "panel", "alice").connack.reason_code == 0
    assert eve.closed
    assert eve.take_one(Disconnect).reason_code == Reason.SESSION_TAKEN_OVER


@pytest.mark.parametrize("world", [ruled(), World()])
def test_without_a_right_the_session_of_another_is_not_taken(world: World) -> None:
    alice = occupy(world, "other", "alice")
    for user in "eve", None:
        assert come(world, "other", user).connack.reason_code == Reason.NOT_AUTHORIZED
    assert not alice.closed
    alice.lose()
    assert come(world, "other", "eve").connack.reason_code == Reason.NOT_AUTHORIZED
    assert come(world, "other", "alice").connack.session_present


def test_an_empty_session_keeps_no_client_id() -> None:
    world = World(durable=True)
    come(world, "panel2", "eve").lose()
    assert come(world, "panel2", "alice").connack.reason_code == 0


def test_client_ids_of_own_bridges_are_kept_for_them() -> None:
    world = World()
    code = come(world, "local.node.north", "eve").connack.reason_code
    assert code == Reason.CLIENT_IDENTIFIER_NOT_VALID
    assert come(world, "local.other.north", "eve").connack.reason_code == 0
