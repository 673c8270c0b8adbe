"""One publication, or a few bytes of them, may be for very many: the others are heard in between.

What a turn did is counted in packets sent, whatever was charged for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hedgerow.broker.access import Access
from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.deliveries import DELIVERY_WORK
from hedgerow.broker.limits import Limits
from hedgerow.broker.port import Port
from hedgerow.broker.routes import MAX_CACHED_RECIPIENTS
from hedgerow.message import Message
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.broker.harness import Client, World

ROOMY = Limits(connections=20_000)  # One address may have half.
MANY = 6_000  # more than two turns' worth
MOST = 2 * TURN_WORK // DELIVERY_WORK
ANSWERS: dict[int, type[Puback | Pubrec]] = {1: Puback, 2: Pubrec}


def share(world: World, count: int = MANY, topic: str = "t", **fields: object) -> Client:
    """One client with a shared subscription under each of so many names."""
    client = world.connect("sharing", **fields)  # type: ignore[arg-type]
    for begin in range(0, count, 1_000):
        names = range(begin, min(count, begin + 1_000))
        client.send(Subscribe(1, [Subscription(f"$share/g{name}/{topic}", 2) for name in names]))
    client.take()
    return client


def chunk(packets: list[Publish], version: int = MQTT_3_1_1) -> bytes:
    return b"".join(encode(packet, version) for packet in packets)


def rounds(world: World, begin: Callable[[], None]) -> Iterator[int]:
    """How many messages leave at the beginning, and in each round until nothing is left to do."""
    step: Callable[[], None] = begin
    while True:
        before = world.broker.stats.publish_sent
        step()
        yield world.broker.stats.publish_sent - before
        if world.broker.deadline > world.now:
            return
        step = lambda: world.broker.handle_timer(world.now)  # noqa: E731


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications_to_many_shared_subscriptions_are_passed_on_in_turns(qos: int) -> None:
    world = World()
    sharing, publisher, other = share(world), world.connect("p", MQTT_3_1_1), world.connect("other")
    packets = [Publish("t", b"%d" % number, qos, packet_id=number if qos else 0) for number in (1, 2, 3)]
    data = chunk(packets)
    found = rounds(world, lambda: publisher.connection.receive_data(data, world.now))
    first = next(found)
    assert 0 < first <= MOST
    assert not publisher.connection.out, "not all have it"
    other.connection.receive_data(encode(Pingreq(), MQTT_5), world.now)
    assert other.connection.out
    assert max(found) <= MOST
    if qos:
        assert len(world.broker.sessions["sharing"].loaded()) == 3 * MANY
        publisher.transmit()
        answers = publisher.take()
        assert answers == [ANSWERS[qos](number) for number in (1, 2, 3)]
    else:
        sharing.transmit()
        payloads = sharing.take_payloads()
        assert payloads == [b"1"] * MANY + [b"2"] * MANY + [b"3"] * MANY, "in order, each once"
    assert not world.broker.undelivered


def test_members_that_are_away_are_counted_too() -> None:
    world = World()
    for number in range(300):
        member = world.connect(f"m{number}", kept=True)
        member.subscribe("$share/g/t")
        member.lose()
    publisher = world.connect("p")
    before = world.broker.work
    publisher.connection.receive_data(chunk([Publish("t")], MQTT_5), world.now)
    assert world.broker.work - before >= 300


class Looks(Access):
    """Lets some clients read, and counts how often it is asked whether one may."""

    count = 0

    def may_read(self, username: str | None, client_id: str, topic: str) -> bool:
        self.count += 1
        return not client_id.startswith("away")

    def rounds(self, world: World, begin: Callable[[], None]) -> Iterator[int]:
        before = self.count
        for _ in rounds(world, begin):
            yield self.count - before
            before = self.count


def away(world: World, count: int, topic_filter: str) -> None:
    for number in range(count):
        session = world.broker.create_session(f"away{number}", None)
        session.expiry_s = 1_000.0
        world.broker.subscriptions.add(session, Subscription(topic_filter, 2), None)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_member_is_looked_for_in_turns(qos: int) -> None:
    looks = Looks()
    world = World(access=looks)
    away(world, 3 * TURN_WORK, "$share/g/t")
    reader, publisher = world.connect("reader"), world.connect("p", MQTT_3_1_1)
    reader.subscribe("$share/g/t", qos)
    other = world.connect("other")
    packets = [Publish("t", b"%d" % number, qos, packet_id=qos * number) for number in range(1, 6)]
    found = looks.rounds(world, lambda: publisher.connection.receive_data(chunk(packets), world.now))
    assert next(found) <= 2 * TURN_WORK, "not all members"
    other.connection.receive_data(encode(Pingreq(), MQTT_5), world.now)
    assert other.connection.out
    assert not reader.connection.out
    assert max(found) <= 2 * TURN_WORK
    reader.transmit()
    assert reader.take_payloads() == [packet.payload for packet in packets]


def test_what_waits_for_a_member_goes_to_others_in_turns() -> None:
    looks = Looks()
    world = World(access=looks)
    away(world, TURN_WORK, "$share/g/t")
    member = world.connect("first", kept=True)
    member.subscribe("$share/g/t", 1)
    member.lose()
    payloads = [b"%d" % number for number in range(5)]
    publisher = world.connect("p", MQTT_3_1_1)
    for number, payload in enumerate(payloads, 1):
        publisher.send_later(Publish("t", payload, 1, packet_id=number))
    world.settle()
    first = world.broker.sessions["first"]
    assert first.waiting_count == 5
    second = world.connect("second")
    second.subscribe("$share/g/t", 1)
    found = looks.rounds(world, lambda: world.broker.discard(first))
    assert max(found) <= 2 * TURN_WORK
    second.transmit()
    assert second.take_payloads() == payloads


def test_all_get_it_although_its_publisher_leaves_meanwhile() -> None:
    world = World()
    sharing, publisher = share(world), world.connect("p", MQTT_3_1_1)
    publisher.send_later(Publish("t", b"last"), Disconnect())
    publisher.lose()
    assert sharing.take_payloads() == [b"last"] * MANY


def test_a_message_waits_behind_an_earlier_one_of_its_topic_whoever_publishes_it() -> None:
    world = World()
    sharing, heard = share(world), []
    port = Port(world.broker, "part", lambda message: heard.append(message.payload))
    port.subscribe("t")
    first, second = world.connect("first"), world.connect("second")
    first.send_later(Publish("t", b"1", retain=True))
    second.send_later(Publish("t", b"2", retain=True))
    port.publish(Message("t", b"3"))
    second.send_later(Publish("t", b"4"))
    assert world.broker.undelivered
    world.settle()
    assert sharing.take_payloads() == [payload for payload in (b"1", b"2", b"3", b"4") for _ in range(MANY)]
    assert heard == [b"1", b"2", b"4"]


def test_what_parts_of_the_node_publish_does_not_pile_up() -> None:
    world = World()
    share(world)
    port = Port(world.broker, "part", lambda message: None)
    dropped = world.broker.stats.publish_dropped
    for _ in range(2 * world.broker.limits.queue_bytes_in_memory // 1_000_000):
        port.publish(Message("t", b"x" * 1_000_000))
    assert world.broker.undelivered_bytes <= world.broker.limits.queue_bytes_in_memory
    assert world.broker.stats.publish_dropped > dropped


def test_who_unsubscribes_meanwhile_gets_it_no_more() -> None:
    world = World(ROOMY)
    clients = [world.connect(f"c{number}") for number in range(MOST)]
    for client in clients:
        client.connection.receive_data(encode(Subscribe(1, [Subscription("t", 1)]), MQTT_5), world.now)
    world.settle()
    for client in clients:
        client.take()
    world.connect("p").send_later(Publish("t", b"x", 1, packet_id=1))
    last = clients[-1]
    assert world.broker.undelivered
    last.send_later(Unsubscribe(1, ["t"]))
    world.settle()
    assert not any(isinstance(packet, Publish) for packet in last.take())
    assert all(client.take_payloads() == [b"x"] for client in clients[:-1])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_crash_before_all_have_it_loses_nothing(qos: int) -> None:
    world = World(ROOMY, durable=True)
    clients = [world.connect(f"c{number}", kept=True) for number in range(MOST)]
    for client in clients:
        client.send_later(Subscribe(1, [Subscription("t", 2)]))
    world.settle()
    publisher = world.connect("p", kept=True)
    publisher.send_later(Publish("t", b"x", qos, packet_id=1))
    assert world.broker.undelivered
    world.commit()
    assert not publisher.take(), "no answer yet"
    world.crash()
    publisher = world.connect("p", kept=True)
    publisher.send(Publish("t", b"x", qos, packet_id=1, dup=True))
    assert isinstance(publisher.take_packet(), ANSWERS[qos])
    assert {key for key, _ in world.store.waits} == {
        world.broker.sessions[f"c{number}"].key for number in range(MOST)
    }


@pytest.mark.parametrize("properties", [{"maximum_packet_size": 100_000}, {"topic_alias_maximum": 5}])
def test_packets_in_a_row_to_those_who_take_no_plain_ones_are_divided(properties: dict[str, int]) -> None:
    world = World()
    clients = [world.connect(f"c{number}", properties=properties) for number in range(300)]  # type: ignore[arg-type]
    for client in clients:
        client.subscribe("t")
    publisher = world.connect("p", MQTT_3_1_1)
    data = chunk([Publish("t", b"x")] * 500)
    assert max(rounds(world, lambda: publisher.connection.receive_data(data, world.now))) <= MOST
    world.settle()
    assert all(len(client.take_payloads()) == 500 for client in clients)


def test_a_packet_that_is_like_the_last_is_counted_by_how_many_get_it() -> None:
    world = World()
    for number in range(400):
        world.connect(f"c{number}").subscribe("t")
    publisher = world.connect("p")
    data = chunk([Publish("t", b"x")], MQTT_5)
    publisher.connection.receive_data(data, world.now)
    before = world.broker.work
    publisher.connection.receive_data(data, world.now)
    assert publisher.connection.repeated is not None
    assert world.broker.work - before >= 100


def test_a_topic_that_many_share_is_not_remembered_for_every_name() -> None:
    """Each way is a list of all of them: 65,536 of those would be gigabytes."""
    world = World()
    share(world, MANY, "#")
    publisher = world.connect("p")
    for number in range(200):
        publisher.publish(f"t/{number}")
    known = [world.broker.subscriptions.known_route(f"t/{number}") for number in range(200)]
    assert sum(len(route.groups) for route in known if route is not None) <= MAX_CACHED_RECIPIENTS + MANY


def test_what_a_node_tells_of_itself_reaches_many_in_turns() -> None:
    """About fifty topics, each to everyone who shares them."""
    world = World(sys_interval_s=10.0)
    sharing = share(world, 2_000, "$SYS/#")
    world.now += 10
    found = list(rounds(world, lambda: world.broker.handle_timer(world.now)))
    assert max(found) <= 2 * MOST
    sharing.transmit()
    topics = [packet.topic for packet in sharing.take() if isinstance(packet, Publish)]
    assert topics.count("$SYS/broker/uptime") == 2_000
