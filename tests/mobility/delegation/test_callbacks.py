"""NOTIFY with the callbacks of those whom the fixed broker cannot reach."""

from __future__ import annotations

import pytest

from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from tests.mobility.delegation.test_sides import delegate, mobile_of
from tests.mobility.delegation.world import TAKEOVER_AFTER_S, World


def notification(world: World) -> EventBody:
    """The one that is on its way to m1."""
    read = [codec.read(found) for found in world.links["m1", "f1"].down]
    (body,) = (body for kind, _, body in read if kind == PublicationKind.NOTIFY)
    assert isinstance(body, EventBody)
    return body


@pytest.mark.parametrize("origin", ["m1", "outside"])
@pytest.mark.parametrize(
    ("guests", "beyond"),
    [(("d@m1",), {"a@m1", "b@m1"}), (("c@m2",), {"a@m1", "b@m1", "d@m1"}), (("a@m1", "d@m1"), {"b@m1"})],
)
def test_who_is_at_the_fixed_broker_is_notified_there_and_the_others_are_appended(
    world: World, origin: str, guests: tuple[str, ...], beyond: set[str]
) -> None:
    delegate(world, "t/1")
    world.subscribe("d@m1", "t/1")
    world.run()
    for client in guests:
        world.attach(client, "f1")
    world.run()
    event = world.publish(origin, "t/1")
    world.carry("m1", "f1", 1, 0)
    body = notification(world)
    assert (body.is_to_match, set(dict(body.callbacks)), body.served) == (False, beyond, ())
    world.run()
    assert all(world.notified[event, client] == 1 for client in ("a@m1", "b@m1", "d@m1"))


def test_when_all_are_at_the_fixed_broker_nothing_is_written(world: World) -> None:
    delegate(world, "t/1")
    for client in ("a@m1", "b@m1"):
        world.attach(client, "f1")
    world.run()
    world.publish("outside", "t/1")
    assert not world.links["m1", "f1"].down


def test_who_has_several_topics_counts_once(world: World) -> None:
    for client in ("a@m1", "b@m1"):
        world.subscribe(client, "t/+")
    world.subscribe("d@m1", "t/1")
    world.subscribe("d@m1", "t/+")
    delegate(world, "t/1", "t/+")
    for client in ("a@m1", "b@m1"):
        world.attach(client, "f1")
    world.run()
    world.publish("outside", "t/1")
    body = notification(world)
    assert body.callbacks == (("d@m1", 1),)


def test_who_was_served_by_the_mobile_broker_is_excepted(world: World) -> None:
    for client in ("d@m1", "e@m1", "g@m1"):
        world.subscribe(client, "t/+")
    world.subscribe("a@m1", "t/+")
    delegate(world, "t/+")
    world.attach("d@m1", "f1")
    world.run()
    event = world.publish("m1", "t/1")
    assert world.notified[event, "a@m1"] == 1
    world.carry("m1", "f1", 1, 0)
    body = notification(world)
    assert set(dict(body.callbacks)) == {"e@m1", "g@m1"}
    world.run()
    assert all(world.notified[event, f"{client}@m1"] == 1 for client in "abdeg")


@pytest.mark.parametrize("origin", ["m1", "outside"])
def test_a_guest_that_comes_or_goes_while_others_are_notified(world: World, origin: str) -> None:
    """The mobile broker is told of it before or behind the notification, as it was there."""
    for client in ("d@m1", "e@m1"):
        world.subscribe(client, "t/1")
    delegate(world, "t/1")
    world.attach("d@m1", "f1")
    world.run()
    events = [world.publish(origin, "t/1")]
    world.hand_back("d@m1", "f1")
    world.attach("e@m1", "f1")
    world.carry("m1", "f1", 1, 0)
    events.append(world.publish(origin, "t/1"))
    world.carry("m1", "f1", 1, 0)
    world.attach("d@m1", "f1")
    world.hand_back("e@m1", "f1")
    world.run()
    events.append(world.publish(origin, "t/1"))
    world.run()
    for client in ("d@m1", "e@m1"):
        world.come_back(client)
    assert all(world.notified[event, f"{client}@m1"] == 1 for event in events for client in "abde")


def test_subscribers_that_come_and_go_while_the_same_guest_is_there(world: World) -> None:
    """Who is behind "all but these" is remembered, as long as it is so."""
    delegate(world, "t/1")
    for client in ("d@m1", "e@m1"):
        world.subscribe(client, "t/1")
    world.attach("d@m1", "f1")
    world.run()
    world.publish("outside", "t/1")
    world.run()
    world.subscribe("g@m1", "t/1")
    world.unsubscribe("e@m1", "t/1")
    world.run()
    event = world.publish("outside", "t/1")
    world.run()
    assert [world.notified[event, f"{client}@m1"] for client in "abdeg"] == [1, 1, 1, 0, 1]


def test_who_is_excepted_is_not_done_when_the_fixed_broker_is_lost(world: World) -> None:
    """It had not read it there."""
    world.subscribe("d@m1", "t/1")
    delegate(world, "t/1")
    world.attach("d@m1", "f1")
    world.run()
    world.is_reading_late = True
    event = world.publish("m1", "t/1")
    world.run()
    assert [world.notified[event, f"{client}@m1"] for client in "abd"] == [1, 1, 0]
    world.stop("f1")
    world.notice("m1", "f1")
    world.tick(TAKEOVER_AFTER_S)
    world.revive("f1", with_memory=False)
    world.come_back("d@m1")
    assert [world.again[event, f"{client}@m1"] for client in "abd"] == [0, 0, 1]


def test_a_mobile_broker_that_forgot_matches_all_but_who_was_served(world: World) -> None:
    world.subscribe("d@m1", "t/1")
    delegate(world, "t/1")
    world.attach("d@m1", "f1")
    world.run()
    world.stop("m1")
    world.notice("m1", "f1")
    missed = world.publish("outside", "t/1")
    world.revive("m1", with_memory=False)
    mobile_of(world).adopts = True
    mobile_of(world).move_to("f1", world.now)
    world.connect("m1", "f1")
    world.run()
    assert [world.notified[missed, f"{client}@m1"] for client in "abd"] == [1, 1, 1]
