"""Who is no neighbour: nodes without the key, or of a name that is taken, and clients that pretend."""

from __future__ import annotations

import pytest

from hedgerow.broker.events import ConnectionFailed
from hedgerow.federation.events import LinkNotOpen
from hedgerow.federation.federation import MESH_TOPIC, OVERLAY_TOPIC
from hedgerow.federation.overlay.events import NeighbourGained, PeerRefused
from hedgerow.federation.tunnel.frames import FEDERATOR_TOPIC
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import Publish
from hedgerow.mqtt.reasons import Reason
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def line(**options: object) -> Fabric:
    fabric = Fabric()
    fabric.line("a", "b", **options)
    fabric.settle_links()
    return fabric


@pytest.mark.parametrize("key", [None, OTHER_KEY], ids=["without", "another"])
@pytest.mark.parametrize("dials", ["stranger", "member"])
def test_a_node_without_the_key(key: bytes | None, dials: str) -> None:
    fabric = line(federation={"key": KEY})
    inside = fabric["b"].subscribe("t/#")
    fabric.add("x", *(["a"] if dials == "stranger" else []), federation={"key": key})
    outside = fabric["x"].subscribe("t/#")
    if dials == "member":
        fabric["a"].link_to("x")
    fabric.advance(1)
    fabric["a"].publish("t/secret", b"secret")
    fabric["a"].publish("t/kept", b"kept secret", retain=True)
    fabric["x"].publish("t/bad", b"bad")
    fabric["x"].publish("t/worse", b"worse", retain=True)
    fabric.advance(30)
    assert outside.payloads == [b"bad", b"worse"]
    assert inside.payloads == [b"secret", b"kept secret"]
    assert fabric["a"].linked == {"b"}
    assert fabric["x"].linked == set()
    if dials == "stranger":
        assert {event.node_id for event in fabric["a"].told(PeerRefused)} == {"x"}
    else:  # Who dialled speaks first; it is the stranger that says no.
        assert {event.node_id for event in fabric["x"].told(PeerRefused)} == {"a"}
    assert not fabric["a"].filters_of("x")


def test_a_node_that_others_could_take_for_this_one() -> None:
    fabric = line()
    fabric.add("twin", "a", node_id="a")
    fabric.advance(5)
    (event,) = fabric["twin"].told(LinkNotOpen)
    assert event.address == "mqtt://a"
    assert "name" in event.reason
    assert fabric["a"].linked == {"b"}
    assert "hedgerow-federation-a" not in fabric["a"].broker.sessions


def test_two_nodes_of_one_name_at_a_third() -> None:
    """They cannot both be linked. Neither of them keeps the third from working."""
    fabric = line()
    fabric.add("twin", "b", node_id="a")
    inbox = fabric["b"].subscribe("t")
    fabric.advance(20)
    fabric["b"].publish("t", b"x")
    fabric.advance(1)
    assert inbox.payloads == [b"x"]
    assert fabric["b"].linked == {"a"}


def test_a_node_that_dials_itself() -> None:
    fabric = Fabric()
    fabric.add("a")
    fabric["a"].link_to("a")
    fabric.advance(5)
    (event,) = fabric["a"].told(LinkNotOpen)
    assert "name" in event.reason
    assert fabric["a"].linked == set()


@pytest.mark.parametrize("name", [None, "x"], ids=["ordinary", "of another node"])
@pytest.mark.parametrize("client_id", ["hedgerow-federation-b", "hedgerow-federation-y"])
def test_a_client_with_a_neighbours_client_id(name: str | None, client_id: str) -> None:
    fabric = line()
    inbox = fabric["b"].subscribe("t")
    fabric.advance(1)
    properties = {"user_property": ((NODE_PROPERTY, name),)} if name else {}
    thief = Inbox(fabric["a"], client_id, kept=True, properties=properties)
    assert thief.connack.reason_code == Reason.NOT_AUTHORIZED
    assert "hedgerow-federation-y" not in fabric["a"].broker.sessions
    fabric["a"].publish("t", b"still linked")
    fabric.advance(0.1)
    assert inbox.payloads == [b"still linked"]


@pytest.mark.parametrize("topic", [OVERLAY_TOPIC, MESH_TOPIC])
def test_an_ordinary_client_has_no_say(topic: str) -> None:
    fabric = line()
    client = fabric["a"].subscribe("$hedgerow/federation/#")
    stats = fabric["a"].federation.overlay.stats, fabric["a"].federation.federator.stats
    before = repr(stats)
    client.publish(topic, b"\x01garbage", qos=1)
    client.publish(topic, b"\x01garbage", qos=0)
    assert repr(stats) == before
    assert fabric["a"].linked == {"b"}


@pytest.mark.parametrize("topic", [OVERLAY_TOPIC, MESH_TOPIC, "$hedgerow/federation/unknown"])
def test_garbage_from_a_neighbour(topic: str) -> None:
    fabric = line()
    inbox = fabric["b"].subscribe("t")
    fabric.advance(1)
    link = fabric["b"].session_of("a").connection
    assert link is not None
    for size in range(200):
        link.send_packet(Publish(topic, fabric.random.randbytes(size)))
    for first in range(256):
        link.send_packet(Publish(topic, bytes([first]) + fabric.random.randbytes(50)))
    fabric["b"].settle()
    fabric.advance(5)
    fabric["a"].publish("t", b"x")
    fabric.advance(15)
    assert inbox.payloads == [b"x"]
    fabric.settle_links()


def test_a_neighbour_may_not_publish_what_is_each_brokers_own() -> None:
    fabric = line()
    inbox = fabric["a"].subscribe("$SYS/x")
    link = fabric["b"].session_of("a").connection
    assert link is not None
    link.send_packet(Publish("$SYS/x", b"x"))
    link.send_packet(Publish("$SYS/x", b"x", 1, packet_id=9))
    fabric["b"].settle()
    fabric.advance(1)
    assert inbox.payloads == []


def test_garbage_for_a_federator_at_its_home() -> None:
    fabric = Fabric()
    home = fabric.add_foreign("home")
    sidecar = fabric.add("sidecar", home="home", assume=("t/#",))
    fabric.add("far", "home")
    fabric.wait_for(lambda: sidecar.linked == {"far"}, 5)
    inbox = home.subscribe("t/#")
    for size in range(100):
        home.publish(FEDERATOR_TOPIC, fabric.random.randbytes(size), qos=0)
        home.publish("hedgerow/federation/node/far", fabric.random.randbytes(size), qos=0)
    fabric.advance(1)
    fabric["far"].publish("t/x", b"x")
    fabric.advance(1)
    assert inbox.payloads == [b"x"]
    assert len(fabric["far"].told(NeighbourGained)) == 1


@pytest.mark.parametrize("packet_type", [0x40, 0x50, 0x62, 0x70])
def test_a_foreign_broker_acknowledges_what_nobody_sent(packet_type: int) -> None:
    fabric = Fabric()
    fabric.add_foreign("far")
    node = fabric.add("a", "far")
    fabric.wait_for(lambda: bool(fabric.between("a", "far")), 10)
    fabric.advance(0.1)
    ((pipe, index),) = fabric.pipes_of("a")
    pipe.deliver(index, bytes((packet_type, 2, 0, 1)))
    assert pipe.sides[index].link is None
    assert not node.told(ConnectionFailed)
    fabric.wait_for(lambda: bool(fabric.between("a", "far")), 60)
