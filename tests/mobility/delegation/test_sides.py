"""Both sides together, one scene at a time."""

from __future__ import annotations

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    Delegated,
    DelegationRefused,
    Forgotten,
    HandedBack,
    Left,
    Recovered,
    RenewTopics,
    TakenOver,
)
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.limits import FORGET_AFTER_S
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.publications import (
    Body,
    EmptyBody,
    EventBody,
    Filters,
    PublicationKind,
    Registration,
    Registrations,
    StreamHeader,
    Unsubscription,
)
from tests.mobility.delegation.world import DOMAIN, TAKEOVER_AFTER_S, World


def mobile_of(world: World, name: str = "m1") -> MobileSide:
    mobile = world.mobiles[name]
    assert mobile is not None
    return mobile


def fixed_of(world: World, name: str = "f1") -> FixedSide:
    found = world.fixed[name]
    assert found is not None
    return found


def delegate(world: World, *topic_filters: str, name: str = "m1") -> None:
    assert mobile_of(world, name).delegate(topic_filters, world.now) == list(topic_filters)
    world.settle(name)


def recover(world: World, *topic_filters: str) -> None:
    assert mobile_of(world).recover(topic_filters, world.now) == list(topic_filters)
    world.settle("m1")


@pytest.mark.parametrize("is_delegated", [False, True])
@pytest.mark.parametrize("origin", ["m1", "outside", "m2"])
def test_one_notification_wherever_it_was_published(world: World, origin: str, is_delegated: bool) -> None:
    if is_delegated:
        delegate(world, "t/1")
        world.run()
    event = world.publish(origin, "t/1")
    world.run()
    assert [world.notified[event, client] for client in ("a@m1", "b@m1", "c@m2")] == [1, 1, 1]
    assert world.outside[event] == (origin != "outside")


def test_a_delegated_topic_costs_one_publication_for_all_its_subscribers(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.publish("outside", "t/1")
    (publication,) = world.links["m1", "f1"].down
    assert (publication.topic, publication.payload) == ("t/1", b"1")
    _, _, body = codec.read(publication)
    assert isinstance(body, EventBody)
    assert dict(body.callbacks).keys() == {"a@m1", "b@m1"}
    assert not body.is_to_match


def test_what_is_delegated_is_not_matched_by_the_mobile_broker(world: World) -> None:
    delegate(world, "t/1")
    event = world.publish("m1", "t/1")
    assert not world.notified[event, "a@m1"]
    world.run()
    assert world.notified[event, "a@m1"] == 1


def test_events_on_their_way_while_a_topic_is_delegated_and_recovered(world: World) -> None:
    for change in (delegate, recover):
        before = world.publish("outside", "t/1")
        change(world, "t/1")
        during = [world.publish(origin, "t/1") for origin in ("m1", "outside", "m2", "m1")]
        world.carry("m1", "f1", 1, 0)
        after = world.publish("outside", "t/1")
        world.run()
        assert all(world.notified[event, "a@m1"] == 1 for event in (before, *during, after))
    assert [event for event in world.events if isinstance(event, Delegated)] == [Delegated("f1", "t/1")]
    assert [event for event in world.events if isinstance(event, Recovered)] == [Recovered("f1", "t/1")]


@pytest.mark.parametrize("origin", ["m1", "outside"])
def test_a_subscriber_of_an_active_and_a_delegated_topic_gets_it_once(world: World, origin: str) -> None:
    world.subscribe("a@m1", "t/+")
    delegate(world, "t/+")
    world.run()
    event = world.publish(origin, "t/1")
    world.run()
    assert world.notified[event, "a@m1"] == world.notified[event, "b@m1"] == 1


def test_a_new_subscriber_of_a_delegated_topic_and_one_that_goes(world: World) -> None:
    delegate(world, "t/1")
    world.subscribe("d@m1", "t/1")
    world.unsubscribe("a@m1", "t/1")
    world.run()
    event = world.publish("outside", "t/1")
    world.run()
    assert [world.notified[event, client] for client in ("a@m1", "b@m1", "d@m1")] == [0, 1, 1]
    for client in ("b@m1", "d@m1"):
        world.unsubscribe(client, "t/1")
    world.run()
    assert not fixed_of(world).mobiles["m1"].topics


def test_a_fixed_broker_that_dies_is_replaced_by_the_mobile_broker_itself(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    lost_on_the_way = world.publish("m1", "t/1")
    world.stop("f1")
    world.notice("m1", "f1")
    meanwhile = world.publish("m1", "t/1")
    assert not world.notified[meanwhile, "a@m1"]
    world.tick(TAKEOVER_AFTER_S)
    assert world.notified[lost_on_the_way, "a@m1"] == world.notified[meanwhile, "a@m1"] == 1
    assert TakenOver("f1", 1, 2) in world.events
    assert str(TakenOver("f1", 1, 2)) == "f1 is lost: 1 topic and 2 events are taken back"
    alone = world.publish("m1", "t/1")
    assert world.notified[alone, "a@m1"] == 1
    world.revive("f1")
    world.connect("m1", "f1")
    world.run()
    assert all(world.outside[event] == 1 for event in (lost_on_the_way, meanwhile, alone))


def test_a_short_cut_changes_nothing(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    event = world.publish("m1", "t/1")
    world.tick(TAKEOVER_AFTER_S / 2)
    world.connect("m1", "f1")
    world.run()
    world.tick(TAKEOVER_AFTER_S)
    assert world.notified[event, "a@m1"] == 1
    assert not any(isinstance(found, TakenOver) for found in world.events)
    assert mobile_of(world).registries.by_filter["t/1"].is_delegated


def test_what_a_mobile_broker_missed_waits_for_it(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.stop("m1")
    world.notice("m1", "f1")
    missed = [world.publish("outside", "t/1") for _ in range(5)]
    world.revive("m1")
    world.connect("m1", "f1")
    world.run()
    assert all(world.notified[event, "b@m1"] == 1 for event in missed)


def test_a_mobile_broker_without_memory_gets_topics_and_events_back(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.stop("m1")
    world.notice("m1", "f1")
    missed = world.publish("outside", "t/1")
    world.revive("m1", with_memory=False)
    mobile_of(world).adopts = True
    mobile_of(world).move_to("f1", world.now)
    world.connect("m1", "f1")
    world.run()
    assert set(mobile_of(world).registries.by_filter["t/1"].callbacks) == {"a@m1", "b@m1"}
    assert HandedBack("m1", 1) in world.events
    assert world.notified[missed, "a@m1"] == 1
    later = world.publish("outside", "t/1")
    world.run()
    assert world.notified[later, "a@m1"] == 1


def test_a_mobile_broker_that_adopts_nothing_takes_no_invented_subscribers(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.stop("m1")
    world.notice("m1", "f1")
    world.revive("m1", with_memory=False)
    mobile_of(world).move_to("f1", world.now)
    world.connect("m1", "f1")
    world.run()
    assert not mobile_of(world).registries.by_filter
    assert not fixed_of(world).mobiles["m1"].topics


def test_many_changes_while_the_fixed_broker_is_away(world: World) -> None:
    world.limits.waiting = 10
    delegate(world, "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    events = [world.publish(origin, "t/1") for origin in ("m1", "outside")]
    for number in range(50):
        world.subscribe("a@m1", f"u/{number}")
    uplink = mobile_of(world).current
    assert uplink is not None
    assert len(uplink.stream.records) <= 22
    world.connect("m1", "f1")
    world.run()
    events += [world.publish("outside", topic) for topic in ("t/1", "u/0", "u/49")]
    world.run()
    assert all(world.notified[event, "a@m1"] == 1 for event in events)


def test_clients_that_come_and_go_while_the_mobile_broker_is_away(world: World) -> None:
    world.limits.waiting = 10
    delegate(world, "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    event = world.publish("outside", "t/1")
    for _ in range(30):
        fixed_of(world).client_attached("a@m1", world.now)
        fixed_of(world).client_left("a@m1", [], world.now)
    fixed_of(world).client_attached("b@m1", world.now)
    world.settle("f1")
    assert len(fixed_of(world).mobiles["m1"].stream.records) <= 22
    world.connect("m1", "f1")
    world.run()
    assert world.notified[event, "a@m1"] == 1
    assert list(mobile_of(world).notifier.away) == ["b@m1"]


def test_an_event_that_is_too_large_to_travel(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.limits.event_bytes = 2
    event = world.publish("m1", "t/1")
    assert world.notified[event, "a@m1"] == 1
    del world.due[event]  # Others do not get it.


def test_a_mobile_broker_that_never_acknowledges_is_forgotten(world: World) -> None:
    world.limits.waiting = 10
    uplink = mobile_of(world).current
    assert uplink is not None
    for _ in range(30):
        uplink.stream.put(PublicationKind.RECOVER, Filters(("t/1",)), world.now)
    world.settle("m1")
    world.carry("m1", "f1", 30, 0)
    assert Forgotten("m1", "it acknowledges nothing") in world.events


def test_what_waits_has_a_limit(world: World) -> None:
    world.limits.waiting = 10
    delegate(world, "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    events = []
    for _ in range(15):
        events.append(world.publish("outside", "t/1"))
        world.run()
    assert fixed_of(world).stats.overflowed == 5
    world.connect("m1", "f1")
    world.run()
    assert [world.notified[event, "a@m1"] for event in events] == [1] * 10 + [0] * 5
    for event in events[10:]:
        world.due[event] -= {"a@m1", "b@m1"}


def test_an_event_that_finds_no_room_is_matched_by_the_mobile_broker(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.limits.waiting = 0
    event = world.publish("m1", "t/1")
    assert world.notified[event, "a@m1"] == 1
    del world.due[event]  # Others do not get it.


def test_qos_0_does_not_wait(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    inside, outside = world.publish("m1", "t/1", qos=0), world.publish("outside", "t/1", qos=0)
    assert world.notified[inside, "a@m1"] == 1
    world.connect("m1", "f1")
    world.run()
    assert not world.notified[outside, "a@m1"]
    del world.due[inside], world.due[outside]


def test_an_event_that_expires_while_it_waits(world: World) -> None:
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    message_id = MessageId("outside", 1, 1_000)
    message = Message("t/1", b"", 1, properties={"message_expiry_interval": 1}, id=message_id)
    message.expire_from(world.now)
    world.expect(message_id, "t/1")
    world.give("f1", message)
    world.tick(1.5)
    world.connect("m1", "f1")
    after = world.publish("outside", "t/1")
    world.run()
    assert (world.notified[message_id, "a@m1"], world.notified[after, "a@m1"]) == (0, 1)
    assert fixed_of(world).stats.expired == 1


def test_a_mobile_broker_that_never_comes_back_is_forgotten(world: World) -> None:
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.publish("outside", "t/1")
    world.tick(FORGET_AFTER_S)
    assert Forgotten("m1", "it did not come back") in world.events
    assert "m1" not in fixed_of(world).mobiles
    for due in world.due.values():
        due.discard("a@m1")
        due.discard("b@m1")


def test_moving_to_another_fixed_broker(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    before = [world.publish(origin, "t/1") for origin in ("m1", "outside")]
    mobile_of(world).move_to("f2", world.now)
    world.settle("m1")
    between = [world.publish(origin, "t/1") for origin in ("m1", "outside")]
    world.connect("m1", "f2")
    world.run()
    after = [world.publish(origin, "t/1") for origin in ("m1", "outside")]
    world.run()
    assert all(world.notified[event, "a@m1"] == 1 for event in (*before, *between, *after))
    assert all(world.outside[event] for event in (before[0], between[0], after[0]))
    assert Left("f1") in world.events
    assert not fixed_of(world, "f1").mobiles["m1"].topics
    assert list(mobile_of(world).uplinks) == ["f2"]


def test_moving_away_from_a_fixed_broker_that_is_dead(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    unsettled = world.publish("m1", "t/1")
    world.stop("f1")
    world.notice("m1", "f1")
    mobile_of(world).move_to("f2", world.now)
    world.settle("m1")
    assert world.notified[unsettled, "a@m1"] == 1
    world.connect("m1", "f2")
    world.run()
    assert world.outside[unsettled] == 1
    event = world.publish("outside", "t/1")
    world.run()
    assert world.notified[event, "a@m1"] == 1


def test_what_waited_at_a_fixed_broker_that_was_lost_comes_when_it_is_met_again(world: World) -> None:
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    event = world.publish("outside", "t/1")
    world.move("m1", "f2")
    world.connect("m1", "f2")
    world.run()
    assert world.notified[event, "a@m1"] == 0
    world.move("m1", "f1")
    world.connect("m1", "f1")
    world.run()
    assert world.notified[event, "a@m1"] + world.again[event, "a@m1"] == 1


def test_a_client_that_moved_is_served_by_the_fixed_broker(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    assert mobile_of(world).may_send_clients
    world.attach("a@m1", "f1")
    event = world.publish("outside", "t/1")
    assert world.notified[event, "a@m1"] == 1
    world.run()
    assert world.notified[event, "b@m1"] == 1
    assert ClientMoved("a@m1", True) in world.events
    # What is hot again is matched by the mobile broker, and follows the client.
    recover(world, "t/1")
    hot = [world.publish(origin, "t/1") for origin in ("m1", "outside")]
    world.run()
    assert all(world.notified[event, "a@m1"] == 1 for event in hot)
    world.come_back("a@m1")
    world.run()
    assert not fixed_of(world).attached
    back = world.publish("m1", "t/1")
    assert world.notified[back, "a@m1"] == 1


def test_what_a_client_did_not_get_follows_it(world: World) -> None:
    side, event = fixed_of(world), MessageId("outside", 1, 1_000)
    waiting = Message("t/1", b"x", 1, id=event)
    world.expect(event, "t/1", "a@m1")
    side.client_attached("a@m1", world.now)
    side.client_left("a@m1", [(waiting, 1)], world.now)
    world.settle("f1")
    world.run()
    assert world.notified[event, "a@m1"] == 1
    # And the other way.
    follows = MessageId("outside", 1, 1_001)
    world.expect(follows, "t/1", "a@m1")
    side.client_attached("a@m1", world.now)
    world.settle("f1")
    world.run()
    mobile_of(world).hand_on("a@m1", 1, [Message("t/1", b"y", 1, id=follows)], world.now)
    world.settle("m1")
    world.run()
    assert world.notified[follows, "a@m1"] == 1


def test_who_was_at_a_lost_fixed_broker_may_get_it_again_and_is_told(world: World) -> None:
    delegate(world, "t/1")
    world.run()
    world.attach("a@m1", "f1")
    world.run()
    event = world.publish("m1", "t/1")
    world.carry("m1", "f1", 1, 0)
    assert world.notified[event, "a@m1"] == 1
    world.stop("f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    assert (world.again[event, "a@m1"], world.notified[event, "b@m1"]) == (0, 1)
    world.come_back("a@m1")
    assert world.again[event, "a@m1"] == 1


def test_events_that_come_twice_are_counted(world: World) -> None:
    message_id = MessageId("m1", 1, 1_000)
    message = Message("t/1", b"", 1, id=message_id)
    world.expect(message_id, "t/1", "a@m1")
    for _ in range(2):
        world.publish_at("m1", message)
        world.settle("m1")
    world.run()
    world.give("f1", message)
    assert mobile_of(world).stats.duplicates == fixed_of(world).stats.duplicates == 1


def test_a_refused_delegation_loses_nothing(world: World) -> None:
    world.limits.entries = 1
    delegate(world, "t/1")
    events = [world.publish(origin, "t/1") for origin in ("m1", "outside", "m1")]
    world.run()
    events.append(world.publish("outside", "t/1"))
    world.run()
    assert all(world.notified[event, "a@m1"] == 1 for event in events)
    assert DelegationRefused("m1", f"{DOMAIN}/m1/delegate", "too many subscribers") in world.events
    assert not mobile_of(world).registries.by_filter["t/1"].is_delegated


HEADER = StreamHeader(1, 1, 1, 1, 0)


def written(kind: PublicationKind, body: Body, domain: str = DOMAIN, sender: str = "m1") -> Message:
    return codec.write(domain, sender, kind, HEADER, body)


def numbered(topic: str, numbers: str, payload: bytes = b"") -> Message:
    return Message(topic, payload, properties={"user_property": ((codec.STREAM_PROPERTY, numbers),)})


DELEGATION = Registrations((Registration("t/1", (("a@m1", 1),)),))


def known_at(side: FixedSide) -> list[object]:
    """Of each mobile broker: its topics, and how far the streams are."""
    return [
        (name, dict(mobile.topics), mobile.stream.process.received, mobile.stream.process.number)
        for name, mobile in side.mobiles.items()
    ]


@pytest.mark.parametrize(
    ("sender", "publication", "why"),
    [
        (
            "stranger",
            written(PublicationKind.DELEGATE, DELEGATION, sender="stranger"),
            "it may not delegate here",
        ),
        ("m1", written(PublicationKind.DELEGATE, DELEGATION, domain="farm/sector2"), "another domain"),
        ("m2", written(PublicationKind.DELEGATE, DELEGATION), "in the name of another broker"),
        ("m1", written(PublicationKind.RECOVERED, DELEGATION), "RECOVERED is for a fixed broker to write"),
        ("m1", numbered(f"{DOMAIN}/m1/delegate", "255 4 1 1 1 1 1 0 0 0 0"), "version 255"),
        ("m1", numbered(f"{DOMAIN}/m1/delegate", "2 4 1 1 1 1 1 0 0 0 -1"), "what is no number"),
        ("m1", Message(f"{DOMAIN}/m1/delegate", b""), "no number in a stream"),
        ("m1", Message(f"{DOMAIN}/m1/delegate/deactivate/all", b"x"), "no number in a stream"),
        ("m1", Message(f"{DOMAIN}/m2/delegate/deactivate/all", b""), "in the name of another broker"),
        ("m1", Message("t/1", b""), "no coordination topic"),
    ],
)
def test_what_is_refused(world: World, sender: str, publication: Message, why: str) -> None:
    before = known_at(fixed_of(world))
    fixed_of(world).receive_publication(sender, publication, world.now)
    world.settle("f1")
    assert DelegationRefused(sender, publication.topic, why) in world.events
    assert fixed_of(world).stats.refused == 1
    assert known_at(fixed_of(world)) == before


@pytest.mark.parametrize("callback", ["c@m2", "@m2", "192.0.2.7:1883"])
def test_a_callback_of_somebody_else_gets_nothing(world: World, callback: str) -> None:
    """By a mobile broker that is allowed to delegate."""
    fixed_of(world).client_attached("c@m2", world.now)
    uplink = mobile_of(world).current
    assert uplink is not None
    uplink.stream.put(
        PublicationKind.DELEGATE, Registrations((Registration("u", ((callback, 1),)),)), world.now
    )
    message_id = MessageId("m1", 1, 1_000)
    world.expect(message_id, "u")
    message = Message("u", b"", 1, id=message_id)
    uplink.stream.put(PublicationKind.EVENT, EventBody(message, ((callback, 1),)), world.now)
    world.settle("m1")
    for publication in world.links["m1", "f1"].up:
        fixed_of(world).receive_publication("m1", publication, world.now)
    assert not fixed_of(world).take_deliveries()
    assert fixed_of(world).stats.unknown_callbacks == 1
    why = "a callback that is not its own, nor of a client here"
    assert DelegationRefused("m1", f"{DOMAIN}/m1/delegate", why) in fixed_of(world).take_events()


def test_a_client_with_an_address_of_its_own(world: World) -> None:
    callback = "192.0.2.7:1883"
    fixed_of(world).client_attached(callback, world.now)
    world.ever[callback] = {"t/1"}
    mobile_of(world).subscribe(callback, "t/1", 1, world.now)
    delegate(world, "t/1")
    event = world.publish("outside", "t/1")
    world.run()
    event = world.publish("outside", "t/1")
    assert world.notified[event, callback] == 1


def test_a_mobile_broker_without_delegation_takes_its_clients_over(world: World) -> None:
    for client in ("b@m1", "a@m1", "c@m2"):
        fixed_of(world).client_attached(client, world.now)
    publication = Message(f"{DOMAIN}/m1/delegate/deactivate/no", b"")
    fixed_of(world).receive_publication("m1", publication, world.now)
    assert fixed_of(world).take_events() == [RenewTopics("m1", ("a@m1", "b@m1"))]


@pytest.mark.parametrize("named", ["m1", "f1"])
def test_topics_and_payloads_as_published(world: World, named: str) -> None:
    """By one who numbers nothing, with the sender or the recipient in the topic."""
    side = fixed_of(world)
    delegate(world, "t/1")
    world.run()
    single = Message(f"{DOMAIN}/{named}/delegate/unsubscription/single", b"a@m1")
    side.receive_publication("m1", single, world.now)
    assert side.mobiles["m1"].topics["t/1"].keys() == {"b@m1"}
    side.receive_publication("m1", Message(f"{DOMAIN}/{named}/delegate/deactivate/all", b""), world.now)
    assert side.mobiles["m1"].topics["t/1"].keys() == {"@m1"}
    side.receive_publication("m1", Message(f"{DOMAIN}/{named}/delegate/unsubscription/all", b""), world.now)
    assert not side.mobiles["m1"].topics
    world.subscriptions.clear()


def test_what_is_written_is_as_published_where_the_document_says_how() -> None:
    topic = "farm_x/sector_y/rmb1/delegate"
    for kind, action in (
        (PublicationKind.UNSUBSCRIPTION_ALL, "unsubscription/all"),
        (PublicationKind.DEACTIVATE_ALL, "deactivate/all"),
        (PublicationKind.DEACTIVATE_NO, "deactivate/no"),
    ):
        publication = codec.write("farm_x/sector_y", "rmb1", kind, HEADER, EmptyBody())
        assert (publication.topic, publication.payload) == (f"{topic}/{action}", b"")
    single = Unsubscription("t/1", "a@rmb1")
    publication = codec.write(
        "farm_x/sector_y", "rmb1", PublicationKind.UNSUBSCRIPTION_SINGLE, HEADER, single
    )
    assert (publication.topic, publication.payload) == (f"{topic}/unsubscription/single", b"a@rmb1")
    assert codec.read(publication) == (PublicationKind.UNSUBSCRIPTION_SINGLE, HEADER, single)


def test_a_broker_that_is_not_allowed_leaves_no_trace() -> None:
    side = FixedSide("f1", DOMAIN, 1, lambda mobile_id: False)
    side.link_up("m1")
    assert not side.mobiles
    assert not side.take_publications()
    assert side.take_events() == [DelegationRefused("m1", "", "it may not delegate here")]


def test_what_a_stranger_writes_to_a_mobile_broker(world: World) -> None:
    publication = written(PublicationKind.NOTHING, EmptyBody(), sender="f2")
    mobile_of(world).receive_publication("f2", publication, world.now)
    mobile_of(world).receive_publication("f1", publication, world.now)
    assert mobile_of(world).stats.refused == 2


def test_publications_out_of_turn_are_ignored(world: World) -> None:
    world.publish("m1", "t/1")
    (publication,) = world.links["m1", "f1"].up
    for _ in range(2):
        fixed_of(world).receive_publication("m1", publication, world.now)
        world.settle("f1")
    assert fixed_of(world).stats.ignored == 1
