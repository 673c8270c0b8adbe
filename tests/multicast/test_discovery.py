"""Who is there, which topics there are, and last values for those who come late."""

from __future__ import annotations

from hedgerow.message import Message, MessageId, Properties
from hedgerow.multicast import frame
from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.limits import DATAGRAM_BYTES, GONE_AFTER_S, IDLE_TOPIC_S, INTERVAL_S, MAX_PUBLISHERS
from hedgerow.multicast.peers import MAX_FILTERS
from tests.multicast.frames import write
from tests.multicast.lan import REPAIRED_S, SETTLED_S, Host, Lan, filtered
from tests.multicast.scene import Target


def test_a_wildcard_hears_the_first_message_of_a_topic_that_it_did_not_know(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("home/+/status")
    lan.run(SETTLED_S)
    publisher.publish("home/mop/status", b"first")
    publisher.publish("home/mop/level", b"no match")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"first"]
    assert subscriber.groups == {"home/mop/status"}


def test_a_late_wildcard_joins_the_topics_that_exist_and_leaves_them_when_they_go(lan: Lan) -> None:
    publisher, other = lan.host(), lan.host()
    publisher.publish("a/1", b"")
    other.publish("a/2", b"")
    lan.run(2 * INTERVAL_S)
    subscriber = lan.host()
    subscriber.subscribe("a/#")
    lan.run(SETTLED_S)
    assert subscriber.groups == {"a/1", "a/2"}
    lan.run(4 * GONE_AFTER_S)
    assert subscriber.groups == {"a/1", "a/2"}, "they are still announced"
    publisher.member.leave(lan.now)
    lan.drain(publisher)
    publisher.is_plugged = False
    lan.run(SETTLED_S)
    assert subscriber.groups == {"a/2"}, "it said that it goes"
    other.is_plugged = False
    lan.run(2 * GONE_AFTER_S)
    assert subscriber.groups == set(), "it went without a word"


def test_nobody_repeats_topics_when_nobody_asks(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a/1")
    publisher.publish("a/1", b"")
    lan.run(SETTLED_S)
    before = lan.sent[FrameKind.TOPICS]
    lan.run(10 * INTERVAL_S)
    assert lan.sent[FrameKind.TOPICS] == before


def test_a_late_subscriber_gets_the_last_value_from_its_publisher(lan: Lan) -> None:
    publisher = lan.host()
    publisher.publish("a/1", b"old", retain=True)
    publisher.publish("a/1", b"new", retain=True)
    publisher.publish("a/2", b"not kept")
    lan.run(SETTLED_S)
    for topic_filter in ("a/1", "a/+", "#"):
        late = lan.host()
        late.subscribe(topic_filter)
        lan.run(SETTLED_S)
        assert [(each.topic, each.payload, each.retain) for each in late.held] == [("a/1", b"new", True)]
        assert late.held[0].id == MessageId(publisher.member.origin, 0, 2)
        assert late.messages == []


def test_the_last_value_outlives_its_publisher_and_is_told_once(lan: Lan) -> None:
    publisher, *holders = [lan.host() for _ in range(10)]
    for holder in holders:
        holder.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"kept", retain=True)
    lan.run(SETTLED_S)
    publisher.is_plugged = False
    late = lan.host()
    before = lan.sent[FrameKind.DATA]
    late.subscribe("a")
    lan.run(SETTLED_S)
    assert [each.payload for each in late.held] == [b"kept"]
    # It asks three times; of nine holders one or two answer.
    assert lan.sent[FrameKind.DATA] - before <= 3 * 3
    assert all(holder.held == [] and holder.payloads == [b"kept"] for holder in holders)


def test_an_expired_value_is_not_told_and_one_that_waited_has_less_left(lan: Lan) -> None:
    publisher = lan.host()
    for topic, expiry in (("a/short", 5), ("a/long", 100)):
        message = Message(topic, b"x", 0, True, Properties(message_expiry_interval=expiry))
        publisher.member.publish(message, lan.now)
    publisher.member.flush(lan.now)
    lan.run(20.0)
    late = lan.host()
    late.subscribe("a/#")
    lan.run(SETTLED_S)
    assert [each.topic for each in late.held] == ["a/long"]
    assert 70 <= late.held[0].properties["message_expiry_interval"] <= 80


def test_a_large_last_value_reaches_a_late_subscriber(lan: Lan) -> None:
    publisher = lan.host()
    payload = lan.random.randbytes(50_000)
    publisher.publish("a", payload, retain=True)
    lan.run(40.0)
    late = lan.host()
    late.loss = 0.05
    late.subscribe("a")
    lan.run(REPAIRED_S)
    assert [each.payload for each in late.held] == [payload]


def test_a_topic_that_was_only_answered_for_is_announced_when_it_is_published_to(lan: Lan) -> None:
    holder, late = lan.host(), lan.host()
    holder.member.hold(Message("a/1", bytes(5_000), 0, True, id=MessageId("broker", 1, 1)), lan.now)
    late.subscribe("a/1")
    lan.run(SETTLED_S)
    assert len(late.held) == 1
    wildcard = lan.host()
    wildcard.subscribe("a/+")
    lan.run(SETTLED_S)
    holder.publish("a/1", b"live")
    lan.run(2 * GONE_AFTER_S)
    assert wildcard.payloads == [b"live"]
    assert wildcard.groups == {"a/1"}


def test_a_topic_that_rests_is_announced_no_more(lan: Lan) -> None:
    publisher = lan.host()
    publisher.publish("a/1", b"")
    joined = []
    for rest_s in (INTERVAL_S, IDLE_TOPIC_S):
        lan.run(rest_s)
        wildcard = lan.host()
        wildcard.subscribe("a/#")
        lan.run(2 * INTERVAL_S)
        joined.append(set(wildcard.groups))
    assert joined == [{"a/1"}, set()]


def test_a_peer_that_begins_to_hear_us_is_asked_for_last_values(lan: Lan) -> None:
    """We subscribed before it could."""
    holder, subscriber = filtered(lan)
    holder.publish("a", b"kept", retain=True)
    subscriber.subscribe("a")
    lan.run(2 * INTERVAL_S)
    assert subscriber.held == []
    holder.member.add_peer(subscriber.number, lan.now)
    lan.drain(holder)
    lan.run(SETTLED_S)
    assert [each.payload for each in subscriber.held] == [b"kept"]


def test_a_greeting_with_many_long_filters_fits_into_a_datagram(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    topics = [f"{'long' * 25}/{number}" for number in range(MAX_FILTERS)]
    subscriber.subscribe(*topics)
    sizes: list[int] = []

    def note_size(host: Host, data: bytes) -> bool:
        sizes.append(len(data))
        return False

    lan.drop = note_size
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    publisher.publish(topics[-1], b"copied")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"copied"]
    assert max(sizes) <= DATAGRAM_BYTES


def test_of_invented_publishers_few_are_remembered() -> None:
    target = Target()
    target.member.subscribe("t", target.now)
    for number in range(1, 500):
        body = frame.pack_names(["t"])
        target.ask(write(FrameKind.TOPICS, body, crc=0, sender=number.to_bytes(8, "big")), source=number)
    assert len(target.member.subscriber.listening["t"].publishers) == MAX_PUBLISHERS
