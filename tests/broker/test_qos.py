"""QoS 1 and 2 at the broker: both directions, windows, order, and what a new connection sends again."""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.limits import Limits
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def subscribed(world: World, qos: int = 2, receive_maximum: int = 65_535) -> Client:
    """A client with a kept session, subscribed to `t`."""
    client = world.connect("subscriber", properties={"receive_maximum": receive_maximum}, kept=True)
    if not client.connack.session_present:
        client.subscribe("t", qos)
    return client


def identifiers(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets if isinstance(packet, Publish)]


def numbered(count: int, qos: int) -> list[Publish]:
    return [Publish("t", b"%d" % number, qos, packet_id=number) for number in range(1, count + 1)]


@pytest.mark.parametrize(("published", "granted"), [(p, g) for p in range(3) for g in range(3)])
def test_a_delivery_has_the_lower_qos(published: int, granted: int) -> None:
    """MQTT-3.8.4-8."""
    world = World()
    client = subscribed(world, granted)
    world.connect("publisher").publish("t", b"x", published)
    [packet] = client.take()
    assert isinstance(packet, Publish)
    assert packet.qos == min(published, granted)


def test_qos_1_is_acknowledged_with_its_identifier_in_order() -> None:
    """MQTT-4.3.2-4, MQTT-4.6.0-2."""
    world = World()
    subscribed(world)
    publisher = world.connect("publisher")
    publisher.send(*reversed(numbered(5, 1)))
    assert publisher.take() == [Puback(number) for number in (5, 4, 3, 2, 1)]


def test_qos_2_goes_its_four_steps() -> None:
    world = World()
    client = subscribed(world)
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 2, 9)
    assert publisher.take() == [Pubrec(9)]
    publisher.send(Pubrel(9))
    assert publisher.take() == [Pubcomp(9)]
    assert client.take() == [Publish("t", b"x", 2, packet_id=1)]
    client.send(Pubrec(1))
    assert client.take() == [Pubrel(1)]
    client.send(Pubcomp(1))
    assert client.take() == []
    assert world.broker.sessions["subscriber"].waiting_count == 0


def test_a_qos_2_publication_that_is_repeated_is_passed_on_once() -> None:
    """MQTT-4.3.3-10."""
    world = World()
    client = subscribed(world, 0)
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 2, 9)
    publisher.publish("t", b"x", 2, 9, dup=True)
    assert publisher.take() == [Pubrec(9), Pubrec(9)]
    assert client.take_payloads() == [b"x"]
    publisher.send(Pubrel(9))
    publisher.publish("t", b"y", 2, 9)
    assert publisher.take() == [Pubcomp(9), Pubrec(9)]
    assert client.take_payloads() == [b"y"]


def test_a_qos_2_publication_is_remembered_over_a_reconnect() -> None:
    world = World()
    client = subscribed(world, 0)
    publisher = world.connect("publisher", kept=True)
    publisher.publish("t", b"x", 2, 9)
    publisher.lose()
    publisher = world.connect("publisher", kept=True)
    publisher.publish("t", b"x", 2, 9, dup=True)
    assert publisher.take() == [Pubrec(9)]
    publisher.lose()
    publisher = world.connect("publisher", kept=True)
    publisher.send(Pubrel(9))
    assert publisher.take() == [Pubcomp(9)]
    assert client.take_payloads() == [b"x"]


def test_a_qos_1_publication_that_is_repeated_is_a_new_one() -> None:
    """MQTT-4.3.2-5."""
    world = World()
    client = subscribed(world, 0)
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 1, 9)
    publisher.publish("t", b"x", 1, 9, dup=True)
    assert publisher.take() == [Puback(9), Puback(9)]
    assert client.take_payloads() == [b"x", b"x"]


def test_the_dup_flag_of_a_publisher_is_not_passed_on() -> None:
    """MQTT-3.3.1-3."""
    world = World()
    client = subscribed(world)
    world.connect("publisher").publish("t", b"x", 1, 9, dup=True)
    assert client.take() == [Publish("t", b"x", 1, packet_id=1)]


def test_identifiers_that_nobody_knows_are_answered() -> None:
    world = World()
    client, old = world.connect("a"), world.connect("b", MQTT_3_1_1)
    client.send(Pubrel(5))
    assert client.take() == [Pubcomp(5, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
    client.send(Pubrec(5))
    assert client.take() == [Pubrel(5, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
    client.send(Puback(5), Pubcomp(5), Pubrec(5, Reason.UNSPECIFIED_ERROR))
    assert client.take() == []
    old.send(Pubrel(5), Pubrec(5), Puback(5), Pubcomp(5))
    assert old.take() == [Pubcomp(5), Pubrel(5)]


@pytest.mark.parametrize("answer", [Puback(1, Reason.QUOTA_EXCEEDED), Pubrec(1, Reason.NOT_AUTHORIZED)])
def test_a_delivery_that_the_client_refuses_is_over(answer: Puback | Pubrec) -> None:
    """MQTT-4.4.0-2."""
    world = World()
    client = subscribed(world, 1 if isinstance(answer, Puback) else 2, receive_maximum=1)
    publisher = world.connect("publisher")
    publisher.send(*numbered(2, 2))
    assert client.take_payloads() == [b"1"]
    client.send(answer)
    assert client.take_payloads() == [b"2"]
    client.lose()
    assert subscribed(world).take_payloads() == [b"2"]


# Windows


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_is_in_flight_than_the_receive_maximum(qos: int) -> None:
    """MQTT-3.3.4-9; and the order is that of the publications."""
    world = World()
    client = subscribed(world, qos, receive_maximum=3)
    world.connect("publisher").send(*numbered(10, qos))
    payloads = []
    unfinished: list[int] = []
    while packets := client.take():
        for packet in packets:
            assert isinstance(packet, Publish)
            payloads.append(packet.payload)
            unfinished.append(packet.packet_id)
        assert len(unfinished) <= 3
        number = unfinished.pop(0)
        if qos == 1:
            client.send(Puback(number))
        else:
            client.send(Pubrec(number))
            assert client.take() == [Pubrel(number)], "a PUBREC makes no room"
            client.send(Pubcomp(number))
    assert payloads == [b"%d" % number for number in range(1, 11)]


def test_qos_0_and_other_packets_do_not_wait_for_the_window() -> None:
    """MQTT-3.3.4-10, MQTT-4.9.0-3."""
    world = World()
    client = subscribed(world, 1, receive_maximum=1)
    publisher = world.connect("publisher")
    publisher.send(*numbered(2, 1), Publish("t", b"now"))
    assert client.take_payloads() == [b"1", b"now"]
    client.send(Unsubscribe(9, ["x"]))
    assert client.take() == [Unsuback(9, [Reason.NO_SUBSCRIPTION_EXISTED])]


def test_our_own_limit_counts_where_it_is_the_lower() -> None:
    world = World(Limits(in_flight=2))
    client = subscribed(world, 1)
    world.connect("publisher").send(*numbered(5, 1))
    assert client.take_payloads() == [b"1", b"2"]


def test_the_identifiers_of_deliveries_in_flight_differ() -> None:
    """MQTT-2.2.1-4: also when they begin anew after 65,535."""
    world = World()
    client = subscribed(world, 1, receive_maximum=10)
    publisher = world.connect("publisher")
    publisher.publish("t", b"old", 1)
    [stuck] = identifiers(client.take())
    outbox = world.broker.sessions["subscriber"].outbox
    assert outbox is not None
    outbox.next_packet_id = 65_535
    publisher.send(*numbered(3, 1))
    assert stuck == 1
    assert identifiers(client.take()) == [65_535, 2, 3]


def test_a_client_that_exceeds_our_receive_maximum_is_disconnected() -> None:
    """MQTT-3.3.4-7."""
    world = World(Limits(receive_maximum=3))
    client = world.connect("a")
    client.send(*numbered(3, 2))
    assert len(client.take()) == 3
    client.publish("t", b"x", 2, 3, dup=True)
    assert not client.closed
    client.take()
    client.publish("t", b"x", 2, 4)
    assert client.take_one(Disconnect).reason_code == Reason.RECEIVE_MAXIMUM_EXCEEDED
    assert client.closed


def test_older_versions_know_no_receive_maximum() -> None:
    world = World(Limits(receive_maximum=3))
    client = world.connect("a", MQTT_3_1_1)
    client.send(*numbered(30, 2))
    assert client.take() == [Pubrec(number) for number in range(1, 31)]


def test_the_receive_maximum_begins_anew_with_each_connection() -> None:
    """§4.9: what an earlier connection left unreleased does not count."""
    world = World(Limits(receive_maximum=3))
    client = world.connect("a", kept=True)
    client.send(*numbered(3, 2))
    client.lose()
    client = world.connect("a", kept=True)
    client.send(*(Publish("t", b"", 2, packet_id=number) for number in (11, 12, 13)))
    assert not client.closed
    client.publish("t", b"", 2, 14)
    assert client.closed


# Again after a reconnect


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_what_was_in_flight_is_sent_again_in_order_and_then_what_waited(version: int) -> None:
    """MQTT-4.4.0-1, MQTT-4.6.0-1."""
    world = World(Limits(in_flight=3))
    client = world.connect("subscriber", version, kept=True)
    client.subscribe("t", 2)
    publisher = world.connect("publisher")
    publisher.send(*numbered(5, 2))
    first = client.take()
    assert identifiers(first) == [1, 2, 3]
    client.send(Pubrec(2))
    client.lose()
    client = world.connect("subscriber", version, kept=True)
    assert client.take() == [
        Pubrel(2),
        Publish("t", b"1", 2, dup=True, packet_id=1),
        Publish("t", b"3", 2, dup=True, packet_id=3),
    ]
    client.send(Pubcomp(2))
    assert client.take() == [Publish("t", b"4", 2, packet_id=4)]


def test_what_came_while_the_client_was_away_is_not_marked_as_sent_before() -> None:
    world = World()
    subscribed(world).lose()
    world.connect("publisher").send(*numbered(2, 1), Publish("t", b"lost"))
    assert subscribed(world).take() == [
        Publish("t", b"1", 1, packet_id=1),
        Publish("t", b"2", 1, packet_id=2),
    ]


@pytest.mark.parametrize("qos", [1, 2])
def test_sending_again_keeps_to_the_receive_maximum_of_the_new_connection(qos: int) -> None:
    """MQTT-3.3.4-9; the identifiers stay, and what is new waits behind."""
    world = World()
    client = subscribed(world, qos)
    publisher = world.connect("publisher")
    publisher.send(*numbered(5, qos))
    assert identifiers(client.take()) == [1, 2, 3, 4, 5]
    client.lose()
    publisher.publish("t", b"6", qos, 6)
    client = subscribed(world, receive_maximum=2)
    publisher.publish("t", b"7", qos, 7)
    seen: list[Publish] = []
    while packets := client.take():
        arrived = [packet for packet in packets if isinstance(packet, Publish)]
        seen += arrived
        assert len(arrived) <= 2
        for packet in arrived:
            if qos == 1:
                client.send(Puback(packet.packet_id))
            else:
                client.send(Pubrec(packet.packet_id))
                client.send(Pubcomp(packet.packet_id))
    assert [packet.payload for packet in seen] == [b"%d" % number for number in range(1, 8)]
    assert [packet.packet_id for packet in seen] == [1, 2, 3, 4, 5, 6, 7]
    assert [packet.dup for packet in seen] == [True] * 5 + [False] * 2


def test_what_is_new_does_not_overtake_what_is_sent_again() -> None:
    """Sending again goes in turns too, and between two of them others publish."""
    world = World()
    client = subscribed(world, 1)
    publisher = world.connect("publisher")
    for number in range(60):
        publisher.publish("t", b"%d " % number + bytes(10_000), 1)
    client.lose()
    client = world.open()
    client.version = MQTT_5
    client.send_later(Connect("subscriber", clean_start=False, properties={"session_expiry_interval": 100}))
    assert client.connection.resending, "one turn is not enough"
    publisher.send_later(Publish("t", b"60 new", 1, packet_id=1))
    world.settle()
    numbers = [int(packet.payload.split()[0]) for packet in client.take() if isinstance(packet, Publish)]
    assert numbers == list(range(61))


def test_releases_do_not_wait_for_the_receive_maximum() -> None:
    """MQTT-3.3.4-10."""
    world = World()
    client = subscribed(world)
    world.connect("publisher").send(*numbered(4, 2))
    client.take()
    client.send(Pubrec(4))
    client.lose()
    assert subscribed(world, receive_maximum=1).take() == [Pubrel(4)]


def test_a_connection_that_is_lost_while_sending_again_changes_nothing() -> None:
    world = World()
    client = subscribed(world, 1)
    world.connect("publisher").send(*numbered(5, 1))
    client.lose()
    for _ in range(3):
        client = subscribed(world, receive_maximum=2)
        assert identifiers(client.take()) == [1, 2]
        client.lose()
    client = subscribed(world)
    assert identifiers(client.take()) == [1, 2, 3, 4, 5]


def test_an_acknowledgement_of_what_was_not_sent_again_yet_is_taken() -> None:
    world = World()
    client = subscribed(world, 1)
    world.connect("publisher").send(*numbered(4, 1))
    client.lose()
    client = subscribed(world, receive_maximum=1)
    client.take()
    client.send(Puback(2), Puback(1))
    assert identifiers(client.take())[0] == 3
    client.send(Puback(3), Puback(4))
    assert world.broker.sessions["subscriber"].waiting_count == 0
    client.lose()
    assert subscribed(world).take() == []


def test_unsubscribing_does_not_stop_what_was_begun() -> None:
    """MQTT-3.10.4-3."""
    world = World()
    client = subscribed(world, 2)
    world.connect("publisher").send(*numbered(1, 2))
    client.send(Unsubscribe(9, ["t"]))
    assert [type(packet) for packet in client.take()] == [Publish, Unsuback]
    client.send(Pubrec(1))
    assert client.take() == [Pubrel(1)]
    client.lose()
    assert subscribed(world).take() == [Pubrel(1)]


def test_what_was_taken_once_is_not_refused_when_it_comes_again() -> None:
    """Else the client would use the identifier for another message, which would pass for the first."""
    world = World(access=Access(Acl.parse("topic readwrite #", "acl")), durable=True)
    subscriber = world.connect("subscriber")
    subscriber.subscribe("#", 2)
    publisher = world.connect("publisher", kept=True)
    publisher.send(Publish("old", b"1", 2, packet_id=1))
    publisher.lose()
    world.broker.set_access(Access(Acl.parse("topic readwrite new\ntopic read #", "acl")))
    publisher = world.connect("publisher", kept=True)
    publisher.send(Publish("old", b"1", 2, dup=True, packet_id=1))
    assert publisher.take_one(Pubrec).reason_code == Reason.SUCCESS
    publisher.send(Pubrel(1), Publish("new", b"2", 2, packet_id=1))
    assert [each.payload for each in subscriber.take() if isinstance(each, Publish)] == [b"1", b"2"]
