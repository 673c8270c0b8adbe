"""Subscriptions that are inactive, clients that are away: who gets a topic, and who is told of what."""

from __future__ import annotations

from collections import Counter

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.port import Port
from hedgerow.broker.publishing import deliver_to, deliver_to_rest
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher, Session
from hedgerow.broker.watching import watch
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.broker.harness import Client, World
from tests.broker.test_identified import connect_peer
from tests.broker.test_port import RecordingPort

QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def elsewhere(world: World, topic: str) -> dict[str, bool]:
    """Client id → is it active, for those whom the route leaves out."""
    route, inactive = world.broker.find_route(topic), world.broker.subscriptions.inactive
    here = {each.session for each in route.recipients}
    withheld = {
        session.client_id: False
        for session in world.broker.sessions.values()
        if session not in here and any(inactive.holds(session, each) for each in route.inactive)
    }
    return withheld | {each.session.client_id: True for each in route.elsewhere}


def subscribed(world: World, client_id: str, *filters: str, qos: int = 1) -> Client:
    client = world.connect(client_id, kept=True)
    for topic_filter in filters:
        client.subscribe(topic_filter, qos)
    return client


# Who is left out


@QOS
def test_whose_filter_is_inactive_gets_nothing_from_here(qos: int) -> None:
    world = World()
    client = subscribed(world, "client", "a/+")
    publisher = world.connect("publisher")
    publisher.publish("a/b", b"before", qos)
    world.broker.subscriptions.set_active("a/+", False)
    publisher.publish("a/b", b"inactive", qos, 2 * bool(qos))
    assert elsewhere(world, "a/b") == {"client": False}
    world.broker.subscriptions.set_active("a/+", True)
    publisher.publish("a/b", b"after", qos, 3 * bool(qos))
    assert elsewhere(world, "a/b") == {}
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [
        b"before",
        b"after",
    ]


def test_one_subscription_that_is_not_inactive_is_enough() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("a/b", 0, identifier=1)
    client.subscribe("a/+", 1, identifier=2)
    world.broker.subscriptions.set_active("a/+", False)
    assert elsewhere(world, "a/b") == {}
    world.connect("publisher").publish("a/b", b"x", 1)
    packet = client.take_one(Publish)
    assert packet.qos == 1
    assert set(packet.properties["subscription_identifier"]) == {1, 2}
    assert elsewhere(world, "a/c") == {"client": False}


def test_a_inactive_filter_says_nothing_of_others_that_match() -> None:
    world = World()
    here, inactive = subscribed(world, "here", "a/#"), subscribed(world, "inactive", "a/+")
    world.broker.subscriptions.set_active("a/+", False)
    world.connect("publisher").publish("a/b", b"x")
    assert here.take_payloads() == [b"x"]
    assert inactive.take() == []


@QOS
def test_who_is_away_gets_nothing_from_here(qos: int) -> None:
    world = World()
    client = subscribed(world, "client", "a/+", "b")
    publisher = world.connect("publisher")
    publisher.publish("b", b"before", qos)
    world.broker.set_away(world.broker.sessions["client"], True)
    world.broker.subscriptions.set_active("a/+", False)
    publisher.publish("b", b"away", qos, 2 * bool(qos))
    assert elsewhere(world, "b") == {"client": True}
    assert elsewhere(world, "a/b") == {"client": False}
    world.broker.set_away(world.broker.sessions["client"], False)
    publisher.publish("b", b"after", qos, 3 * bool(qos))
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [
        b"before",
        b"after",
    ]


@pytest.mark.parametrize(("version", "none"), [(MQTT_5, 0x10), (MQTT_3_1_1, 0)])
def test_a_publication_that_is_served_elsewhere_has_subscribers(version: int, none: int) -> None:
    world = World()
    subscribed(world, "client", "a")
    world.broker.subscriptions.set_active("a", False)
    publisher = world.connect("publisher", version)
    publisher.publish("a", b"x", 1)
    assert publisher.take() == [Puback(1, 0)]
    publisher.publish("a", b"x", 2, 2)
    assert publisher.take() == [Pubrec(2, 0)]
    publisher.publish("b", b"x", 1, 3)
    assert publisher.take() == [Puback(3, none)]


def test_links_to_other_brokers_and_shared_subscriptions_are_not_served_elsewhere() -> None:
    world = World()
    peer = connect_peer(world)
    peer.subscribe("a", 1)
    member = world.connect("member")
    member.subscribe("$share/g/a", 1)
    world.broker.set_away(world.broker.sessions["member"], True)
    world.broker.subscriptions.set_active("a", False)
    assert elsewhere(world, "a") == {}
    world.connect("publisher").publish("a", b"x", 1)
    assert peer.take_one(Publish).payload == b"x"
    assert member.take_one(Publish).payload == b"x"


def test_who_may_not_read_a_topic_is_not_served_elsewhere_from_it_either() -> None:
    world = World(access=Access(Acl.parse("topic read a/+\ntopic deny a/secret\n", "acl")))
    client = subscribed(world, "client", "a/+")
    world.broker.subscriptions.set_active("a/+", False)
    for topic in ("a/open", "a/secret"):
        deliver_to(world.broker, world.broker.sessions["client"], Message(topic, topic.encode(), 1), None, 1)
    world.settle()
    assert client.take_payloads() == [b"a/open"]


def test_a_session_that_comes_back_as_a_client_may_be_served_elsewhere() -> None:
    world = World(durable=True)
    peer = connect_peer(world, kept=True)
    peer.subscribe("a", 1)
    world.crash()
    world.broker.subscriptions.set_active("a", False)
    assert elsewhere(world, "a") == {}
    world.connect("bridge of far", kept=True, properties={"maximum_packet_size": 1_000})
    assert elsewhere(world, "a") == {"bridge of far": False}


# What is delivered to them all the same


def test_a_delivery_to_one_who_is_served_elsewhere_is_as_its_subscriptions_say() -> None:
    world = World()
    client = world.connect("client")
    client.subscribe("a/+", 1, identifier=1, retain_as_published=True)
    client.subscribe("a/#", 0, identifier=2)
    other = subscribed(world, "other", "a/#")
    for topic_filter in ("a/+", "a/#"):
        world.broker.subscriptions.set_active(topic_filter, False)
    route = world.broker.find_route("a/b")
    assert not route.recipients
    message = Message("a/b", b"x", 2, retain=True, id=MessageId("m", 1, 1))
    delivery = deliver_to(world.broker, world.broker.sessions["client"], message, route, 2)
    world.settle()
    assert delivery is not None
    packet = client.take_one(Publish)
    assert (packet.qos, packet.retain, packet.packet_id) == (1, True, delivery.packet_id)
    assert set(packet.properties["subscription_identifier"]) == {1, 2}
    assert other.take() == []
    client.send(Puback(packet.packet_id))
    assert not world.broker.sessions["client"].outbox.in_flight  # type: ignore[union-attr]


def test_a_delivery_is_at_the_lowest_qos_of_all_that_are_asked() -> None:
    world = World()
    client = subscribed(world, "client", "a", qos=2)
    route = world.broker.find_route("a")
    for published, asked in ((2, 1), (1, 2), (0, 2), (2, 0)):
        deliver_to(world.broker, world.broker.sessions["client"], Message("a", b"x", published), route, asked)
        world.settle()
        assert client.take_one(Publish).qos == min(published, asked)


def test_the_rest_are_those_who_are_never_served_elsewhere() -> None:
    world = World()
    client = subscribed(world, "client", "a")
    peer = connect_peer(world)
    peer.subscribe("a", 1)
    home = connect_peer(world, "m")
    home.subscribe("a", 1)
    member = world.connect("member")
    member.subscribe("$share/g/a", 1)
    ports = [RecordingPort(world, "a", name=name) for name in ("one", "two")]
    message = Message("a", b"x", 1, id=MessageId("m", 1, 1))
    deliver_to_rest(world.broker, message, world.broker.find_route("a"), ports[0])
    world.settle()
    assert peer.take_one(Publish).payload == b"x"
    assert member.take_one(Publish).payload == b"x"
    assert [port.payloads for port in ports] == [[], [b"x"]]
    assert client.take() == []
    assert home.take() == []  # It began there.


def test_an_inactive_filter_leaves_nothing_in_the_tree_and_comes_back_as_it_was() -> None:
    world = World()
    table = world.broker.subscriptions
    clients = [subscribed(world, f"client-{number}", "a", qos=number % 3) for number in range(12)]
    table.set_active("a", False)
    assert not table._entries.at("a")
    assert len(table) == table.inactive.count == 12
    clients[0].send(Unsubscribe(9, ["a"]))
    clients[1].lose()
    world.connect("client-1", clean_start=True)
    late = subscribed(world, "late", "a")
    late.subscribe("a", 2)
    assert len(table) == table.inactive.count == 11
    table.set_active("a", True)
    assert (len(table), table.inactive.count) == (11, 0)
    world.connect("publisher").publish("a", b"x", 2)
    assert [each.take_one(Publish).qos for each in (*clients[2:], late)] == [n % 3 for n in range(2, 12)] + [
        2
    ]
    assert not any(isinstance(packet, Publish) for packet in clients[0].take())


# Who published


class LearningPort(Port):
    """One that asks who published, and who else gets it."""

    def __init__(self, world: World, topic_filter: str) -> None:
        self.learnt: list[tuple[bytes, str, int]] = []
        super().__init__(world.broker, "learning", lambda message: None)
        self.subscribe(topic_filter, world.now)

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        name = ""
        if isinstance(publisher, Session):
            name = publisher.client_id
        elif isinstance(publisher, Port):
            name = publisher.name
        self.learnt.append((message.payload, name, len(route.recipients)))


@QOS
def test_a_port_learns_who_published_and_where_it_goes(qos: int) -> None:
    world = World()
    subscribed(world, "client", "a")
    port = LearningPort(world, "#")
    world.connect("publisher").publish("a", b"1", qos)
    Port(world.broker, "other", lambda message: None).publish(Message("a", b"2", qos), world.now)
    connect_peer(world).publish("b", b"3", qos)
    assert port.learnt == [(b"1", "publisher", 1), (b"2", "other", 1), (b"3", "bridge of far", 0)]


# Who is told of subscriptions


class Watching:
    """What a watcher makes of what it is told."""

    def __init__(self) -> None:
        self.clients: dict[tuple[str, str], int] = {}
        self.others: Counter[str] = Counter()

    def __call__(self, session: Session | None, topic_filter: str, qos: int | None) -> None:
        if session is None:
            self.others[topic_filter] += 1 if qos is not None else -1
            assert self.others[topic_filter] >= 0
            self.others = +self.others
        elif qos is None:
            del self.clients[session.client_id, topic_filter]
        else:
            self.clients[session.client_id, topic_filter] = qos


def test_subscriptions_of_clients_are_told_with_each_change() -> None:
    world = World()
    watching = Watching()
    watch(world.broker, watching)
    client = subscribed(world, "client", "a", "b")
    assert watching.clients == {("client", "a"): 1, ("client", "b"): 1}
    client.subscribe("a", 2)
    assert watching.clients == {("client", "a"): 2, ("client", "b"): 1}
    client.send(Unsubscribe(1, ["b", "c"]))
    assert watching.clients == {("client", "a"): 2}
    world.connect("client", clean_start=True)
    assert watching.clients == {}
    assert not watching.others


def test_all_others_are_told_without_a_session() -> None:
    world = World()
    watching = Watching()
    watch(world.broker, watching)
    peer = connect_peer(world)
    peer.subscribe("a")
    peer.subscribe("a")
    port = RecordingPort(world, "a", "a", "b")
    members = [world.connect(name) for name in ("one", "two")]
    for member in members:
        member.subscribe("$share/g/a")
        member.subscribe("$share/g/a")
    assert watching.others == {"a": 4, "b": 1}
    members[0].lose()
    port.close()
    assert watching.others == {"a": 2}
    peer.lose()
    members[1].send(Unsubscribe(1, ["$share/g/a"]))
    assert not watching.others
    assert watching.clients == {}


def test_who_begins_to_watch_is_told_of_what_there_is() -> None:
    world = World(durable=True)
    subscribed(world, "client", "a", "$share/g/a").lose()
    world.crash()
    connect_peer(world).subscribe("b")
    RecordingPort(world, "a")
    watching = Watching()
    watch(world.broker, watching)
    assert watching.clients == {("client", "a"): 1}
    assert watching.others == {"a": 2, "b": 1}


def test_a_session_that_comes_back_as_a_broker_is_no_client_any_more() -> None:
    world = World()
    watching = Watching()
    watch(world.broker, watching)
    subscribed(world, "bridge of far", "a").lose()
    assert watching.clients == {("bridge of far", "a"): 1}
    peer = connect_peer(world, kept=True)
    assert (watching.clients, watching.others) == ({}, {"a": 1})
    world.broker.subscriptions.set_active("a", False)
    assert elsewhere(world, "a") == {}
    peer.send(Unsubscribe(1, ["a"]))
    assert not watching.others


# Filters without an event, where memory is scarce


def resting(*names: str) -> tuple[World, list[Client]]:
    world = World()
    world.broker.subscriptions.rests_quiet = True
    clients = [world.connect(name) for name in names]
    for client in clients:
        client.send(Subscribe(1, [Subscription(f"field/{number}", number % 3) for number in range(20)]))
        client.take()
    return world, clients


def test_what_has_no_event_rests_and_its_first_event_comes() -> None:
    world, clients = resting("one", "two")
    table = world.broker.subscriptions
    assert (len(table), table.resting.count, table.local.counts["field/7"]) == (40, 40, 2)
    world.connect("publisher").publish("field/7", b"x", 2)
    assert (len(table), table.resting.count, table.local.counts["field/7"]) == (40, 38, 2)
    assert [client.take_one(Publish).qos for client in clients] == [1, 1]


def test_what_rests_is_unsubscribed_and_subscribed_again() -> None:
    world, (one, two) = resting("one", "two")
    table = world.broker.subscriptions
    one.send(Unsubscribe(2, ["field/7", "field/8"]))
    one.take()
    one.subscribe("field/8", 2)
    two.lose()
    world.connect("two", clean_start=True)
    assert len(table) == table.resting.count == 19
    assert set(world.broker.sessions["one"].subscriptions or ()) == {
        f"field/{number}" for number in range(20)
    } - {"field/7"}
    world.connect("publisher").publish("field/8", b"x", 2)
    assert one.take_one(Publish).qos == 2
    assert (table.local.counts.get("field/7", 0), table.local.counts["field/8"]) == (0, 1)


def test_what_rests_is_withheld_and_rests_again_when_it_comes_back() -> None:
    world, (_, two) = resting("one", "two")
    table = world.broker.subscriptions
    table.set_active("field/7", False)
    assert (table.inactive.count, table.resting.count, len(table)) == (2, 38, 40)
    table.set_active("field/7", True)
    assert (table.inactive.count, table.resting.count, len(table)) == (0, 40, 40)
    world.connect("publisher").publish("field/7", b"x", 1)
    assert two.take_one(Publish).payload == b"x"
