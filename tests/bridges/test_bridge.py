"""When a bridge connects, to which address, what it says of itself, and what ends it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hedgerow.bridges.bridge import BridgePhase
from hedgerow.bridges.dialling import FIRST_ADDRESS_S
from hedgerow.bridges.events import BridgeDown, BridgeNotUp, BridgeUp
from hedgerow.broker.dialled import CONNACK_S
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, Connack, Publish, Suback, Subscribe
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import Network, Node


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


def dial_gaps(network: Network) -> list[float]:
    times = [at for at, _ in network.dialled]
    return [round(later - earlier, 6) for earlier, later in pairwise(times)]


def dialled_hosts(network: Network) -> list[str]:
    return [host for _, host in network.dialled]


# Addresses


def test_addresses_are_tried_one_after_the_other_without_waiting(network: Network, north: Node) -> None:
    network.add("third")
    bridge = north.bridge("# out", address="first second third")
    assert dialled_hosts(network) == ["first", "second", "third"]
    assert network.now == network.dialled[-1][0] == bridge.since
    assert bridge.status()["far"] == "third"


def test_when_all_were_tried_it_waits(network: Network, north: Node) -> None:
    north.bridge("# out", address="first second", restart_timeout="5")
    assert north.state() is BridgePhase.WAITING
    network.advance(4.9)
    assert dialled_hosts(network) == ["first", "second"]
    network.advance(0.2)
    assert dialled_hosts(network) == ["first", "second"] * 2


def test_the_first_address_is_preferred_and_tried_again(network: Network, north: Node) -> None:
    network.add("second")
    bridge = north.bridge("# both 1", address="first second")
    first = network.add("first")
    first.listen()
    network.advance(FIRST_ADDRESS_S + 1)
    assert bridge.status()["far"] == "first"
    assert north.state() is BridgePhase.UP
    north.publish("a", b"here")
    assert first.take_heard() == [b"here"]
    # It has come home: nothing more is tried.
    count = len(network.dialled)
    network.advance(5 * FIRST_ADDRESS_S)
    assert len(network.dialled) == count


def test_what_is_in_flight_goes_along_to_the_first_address(network: Network, north: Node) -> None:
    network.add("second")
    north.bridge("# both 1", address="first second")
    first = network.add("first")
    first.listen()
    network.flows = False  # It is sent, and never acknowledged.
    north.publish("a", b"in flight")
    network.now += FIRST_ADDRESS_S
    for wire in network.between("north", "second"):
        wire.cut()
    network.flows = True
    network.advance(1)
    assert first.take_heard() == [b"in flight"]


def test_a_first_address_that_does_not_answer_disturbs_nothing(network: Network, north: Node) -> None:
    second = network.add("second")
    bridge = north.bridge("# out", address="first second")
    network.advance(3 * FIRST_ADDRESS_S + 1)
    assert dialled_hosts(network).count("first") == 4
    assert north.state() is BridgePhase.UP
    assert bridge.since < network.now - 3 * FIRST_ADDRESS_S
    assert len(second.broker.connections) == 1


def test_a_first_address_that_refuses_is_left_for_the_second(network: Network, north: Node) -> None:
    network.add("second")
    bridge = north.bridge("# out", address="first second")
    scripts = network.script("first")
    network.advance(FIRST_ADDRESS_S + 1)
    scripts[0].send(Connack(False, Reason.NOT_AUTHORIZED))
    assert bridge.status()["far"] == "second"
    assert north.state() is BridgePhase.UP


def test_round_robin_goes_on_to_the_next_and_stays_there(network: Network, north: Node) -> None:
    network.add("first")
    network.add("second")
    bridge = north.bridge("# out", address="first second", round_robin=True)
    network.lose("north", "first")
    network.advance(0.1)
    assert bridge.status()["far"] == "second"
    network.advance(4 * FIRST_ADDRESS_S)
    assert dialled_hosts(network) == ["first", "second"]
    network.lose("north", "second")
    network.advance(10)
    assert bridge.status()["far"] == "first"


def test_after_a_loss_the_first_address_comes_first(network: Network, north: Node) -> None:
    network.add("second")
    north.bridge("# out", address="first second", restart_timeout="2")
    network.lose("north", "second")
    network.advance(2.1)
    assert dialled_hosts(network) == ["first", "second", "first", "second"]
    assert north.state() is BridgePhase.UP


def test_a_late_failure_of_another_dial_is_not_that_of_this_one(network: Network, north: Node) -> None:
    network.hanging.add("second")
    bridge = north.bridge("# out", address="first second")
    assert dialled_hosts(network) == ["first", "second"]
    bridge.handle_dial_failed(bridge.section.addresses[0], "too late", network.now)
    network.settle()
    assert north.state() is BridgePhase.CONNECTING
    assert bridge.reason == "connection refused"


# Back-off


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_back_off_grows_by_chance_to_its_cap(network: Network, north: Node, chance: float) -> None:
    network.chance = chance
    north.bridge("# out", restart_timeout="1 10")
    network.advance(60)
    gaps = dial_gaps(network)
    expected, delay = [], 0.0
    for _ in gaps:
        delay = 1 + (min(10, max(1, 3 * delay)) - 1) * chance
        expected.append(round(delay, 6))
    assert gaps == pytest.approx(expected)
    assert all(1 <= gap <= 10 for gap in gaps)
    assert north.state() is BridgePhase.WAITING


def test_back_off_reaches_the_cap_and_begins_anew(network: Network, north: Node) -> None:
    network.chance = 1.0
    north.bridge("# out", restart_timeout="1 10")
    network.advance(40)
    assert dial_gaps(network)[-1] == 10
    network.add("south")
    network.advance(10)
    assert north.is_up
    network.dialled.clear()
    at = network.now
    network.lose("north", "south")
    network.advance(1.1)
    assert network.dialled[0][0] - at == pytest.approx(1)


def test_one_number_is_always_the_wait(network: Network, north: Node) -> None:
    north.bridge("# out", restart_timeout="3")
    network.advance(13)
    assert dial_gaps(network) == [3, 3, 3, 3]


def test_each_reason_is_told_once(network: Network, north: Node) -> None:
    north.bridge("# out", restart_timeout="1")
    network.advance(10)
    assert north.events == [BridgeNotUp("b", "south", "connection refused")]
    network.unreachable.add("south")
    network.advance(5)
    assert [str(event) for event in north.events[1:]] == ["bridge b cannot connect to south: nobody answers"]
    network.unreachable.clear()
    network.add("south")
    network.advance(2)
    network.lose("north", "south")
    assert isinstance(north.events[2], BridgeUp)
    assert isinstance(north.events[3], BridgeDown)


@pytest.mark.parametrize("event", [BridgeUp("own", "south", "s"), BridgeDown("own", "south", "it ended")])
def test_a_bridge_of_the_nodes_own_is_told_by_the_broker_that_it_leads_to(
    event: BridgeUp | BridgeDown,
) -> None:
    event.follows = True
    assert str(event).startswith("the link to the broker at south (--broker) is ")
    assert "own" not in str(event).replace("down", "")


# Start types


def test_a_lazy_bridge_waits_for_its_threshold_and_leaves_when_idle(network: Network, north: Node) -> None:
    south = network.add("south")
    south.listen()
    bridge = north.bridge("# out 1", start_type="lazy", threshold=3, idle_timeout=10)
    assert north.state() is BridgePhase.IDLE
    for number in range(2):
        north.publish("a", b"%d" % number)
    network.advance(30)
    assert north.state() is BridgePhase.IDLE
    assert not network.dialled
    north.publish("a", b"2")
    network.advance(0.5)
    assert north.state() is BridgePhase.UP
    assert south.take_heard() == [b"0", b"1", b"2"]
    network.advance(8)
    north.publish("a", b"3")  # It is up: no threshold now, and the time begins anew.
    assert south.take_heard() == [b"3"]
    network.advance(9)
    assert north.state() is BridgePhase.UP
    network.advance(2)
    assert north.state() is BridgePhase.IDLE
    assert bridge.reason == "nothing to do"
    assert not network.wires


def test_what_comes_in_keeps_a_lazy_bridge(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("# both 1", start_type="lazy", threshold=1, idle_timeout=5)
    north.publish("a")
    network.advance(1)
    for _ in range(4):
        network.advance(4)
        south.publish("b")
    assert north.state() is BridgePhase.UP


def test_a_lazy_bridge_goes_on_trying_while_it_is_needed(network: Network, north: Node) -> None:
    north.bridge("# out 1", start_type="lazy", threshold=1, restart_timeout="1")
    north.publish("a")
    network.advance(3.5)
    assert len(network.dialled) >= 3
    assert north.state() is BridgePhase.WAITING


def test_once_is_once(network: Network, north: Node) -> None:
    north.bridge("# out", start_type="once", restart_timeout="1")
    network.advance(3.5)
    assert len(network.dialled) == 4, "it tries until it was up"
    network.add("south")
    network.advance(1)
    assert north.state() is BridgePhase.UP
    network.lose("north", "south")
    network.advance(60)
    assert north.state() is BridgePhase.STOPPED
    assert len(network.dialled) == 5


# Notifications


def state_topic(client_id: str = "north.b") -> str:
    return f"$SYS/broker/connection/{client_id}/state"


def retained(node: Node, topic: str) -> bytes | None:
    message = node.broker.retained.get(topic)
    return None if message is None else message.payload


def test_both_sides_are_told(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("# out")
    assert retained(north, state_topic()) == retained(south, state_topic()) == b"1"
    north.listen(state_topic())
    north.take_heard()
    north.delete()
    network.advance(1)
    assert retained(south, state_topic()) == b"0"
    assert north.take_heard() == [b"0", b""], "here it leaves nothing behind"
    assert retained(north, state_topic()) is None


def test_the_will_tells_the_far_side(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("# out", restart_timeout="5")
    network.lose("north", "south")
    assert retained(south, state_topic()) == b"0"
    assert retained(north, state_topic()) == b"0"
    network.advance(6)
    assert retained(south, state_topic()) == b"1"


def test_notifications_local_only(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("a out", notifications_local_only=True, notification_topic="bridges/b")
    assert retained(north, "bridges/b") == b"1"
    network.lose("north", "south")
    assert retained(north, "bridges/b") == b"0"
    assert retained(south, "bridges/b") is None


def test_no_notifications(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("# out", notifications=False)
    network.lose("north", "south")
    assert retained(north, state_topic()) is None
    assert retained(south, state_topic()) is None


def test_the_broker_that_is_left_for_the_first_is_told(network: Network, north: Node) -> None:
    second = network.add("second")
    north.bridge("# out", address="first second")
    first = network.add("first")
    network.advance(FIRST_ADDRESS_S + 1)
    assert retained(second, state_topic()) == b"0"
    assert retained(first, state_topic()) == b"1"


# CONNECT and CONNACK


def test_what_connect_says(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge(
        "# out",
        address="far",
        remote_username="me",
        remote_password="open sesame",
        keepalive_interval=30,
        queue_age=600,
    )
    connect = scripts[0].take_connect()
    assert (connect.client_id, connect.username, connect.password) == ("north.b", "me", b"open sesame")
    assert (connect.keep_alive, connect.clean_start, connect.protocol_version) == (30, False, MQTT_5)
    assert connect.properties["session_expiry_interval"] == 600
    named, bridge, (nonce, _), (proof, _) = connect.properties["user_property"]
    assert (named, bridge) == (("hedgerow-node", "north"), ("hedgerow-bridge", "b"))
    assert (nonce, proof) == ("hedgerow-nonce", "hedgerow-proof")
    assert connect.will is not None
    assert (connect.will.topic, connect.will.payload, connect.will.retain) == (state_topic(), b"0", True)


@pytest.mark.parametrize("connack", [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"])
def test_a_broker_without_mqtt_5_gets_3_1_1_at_once(network: Network, north: Node, connack: bytes) -> None:
    network.add("second")
    scripts = network.script("far")
    north.bridge("a both 1", address="far second")
    scripts[0].take_connect()
    scripts[0].send_bytes(connack)
    assert dialled_hosts(network) == ["far", "far"], "the same one, not the next"
    assert network.now == network.dialled[0][0]
    connect = scripts[1].take_connect()
    assert (connect.protocol_version, connect.is_bridge) == (MQTT_3_1_1, True)
    scripts[1].version = MQTT_3_1_1
    scripts[1].send(Connack())
    scripts[1].take()
    assert scripts[1].link is not None


@pytest.mark.parametrize(
    ("word", "version"), [("mqttv31", MQTT_3_1), ("mqttv311", MQTT_3_1_1), ("mqttv50", MQTT_5)]
)
def test_a_version_that_is_named_is_the_only_one(
    network: Network, north: Node, word: str, version: int
) -> None:
    scripts = network.script("far")
    north.bridge("a out", address="far", bridge_protocol_version=word, restart_timeout="1")
    assert scripts[0].take_connect().protocol_version == version
    scripts[0].send_bytes(b"\x20\x02\x00\x01")
    network.advance(1.1)
    assert scripts[1].take_connect().protocol_version == version


def test_a_refusal_is_told_in_words_and_waited_for(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = north.bridge("a out", address="far", restart_timeout="2")
    scripts[0].take_connect()
    scripts[0].send(Connack(False, Reason.BAD_USER_NAME_OR_PASSWORD, {"reason_string": "who are you?"}))
    assert north.state() is BridgePhase.WAITING
    assert bridge.reason == "the far broker refused the connection: who are you?"
    assert scripts[0].is_lost
    network.advance(1.9)
    assert len(scripts) == 1
    network.advance(0.2)
    assert len(scripts) == 2


def test_no_connack_in_time(network: Network, north: Node) -> None:
    network.script("far")
    bridge = north.bridge("a out", address="far")
    network.advance(CONNACK_S - 0.1)
    assert north.state() is BridgePhase.CONNECTING
    network.advance(0.2)
    assert north.state() is BridgePhase.WAITING
    assert bridge.reason == "no CONNACK in 5 s"


def test_a_bridge_to_oneself_stops(network: Network, north: Node) -> None:
    """By a name that nobody could know before: the CONNACK tells."""
    network.nodes["alias"] = north
    bridge = north.bridge("# both 1", address="alias")
    del network.nodes["alias"]
    assert north.state() is BridgePhase.STOPPED
    assert bridge.reason == "the far broker is this node itself"
    network.advance(60)
    assert len(network.dialled) == 1
    assert not network.wires


def test_a_subscription_that_is_refused_is_told(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = north.bridge("a/# in 1", "b out 1", address="far")
    far = scripts[0]
    far.take_connect()
    far.send(Connack(properties={"user_property": (("hedgerow-node", "far"),)}))
    (subscribe,) = [packet for packet in far.take() if isinstance(packet, Subscribe)]
    far.send(Suback(subscribe.packet_id, [Reason.NOT_AUTHORIZED]))
    assert north.state() is BridgePhase.UP
    assert bridge.reason == "the far broker does not let us subscribe: a/#"
    north.publish("b", b"still goes out")
    assert [each.payload for each in far.take() if isinstance(each, Publish) and each.topic == "b"] == [
        b"still goes out"
    ]


# States


def test_a_state_tells_all(network: Network, north: Node) -> None:
    south = network.add("south")
    north.bridge("# both 1", "x/# out 2 l/ r/")
    north.publish("a", b"12345", 0)
    south.publish("b", b"")
    network.advance(6)
    state = north.states["b"]
    assert (state["state"], state["address"], state["far"], state["protocol"]) == ("up", "south", "south", 5)
    assert state["topics"] == ["# both 1", "x/# out 2 l/ r/"]
    assert state["out"]["relayed"] == state["in"]["relayed"] == 1
    network.cut("north", "south")
    network.advance(2.1)
    north.publish("a", b"12345")
    network.advance(6)
    state = north.states["b"]
    assert (state["state"], state["far"], state["protocol"]) == ("waiting", None, None)
    assert (state["queued"], state["queued_bytes"], state["out"]["waiting"]) == (1, 6, 1)
    north.delete()
    assert north.states == {}
