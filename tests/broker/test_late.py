"""What comes late is for those who were subscribed when it was published, and says its age to brokers."""

from __future__ import annotations

import pytest

from hedgerow.broker.deliveries import WAITED_S
from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.mqtt.ids import AGE_SLACK_S
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Packet,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from tests.broker.harness import Client, World
from tests.broker.test_identified import connect_peer, with_id

AGE = "hedgerow-age"


def late(age: str, text: str = "origin/1/1", qos: int = 1, **fields: bool) -> Publish:
    properties = with_id(text, (AGE, age))
    return Publish("t", text.encode(), qos, packet_id=1 if qos else 0, properties=properties, **fields)


def publications(client: Client) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


def ages(packets: list[Publish]) -> list[list[str]]:
    pairs = [packet.properties.get("user_property", ()) for packet in packets]
    return [[value for name, value in each if name == AGE] for each in pairs]


def is_given(world: World, client: Client, packet: Packet, peer_name: str = "far") -> bool:
    connect_peer(world, peer_name).send(packet)
    return bool(publications(client))


# Who gets it


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_who_subscribed_later_does_not_get_it(qos: int, version: int) -> None:
    world = World()
    early = world.connect("early", version)
    early.subscribe("t", qos)
    world.advance(3)
    later = world.connect("later", version)
    later.subscribe("t", qos)
    world.advance(3)
    assert is_given(world, early, late("4", qos=qos))
    assert publications(later) == []
    assert is_given(world, later, late("2", "origin/1/2", qos))


def test_a_moment_is_no_matter() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    assert is_given(world, client, late(f"{AGE_SLACK_S - 0.1}"))
    assert not is_given(world, client, late(f"{AGE_SLACK_S + 0.1}", "origin/1/2"))


def test_the_oldest_of_its_filters_counts() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("#", 0)
    world.advance(3)
    client.subscribe("t", 1)
    assert is_given(world, client, late("2"))


def test_to_subscribe_again_is_no_new_beginning() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    world.advance(3)
    client.subscribe("t", 2)
    assert is_given(world, client, late("2"))


def test_to_come_back_after_an_unsubscription_is_one() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    client.send(Unsubscribe(1, ["t"]))
    client.take_one(Unsuback)
    world.advance(3)
    client.subscribe("t", 1)
    assert not is_given(world, client, late("2"))


def test_who_was_away_gets_what_was_published_meanwhile() -> None:
    world = World()
    client = world.connect("client", kept=True)
    client.subscribe("t", 1)
    client.lose()
    world.advance(60)
    connect_peer(world).send(late("50"))
    assert publications(world.connect("client", kept=True))


def test_who_was_subscribed_before_a_restart_gets_it() -> None:
    world = World(durable=True)
    client = world.connect("client", kept=True)
    client.subscribe("t", 1)
    world.advance(10)
    world.crash(5)
    assert is_given(world, world.connect("client", kept=True), late("12"))


def test_a_shared_subscription_and_a_port_get_it() -> None:
    world = World()
    heard: list[Message] = []
    Port(world.broker, "test", heard.append).subscribe("t", world.now)
    client = world.connect("client")
    client.subscribe("$share/group/t", 1)
    assert is_given(world, client, late("100"))
    assert len(heard) == 1


def test_other_brokers_get_it_and_count_on() -> None:
    """Whoever comes late behind them is for them to know."""
    world = World()
    other = connect_peer(world, "other")
    other.subscribe("t", 1)
    other.set_congested(True)
    connect_peer(world).send(late("100"))
    world.advance(10)
    other.set_congested(False)
    packets = publications(other)
    assert ages(packets) == [["110.000"]]


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "-inf", "604801", "1e400", "9" * 60_000])
def test_what_is_no_age_is_as_if_it_were_not_there(text: str) -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    connect_peer(world).send(late(text))
    (packet,) = publications(client)
    assert packet.properties == {}


def test_clients_see_nothing_of_ages() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    world.advance(10)
    connect_peer(world).send(Publish("t", b"", properties=with_id("o/1/1", (AGE, "5"), ("mine", "1"))))
    (packet,) = publications(client)
    assert packet.properties == {"user_property": (("mine", "1"),)}


def test_an_age_of_a_client_is_an_application_matter() -> None:
    """It is passed on as it came, and no broker takes it for its own."""
    world = World()
    peer, client = connect_peer(world), world.connect("client")
    for each in (peer, client):
        each.subscribe("t", 1)
    said = Publish("t", b"", 1, packet_id=1, properties={"user_property": ((AGE, "3600"),)})
    world.connect("publisher").send(said)
    assert ages(publications(client)) == [["3600"]]
    assert ages(publications(peer)) == [["0.000", "3600"]]


# Who says it


def test_what_flows_says_no_age_and_what_is_sent_once_more_does() -> None:
    world = World()
    there, publisher = connect_peer(world, "there"), world.connect("publisher")
    there.subscribe("t", 1)
    for number in range(3):
        publisher.send(Publish("t", b"%d" % number, 1, packet_id=1))
        world.advance(1)
    assert ages(publications(there)) == [[]] * 3
    coming = connect_peer(world, "coming")
    coming.send(Subscribe(1, [Subscription("t", 1)]))
    assert ages(publications(coming)) == [["3.000"], ["2.000"], ["1.000"]]


def test_what_came_late_and_is_sent_once_more_is_as_old_as_it_is() -> None:
    world = World()
    connect_peer(world).send(late("100"))
    world.advance(1)
    coming = connect_peer(world, "coming")
    coming.send(Subscribe(1, [Subscription("t", 1)]))
    assert ages(publications(coming)) == [["101.000"]]


@pytest.mark.parametrize("is_long", [False, True])
def test_what_waits_says_its_age_after_a_while(is_long: bool) -> None:
    world = World()
    peer = connect_peer(world, kept=True)
    peer.subscribe("t", 1)
    publisher = world.connect("publisher")
    publisher.send(Publish("t", b"in flight", 1, packet_id=1))
    assert ages(publications(peer)) == [[]]
    peer.lose()
    publisher.send(Publish("t", b"queued", 1, packet_id=1))
    waited_s = WAITED_S + (0.5 if is_long else -0.5)
    world.advance(waited_s)
    peer = connect_peer(world, kept=True)
    peer.send(Puback(1))
    assert ages(publications(peer)) == [[f"{waited_s:.3f}"] if is_long else []] * 2


def test_what_was_in_the_store_counts_from_the_restart() -> None:
    world = World(durable=True)
    peer = connect_peer(world, kept=True)
    peer.subscribe("t", 1)
    peer.lose()
    world.connect("publisher").send(Publish("t", b"", 1, packet_id=1))
    world.advance(100)
    world.crash(50)
    world.advance(3)
    assert ages(publications(connect_peer(world, kept=True))) == [["3.000"]]


def test_a_value_has_no_age_and_those_before_it_have() -> None:
    """The newest is for whoever subscribes, however late."""
    world = World()
    there, publisher = connect_peer(world, "there"), world.connect("publisher")
    there.subscribe("t", 1, retain_as_published=True)
    for number in range(3):
        publisher.send(Publish("t", b"%d" % number, 1, True, packet_id=1))
        world.advance(1)
    coming = connect_peer(world, "coming")
    coming.send(Subscribe(1, [Subscription("t", 1, retain_handling=2, retain_as_published=True)]))
    assert ages(publications(coming)) == [["3.000"], ["2.000"], []]


def test_a_past_value_is_kept_and_is_no_news_for_who_comes_late() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("t", 1)
    peer = connect_peer(world)
    peer.send(late("5", retain=True), Publish("t", b"newest", 0, True, properties=with_id("origin/1/2")))
    assert client.take_payloads() == [b"newest"]
