"""What is stored, what waits for it, and what a broker takes up again after a crash."""

from __future__ import annotations

import pytest

from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.durability import MAX_HELD_ACKNOWLEDGEMENTS
from hedgerow.broker.limits import Limits
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import KEPT, START, Client, World


def durable_world(limits: Limits | None = None) -> World:
    """A world with a kept subscriber to `t` that is away, and in which nothing is committed by itself."""
    world = World(limits, durable=True)
    client = world.connect("subscriber", kept=True)
    client.subscribe("t", 2)
    client.lose()
    world.commits = False
    return world


def commit(world: World) -> None:
    assert world.commit()
    world.settle()


def reconnect(world: World, client_id: str = "subscriber", **fields: object) -> Client:
    return world.connect(client_id, kept=True, **fields)  # type: ignore[arg-type]


def test_an_acknowledgement_waits_until_its_message_is_stored() -> None:
    world = durable_world()
    publisher = world.connect("publisher")
    publisher.publish("t", b"1", 1, 1)
    publisher.publish("t", b"2", 2, 2)
    assert publisher.take() == []
    commit(world)
    assert publisher.take() == [Puback(1), Pubrec(2)]
    assert sorted(message.payload for message in world.store.messages.values()) == [b"1", b"2"]


def test_what_everyone_has_acknowledged_is_answered_with_nothing_stored() -> None:
    world = World(durable=True)
    publisher = world.connect("publisher")
    readers = [world.connect(name, kept=True) for name in ("one", "two")]
    for reader in readers:
        reader.subscribe("t", 1)
    world.commits = False
    for number in 1, 2, 3:
        publisher.publish("t", b"%d" % number, 1, number)
    for reader in readers:
        assert reader.take_payloads() == [b"1", b"2", b"3"]
    readers[0].send(Puback(1), Puback(2), Puback(3))
    assert not world.let_go()
    readers[1].send(Puback(1), Puback(3))
    assert world.let_go()
    assert publisher.take() == [Puback(1)], "what is behind one that is not finished waits"
    commit(world)
    assert publisher.take() == [Puback(2), Puback(3)]
    assert [message.payload for message in world.store.messages.values()] == [b"2"]
    assert len(world.store.log) == 1


def test_what_nobody_can_acknowledge_yet_is_not_waited_for() -> None:
    world = durable_world()
    publisher = world.connect("publisher")
    publisher.publish("t", b"for one that is away", 1, 1)
    assert not world.broker.durability.is_on_its_way
    commit(world)
    assert publisher.take() == [Puback(1)]
    reader = reconnect(world)
    commit(world)
    reader.take()
    assert not world.broker.durability.has_unwritten
    publisher.publish("t", b"1", 2, 2)
    assert not world.broker.durability.is_on_its_way, "at QoS 2 it leaves when it is stored"
    assert not world.let_go()


def test_what_another_gets_instead_is_stored_before_its_publisher_is_answered() -> None:
    world = World(durable=True)
    publisher, reader = world.connect("publisher"), world.connect("reader", kept=True)
    reader.subscribe("t", 1)
    world.commits = False
    publisher.publish("t", b"1", 1, 1)
    session = world.broker.sessions["reader"]
    (delivery,) = session.loaded()
    world.broker.durability.finish_delivery(session, delivery)
    assert not world.let_go()
    commit(world)
    assert publisher.take() == [Puback(1)]


def test_a_batch_holds_back_only_what_it_contains() -> None:
    world = durable_world()
    publisher = world.connect("publisher")
    publisher.publish("t", b"1", 1, 1)
    assert world.take_changes()
    publisher.publish("t", b"2", 1, 2)
    assert world.broker.take_changes() is None, "one batch at a time"
    commit(world)
    assert publisher.take() == [Puback(1)]
    commit(world)
    assert publisher.take() == [Puback(2)]


def test_what_needs_no_store_does_not_wait() -> None:
    world = durable_world()
    publisher, reader = world.connect("publisher"), world.connect("reader")
    reader.subscribe("u", 2)
    publisher.publish("u", b"x", 1, 1)
    publisher.publish("nobody", b"x", 2, 2)
    publisher.send(Publish("t", b"x"), Pingreq())
    assert publisher.take() == [Puback(1), Pubrec(2, Reason.NO_MATCHING_SUBSCRIBERS), Pingresp()]
    assert reader.take_payloads() == [b"x"]


def test_acknowledgements_keep_their_order() -> None:
    """MQTT-4.6.0-2: one that need not wait stands behind those that do."""
    world = durable_world()
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 1, 1)
    publisher.publish("nobody", b"x", 1, 2)
    publisher.send(Subscribe(3, [Subscription("x")]))
    assert publisher.take() == []
    commit(world)
    assert publisher.take() == [Puback(1), Puback(2, Reason.NO_MATCHING_SUBSCRIBERS), Suback(3, [0])]


def test_a_retained_message_is_stored_before_it_is_acknowledged() -> None:
    world = World(durable=True)
    world.commits = False
    publisher = world.connect("publisher")
    publisher.publish("r", b"x", 1, 1, retain=True)
    assert publisher.take() == []
    commit(world)
    assert publisher.take_one(Puback).packet_id == 1
    world.crash()
    client = world.connect("a")
    client.subscribe("r", 1)
    assert client.take() == [Publish("r", b"x", 1, True, packet_id=1)]
    publisher = world.connect("publisher")
    publisher.publish("r", b"", 1, 1, retain=True)
    assert publisher.take() == []
    commit(world)
    assert publisher.take_one(Puback).packet_id == 1
    world.crash()
    client = world.connect("a")
    client.subscribe("r", 1)
    assert client.take() == []


def test_subscribing_and_unsubscribing_wait_until_they_are_stored() -> None:
    world = durable_world()
    client = reconnect(world)
    client.send(Subscribe(1, [Subscription("u", 1, True, True, 2)], {"subscription_identifier": (9,)}))
    client.send(Unsubscribe(2, ["t"]))
    assert client.take() == []
    commit(world)
    assert client.take() == [Suback(1, [1]), Unsuback(2, [0])]
    stored = SubscriptionRecord(Subscription("u", 1, True, True, 2), 9)
    assert list(world.store.subscriptions.values()) == [stored]


def test_an_unsubscribe_that_is_repeated_waits_too() -> None:
    """The first one may not be stored yet, and a crash would bring the subscription back."""
    world = durable_world()
    client = reconnect(world)
    client.send(Unsubscribe(1, ["t"]))
    client.lose()
    client = reconnect(world)
    client.send(Unsubscribe(1, ["t"]))
    assert client.take() == []
    commit(world)
    assert client.take() == [Unsuback(1, [Reason.NO_SUBSCRIPTION_EXISTED])]


def test_qos_1_goes_to_a_subscriber_at_once_and_qos_2_when_it_is_stored() -> None:
    world = durable_world()
    client = reconnect(world)
    commit(world)
    publisher = world.connect("publisher")
    publisher.publish("t", b"1", 1, 1)
    publisher.publish("t", b"2", 2, 2)
    assert client.take_payloads() == [b"1"]
    commit(world)
    assert client.take_payloads() == [b"2"]
    client.send(Pubrec(2))
    assert client.take() == []
    commit(world)
    assert client.take() == [Pubrel(2)]


def test_what_was_delivered_before_it_was_stored_need_not_be() -> None:
    world = durable_world()
    client = reconnect(world)
    commit(world)
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 1, 1)
    client.take()
    client.send(Puback(1))
    assert world.take_changes()
    assert world.store.messages == {}
    commit(world)
    assert publisher.take() == [Puback(1)]
    assert world.store.messages == {}
    assert world.store.waits == []


def test_one_message_is_stored_once_for_all_who_get_it() -> None:
    world = durable_world()
    world.commits = True
    for name in "a", "b":
        client = reconnect(world, name)
        client.subscribe("t", 1)
        client.lose()
    world.connect("publisher").publish("t", b"x", 1)
    assert len(world.store.messages) == 1
    assert len(world.store.waits) == 3
    for name in "a", "b", "subscriber":
        client = reconnect(world, name)
        client.take()
        assert len(world.store.messages) == 1
        client.send(Puback(1))
    assert world.store.messages == {}
    assert world.store.waits == []
    assert world.broker.durability.references == 0


def test_stored_messages_have_an_id_that_is_used_once() -> None:
    world = durable_world()
    world.commits = True
    publisher = world.connect("publisher")
    publisher.send(Publish("t", b"0"), Publish("t", b"0"), Publish("t", b"1", 1, packet_id=1))
    publisher.publish("t", b"2", 1, 2, retain=True)
    ids = [message.id for message in world.store.messages.values()]
    assert ids == [MessageId("node", 1, 3), MessageId("node", 1, 4)]
    assert world.store.retained["t"].id == ids[1]


def test_a_session_that_ends_takes_everything_with_it() -> None:
    world = durable_world()
    world.commits = True
    publisher = world.connect("publisher", kept=True)
    publisher.publish("t", b"x", 2, 1)
    assert world.store.received
    assert world.store.waits
    publisher.send(Disconnect(0, {"session_expiry_interval": 0}))
    world.advance(4_000)
    assert world.store.is_empty


def test_a_kept_session_that_comes_back_to_stay_no_longer_is_not_restored() -> None:
    """Its deliveries are finished in the store too, so nothing of it comes back after a crash."""
    world = durable_world()
    world.commits = True
    client = world.connect("subscriber", clean_start=False)
    assert client.connack.session_present
    world.connect("publisher").publish("t", b"x", 2)
    assert client.take_payloads() == [b"x"]
    client.send(Pubrec(1), Pubcomp(1))
    world.crash()
    assert not world.broker.sessions
    assert not reconnect(world).connack.session_present
    reconnect(world).lose()


def test_clients_whose_sessions_are_not_kept_are_not_stored() -> None:
    world = World(durable=True)
    client = world.connect("a")
    client.subscribe("t", 2)
    client.publish("t", b"x", 2)
    client.lose()
    assert world.store.is_empty


# Clean starts


def test_a_clean_start_is_accepted_when_the_old_session_is_deleted_for_good() -> None:
    world = durable_world()
    world.connect("publisher").publish("t", b"old", 1)
    client = world.open()
    client.send(Connect("subscriber", properties={"session_expiry_interval": 100}), Pingreq())
    world.connect("other").publish("t", b"not subscribed", 1)
    assert client.take() == []
    commit(world)
    assert [type(packet) for packet in client.take()] == [Connack, Pingresp]
    world.crash()
    client = reconnect(world)
    assert client.connack.session_present
    assert client.take() == []


def test_an_identifier_of_a_session_that_was_discarded_swallows_no_message() -> None:
    world = durable_world()
    publisher = reconnect(world, "publisher")
    publisher.publish("t", b"old", 2, 1)
    commit(world)
    publisher = world.open()
    publisher.send(Connect("publisher", properties={"session_expiry_interval": 100}))
    assert publisher.take() == [], "so that it cannot publish yet"
    commit(world)
    assert publisher.take_one(Connack).reason_code == 0
    publisher.publish("t", b"new", 2, 1)
    world.crash()
    publisher = reconnect(world, "publisher")
    publisher.publish("t", b"new", 2, 1, dup=True)
    commit(world)
    assert publisher.take() == [Pubrec(1)]
    assert b"new" in {message.payload for message in world.store.messages.values()}


# After a crash


def test_a_broker_takes_up_what_it_had_stored() -> None:
    world = durable_world(Limits(in_flight=2))
    world.commits = True
    client = reconnect(world)
    publisher = world.connect("publisher")
    for number in range(1, 6):
        publisher.publish("t", b"%d" % number, 2, number)
    assert len(client.take()) == 2
    client.send(Pubrec(2))
    world.crash()
    client = reconnect(world)
    assert client.connack.session_present
    assert client.take() == [Pubrel(2), Publish("t", b"1", 2, dup=True, packet_id=1)]
    client.send(Pubcomp(2))
    assert client.take() == [Publish("t", b"3", 2, packet_id=3)]
    world.connect("publisher").publish("t", b"live", 2)
    for packet_id in 1, 3, 4, 5, 6:
        client.send(Pubrec(packet_id), Pubcomp(packet_id))
    seen = [packet.payload for packet in client.take() if isinstance(packet, Publish)]
    assert seen == [b"4", b"5", b"live"]


def test_what_was_not_committed_did_not_happen() -> None:
    world = durable_world()
    publisher = reconnect(world, "publisher")
    commit(world)
    publisher.publish("t", b"x", 2, 1)
    assert publisher.take() == []
    world.crash()
    publisher = reconnect(world, "publisher")
    publisher.publish("t", b"x", 2, 1, dup=True)
    commit(world)
    assert publisher.take() == [Pubrec(1)]
    assert reconnect(world).take() == []
    commit(world)
    assert len(world.store.messages) == 1


def test_a_publication_that_is_repeated_before_it_is_stored_waits_like_the_first() -> None:
    world = durable_world()
    publisher = reconnect(world, "publisher")
    publisher.publish("t", b"x", 2, 1)
    publisher.lose()
    publisher = reconnect(world, "publisher")
    publisher.publish("t", b"x", 2, 1, dup=True)
    assert publisher.take() == []
    commit(world)
    assert publisher.take() == [Pubrec(1)]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_release_that_is_repeated_before_it_is_stored_waits_like_the_first(version: int) -> None:
    """Else the identifier is used again, and after a crash the new message is taken for the old."""
    world = durable_world()
    publisher = reconnect(world, "publisher", version=version)
    publisher.publish("t", b"x", 2, 1)
    commit(world)
    publisher.send(Pubrel(1))
    publisher.lose()
    publisher = reconnect(world, "publisher", version=version)
    publisher.send(Pubrel(1))
    assert publisher.take() == []
    commit(world)
    assert publisher.take_one(Pubcomp).packet_id == 1
    assert world.store.received == {}


def test_a_will_is_published_after_the_crash_that_cut_its_client_off() -> None:
    world = durable_world()
    world.commits = True
    reconnect(world, "mortal", will=Will("t", b"gone", 1, properties={"will_delay_interval": 10}))
    world.crash(after_s=100)
    client = reconnect(world)
    world.advance(9)
    assert client.take() == []
    world.advance(1)
    assert client.take_payloads() == [b"gone"]
    world.crash()
    world.advance(100)
    assert [packet.payload for packet in reconnect(world).take() if isinstance(packet, Publish)] == [b"gone"]


def test_the_time_of_a_session_goes_on_while_the_broker_is_down() -> None:
    world = durable_world()
    world.commits = True
    world.connect("away", properties={"session_expiry_interval": 100}, clean_start=False).lose()
    world.connect("there", properties={"session_expiry_interval": 100}, clean_start=False)
    world.crash(after_s=99)
    assert {"away", "there"} <= world.broker.sessions.keys()
    world.advance(2)
    assert "away" not in world.broker.sessions
    assert "there" in world.broker.sessions, "when it was cut off is not known"
    world.advance(100)
    assert "there" not in world.broker.sessions


def test_messages_expire_while_the_broker_is_down() -> None:
    world = durable_world()
    world.commits = True
    publisher = world.connect("publisher")
    for seconds in 10, 100:
        properties = {"message_expiry_interval": seconds}
        publisher.publish("t", b"%d" % seconds, 1, properties=properties)
        publisher.publish(f"r/{seconds}", b"x", retain=True, properties=properties)
    world.crash(after_s=50)
    assert [message.topic for message in world.broker.retained] == ["r/100"]
    [packet] = reconnect(world).take()
    assert packet == Publish("t", b"100", 1, packet_id=1, properties={"message_expiry_interval": 50})


def test_a_client_may_have_a_message_twice_and_finish_one_copy() -> None:
    """A shared and a plain subscription: two deliveries of one message, each with its own place."""
    world = World(durable=True)
    client = world.connect("a", kept=True)
    client.subscribe("t", 2)
    client.subscribe("$share/g/t", 2)
    world.connect("publisher").publish("t", b"x", 2)
    assert len(client.take()) == 2
    client.send(Pubrec(2))
    client.send(Pubrec(1), Pubcomp(1))
    world.crash()
    assert world.connect("a", kept=True).take() == [Pubrel(2)]


def test_a_retained_message_that_is_in_flight_may_be_asked_for_again() -> None:
    world = World(durable=True)
    client = world.connect("a", kept=True)
    client.subscribe("t", 1)
    client.publish("t", b"x", 1, retain=True)
    client.take()
    client.subscribe("t", 1)
    assert client.take_one(Publish).packet_id == 2
    client.send(Puback(1))
    world.crash()
    [again] = world.connect("a", kept=True).take()
    assert isinstance(again, Publish)
    assert again.dup


def test_the_store_is_not_asked_for_what_a_late_timer_leaves() -> None:
    world = World(durable=True)
    assert world.broker.take_changes() is None
    world.connect("a").lose()
    assert world.broker.take_changes() is None


# A store that does not commit


def test_a_publisher_is_paused_while_too_much_waits_for_the_store() -> None:
    world = durable_world()
    publisher = world.connect("publisher", MQTT_3_1_1)
    for number in range(1, MAX_HELD_ACKNOWLEDGEMENTS + 1):
        assert not publisher.connection.paused
        publisher.publish("t", b"x", 1, number)
    assert publisher.connection.paused
    publisher.set_congested(True)
    publisher.set_congested(False)
    assert publisher.connection.paused
    while world.commit():
        world.settle()
    assert not publisher.connection.paused
    assert len(publisher.take()) == MAX_HELD_ACKNOWLEDGEMENTS


def test_a_client_within_the_receive_maximum_is_not_refused_for_other_answers_that_wait() -> None:
    world = durable_world(Limits(receive_maximum=3))
    client = reconnect(world)
    client.publish("t", b"1", 1, 1)
    client.publish("t", b"2", 2, 2)
    client.send(Subscribe(8, [Subscription("u")]), Unsubscribe(9, ["u"]))
    client.publish("t", b"3", 1, 3)
    assert not client.closed
    client.publish("t", b"4", 1, 4)
    assert client.closed


def test_what_must_follow_the_commit_is_called_in_its_place_among_the_packets() -> None:
    world = durable_world()
    publisher = world.connect("publisher")
    seen: list[bytes] = []

    def look() -> None:
        publisher.transmit()
        seen.append(publisher.take_bytes())

    durability = world.broker.durability
    durability.when_committed(look)
    assert seen == [b""]  # Nothing waits to be stored.
    publisher.publish("t", b"1", 1, 1)
    durability.when_committed(look)
    publisher.publish("t", b"2", 1, 2)
    world.take_changes()
    durability.when_committed(look)
    assert len(seen) == 1
    commit(world)
    assert [len(data) for data in seen] == [0, 4]
    assert publisher.take() == [Puback(2)]
    commit(world)
    assert seen[2:] == [b""]


def test_without_a_store_nothing_waits() -> None:
    world = World()
    world.connect("publisher").publish("t", b"1", 1, 1, retain=True)
    called: list[int] = []
    world.broker.durability.when_committed(lambda: called.append(1))
    assert called == [1]
    world.broker.durability.keep("part", "north", "text")
    assert world.broker.take_changes() is None


def test_what_a_call_after_the_commit_changes_is_stored_by_the_next() -> None:
    world = durable_world()
    durability = world.broker.durability
    durability.keep("part", "north", "text")
    durability.when_committed(lambda: durability.keep("part", "north", None))
    commit(world)
    assert world.store.kept == {("part", "north"): "text"}
    commit(world)
    assert world.store.kept == {}


def test_what_parts_keep_comes_back() -> None:
    world = durable_world()
    world.broker.durability.keep("part", "north", "text")
    commit(world)
    world.broker.durability.keep("part", "south", "text")
    world.crash()
    assert world.broker.kept_by("part") == {"north": "text"}


def test_answers_for_a_connection_that_is_gone_are_dropped() -> None:
    world = durable_world()
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 1, 1)
    publisher.lose()
    commit(world)
    assert publisher.take_bytes() == b""


def test_restoring_begins_where_the_store_ended() -> None:
    world = durable_world()
    world.commits = True
    world.connect("publisher").publish("t", b"1", 1)
    world.crash()
    world.connect("publisher").publish("t", b"2", 1)
    world.connect("new", kept=True)
    assert [message.payload for _, message in sorted(world.store.messages.items())] == [b"1", b"2"]
    assert len(world.store.sessions) == 2
    message: Message = world.store.messages[max(world.store.messages)]
    assert message.id == MessageId("node", 2, 1)
    assert world.now >= START


def test_after_its_session_has_expired_a_client_hears_nothing_before_that_is_stored() -> None:
    """Else a crash brought it back, and what it has received would swallow a new message."""
    world = World(durable=True)
    first = world.connect("client", kept=True)
    first.publish("t", b"1", 2, 7)
    first.lose()
    world.commits = False
    world.broker.discard(world.broker.sessions["client"])
    client = world.open()
    client.send(Connect("client", clean_start=False, properties={"session_expiry_interval": KEPT}))
    assert client.take() == []
    world.commit()
    world.settle()
    assert isinstance(client.take_packet(), Connack)
