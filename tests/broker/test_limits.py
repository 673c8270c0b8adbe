"""Slow readers, full queues and other bounds: what is kept, what is dropped, and that it is counted."""

from __future__ import annotations

import pytest

from hedgerow.broker.connection import MAX_UNREAD_ANSWERS
from hedgerow.broker.events import DeliveriesDropped
from hedgerow.broker.limits import Limits
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def dropped_events(world: World) -> int:
    return sum(isinstance(event, DeliveriesDropped) for event in world.broker.take_events())


def slow_reader(world: World, qos: int = 0, version: int = MQTT_5, **fields: object) -> Client:
    client = world.connect("slow", version, **fields)  # type: ignore[arg-type]
    client.subscribe("t", qos)
    client.set_congested(True)
    return client


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_qos_0_for_a_slow_reader_is_kept_up_to_a_limit_and_then_dropped(version: int) -> None:
    world = World(Limits(queue_bytes=10_000))
    slow, quick = slow_reader(world, 0, version), world.connect("quick")
    quick.subscribe("t")
    publisher = world.connect("publisher", MQTT_3_1_1)
    for number in range(200):
        publisher.publish("t", b"%0100d" % number)
    assert slow.take_bytes() == b""
    assert quick.take_payloads() == [b"%0100d" % number for number in range(200)]
    kept = 10_000 // (len(b"\x30\x67\x00\x01t") + 100 + (version == MQTT_5))
    assert world.broker.stats.publish_dropped == 200 - kept
    assert dropped_events(world) == 1
    slow.set_congested(False)
    assert slow.take_payloads() == [b"%0100d" % number for number in range(kept)]
    publisher.publish("t", b"again")
    assert slow.take_payloads() == [b"again"]


def test_a_run_of_qos_0_packets_is_dropped_or_kept_as_a_whole_and_counted_one_by_one() -> None:
    world = World(Limits(queue_bytes=1_000))
    slow = slow_reader(world)
    publisher = world.connect("publisher")
    publisher.send(*(Publish("t", bytes(20)) for _ in range(30)))
    publisher.send(*(Publish("t", bytes(20)) for _ in range(30)))
    assert world.broker.stats.publish_dropped == 30
    slow.set_congested(False)
    assert len(slow.take_payloads()) == 30


@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_wait_for_a_slow_reader_in_the_session(qos: int) -> None:
    world = World(Limits(queue_messages=5))
    slow = slow_reader(world, qos)
    publisher = world.connect("publisher", MQTT_3_1_1)
    for number in range(1, 9):
        publisher.publish("t", b"%d" % number, qos, number)
    assert publisher.take() == [(Puback if qos == 1 else Pubrec)(number) for number in range(1, 9)]
    assert world.broker.stats.publish_dropped == 3
    assert dropped_events(world) == 1
    slow.set_congested(False)
    assert slow.take_payloads() == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("limits", [Limits(queue_messages=3), Limits(queue_bytes=3 * 101)])
def test_the_queue_of_who_is_away_is_bounded_in_messages_and_bytes(limits: Limits) -> None:
    world = World(limits, durable=True)
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    publisher = world.connect("publisher")
    for number in range(5):
        publisher.publish("t", b"%0100d" % number, 1)
    assert world.broker.stats.publish_dropped == 2
    assert dropped_events(world) == 1
    assert len(world.store.messages) == 3
    client = world.connect("a", kept=True)
    assert client.take_payloads() == [b"%0100d" % number for number in range(3)]
    client.lose()
    for number in range(5):
        publisher.publish("t", b"%0100d" % number, 1)
    assert dropped_events(world) == 1, "told again, since it had room meanwhile"


def test_properties_count_as_queued_bytes() -> None:
    world = World(Limits(queue_bytes=1_000))
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    publisher = world.connect("publisher")
    for _ in range(5):
        publisher.publish("t", b"", 1, properties={"user_property": (("name", "x" * 400),)})
    assert world.broker.stats.publish_dropped == 3


def test_a_window_that_is_full_makes_a_queue_with_the_same_bounds() -> None:
    world = World(Limits(queue_messages=3))
    client = world.connect("a", properties={"receive_maximum": 2})
    client.subscribe("t", 1)
    publisher = world.connect("publisher")
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    assert client.take_payloads() == [b"0", b"1"]
    assert world.broker.stats.publish_dropped == 5
    client.send(Puback(1), Puback(2))
    assert client.take_payloads() == [b"2", b"3"]


def test_a_long_queue_goes_out_in_turns_and_in_order() -> None:
    world = World()
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.publish("t", b"%d " % number + bytes(10_000), 1)
    client = world.connect("a", kept=True)
    publisher.publish("t", b"100 ", 1)
    numbers = [int(payload.split(b" ")[0]) for payload in client.take_payloads()]
    assert numbers == list(range(101))


def test_a_queue_stops_when_the_reader_does() -> None:
    world = World()
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.lose()
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.publish("t", b"%d " % number + bytes(10_000), 1)
    client = world.open()
    client.connection.receive_data(
        bytes.fromhex("1013 0004 4d515454 05 00 0000 05 11 0000ffff 0001 61"), world.now
    )
    client.connection.set_congested(True, world.now)
    world.settle()
    assert client.take_bytes() == b""
    outbox = world.broker.sessions["a"].outbox
    assert outbox is not None
    assert 50 < len(outbox.queue) < 100
    client.version = MQTT_5
    client.set_congested(False)
    numbers = [int(packet.payload.split(b" ")[0]) for packet in client.take() if isinstance(packet, Publish)]
    assert numbers == list(range(100))


def test_a_client_that_reads_no_answers_is_not_read_from() -> None:
    world = World()
    client = world.connect("a", MQTT_3_1_1)
    client.set_congested(True)
    for _ in range(MAX_UNREAD_ANSWERS // 100 + 1):
        client.send(*(Publish("t", b"", 1, packet_id=1) for _ in range(100)))
    assert client.connection.paused
    client.set_congested(False)
    assert not client.connection.paused
    assert len(client.take()) == (MAX_UNREAD_ANSWERS // 100 + 1) * 100


def test_a_slow_reader_still_gets_its_last_packet() -> None:
    world = World()
    client = world.connect("a", keep_alive=10)
    client.set_congested(True)
    client.send(Pingreq())
    world.advance(16)
    assert client.take() == [Pingresp(), client_disconnect()]
    assert client.closed


def client_disconnect() -> Disconnect:
    return Disconnect(Reason.KEEP_ALIVE_TIMEOUT, {"reason_string": "nothing heard for 1.5 x keep alive"})


# Packets that a client does not take


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_larger_than_the_client_takes_is_dropped_as_if_it_were_sent(qos: int) -> None:
    """MQTT-3.1.2-24, MQTT-3.1.2-25."""
    world = World(durable=True)
    client = world.connect("a", properties={"maximum_packet_size": 100, "receive_maximum": 1}, kept=True)
    client.subscribe("t", qos)
    publisher = world.connect("publisher")
    for number, size in enumerate((90, 200, 10), 1):
        publisher.publish("t", b"x" * size, qos, number) if qos else publisher.publish("t", b"x" * size)
    if qos == 1:
        client.send(Puback(1))
    elif qos == 2:
        client.send(Pubrec(1, Reason.UNSPECIFIED_ERROR))
    assert [len(payload) for payload in client.take_payloads()] == [90, 10]
    assert world.broker.stats.publish_dropped == 1
    assert len(world.store.waits) == bool(qos)


def test_a_message_just_as_large_as_the_client_takes_is_sent() -> None:
    world = World()
    client = world.connect("a", properties={"maximum_packet_size": 100})
    client.subscribe("t")
    client.publish("t", bytes(94))
    client.publish("t", bytes(95))
    assert [len(payload) for payload in client.take_payloads()] == [94]


def test_a_session_that_comes_back_with_less_room_loses_only_what_does_not_fit() -> None:
    world = World()
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    publisher = world.connect("publisher")
    for size in 10, 200, 20:
        publisher.publish("t", bytes(size), 1)
    client.lose()
    client = world.connect("a", properties={"maximum_packet_size": 100}, kept=True)
    assert [len(payload) for payload in client.take_payloads()] == [10, 20]
    assert world.broker.sessions["a"].waiting_count == 2


def test_half_a_packet_takes_no_more_room_than_a_whole_one() -> None:
    world = World(Limits(packet_bytes=1_000))
    client = world.connect("a")
    client.send_bytes(b"\x30\xe5\x07")  # 997 bytes to come
    for _ in range(99):
        client.send_bytes(bytes(10))
        assert len(client.connection.partial or b"") <= 1_000
    assert not client.closed


def test_a_publisher_of_many_topics_does_not_fill_our_memory() -> None:
    world = World()
    client = world.connect("a", MQTT_3_1_1)
    for number in range(3_000):
        client.send_later(Publish(f"t/{number}", b"x"))
    assert len(client.connection.topics or ()) <= 1_024
