"""Sets of subscribers, as a list or a filter: exact in either form, and the shorter one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.bloom import CountingBloomFilter
from hedgerow.mobility.delegation.events import DelegationRefused
from hedgerow.mobility.delegation.publications import (
    AddressChanges,
    Members,
    PublicationKind,
    Registration,
    Registrations,
    StreamHeader,
)
from hedgerow.mobility.delegation.subscriber_sets import packed, unpacked
from tests.mobility.delegation.test_sides import fixed_of, mobile_of
from tests.mobility.delegation.world import DOMAIN, World

HEADER = StreamHeader(1, 1, 1, 1, 1)


def names(count: int) -> list[str]:
    return [f"sensor-{number:04}@tractor" for number in range(count)]


def size(registration: Registration) -> int:
    body = Registrations((registration,))
    return len(codec.write("farm", "tractor", PublicationKind.DELEGATE, HEADER, body).payload)


@given(st.sets(st.integers(0, 299), max_size=300), st.integers(0, 2), st.integers(0, 2))
def test_nobody_too_many_and_nobody_too_few(chosen: set[int], first: int, second: int) -> None:
    """What a filter says wrongly, its owner has named."""
    addresses = names(300)
    entries = {addresses[number]: (first, second)[number % 2] for number in sorted(chosen)}
    written = packed(Registration("t", tuple(entries.items())), addresses)
    read = unpacked(written, addresses)
    assert read is not None
    assert dict(read.entries) == entries


@pytest.mark.parametrize(("subscribers", "most"), [(10, 0.5), (100, 0.3), (1_000, 0.3)])
def test_a_filter_takes_less_than_the_list(subscribers: int, most: float) -> None:
    addresses = names(subscribers)
    whole = Registration("field/soil", tuple((name, 1) for name in addresses))
    filtered = packed(whole, addresses)
    assert filtered.members
    assert size(filtered) / size(whole) < most


def test_a_few_are_listed_and_so_are_some_of_very_many() -> None:
    assert packed(Registration("t", (("a@m", 1),)), names(1_000)).entries
    few = tuple((name, 1) for name in names(20))
    assert packed(Registration("t", few), names(1_000)).entries == few


def test_addresses_travel_once_and_then_their_changes(world: World) -> None:
    mobile, side = mobile_of(world), fixed_of(world)
    for topic_filter in ("u/1", "u/2"):
        for name in names(40):
            world.subscribe(name.replace("tractor", "m1"), topic_filter)
    world.run()
    told: list[AddressChanges] = []
    for topic_filter in ("u/1", "u/2"):
        mobile.delegate([topic_filter], world.now)
        world.settle("m1")
        read = [codec.read(each) for each in world.links["m1", "f1"].up]
        told += [body for _, _, body in read if isinstance(body, AddressChanges)]
        world.run()
    world.subscribe("late@m1", "u/1")
    read = [codec.read(each) for each in world.links["m1", "f1"].up]
    told += [body for _, _, body in read if isinstance(body, AddressChanges)]
    world.run()
    assert [len(each.added) for each in told] == [40, 1]
    assert len(side.mobiles["m1"].topics["u/1"]) == 41
    assert len(side.mobiles["m1"].addresses) == 41
    event = world.publish("outside", "u/1")
    world.run()
    assert sum(world.notified[event, name] for name in world.subscriptions) == 41


def test_those_who_are_gone_are_told_when_they_are_many(world: World) -> None:
    mobile, side = mobile_of(world), fixed_of(world)
    everyone = [name.replace("tractor", "m1") for name in names(60)]
    for name in everyone:
        world.subscribe(name, "u")
    mobile.delegate(["u"], world.now)
    world.settle("m1")
    world.run()
    for name in everyone[1:]:
        world.unsubscribe(name, "u")
    world.subscribe("late@m1", "u")
    world.run()
    assert side.mobiles["m1"].addresses.keys() == {everyone[0], "late@m1"}
    assert side.mobiles["m1"].topics["u"].keys() == {everyone[0], "late@m1"}


def test_addresses_of_others_and_sets_that_speak_of_none_are_refused(world: World) -> None:
    uplink, side = mobile_of(world).current, fixed_of(world)
    assert uplink is not None
    uplink.stream.put(PublicationKind.ADDRESSES, AddressChanges(("c@m2",)), world.now)
    members = CountingBloomFilter(4)
    for name in ("w@m1", "x@m1", "y@m1", "z@m1"):
        members.add(name)
    body = Registrations((Registration("u", (), (Members(1, members, ()),)),))
    uplink.stream.put(PublicationKind.DELEGATE, body, world.now)
    world.settle("m1")
    world.run()
    whys = [event.why for event in world.events if isinstance(event, DelegationRefused)]
    assert whys == [
        "a callback that is not its own, nor of a client here",
        "subscribers whose addresses it has not told",
    ]
    assert not side.mobiles["m1"].addresses
    assert side.mobiles["m1"].topics["u"].keys() == {"@m1"}
    assert f"{DOMAIN}/m1/delegate" in {e.topic for e in world.events if isinstance(e, DelegationRefused)}
