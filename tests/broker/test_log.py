"""The log that durable sessions read: what is in memory, what is not, and what happens at its bound."""

from __future__ import annotations

import pytest

from hedgerow.broker.deliveries import MAX_QUEUED
from hedgerow.broker.durability import MAX_UNWRITTEN_BYTES
from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from tests.broker.harness import Client, World
from tests.broker.test_identified import connect_peer, identified

BOUND = 64 * 1_024


def away(world: World, name: str = "away", topic_filter: str = "t/#", qos: int = 1) -> None:
    client = world.connect(name, kept=True, properties={"session_expiry_interval": 100_000})
    client.subscribe(topic_filter, qos)
    client.lose()


def publish(publisher: Client, numbers: range, size: int = 1_000, qos: int = 1) -> None:
    for number in numbers:
        publisher.publish(f"t/{number % 3}", b"%d" % number + b" " * size, qos, 1 + number)


def numbers_of(packets: list[object]) -> list[int]:
    return [int(packet.payload) for packet in packets if isinstance(packet, Publish)]


def read(client: Client, most: int = 10_000) -> list[int]:
    return [int(payload) for payload in payloads(client, most)]


def payloads(client: Client, most: int = 10_000) -> list[bytes]:
    """Take what comes, and acknowledge it, until nothing comes or so much has."""
    found: list[bytes] = []
    while len(found) < most and (packets := client.take()):
        came = [each for each in packets if isinstance(each, Publish)]
        found += [each.payload for each in came]
        client.send(*[Puback(each.packet_id) for each in came])
    return found


def test_what_waits_for_one_that_is_away_is_not_in_memory() -> None:
    world = World(durable=True)
    away(world)
    publish(world.connect("publisher"), range(2_000), size=10)
    session = world.broker.sessions["away"]
    assert (session.waiting_count, len(session.loaded())) == (2_000, 0)
    assert len(world.store.chunks) == 1
    client = world.connect("away", kept=True)
    assert len(session.loaded()) < 1_024 + 600
    assert read(client) == list(range(2_000))
    assert not world.store.chunks
    assert session.waiting_count == 0


def test_a_slow_reader_keeps_a_window_and_a_little_more_in_memory() -> None:
    world = World(durable=True)
    slow = world.connect("slow", kept=True, properties={"receive_maximum": 10})
    slow.subscribe("t/#", 1)
    publish(world.connect("publisher"), range(3_000), size=10)
    session = world.broker.sessions["slow"]
    assert len(session.loaded()) == 10 + MAX_QUEUED
    assert session.waiting_count == 3_000
    assert read(slow) == list(range(3_000))
    publish(world.connect("publisher"), range(5), size=10)
    assert read(slow) == list(range(5)), "it has caught up"


def test_a_thousand_sessions_share_what_is_written() -> None:
    world = World(durable=True)
    for number in range(1_000):
        away(world, f"away {number}")
    publish(world.connect("publisher"), range(50), size=10)
    assert len(world.store.log) == 50
    assert len(world.store.chunks) == 1_000
    for number in (0, 999):
        assert read(world.connect(f"away {number}", kept=True)) == list(range(50))


def test_segments_go_when_nobody_needs_them() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND * 16))
    away(world)
    publish(world.connect("publisher"), range(300))
    assert len(world.store.segments) > 3
    client = world.connect("away", kept=True)
    assert read(client) == list(range(300))
    assert len(world.store.segments) <= 1
    assert world.broker.durability.log_bytes <= BOUND * 2


def test_a_full_log_makes_publishers_wait_and_nobody_else() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world)
    reader = world.connect("reader")
    reader.subscribe("t/#", 1)
    publisher = world.connect("publisher")
    publish(publisher, range(100))
    acknowledged = [each.packet_id for each in publisher.take() if isinstance(each, Puback)]
    assert 0 < len(acknowledged) < 100
    assert world.broker.durability.is_full
    assert read(reader) == list(range(100)), "a reader without a session in the log gets everything at once"
    publisher.publish("t/0", b"-1", 0)
    assert reader.take_payloads() == [b"-1"]
    other = world.connect("other", kept=True)
    other.subscribe("other", 1)
    assert len(world.store.subscriptions) == 2, "what is no message is stored"


def test_a_full_log_goes_on_when_its_reader_does() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world)
    publisher = world.connect("publisher")
    publish(publisher, range(200))
    before = len(publisher.take())
    assert before < 200
    client = world.connect("away", kept=True)
    assert read(client) == list(range(200))
    assert before + len(publisher.take()) == 200
    assert not world.broker.durability.is_behind


def test_exactly_once_goes_on_too() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world, qos=2)
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.publish("t/0", b"%d" % number + b" " * 1_000, 2, 1 + number)
    client = world.connect("away", kept=True)
    found: list[int] = []
    busy = True
    while busy:
        busy = False
        for packet in client.take():
            busy = True
            if isinstance(packet, Publish):
                found.append(int(packet.payload))
                client.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))
        for packet in publisher.take():
            busy = True
            if isinstance(packet, Pubrec):
                publisher.send(Pubrel(packet.packet_id))
    assert found == list(range(100))
    assert not world.store.chunks
    assert not world.store.received


def test_another_broker_passes_on_to_readers_what_a_full_log_has_no_room_for() -> None:
    """Else two that are full of what waits for each other would wait for ever."""
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world, topic_filter="own/#")
    away(world, "reader")
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.publish("own/0", bytes(1_000), 1, 1 + number)
    far = connect_peer(world)
    for number in range(200):
        far.send(
            identified(f"far 1 {number + 1}", b"%d" % number + b" " * 1_000, 1, "t", packet_id=number + 1)
        )
    taken = [each for each in far.take() if isinstance(each, Puback)]
    assert 0 < len(taken) < 20, "nobody reads"
    references = world.broker.durability.references
    reader = world.connect("reader", kept=True)
    assert read(reader) == list(range(200))
    assert len(taken) + len(far.take()) == 200
    assert world.broker.durability.references == references - len(taken)
    assert len(publisher.take()) < 100, "the log is full all the same"
    payloads(world.connect("away", kept=True))
    assert not world.store.chunks


def test_exactly_once_passes_through_a_full_log_too() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world, topic_filter="own/#")
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.publish("own/0", bytes(1_000), 1, 1 + number)
    reader = world.connect("reader", kept=True)
    reader.subscribe("t/#", 2)
    far = connect_peer(world, kept=True)
    found: list[bytes] = []
    for number in range(200):
        far.send(identified(f"far 1 {number + 1}", b"%d" % number, 2, "t", packet_id=1))
        assert far.take() == [Pubrec(1)]
        far.send(Pubrel(1))
        assert far.take() == [Pubcomp(1)]
        packet = reader.take_one(Publish)
        found.append(packet.payload)
        reader.send(Pubrec(packet.packet_id))
        reader.take_one(Pubrel)
        reader.send(Pubcomp(packet.packet_id))
    assert found == [b"%d" % number for number in range(200)]


def test_what_the_disk_has_no_room_for_waits_and_is_no_part_of_a_batch() -> None:
    world = World(durable=True)
    away(world)
    world.broker.set_disk_room(True, 50_000)
    publisher = world.connect("publisher", kept=True)
    world.commits = False
    for number, size in enumerate((10_000, 30_000, 20_000, 60_000, 5_000)):
        publisher.publish("t/0", bytes(size), 2, 1 + number)
    world.commits = True
    world.settle()
    assert [len(each.payload) for each in world.store.messages.values()] == [10_000, 30_000, 20_000]
    assert [each.packet_id for each in publisher.take() if isinstance(each, Pubrec)] == [1, 2, 3]
    assert sorted(packet_id for _, packet_id in world.store.received) == [1, 2, 3]
    world.connect("other", kept=True).subscribe("u", 1)
    assert len(world.store.sessions) == 3, "all else is stored"
    world.broker.set_disk_room(True, 70_000)
    world.settle()
    assert [each.packet_id for each in publisher.take() if isinstance(each, Pubrec)] == [4, 5]


@pytest.mark.parametrize("room", [11_000, 15_000, 25_000, 35_000])
def test_a_publication_is_written_whole_with_what_its_identifier_means(room: int) -> None:
    world = World(durable=True)
    away(world, qos=2)
    away(world, "member", "$share/g/t/#", 2)
    publisher = world.connect("publisher", kept=True)
    world.commits = False
    world.broker.set_disk_room(True, room)
    for number in range(3):
        publisher.publish("t/0", bytes(10_000), 2, 1 + number)
    world.commit()
    written = len(world.store.messages)
    assert written % 2 == 0
    assert len(world.store.received) == written // 2


def test_publishers_that_come_again_and_again_do_not_fill_the_memory() -> None:
    world = World(durable=True)
    away(world)
    world.broker.set_disk_room(False)
    durability = world.broker.durability
    closed = 0
    for _ in range(100):
        publisher = world.connect("publisher")
        publish(publisher, range(10), size=100_000)
        closed += publisher.closed
        if not publisher.closed:
            publisher.lose()
    assert 30 < closed < 50, MAX_UNWRITTEN_BYTES
    assert not durability.takes_publications(world.now)
    world.broker.set_disk_room(True)
    world.settle()
    assert durability.takes_publications(world.now)
    assert len(read(world.connect("away", kept=True))) > 600


def test_what_is_read_before_it_is_written_takes_no_memory() -> None:
    world = World(durable=True)
    away(world, topic_filter="own")
    reader = world.connect("reader", kept=True)
    reader.subscribe("t/#", 1)
    world.broker.set_disk_room(False)
    durability = world.broker.durability
    world.connect("own publisher").publish("own", b"", 1)
    for _ in range(20):
        publisher = world.connect("publisher")
        publish(publisher, range(100), size=1_000)
        assert read(reader) == list(range(100))
        publisher.lose()
    assert durability.takes_publications(world.now, 1_000_000)


def test_a_publisher_that_waits_for_itself_is_heard() -> None:
    """It has far more under way than others do, and reads what it published itself."""
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    client = world.connect("client", MQTT_3_1_1, kept=True)
    client.subscribe("t/#", 1)
    client.set_congested(True)
    for number in range(5_000):
        client.publish("t/0", b"%d" % number + b" " * 10, 1, 1 + number)
    assert not client.connection.paused
    client.set_congested(False)
    assert set(read(client)) == set(range(5_000))
    assert not world.broker.durability.is_behind
    assert not world.store.chunks


@pytest.mark.parametrize("written", [False, True])
def test_what_a_full_log_did_not_take_is_not_known_after_a_crash(written: bool) -> None:
    """At QoS 2: it is sent again, and must not be taken for a duplicate."""
    world = World(durable=True, log_bounds=LogBounds(BOUND))
    away(world)
    publisher = world.connect("publisher", kept=True)
    for number in range(100):
        publisher.publish("t/0", b"%d" % number + b" " * 1_000, 2, 1 + number)
    taken = {each.packet_id for each in publisher.take() if isinstance(each, Pubrec)}
    assert len(taken) < 100
    if written:
        world.write_taken()
    world.crash()
    publisher = world.connect("publisher", kept=True)
    reader = world.connect("away", kept=True)
    for number in range(100):
        if number + 1 not in taken:
            publisher.publish("t/0", b"%d" % number + b" " * 1_000, 2, 1 + number, dup=True)
    assert read(reader) == list(range(100))


def test_the_oldest_may_go_instead() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND, drops_oldest=True))
    away(world)
    publisher = world.connect("publisher")
    publish(publisher, range(300))
    assert len(publisher.take()) == 300
    dropped = world.broker.stats.publish_dropped
    assert dropped > 0
    assert read(world.connect("away", kept=True)) == list(range(dropped, 300))


def test_what_is_too_old_may_go() -> None:
    world = World(durable=True, log_bounds=LogBounds(age_s=10_000))
    away(world)
    publisher = world.connect("publisher")
    publish(publisher, range(3))
    world.advance(6_000)
    publish(publisher, range(3, 5))
    world.advance(6_000)
    assert read(world.connect("away", kept=True)) == [3, 4]
    assert world.broker.stats.publish_expired == 3


def test_what_is_too_old_goes_behind_what_is_in_flight() -> None:
    world = World(durable=True, log_bounds=LogBounds(age_s=10_000))
    client = world.connect("away", kept=True, properties={"session_expiry_interval": 100_000})
    client.subscribe("t/#", 1)
    publisher = world.connect("publisher")
    publish(publisher, range(2))
    client.lose()
    publish(publisher, range(2, 2_000), size=10)
    world.advance(6_000)
    publish(publisher, range(2_000, 2_003))
    world.advance(6_000)
    assert world.broker.stats.publish_expired == 1_998
    assert read(world.connect("away", kept=True)) == [0, 1, 2_000, 2_001, 2_002]
    assert world.broker.durability.references == 0


def test_the_only_segment_may_go_too() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND, drops_oldest=True))
    away(world)
    publisher = world.connect("publisher")
    publisher.publish("t/0", bytes(2 * BOUND), 1, 1)
    publish(publisher, range(1, 3), size=1)
    assert len(publisher.take()) == 3
    assert read(world.connect("away", kept=True)) == [1, 2]


def test_nothing_is_dropped_where_nothing_waits_for_room() -> None:
    world = World(durable=True, log_bounds=LogBounds(BOUND, drops_oldest=True))
    away(world)
    publish(world.connect("publisher"), range(40))
    world.broker.set_disk_room(False)
    for number in range(20):
        world.connect(f"client {number}", kept=True).lose()
    assert world.broker.stats.publish_dropped == 0


def test_a_session_has_a_bound_of_its_own_where_somebody_chose_one() -> None:
    world = World(Limits(queue_messages=5), durable=True)
    away(world)
    publish(world.connect("publisher"), range(9))
    assert read(world.connect("away", kept=True)) == list(range(5))
    assert world.broker.stats.publish_dropped == 4


def test_what_the_log_lost_is_counted_and_the_rest_goes_on() -> None:
    world = World(durable=True)
    away(world)
    publish(world.connect("publisher"), range(20))
    del world.store.log[7], world.store.log[8]
    read_back = read(world.connect("away", kept=True))
    assert read_back == [number for number in range(20) if number + 1 not in (7, 8)]
    assert world.broker.stats.publish_dropped == 2
    assert not world.store.chunks


def test_what_the_log_lost_of_what_was_in_flight_is_let_go() -> None:
    world = World(durable=True)
    client = world.connect("client", kept=True)
    client.subscribe("t/#", 2)
    publisher = world.connect("publisher")
    publish(publisher, range(3))
    publisher.publish("t/0", b"3", 2, 9)
    del world.store.log[2]
    world.crash()
    packets = world.connect("client", kept=True).take()
    assert numbers_of(list(packets)) == [0, 2, 3]
    assert world.broker.stats.publish_dropped == 1
    assert world.broker.durability.references == 3


def test_who_may_no_longer_read_it_does_not_get_what_waits_in_the_log() -> None:
    world = World(durable=True)
    away(world)
    publish(world.connect("publisher"), range(4))
    session = world.broker.sessions["away"]
    session.role.may_read = lambda session, access, topic: topic != "t/1"  # type: ignore[method-assign]
    assert read(world.connect("away", kept=True)) == [0, 2, 3]


def test_shared_messages_of_a_session_that_ends_go_to_another_member() -> None:
    world = World(durable=True)
    away(world, "first", "$share/g/t/#")
    publish(world.connect("publisher"), range(10))
    second = world.connect("second")
    second.subscribe("$share/g/t/#", 1)
    world.broker.discard(world.broker.sessions["first"])
    world.settle()
    assert read(second) == list(range(10))
    assert not world.store.chunks
    assert world.broker.durability.references == 0


def test_shared_messages_that_are_being_written_go_to_another_member() -> None:
    world = World(durable=True)
    away(world, "first", "$share/g/t/#")
    publisher = world.connect("publisher")
    second = world.connect("second", kept=True)
    world.commits = False
    publish(publisher, range(10))
    world.take_changes()
    second.send(Subscribe(1, [Subscription("$share/g/t/#", 1)]))
    world.broker.discard(world.broker.sessions["first"])
    world.commit()
    world.commit()  # the end of the session, and that another has them
    world.crash()
    world.commits = True
    world.settle()
    assert read(world.connect("second", kept=True)) == list(range(10))
    assert world.broker.durability.references == 0


def test_what_an_ended_session_received_is_forgotten_though_the_log_is_full() -> None:
    world = World(durable=True)
    away(world)
    publisher = world.connect("publisher", kept=True)
    world.broker.set_disk_room(False)
    publish(publisher, range(3), qos=2)
    world.broker.discard(world.broker.sessions["publisher"])
    world.settle()
    world.broker.set_disk_room(True)
    world.settle()
    assert not world.store.received


def test_it_goes_on_after_a_crash_where_it_was() -> None:
    world = World(durable=True)
    away(world)
    publish(world.connect("publisher"), range(100), size=10)
    client = world.connect("away", kept=True, properties={"receive_maximum": 10})
    found = read(client, most=40)
    world.crash()
    assert world.broker.sessions["away"].waiting_count == 100 - len(found)
    client = world.connect("away", kept=True)
    packets = client.take()
    assert numbers_of(list(packets)) == list(range(len(found), 100))
    assert isinstance(packets[0], Publish)
    assert packets[0].dup, "it may have been sent before"
    assert isinstance(packets[-1], Publish)
    assert not packets[-1].dup


def test_a_node_that_ends_as_it_should_keeps_packet_identifiers() -> None:
    world = World(durable=True)
    client = world.connect("client", kept=True)
    client.send(Subscribe(1, [Subscription("t/#", 1)]))
    publish(world.connect("publisher"), range(5))
    before = {each.packet_id: each.payload for each in client.take() if isinstance(each, Publish)}
    client.send(Puback(2))
    del before[2]
    world.broker.shut_down(world.now)
    world.settle()
    for _ in range(2):
        world.crash()
        again = world.connect("client", MQTT_5, kept=True)
        found = {each.packet_id: each.payload for each in again.take() if isinstance(each, Publish)}
        assert found.keys() == before.keys()
        assert found == before
        world.broker.shut_down(world.now)
        world.settle()
