"""Messages that a link cannot carry, or that its far end refuses: set aside, and the queue goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hedgerow.broker.broker import FROM_CLIENTS
from hedgerow.broker.connection import Connection
from hedgerow.broker.dialled import FROM_SERVERS
from hedgerow.broker.events import MessageSetAside, PublicationRefused
from hedgerow.broker.limits import Limits
from hedgerow.broker.role import Role
from hedgerow.broker.roles import ClientRole, IdentifiedRole
from hedgerow.broker.suspects import RETRY_S
from hedgerow.errors import ProtocolError
from hedgerow.federation.tunnel.frames import NODE_TOPIC
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import PUBLISH, Connack, Puback, Publish, Pubrec
from hedgerow.mqtt.properties import MAX_REPETITIONS
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import Network, Node, Wire, balance
from tests.broker.harness import World
from tests.federation.fabric_of_nodes import Fabric
from tests.security.picky_broker import PickyBroker

PAIRS = tuple(("name", str(number)) for number in range(MAX_REPETITIONS))
POISON = b"poison"


def is_poison(packet: Publish) -> bool:
    return packet.payload == POISON


def set_aside(node: Any) -> list[MessageSetAside]:
    return [event for event in node.broker.take_events() if isinstance(event, MessageSetAside)]


def check_balance(node: Node) -> None:
    bridge = node.find()
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0


# What is taken from clients can be carried between nodes


def test_the_most_user_properties_of_a_client_pass_between_nodes() -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    inbox = fabric["c"].subscribe("t/#")
    publisher = fabric["a"].subscribe("other")
    fabric.advance(1)
    publisher.publish("t/many", b"many", properties={"user_property": PAIRS})
    publisher.publish("t/after", b"after")
    fabric.advance(2)
    assert inbox.payloads == [b"many", b"after"]
    assert inbox.messages[0].properties["user_property"] == PAIRS


def test_the_most_user_properties_of_a_retained_message_pass_a_bridge() -> None:
    network = Network()
    north, south = network.add("north"), network.add("south")
    north.bridge("# both 1")
    south.listen()
    north.publish("t", b"many", retain=True, properties={"user_property": PAIRS})
    north.publish("u", b"after")
    network.advance(2)
    assert b"many" in south.take_heard()
    assert north.is_up
    check_balance(north)


def test_one_more_is_refused_with_a_reason() -> None:
    world = World()
    client = world.connect("c")
    client.publish("t", b"", 1, properties={"user_property": (*PAIRS, ("name", "more"))})
    disconnect = client.take()[-1]
    assert client.closed
    assert disconnect.reason_code == Reason.QUOTA_EXCEEDED  # type: ignore[union-attr]
    assert disconnect.properties["reason_string"] == "more than 1000 user properties"  # type: ignore[union-attr]


def test_the_largest_packet_of_a_client_passes_between_nodes() -> None:
    limits = Limits(packet_bytes=20_000)
    fabric = Fabric()
    fabric.line("a", "b", limits=limits)
    fabric.settle_links()
    inbox = fabric["b"].subscribe("t")
    publisher = fabric["a"].subscribe("other")
    fabric.advance(1)
    head = 1 + 3 + 2 + 1 + 2 + 1
    publisher.publish("t", b"x" * (20_000 - head))
    fabric.advance(2)
    assert [len(each) for each in inbox.payloads] == [20_000 - head]


def test_more_properties_than_we_take_from_a_far_broker_do_not_end_the_link() -> None:
    network = Network()
    opened = network.script("south")
    north = network.add("north")
    north.listen()
    north.bridge("# both 1")
    opened[0].accept()
    opened[0].send(
        Publish("t", b"many", 1, packet_id=1, properties={"user_property": PAIRS * 2}),
        Publish("t", b"after", 1, packet_id=2),
    )
    network.advance(1)
    assert [each.packet_id for each in opened[0].take() if isinstance(each, Puback)] == [1, 2]
    assert north.is_up
    assert north.take_heard() == [b"after"]
    assert north.find().inbound.refused == 1


WRONG_CONTENT = {
    "wildcards in the response topic": (b"t", b"\x08\0\3a/#"),
    "wildcards in the topic": (b"t/#", b""),
    "U+0000 in the topic": (b"t\0", b""),
    "no UTF-8 in the topic": (b"t\xff", b""),
    "no UTF-8 in the content type": (b"t", b"\x03\0\1\xff"),
    "U+0000 in a user property": (b"t", b"\x26\0\1\0\0\1v"),
    "a payload format out of range": (b"t", b"\x01\2"),
    "a property given twice": (b"t", b"\x01\0\x01\0"),
    "a property that nobody knows": (b"t", b"\x7e\0"),
    "a property of another packet": (b"t", b"\x21\0\1"),
    "a property that is cut off": (b"t", b"\x03\0\7x"),
}


# Before MQTT 5 there are no properties.
WRONG_IN_VERSIONS = [
    (version, wrong)
    for version in ("mqttv311", "mqttv50")
    for wrong, (_, properties) in WRONG_CONTENT.items()
    if version == "mqttv50" or not properties
]


def wrong_publish(topic: bytes, properties: bytes, qos: int, version: str) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (b"\0\1" if qos else b"")
    if version == "mqttv50":
        body += bytes((len(properties),)) + properties
    return bytes((0x30 | qos << 1, len(body) + 6)) + body + POISON


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("version", "wrong"), WRONG_IN_VERSIONS)
def test_content_that_breaks_a_rule_does_not_end_the_link(version: str, wrong: str, qos: int) -> None:
    """Brokers pass on what others refuse: it would come again after each reconnect."""
    topic, properties = WRONG_CONTENT[wrong]
    network = Network()
    opened = network.script("south")
    north = network.add("north")
    north.listen("#")
    north.bridge("# both 2", bridge_protocol_version=version)
    opened[0].accept()
    opened[0].send_bytes(wrong_publish(topic, properties, qos, version))
    opened[0].send(Publish("t/1", b"after", 1, packet_id=2))
    network.advance(1)
    answers = [each for each in opened[0].take() if isinstance(each, Puback | Pubrec)]
    assert [each.packet_id for each in answers] == ([1, 2] if qos else [2])
    if version == "mqttv50" and qos:
        assert answers[0].reason_code == Reason.UNSPECIFIED_ERROR  # Mosquitto closes on words of DISCONNECT.
    assert north.is_up
    assert len(opened) == 1
    assert north.take_heard() == [b"after"]
    assert north.find().inbound.refused == 1
    (event,) = [each for each in north.broker.take_events() if isinstance(each, PublicationRefused)]
    assert event.topic == topic.decode(errors="replace")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("chunk_bytes", [1, 60, 1_000, 100_000])
@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_packet_larger_than_we_take_does_not_end_the_link(version: str, chunk_bytes: int, qos: int) -> None:
    """Before MQTT 5 no broker can be told how large a packet may be, and a broker need not heed it."""
    network = Network()
    opened = network.script("south")
    north = network.add("north", limits=Limits(packet_bytes=2_000))
    north.listen("t/#")
    north.bridge("# both 2", bridge_protocol_version=version)
    opened[0].accept()
    packet_id, number = min(qos, 1), 5 if version == "mqttv50" else 4
    packets = [
        Publish("t/0", b"before", 0),
        Publish("t/large", bytes(70_000), qos, packet_id=packet_id),
        Publish("t/after", b"after", 1, packet_id=2),
    ]
    data = b"".join(codec.encode(packet, number) for packet in packets)
    step = chunk_bytes if chunk_bytes > 1 else len(data)
    head, rest = (data[:100], data[100:]) if chunk_bytes == 1 else (b"", data)
    chunks = [head[at : at + 1] for at in range(len(head))] + [
        rest[at : at + step] for at in range(0, len(rest), step)
    ]
    for chunk in chunks:
        opened[0].send_bytes(chunk)
    network.advance(1)
    answers = [each for each in opened[0].take() if isinstance(each, Puback | Pubrec)]
    assert [each.packet_id for each in answers] == ([1, 2] if qos else [2])
    assert north.is_up
    assert len(opened) == 1
    assert north.take_heard() == [b"before", b"after"]
    assert north.find().inbound.refused == 1


# What this end knows that the far one cannot take


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_that_the_prefix_makes_too_long_is_set_aside(qos: int) -> None:
    network = Network()
    north, south = network.add("north"), network.add("south")
    north.bridge('# out 2 "" a/prefix/')
    south.listen()
    north.publish("t" * 65_530, POISON, qos)
    north.publish("t", b"after", qos)
    assert south.take_heard() == [b"after"]
    (event,) = set_aside(north)
    assert "no valid name" in event.reason
    assert north.find().ledger.refused == 1
    assert north.broker.stats.publish_set_aside == 1
    check_balance(north)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_larger_than_the_far_end_takes_is_set_aside(qos: int) -> None:
    network = Network()
    far = PickyBroker(network)
    far.connack = Connack(properties={"maximum_packet_size": 500})
    north = network.add("north")
    north.bridge("# out 2")
    north.publish("t", b"x" * 500, qos)
    north.publish("t", b"after", max(qos, 1))
    network.advance(5)
    assert far.payloads == [b"after"]
    (event,) = set_aside(north)
    assert "500 bytes" in event.reason
    assert north.find().ledger.too_large == 1
    check_balance(north)


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_with_an_error_is_counted_and_logged(qos: int) -> None:
    network = Network()
    far = PickyBroker(network)
    far.answers = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else 0
    north = network.add("north")
    north.bridge("# out 2")
    north.publish("t", POISON, qos)
    north.publish("t", b"after", qos)
    network.advance(5)
    assert far.payloads == [b"after"]
    assert far.connections == 1
    (event,) = set_aside(north)
    assert "payload format invalid" in event.reason
    assert north.find().ledger.refused == 1
    check_balance(north)


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_with_a_word_that_it_cannot_have_is_one_with_an_error(qos: int) -> None:
    """Mosquitto answers so what is larger than its message_size_limit."""
    network = Network()
    far = PickyBroker(network)
    far.answers = lambda packet: Reason.PACKET_TOO_LARGE if is_poison(packet) else 0
    north = network.add("north")
    north.bridge("# out 2")
    north.publish("t", POISON, qos)
    north.publish("t", b"after", qos)
    network.advance(5)
    assert far.payloads == [b"after"]
    assert far.connections == 1
    (event,) = set_aside(north)
    assert "packet too large" in event.reason


# What the far end closes on


REFUSED = [
    Reason.PAYLOAD_FORMAT_INVALID,
    Reason.PACKET_TOO_LARGE,
    Reason.PROTOCOL_ERROR,
    Reason.TOPIC_NAME_INVALID,
    Reason.QUOTA_EXCEEDED,
    Reason.NOT_AUTHORIZED,
    Reason.UNSPECIFIED_ERROR,
]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_far_end_refuses_twice_waits_until_it_takes_it(reason: int, qos: int) -> None:
    network = Network()
    far = PickyBroker(network)
    is_ill = True
    far.refuses = lambda packet: reason if is_ill and is_poison(packet) else None
    north = network.add("north", durable=True)
    north.bridge("# out 2")
    for payload in (b"1", b"2", POISON, b"3", b"4"):
        north.publish("t", payload, qos)
    network.advance(30)
    assert list(dict.fromkeys(far.payloads)) == [b"1", b"2", b"3", b"4"]
    assert [packet.payload for packet in far.refused] == [POISON, POISON]
    (event,) = set_aside(north)
    assert event.topic == "t"
    assert north.is_up
    north.publish("t", b"5", qos)
    assert far.payloads[-1] == b"5"
    check_balance(north)
    assert len(north.store.waits) == 1
    is_ill = False
    network.advance(RETRY_S)
    assert far.payloads.count(POISON) == 1
    assert not north.find().session.outbox
    assert not north.store.waits
    assert north.find().session.suspicion is None
    check_balance(north)


def test_what_a_broker_of_3_1_1_closes_on_is_tried_ever_less_often() -> None:
    network = Network()
    far = PickyBroker(network)
    is_ill = True
    far.refuses = lambda packet: 0 if is_ill and is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1", bridge_protocol_version="mqttv311")
    for payload in (b"1", POISON, b"2"):
        north.publish("t", payload)
    network.advance(30)
    assert list(dict.fromkeys(far.payloads)) == [b"1", b"2"]
    assert len(far.refused) == 2
    (event,) = set_aside(north)
    assert "closes when it comes" in event.reason
    network.advance(3_600)
    assert len(far.refused) == 2 + 5  # after 1, 2, 4, 8 and 16 minutes
    assert set_aside(north) == []
    north.publish("t", b"3")
    assert far.payloads[-1] == b"3"
    check_balance(north)
    is_ill = False
    network.advance(3_600)
    assert far.payloads[-1] == POISON
    assert not north.find().session.outbox


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_one_that_is_tried_again_does_not_hold_up_the_others(version: str) -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1", bridge_protocol_version=version)
    north.publish("t", POISON)
    for number in range(600):
        north.publish("t", b"%d" % number)
        network.advance(1)
    assert list(map(int, far.payloads)) == list(range(600))  # and in order
    assert len(far.refused) == 2 + 3


def test_what_is_parked_takes_no_part_of_the_window() -> None:
    network = Network()
    far = PickyBroker(network)
    far.connack = Connack(properties={"receive_maximum": 1})
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1")
    for _ in range(3):
        north.publish("t", POISON)
    for number in range(20):
        north.publish("t", b"%d" % number)
    network.advance(50)
    assert list(map(int, far.payloads)) == list(range(20))
    assert len(set_aside(north)) == 3


def test_what_is_parked_is_bounded_and_gives_way_to_others() -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if len(packet.payload) > 1_000 else None
    north = network.add("north")
    north.bridge("# out 1", queue_bytes=30_000)
    for _ in range(20):
        north.publish("t", b"x" * 4_000)
        network.advance(20)
    for number in range(200):
        north.publish("t", b"%d" % number * 20)
    network.advance(20)
    assert len(set(far.payloads)) == 200
    session = north.find().session
    assert session.outbox is not None
    assert session.outbox.bytes <= 30_000
    check_balance(north)


def test_a_parked_message_that_expires_is_over() -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north", durable=True)
    north.bridge("# out 1")
    client = north.connect("publisher")
    client.publish("t", POISON, 1, properties={"message_expiry_interval": 30})
    network.advance(RETRY_S + 10)
    assert len(far.refused) == 2
    assert not north.find().session.outbox
    assert not north.store.waits
    assert north.find().ledger.expired == 1
    check_balance(north)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_foreign_broker_closes_on_without_a_word_is_found_in_mqtt_5(qos: int) -> None:
    """Mosquitto does so on control characters, and where its reset overtakes its DISCONNECT."""
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: 0 if is_poison(packet) else None
    north = network.add("north", durable=True)
    north.bridge("# out 2")
    for payload in (b"1", b"2", POISON, b"3"):
        north.publish("t", payload, qos)
    network.advance(5)
    assert list(dict.fromkeys(far.payloads)) == [b"1", b"2", b"3"]
    assert len(far.refused) == 4
    (event,) = set_aside(north)
    assert "closes when it comes" in event.reason
    assert north.is_up
    check_balance(north)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
@pytest.mark.parametrize("topics", [1, 100])
def test_many_poisoned_messages_cost_no_long_silence(topics: int, version: str) -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1", bridge_protocol_version=version)
    for number in range(100):
        north.publish(f"t/{number % topics}", POISON)
        if topics > 1:
            north.publish("u", b"%d" % number)
    north.publish("u", b"last")
    network.advance(60)
    assert far.payloads[-1] == b"last"
    assert len(set_aside(north)) == 100
    assert len(far.refused) == (200 if topics > 1 else 101)
    check_balance(north)


def test_a_far_end_that_takes_nothing_is_not_dialled_at_once_for_ever() -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID
    north = network.add("north")
    north.bridge("# out 1")
    for number in range(1_000):
        north.publish(f"t/{number}", b"x")
    network.advance(600)
    assert far.connections < 128 + 600 / 5


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_retained_message_is_found_where_the_queue_does_not_outlive_its_connection(version: str) -> None:
    network = Network()
    far = PickyBroker(network)
    far.keeps_sessions = False
    far.refuses = lambda packet: 0 if is_poison(packet) else None
    north = network.add("north")
    for topic, payload in (("a", b"1"), ("b", POISON), ("c", b"2")):
        north.publish(topic, payload, retain=True)
    north.bridge("# out 1", bridge_protocol_version=version, cleansession=True, local_cleansession=True)
    network.advance(30)
    assert set(far.payloads) == {b"1", b"2"}
    assert len(set_aside(north)) == 1
    assert north.is_up
    count = far.connections
    north.publish("d", b"3")
    network.advance(20)
    assert far.payloads[-1] == b"3"
    assert far.connections == count


def test_live_traffic_waits_while_a_message_is_tried() -> None:
    """Or it might be what the far end closes on."""
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1")
    north.publish("t", POISON)
    for number in range(200):
        north.publish("t", b"live", 0)
        north.publish("u", b"%d" % number, 1)
        network.advance(0.05)
    network.advance(30)
    assert sorted(set(map(int, far.payloads))) == list(range(200))
    assert len(set_aside(north)) == 1
    check_balance(north)


def test_two_poisoned_messages_are_both_found() -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PROTOCOL_ERROR if is_poison(packet) else None
    north = network.add("north")
    north.bridge("# out 1")
    for payload in (POISON, b"1", POISON, b"2"):
        north.publish("t", payload)
    network.advance(60)
    assert sorted(set(far.payloads)) == [b"1", b"2"]
    assert len(set_aside(north)) == 2
    assert north.is_up


def test_a_retained_message_that_is_refused_is_not_told_again_on_each_connection() -> None:
    network = Network()
    far = PickyBroker(network)
    far.keeps_sessions = False  # So that it is told all that is retained, on each connection.
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    north = network.add("north")
    for topic, payload in (("a", b"1"), ("b", POISON), ("c", b"2")):
        north.publish(topic, payload, retain=True)
    north.bridge("# out 1")
    network.advance(30)
    assert set(far.payloads) == {b"1", b"2"}
    assert len(set_aside(north)) == 1
    assert north.is_up
    refused = len(far.refused)
    network.lose("north", "south")
    network.advance(30)
    assert north.is_up
    assert len(far.refused) == refused
    north.publish("b", b"better", retain=True)
    network.advance(5)
    assert b"better" in far.payloads
    check_balance(north)


def test_no_acknowledged_message_is_set_aside_for_one_at_qos_0() -> None:
    """Whoever may publish at QoS 0 what the far end refuses must not have others' messages discarded."""
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if is_poison(packet) else None
    far.judges_qos_0 = True
    north = network.add("north")
    north.bridge("# out 1", restart_timeout="1 2")
    sent = []
    for number in range(400):
        sent.append(b"%d" % number)
        north.publish("t", sent[-1], 1)
        if number % 7 == 0:
            north.publish("u", POISON, 0)
        network.advance(0.11)
    network.advance(60)
    assert set(far.payloads) == set(sent)
    assert set_aside(north) == []


# Ordinary failures discard nothing


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_restarts_and_resets_lose_nothing(version: str) -> None:
    network = Network()
    north, south = network.add("north", durable=True), network.add("south", durable=True)
    south.listen("t/#")
    north.bridge("# out 2", bridge_protocol_version=version, restart_timeout="1 2")
    sent = []
    for number in range(120):
        sent.append(b"%d" % number)
        network.flows = bool(number % 3)  # What is in flight is lost with the connection.
        north.publish(f"t/{number % 7}", sent[-1], 1 + number % 2)
        if number % 4 == 0:
            network.lose("north", "south")
        if number % 10 == 5:
            south.crash()
        if number % 25 == 7:
            north.crash()
        network.flows = True
        network.advance(0.3 + number % 5)
    network.advance(120)
    assert set(south.take_heard()) == set(sent)
    assert set_aside(north) == []


@pytest.mark.parametrize("reason", [0, Reason.SERVER_SHUTTING_DOWN, Reason.SERVER_BUSY, 0x98])
def test_a_far_end_that_closes_on_everything_for_a_while_loses_nothing(reason: int) -> None:
    """As one does that is being stopped, again and again."""
    network = Network()
    far = PickyBroker(network)
    is_ill = True
    far.refuses = lambda packet: reason if is_ill and far.connections % 4 else None
    north = network.add("north")
    north.bridge("# out 1")
    for number in range(20):
        north.publish("t", b"%d" % number)
    network.advance(600)
    is_ill = False
    network.advance(600)
    assert set(far.payloads) == {b"%d" % number for number in range(20)}
    assert set_aside(north) == []


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
@pytest.mark.parametrize("is_ours", [True, False], ids=["our node", "foreign"])
def test_resets_that_hit_one_message_discard_and_delay_nothing(
    version: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is on the way sees sizes, and resets each connection that carries the message which it chose."""
    network = Network()
    far, north, south = PickyBroker(network, "foreign"), network.add("north"), network.add("south")
    south.listen("t")
    deliver, resets = Wire.deliver, 0

    def deliver_or_reset(wire: Wire, index: int) -> bool:
        nonlocal resets
        if index == 1 and wire.waiting[1] and len(wire.waiting[1][0]) > 2_900 and resets < 30:
            resets += 1
            wire.lose()
            return False
        return deliver(wire, index)

    monkeypatch.setattr(Wire, "deliver", deliver_or_reset)
    where = "south" if is_ours else "foreign"
    north.bridge("t out 1", address=where, bridge_protocol_version=version, restart_timeout="1 2")
    north.publish("t", b"x" * 3_000)
    network.advance(100)
    assert resets == 30
    assert (south.take_heard() if is_ours else far.payloads) == [b"x" * 3_000]
    assert set_aside(north) == []
    assert not north.find().session.outbox


@pytest.mark.parametrize("is_durable", [True, False])
def test_both_ends_may_be_careful_at_once(is_durable: bool) -> None:
    """Neither waits with its acknowledgements until the other has sent one."""
    network = Network()
    north, south = network.add("north", durable=is_durable), network.add("south", durable=is_durable)
    north.listen("down/#")
    south.listen("up/#")
    bridge = north.bridge("up/# out 1", "down/# in 1")
    network.advance(3)
    network.flows = False
    for number in range(60):
        north.publish(f"up/{number}", b"%d" % number)
        south.publish(f"down/{number}", b"%d" % number)
    (wire,) = network.between("north", "south")
    for side in wire.sides:
        assert isinstance(side, Connection)
        side.far_reason = Reason.PAYLOAD_FORMAT_INVALID
    network.lose("north", "south")
    far_session = next(each for each in south.broker.sessions.values() if each.outbox)
    for session in (bridge.session, far_session):
        assert session.suspicion is not None
        assert session.suspicion.is_careful
    network.flows = True
    network.advance(30)
    assert set(north.take_heard()) == set(south.take_heard()) == {b"%d" % number for number in range(60)}
    for session in (bridge.session, far_session):
        assert not session.outbox
        assert session.suspicion is None


def test_a_far_end_that_does_not_answer_a_careful_link_holds_up_nothing() -> None:
    network = Network()
    far = PickyBroker(network)
    far.refuses = lambda packet: Reason.PAYLOAD_FORMAT_INVALID if far.connections == 1 else None
    far.acknowledges = lambda packet: packet.payload != b"slow"
    north = network.add("north")
    north.bridge("# out 1", restart_timeout="1 2")
    north.publish("t", b"slow")
    for number in range(10):
        north.publish("t", b"%d" % number)
    network.advance(5)
    assert far.connections == 2
    assert far.payloads == [b"slow"]  # and nothing beside it
    network.advance(5)
    assert far.payloads == [b"slow", *(b"%d" % number for number in range(10))]
    assert set_aside(north) == []
    assert north.is_up


def test_a_broker_of_3_1_1_that_stops_again_and_again_loses_nothing() -> None:
    """Without a word, while whatever it was sent is on its way."""
    network = Network()
    far = PickyBroker(network)
    is_ill = True
    far.refuses = lambda packet: 0 if is_ill else None
    north = network.add("north", durable=True)
    north.bridge("# out 1", bridge_protocol_version="mqttv311")
    for number in range(20):
        north.publish("t", b"%d" % number)
    network.advance(600)
    is_ill = False
    network.advance(3_600)
    assert set(far.payloads) == {b"%d" % number for number in range(20)}
    assert not north.store.waits
    check_balance(north)


def test_silent_cuts_are_no_verdict() -> None:
    network = Network()
    north, south = network.add("north"), network.add("south")
    south.listen()
    north.bridge("# out 1", restart_timeout="1 2")
    for _ in range(12):
        network.advance(4)
        network.flows = False
        north.publish("t", b"kept")
        network.cut("north", "south")
        network.flows = True
        network.advance(30)
        network.mend("north", "south")
        network.advance(10)
    assert len(south.take_heard()) == 12
    assert set_aside(north) == []


# Neighbours, whoever dialled


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a node refuse what has `POISON` in it, wherever it comes from."""

    def refuse(name: str) -> None:
        for dialect in (FROM_CLIENTS, FROM_SERVERS):
            handlers: Any = dialect.handlers
            handle, state = handlers[PUBLISH]
            monkeypatch.setitem(handlers, PUBLISH, (partial(handle_or_refuse, name, handle), state))

    def handle_or_refuse(name: str, handle: Callable[..., None], by: Connection, packet: Publish) -> None:
        if by.broker.node_id == name and POISON in packet.payload:
            raise ProtocolError(Reason.PAYLOAD_FORMAT_INVALID, "we do not like it", "§4.13")
        handle(by, packet)

    return refuse


@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("b", "a")])
def test_a_neighbour_is_not_lost_for_a_message(
    sender: str, receiver: str, refusing: Callable[[str], None]
) -> None:
    fabric = Fabric()
    fabric.add("a", "b")
    fabric.add("b")  # It accepts, and never dials.
    fabric.settle_links()
    inbox = fabric[receiver].subscribe("t/#")
    publisher = fabric[sender].subscribe("other")
    fabric.advance(1)
    refusing(receiver)
    links = fabric.between("a", "b")
    one: Any = {"user_property": (("a", "b"),)}
    publisher.publish("t/1", b"1")
    publisher.publish("t/2", POISON, properties=one)
    publisher.publish("t/3", b"3")
    fabric.advance(60)
    assert inbox.payloads[-1] == b"3"
    assert set(inbox.payloads) == {b"1", b"3"}
    assert fabric.between("a", "b") == links
    (event,) = set_aside(fabric[sender])
    assert event.topic == "t/2"
    assert not fabric[sender].session_of(receiver).outbox
    assert fabric[sender].session_of(receiver).ledger.refused == 1


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_that_are_wrong_here_do_not_end_the_link(version: str, qos: int) -> None:
    network = Network()
    opened = network.script("south")
    north = network.add("north")
    north.listen("t/#")
    north.bridge("# both 2", bridge_protocol_version=version)
    opened[0].accept()
    right, wrong = b"t/xxx", b"t/x+x"
    packet = codec.encode(
        Publish(right.decode(), b"1", qos, packet_id=min(qos, 1)), 5 if version == "mqttv50" else 4
    )
    opened[0].send_bytes(packet.replace(right, wrong))
    opened[0].send(Publish("t/1", b"after", 1, packet_id=2))
    network.advance(1)
    answers = [each for each in opened[0].take() if isinstance(each, Puback | Pubrec)]
    assert [each.packet_id for each in answers] == ([1, 2] if qos else [2])
    if version == "mqttv50" and qos:
        assert answers[0].reason_code == Reason.UNSPECIFIED_ERROR
    assert north.is_up
    assert north.take_heard() == [b"after"]
    assert north.find().inbound.refused == 1


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_far_end_of_ours_that_fails_at_a_message_gets_all_others(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of its own, which has general words in MQTT 5 and none before."""
    for role in (ClientRole, IdentifiedRole):
        monkeypatch.setattr(role, "short_path", {})
    network = Network()
    north, south = network.add("north"), network.add("south")
    south.listen("t")
    north.bridge("# out 1", bridge_protocol_version=version)
    deliver, is_ill = Wire.deliver, True

    def receive_or_fail(self: Role, connection: Connection, packet: Publish) -> bool:
        if connection.broker is south.broker and packet.payload == POISON and is_ill:
            raise RuntimeError("a mistake")
        return False

    def deliver_as_a_link(wire: Wire, index: int) -> bool:
        try:
            return deliver(wire, index)
        except RuntimeError as error:
            side: Any = wire.sides[index]
            side.fail(error)
            return True

    monkeypatch.setattr(Role, "receive", receive_or_fail)
    monkeypatch.setattr(Wire, "deliver", deliver_as_a_link)
    for payload in (b"1", POISON, b"2"):
        north.publish("t", payload)
    network.advance(30)
    assert north.is_up
    assert list(dict.fromkeys(south.take_heard())) == [b"1", b"2"]
    is_ill = False
    network.advance(RETRY_S)
    assert south.take_heard() == [POISON]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("who", ["node", "sidecar"])
def test_wrong_content_at_a_foreign_broker_ends_no_link_of_a_federation(who: str, qos: int) -> None:
    """Anybody there may publish where federators read, and have it retained."""
    fabric = Fabric()
    home = fabric.add_foreign("home")
    fabric.add("sidecar", home="home")
    fabric.add("node", "home")
    fabric.wait_for(lambda: fabric["node"].linked == {"sidecar"}, 5)
    sessions = [each for name, each in home.broker.sessions.items() if who in name]
    links = [each.connection for each in sessions if each.connection is not None]
    assert links
    for link in links:
        link.send(wrong_publish(NODE_TOPIC.encode() + who.encode(), b"\x08\0\3a/#", qos, "mqttv50"))
    fabric.advance(5)
    assert [each.connection for each in sessions if each.connection is not None] == links
    refused = [each for each in fabric[who].broker.take_events() if isinstance(each, PublicationRefused)]
    assert len(refused) == len(links)
    assert fabric["node"].linked == {"sidecar"}
