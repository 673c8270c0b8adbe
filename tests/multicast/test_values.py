"""Last values: which of two is the newer, and that there is none any more."""

from __future__ import annotations

from hedgerow.message import Message, MessageId
from hedgerow.multicast.limits import INTERVAL_S
from hedgerow.multicast.values import DELETION_S, LastValues
from tests.multicast.lan import SETTLED_S, Lan


def test_a_deleted_value_does_not_come_back_from_one_that_missed_the_deletion(lan: Lan) -> None:
    publisher, forgetful, attentive = lan.host(), lan.host(), lan.host()
    for holder in (forgetful, attentive):
        holder.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"kept", retain=True)
    lan.run(SETTLED_S)
    forgetful.is_plugged = False
    publisher.publish("a", b"", retain=True)
    lan.run(SETTLED_S)
    forgetful.is_plugged = True
    late = lan.host()
    late.subscribe("a")
    lan.run(SETTLED_S)
    for host in (late, forgetful):
        assert host.held[-1].payload == b"", "no value any more, whatever was said before"
    again = lan.host()
    again.subscribe("a")
    lan.run(SETTLED_S)
    assert [each.payload for each in again.held] == [b""]


def test_an_outdated_answer_does_not_keep_the_newer_one_back() -> None:
    for seed in range(10):
        lan = Lan(seed)
        publisher, outdated, current = lan.host(), lan.host(), lan.host()
        for holder in (outdated, current):
            holder.subscribe("a")
        lan.run(SETTLED_S)
        publisher.publish("a", b"old", retain=True)
        lan.run(SETTLED_S)
        outdated.is_plugged = False
        publisher.publish("a", b"new", retain=True)
        lan.run(SETTLED_S)
        publisher.is_plugged = False
        outdated.is_plugged = True
        late = lan.host()
        late.subscribe("a")
        lan.run(SETTLED_S)
        assert late.held[-1].payload == b"new"
        assert outdated.held[-1].payload == b"new", "it learned by the way"


def test_a_publisher_with_a_slow_clock_is_heard_all_the_same(lan: Lan) -> None:
    fast, slow = lan.host(), lan.host()
    slow.subscribe("a")
    lan.run(SETTLED_S)
    fast.publish("a", b"from the future", retain=True)
    lan.run(SETTLED_S)
    slow.member.publish(Message("a", b"newer", 0, True), lan.now - 3_600)
    slow.member.flush(lan.now)
    lan.drain(slow)
    lan.run(SETTLED_S)
    late = lan.host()
    late.subscribe("a")
    lan.run(SETTLED_S)
    assert late.held[-1].payload == b"newer"


def test_a_held_message_answers_but_yields_to_what_was_published(lan: Lan) -> None:
    gateway, publisher = lan.host(), lan.host()
    for topic in ("a/1", "a/2"):
        gateway.member.hold(Message(topic, b"held", 0, True, id=MessageId("broker", 1, 2)), lan.now)
    publisher.publish("a/2", b"published", retain=True)
    lan.run(SETTLED_S)
    late = lan.host()
    late.subscribe("a/+")
    lan.run(SETTLED_S)
    newest = {each.topic: each.payload for each in late.held}
    assert newest == {"a/1": b"held", "a/2": b"published"}


def test_a_deletion_reaches_one_that_still_has_the_value(lan: Lan) -> None:
    """A gateway's broker has it to this day; the member knows that there is none any more."""
    publisher, witness, gateway = lan.host(), lan.host(), lan.host()
    witness.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"old", retain=True)
    publisher.publish("a", b"", retain=True)
    lan.run(SETTLED_S)
    gateway.member.hold(Message("a", b"old", 0, True, id=MessageId("broker", 1, 1)), lan.now)
    gateway.subscribe("a")
    lan.run(SETTLED_S)
    assert [each.payload for each in gateway.held] == [b"old", b""]


def test_a_deletion_is_forgotten_in_the_end(lan: Lan) -> None:
    publisher = lan.host()
    publisher.publish("a", b"kept", retain=True)
    publisher.publish("a", b"", retain=True)
    told = []
    for _ in range(2):
        late = lan.host()
        late.subscribe("a")
        lan.run(SETTLED_S)
        told.append([each.payload for each in late.held])
        late.is_plugged = False
        lan.run(DELETION_S + 2 * INTERVAL_S)
    assert told == [[b""], []]


def test_when_there_is_no_room_the_oldest_values_go() -> None:
    values = LastValues(10_000)
    for number in range(100):
        values.set(Message(f"a/{number}", bytes(500), 0, True), float(number))
    assert values.bytes <= 10_000
    kept = sorted(int(each.message.topic[2:]) for each in values.match("#"))
    assert kept == list(range(100 - len(values), 100))
    assert len(values) > 5


def test_of_the_same_instant_the_greater_origin_wins_everywhere() -> None:
    one, other = (
        Message("a", origin, 0, True, id=MessageId(origin.decode(), 0, 1)) for origin in (b"A", b"B")
    )
    for order in ((one, other), (other, one)):
        values = LastValues(10_000)
        for message in order:
            values.set(message, 7.0)
        known = values.get("a")
        assert known is not None
        assert known.message is other
