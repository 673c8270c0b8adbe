"""Who may give fabric-wide ids: nobody has another's messages dropped by claiming their ids beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.fabric_key import Envelopes, FabricKey
from hedgerow.bridges.far_filters import CONTROL_IDENTIFIER
from hedgerow.bridges.stamp_codec import Presence, encode_presence, encode_stamps, fingerprint
from hedgerow.bridges.stamps import STAMPS_TOPIC
from hedgerow.broker.access import Access, Acl
from hedgerow.broker.ids import alias_of, alias_of_broker, alias_of_link, user_of
from hedgerow.message import MAX_ORIGIN, Message, MessageId, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Pingresp, Publish, Subscribe, Subscription
from hedgerow.node.fabric_key import find_key
from tests.bridges.harness import SECRET, Network, Node, Script, sealed
from tests.broker.harness import Client, World
from tests.conftest import StartMosquitto, StartNode
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, paho
from tests.packets import read_packets
from tests.programs import wait_until

COUNT = 20
BRIDGE = ("hedgerow-bridge", "b")
CONTROL: Properties = {"subscription_identifier": (CONTROL_IDENTIFIER,)}


def identified(message_id: str, payload: bytes, packet_id: int = 0, *more: tuple[str, str]) -> Publish:
    properties: Properties = {"user_property": (("hedgerow-id", message_id), *more)}
    return Publish("t", payload, 1 if packet_id else 0, packet_id=packet_id, properties=properties)


def connect(
    world: World, client_id: str, name: str, username: str | None = None, *more: tuple[str, str]
) -> Client:
    """A client that calls itself so. Its user was verified by a certificate."""
    client = world.open(certificate_name=username)
    client.send(Connect(client_id, MQTT_5, properties={"user_property": (("hedgerow-node", name), *more)}))
    assert client.take_first(Connack).reason_code == 0
    return client


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


@pytest.fixture
def south(network: Network) -> Node:
    return network.add("south")


def next_ids(node: Node, count: int) -> list[str]:
    broker = node.broker
    return [str(MessageId(node.name, broker.epoch, broker.sequence + n)) for n in range(count)]


# At a node


@pytest.mark.parametrize("qos", [0, 1])
def test_what_a_plain_client_says_is_a_user_property_as_any(network: Network, north: Node, qos: int) -> None:
    """Others get it unaltered [MQTT-3.3.2-17]; who reads ids reads the broker's, which is the first."""
    said = (
        ("hedgerow-id", "south/1/1"),
        ("hedgerow-time", "4000000000.0"),
        ("hedgerow-held", "1"),
        ("a", "b"),
    )
    plain = north.open()
    plain.send(Connect("plain", MQTT_5))
    reader = connect(north, "reader", "reader")
    for client in plain, reader:
        client.take()
        client.send(Subscribe(1, [Subscription("t", 1)]))
        client.take()
    mallory = north.open()
    mallory.send(Connect("mallory", MQTT_5))
    mallory.take()
    mallory.send(Publish("t", b"x", qos, packet_id=qos, properties={"user_property": said}))
    (heard,) = [packet for packet in plain.take() if isinstance(packet, Publish)]
    assert heard.properties["user_property"] == said
    (read,) = [packet for packet in reader.take() if isinstance(packet, Publish)]
    (name, value), *others = read.properties["user_property"]
    assert (name, MessageId.parse(value).origin) == ("hedgerow-id", "north")
    assert tuple(others[-len(said) :]) == said


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("username", [None, "mallory"])
@pytest.mark.parametrize("more", [(), (BRIDGE,)], ids=["as a client", "as a bridge"])
def test_nobody_claims_the_ids_of_a_node(
    network: Network, north: Node, south: Node, qos: int, username: str | None, more: tuple[Any, ...]
) -> None:
    """With or without a password: that there is no ACL grants nothing."""
    south.bridge("t out 1", address="north")
    north.listen("t")
    mallory = connect(north, "mallory", "south", username, *more)
    for number, claimed in enumerate(next_ids(south, 3 * COUNT)):
        mallory.send(identified(claimed, b"forged", qos * (number + 1)))
    north.take_heard()
    for number in range(COUNT):
        south.publish("t", b"%d" % number, 1)
    network.advance(1)
    assert north.take_heard() == [b"%d" % number for number in range(COUNT)]


def test_nobody_claims_the_ids_of_a_node_that_is_further_away(network: Network, north: Node) -> None:
    """Its name is known to nobody here until its first message comes."""
    middle, far = network.add("middle"), network.add("far")
    far.bridge("t out 1", address="middle")
    middle.bridge("t out 1", address="north")
    north.listen("t")
    mallory = connect(north, "mallory", "far")
    for number, claimed in enumerate(next_ids(far, 3 * COUNT)):
        mallory.send(identified(claimed, b"forged", number + 1))
    north.take_heard()
    for number in range(COUNT):
        far.publish("t", b"%d" % number, 1)
    network.advance(1)
    assert north.take_heard() == [b"%d" % number for number in range(COUNT)]


def test_two_users_do_not_share_an_origin() -> None:
    world = World(relays=False)
    reader = world.connect("reader")
    reader.subscribe("t", 0)
    for username in ("mallory", None, "alice", "alice"):
        connect(world, f"client of {username}", "press", username).send(identified("press/1/1", b"x"))
    assert len([each for each in reader.take() if isinstance(each, Publish)]) == 3


def test_no_user_has_the_alias_of_a_broker() -> None:
    assert alias_of_broker("tractor", "x") == "!tractor~x"
    assert alias_of("!tractor", "x") != "!tractor~x"
    assert user_of(alias_of("!tractor", "x") or "") != "!tractor"


def renamed(origin: str, name: str, node: str) -> str | None:
    return alias_of_link(name, node, origin) if node else alias_of_broker(name, origin)


def renamed_twice(origin: str, name: str, node: str, other: str) -> str:
    return renamed(renamed(origin, name, node) or origin, other, node) or origin


NAMES = st.text("ab!@~:/", max_size=4) | st.text("x", min_size=60, max_size=300)
NODE_NAMES = st.sampled_from(["", "n", "m", "n" * 64])
ORIGINS = NAMES | st.builds(renamed_twice, NAMES, NAMES, NODE_NAMES, NAMES)


@given(ORIGINS, ORIGINS, NAMES, NAMES, NODE_NAMES, NODE_NAMES)
def test_two_origins_never_become_one(
    origin: str, other_origin: str, name: str, other: str, node: str, other_node: str
) -> None:
    aliases = renamed(origin, name, node), renamed(other_origin, other, other_node)
    is_same = (origin, name, node) == (other_origin, other, other_node)
    assert None in aliases or (aliases[0] == aliases[1]) is is_same
    assert all(len(alias) <= MAX_ORIGIN for alias in aliases if alias is not None)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_users_never_have_one_alias(one: str, origin: str, other: str, other_origin: str) -> None:
    alias = alias_of(one, origin)
    assert alias is None or one == other or alias != alias_of(other, other_origin)


def test_a_long_trail_is_bounded() -> None:
    origin: str | None = "n" * 64
    for number in range(4):
        assert origin is not None
        origin = alias_of_link("l" * 100, f"{number}" * 64, origin, "user")
    assert origin is not None
    assert origin.endswith("~" + "n" * 64)
    for number in range(40):
        origin = alias_of_link("link", f"node{number}", origin, "user") if origin is not None else None
    assert origin is None


@pytest.mark.parametrize("username", [None, "bob"])
def test_nobody_claims_the_ids_of_a_node_beyond_an_unproven_bridge(
    network: Network, username: str | None
) -> None:
    """far - (one key) - middle - (no common key) - near, and a client of middle."""
    far, middle, near = network.add("far"), network.add("middle"), network.add("near", secret=b"3" * 32)
    far.bridge("t out 1", address="middle", name="to-middle")
    middle.bridge("t out 1", address="near", name="to-near")
    near.listen("t")
    mallory = connect(middle, "mallory", "far", username)
    for number, claimed in enumerate(next_ids(far, 3 * COUNT)):
        mallory.send(identified(claimed, b"forged", number + 1))
    network.advance(1)
    near.take_heard()
    for number in range(COUNT):
        far.publish("t", b"%d" % number, 1)
    network.advance(1)
    assert near.take_heard() == [b"%d" % number for number in range(COUNT)]


def test_a_client_that_takes_this_nodes_name_is_heard_all_the_same() -> None:
    world = World(relays=False)
    reader = world.connect("reader")
    reader.subscribe("t", 0)
    connect(world, "odd", "node").send(identified("node/1/1", b"x"), identified("odd~node/1/2", b"y"))
    assert [each.payload for each in reader.take() if isinstance(each, Publish)] == [b"x", b"y"]


def test_a_client_claims_no_time_from_the_future() -> None:
    world = World(relays=False)
    later = ("hedgerow-time", f"{world.now + 86_400:.6f}")
    publication = identified("press/1/1", b"lie", 0, later)
    publication.retain = True
    connect(world, "liar", "press").send(publication)
    kept = world.broker.retained.get("t")
    assert kept is not None
    assert kept.published_at is not None
    assert kept.published_at <= world.now


@pytest.mark.parametrize(("right", "is_granted"), [(None, False), ("write", False), ("readwrite", True)])
def test_a_bridge_without_the_key_relays_what_its_user_is_granted(
    right: str | None, is_granted: bool
) -> None:
    """Publishers with ids and mobile brokers may write the topic, and are no bridges for saying so."""
    node = Network().add("hub")
    if right is not None:
        acl = f"user far\ntopic readwrite #\ntopic {right} $hedgerow/bridge\n"
        node.broker.set_access(Access(Acl.parse(acl, "test")))
    node.listen("t")
    peer = connect(node, "far.b", "far", "far", BRIDGE)
    peer.send(identified("elsewhere/1/1", b"x"))
    assert [message.id for message in node.heard] == [
        MessageId("elsewhere" if is_granted else "!user:far@hub~elsewhere", 1, 1)
    ]


def test_a_forged_proof_proves_nothing() -> None:
    hub = Network().add("hub")
    hub.listen("t")
    said = ("hedgerow-nonce", "1"), ("hedgerow-proof", "0" * 32)
    peer = connect(hub, "far.b", "far", None, BRIDGE, *said)
    peer.send(identified("elsewhere/1/1", b"x"))
    assert [message.id for message in hub.heard] == [MessageId("!far.b@hub~elsewhere", 1, 1)]


@pytest.mark.parametrize("when", ["with CONNECT", "with CONNACK", "later"])
def test_who_hands_on_a_proof_can_say_nothing(network: Network, north: Node, when: str) -> None:
    """south dials a broker that is not ours, which dials north with the very CONNECT."""
    scripts = network.script("foreign")
    south = network.add("south")
    south.bridge("t both 1", address="foreign", notifications=False)
    north.listen("t")
    south.listen("t")
    foreign = scripts[0]
    connect_packet = foreign.take_connect()
    relay = north.open()
    forged = codec.encode(identified("far/1/1", b"forged"), MQTT_5)
    relay.send_bytes(codec.encode(connect_packet, MQTT_5) + (forged if when == "with CONNECT" else b""))
    answered = relay.take_bytes()
    size = 2 + answered[1] if answered[1] < 128 else 3 + (answered[1] & 127 | answered[2] << 7)
    foreign.send_bytes(answered[:size] + (forged if when == "with CONNACK" else b""))
    if when == "later":
        relay.send_bytes(forged)
        foreign.send_bytes(forged)
    assert relay.closed is (when != "with CONNACK")
    assert foreign.is_lost is (when != "with CONNECT")
    assert north.take_heard() == []
    assert south.take_heard() == []


@pytest.mark.parametrize("change", ["client", "nonce", "answer"])
def test_a_proof_is_for_these_words_alone(network: Network, north: Node, change: str) -> None:
    scripts = network.script("foreign")
    south = network.add("south")
    south.bridge("t both 1", address="foreign", notifications=False)
    said = scripts[0].take_connect()
    if change == "client":
        said.client_id = "another"
    elif change == "nonce":
        *others, _, proof = said.properties["user_property"]
        said.properties["user_property"] = (*others, ("hedgerow-nonce", "1"), proof)
    relay = north.open()
    relay.send_bytes(codec.encode(said, MQTT_5))
    if change != "answer":
        assert not relay.connection.is_proven
        return
    assert relay.connection.is_proven
    (answer,) = read_packets(relay.take_bytes(), MQTT_5)[:1]
    assert isinstance(answer, Connack)
    answer.properties["receive_maximum"] = 1
    scripts[0].send(answer)
    assert scripts[0].is_lost


def test_bridges_of_one_fabric_prove_themselves(network: Network, north: Node, south: Node) -> None:
    bridge = south.bridge("# both 1", address="north")
    assert bridge.connection is not None
    assert bridge.connection.is_proven
    (accepted,) = [each for each in north.broker.connections if each.peer_name == "south"]
    assert accepted.is_proven


@pytest.mark.parametrize("secrets", [(b"1" * 32, b"2" * 32, b"3" * 32), (SECRET, SECRET, b"3" * 32)])
def test_a_ring_without_a_common_key_does_not_go_round(network: Network, secrets: tuple[bytes, ...]) -> None:
    nodes = [network.add(f"n{number}", secret=secret) for number, secret in enumerate(secrets)]
    for number, node in enumerate(nodes):
        node.bridge("t both 1", address=f"n{(number + 1) % 3}")
        node.listen("t")
    nodes[0].publish("t", b"once", 1)
    network.advance(10)
    for node in nodes[1:]:
        assert b"once" in node.take_heard()
    before = [node.broker.stats.publish_received for node in nodes]
    network.advance(10)
    assert [node.broker.stats.publish_received for node in nodes] == before


@pytest.mark.parametrize("retain", [False, True])
def test_a_ring_does_not_go_round_what_came_from_outside(network: Network, retain: bool) -> None:
    """Its home is no part of the ring, where each node gives it another alias."""
    outside = network.add("outside", secret=b"0" * 32)
    nodes = [network.add(f"n{number}", secret=b"%d" % number * 32) for number in range(1, 4)]
    for number, node in enumerate(nodes):
        node.bridge("t both 1", address=f"n{(number + 1) % 3 + 1}")
        node.listen("t")
    outside.bridge("t out 1", address="n1")
    outside.publish("t", b"once", 1, retain=retain)
    network.advance(10)
    # Both ways round, under another alias each.
    assert all(1 <= node.take_heard().count(b"once") <= 3 for node in nodes)
    before = [node.broker.stats.publish_received for node in nodes]
    network.advance(10)
    assert [node.broker.stats.publish_received for node in nodes] == before


def test_a_broker_that_was_dialled_proves_that_it_is_a_node(
    network: Network, north: Node, south: Node
) -> None:
    scripts = network.script("foreign")
    north.bridge("t both 1", name="foreign", address="foreign", notifications=False)
    south.bridge("t out 1", address="north")
    north.listen("t")
    foreign = scripts[0]
    foreign.take_connect()
    foreign.send(Connack(properties={"user_property": (("hedgerow-node", "evil"),)}))
    network.advance(0.1)
    foreign.send(*(identified(each, b"forged", n + 1) for n, each in enumerate(next_ids(south, 3 * COUNT))))
    assert {message.id and message.id.origin for message in north.heard} == {
        "!to:local.north.foreign@north~south"
    }
    north.take_heard()
    for number in range(COUNT):
        south.publish("t", b"%d" % number, 1)
    assert north.take_heard() == [b"%d" % number for number in range(COUNT)]


# At a foreign broker


def at_foreign(network: Network, node: Node) -> Script:
    scripts = network.script("far")
    node.bridge("t both 1", address="far", notifications=False)
    node.listen("t")
    scripts[0].accept(Connack())
    network.advance(1)
    scripts[0].take()
    return scripts[0]


def sent_by(network: Network, node: Node, payload: bytes, **fields: Any) -> Publish:
    """What a node of the same fabric sends to a foreign broker."""
    far = at_foreign(network, node)
    node.publish("t", payload, 1, **fields)
    (found,) = [each for each in far.take() if isinstance(each, Publish) and each.topic == "t"]
    return found


@pytest.mark.parametrize("change", [None, "payload", "retain", "id", "content type", "user property"])
def test_an_id_counts_as_it_was_sent(network: Network, north: Node, change: str | None) -> None:
    sent = sent_by(elsewhere := Network(), elsewhere.add("other"), b"genuine")
    far = at_foreign(network, north)
    pairs = sent.properties["user_property"]
    message_id = pairs[0][1]
    if change == "payload":
        sent.payload = b"forged"
    elif change == "retain":
        sent.retain = True
    elif change == "id":
        sent.properties["user_property"] = (("hedgerow-id", message_id + "1"), *pairs[1:])
    elif change == "content type":
        sent.properties["content_type"] = "text/forged"
    elif change == "user property":
        sent.properties["user_property"] = (*pairs, ("forged", "1"))
    far.send(sent)
    (heard,) = north.heard
    assert (str(heard.id) == message_id) is (change is None)
    assert not [name for name, _ in heard.properties.get("user_property", ()) if name == "hedgerow-mac"]


@pytest.mark.parametrize("interval", [None, 600])
@pytest.mark.parametrize("line_qos", [0, 1])
def test_a_copy_keeps_the_qos_and_the_expiry_that_were_sent(
    network: Network, north: Node, interval: int | None, line_qos: int
) -> None:
    """A client publishes it again, there or at another broker, so that it is lost or over before it reaches
    those who are away. They would get it by another bridge, whose line has another QoS."""
    properties: Properties = {"message_expiry_interval": interval} if interval else {}
    sent = sent_by(elsewhere := Network(), elsewhere.add("other"), b"genuine", properties=properties)
    scripts = network.script("far")
    north.bridge(f"t both {line_qos}", address="far", notifications=False)
    north.listen("t")
    scripts[0].accept(Connack())
    sent.qos = sent.packet_id = 0
    sent.properties["message_expiry_interval"] = 1
    now = network.now
    scripts[0].send(sent)
    (heard,) = north.heard
    assert str(heard.id) == sent.properties["user_property"][0][1]
    assert heard.qos == 1
    assert heard.properties.get("message_expiry_interval") == interval
    if interval is None:
        assert heard.expires_at is None
    else:
        assert heard.expires_at is not None
        assert 599 <= heard.expires_at - now <= 600


def test_a_value_of_the_future_is_one_of_now(network: Network, north: Node) -> None:
    far = at_foreign(network, north)
    later = ("hedgerow-time", f"{network.now + 86_400:.6f}")
    forged = identified("south/1/1", b"lie", 0, later)
    forged.retain = True
    far.send(forged)
    kept = north.broker.retained.get("t")
    assert kept is not None
    assert kept.published_at is not None
    assert kept.published_at <= network.now


def test_a_message_that_comes_back_unproved_ends_here(network: Network, north: Node) -> None:
    """Another node without our key gave it another id."""
    far = at_foreign(network, north)
    stranger = (("hedgerow-id", "stranger/1/1"), ("hedgerow-via", "north,stranger"))
    far.send(Publish("t", b"again", 1, packet_id=1, properties={"user_property": stranger}))
    assert north.take_heard() == []


@pytest.mark.parametrize("how", ["unsealed", "another key", "another topic", "old", "again"])
def test_words_of_carriers_are_not_forged(network: Network, north: Node, how: str) -> None:
    """A carrier that does not exist would keep messages waiting, and a stamp give them another's id."""
    far = at_foreign(network, north)
    foreign = north.find().find_foreign(True)
    place = CARRIER_TOPIC + "a-first"
    presence = encode_presence(Presence(99, 1, True, ("#",)))
    said = {
        "unsealed": presence,
        "another key": Envelopes(FabricKey(b"another" * 5), 99).wrap(place, presence, network.now),
        "another topic": sealed(CARRIER_TOPIC + "another", presence, network.now),
        "old": sealed(place, presence, network.now - 1_000),
        "again": sealed(place, presence, network.now),
    }[how]
    if how == "again":
        far.send(Publish(place, said, properties=CONTROL))
        assert len(foreign.stamps.attendance.carriers) == 1
        for _ in range(10):
            far.send(Pingresp())
            network.advance(0.3)  # It is silent: gone.
    far.send(Publish(place, said, properties=CONTROL))
    assert len(foreign.stamps.attendance.carriers) == 0
    stamp = MessageId("south", 1, 1), fingerprint(Message("t", b"x"))
    [stamps] = encode_stamps(7, [stamp], goes_before=True)
    far.send(Publish(STAMPS_TOPIC, stamps, properties=CONTROL), Publish("t", b"x"))
    network.advance(5)
    assert [message.id is not None and message.id.origin == "south" for message in north.heard] == [False]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_what_a_client_says_of_ids_is_not_this_nodes_word(
    network: Network, north: Node, south: Node, qos: int, retain: bool
) -> None:
    """To another node, and to a foreign broker; by a publication, and by a will."""
    north.bridge("t out 2", name="peer", address="south")
    far = at_foreign(network, north)
    south.listen("t")
    said = (("hedgerow-id", "x/1/1"), ("hedgerow-time", "4000000000"), ("hedgerow-mac", "0" * 32))
    client = north.connect("client")
    for number in range(2):
        packet_id = number + 1 if qos else 0
        properties: Properties = {"user_property": said}
        client.send(Publish("t", b"%d" % number, qos, retain, packet_id=packet_id, properties=properties))
    network.advance(1)
    assert [message.id is not None and message.id.origin for message in south.heard] == ["north"] * 2
    assert all((message.published_at or 0) < 4e9 for message in south.heard)
    for each in far.take():
        if isinstance(each, Publish) and each.topic == "t":
            assert each.properties["user_property"][0][1].startswith("north/")


# The key


def test_the_key_of_a_user_is_made_once_and_for_him_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_key(None) == find_key(None)
    (found,) = (tmp_path / "hedgerow").iterdir()
    assert found.stat().st_mode & 0o777 == 0o600


def test_without_a_place_for_it_the_key_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert find_key(None) != find_key(None)
    assert "--fabric-key" in caplog.text


# A real Mosquitto


def test_a_client_of_a_bridged_mosquitto_suppresses_nothing(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, tmp_path: Path
) -> None:
    """Ids are dense, and every subscriber there can read them: it knows those that come next."""
    port = mosquitto()
    section = tmp_path / "moss.conf"
    section.write_text(f"connection moss\naddress 127.0.0.1:{port}\ntopic t both 1\n")
    there = hedgerow_node("--id", "there", "--bridge", str(section))
    here = hedgerow_node("--id", "here", "--bridge", str(section))
    with (
        paho(Reach("mqtt", there.port(), Path()), client_id="writer") as writer,
        paho(Reach("mqtt", here.port(), Path()), client_id="reader") as reader,
        paho(Reach("mqtt", port, Path()), client_id="mallory") as mallory,
    ):
        reader.subscribe("t", 1)
        mallory.subscribe("t", 1)
        writer.publish("t", "first", 1)
        wait_until(lambda: bool(reader.inbox) and bool(mallory.inbox), "the first message", PATIENCE_S)
        told: Any = mallory.inbox[0].properties
        ((_, seen), *_) = told.UserProperty
        life, _, sequence = seen.rpartition("/")
        for number in range(1, 10 * COUNT):
            properties: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = ("hedgerow-id", f"{life}/{int(sequence) + number}")
            mallory.publish("t", "forged", 1, properties=properties)
        for number in range(COUNT):
            writer.publish("t", f"{number}", 1)

        def genuine() -> list[str]:
            return [
                each.payload.decode() for each in reader.inbox if each.payload not in (b"forged", b"first")
            ]

        wait_until(lambda: len(genuine()) >= COUNT, "all messages", PATIENCE_S)
        assert genuine() == [f"{number}" for number in range(COUNT)]
