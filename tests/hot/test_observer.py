"""The topic monitor hears of each publication that has a client to go to, once, whatever way it takes."""

from __future__ import annotations

from collections import Counter

import pytest

from hedgerow.bridges.roles import BridgeRole
from hedgerow.broker.port import Port
from hedgerow.broker.publishing import deliver_to, publish_message
from hedgerow.broker.watching import set_role
from hedgerow.hot.observer import HotObserver
from hedgerow.message import Message
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, MQTT_EXTENDED, Publish, Subscription, Will
from tests.broker.harness import Client, World
from tests.broker.test_identified import connect_peer, identified
from tests.broker.test_port import RecordingPort
from tests.mobility.fake_mobility import MobileWorld


class Counting:
    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        world.broker.observe(HotObserver(self))

    def note(self, topic: str, now: float) -> None:
        self.note_many(topic, 1, now)

    def note_many(self, topic: str, count: int, now: float) -> None:
        assert now == self.world.now
        assert count > 0
        self.counts[topic] += count


@pytest.fixture
def world() -> World:
    return MobileWorld()


@pytest.fixture
def counting(world: World) -> Counting:
    return Counting(world)


def subscriber(world: World, topic_filter: str = "#", qos: int = 2, version: int = MQTT_5) -> Client:
    client = world.connect(f"subscriber of {topic_filter} {version}", version, kept=True)
    client.subscribe(topic_filter, qos)
    return client


def publications(*topics: str, qos: int = 0) -> list[Publish]:
    return [Publish(topic, b"x", qos, packet_id=n * bool(qos)) for n, topic in enumerate(topics, 1)]


def arrived(client: Client) -> Counter[str]:
    return Counter(packet.topic for packet in client.take() if isinstance(packet, Publish))


@pytest.mark.parametrize(
    "versions", [(MQTT_5,), (MQTT_3_1_1,), (MQTT_3_1_1, MQTT_5), (MQTT_5, MQTT_EXTENDED)]
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_is_counted_once_however_many_get_it(
    world: World, counting: Counting, versions: tuple[int, ...], qos: int
) -> None:
    """Verbatim runs, one topic or several; forms that differ; QoS 1 in runs; QoS 2."""
    clients = [subscriber(world, version=version) for version in versions]
    publisher = world.connect("publisher")
    publisher.send(*publications("a", "a", "a", "b", "c", "c", qos=qos))
    assert counting.counts == {"a": 3, "b": 1, "c": 2}
    if MQTT_EXTENDED not in versions:
        for client in clients:
            assert arrived(client) == counting.counts


def test_a_chunk_that_is_the_same_again_is_counted_again(world: World, counting: Counting) -> None:
    client = subscriber(world)
    publisher = world.connect("publisher")
    data = codec.encode(Publish("a", b"x"), MQTT_5)
    for _ in range(3):
        publisher.send_bytes(data)
    assert publisher.connection.repeated is not None
    assert counting.counts == {"a": 3}
    assert arrived(client) == counting.counts


def test_a_chunk_that_is_cut_within_a_packet(world: World, counting: Counting) -> None:
    subscriber(world)
    publisher = world.connect("publisher")
    data = codec.encode(Publish("a", b"x"), MQTT_5) * 4
    publisher.send_bytes(data[:-3])
    assert counting.counts == {"a": 3}
    publisher.send_bytes(data[-3:])
    assert counting.counts == {"a": 4}


def test_what_goes_the_long_way(world: World, counting: Counting) -> None:
    subscriber(world)
    publisher = world.connect("publisher")
    publisher.publish("a", b"x", properties={"content_type": "text"})
    publisher.publish("a", b"x", 1, retain=True)
    world.connect("other", will=Will("gone", b"x")).lose()
    assert counting.counts == {"a": 2, "gone": 1}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_nobody_gets_does_not_count(world: World, counting: Counting, qos: int) -> None:
    RecordingPort(world, "#")
    connect_peer(world, "other").subscribe("#", 2)
    bridge = world.broker.create_session("bridge", None)
    set_role(world.broker, bridge, BridgeRole("node"))
    world.broker.subscriptions.add(bridge, Subscription("#", 2), None)
    publisher = world.connect("publisher")
    publisher.send(*publications("a", "a", "b", qos=qos))
    assert counting.counts == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_beside_ports_and_brokers(world: World, counting: Counting, qos: int) -> None:
    subscriber(world, "a")
    port = RecordingPort(world, "#")
    connect_peer(world, "other").subscribe("#", 2)
    world.connect("publisher").send(*publications("a", "a", "b", qos=qos))
    assert port.payloads == [b"x"] * 3
    assert counting.counts == {"a": 2}


@pytest.mark.parametrize("qos", [0, 1])
def test_what_other_brokers_publish_counts_unless_it_was_here(
    world: World, counting: Counting, qos: int
) -> None:
    subscriber(world)
    peer = connect_peer(world)
    run = [identified(f"far/1/{n}", b"x", qos, "a", packet_id=n * qos) for n in (1, 2, 3)]
    peer.send(*run)
    assert counting.counts == {"a": 3}
    peer.send(*run)
    peer.send(identified("far/1/4", b"x", qos, "a", packet_id=4 * qos))
    assert counting.counts == {"a": 4}


def test_what_ports_publish_counts_but_not_what_the_broker_says_itself(
    world: World, counting: Counting
) -> None:
    subscriber(world)
    port = Port(world.broker, "port", lambda message: None)
    port.publish(Message("a", b"x"), world.now)
    route = world.broker.find_route("b")
    publish_message(world.broker, Message("b", b"x"), route, None)
    assert counting.counts == {"a": 1}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_withheld_counts(world: World, counting: Counting, qos: int) -> None:
    client = subscriber(world, "a")
    world.broker.subscriptions.set_active("a", False)
    world.connect("publisher").send(*publications("a", "a", "b", qos=qos))
    assert counting.counts == {"a": 2}
    session = world.broker.sessions[client.connection.connected_session().client_id]
    deliver_to(world.broker, session, Message("a", b"x", 1), world.broker.find_route("a"), 1)
    assert counting.counts == {"a": 2}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_is_a_client_s(world: World, counting: Counting, qos: int) -> None:
    world.connect("member").subscribe("$share/g/a", 2)
    world.connect("publisher").send(*publications("a", "a", "b", qos=qos))
    assert counting.counts == {"a": 2}
