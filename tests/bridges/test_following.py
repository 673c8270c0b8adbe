"""A bridge whose filters change while it runs: what it subscribes to, on both sides, and what it carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.bridges import following_connection
from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.bridge import BridgePhase
from hedgerow.bridges.far_connection import OWN_FILTERS
from hedgerow.bridges.far_filters import CONTROL_IDENTIFIER
from hedgerow.bridges.following import MAX_SHOWN, FollowingBridge
from hedgerow.bridges.section import Backoff, FarAddress, Section, read_section
from hedgerow.bridges.stamp_codec import Presence, decode_presence, encode_presence
from hedgerow.errors import ConfigError
from hedgerow.message import Message, Properties
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import BRIDGE, Network, Node, Script, opened, sealed

FAR = Connack(properties={"user_property": (("hedgerow-node", "far"),)})
CONTROL: Properties = {"subscription_identifier": (CONTROL_IDENTIFIER,)}
SECTION = Section(
    name=BRIDGE,
    addresses=(FarAddress("far"),),
    topics=(),
    follows=True,
    notifications=False,
    restart_timeout=Backoff(1.0, 1.0),
)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


def follow(node: Node, section: Section = SECTION) -> FollowingBridge:
    bridge = node.create(section)
    assert isinstance(bridge, FollowingBridge)
    return bridge


def answer(script: Script, code: int | None = None) -> list[Packet]:
    """Grant what is subscribed, or not, until nothing more comes; all that came."""
    came: list[Packet] = []
    while packets := take(script):
        came += packets
        for packet in packets:
            if isinstance(packet, Subscribe):
                codes = [each.qos if code is None else code for each in packet.subscriptions]
                script.send(Suback(packet.packet_id, codes))
            elif isinstance(packet, Unsubscribe):
                script.send(Unsuback(packet.packet_id, [0] * len(packet.topic_filters)))
            elif isinstance(packet, Publish) and packet.qos:
                script.send(Puback(packet.packet_id))
            elif isinstance(packet, Pingreq):
                script.send(Pingresp())
    return came


def take(script: Script) -> list[Packet]:
    script.network.settle()
    return script.take()


def wait(script: Script, seconds: int) -> None:
    """The far broker answers probes meanwhile."""
    for _ in range(2 * seconds):
        script.network.advance(0.5)
        answer(script)


def connect(network: Network, script: Script, connack: Connack | None = None) -> list[Packet]:
    script.take_connect()
    script.send(connack or Connack())
    came = answer(script)
    network.advance(0.6)  # for its rank at a foreign broker
    return came + answer(script)


def join(network: Network, node: Node, connack: Connack | None = None) -> tuple[FollowingBridge, Script]:
    """A bridge that is up, without filters."""
    scripts = network.script("far")
    bridge = follow(node)
    connect(network, scripts[0], connack)
    assert bridge.state is BridgePhase.UP
    return bridge, scripts[0]


def subscribed(packets: list[Packet]) -> list[str]:
    found = [each for packet in packets if isinstance(packet, Subscribe) for each in packet.subscriptions]
    return [each.topic_filter for each in found if each.topic_filter not in OWN_FILTERS]


def identifier_of(bridge: FollowingBridge, topic_filter: str) -> int:
    found = bridge.far_filters.find(topic_filter)
    assert found is not None
    return found.identifier


def copy(bridge: FollowingBridge, topic_filter: str, topic: str, payload: bytes, **fields: object) -> Publish:
    """As Mosquitto sends a message for one of several subscriptions."""
    properties = {"subscription_identifier": (identifier_of(bridge, topic_filter),)}
    return Publish(topic, payload, properties=properties, **fields)  # type: ignore[arg-type]


def publications(packets: list[Packet]) -> list[tuple[str, bytes, int, bool]]:
    found = [each for each in packets if isinstance(each, Publish) and not each.topic.startswith("hedgerow/")]
    return [(each.topic, each.payload, each.qos, each.retain) for each in found]


# The section


def test_no_text_says_that_a_bridge_follows() -> None:
    with pytest.raises(ConfigError, match="follows"):
        read_section("connection b\naddress far\ntopic #\nfollows true\n")
    with pytest.raises(ConfigError, match="follows"):
        read_section('{"connection": "b", "address": "far", "topic": "#", "follows": true}')
    with pytest.raises(ConfigError, match="no topic"):
        read_section("connection b\naddress far\n")
    assert "follows" not in SECTION.to_text()


def test_one_that_follows_has_no_topic_lines() -> None:
    topics = read_section("connection b\naddress far\ntopic #\n").topics
    with pytest.raises(ConfigError, match="while it runs"):
        replace(SECTION, topics=topics)
    with pytest.raises(ConfigError, match="0 topics"):
        replace(SECTION, follows=False)


# Out


def test_what_is_listened_to_goes_out_until_it_is_not(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.publish("a/b", b"too early")
    assert bridge.listen("a/#")
    north.publish("a/b", b"1", 1)
    north.publish("a/c", b"0", 0)
    north.publish("b", b"other")
    assert publications(answer(far)) == [("a/b", b"1", 1, False), ("a/c", b"0", 0, False)]
    bridge.stop_listening_to("a/#")
    bridge.stop_listening_to("never/listened/to")
    north.publish("a/b", b"too late")
    assert publications(answer(far)) == []
    assert bridge.listened == []


def test_a_filter_that_is_new_brings_what_is_retained(network: Network, north: Node) -> None:
    north.publish("a/1", b"last", retain=True)
    north.publish("b/1", b"last", retain=True)
    bridge, far = join(network, north)
    bridge.listen("a/#")
    network.settle()
    assert publications(answer(far)) == [("a/1", b"last", 1, True)]
    bridge.listen("a/#")
    network.settle()
    assert publications(answer(far)) == []


def test_one_that_was_new_while_there_was_no_link_brings_it_too(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    bridge.listen("a/#")
    north.publish("a/1", b"a", retain=True)
    north.publish("b/1", b"b", retain=True)
    answer(far)
    scripts = network.script("far")
    network.lose("north", "far")
    bridge.listen("b/#")
    bridge.listen("c/#")
    bridge.stop_listening_to("c/#")
    network.advance(1.0)
    came = connect(network, scripts[0], Connack(session_present=True))
    assert publications(came) == [("b/1", b"b", 1, True)]


def test_what_a_wider_filter_has_brought_does_not_come_again(network: Network, north: Node) -> None:
    """The clients there would hear it twice."""
    bridge, far = join(network, north)
    bridge.listen("#")
    north.publish("a/1", b"1", retain=True)
    assert publications(answer(far)) == [("a/1", b"1", 1, True)]
    bridge.listen("a/#")
    bridge.stop_listening_to("#")
    north.publish("a/2", b"2", retain=True)
    assert publications(answer(far)) == [("a/2", b"2", 1, True)]
    bridge.listen("a/+", qos=1)
    assert publications(answer(far)) == []


def test_a_broker_that_knows_nothing_is_told_each_value_once(network: Network, north: Node) -> None:
    north.publish("a/1", b"1", retain=True)
    north.publish("b", b"2", retain=True)
    scripts = network.script("far")
    bridge = follow(north)
    for topic_filter in ("a/+", "#", "a/#", "b"):
        bridge.listen(topic_filter)
    told = publications(connect(network, scripts[0]))
    assert sorted(told) == [("a/1", b"1", 1, True), ("b", b"2", 1, True)]


def test_what_just_went_by_goes_to_a_filter_that_is_new(network: Network, north: Node) -> None:
    network.add("south")
    north.bridge("# both 1", name="other", address="south")
    bridge, far = join(network, north)
    north.publish("a/b", b"1")
    assert publications(answer(far)) == []
    bridge.listen("a/#")
    network.settle()
    assert publications(answer(far)) == [("a/b", b"1", 1, False)]


@pytest.mark.parametrize("topic", ["$x/y", "hedgerow/bridge/x", "hedgerow/federation/x"])
def test_what_brokers_tell_each_other_neither_leaves_nor_enters(
    network: Network, north: Node, topic: str
) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    assert not bridge.listen(topic)
    assert not bridge.ask_for(topic)
    assert bridge.listen("#")
    assert bridge.ask_for("#")
    answer(far)
    north.publish(topic, b"1")
    far.send(copy(bridge, "#", topic, b"1"))
    far.send(copy(bridge, "#", topic, b"2", qos=1, packet_id=7))
    came = answer(far)
    assert not [each for each in came if isinstance(each, Publish) and each.topic == topic]
    assert north.take_heard() == [b"1"] * (not topic.startswith("$"))


def test_filters_are_kept_over_a_restart(network: Network) -> None:
    north = network.add("north", durable=True)
    scripts = network.script("far")
    bridge = follow(north)
    connect(network, scripts[0])
    bridge.listen("a/#")
    bridge.listen("b", 0)
    bridge.stop_listening_to("b")
    network.settle()
    north.crash()
    bridge = north.find()  # type: ignore[assignment]
    assert bridge.listened == ["a/#"]
    north.publish("a/b", b"while away")
    came = connect(network, scripts[-1], Connack(session_present=True))
    assert publications(came) == [("a/b", b"while away", 1, False)]


# In


def test_what_is_asked_for_comes_in_until_it_is_not(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    assert bridge.ask_for("a/#", 1)
    (packet,) = [each for each in answer(far) if isinstance(each, Subscribe)]
    (subscription,) = packet.subscriptions
    assert (subscription.topic_filter, subscription.qos, subscription.retain_handling) == ("a/#", 1, 1)
    assert subscription.no_local
    assert subscription.retain_as_published
    assert packet.properties["subscription_identifier"] == (identifier_of(bridge, "a/#"),)
    bridge.ask_for("a/#", 1)
    assert subscribed(answer(far)) == []
    far.send(copy(bridge, "a/#", "a/b", b"0"), copy(bridge, "a/#", "a/b", b"1", qos=1, packet_id=1))
    far.send(Publish("b", b"not asked for"))
    assert north.take_heard() == [b"0", b"1"]
    bridge.no_longer_ask_for("a/#")
    assert [each.topic_filters for each in answer(far) if isinstance(each, Unsubscribe)] == [["a/#"]]
    far.send(Publish("a/b", b"too late"))
    assert north.take_heard() == []


def test_a_copy_for_each_filter_becomes_one_publication(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    for topic_filter in ("a/#", "+/b", "a/b"):
        bridge.ask_for(topic_filter)
    answer(far)
    for payload in (b"1", b"1", b"2"):
        for each in ("+/b", "a/#", "a/b"):
            far.send(copy(bridge, each, "a/b", payload))
        for each in ("a/b", "+/b", "a/#"):
            far.send(copy(bridge, each, "a/b", payload + b" at 1", qos=1, packet_id=1 + len(each)))
    far.send(copy(bridge, "+/b", "x/b", b"by one"))
    expected = [b"1", b"1 at 1", b"1", b"1 at 1", b"2", b"2 at 1", b"by one"]
    assert north.take_heard() == expected
    assert bridge.inbound.published - bridge.inbound.duplicates == len(expected)


def test_a_wider_filter_does_not_bring_retained_values_again(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    bridge.ask_for("a/#")
    answer(far)
    far.send(copy(bridge, "a/#", "a/b", b"last", retain=True))
    bridge.ask_for("#")
    answer(far)
    far.send(copy(bridge, "#", "a/b", b"last", retain=True), copy(bridge, "#", "c", b"c", retain=True))
    assert north.take_heard() == [b"last", b"c"]
    bridge.no_longer_ask_for("a/#")
    answer(far)
    bridge.ask_for("a/#")
    answer(far)
    far.send(copy(bridge, "a/#", "a/b", b"last", retain=True))
    assert north.take_heard() == []
    # Published again it is another message, though it is alike.
    wait(far, 2)
    far.send(copy(bridge, "#", "a/b", b"last", retain=True), copy(bridge, "a/#", "a/b", b"last", retain=True))
    assert north.take_heard() == [b"last"]


def test_a_value_that_was_told_before_is_known_when_it_is_asked_for_again(
    network: Network, north: Node
) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    for _ in range(2):
        bridge.ask_for("a/#")
        answer(far)
        far.send(copy(bridge, "a/#", "a/b", b"last", retain=True))
        bridge.no_longer_ask_for("a/#")
        answer(far)
        wait(far, 20)
    assert north.take_heard() == [b"last"]


def test_each_new_connection_subscribes_to_all_in_the_same_order(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    names = [f"f/{number}" for number in range(30)]
    for name in names:
        bridge.ask_for(name)
    assert subscribed(connect(network, scripts[0])) == names
    assert bridge.state is BridgePhase.UP
    network.lose("north", "far")
    bridge.no_longer_ask_for("f/3")
    bridge.ask_for("new")
    network.advance(1.0)
    came = connect(network, scripts[1], Connack(session_present=True))
    assert subscribed(came) == [*names[:3], *names[4:], "new"]
    assert [each.topic_filters for each in came if isinstance(each, Unsubscribe)] == [["f/3"]]


def test_only_so_many_packets_are_unanswered(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    for number in range(following_connection.MAX_UNANSWERED + 20):
        bridge.ask_for(f"f/{number}")
    scripts[0].take_connect()
    scripts[0].send(Connack())
    packets = [each for each in take(scripts[0]) if isinstance(each, Subscribe)]
    assert len(packets) == following_connection.MAX_UNANSWERED
    assert north.state() is BridgePhase.CONNECTING
    for packet in packets:
        scripts[0].send(Suback(packet.packet_id, [2]))
    assert len(subscribed(answer(scripts[0]))) == 21
    assert north.is_up


@pytest.mark.parametrize("connack", [FAR, Connack(properties={"subscription_identifier_available": 0})])
def test_without_identifiers_many_filters_share_a_packet(
    network: Network, north: Node, connack: Connack
) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    for number in range(following_connection.MAX_BATCH + 1):
        bridge.ask_for(f"f/{number}")
    came = connect(network, scripts[0], connack)
    packets = [each for each in came if isinstance(each, Subscribe)]
    sizes = [len(each.subscriptions) for each in packets if subscribed([each])]
    assert sizes == [following_connection.MAX_BATCH, 1]
    assert not [each for each in packets if each.properties]
    long = ["x" * 20_000 + str(number) for number in range(2)]
    for each in long:
        bridge.ask_for(each)
    assert subscribed(answer(scripts[0])) == long


def test_mqtt_3(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north, replace(SECTION, bridge_protocol_version="mqttv311"))
    heard: list[tuple[str, bytes, bool]] = []
    north.listen("#")
    bridge.ask_for("a/#")
    bridge.watch("w/#", lambda *each: heard.append(each))
    bridge.listen("out")
    scripts[0].version = MQTT_3_1_1
    assert scripts[0].take()
    scripts[0].send(Connack())
    answer(scripts[0])
    network.advance(0.6)
    answer(scripts[0])
    scripts[0].send(Publish("a/b", b"1"), Publish("w/x", b"2", retain=True))
    north.publish("out", b"3")
    assert publications(answer(scripts[0])) == [("out", b"3", 1, False)]
    assert north.take_heard() == [b"1", b"3"]
    assert heard == [("w/x", b"2", True)]


def test_answers_are_told_and_one_refusal_does_not_stop_the_others(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    told: list[tuple[str, int]] = []
    bridge.on_subscribed = lambda *each: told.append(each)
    north.listen("#")
    bridge.ask_for("a/#")
    answer(far, Reason.NOT_AUTHORIZED)
    bridge.ask_for("+/b")
    answer(far)
    assert told == [("a/#", Reason.NOT_AUTHORIZED), ("+/b", 2)]
    assert "does not let us subscribe: a/#" in bridge.reason
    assert bridge.state is BridgePhase.UP
    far.send(copy(bridge, "+/b", "a/b", b"1"))
    assert north.take_heard() == [b"1"]
    bridge.no_longer_ask_for("a/#")
    assert not [each for each in answer(far) if isinstance(each, Unsubscribe)]


def test_one_that_is_asked_for_again_while_it_leaves(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    north.listen("#")
    bridge.ask_for("a")
    answer(far)
    bridge.no_longer_ask_for("a")
    bridge.ask_for("a")
    came = take(far)
    assert [type(each) for each in came] == [Unsubscribe, Publish]
    assert isinstance(came[0], Unsubscribe)
    far.send(Unsuback(came[0].packet_id, [0]))
    came = answer(far)
    assert subscribed(came) == ["a"]
    assert presences(came[:1]) == [("a",)]
    far.send(copy(bridge, "a", "a", b"1"))
    assert north.take_heard() == [b"1"]


def test_whoever_made_it_is_told_of_its_connections(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    told: list[object] = []
    bridge.on_connected = told.append
    bridge.on_subscribed = lambda topic_filter, code: told.append(topic_filter)
    bridge.on_disconnected = lambda: told.append("lost")
    bridge.ask_for("a")
    network.lose("north", "far")
    assert told == [], "there was no CONNACK"
    network.advance(1.0)
    connect(network, scripts[1])
    network.lose("north", "far")
    network.advance(1.0)
    connect(network, scripts[2], Connack(session_present=True))
    assert told == [True, "a", "lost", False, "a"]


# Watching


def test_what_is_watched_goes_to_who_watches_and_not_here(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    heard: list[tuple[str, bytes, bool]] = []
    bridge.watch("$SYS/broker/log/#", lambda *each: heard.append(each))
    connect(network, scripts[0])
    far = scripts[0]
    bridge.watch("w/#", lambda *each: heard.append(each), 0)
    bridge.ask_for("#")
    north.listen("#")
    north.listen("$SYS/broker/log/#")
    packets = [each for each in answer(far) if isinstance(each, Subscribe)]
    assert [(each.topic_filter, each.qos) for packet in packets for each in packet.subscriptions] == [
        ("w/#", 0),
        ("#", 2),
    ]
    far.send(
        copy(bridge, "$SYS/broker/log/#", "$SYS/broker/log/M/subscribe", b"1"),
        copy(bridge, "w/#", "w/x", b"2"),
        copy(bridge, "#", "w/x", b"2"),
        copy(bridge, "w/#", "w/x", b"3", qos=1, packet_id=9),
        copy(bridge, "w/#", "w/y", b"4", retain=True),
        copy(bridge, "#", "w/y", b"4", retain=True),
        copy(bridge, "#", "x", b"5"),
    )
    assert heard == [
        ("$SYS/broker/log/M/subscribe", b"1", False),
        ("w/x", b"2", False),
        ("w/x", b"3", False),
        ("w/y", b"4", True),
    ]
    assert north.take_heard() == [b"5"]
    assert [each.packet_id for each in answer(far) if isinstance(each, Puback)] == [9]


def test_a_hedgerow_node_may_be_at_the_other_end(network: Network, north: Node) -> None:
    far = network.add("far")
    bridge = follow(north)
    heard: list[bytes] = []
    north.listen("#")
    far.listen("#")
    for each in ("a/#", "+/b", "w/#"):
        bridge.ask_for(each)
    bridge.watch("w/#", lambda topic, payload, retain: heard.append(payload))
    bridge.listen("out/#")
    network.settle()
    for qos in (0, 1, 2):
        far.publish("a/b", b"in", qos)
        far.publish("w/1", b"watched", qos)
        north.publish("out/1", b"out", qos)
    network.settle()
    assert north.take_heard() == [b"in", b"out"] * 3
    assert far.take_heard() == [b"in", b"watched", b"out"] * 3
    assert heard == [b"watched"] * 3


def test_own_messages_are_published_there_when_it_is_up(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    message = Message("hedgerow/federation/x", b"1", retain=True)
    assert not bridge.publish_there(message)
    connect(network, scripts[0])
    assert bridge.publish_there(message)
    network.settle()
    found = [each for each in take(scripts[0]) if isinstance(each, Publish) and each.topic == message.topic]
    assert [(each.payload, each.qos, each.retain) for each in found] == [(b"1", 0, True)]
    connection = bridge.connection
    assert connection is not None
    connection.congested = True
    connection.unread_bytes = north.broker.limits.queue_bytes_in_memory
    assert not bridge.publish_there(message)
    network.lose("north", "far")
    assert not bridge.publish_there(message)


# Other carriers at the far broker


def presences(packets: list[Packet]) -> list[tuple[str, ...]]:
    found = [each for each in packets if isinstance(each, Publish) and each.topic.startswith(CARRIER_TOPIC)]
    return [decode_presence(opened(each.payload)).filters for each in found if opened(each.payload)]


def test_the_other_carriers_are_told_of_filters_before_and_behind(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    bridge.ask_for("a/#")
    came = take(far)
    assert [type(each) for each in came] == [Publish, Subscribe]
    assert presences(came) == [("a/#",)]
    assert isinstance(came[1], Subscribe)
    far.send(Suback(came[1].packet_id, [2]))
    bridge.no_longer_ask_for("a/#")
    came = take(far)
    assert [type(each) for each in came] == [Unsubscribe, Publish]
    assert presences(came) == [()]
    bridge.watch("w/#", lambda *each: None)
    assert presences(answer(far)) == []


def test_a_filter_of_ours_alone_is_ours_to_stamp(network: Network, north: Node) -> None:
    """Another carrier leads, but not what only we asked for: nothing waits for its stamp."""
    bridge, far = join(network, north)
    north.listen("#")
    other = encode_presence(Presence(99, 1, True, ("b/#",)))
    place = CARRIER_TOPIC + "a-first"
    far.send(Publish(place, sealed(place, other, network.now), properties=CONTROL))
    bridge.ask_for("a/#")
    bridge.ask_for("b/#")
    answer(far)
    far.send(copy(bridge, "a/#", "a/b", b"ours"), copy(bridge, "b/#", "b/b", b"theirs"))
    assert north.take_heard() == [b"ours"]


def test_what_bridges_tell_each_other_is_heard_once(network: Network, north: Node) -> None:
    """By "#" it comes again, and a stamp that came twice would be given to the next message."""
    bridge, far = join(network, north)
    bridge.ask_for("#")
    answer(far)
    foreign = bridge.find_foreign(True)
    place = CARRIER_TOPIC + "other"
    presence = sealed(place, encode_presence(Presence(99, 1, True, ("#",))), network.now)
    far.send(copy(bridge, "#", place, presence))
    assert not len(foreign.stamps.attendance.carriers)
    far.send(Publish(place, presence, properties=CONTROL))
    assert len(foreign.stamps.attendance.carriers) == 1


# The set


def test_one_that_takes_its_place_keeps_the_filters(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    bridge.ask_for("a/#")
    bridge.listen("b/#")
    answer(far)
    scripts = network.script("far")
    again = follow(north, replace(SECTION, keepalive_interval_s=17, replace=True))
    assert again is not bridge
    came = take(far)
    assert not [each for each in came if isinstance(each, Unsubscribe)]
    assert subscribed(connect(network, scripts[0], Connack(session_present=True))) == ["a/#"]
    assert again.listened == ["b/#"]


def test_no_command_takes_the_place_of_the_nodes_own(network: Network, north: Node) -> None:
    bridge, _ = join(network, north)
    with pytest.raises(ConfigError, match="node's own"):
        north.bridge("# both", address="elsewhere", replace=True)
    assert north.find() is bridge


def test_one_that_is_deleted_leaves_no_subscriptions(network: Network, north: Node) -> None:
    bridge, far = join(network, north)
    bridge.ask_for("a/#")
    bridge.watch("w/#", lambda *each: None)
    bridge.listen("b/#")
    answer(far)
    north.delete()
    unsubscribed = [each.topic_filters for each in take(far) if isinstance(each, Unsubscribe)]
    assert unsubscribed == [["a/#", "w/#"]]
    north.publish("b/1", b"too late")
    assert not bridge.session.subscriptions


def test_it_takes_along_what_waits_for_others_by_its_own_filters(network: Network, north: Node) -> None:
    other = north.bridge("# out 1", name="other", address="nowhere")
    north.publish("a/1", b"listened to")
    north.publish("b/1", b"not")
    assert other.session.waiting_count == 2
    scripts = network.script("far")
    bridge = follow(north)
    bridge.listen("a/#")
    came = connect(network, scripts[0])
    assert [payload for _, payload, _, _ in publications(came)] == [b"listened to"]
    assert bridge.carries("a/2")
    assert not bridge.carries("b/2")


def test_the_state_names_filters_while_they_are_few(network: Network, north: Node) -> None:
    bridge, _ = join(network, north)
    bridge.listen("a/#", 1)
    bridge.ask_for("b/#", 2)
    assert bridge.status()["topics"] == ["a/# out 1", "b/# in 2"]
    for number in range(MAX_SHOWN):
        bridge.ask_for(f"c/{number}")
    assert bridge.status()["topics"] == [f"1 filters out, {MAX_SHOWN + 1} in"]


def test_a_node_of_ours_that_refuses_is_not_dialled_again(network: Network, north: Node) -> None:
    refused_by: list[str] = []
    scripts = network.script("far")
    bridge = follow(north)
    bridge.on_refused_by_node = refused_by.append
    scripts[0].take_connect()
    scripts[0].send(Connack(False, Reason.NOT_AUTHORIZED, FAR.properties))
    network.advance(60)
    assert refused_by == ["far"]
    assert bridge.state is BridgePhase.STOPPED
    assert bridge.reason == "the far broker is the node far, which refuses: not authorized"
    assert len(network.dialled) == 1
    assert north.events == []


def test_another_broker_that_refuses_is_dialled_again(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = follow(north)
    scripts[0].take_connect()
    scripts[0].send(Connack(False, Reason.NOT_AUTHORIZED))
    network.advance(60)
    assert bridge.state is not BridgePhase.STOPPED
    assert len(network.dialled) > 1
