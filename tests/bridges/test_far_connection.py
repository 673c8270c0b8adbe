"""An open link to a far broker: topics and their names, QoS, probes, and what the far side may get wrong."""

from __future__ import annotations

from itertools import product

import pytest

from hedgerow.bridges.admission import ASK_TOPIC
from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.bridge import Bridge, BridgePhase
from hedgerow.bridges.stamp_codec import Presence, decode_ids, encode_presence
from hedgerow.broker.access import Access, Acl
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import Network, Node, Script, balance, opened, sealed

FAR = (("hedgerow-node", "far"),)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


@pytest.fixture
def south(network: Network) -> Node:
    return network.add("south")


def join(network: Network, north: Node, *lines: str, **options: object) -> tuple[Bridge, Script]:
    """A bridge that is up to a script in the place of a Hedgerow node."""
    scripts = network.script("far")
    bridge = north.bridge(*lines, address="far", **options)
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    assert north.state() is BridgePhase.UP
    return bridge, scripts[0]


# Topics


def test_prefixes_rename_both_ways(network: Network, north: Node, south: Node) -> None:
    north.listen()
    south.listen()
    north.bridge("t/# both 1 local/ remote/")
    north.publish("local/t/1", b"out")
    north.publish("t/1", b"not ours")
    assert [(each.topic, each.payload) for each in south.heard] == [("remote/t/1", b"out")]
    north.heard.clear()
    south.publish("remote/t/2", b"in")
    south.publish("local/t/2", b"not theirs")
    assert [(each.topic, each.payload) for each in north.heard] == [("local/t/2", b"in")]


@pytest.mark.parametrize("payload_size", [10, 300])
def test_prefixes_on_the_short_way_too(network: Network, north: Node, south: Node, payload_size: int) -> None:
    """QoS 0 in chunks, from a client, which is handled without an object for each packet."""
    south.listen()
    north.bridge("# out 0 a/ b/")
    client = north.connect("client")
    payloads = [(b"%d" % number).ljust(payload_size) for number in range(5)]
    client.send(*[Publish("a/t", payload) for payload in payloads])
    assert [(each.topic, each.payload) for each in south.heard] == [("b/t", each) for each in payloads]
    assert north.find().ledger.relayed == 5


def test_directions(network: Network, north: Node, south: Node) -> None:
    north.listen()
    south.listen()
    north.bridge("o/# out 1", "i/# in 1")
    for node in (north, south):
        node.publish("o/1", node.name.encode())
        node.publish("i/1", node.name.encode())
    assert south.take_heard() == [b"north", b"south", b"south"]
    assert north.take_heard() == [b"north", b"north", b"south"]


@pytest.mark.parametrize(("published", "line"), list(product((0, 1, 2), (0, 1, 2))))
def test_qos_is_the_lower_of_the_two(
    network: Network, north: Node, south: Node, published: int, line: int
) -> None:
    north.listen("in")
    south.listen("out")
    north.bridge(f"out out {line}", f"in in {line}")
    for number in range(3):
        north.publish("out", b"%d" % number, published)
        south.publish("in", b"%d" % number, published)
    assert [message.qos for message in (*south.heard, *north.heard)] == [min(published, line)] * 6
    assert south.take_heard() == north.take_heard() == [b"0", b"1", b"2"]
    assert north.find().session.outbox is not None
    assert not north.find().session.waiting_count
    assert not north.find().session.received


def test_the_higher_qos_of_two_lines_that_fit(network: Network, north: Node, south: Node) -> None:
    south.listen()
    north.bridge("a/# out 0", "a/# out 2", "# out 1")
    north.publish("a/b", b"once", 2)
    assert [(each.payload, each.qos) for each in south.heard] == [(b"once", 2)]


@pytest.mark.parametrize("place", ["$SYS/broker/bridge/new", "$hedgerow/bridge", "$SYS/x"])
def test_nothing_comes_in_where_the_node_alone_speaks(network: Network, north: Node, place: str) -> None:
    first, _, rest = place.partition("/")
    north.listen(f"{first}/#")
    bridge, far = join(
        network, north, "$SYS/# in 1", "$hedgerow/# in 1", f"# in 1 {first}/ evil/", notifications=False
    )
    far.send(Publish(place, b"1", 1, packet_id=1), Publish(f"evil/{rest}", b"2", 0))
    far.send(Publish(place, b"3", 0, True, properties={"user_property": (("hedgerow-id", "far/1/1"),)}))
    assert [each for each in north.heard if each.payload in (b"1", b"2", b"3")] == []
    assert bridge.inbound.refused == 3
    assert Puback(1) in far.take(), "acknowledged all the same: the far broker is not to repeat it"


def test_what_no_line_asks_for_does_not_come_in(network: Network, north: Node) -> None:
    north.listen()
    bridge, far = join(network, north, "a/# in 1", "o/# out 1")
    far.send(Publish("b", b"", 1, packet_id=5), Publish("o/1", b"", 2, packet_id=6))
    assert far.take() == [Puback(5), Pubrec(6)]
    assert north.heard == []
    assert (bridge.inbound.published, bridge.inbound.refused) == (2, 2)


def test_a_local_user_has_the_rights_that_the_acl_gives(network: Network, south: Node) -> None:
    rules = "user guest\ntopic write in/ok\ntopic read out/ok\n"
    north = network.add("north", access=Access(Acl.parse(rules, "acl")))
    north.listen()
    south.listen()
    north.bridge("# both 1", local_username="guest", notifications=False)
    for topic in ("in/ok", "in/other"):
        south.publish(topic)
    south.heard.clear()
    for topic in ("out/ok", "out/other"):
        north.publish(topic)
    assert [each.topic for each in north.heard] == ["in/ok", "out/ok", "out/other"]
    assert [each.topic for each in south.heard] == ["out/ok"]


def test_rights_that_are_taken_away_are_counted(network: Network) -> None:
    def rules(text: str) -> Access:
        return Access(Acl.parse(f"user guest\n{text}", "acl"))

    north = network.add("north", access=rules("topic read a\ntopic read b"))
    bridge = north.bridge("# out 1", local_username="guest")
    north.publish("a")
    north.publish("b")
    north.broker.set_access(rules("topic read b"))
    assert (bridge.session.waiting_count, bridge.ledger.refused) == (1, 1)
    assert balance(bridge.ledger, 1) == 0


def test_a_topic_without_a_name_there_is_refused(network: Network, north: Node) -> None:
    long = "t" * 40_000
    bridge, _ = join(network, north, f"# out 1 {'l/'} {'r' * 30_000}/")
    north.publish(f"l/{long}", b"", 1)
    north.publish(f"l/{long}", b"", 0)
    assert (bridge.ledger.published, bridge.ledger.refused, bridge.ledger.too_large) == (2, 2, 0)


# Subscriptions at the far broker


def test_what_is_subscribed_there(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("a/# both 1 x/ y/", "b in 2", "c out 1", address="far")
    far = scripts[0]
    far.take_connect()
    far.send(Connack(session_present=True, properties={"user_property": FAR}))
    packets = far.take()
    (unsubscribe,) = [each for each in packets if isinstance(each, Unsubscribe)]
    assert unsubscribe.topic_filters == ["c"]
    (subscribe,) = [each for each in packets if isinstance(each, Subscribe)]
    assert [(each.topic_filter, each.qos, each.no_local) for each in subscribe.subscriptions] == [
        ("y/a/#", 1, True),
        ("b", 2, True),
    ]
    assert all(each.retain_as_published for each in subscribe.subscriptions)


# Packet sizes


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("by_client", [False, True])
def test_what_is_too_large_for_the_far_broker(
    network: Network, north: Node, qos: int, by_client: bool
) -> None:
    scripts = network.script("far")
    bridge = north.bridge("t out 2", address="far")
    scripts[0].accept(Connack(properties={"user_property": FAR, "maximum_packet_size": 200}))
    scripts[0].take()
    client = north.connect("client")
    for packet_id, payload in enumerate((b"x" * 300, b"small"), 1):
        if by_client:
            client.publish("t", payload, qos, packet_id if qos else 0)
        else:
            north.publish("t", payload, qos)
    sent = [each for each in scripts[0].take() if isinstance(each, Publish)]
    assert [each.payload for each in sent] == [b"small"]
    assert (bridge.ledger.published, bridge.ledger.too_large) == (2, 1)
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0


# Probes


def test_a_silent_cut_ends_the_link_after_three_misses_and_not_before(
    network: Network, north: Node, south: Node
) -> None:
    bridge = north.bridge("# both 1", probe_interval=0.5, probe_misses=3)
    network.advance(10.01)
    network.cut("north", "south")
    at = network.now
    network.advance(1.45)
    assert north.state() is BridgePhase.UP
    network.advance(0.55)
    assert north.state() is BridgePhase.WAITING
    assert bridge.reason == "no answer to 3 probes, 0.5 s apart"
    assert 1.45 <= bridge.since - at <= 2.0


def test_what_has_come_and_is_still_to_be_read_is_a_sign_of_life(
    network: Network, north: Node, south: Node
) -> None:
    north.bridge("# both 1", probe_interval=0.5, probe_misses=3)
    network.advance(10.01)
    (wire,) = network.wires
    network.cut("north", "south")
    wire.unread_since = network.now + 1
    network.advance(2.3)
    assert north.state() is BridgePhase.UP
    network.advance(0.8)
    assert north.state() is BridgePhase.WAITING


@pytest.mark.parametrize(("interval_s", "misses"), [(0.1, 1), (2.0, 5)])
def test_as_often_and_as_many_as_the_section_says(
    network: Network, north: Node, interval_s: float, misses: int
) -> None:
    bridge, far = join(network, north, "a out", probe_interval=interval_s, probe_misses=misses)
    far.take()
    began_at = network.now
    network.advance(interval_s * misses * 0.99)
    assert north.state() is BridgePhase.UP
    assert far.take().count(Pingreq()) == misses - 1
    network.advance(interval_s * 1.1)
    assert north.state() is not BridgePhase.UP
    assert misses * interval_s <= bridge.since - began_at <= (misses + 1) * interval_s + 0.01


@pytest.mark.parametrize("answer", [Pingresp(), Publish("a", b""), Puback(77)])
def test_whatever_arrives_is_a_sign_of_life(
    network: Network, north: Node, answer: Pingresp | Publish | Puback
) -> None:
    _, far = join(network, north, "a in")
    for _ in range(20):
        network.advance(1.2)
        far.send(answer)
    assert north.state() is BridgePhase.UP


def test_half_a_packet_is_a_sign_of_life(network: Network, north: Node) -> None:
    """A large one on a slow link."""
    _, far = join(network, north, "a in")
    data = codec.encode(Publish("a", b"x" * 40), MQTT_5)
    for byte in data[:-1]:
        network.advance(1.2)
        far.send_bytes(bytes((byte,)))
    assert north.state() is BridgePhase.UP


def test_a_slow_link_that_still_takes_bytes_is_alive(network: Network, north: Node) -> None:
    join(network, north, "a out 1")
    (wire,) = network.between("north", "far")
    north.publish("a", b"x" * 100_000)
    wire.acknowledged = 1_000
    for _ in range(50):
        network.advance(0.5)
        wire.acknowledged += 1_000
    assert north.state() is BridgePhase.UP
    network.advance(2.1)  # and no more
    assert north.state() is not BridgePhase.UP


def test_bytes_that_nobody_takes_are_no_sign_of_life(network: Network, north: Node) -> None:
    join(network, north, "a out 1")
    (wire,) = network.between("north", "far")
    north.publish("a", b"x" * 100_000)
    wire.acknowledged = 50_000
    network.advance(2.6)
    assert north.state() is not BridgePhase.UP


def test_who_stood_still_oneself_listens_first(network: Network, north: Node) -> None:
    """A node that was stopped, or a host under load: the answer waits to be read."""
    _, far = join(network, north, "a out 1")
    network.advance(0.6)  # A probe is under way.
    network.now += 30
    network.settle()
    assert north.state() is BridgePhase.UP
    far.send(Pingresp())
    network.advance(1.4)
    assert north.state() is BridgePhase.UP
    network.advance(1.0)
    assert north.state() is not BridgePhase.UP


def test_pings_go_on_while_messages_flow(network: Network, north: Node) -> None:
    """The probe is end to end: that we can send is no proof."""
    _, far = join(network, north, "a out 0")
    for _ in range(30):
        north.publish("a", b"x", 0)
        network.advance(0.1)
    assert north.state() is not BridgePhase.UP
    assert far.take().count(Pingreq()) >= 2


# QoS 2 from the far broker


def test_a_far_broker_that_forgot_us_may_use_a_packet_identifier_again(network: Network, north: Node) -> None:
    north.listen("a")
    scripts = network.script("far")
    north.bridge("a in 2", address="far", restart_timeout="1")
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    scripts[0].send(Publish("a", b"before", 2, packet_id=1))
    network.lose("north", "far")
    network.advance(1.1)
    scripts[1].accept(Connack(session_present=False, properties={"user_property": FAR}))
    scripts[1].send(Publish("a", b"after", 2, packet_id=1))
    assert north.take_heard() == [b"before", b"after"]


def test_one_that_remembers_us_does_not_deliver_twice(network: Network, north: Node) -> None:
    north.listen("a")
    scripts = network.script("far")
    north.bridge("a in 2", address="far", restart_timeout="1")
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    scripts[0].send(Publish("a", b"once", 2, packet_id=1))
    network.lose("north", "far")
    network.advance(1.1)
    scripts[1].accept(Connack(session_present=True, properties={"user_property": FAR}))
    scripts[1].send(Publish("a", b"once", 2, dup=True, packet_id=1))
    assert Pubrec(1) in scripts[1].take()
    scripts[1].send(Pubrel(1))
    assert Pubcomp(1) in scripts[1].take()
    assert north.take_heard() == [b"once"]


# What a far broker may get wrong

MISTAKES = {
    "an empty PUBLISH": b"\x30\x00",
    "a PUBLISH of one byte": b"\x30\x01\x00",
    "a PUBLISH whose topic is longer than it": b"\x30\x04\x00\x09aa",
    "QoS 3": b"\x36\x06\x00\x01a\x00\x01\x00",
    "a packet of a client": b"\xc0\x00",
    "a second CONNACK": b"\x20\x03\x00\x00\x00",
    "a topic alias": codec.encode(Publish("a", b"", properties={"topic_alias": 1}), MQTT_5),
    "reserved": b"\x00\x00",
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
@pytest.mark.parametrize("is_hedgerow", [True, False])
def test_a_far_broker_that_breaks_a_rule_is_left(
    network: Network, north: Node, mistake: str, is_hedgerow: bool
) -> None:
    scripts = network.script("far")
    bridge = north.bridge("# both 1", address="far", restart_timeout="5")
    scripts[0].accept(Connack(properties={"user_property": FAR} if is_hedgerow else {}))
    network.advance(0.6)  # At a foreign broker, the only one there.
    scripts[0].send(Pingresp())
    scripts[0].send_bytes(MISTAKES[mistake])
    assert north.state() is BridgePhase.WAITING, "it comes back later"
    assert bridge.reason.startswith("the far broker broke a rule")
    assert north.broker.stats.protocol_errors == 1
    assert any(isinstance(packet, Disconnect) for packet in scripts[0].take())


def test_something_else_than_connack(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("# both 1", address="far")
    scripts[0].send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert north.state() is BridgePhase.WAITING


def test_the_far_broker_says_why_it_leaves(network: Network, north: Node) -> None:
    bridge, far = join(network, north, "a out")
    far.send(Disconnect(Reason.SERVER_SHUTTING_DOWN))
    assert north.state() is BridgePhase.WAITING
    assert bridge.reason == "the far broker disconnected: server shutting down"


# Foreign brokers


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_foreign_broker_gets_and_gives_plain_messages(
    network: Network, north: Node, version: int, qos: int
) -> None:
    north.listen("in/#")
    scripts = network.script("far")
    word = "mqttv311" if version == MQTT_3_1_1 else "mqttv50"
    north.bridge("in/# in 2", "out/# out 2", address="far", bridge_protocol_version=word)
    far = scripts[0]
    far.take_connect()
    far.version = version
    far.send(Connack())
    for packet in far.take():
        if isinstance(packet, Subscribe):
            far.send(Suback(packet.packet_id, [each.qos for each in packet.subscriptions]))
    network.advance(0.6)  # Nobody else is there.
    far.send(Pingresp())
    far.take()
    north.publish("out/1", b"there", qos)
    (sent,) = [each for each in far.take() if isinstance(each, Publish) and each.topic == "out/1"]
    assert (sent.payload, sent.qos) == (b"there", qos)
    assert ("user_property" in sent.properties) is (version == MQTT_5)
    far.send(Publish("in/1", b"here", qos, packet_id=3 if qos else 0))
    network.advance(0.6)
    assert north.take_heard() == [b"here"]


def test_a_foreign_broker_is_told_the_id_that_a_peer_is_told(
    network: Network, north: Node, south: Node
) -> None:
    """With another id it would come back as another message."""
    south.listen("t")
    scripts = network.script("far")
    north.bridge("t out 0", name="peer")
    north.bridge("t out 0", address="far", bridge_protocol_version="mqttv311", notifications=False)
    far = scripts[0]
    far.take_connect()
    far.version = MQTT_3_1_1
    far.send(Connack())
    (subscribe,) = [each for each in far.take() if isinstance(each, Subscribe)]
    far.send(Suback(subscribe.packet_id, [1]))
    another = Presence(99, 1, False, ("#",))
    place = CARRIER_TOPIC + "another"
    far.send(Publish(place, sealed(place, encode_presence(another), network.now)))
    network.advance(0.3)
    far.take()
    north.connect("client").send(Publish("t", b"1"), Publish("t", b"2"))
    asked = [each for each in far.take() if isinstance(each, Publish) and each.topic.startswith(ASK_TOPIC)]
    told = [message_id for each in asked for message_id in decode_ids(opened(each.payload))]
    assert told == [message.id for message in south.heard]
    assert len(told) == 2


def test_a_session_that_was_lost_here_uses_other_packet_identifiers(network: Network, north: Node) -> None:
    """The far broker may still wait for the PUBREL of one, and takes a new message for the old (QoS 2)."""
    scripts = network.script("far")
    north.bridge("a out 2", address="far", notifications=False, bridge_attempt_unsubscribe=False)
    used: list[int] = []
    for attempt in range(2):
        scripts[attempt].accept(Connack(session_present=bool(attempt), properties={"user_property": FAR}))
        north.publish("a", b"%d" % attempt, 2)
        used += [each.packet_id for each in scripts[attempt].take() if isinstance(each, Publish)]
        north.crash()
    assert len(set(used)) == 2


def test_a_second_connack_in_the_words_of_3_1_1_ends_the_link(network: Network, north: Node) -> None:
    """It would be taken for a new connection: counted again, subscribed again, sent again."""
    _, script = join(network, north, "# both 1")
    script.take()
    script.send_bytes(b"\x20\x02\x00\x00")
    assert script.is_lost
    assert not [packet for packet in script.take() if isinstance(packet, Subscribe)]
    assert north.broker.link_count == 0


def test_nor_does_mqtt_5_begin_with_one(network: Network, north: Node) -> None:
    scripts = network.script("far")
    north.bridge("# both 1", address="far")
    scripts[0].send_bytes(b"\x20\x02\x00\x00")
    assert scripts[0].is_lost
    assert north.state() is BridgePhase.WAITING


def test_what_the_far_broker_says_fits_into_a_line_of_the_log(network: Network, north: Node) -> None:
    _, script = join(network, north, "# both 1")
    script.send(Disconnect(Reason.UNSPECIFIED_ERROR, {"reason_string": "x\n2026 all is well" + "y" * 60_000}))
    told = [str(north.events[-1]), str(north.states["b"]["reason"])]
    assert all("x?2026 all is well" in each and len(each) < 400 for each in told)


@pytest.mark.parametrize("name", ["", "x" * 257, "far\n2026 all is well"])
def test_a_name_that_no_id_may_bear_is_none(network: Network, north: Node, name: str) -> None:
    scripts = network.script("far")
    north.bridge("# both 1", address="far")
    scripts[0].accept(Connack(properties={"user_property": (("hedgerow-node", name),)}))
    assert (north.state(), north.find().status()["far"]) == (BridgePhase.UP, None)


@pytest.mark.parametrize("client_id", ["a#b", "a/+", "x" * 10_000])
def test_a_client_identifier_need_not_be_a_level_of_a_topic(
    network: Network, north: Node, client_id: str
) -> None:
    scripts = network.script("far")
    north.bridge("# both 1", address="far", clientid=client_id, notifications=False)
    others = scripts[0].accept()
    assert north.state() is BridgePhase.UP
    (presence,) = {each.topic for each in others if isinstance(each, Publish)}
    assert presence.startswith(CARRIER_TOPIC)
    assert len(presence) < 200


def test_what_is_held_when_a_clean_session_ends_blocks_no_other(network: Network, north: Node) -> None:
    """Its packet identifier is that of another message on the next connection."""
    north.listen("t/#")
    scripts = network.script("far")
    north.bridge("t/# in 2", address="far", cleansession=True, restart_timeout=0.1)
    scripts[0].accept()
    place, leader = CARRIER_TOPIC + "leader", encode_presence(Presence(9, 1, True, ("#",)))
    scripts[0].send(Publish(place, sealed(place, leader, network.now)))
    scripts[0].send(Publish("t/1", b"held", 2, packet_id=1))
    assert north.take_heard() == []
    network.lose("north", "far")
    network.advance(0.2)
    scripts[1].accept()
    network.advance(1)
    scripts[1].send(Pingresp(), Publish("t/1", b"new", 2, packet_id=1))
    network.advance(1)
    assert north.take_heard() == [b"held", b"new"]


def test_a_client_cannot_say_when_its_value_was_published(network: Network, north: Node, south: Node) -> None:
    """One from the year 4821 would keep all later ones from the other brokers."""
    north.bridge("# both 1")
    from_the_future = (("hedgerow-time", "90000000000"),)
    liar = north.connect("liar")
    liar.publish("v", b"lie", 1, retain=True, properties={"user_property": from_the_future})
    network.advance(1)
    north.publish("v", b"later", 1, retain=True)
    kept = south.broker.retained.get("v")
    assert kept is not None
    assert kept.payload == b"later"
