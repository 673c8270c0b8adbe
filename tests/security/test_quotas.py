"""What one owner may have: sessions, filters, aliases, and bytes before it has proved anything."""

from __future__ import annotations

import pytest

from hedgerow.broker.connection import (
    MAX_ALIAS_BYTES,
    MAX_ALIASED_TOPIC,
    MAX_UNREAD_ANSWER_BYTES,
    SMALL_PACKET_BYTES,
)
from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.limits import Limits
from hedgerow.broker.owners import (
    LARGE_PACKETS,
    MAX_CONNECT_BYTES,
    MAX_UNKNOWN_BYTES,
    MIN_CONNECTIONS,
    MIN_SESSIONS,
    OWNER_QUEUES,
    OWNER_SUBSCRIPTIONS,
    RECLAIM_S,
    filter_bytes,
    owner_of,
)
from hedgerow.broker.port import Port
from hedgerow.broker.session import FREE_QUEUE_BYTES
from hedgerow.broker.unreleased import FEW, MAP_BYTES, MAX_BEFORE_MQTT_5, Unreleased
from hedgerow.message import Message
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import Network
from tests.broker.harness import KEPT, Client, World

QUOTA = Limits(sessions=400)
SHARE = 100


def come(world: World, client_id: str, user: str | None = None, address: str = "192.0.2.1") -> Client:
    client = world.open(address, certificate_name=user)
    client.send(Connect(client_id, MQTT_5, False, properties={"session_expiry_interval": KEPT}))
    client.connack = client.take_first(Connack)
    return client


def fill(world: World, user: str | None = None, address: str = "192.0.2.1", topic_filter: str = "t") -> int:
    """How many sessions one owner gets, with a subscription each, before it is refused."""
    for number in range(1_000):
        client = come(world, f"{user}-{address}-{number}", user, address)
        if client.connack.reason_code:
            assert client.connack.reason_code == Reason.QUOTA_EXCEEDED
            return number
        client.send(Subscribe(1, [Subscription(topic_filter)]))
        client.lose()
    raise AssertionError("it was never refused")


def test_owners_are_users_and_else_sites() -> None:
    assert owner_of("anna", "192.0.2.1") == "user:anna"
    assert owner_of(None, "192.0.2.1") == "site:192.0.2.1"
    assert owner_of(None, "2001:db8::1") == owner_of(None, "2001:db8::2:1")
    assert owner_of(None, "2001:db8::1") != owner_of(None, "2001:db8:0:1::1")


@pytest.mark.parametrize("user", ["anna", None])
def test_one_owner_leaves_room_for_the_others_also_after_a_restart(user: str | None) -> None:
    world = World(QUOTA, durable=True)
    assert fill(world, user) == SHARE
    assert come(world, "another user", "berta").connack.reason_code == 0
    assert come(world, "another site", None, "192.0.2.2").connack.reason_code == 0
    world.crash()
    assert come(world, "once more", user).connack.reason_code == Reason.QUOTA_EXCEEDED
    assert come(world, "another user", "berta").connack.reason_code == 0
    assert come(world, f"{user}-192.0.2.1-0", user).connack.session_present


def test_many_owners_together_leave_room_for_the_next() -> None:
    world = World(QUOTA)
    taken = [fill(world, f"user {number}") for number in range(8)]
    assert sum(taken) < QUOTA.sessions - MIN_SESSIONS
    assert come(world, "new", "new").connack.reason_code == 0


def test_empty_sessions_make_way_for_new_ones_of_their_owner_the_oldest_first() -> None:
    world = World(QUOTA, durable=True)
    others = come(world, "of another", "berta")
    others.lose()
    for number in range(SHARE + 10):
        client = come(world, f"c{number}", "anna")
        assert client.connack.reason_code == 0
        client.lose()
    assert "c9" not in world.broker.sessions
    assert "c10" in world.broker.sessions
    world.crash()
    assert come(world, "new", "anna").connack.reason_code == 0
    assert "c10" not in world.broker.sessions
    assert "of another" in world.broker.sessions
    assert len(world.store.sessions) == len(world.broker.sessions)


def test_a_session_with_something_in_it_is_not_given_up() -> None:
    world = World(Limits(sessions=4))
    subscribed = come(world, "subscribed")
    subscribed.subscribe("t", 1)
    subscribed.lose()
    with_will = world.open("192.0.2.1")
    will = Will("t", b"x", properties={"will_delay_interval": KEPT})
    with_will.send(Connect("will", MQTT_5, False, properties={"session_expiry_interval": KEPT}, will=will))
    with_will.lose()
    connected = come(world, "connected")
    come(world, "empty").lose()
    assert come(world, "new").connack.reason_code == 0
    assert set(world.broker.sessions) == {"subscribed", "will", "connected", "new"}
    assert come(world, "newer").connack.reason_code == Reason.QUOTA_EXCEEDED
    assert not connected.closed


def test_what_is_counted_is_given_back() -> None:
    world = World(durable=True)
    client = world.connect("a", kept=True)
    client.send(Subscribe(1, [Subscription(each) for each in ("t/+", "+/" * 20 + "x", "t/+")]))
    owner = world.broker.owners.get(owner_of(None, "192.0.2.1"))
    assert owner is not None
    assert owner.subscription_bytes == filter_bytes("t/+") + filter_bytes("+/" * 20 + "x")
    assert owner.deep_levels == 21
    client.lose()
    world.crash()
    client = world.connect("a", kept=True)
    owner = world.broker.owners.get(owner_of(None, "192.0.2.1"))
    assert owner is not None
    assert owner.deep_levels == 21
    client.send(Unsubscribe(1, ["+/" * 20 + "x", "t/+", "never"]))
    assert (owner.subscription_bytes, owner.deep_levels, owner.sessions) == (0, 0, 1)
    client.send(Disconnect(properties={"session_expiry_interval": 0}))
    assert len(world.broker.owners) == 0


def granted(client: Client, filters: list[str]) -> int:
    """How many of them, before the first that is refused."""
    client.send(Subscribe(1, [Subscription(each) for each in filters]))
    codes = client.take_first(Suback).reason_codes
    assert set(codes) <= {0, Reason.QUOTA_EXCEEDED}
    return codes.index(Reason.QUOTA_EXCEEDED) if Reason.QUOTA_EXCEEDED in codes else len(codes)


def test_filters_are_measured_and_not_only_counted() -> None:
    limits = Limits(subscription_bytes=1_000_000)
    world = World(limits)
    filters = [f"{number:04}" + "x" * 60_000 for number in range(50)]
    assert granted(world.connect("a"), filters) == 1_000_000 // filter_bytes(filters[0])
    for number in range(2 * OWNER_SUBSCRIPTIONS):
        granted(world.connect(f"c{number}"), filters)
    owner = world.broker.owners.get(owner_of(None, "192.0.2.1"))
    assert owner is not None
    assert owner.subscription_bytes <= OWNER_SUBSCRIPTIONS * limits.subscription_bytes


def deep_filters(count: int, levels: int, first: int = 0) -> list[str]:
    """Each another combination of "a" and "+", so that all follow the same name to its end."""
    return [
        "/".join(["+" if number >> bit & 1 else "a" for bit in range(14)] + ["+"] * (levels - 15) + ["x"])
        for number in range(first, first + count)
    ]


def test_no_filters_make_the_way_of_one_publication_more_work_than_a_few_turns() -> None:
    world = World()
    for number in range(20):
        client = world.open(f"192.0.2.{number}")
        client.send(Connect(f"c{number}"))
        client.take()
        granted(client, deep_filters(760, 200, 760 * number))
    publisher = world.connect("publisher")
    before = world.broker.work
    publisher.send_later(Publish("/".join(["a"] * 199 + ["y"])))
    assert world.broker.work - before < 5 * TURN_WORK


def test_ordinary_filters_are_not_deep_and_a_few_deep_ones_are_granted() -> None:
    world = World()
    assert granted(world.connect("b"), [f"house/+/room {number}/#" for number in range(5_000)]) == 5_000
    client = world.connect("a")
    assert granted(client, deep_filters(20, 200)) == 20
    assert granted(client, deep_filters(1, 200, 20)) == 0
    assert granted(client, ["a/" * 100 + str(number) for number in range(100)]) == 100, "no wildcards"


def test_topics_with_aliases_are_bounded_in_bytes_both_ways() -> None:
    world = World()
    client = world.connect("a", properties={"topic_alias_maximum": 64})
    client.subscribe("#")
    other = world.connect("other")
    other.publish("y" * (MAX_ALIASED_TOPIC + 1), b"")
    assert not client.connection.aliases_out
    for number in range(5):
        client.publish(f"{number}" + "x" * 60_000, b"", properties={"topic_alias": 1})
    assert not client.closed, "in the place of another"
    client.take_bytes()
    for number in range(1, 4):
        client.publish(f"{number}" + "x" * (MAX_ALIAS_BYTES // 3), b"", properties={"topic_alias": number})
    assert client.closed


def test_connects_on_their_way_are_bounded_together() -> None:
    """10,000 connections that begin a CONNECT of half a megabyte would take 5 GiB."""
    world = World()
    size = MAX_CONNECT_BYTES - 4
    head = b"\x10" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F])
    opened = [world.open() for _ in range(MAX_UNKNOWN_BYTES // MAX_CONNECT_BYTES + 10)]
    for client in opened:
        client.send_bytes(head + b"\0\4MQTT\5")
    assert sum(client.closed for client in opened) >= 10
    assert world.broker.owners.unknown_bytes.used <= MAX_UNKNOWN_BYTES // 4
    world.connect("small")
    for client in opened:
        if not client.closed:
            client.lose()
    assert world.broker.owners.unknown_bytes.used == 0


def begun(size: int) -> bytes:
    """A PUBLISH of so many bytes, without the last of them."""
    packet = encode(Publish("t", b"x" * size), MQTT_5)
    return packet[:-1]


def test_packets_that_have_come_in_part_are_bounded_for_each_owner() -> None:
    """300 connections that each held back the end of an 8 MB packet took 2.3 GB."""
    limits = Limits(packet_bytes=100_000)
    world = World(limits)
    pool = world.broker.owners.packet_bytes
    clients = [world.connect(f"c{number}") for number in range(LARGE_PACKETS)]
    taken = b"".join(begun(90_000)[at : at + 10_000] for at in range(0, 90_000, 10_000))
    for client in clients:
        for at in range(0, len(taken), 10_000):
            if not client.closed:
                client.send_bytes(taken[at : at + 10_000])
    held = sum(len(client.connection.partial or b"") for client in clients)
    assert held <= pool.used <= LARGE_PACKETS * limits.packet_bytes / 4
    refused = [client for client in clients if client.closed]
    assert len(refused) > LARGE_PACKETS / 2
    assert refused[0].take_one(Disconnect).reason_code == Reason.QUOTA_EXCEEDED
    other = come(world, "of another", "berta")
    other.send_bytes(begun(90_000))
    assert not other.closed
    other.send_bytes(b"x")
    for client in clients:
        if not client.closed:
            client.lose()
    other.lose()
    assert pool.used == 0


def test_what_came_in_part_is_given_back_when_it_is_whole_and_little_is_not_counted() -> None:
    world = World()
    pool = world.broker.owners.packet_bytes
    client = world.connect("a")
    client.send_bytes(begun(SMALL_PACKET_BYTES - 100))
    assert pool.used == 0
    client.send_bytes(b"x" + begun(100_000))
    assert pool.used >= 100_000
    client.send_bytes(b"x")
    assert pool.used == 0
    assert world.broker.stats.publish_received == 2


# Queues


def wait_for(world: World, count: int, user: str) -> None:
    """So many sessions of a user, for which messages wait while they are away."""
    for number in range(count):
        client = come(world, f"{user}-{number}", user)
        client.send(Subscribe(1, [Subscription("t/#", 1)]))
        client.lose()


def waiting_for(world: World, user: str) -> int:
    return sum(each.waiting_bytes for each in world.broker.sessions.values() if each.username == user)


def test_queues_of_one_owner_are_bounded_together_and_leave_others_theirs() -> None:
    limits = Limits(queue_bytes=100_000, sessions=1_000)
    world = World(limits=limits)
    wait_for(world, 100, "hoarder")
    wait_for(world, 3, "modest")
    publisher = come(world, "publisher", "publisher")
    for number in range(150):
        publisher.send(Publish(f"t/{number}", b"x" * 1_000, qos=1, packet_id=number + 1))
        world.advance(RECLAIM_S)
    most = OWNER_QUEUES * limits.queue_bytes_in_memory
    assert most * 0.9 < waiting_for(world, "hoarder") <= most + 100 * FREE_QUEUE_BYTES
    assert waiting_for(world, "modest") > 3 * 0.95 * limits.queue_bytes_in_memory


def test_what_no_longer_waits_makes_room_for_the_owners_other_queues() -> None:
    world = World(limits=Limits(queue_bytes=100_000, sessions=1_000))
    wait_for(world, OWNER_QUEUES, "ada")
    publisher = come(world, "publisher", "publisher")

    def publish(topic: str) -> None:
        for number in range(150):
            publisher.send(Publish(topic, b"x" * 1_000, qos=1, packet_id=number + 1))

    publish("t/all")
    late = come(world, "late", "ada")
    late.send(Subscribe(1, [Subscription("late", 1)]))
    late.lose()
    publish("late")
    session = world.broker.sessions["late"]
    assert session.waiting_bytes < 50_000
    read = world.broker.sessions["ada-0"]
    assert read.outbox is not None
    assert read.outbox.drop(lambda message: True)
    world.advance(RECLAIM_S)
    publish("late")
    assert session.waiting_bytes > 95_000


def test_messages_without_bytes_are_not_free() -> None:
    """1,200 sessions that were away, and 7,000 empty messages: 1.1 GB, of which 0.7 MiB were counted."""
    limits = Limits(queue_bytes=20_000, sessions=1_000)
    world = World(limits)
    publish_empty(world)
    most = OWNER_QUEUES * limits.queue_bytes_in_memory + 100 * FREE_QUEUE_BYTES
    assert most * 0.7 < waiting_for(world, "hoarder") <= most


def test_what_waits_in_the_log_takes_little_memory_also_after_a_restart() -> None:
    world = World(Limits(sessions=1_000), durable=True)
    publish_empty(world)
    sessions = [each for each in world.broker.sessions.values() if each.username == "hoarder"]
    assert [each.waiting_count for each in sessions] == [200] * 100
    for _ in range(2):
        assert waiting_for(world, "hoarder") <= 100 * FREE_QUEUE_BYTES
        assert len(world.store.messages) == 200
        world.crash()


def publish_empty(world: World) -> None:
    wait_for(world, 100, "hoarder")
    publisher = come(world, "publisher", "publisher")
    for number in range(200):
        publisher.send(Publish(f"t/{number}", qos=1, packet_id=number + 1))
        world.advance(RECLAIM_S)


def test_what_slow_readers_leave_unread_counts_for_their_owner() -> None:
    limits = Limits(queue_bytes=100_000, sessions=1_000)
    world = World(limits)
    readers = [come(world, f"slow {number}", "slow") for number in range(50)]
    for reader in readers:
        reader.send(Subscribe(1, [Subscription("t", 0)]))
        reader.set_congested(True)
    publisher = come(world, "publisher", "publisher")
    for _ in range(90):
        publisher.send(Publish("t", b"x" * 1_000))
        world.advance(RECLAIM_S)
    unread = sum(sum(map(len, reader.connection.out)) for reader in readers)
    assert unread <= OWNER_QUEUES * limits.queue_bytes_in_memory + 50 * FREE_QUEUE_BYTES
    assert unread > OWNER_QUEUES * limits.queue_bytes_in_memory * 0.9
    for reader in readers:
        reader.set_congested(False)
    world.advance(RECLAIM_S)
    publisher.send(Publish("t", b"x" * 1_000))
    assert all(reader.has_bytes for reader in readers)


def test_large_answers_that_are_left_unread_stop_the_reading() -> None:
    world = World()
    client = world.connect("a")
    client.set_congested(True)
    filters = [Subscription(f"{number}") for number in range(5_000)]
    for number in range(100):
        if not client.connection.paused:
            client.send(Subscribe(number + 1, filters))
            world.advance(1)
    assert client.connection.paused
    assert sum(map(len, client.connection.out)) < 2 * MAX_UNREAD_ANSWER_BYTES


# Wills and names


def leave_with_will(world: World, client_id: str, size: int, user: str | None = "hoarder") -> int:
    """A session with a will that waits, whose client is away; the reason code of its CONNACK."""
    client = world.open(certificate_name=user)
    will = Will("t", b"x" * size, properties={"will_delay_interval": KEPT})
    client.send(Connect(client_id, MQTT_5, False, properties={"session_expiry_interval": KEPT}, will=will))
    client.lose()
    return client.take_first(Connack).reason_code


def test_wills_and_client_identifiers_are_measured_and_not_only_counted() -> None:
    """6,000 sessions with wills of 365 KB took 2.1 GB, 12,000 with client identifiers of 65 KB 0.8 GB."""
    world = World(Limits(session_bytes=8_000_000), durable=True)
    pool = world.broker.owners.session_bytes
    codes = [leave_with_will(world, f"c{number}", 50_000) for number in range(100)]
    assert set(codes) == {0, Reason.QUOTA_EXCEEDED}
    assert 1_800_000 < pool.of("user:hoarder") <= 2_000_000
    assert leave_with_will(world, "another", 50_000, "berta") == 0
    used = pool.used
    world.crash()
    assert world.broker.owners.session_bytes.used == used
    assert leave_with_will(world, "once more", 50_000) == Reason.QUOTA_EXCEEDED
    assert leave_with_will(world, "c0", 50_000) == 0, "in the place of that one"
    codes = [come(world, f"{number}" + "x" * 60_000, "namer").connack.reason_code for number in range(40)]
    assert codes[20] == 0
    assert codes[39] == Reason.QUOTA_EXCEEDED
    world.advance(2 * KEPT)
    assert world.broker.owners.session_bytes.of("user:hoarder") == 0


def test_a_client_of_an_older_protocol_hears_why_it_is_refused() -> None:
    world = World(Limits(session_bytes=1_000_000))
    for number in range(100):
        client = world.open()
        client.send(Connect(f"c{number}", MQTT_3_1_1, False, will=Will("t", b"x" * 60_000)))
        code = client.take_first(Connack).reason_code
        if code:
            assert code == Reason.SERVER_UNAVAILABLE, "3 there"
            return
    raise AssertionError("it was never refused")


def test_empty_sessions_with_long_names_make_way() -> None:
    world = World(Limits(session_bytes=1_000_000))
    for number in range(100):
        client = come(world, f"{number}" + "x" * 60_000)
        assert client.connack.reason_code == 0
        client.lose()


# Connections

CROWD = Limits(connections=300)


def crowd(world: World, address: str, user: str | None = None, most: int = 400) -> int:
    """How many connections one address or user gets, until one is refused."""
    for number in range(most):
        client = come(world, f"{user}-{address}-{number}", user, address)
        if client.connack.reason_code:
            assert client.connack.reason_code == Reason.SERVER_BUSY
            return number
    return most


def test_one_address_leaves_as_many_connections_as_it_has() -> None:
    world = World(CROWD)
    assert crowd(world, "192.0.2.1") == CROWD.connections // 2
    assert crowd(world, "192.0.2.2") == CROWD.connections // 4
    assert crowd(world, "192.0.2.3", "anna") > MIN_CONNECTIONS
    assert come(world, "still", None, "192.0.2.4").connack.reason_code == 0


def test_users_behind_one_address_have_a_share_each_and_one_user_has_one_everywhere() -> None:
    world = World(CROWD)
    for number in range(250):
        assert come(world, f"c{number}", f"user {number}").connack.reason_code == 0
    world = World(CROWD)
    codes = [
        come(world, f"c{number}", "one", f"192.0.2.{number}").connack.reason_code for number in range(200)
    ]
    assert codes.count(0) == CROWD.connections // 2
    # Whoever comes again takes the place of its own connection.
    assert come(world, "c1", "one", "192.0.2.250").connack.reason_code == 0


def test_this_machine_may_have_all_connections_and_administrators_a_few_more() -> None:
    world = World(CROWD)
    world.broker.administrators = frozenset({"root"})
    assert crowd(world, "127.0.0.1") == CROWD.connections
    assert come(world, "other", "anna", "192.0.2.9").connack.reason_code == Reason.SERVER_BUSY
    assert come(world, "root", "root", "192.0.2.9").connack.reason_code == 0
    client = world.open("192.0.2.9")
    client.send(Connect("false", MQTT_5, username="root"))
    assert client.take_first(Connack).reason_code == Reason.SERVER_BUSY, "a claim"


def test_connections_that_end_are_given_back() -> None:
    world = World(CROWD)
    clients = [come(world, f"c{number}", user) for number, user in enumerate([None, "anna", None, "berta"])]
    silent = world.open()
    assert world.broker.owners.connections.used == 5
    for client in (*clients, silent):
        client.lose()
    pool = world.broker.owners.connections
    assert (pool.used, pool.of("user:anna"), pool.of("site:192.0.2.1")) == (0, 0, 0)


# Retained messages


def test_one_owner_leaves_room_for_the_retained_messages_of_others() -> None:
    world = World(Limits(retained_bytes=1_000_000))
    hoarder = come(world, "hoarder")
    for number in range(200):
        hoarder.send(Publish(f"h/{number}", b"x" * 10_000, retain=True))
    retained = world.broker.retained
    assert 450_000 < retained.shares.of("site:192.0.2.1") <= 500_000
    assert any("of this user or address" in str(event) for event in world.broker.take_events())
    other = come(world, "other", "berta")
    for number in range(20):
        other.send(Publish(f"o/{number}", b"x" * 10_000, retain=True))
    assert retained.get("o/19") is not None
    hoarder.send(Publish("h/0", b"y" * 10_010, retain=True))
    kept = retained.get("h/0")
    assert kept is not None
    assert kept.payload[:1] == b"y", "what is there may change"
    for topic in [message.topic for message in retained]:
        hoarder.send(Publish(topic, b"", retain=True))
    assert (retained.bytes, retained.shares.used, retained.shares.of("site:192.0.2.1")) == (0, 0, 0)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_foreign_broker_leaves_room_for_the_retained_messages_of_others(version: str) -> None:
    network = Network()
    opened = network.script("south")
    north = network.add("north", limits=Limits(retained_bytes=200_000))
    north.bridge("# both 1", bridge_protocol_version=version)
    opened[0].accept()
    for number in range(40):
        opened[0].send(Publish(f"h/{number}", bytes(10_000), 1, True, packet_id=1 + number))
        network.advance(0.05)
    assert 80_000 < north.broker.retained.bytes <= 100_000
    assert north.is_up
    client = north.connect("local")
    for number in range(5):
        client.send(Publish(f"o/{number}", bytes(8_000), 1, True, packet_id=1 + number))
    assert north.broker.retained.get("o/4") is not None
    assert north.find().inbound.refused > 20
    assert any("of this link" in str(event) for event in north.broker.take_events())


def test_a_part_leaves_room_for_the_retained_messages_of_others() -> None:
    world = World(Limits(retained_bytes=200_000))
    port = Port(world.broker, "gateway", lambda message: None, "multicast")
    taken = [port.publish(Message(f"h/{n}", bytes(10_000), retain=True), world.now) for n in range(20)]
    assert 7 < sum(taken) < 10
    world.connect("c").send(Publish("o", bytes(10_000), retain=True))
    assert world.broker.retained.get("o") is not None


def test_the_log_says_that_a_client_of_an_older_protocol_was_not_told() -> None:
    world = World(Limits(retained_bytes=10_000))
    client = world.connect("old", MQTT_3_1_1)
    client.send(Publish("t", b"x" * 20_000, qos=1, retain=True, packet_id=1))
    assert any("it was acknowledged" in str(event) for event in world.broker.take_events())


# QoS 2 publications that nobody releases


def open_many(client: Client, first: int, count: int, version: int = MQTT_5) -> int:
    """Publications at QoS 2 without a PUBREL; how many of them were answered."""
    packets = (Publish("t", b"", 2, packet_id=first + number) for number in range(count))
    client.send_bytes(b"".join(encode(packet, version) for packet in packets))
    return sum(isinstance(packet, Pubrec) for packet in client.take())


def test_packet_identifiers_take_a_bit_each() -> None:
    received = Unreleased()
    grew = [received.add(packet_id) for packet_id in range(1, 65_536)]
    assert grew.index(True) == FEW
    assert grew.count(True) == 1
    assert (len(received), received.size) == (65_535, MAP_BYTES)
    shrank = [received.remove(packet_id) for packet_id in range(1, 65_535)]
    assert not any(shrank)
    assert (len(received), list(received), 65_535 in received, 1 in received) == (1, [65_535], True, False)
    assert received.remove(65_535)
    assert (len(received), received.size, list(received)) == (0, 0, [])


def test_those_of_a_client_before_mqtt_5_are_bounded() -> None:
    world = World()
    client = world.open("192.0.2.1")
    client.send(Connect("c", MQTT_3_1_1, False))
    client.take()
    most = MAX_BEFORE_MQTT_5
    assert open_many(client, 1, most, MQTT_3_1_1) == most
    assert not client.closed
    client.send(
        Publish("t", b"", 2, dup=True, packet_id=1), Pubrel(1), Publish("t", b"", 2, packet_id=most + 1)
    )
    assert not client.closed
    client.send(Publish("t", b"", 2, packet_id=most + 2))
    assert client.closed


def test_coming_again_makes_no_room_for_ever_more_of_them() -> None:
    world = World()
    most = world.broker.limits.receive_maximum
    for number in range(5):
        client = come(world, "c")
        open_many(client, 1 + number * most, most)
        client.lose()
    assert len(world.broker.sessions["c"].received or ()) <= 2 * most


@pytest.mark.parametrize("again", [False, True])
def test_they_are_charged_to_their_owner(again: bool) -> None:
    world = World(limits=Limits(session_bytes=2 * MAX_CONNECT_BYTES), durable=True)
    count = 2 * MAX_CONNECT_BYTES // MAP_BYTES
    took = 0
    for number in range(count):
        client = come(world, f"c{number}")
        took += open_many(client, 1, FEW + 1) > FEW
        world.commit()
        client.lose()
    assert 0 < took <= MAX_CONNECT_BYTES // MAP_BYTES
    if again:
        world.crash()
    more = come(world, "more")
    assert open_many(more, 1, FEW) == FEW
    open_many(more, FEW + 1, 1)
    assert more.closed
    other = come(world, "other", address="198.51.100.1")
    assert open_many(other, 1, FEW + 1) == FEW + 1
