"""Clients that are announced to a fixed broker, are there, subscribe there, and are called back."""

from __future__ import annotations

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.attached import Attached
from hedgerow.mobility.delegation.events import (
    CalledBack,
    DelegationRefused,
    GuestSubscribed,
    Notification,
    Registered,
    TurnedAway,
    Unregistered,
)
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.limits import DelegationLimits
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.publications import (
    EventBody,
    Filters,
    GuestSubscription,
    PublicationKind,
    Registration,
    Registrations,
    Serving,
)
from tests.mobility.delegation.test_sides import delegate, fixed_of, mobile_of, recover
from tests.mobility.delegation.world import DOMAIN, TAKEOVER_AFTER_S, World


@pytest.fixture
def sides(world: World) -> tuple[MobileSide, FixedSide]:
    return mobile_of(world), fixed_of(world)


Sides = tuple[MobileSide, FixedSide]


def announce(world: World, callback: str = "a@m1") -> int:
    number = mobile_of(world).announce(callback, world.now)
    world.settle("m1")
    return number


def test_a_client_is_announced_and_arrives(world: World, sides: Sides) -> None:
    mobile, fixed = sides
    number = announce(world)
    assert not mobile.has_handled(number)
    assert fixed.callback_of("a") is None
    world.run()
    assert mobile.has_handled(number)
    assert fixed.callback_of("a") == "a@m1"
    world.attach("a@m1", "f1")
    assert fixed.callback_of("a") == "a@m1"
    assert not fixed.attached.expected
    world.run()
    assert list(mobile.notifier.away) == ["a@m1"]


def test_a_client_that_stays_after_all_is_expected_no_more(world: World, sides: Sides) -> None:
    mobile, fixed = sides
    number = announce(world)
    world.run()
    world.come_back("a@m1")
    world.run()
    assert fixed.callback_of("a") is None
    assert not mobile.has_handled(number)


def test_an_announcement_survives_a_fixed_broker_that_forgets(world: World, sides: Sides) -> None:
    mobile, _ = sides
    number = announce(world)
    world.run()
    world.stop("f1")
    world.revive("f1", with_memory=False)
    world.connect("m1", "f1")
    world.carry("m1", "f1", 1, 1)
    assert not mobile.has_handled(number)
    world.run()
    assert mobile.has_handled(number)
    assert fixed_of(world).callback_of("a") == "a@m1"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_client_of_another_mobile_broker_cannot_be_claimed(world: World, is_there: bool) -> None:
    """By a mobile broker whose client has the same id, or says so."""
    announce(world)
    world.run()
    if is_there:
        world.attach("a@m1", "f1")
    mobile_of(world, "m2").announce("a@m2", world.now)
    mobile_of(world, "m2").announce("b@m1", world.now)
    world.settle("m2")
    world.run()
    assert fixed_of(world).callback_of("a") == "a@m1"
    assert fixed_of(world).callback_of("b") is None
    assert fixed_of(world).stats.unknown_callbacks == 2


def test_a_client_whose_name_another_has_is_not_sent(world: World) -> None:
    world.attach("a@m1", "f1")
    mobile = mobile_of(world, "m2")
    number = mobile.announce("a@m2", world.now)
    world.settle("m2")
    world.run()
    assert not mobile.has_handled(number)
    assert TurnedAway("a@m2") in world.events
    assert DelegationRefused("m2", f"{DOMAIN}/m2/serving", "another 'a' is here") in world.events
    world.come_back("a@m1")
    world.run()
    number = mobile.announce("a@m2", world.now)
    world.settle("m2")
    world.run()
    assert mobile.has_handled(number)


def test_announcements_have_a_limit() -> None:
    attached = Attached(DelegationLimits(expected=1))
    assert attached.expect("a@m1")
    assert not attached.expect("b@m1")
    assert attached.expect("a@m1")
    assert list(attached.expected) == ["a"]


def test_a_guest_subscribes_and_unsubscribes(world: World, sides: Sides) -> None:
    mobile, fixed = sides
    world.attach("a@m1", "f1")
    world.run()
    assert fixed.subscribe(GuestSubscription("u", "a@m1", 1), world.now)
    world.settle("f1")
    world.run()
    assert GuestSubscribed(GuestSubscription("u", "a@m1", 1)) in world.events
    events = [world.publish(origin, "u") for origin in ("m1", "outside")]
    world.run()
    assert all(world.notified[event, "a@m1"] == 1 for event in events)
    assert fixed.unsubscribe("a@m1", "u", world.now)
    world.settle("f1")
    world.run()
    assert "u" not in mobile.registries.by_filter


def test_who_is_no_guest_cannot_subscribe_for_others(world: World, sides: Sides) -> None:
    _, fixed = sides
    assert not fixed.subscribe(GuestSubscription("u", "a@m1", 1), world.now)
    world.attach("a@m1", "f1")
    assert not fixed.subscribe(GuestSubscription("$SYS/#", "a@m1", 1), world.now)
    stranger = GuestSubscription("u", "stranger@m1", 1)
    fixed.mobiles["m1"].stream.put(PublicationKind.SUBSCRIPTION, stranger, world.now)
    world.settle("f1")
    world.run()
    assert mobile_of(world).stats.unknown_callbacks == 1
    assert not any(isinstance(event, GuestSubscribed) for event in world.events)


def test_what_guests_ask_for_is_bounded(world: World, sides: Sides) -> None:
    _, fixed = sides
    world.attach("a@m1", "f1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.limits.waiting = 10
    wanted = [GuestSubscription(f"u/{number}", "a@m1", 1) for number in range(15)]
    asked = [fixed.subscribe(each, world.now) for each in wanted]
    assert asked == [True] * 10 + [False] * 5
    world.settle("f1")


def test_what_a_guest_has_not_got_when_its_fixed_broker_dies(world: World) -> None:
    """It was acknowledged, and not settled."""
    delegate(world, "t/1")
    world.run()
    world.attach("a@m1", "f1")
    world.run()
    world.is_reading_late = True
    event = world.publish("m1", "t/1")
    world.run()
    assert (world.notified[event, "a@m1"], world.notified[event, "b@m1"]) == (0, 1)
    world.stop("f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    world.revive("f1", with_memory=False)
    world.come_back("a@m1")
    assert (world.again[event, "a@m1"], world.notified[event, "b@m1"]) == (1, 1)


def test_what_guests_have_got_is_forgotten_by_the_mobile_broker(world: World, sides: Sides) -> None:
    mobile, _ = sides
    assert mobile.current is not None
    world.attach("a@m1", "f1")
    delegate(world, "t/1")
    world.run()
    world.is_reading_late = True
    for _ in range(3):
        world.publish("m1", "t/1")
    world.run()
    assert len(mobile.current.unsettled) == len(mobile.current.stream.held) == 3
    world.read("f1")
    world.run()
    assert not mobile.current.unsettled
    assert not mobile.current.stream.kept


def test_a_guest_that_never_acknowledges(world: World, sides: Sides) -> None:
    mobile, _ = sides
    assert mobile.current is not None
    world.limits.held = 5
    world.attach("a@m1", "f1")
    delegate(world, "t/1")
    world.run()
    world.is_reading_late = True
    for _ in range(20):
        world.publish("m1", "t/1")
        world.run()
    assert len(mobile.current.stream.held) == 5


def test_what_is_handed_back_meets_what_was_taken_over(world: World) -> None:
    """The link is cut; the guest goes home, gets it there, and its fixed broker hands it back later."""
    delegate(world, "t/1")
    world.run()
    world.attach("a@m1", "f1")
    world.run()
    world.is_reading_late = True
    event = world.publish("m1", "t/1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    world.come_back("a@m1")
    assert world.again[event, "a@m1"] == 1
    world.hand_back("a@m1", "f1")
    world.connect("m1", "f1")
    world.run()
    assert (world.notified[event, "a@m1"], world.again[event, "a@m1"]) == (0, 1)


def test_a_receipt_of_a_stream_that_has_ended_settles_nothing_of_the_next(world: World, sides: Sides) -> None:
    _, fixed = sides
    world.attach("a@m1", "f1")
    delegate(world, "t/1")
    world.run()
    world.is_reading_late = True
    world.publish("m1", "t/1")
    world.run()
    (old,) = world.outboxes["f1"]
    assert old.delivery.receipt is not None
    fixed.mobiles["m1"].stream.begin_anew()
    fixed.mobiles["m1"].stream.content.received = old.delivery.receipt[1]
    fixed.mobiles["m1"].stream.hold()
    fixed.settle(*old.delivery.receipt)
    assert len(fixed.mobiles["m1"].stream.content.holding) == 1
    world.stop("f1")
    world.revive("f1", with_memory=False)


def test_a_topic_that_is_recovered_calls_its_guests_back(world: World) -> None:
    delegate(world, "t/1")
    for client in ("a@m1", "c@m2"):
        world.attach(client, "f1")
    world.run()
    recover(world, "t/1")
    world.run()
    assert [event for event in world.events if isinstance(event, CalledBack)] == [CalledBack("a@m1")]


def test_a_mobile_broker_that_is_away_calls_its_guests_back_once(world: World) -> None:
    for client in ("a@m1", "b@m1", "c@m2"):
        world.attach(client, "f1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S / 2)
    assert not any(isinstance(event, CalledBack) for event in world.events)
    for _ in range(2):
        world.tick(TAKEOVER_AFTER_S)
    called = [event for event in world.events if isinstance(event, CalledBack)]
    assert called == [CalledBack("a@m1"), CalledBack("b@m1")]


def test_topic_filters_of_a_mobile_broker_are_told(world: World) -> None:
    world.events.clear()
    world.subscribe("a@m1", "u")
    world.subscribe("b@m1", "u")
    world.run()
    delegate(world, "u")
    world.run()
    for client in ("a@m1", "b@m1"):
        world.unsubscribe(client, "u")
    world.run()
    told = [event for event in world.events if isinstance(event, Registered | Unregistered)]
    assert told == [Registered("m1", "u"), Unregistered("m1", "u")]


def test_a_retained_message_is_offered_to_a_new_topic_filter_once(world: World) -> None:
    message_id = MessageId("outside", 1, 1_000)
    retained = Message("u", b"x", 1, retain=True, id=message_id)
    world.expect(message_id, "u", "a@m1")
    world.subscribe("a@m1", "u")
    world.run()
    for _ in range(2):
        fixed_of(world).offer("m1", "u", retained, world.now)
        fixed_of(world).offer("m1", "not/registered", retained, world.now)
        world.settle("f1")
        world.run()
    assert world.notified[message_id, "a@m1"] == 1
    assert mobile_of(world).stats.duplicates == 1


def test_a_cache_of_who_matches_is_void_after_each_change(world: World, sides: Sides) -> None:
    mobile, _ = sides
    seen = [mobile.generation]
    world.subscribe("b@m1", "u")
    seen.append(mobile.generation)
    delegate(world, "u")
    assert mobile.matched("u", ["a@m1", "b@m1"], {}).served == ("b@m1",)
    seen.append(mobile.generation)
    recover(world, "u")
    assert mobile.matched("u", ["a@m1", "b@m1"], {}).served == ()
    seen.append(mobile.generation)
    world.attach("a@m1", "f1")
    world.run()
    seen.append(mobile.generation)
    world.come_back("a@m1")
    seen.append(mobile.generation)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("topic_filter", ["$hedgerow/plan/m2", "$hedgerow/plan/#"])
@pytest.mark.parametrize("kind", [PublicationKind.DELEGATE, PublicationKind.RECOVER])
def test_the_plan_of_another_mobile_broker_is_not_for_this_one(
    world: World, kind: PublicationKind, topic_filter: str
) -> None:
    uplink = mobile_of(world).current
    assert uplink is not None
    registrations = Registrations((Registration(topic_filter, (("@m1", 1),)),))
    body = registrations if kind == PublicationKind.DELEGATE else Filters((topic_filter,))
    uplink.stream.put(kind, body, world.now)
    world.settle("m1")
    world.run()
    assert list(fixed_of(world).mobiles["m1"].topics) == ["t/1"]
    refused = DelegationRefused("m1", f"{DOMAIN}/m1/delegate", "a plan that is not its own")
    assert (refused in world.events) == (kind == PublicationKind.DELEGATE)


def test_a_mobile_broker_gives_no_plan_to_others(world: World) -> None:
    uplink = mobile_of(world).current
    assert uplink is not None
    plan = Message("$hedgerow/plan/m2", b"{}", 1, retain=True, id=MessageId("m1", 1, 1_000))
    uplink.stream.put(PublicationKind.EVENT, EventBody(plan), world.now)
    world.settle("m1")
    world.run()
    assert not world.outside
    assert fixed_of(world).stats.refused == 1


def test_a_guest_is_not_taken_for_somebody_else_when_it_is_announced_again(world: World) -> None:
    world.attach("a@m1", "f1")
    fixed_of(world).mobiles["m2"].stream.put(PublicationKind.SERVING, Serving("a@m1", True), world.now)
    world.settle("f1")
    world.run()
    assert mobile_of(world, "m2").stats.unknown_callbacks == 1
    assert not mobile_of(world, "m2").notifier.away


def test_an_event_that_is_written_again_is_marked_for_guests_of_other_mobile_brokers(world: World) -> None:
    """The fixed broker has forgotten that it had delivered it, and its sender that it knew."""
    delegate(world, "t/1", name="m2")
    world.run()
    world.attach("c@m2", "f1")
    world.run()
    event = world.publish("m1", "t/1")
    world.carry("m1", "f1", 1, 0)
    assert world.notified[event, "c@m2"] == 1
    world.stop("f1")
    world.notice("m1", "f1")
    world.notice("m2", "f1")
    world.revive("f1", with_memory=False)
    world.connect("m2", "f1")
    world.run()
    world.attach("c@m2", "f1")
    world.run()
    world.connect("m1", "f1")
    world.run()
    assert (world.notified[event, "c@m2"], world.again[event, "c@m2"]) == (1, 1)


def test_a_message_that_is_reclaimed_and_handed_on_again(world: World, sides: Sides) -> None:
    """The first copy comes back after the second has left."""
    mobile, _ = sides
    event = MessageId("outside", 1, 1_000)
    message = Message("t/1", b"x", 1, id=event)
    world.expect(event, "t/1", "a@m1")
    world.is_reading_late = True
    world.attach("a@m1", "f1")
    world.carry("m1", "f1", 0, 9)
    world.hand_back("a@m1", "f1")
    world.attach("a@m1", "f1")
    mobile.hand_on("a@m1", 1, [message], world.now)
    world.settle("m1")
    world.carry("m1", "f1", 9, 0)
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    world.come_back("a@m1")
    assert world.again[event, "a@m1"] == 1
    # It has not acknowledged it, so it waits: the word that the client is there, which is late, sends it on.
    world.sessions["a@m1"] = [Notification(message, (("a@m1", 1),))]
    world.connect("m1", "f1")
    world.run()
    assert (world.notified[event, "a@m1"], world.again[event, "a@m1"]) == (0, 2)


def test_a_message_that_is_reclaimed_does_not_come_back(world: World, sides: Sides) -> None:
    mobile, _ = sides
    event = MessageId("outside", 1, 1_000)
    world.expect(event, "t/1", "a@m1")
    world.is_reading_late = True
    world.attach("a@m1", "f1")
    world.run()
    mobile.hand_on("a@m1", 1, [Message("t/1", b"x", 1, id=event)], world.now)
    world.settle("m1")
    world.run()
    world.cut("m1", "f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    world.come_back("a@m1")
    world.connect("m1", "f1")
    world.run()
    assert (world.notified[event, "a@m1"], world.again[event, "a@m1"]) == (0, 1)
