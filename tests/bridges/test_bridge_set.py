"""Bridges created, replaced and deleted, and what waits for one handed to another."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hedgerow.bridges.bridge import DRAIN_S, BridgePhase
from hedgerow.bridges.bridge_set import MAX_LEFT
from hedgerow.bridges.events import BridgeDown, QueueTaken
from hedgerow.bridges.roles import BridgeRole
from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import Connack, Connect, Disconnect, Packet, Pingresp, Puback, Publish, Unsubscribe
from tests.bridges.harness import Network, Node, Script, make_section

FAR = (("hedgerow-node", "far"),)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


@pytest.fixture
def south(network: Network) -> Node:
    node = network.add("south")
    node.listen()
    return node


# Commands


def test_created_unchanged_replaced(network: Network, north: Node, south: Node) -> None:
    def create(**options: Any) -> str:
        outcome = north.bridges.create(make_section("a/# out 1", **options), network.now)
        network.settle()
        return outcome

    assert create() == "created"
    (wire,) = network.wires
    assert create(replace=True) == "unchanged"
    assert create(replace=True) == "unchanged"
    assert network.wires == [wire], "the running bridge is left as it is"
    assert create(replace=True, keepalive_interval=30) == "replaced"
    assert network.wires != [wire]
    assert north.is_up


def test_the_log_says_why_a_bridge_is_down(network: Network, north: Node, south: Node) -> None:
    north.create(make_section("# both 1"))
    north.create(make_section("# both 1", replace=True, keepalive_interval=30))
    network.advance(1)
    north.delete()
    network.advance(DRAIN_S)
    down = [event for event in north.events if isinstance(event, BridgeDown)]
    assert [event.reason for event in down] == ["another takes its place", "the bridge is deleted"]
    assert [event.level for event in down] == [logging.INFO] * 2, "what somebody asked for is no warning"


def test_a_bridge_that_is_lost_while_it_is_deleted_is_a_warning(network: Network, north: Node) -> None:
    far = network.script("far")
    north.bridge("# out 1", address="far")
    far[0].accept(Connack(properties={"user_property": FAR}))
    north.publish("a", b"waits for its PUBACK", 1)
    north.delete()
    network.lose("north", "far")
    [down] = [event for event in north.events if isinstance(event, BridgeDown)]
    assert down.level == logging.WARNING


def test_a_bridge_is_a_link_at_both_of_its_ends(network: Network, north: Node) -> None:
    south = network.add("south", durable=True)
    north.bridge("a out 1")
    for broker in (north.broker, south.broker):
        assert (broker.client_count, broker.link_count) == (0, 1)
    [accepted] = south.broker.sessions.values()
    assert accepted.role.is_link
    south.crash()
    restored = south.broker.sessions[accepted.client_id]
    assert restored.connection is None
    assert restored.role.is_link, "before it has come back, too"


def test_a_name_in_use_is_refused_and_nothing_changes(network: Network, north: Node, south: Node) -> None:
    bridge = north.bridge("a out 1")
    with pytest.raises(ConfigError, match="there is a bridge b already"):
        north.bridges.create(make_section("b out 1"), network.now)
    assert north.find() is bridge
    assert bridge.state is BridgePhase.UP


def test_an_unknown_bridge_cannot_be_deleted(network: Network, north: Node) -> None:
    with pytest.raises(ConfigError, match="there is no bridge b"):
        north.bridges.delete("b", network.now)


def test_an_address_of_this_node_is_refused(network: Network, north: Node) -> None:
    with pytest.raises(ConfigError, match="north:1884 is this node itself"):
        north.bridge("a out", address="south north:1884")
    assert len(north.bridges) == 0
    assert not north.broker.sessions


def test_the_session_of_a_client_is_not_taken(network: Network, north: Node) -> None:
    north.connect("mine", kept=True)
    with pytest.raises(ConfigError, match="the local client identifier mine is in use"):
        north.bridge("a out", local_clientid="mine")
    north.bridge("a out", name="one", local_clientid="other")
    with pytest.raises(ConfigError, match="in use"):
        north.bridge("a out", name="two", local_clientid="other")


def test_no_client_takes_the_session_of_a_bridge(network: Network, north: Node, south: Node) -> None:
    north.bridge("# out 1")
    client = north.open()
    client.send(Connect("local.north.b"))
    assert client.closed
    assert north.is_up


def test_one_that_stopped_can_be_started_again(network: Network, north: Node, south: Node) -> None:
    bridge = north.bridge("# out 1", start_type="once")
    network.lose("north", "south")
    assert bridge.state is BridgePhase.STOPPED
    section = make_section("# out 1", start_type="once", replace=True)
    assert north.bridges.create(section, network.now) == "replaced"
    network.settle()
    assert north.is_up


# Replacing


def test_replacing_keeps_the_queue(network: Network, north: Node) -> None:
    north.bridge("# out 1")
    north.publish("a", b"waits")
    north.create(make_section("# out 1", address="west", replace=True))
    west = network.add("west")
    west.listen()
    network.advance(10)
    assert west.take_heard() == [b"waits"]
    assert north.find().ledger.relayed == 1


def test_lines_that_are_gone_bring_nothing_and_take_nothing(
    network: Network, north: Node, south: Node
) -> None:
    north.listen()
    north.bridge("a both 1", "b both 1")
    north.create(make_section("b both 1", "c both 1", replace=True))
    for topic in "abc":
        north.publish(topic, b"out")
        south.publish(topic, b"in")
    assert [each.topic for each in south.heard if each.payload == b"out"] == ["b", "c"]
    assert [each.topic for each in north.heard if each.payload == b"in"] == ["b", "c"]
    assert north.find().inbound.refused == 0, "the far broker no longer sends them"


def test_replacing_unsubscribes_only_from_what_is_gone(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("a in 1", "b in 1", address="far")
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    north.create(make_section("b in 1", address="far", replace=True))
    unsubscribed = [each.topic_filters for each in scripts[0].take() if isinstance(each, Unsubscribe)]
    assert unsubscribed == [["a"]], "nothing is missed of what is to come on"


def test_another_client_identifier_leaves_nothing_behind(network: Network, north: Node, south: Node) -> None:
    network.unreachable.add("south")
    north.bridge("# out 1")
    north.publish("a", b"waits")
    north.create(make_section("# out 1", remote_clientid="other", replace=True))
    network.unreachable.clear()
    network.advance(20)
    assert south.take_heard() == [b"waits"]
    assert list(north.broker.sessions) == ["local.other"]


# Deleting


def test_a_deleted_bridge_drains_first(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("# out 1", address="far", notifications=False)
    far = scripts[0]
    far.accept(Connack(properties={"user_property": FAR, "receive_maximum": 1}))
    north.publish("a", b"1")
    north.publish("a", b"2")
    north.delete()
    north.publish("a", b"not any more")
    network.advance(0.5)
    payloads = []
    for _ in range(2):
        (sent,) = [each for each in far.take() if isinstance(each, Publish)]
        payloads.append(sent.payload)
        far.send(Puback(sent.packet_id))
    assert payloads == [b"1", b"2"]
    assert not far.is_lost
    network.advance(0.5)
    (last,) = [each for each in far.take() if isinstance(each, Disconnect)]
    assert last.properties == {"session_expiry_interval": 0}, "the far broker need keep nothing"
    assert far.is_lost
    assert not north.broker.sessions


def test_what_is_under_way_from_the_far_side_still_arrives(
    network: Network, north: Node, south: Node
) -> None:
    north.listen()
    north.bridge("# in 1")
    network.flows = False
    south.publish("a", b"under way")
    north.delete()
    network.flows = True
    network.settle()
    assert north.take_heard() == [b"under way"]
    network.advance(1)
    assert not network.wires


def test_a_far_broker_that_acknowledges_nothing_is_not_waited_for(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("# out 1", address="far", probe_misses=100)
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    north.publish("a", b"1")
    north.delete()
    network.advance(DRAIN_S - 0.5)
    assert not scripts[0].is_lost
    network.advance(1)
    assert scripts[0].is_lost


def test_a_link_that_opens_after_the_deletion_is_closed(network: Network, north: Node) -> None:
    """Else a bridge that nobody knows would be up, on the session of the next of its name."""
    scripts = network.script("far")
    bridge = north.bridge("# out 1", address="first")
    address = bridge.section.addresses[0]
    north.delete()
    connection = bridge.open(address, network.now)
    assert connection.closing
    assert connection.take_output() == b""
    assert bridge.connection is None
    assert not scripts


def test_deleting_while_connecting(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("# both 1", address="far")
    north.delete()
    assert scripts[0].is_lost
    assert not north.broker.sessions
    assert not north.broker.connections


def test_the_same_name_again_while_the_old_one_drains(network: Network, north: Node, south: Node) -> None:
    north.bridge("# out 1")
    network.flows = False
    north.publish("a", b"in flight")
    north.delete()
    network.flows = True
    north.bridge("# out 1")
    north.publish("a", b"later")
    network.advance(2)
    assert south.take_heard() == [b"in flight", b"later"]
    assert len(network.wires) == 1


# What waits goes another way


def test_what_a_deleted_bridge_leaves_goes_by_one_that_is_up(
    network: Network, north: Node, south: Node
) -> None:
    north.bridge("# out 1", name="dead", address="west")
    north.publish("a", b"1")
    north.publish("b", b"2")
    north.bridge("# out 1", name="other")
    south.heard.clear()
    north.publish("c", b"3")
    north.delete("dead")
    assert [each.payload for each in south.heard] == [b"3"], "it had the rest already"
    assert list(north.broker.sessions) == ["local.north.other"]


def test_what_waits_for_an_absent_broker_goes_along_with_one_that_comes_up(
    network: Network, north: Node, south: Node
) -> None:
    north.bridge("# out 1", name="dead", address="west")
    north.publish("a", b"1")
    north.bridge("# out 1", name="other")
    assert south.take_heard() == [b"1"]
    assert QueueTaken("other", 1, "local.north.dead") in north.events
    west = network.add("west")
    west.listen()
    network.advance(40)
    assert west.take_heard() == [b"1"], "and is kept for the one that it waited for"


def test_it_stays_until_one_comes(network: Network, north: Node, south: Node) -> None:
    north.bridge("# out 1", name="dead", address="west")
    north.publish("a", b"1")
    north.delete("dead")
    network.advance(100)
    north.bridge("# out 1", name="other")
    assert south.take_heard() == [b"1"]
    assert list(north.broker.sessions) == ["local.north.other"]


def test_what_is_left_grows_old(network: Network, north: Node) -> None:
    """In flight or not, with a bridge beside it or without."""
    network.add("west")
    north.bridge("# out 1", name="dead", address="west", queue_age=60, probe_misses=1)
    network.cut("north", "west")
    north.publish("a", b"in flight")
    network.advance(2)
    north.publish("a", b"queued")
    north.delete("dead")
    network.advance(30)
    assert north.broker.sessions["local.north.dead"].waiting_count == 2
    network.advance(40)
    assert not north.broker.sessions


def test_only_what_the_other_bridge_carries_goes_with_it(network: Network, north: Node, south: Node) -> None:
    north.bridge("# out 1", name="dead", address="west")
    north.publish("a", b"1")
    north.publish("b", b"2")
    north.bridge("a out 1", name="other")
    north.delete("dead")
    assert south.take_heard() == [b"1"]
    north.bridge("b out 1", name="third")
    assert south.take_heard() == [b"2"]
    assert "local.north.dead" not in north.broker.sessions


def receive(far: Script, seen: list[bytes], packets: list[Packet] | None = None) -> None:
    """As a foreign broker that acknowledges what comes."""
    for packet in far.take() if packets is None else packets:
        if isinstance(packet, Publish) and packet.topic == "a":
            seen.append(packet.payload)
            far.send(Puback(packet.packet_id))


def join_foreign(network: Network, far: Script, seen: list[bytes]) -> None:
    receive(far, seen, far.accept())
    network.advance(0.6)  # Nobody else is there.
    far.send(Pingresp())
    receive(far, seen)


def test_a_queue_is_taken_once(network: Network, north: Node) -> None:
    """A foreign broker does not look at ids: what came along before would be there twice."""
    scripts = network.script("far")
    north.bridge("# out 1", name="dead", address="west")
    north.publish("a", b"1")
    north.bridge("# out 1", address="far", restart_timeout="1", notifications=False)
    seen: list[bytes] = []
    for attempt in range(3):
        join_foreign(network, scripts[attempt], seen)
        north.publish("a", b"live %d" % attempt)
        receive(scripts[attempt], seen)
        network.lose("north", "far")
        network.advance(1.1)
    assert seen == [b"1", b"live 0", b"live 1", b"live 2"]


def test_a_bridge_made_anew_brings_a_foreign_broker_nothing_twice(network: Network, north: Node) -> None:
    """Though a new one gets what flowed a moment ago."""
    scripts = network.script("far")
    seen: list[bytes] = []
    for attempt in range(3):
        north.bridge("# out 1", address="far", notifications=False)
        far = scripts[attempt]
        join_foreign(network, far, seen)
        north.publish("a", b"%d" % attempt)
        receive(far, seen)
        north.delete()
        network.advance(0.6)
    assert seen == [b"0", b"1", b"2"]


def test_but_what_it_was_not_known_to_have_it_gets(network: Network, north: Node) -> None:
    scripts = network.script("far")
    seen: list[bytes] = []
    north.bridge("# out 1", address="far", notifications=False)
    join_foreign(network, scripts[0], seen)
    network.cut("north", "far")
    north.publish("a", b"in flight")
    network.advance(2.1)
    north.delete()
    network.unreachable.clear()
    north.bridge("# out 1", address="far", notifications=False)
    join_foreign(network, scripts[1], seen)
    assert seen == [b"in flight"]


def test_what_waits_for_an_absent_accepted_bridge_goes_along(
    network: Network, north: Node, south: Node
) -> None:
    west = network.add("west")
    west.bridge("# both 1", address="north")
    network.cut("west", "north")
    network.lose("west", "north")
    north.publish("a", b"for the west")
    north.bridge("# both 1")
    assert south.take_heard() == [b"for the west"]


def test_what_waits_for_a_bridge_whose_death_is_noticed_late(
    network: Network, north: Node, south: Node
) -> None:
    """Another was made to take its place, and came up before the probes were missed."""
    network.add("west")
    north.bridge("# out 1", name="dead", address="west", probe_interval=10)
    network.cut("north", "west")
    north.publish("a", b"in flight")
    network.advance(15)  # It is not what flowed a moment ago.
    north.bridge("# out 1", name="other")
    assert south.take_heard() == []
    network.advance(30)
    assert south.take_heard() == [b"in flight"]


def test_nothing_goes_back_to_where_it_began(network: Network, north: Node, south: Node) -> None:
    north.bridge("# both 1", name="dead", address="west")
    north.bridge("# both 1", name="other", restart_timeout="1")
    south.publish("a", b"from the south")
    south.heard.clear()
    network.lose("north", "south")
    network.advance(1.1)
    assert north.is_up is False
    assert south.take_heard() == []
    assert north.find("other").ledger.relayed == 0


def test_names_without_end_leave_no_sessions_without_end(network: Network, north: Node) -> None:
    for number in range(MAX_LEFT + 7):
        north.bridge("# out 1", name=f"n{number}", address="west")
        north.publish("a", b"%d" % number)
        north.delete(f"n{number}")
    assert len(north.broker.sessions) == MAX_LEFT
    south = network.add("south")
    south.listen()
    north.bridge("# out 1")
    assert set(south.take_heard()) == {b"%d" % number for number in range(7, MAX_LEFT + 7)}


# States


def test_a_state_is_told_once_and_taken_away(network: Network, north: Node, south: Node) -> None:
    north.bridge("# out 1")
    assert north.states["b"]["state"] == "up"
    assert north.bridges.changed(network.now) == []
    north.publish("a")
    assert north.bridges.changed(network.now) == [], "counters can wait"
    network.advance(5.1)
    assert north.states["b"]["out"]["relayed"] == 1
    north.bridges.delete("b", network.now)
    assert north.bridges.changed(network.now) == [("b", None)]


def test_deleted_and_created_in_one_breath_is_not_taken_away(network: Network, north: Node) -> None:
    north.bridge("# out 1")
    north.bridges.delete("b", network.now)
    north.bridges.create(make_section("# out 1"), network.now)
    ((name, state),) = north.bridges.changed(network.now)
    assert (name, state is None) == ("b", False)


def test_stopping_the_node_keeps_what_waits(network: Network, south: Node) -> None:
    north = network.add("north", durable=True)
    north.bridge("# out 1")
    network.cut("north", "south")
    north.publish("a", b"waits")
    north.bridges.close(network.now)
    north.settle()
    network.mend("north", "south")
    north.crash()
    network.advance(1)
    assert south.take_heard() == [b"waits"]


def test_what_a_deleted_bridge_left_is_known_after_a_restart(network: Network) -> None:
    north, south = network.add("north", durable=True), network.add("south")
    south.listen()
    network.cut("north", "south")
    north.bridge("a/# out 1")
    north.publish("a/1", b"kept")
    north.delete()
    north.crash()
    north.publish("a/2", b"for nobody")
    (session,) = (each for each in north.broker.sessions.values() if each.role.name == BridgeRole.name)
    assert session.waiting_count == 1, "nobody listens for it any more"
    network.mend("north", "south")
    north.bridge("a/# out 1", name="other")
    assert south.take_heard() == [b"kept"]
    assert session.client_id not in north.broker.sessions
