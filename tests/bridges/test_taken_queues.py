"""What waits for a broker that is away and goes another way: by what right, neither twice nor never."""

from __future__ import annotations

import pytest

from hedgerow.bridges.bridge_set import LEFT_LIMITS
from hedgerow.broker.access import Access, Acl
from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import Connack, Packet, Pingreq, Pingresp, Puback, Publish
from tests.bridges.harness import Network, Node, Script

FAR = (("hedgerow-node", "far"),)
GUEST = "user guest\ntopic readwrite open/#\n"


@pytest.fixture
def network() -> Network:
    return Network()


def away(network: Network, *hosts: str) -> None:
    network.unreachable.update(hosts)


def come(network: Network, name: str = "south") -> Node:
    network.unreachable.discard(name)
    node = network.add(name)
    node.listen()
    network.advance(5)
    return node


def bring(network: Network, script: Script, connack: Connack | None = None) -> list[bytes]:
    """What comes to a foreign broker, which acknowledges it, until it has been quiet for a while."""
    brought: list[bytes] = []

    def receive(packets: list[Packet]) -> None:
        for packet in packets:
            if isinstance(packet, Pingreq):
                script.send(Pingresp())
            if isinstance(packet, Publish) and packet.qos:
                script.send(Puback(packet.packet_id))
                brought.append(packet.payload)

    if connack is not None:
        receive(script.accept(connack))
    for _ in range(15):
        network.advance(0.2)
        receive(script.take())
    return brought


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_bridge_takes_only_what_its_user_may_read(network: Network, is_deleted: bool) -> None:
    north = network.add("north", access=Access(Acl.parse(GUEST, "acl")))
    away(network, "dead", "south")
    north.bridge("# out 1", name="x", address="dead")
    north.publish("secret", b"secret")
    north.publish("open/a", b"open")
    network.advance(1)
    north.bridge("# out 1", name="y", local_username="guest", restart_timeout=1)
    if is_deleted:
        north.delete("x")
    assert come(network).take_heard() == [b"open"]
    (waits,) = (each for each in north.broker.sessions.values() if each.client_id == "local.north.x")
    topics = [delivery.message.topic for delivery in waits.outbox.queue] if waits.outbox else []
    assert "secret" in topics, "it waits for one who may"


def test_one_that_listens_at_qos_0_did_not_have_what_came_while_it_was_away(network: Network) -> None:
    north = network.add("north")
    away(network, "dead", "south")
    north.bridge("# out 1", name="x", address="dead")
    north.bridge("# out 0", name="y", restart_timeout=1)
    network.advance(1)
    north.publish("a", b"waits")
    network.advance(1)
    north.delete("x")
    assert come(network).take_heard() == [b"waits"]


def beside_a_dead_one(network: Network) -> tuple[Node, list[Script]]:
    """A bridge to a foreign broker that got three messages, which wait for another bridge too."""
    north = network.add("north", durable=True)
    away(network, "dead")
    north.bridge("# out 1", name="x", address="dead")
    scripts = network.script("foreign")
    north.bridge("# out 1", name="y", address="foreign", restart_timeout=0.1)
    bring(network, scripts[0], Connack())
    for number in range(3):
        north.publish("a", b"%d" % number)
    assert bring(network, scripts[0]) == [b"0", b"1", b"2"]
    return north, scripts


def test_a_foreign_broker_does_not_get_it_again_after_a_restart(network: Network) -> None:
    north, scripts = beside_a_dead_one(network)
    north.crash()
    assert bring(network, scripts[-1], Connack(session_present=True)) == []
    north.bridge("# out 1", "b out 1 c/ d/", name="y", address="foreign", restart_timeout=0.1, replace=True)
    assert bring(network, scripts[-1], Connack(session_present=True)) == [], "nor by another in its place"
    north.publish("a", b"new")
    assert bring(network, scripts[-1]) == [b"new"]


def test_nor_when_its_bridge_is_replaced(network: Network) -> None:
    north, scripts = beside_a_dead_one(network)
    north.bridge("# out 1", "b out 1 c/ d/", name="y", address="foreign", restart_timeout=0.1, replace=True)
    assert bring(network, scripts[-1], Connack(session_present=True)) == []


def test_what_was_being_deleted_is_left_when_its_name_is_used_for_another(network: Network) -> None:
    north = network.add("north")
    scripts = network.script("far")
    north.bridge("# out 1", address="far")
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    north.publish("a", b"not acknowledged")
    north.delete()
    away(network, "dead")
    north.bridge("b out 1", address="dead", local_clientid="another")
    south = network.add("south")
    south.listen()
    north.bridge("# out 1", name="c")
    network.advance(1)
    assert south.take_heard() == [b"not acknowledged"]
    assert "local.north.b" not in north.broker.sessions


def test_what_a_restart_finds_of_a_deleted_bridge_grows_old_too(network: Network) -> None:
    north = network.add("north", durable=True)
    away(network, "dead")
    north.bridge("# out 1", address="dead")
    north.publish("a", b"for nobody")
    north.delete()
    north.crash()
    assert "local.north.b" in north.broker.sessions
    network.advance(LEFT_LIMITS.age_s + 60)
    assert "local.north.b" not in north.broker.sessions


def test_a_bridge_does_not_take_the_session_of_another_broker(network: Network) -> None:
    north, south = network.add("north", durable=True), network.add("south")
    south.bridge("# in 1", address="north")
    south.bridges.close(network.now)
    network.settle()
    assert north.broker.sessions["south.b"].connection is None
    with pytest.raises(ConfigError, match=r"the local client identifier south\.b is in use"):
        north.bridge("# out 1", name="thief", address="dead", local_clientid="south.b")


def test_two_bridges_to_one_broker_have_two_client_identifiers_there(network: Network) -> None:
    """With one they would take the link from each other at every attempt."""
    north = network.add("north")
    network.add("south")
    north.bridge("a/# out 1", name="x", clientid="same")
    with pytest.raises(ConfigError, match="bridge x has the client identifier same there already"):
        north.bridge("b/# out 1", name="y", clientid="same", local_clientid="other")
    north.bridge("b/# out 1", name="y", clientid="same", local_clientid="other", address="elsewhere")
    north.bridge("c/# out 1", name="x", clientid="same", replace=True)
