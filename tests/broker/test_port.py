"""Ports: parts of the node that publish and subscribe at the broker without a connection."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.events import PublicationRefused
from hedgerow.broker.limits import Limits
from hedgerow.broker.port import Port
from hedgerow.errors import TopicError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connect, Disconnect, Puback, Publish, Will
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World

FOREIGN = MessageId("elsewhere", 7, 42)


class RecordingPort(Port):
    """A port that keeps what it is delivered."""

    def __init__(self, world: World, *topic_filters: str, name: str = "recorder") -> None:
        self.messages: list[Message] = []
        super().__init__(world.broker, name, self.messages.append)
        for topic_filter in topic_filters:
            self.subscribe(topic_filter, world.now)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    @property
    def sequences(self) -> list[int]:
        return [message.id.sequence for message in self.messages if message.id is not None]


def publish(world: World, port: Port, message: Message) -> bool:
    """Publish, and do what the shell does after each input."""
    accepted = port.publish(message, world.now)
    world.settle()
    return accepted


# What a port is delivered


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_port_gets_what_clients_publish_as_published(version: int, qos: int) -> None:
    world = World()
    port = RecordingPort(world, "a/+")
    world.connect("client", version).publish("a/b", b"x", qos)
    assert port.messages == [Message("a/b", b"x", qos, id=MessageId("node", 1, 1))]


def test_retain_and_properties_are_as_published() -> None:
    world = World()
    port = RecordingPort(world, "a")
    world.connect("client").publish("a", b"x", 1, retain=True, properties={"content_type": "text"})
    [message] = port.messages
    assert (message.retain, message.qos, message.properties) == (True, 1, {"content_type": "text"})


def test_a_message_comes_once_however_many_filters_match() -> None:
    world = World()
    port = RecordingPort(world, "a/b", "a/+", "#")
    client = world.connect("client")
    client.publish("a/b", b"0")
    client.publish("a/b", b"1", 1)
    assert port.payloads == [b"0", b"1"]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_messages_that_came_in_one_chunk_have_a_number_each(version: int) -> None:
    world = World()
    port = RecordingPort(world, "a")
    subscriber = world.connect("subscriber", version)
    subscriber.subscribe("a")
    client = world.connect("client", version)
    client.send(*(Publish("a", b"%d" % number) for number in range(5)), Publish("a", b"long"))
    assert port.payloads == [b"0", b"1", b"2", b"3", b"4", b"long"]
    assert port.sequences == [1, 2, 3, 4, 5, 6]
    assert subscriber.take_payloads() == port.payloads
    assert world.broker.sequence == 6


def test_numbers_count_on_behind_what_no_port_wanted() -> None:
    world = World()
    port = RecordingPort(world, "a")
    client = world.connect("client")
    client.send(Publish("b", b"1"), Publish("b", b"2"), Publish("a", b"3"), Publish("b", b"4"))
    client.publish("a", b"5", 1)
    assert port.sequences == [3, 5]


def test_wildcards_do_not_match_dollar_topics() -> None:
    world = World(sys_interval_s=10.0)
    everything = RecordingPort(world, "#", "+/broker/#")
    system = RecordingPort(world, "$SYS/broker/uptime")
    world.advance(10.0)
    assert everything.messages == []
    assert {message.topic for message in system.messages} == {"$SYS/broker/uptime"}
    assert all(message.id is not None for message in system.messages)


def test_the_acl_does_not_bind_a_port() -> None:
    acl = Acl.parse("topic write other/#", "acl")
    world = World(access=Access(acl))
    port = RecordingPort(world, "secret")
    other = RecordingPort(world)
    assert publish(world, other, Message("secret", b"x"))
    assert port.payloads == [b"x"]


def test_a_will_reaches_a_port() -> None:
    world = World()
    port = RecordingPort(world, "gone")
    world.connect("client", will=Will("gone", b"bye")).lose()
    assert port.payloads == [b"bye"]


def test_a_port_counts_as_a_subscriber() -> None:
    world = World()
    client = world.connect("client")
    client.publish("a", b"x", 1)
    assert client.take() == [Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)]
    RecordingPort(world, "a")
    client.publish("a", b"x", 1)
    assert client.take() == [Puback(1)]


def test_a_port_beside_a_shared_subscription_and_a_packet_of_its_own() -> None:
    world = World()
    port = RecordingPort(world, "a")
    worker = world.connect("worker")
    worker.subscribe("$share/jobs/a")
    numbered = world.connect("numbered")
    numbered.subscribe("a", identifier=3)
    world.connect("client").send(Publish("a", b"1"), Publish("a", b"2"))
    assert port.payloads == worker.take_payloads() == numbered.take_payloads() == [b"1", b"2"]


# Retained messages


def test_a_subscription_gets_the_retained_messages_that_match() -> None:
    world = World()
    client = world.connect("client")
    client.publish("a/b", b"kept", 1, retain=True)
    client.publish("a/c", b"live")
    client.publish("x", b"other", retain=True)
    port = RecordingPort(world, "a/#")
    [message] = port.messages
    assert (message.topic, message.payload, message.qos, message.retain) == ("a/b", b"kept", 1, True)


def test_who_only_listens_gets_no_retained_messages() -> None:
    world = World()
    client = world.connect("client")
    client.publish("a", b"kept", retain=True)
    port = RecordingPort(world)
    port.listen("a", world.now)
    client.publish("a", b"live")
    assert port.payloads == [b"live"]
    with pytest.raises(TopicError):
        port.listen("a/#/b")


def test_the_id_of_a_retained_message_stays() -> None:
    world = World()
    early = RecordingPort(world, "a")
    client = world.connect("client")
    client.publish("a", b"seen", retain=True)
    client.publish("b", b"unseen", retain=True)
    client.publish("c", b"unseen too", retain=True)
    late, later = RecordingPort(world, "a", "b", "c"), RecordingPort(world, "a", "b", "c")
    assert late.messages[0].id == early.messages[0].id
    assert late.sequences == later.sequences
    client.publish("c", b"next")
    assert len({*late.sequences, *later.sequences}) == 4


def test_the_id_of_a_retained_message_outlives_a_crash() -> None:
    world = World(durable=True)
    world.connect("client").publish("a", b"kept", retain=True)
    publish(world, RecordingPort(world), Message("b", b"from afar", retain=True, id=FOREIGN))
    world.crash()
    port = RecordingPort(world, "a", "b")
    assert [message.id for message in port.messages] == [MessageId("node", 1, 1), FOREIGN]


def test_a_retained_message_that_expired_is_not_delivered() -> None:
    world = World()
    publish(world, RecordingPort(world), Message("a", b"x", 0, True, {"message_expiry_interval": 5}))
    assert RecordingPort(world, "a").payloads == [b"x"]
    world.advance(6.0)
    assert RecordingPort(world, "a").payloads == []


# What a port publishes


def test_a_port_does_not_hear_itself() -> None:
    world = World()
    port, other = RecordingPort(world, "#"), RecordingPort(world, "#")
    publish(world, port, Message("a", b"x"))
    publish(world, port, Message("a", b"y", 1))
    assert port.messages == []
    assert other.payloads == [b"x", b"y"]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_get_what_a_port_publishes(version: int, qos: int) -> None:
    world = World()
    subscriber = world.connect("subscriber", version)
    subscriber.subscribe("a", 2)
    publish(world, RecordingPort(world), Message("a", b"x", qos))
    assert subscriber.take() == [Publish("a", b"x", qos, packet_id=1 if qos else 0)]


def test_a_message_keeps_the_id_it_came_with() -> None:
    world = World()
    other = RecordingPort(world, "a")
    port = RecordingPort(world)
    publish(world, port, Message("a", b"x", id=FOREIGN))
    publish(world, port, Message("a", b"y"))
    assert [message.id for message in other.messages] == [FOREIGN, MessageId("node", 1, 2)]


def test_a_durable_session_gets_a_ports_message_after_a_crash() -> None:
    world = World(durable=True)
    subscriber = world.connect("subscriber", kept=True)
    subscriber.subscribe("a", 1)
    subscriber.lose()
    publish(world, RecordingPort(world), Message("a", b"x", 1, id=FOREIGN))
    assert [message.id for message in world.store.messages.values()] == [FOREIGN]
    world.crash()
    assert world.connect("subscriber", kept=True).take() == [Publish("a", b"x", 1, packet_id=1)]


def test_a_port_retains_and_forgets() -> None:
    world = World()
    port = RecordingPort(world)
    publish(world, port, Message("a", b"kept", retain=True))
    client = world.connect("client")
    client.subscribe("a")
    assert client.take() == [Publish("a", b"kept", retain=True)]
    publish(world, port, Message("a", b"", retain=True))
    assert len(world.broker.retained) == 0


def test_one_more_retained_message_than_there_is_room_for_is_refused() -> None:
    world = World(Limits(retained_bytes=1_000))
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#")
    port = RecordingPort(world, name="gateway")
    assert not publish(world, port, Message("a", bytes(2_000), retain=True))
    assert subscriber.take() == []
    assert world.broker.stats.publish_refused == 1
    refused = [event for event in world.broker.take_events() if isinstance(event, PublicationRefused)]
    assert [(event.client_id, event.topic) for event in refused] == [("gateway", "a")]


def test_a_message_from_a_port_expires() -> None:
    world = World()
    subscriber = world.connect("subscriber", kept=True)
    subscriber.subscribe("a", 1)
    subscriber.lose()
    publish(world, RecordingPort(world), Message("a", b"x", 1, properties={"message_expiry_interval": 5}))
    world.advance(6.0)
    assert world.connect("subscriber", kept=True).take() == []


def test_publications_of_ports_are_counted() -> None:
    world = World()
    stats = world.broker.stats
    publish(world, RecordingPort(world), Message("abc", b"12345"))
    assert (stats.publish_received, stats.publish_bytes_received) == (1, 8)
    assert world.broker.sequence == 1


@pytest.mark.parametrize("topic", ["", "a/#", "a\0b"])
def test_a_topic_that_breaks_the_rules_is_refused_at_once(topic: str) -> None:
    with pytest.raises(TopicError):
        RecordingPort(World()).publish(Message(topic, b"x"))


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "$share/group/a"])
def test_a_filter_that_breaks_the_rules_is_refused_at_once(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        RecordingPort(World()).subscribe(topic_filter)


# Coming and going


def test_after_unsubscribe_and_close_nothing_comes() -> None:
    world = World()
    port = RecordingPort(world, "a", "b/#", "c")
    client = world.connect("client")
    port.unsubscribe("a")
    port.unsubscribe("never/subscribed")
    client.send(Publish("a", b"a"), Publish("b/x", b"b"), Publish("c", b"c"))
    assert port.payloads == [b"b", b"c"]
    port.close()
    client.send(Publish("a", b"a"), Publish("b/x", b"b"), Publish("c", b"c"))
    assert port.payloads == [b"b", b"c"]
    with pytest.raises(RuntimeError, match="recorder is closed"):
        port.publish(Message("a", b"x"))


def test_new_rules_leave_ports_as_they_are() -> None:
    world = World()
    port = RecordingPort(world, "a")
    world.broker.set_access(Access())
    world.connect("client").publish("a", b"x")
    assert port.payloads == [b"x"]


def test_without_ports_a_route_is_forwarded_verbatim_again() -> None:
    """A port costs the short path nothing, but on the topics that it hears."""
    world = World()
    world.connect("subscriber").subscribe("#")
    assert world.broker.find_route("a").verbatim_5 is not None
    port = RecordingPort(world, "a")
    assert world.broker.find_route("a").verbatim_5 is None
    assert world.broker.find_route("b").verbatim_5 is not None
    port.close()
    assert world.broker.find_route("a").verbatim_5 is not None


# Re-entrance


def test_a_port_may_publish_while_it_is_delivered_to() -> None:
    """Everyone sees the answer behind the question, and each has its own id, though all came in one chunk."""
    world = World()
    answering = Port(
        world.broker,
        "answering",
        lambda message: _ignore(answering.publish(Message("a", message.payload * 2))),
    )
    answering.subscribe("q")
    observer = RecordingPort(world, "#")
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#")
    client = world.connect("client")
    client.send(Publish("q", b"1"), Publish("q", b"2"))
    client.publish("q", b"3", 1)
    assert sorted(observer.payloads) == sorted([b"1", b"2", b"11", b"22", b"3", b"33"])
    assert len(set(observer.sequences)) == 6
    by_payload = {message.payload: message.id for message in observer.messages}
    assert [by_payload[each] for each in (b"1", b"2", b"3")] == [MessageId("node", 1, n) for n in (1, 2, 5)]
    payloads = subscriber.take_payloads()
    assert all(payloads.index(each) < payloads.index(each * 2) for each in (b"1", b"2", b"3"))


def test_a_durable_message_that_is_answered_meanwhile_is_stored_once() -> None:
    world = World(durable=True)
    answering = Port(world.broker, "answering", lambda _: _ignore(answering.publish(Message("a", b"yes", 1))))
    answering.subscribe("q")
    for name in ("one", "two"):
        subscriber = world.connect(name, kept=True)
        subscriber.subscribe("#", 1)
        subscriber.lose()
    client = world.connect("client")
    client.publish("q", b"?", 1)
    assert client.take() == [Puback(1)]
    assert [message.payload for message in world.store.messages.values()] == [b"?", b"yes"]
    assert len(world.store.waits) == 4


def test_a_port_closed_by_another_in_the_same_publication_gets_nothing() -> None:
    world = World()
    victim = RecordingPort(world)
    closing = Port(world.broker, "closing", lambda _: victim.close())
    closing.subscribe("a")
    victim.subscribe("a")
    world.connect("client").send(Publish("a", b"1"), Publish("a", b"2"))
    assert victim.messages == []


def test_a_port_may_subscribe_and_close_while_it_is_delivered_to() -> None:
    world = World()
    client = world.connect("client")
    client.publish("kept/1", b"k1", retain=True)
    client.publish("kept/2", b"k2", retain=True)
    heard: list[bytes] = []

    def deliver(message: Message) -> None:
        heard.append(message.payload)
        if message.topic == "a":
            port.subscribe("kept/#")
        else:
            port.close()

    port = Port(world.broker, "port", deliver)
    port.subscribe("a")
    client.send(Publish("a", b"x"), Publish("a", b"y"))
    assert heard[0] == b"x"
    assert len(heard) == 2  # closed at the first retained message


def test_a_client_that_leaves_its_will_to_a_port_that_answers() -> None:
    world = World()
    answering = Port(
        world.broker, "answering", lambda _: _ignore(answering.publish(Message("seen", b"y", 1)))
    )
    answering.subscribe("gone")
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#", 1)
    leaving = world.open()
    leaving.send(Connect("leaving", MQTT_5, will=Will("gone", b"bye")))
    leaving.send(Disconnect(0x04))
    assert [packet.topic for packet in subscriber.take() if isinstance(packet, Publish)] == ["gone", "seen"]


def _ignore(accepted: bool) -> None:
    assert accepted
