"""Connections of the extension at the broker, and how clients of each version are told to move."""

from __future__ import annotations

import pytest

from hedgerow.mobility.renewals import MAX_LEAVING_S, renew
from hedgerow.mqtt import codec
from hedgerow.mqtt.extension import SESSION_EXPIRY_S, Renewal
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World
from tests.mobility.fake_mobility import MobileWorld

FIXED = "192.0.2.9:1883"


@pytest.fixture
def world() -> MobileWorld:
    return MobileWorld()


def follower(world: World, client_id: str = "f", clean_start: bool = True) -> Client:
    return world.connect(client_id, MQTT_EXTENDED, clean_start=clean_start)


# Who may connect.


def test_a_broker_without_a_role_answers_as_one_that_does_not_know_it() -> None:
    client = World().open()
    client.send_bytes(codec.encode(Connect("f", MQTT_EXTENDED), MQTT_EXTENDED))
    assert client.take_bytes() == bytes.fromhex("20 02 00 01")  # as Mosquitto does, byte for byte
    assert client.closed


def test_what_is_wrong_with_it_does_not_betray_that_it_is_known() -> None:
    client = World().open()
    client.send_bytes(bytes.fromhex("10 0e 0006 4d5149736470 ff 03 000a 0000"))  # a reserved flag
    assert client.take_bytes() == bytes.fromhex("20 02 00 01")


def test_it_is_3_1_1_in_all_else(world: MobileWorld) -> None:
    reader = follower(world, "r")
    reader.send(Subscribe(1, [Subscription("a/#", 2)]))
    assert reader.take() == [Suback(1, [2])]
    writer = follower(world, "w")
    writer.publish("a/b", b"0")
    writer.publish("a/b", b"1", 1, 5)
    assert writer.take() == [Puback(5)]
    writer.publish("a/b", b"2", 2, 6)
    assert writer.take() == [Pubrec(6)]
    writer.send(Pubrel(6))
    assert writer.take() == [Pubcomp(6)]
    assert [packet.payload for packet in reader.take() if isinstance(packet, Pubcallback)] == [
        b"0",
        b"1",
        b"2",
    ]


def test_the_connack_names_the_broker_that_supports_this_one(world: MobileWorld) -> None:
    world.mobility.supporter = FIXED
    client = world.open()
    client.send(Connect("f", MQTT_EXTENDED))
    assert client.take() == [Renew(Renewal.CONNECTION, FIXED)]
    client.lose()
    client = world.open()
    client.send(Connect("f", MQTT_EXTENDED, clean_start=False))
    assert client.take() == [Renew(Renewal.CONNECTION, FIXED, session_present=True)]
    for version in (MQTT_3_1, MQTT_3_1_1, MQTT_5):
        assert world.connect(f"c{version}", version).connack.reason_code == 0


def test_a_session_outlives_a_lost_connection_and_ends_with_disconnect(world: MobileWorld) -> None:
    follower(world).lose()
    world.advance(SESSION_EXPIRY_S - 1)
    client = follower(world, clean_start=False)
    assert client.connack.session_present
    client.lose()
    world.advance(SESSION_EXPIRY_S + 1)
    client = follower(world, clean_start=False)
    assert not client.connack.session_present
    client.send(Disconnect())
    assert not world.broker.sessions


def test_a_stored_session_is_one_of_3_1_1() -> None:
    world = MobileWorld(durable=True)
    client = follower(world)
    client.subscribe("a", 1)
    world.crash()
    world.connect("w").publish("a", b"x", 1)
    client = world.connect("f", MQTT_3_1_1, clean_start=False)
    assert client.connack.session_present
    assert client.take_payloads() == [b"x"]


# What it sends.


def test_every_message_has_its_id_and_the_same_for_all(world: MobileWorld) -> None:
    one, two = follower(world, "one"), follower(world, "two")
    standard = world.connect("standard", MQTT_3_1_1)
    for client in one, two, standard:
        client.subscribe("a", 1)
    writer = world.connect("w")
    for number in range(5):
        writer.publish("a", b"%d" % number, number % 2)
    seen = [packet for packet in one.take() if isinstance(packet, Pubcallback)]
    again = [packet for packet in two.take() if isinstance(packet, Pubcallback)]
    assert [packet.payload for packet in seen] == [b"0", b"1", b"2", b"3", b"4"]
    assert len({packet.message_id for packet in seen}) == 5
    assert [packet.message_id for packet in seen] == [packet.message_id for packet in again]
    assert standard.take_payloads() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_retained_message_keeps_its_id(world: MobileWorld) -> None:
    client = follower(world)
    client.subscribe("a", 1)
    world.connect("w").publish("a", b"x", 1, retain=True)
    live = client.take_one(Pubcallback)
    client.send(Puback(live.packet_id), Subscribe(2, [Subscription("a", 1)]))
    kept = client.take()[1]
    assert isinstance(kept, Pubcallback)
    assert (kept.retain, kept.message_id) == (True, live.message_id)


def test_what_was_not_acknowledged_is_sent_again_with_the_same_id(world: MobileWorld) -> None:
    client = follower(world)
    client.subscribe("a", 1)
    world.connect("w").publish("a", b"x", 1)
    first = client.take_one(Pubcallback)
    client.lose()
    second = follower(world, clean_start=False).take_one(Pubcallback)
    assert (second.dup, second.message_id) == (True, first.message_id)


@pytest.mark.parametrize("packet", [Renew(Renewal.RENEW_TOPICS, FIXED), Pubcallback("a", b"x")])
def test_a_client_may_send_none_of_its_packets(world: World, packet: Packet) -> None:
    client = follower(world)
    client.send(packet)
    assert client.closed
    assert world.broker.stats.protocol_errors == 1


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_on_other_connections_type_0_is_malformed_as_ever(world: World, version: int) -> None:
    client = world.connect("c", version)
    client.send_bytes(codec.encode(Pubcallback("a", b"x"), MQTT_EXTENDED))
    assert client.closed


# Renewals.


def test_a_follower_is_told_and_served_until_it_leaves(world: MobileWorld) -> None:
    client = follower(world)
    client.subscribe("a", 1)
    assert renew(client.connection, Renewal.CONNECTION, FIXED)
    assert renew(client.connection, Renewal.ACTIVE_TOPICS, "", ["a"])
    assert renew(client.connection, Renewal.RENEW_TOPICS, "[2001:db8::1]:1883")
    world.settle()
    assert client.take() == [
        Renew(Renewal.CONNECTION, FIXED),
        Renew(Renewal.ACTIVE_TOPICS, "", ["a"]),
        Renew(Renewal.RENEW_TOPICS, "[2001:db8::1]:1883"),
    ]
    world.connect("w").publish("a", b"x", 1)
    assert client.take_one(Pubcallback).payload == b"x"
    assert not client.closed


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1])
@pytest.mark.parametrize("code", Renewal)
def test_older_clients_stay_and_hear_nothing(world: World, version: int, code: Renewal) -> None:
    client = world.connect("c", version)
    assert not renew(client.connection, code, FIXED)
    world.settle()
    assert client.take_bytes() == b""
    assert not client.closed


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Renewal.ACTIVE_TOPICS, Reason.USE_ANOTHER_SERVER),
        (Renewal.RENEW_TOPICS, Reason.SERVER_MOVED),
    ],
)
def test_mqtt_5_is_told_by_disconnect(world: World, code: Renewal, reason: Reason) -> None:
    client = world.connect("c")
    assert renew(client.connection, code, FIXED)
    world.settle()
    assert client.take() == [Disconnect(reason, {"server_reference": FIXED})]
    assert client.closed


def test_mqtt_5_is_not_told_of_a_supporter_but_sent_there_later(world: MobileWorld) -> None:
    client = world.connect("c")
    assert not renew(client.connection, Renewal.CONNECTION, FIXED)
    assert client.take_bytes() == b""
    assert renew(client.connection, Renewal.ACTIVE_TOPICS, "")
    world.settle()
    assert client.take_one(Disconnect).properties == {"server_reference": FIXED}


def test_before_mqtt_5_leaves_what_is_in_flight_is_finished_and_the_rest_waits(world: MobileWorld) -> None:
    client = world.connect("c", kept=True)
    client.subscribe("a", 1)
    writer = world.connect("w")
    writer.publish("a", b"in flight", 1)
    received = client.take_one(Publish)
    client.publish("b", b"", 2, 9)
    assert client.take_one(Pubrec).packet_id == 9

    assert renew(client.connection, Renewal.ACTIVE_TOPICS, FIXED)
    writer.publish("a", b"waits", 1)
    client.send(Puback(received.packet_id))
    assert client.take() == []
    client.send(Pubrel(9))
    assert client.take() == [Pubcomp(9), Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": FIXED})]
    assert client.closed

    client = world.connect("c", kept=True)
    assert client.take_payloads() == [b"waits"]


def test_a_publication_that_waits_for_the_store_is_acknowledged_before_its_publisher_is_sent_away() -> None:
    world = World(durable=True)
    keeper = world.connect("keeper", kept=True)
    keeper.subscribe("a", 1)
    client = world.connect("c")
    world.commits = False
    client.publish("a", b"x", 1, 3)
    assert renew(client.connection, Renewal.ACTIVE_TOPICS, FIXED)
    world.advance(0.2)
    assert client.take() == []
    world.commits = True
    world.advance(0.2)
    assert client.take() == [Puback(3), Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": FIXED})]


def test_a_client_that_does_not_acknowledge_is_moved_all_the_same(world: MobileWorld) -> None:
    client = world.connect("c")
    client.subscribe("a", 1)
    world.connect("w").publish("a", b"x", 1)
    client.take()
    assert renew(client.connection, Renewal.RENEW_TOPICS, FIXED)
    world.advance(MAX_LEAVING_S - 0.1)
    assert not client.closed
    world.advance(0.2)
    assert client.take_one(Disconnect).reason_code == Reason.SERVER_MOVED


@pytest.mark.parametrize(
    ("code", "address"),
    [(6, ""), (7, ""), (8, ""), (8, "host"), (8, "mqtt://host:1"), (9, FIXED)],
)
def test_what_cannot_be_said_is_a_mistake_of_the_caller(world: World, code: int, address: str) -> None:
    client = follower(world)
    with pytest.raises(ValueError, match=r"address|HOST|not a valid"):
        renew(client.connection, code, address)


def test_nobody_is_there_to_be_told(world: MobileWorld) -> None:
    client = follower(world)
    client.lose()
    assert not renew(client.connection, Renewal.RENEW_TOPICS, FIXED)
    assert not renew(world.open().connection, Renewal.RENEW_TOPICS, FIXED)


def test_a_refusal_is_one_of_3_1_1() -> None:
    world = MobileWorld()
    client = world.open(anonymous=False)
    client.send(Connect("f", MQTT_EXTENDED))
    assert client.take() == [Connack(False, Reason.NOT_AUTHORIZED)]
