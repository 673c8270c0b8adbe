"""Members on a virtual network: what an application sees of publish/subscribe without a server."""

from __future__ import annotations

import dataclasses

import pytest

from hedgerow.fabric.multicast.frame import Kind, parse_header
from hedgerow.fabric.multicast.limits import GONE_AFTER_S, INTERVAL_S, Limits
from hedgerow.message import Message, MessageId, Properties
from tests.fabric.multicast.lan import Host, Lan

SETTLED_S = 1.0  # subscriptions are asked for and answered
REPAIRED_S = 8.0  # every gap is filled, or given up


@pytest.fixture
def lan() -> Lan:
    return Lan()


def kind_of(data: bytes) -> int:
    return parse_header(data).kind


def test_one_publisher_three_subscribers_no_server(lan: Lan) -> None:
    publisher = lan.host()
    subscribers = [lan.host() for _ in range(3)]
    for subscriber in subscribers:
        subscriber.subscribe("home/vacuum/status")
    lan.run(SETTLED_S)
    publisher.publish("home/vacuum/status", b"done")
    lan.run(SETTLED_S)
    for subscriber in subscribers:
        assert subscriber.payloads == [b"done"]
        assert subscriber.messages[0].id == MessageId(publisher.member.origin, 0, 1)


def test_a_message_of_another_topic_is_not_delivered(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("b", b"not for a")
    lan.run(SETTLED_S)
    assert subscriber.messages == []


def test_two_topics_at_one_address_are_told_apart_by_their_crc(lan: Lan) -> None:
    publisher, one, other = lan.host(), lan.host(), lan.host()
    one.subscribe("one")
    other.subscribe("other")
    lan.run(SETTLED_S)
    publisher.publish("one", b"1")
    publisher.publish("other", b"2")
    lan.run(SETTLED_S)
    # As if both topics had the same address: each gets the other's datagrams too.
    for topic, data in lan.tapped:
        if topic == "one":
            other.member.receive_datagram(data, lan.now, "other")
        if topic == "other":
            one.member.receive_datagram(data, lan.now, "one")
    lan.drain(one)
    lan.drain(other)
    assert (one.payloads, other.payloads) == ([b"1"], [b"2"])
    assert one.member.stats.other_topic == other.member.stats.other_topic == 1


def test_own_messages_are_heard(lan: Lan) -> None:
    host = lan.host()
    host.subscribe("a/#")
    host.publish("a/b", b"mine")
    lan.run(SETTLED_S)
    assert host.payloads == [b"mine"]


def test_messages_of_one_turn_share_a_datagram(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"first of the topic")
    lan.run(SETTLED_S)
    before = lan.sent[Kind.DATA]
    for number in range(20):
        publisher.member.publish(Message("a", b"%d" % number), lan.now)
    publisher.member.flush(lan.now)
    lan.drain(publisher)
    lan.run(SETTLED_S)
    assert lan.sent[Kind.DATA] == before + 1
    assert subscriber.payloads[1:] == [b"%d" % number for number in range(20)]
    sequences = [message.id.sequence for message in subscriber.messages if message.id]
    assert sequences == list(range(1, 22))


def test_a_message_keeps_properties_qos_retain_and_a_foreign_id(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    properties = Properties(content_type="text/plain", user_property=(("k", "v"),), correlation_data=b"c")
    sent = Message("a", b"payload", 2, True, properties, MessageId("broker-1", 1700, 42))
    publisher.member.publish(sent, lan.now)
    publisher.member.flush(lan.now)
    lan.drain(publisher)
    lan.run(SETTLED_S)
    assert subscriber.messages == [sent]


# Wildcards


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
    before = lan.sent[Kind.TOPICS]
    lan.run(10 * INTERVAL_S)
    assert lan.sent[Kind.TOPICS] == before


def test_unsubscribing_leaves_only_what_no_other_filter_matches(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a/#", "a/1", "a/1")
    for topic in ("a/1", "a/2"):
        publisher.publish(topic, b"")
    lan.run(SETTLED_S)
    assert subscriber.groups == {"a/1", "a/2"}
    for topic_filter, groups in (("a/#", {"a/1"}), ("a/1", {"a/1"}), ("a/1", set())):
        subscriber.member.unsubscribe(topic_filter, lan.now)
        lan.drain(subscriber)
        assert subscriber.groups == groups


def test_wildcards_join_no_more_groups_than_allowed(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host(limits=Limits(groups=10))
    subscriber.subscribe("#")
    for number in range(30):
        publisher.publish(f"a/{number}", b"")
    lan.run(SETTLED_S)
    assert len(subscriber.groups) == 10
    assert subscriber.member.stats.dropped


# Loss and repair


@pytest.mark.parametrize("receivers", [1, 3, 50])
def test_qos_1_loses_nothing_and_does_not_storm(receivers: int) -> None:
    """5 % of all datagrams are lost, requests and repairs too."""
    count = 300
    lan = Lan(seed=receivers)
    publisher, *subscribers = [lan.host() for _ in range(receivers + 1)]
    for subscriber in subscribers:
        subscriber.subscribe("a")
    lan.run(SETTLED_S)
    missed: set[bytes] = set()

    def note_loss(host: Host, data: bytes) -> bool:
        is_lost = lan.random.random() < 0.05
        if is_lost and kind_of(data) == Kind.DATA:
            missed.add(data)
        return is_lost

    lan.drop = note_loss
    for number in range(count):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.002)
    lan.run(REPAIRED_S)
    for subscriber in subscribers:
        assert subscriber.payloads == [b"%d" % number for number in range(count)]
        assert subscriber.member.stats.lost == 0
    requests = sum(subscriber.member.stats.repairs_requested for subscriber in subscribers)
    assert requests <= 3 * len(missed)


def test_qos_0_loses_about_as_much_as_the_network(lan: Lan) -> None:
    count = 2_000
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"")
    lan.run(SETTLED_S)
    subscriber.messages.clear()
    subscriber.loss = 0.05
    for number in range(count):
        publisher.publish("a", b"%d" % number)
        lan.run(0.001)
    lan.run(SETTLED_S)
    assert 0.93 <= len(subscriber.messages) / count <= 0.97
    assert subscriber.member.stats.repairs_requested == 0


def test_the_last_message_is_repaired_though_nothing_follows_it(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    lan.drop = lambda host, data: kind_of(data) == Kind.DATA
    publisher.publish("a", b"the only one", qos=1)
    lan.run(0.01)
    lan.drop = lambda host, data: False
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"the only one"]


def test_a_late_subscriber_is_not_told_what_was_before_it(lan: Lan) -> None:
    publisher, early = lan.host(), lan.host()
    early.subscribe("a")
    lan.run(SETTLED_S)
    for number in range(10):
        publisher.publish("a", b"%d" % number, qos=1)
    lan.run(SETTLED_S)
    late = lan.host()
    late.subscribe("a")
    lan.run(0.2)
    for number in range(10, 15):
        publisher.publish("a", b"%d" % number, qos=1)
    lan.run(SETTLED_S)
    assert late.payloads == [b"%d" % number for number in range(10, 15)]
    assert late.member.stats.lost == 0
    assert early.payloads == [b"%d" % number for number in range(15)]


def test_a_host_that_was_away_gets_what_it_missed(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"before", qos=1)
    lan.run(SETTLED_S)
    subscriber.is_plugged = False
    for number in range(20):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.1)
    subscriber.is_plugged = True
    publisher.publish("a", b"after", qos=1)
    lan.run(REPAIRED_S)
    assert subscriber.payloads == [b"before", *(b"%d" % number for number in range(20)), b"after"]


def test_a_gap_that_nobody_can_fill_is_given_up_and_counted(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"1", qos=1)
    lan.run(SETTLED_S)
    lan.drop = lambda host, data: host is subscriber and kind_of(data) == Kind.DATA
    publisher.publish("a", b"2", qos=1)
    lan.run(0.001)
    lan.drop = lambda host, data: host is publisher  # It hears no requests.
    publisher.publish("a", b"3", qos=1)
    lan.run(2 * REPAIRED_S)
    assert subscriber.payloads == [b"1", b"3"]
    assert subscriber.member.stats.lost == 1


def test_what_left_the_history_is_said_to_be_gone() -> None:
    lan = Lan()
    publisher, subscriber = lan.host(limits=Limits(history_bytes=3_000)), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"first", qos=1)
    lan.run(SETTLED_S)
    subscriber.is_plugged = False
    for number in range(50):
        publisher.publish("a", b"%d" % number, qos=1)
    lan.run(0.01)
    subscriber.is_plugged = True
    lan.run(SETTLED_S)
    assert subscriber.payloads[0] == b"first"
    assert subscriber.payloads[-1] == b"49"
    stats = subscriber.member.stats
    assert stats.lost + len(subscriber.payloads) == 51
    assert 0 < stats.lost < 50


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("size", [1_290, 1_300, 5_000, 256 * 1024])
def test_messages_larger_than_a_datagram(qos: int, loss: float, size: int) -> None:
    lan = Lan(seed=size)
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    payload = lan.random.randbytes(size)
    if size > 1_300 or qos:
        subscriber.loss = loss
    publisher.publish("a", payload, qos=qos)
    lan.run(REPAIRED_S)
    assert subscriber.payloads == [payload]
    assert subscriber.member._subscriber.waiting_bytes == 0


def test_a_message_that_is_too_large_is_refused(lan: Lan) -> None:
    publisher = lan.host(limits=Limits(payload_bytes=1_000))
    with pytest.raises(ValueError, match="1001 bytes; at most 1000"):
        publisher.publish("a", bytes(1_001))
    with pytest.raises(ValueError, match="begin with \\$"):
        publisher.publish("$SYS/x", b"")
    subscriber = lan.host(limits=Limits(payload_bytes=1_000))
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    lan.host().publish("a", bytes(200_000))
    lan.run(REPAIRED_S)
    assert subscriber.messages == []
    assert subscriber.member.stats.too_large


def test_a_sender_is_slowed_by_requests_and_not_forever(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    pace = publisher.member._publisher.pace
    at_first = pace.per_s
    subscriber.loss = 0.5
    for number in range(200):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.005)
    slowed = pace.per_s
    assert slowed < at_first
    subscriber.loss = 0
    lan.run(REPAIRED_S)
    for number in range(200):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.02)
    assert pace.per_s > slowed


# Last values


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
    before = lan.sent[Kind.DATA]
    late.subscribe("a")
    lan.run(SETTLED_S)
    assert [each.payload for each in late.held] == [b"kept"]
    # It asks three times; of nine holders one or two answer.
    assert lan.sent[Kind.DATA] - before <= 3 * 3
    assert all(holder.held == [] and holder.payloads == [b"kept"] for holder in holders)


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


def test_an_expired_value_is_not_told_and_one_that_waited_has_less_left(lan: Lan) -> None:
    publisher = lan.host()
    for topic, expiry in (("a/short", 5), ("a/long", 100)):
        message = Message(topic, b"x", 0, True, Properties(message_expiry_interval=expiry))
        message.expires_at = lan.now + expiry
        publisher.member.publish(message, lan.now)
    publisher.member.flush(lan.now)
    lan.run(20.0)
    late = lan.host()
    late.subscribe("a/#")
    lan.run(SETTLED_S)
    assert [each.topic for each in late.held] == ["a/long"]
    assert 70 <= late.held[0].properties["message_expiry_interval"] <= 80


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


def test_what_cannot_travel_cannot_be_held(lan: Lan) -> None:
    gateway = lan.host(limits=Limits(payload_bytes=100))
    for message in (Message("a" * 2_000, b"x"), Message("$SYS/a", b"x"), Message("a", bytes(101))):
        with pytest.raises(ValueError, match="multicast"):
            gateway.member.hold(message, lan.now)
    late = lan.host()
    late.subscribe("#")
    lan.run(SETTLED_S)
    assert late.held == []


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


# Peers that multicast does not reach


def filtered(lan: Lan) -> tuple[Host, Host]:
    hosts = lan.host(), lan.host()
    for host in hosts:
        host.hears_multicast = False
    return hosts


@pytest.mark.parametrize("topic_filter", ["a/1", "a/#"])
def test_a_named_peer_is_reached_without_multicast(lan: Lan, topic_filter: str) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe(topic_filter)
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    for number in range(5):
        publisher.publish("a/1", b"%d" % number, qos=number % 2)
        publisher.publish("b", b"not asked for")
        lan.run(INTERVAL_S)
    assert subscriber.payloads == [b"%d" % number for number in range(5)]
    publisher.publish("a/1", b"kept", retain=True)
    lan.run(SETTLED_S)
    third = lan.host()
    third.hears_multicast = False
    third.subscribe("a/1")
    third.member.add_peer(publisher.number, lan.now)
    lan.drain(third)
    lan.run(2 * INTERVAL_S)
    assert [each.payload for each in third.held] == [b"kept"]


def test_a_subscription_made_after_the_greeting_is_known_to_the_peer_at_once(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    subscriber.subscribe("a/#")
    lan.run(0.1)
    publisher.publish("a/1", b"the only one")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"the only one"]


def test_a_wildcard_gets_what_was_sent_before_it_knew_of_the_topic(lan: Lan) -> None:
    """At QoS 1, that is: the first frames and their copies are lost, the announcement is not."""
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a/#")
    lan.run(SETTLED_S)
    lan.drop = lambda host, data: kind_of(data) == Kind.DATA
    publisher.publish("a/1", b"1", qos=1)
    lan.run(0.01)
    lan.drop = lambda host, data: False
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"1"]


def test_loss_is_repaired_without_multicast(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe("a")
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(2 * INTERVAL_S)
    subscriber.loss = publisher.loss = 0.1
    for number in range(100):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.01)
    lan.run(REPAIRED_S)
    assert subscriber.payloads == [b"%d" % number for number in range(100)]


def test_a_peer_heard_before_is_asked_for_copies_when_its_multicast_falls_silent(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(2 * INTERVAL_S)
    publisher.publish("a", b"by multicast")
    lan.run(SETTLED_S)
    assert publisher.member.stats.copies_sent == 0
    subscriber.hears_multicast = publisher.hears_multicast = False
    lan.run(2 * GONE_AFTER_S)
    publisher.publish("a", b"by copy")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"by multicast", b"by copy"]


def test_copies_cease_when_multicast_is_back(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe("a")
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    subscriber.hears_multicast = publisher.hears_multicast = True
    lan.run(3 * GONE_AFTER_S)
    before = publisher.member.stats.copies_sent
    publisher.publish("a", b"once")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"once"]
    assert publisher.member.stats.copies_sent == before


def test_a_forged_address_gets_no_copies(lan: Lan) -> None:
    """A HELLO in another's name costs the victim one datagram no larger than itself."""
    publisher, victim, forger = lan.host(), lan.host(), lan.host()
    victim.hears_multicast = False
    lan.run(SETTLED_S)
    forger.subscribe("a")
    forger.member.add_peer(publisher.number, lan.now)
    ((_, hello),) = forger.member.take_to_peers()
    publisher.member.receive_datagram(hello, lan.now, source=victim.number, unicast=True)
    answers = publisher.member.take_to_peers()
    assert [endpoint for endpoint, _ in answers] == [victim.number]
    assert len(answers[0][1]) <= len(hello)
    publisher.publish("a", b"secret")
    assert all(endpoint != victim.number for endpoint, _ in publisher.member.take_to_peers())


# Gateways


def test_a_message_that_two_gateways_bring_is_delivered_once(lan: Lan) -> None:
    one, other, subscriber = lan.host(), lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    message = Message("a", b"x", 1, id=MessageId("broker", 7, 9))
    for gateway in (one, other):
        gateway.member.publish(dataclasses.replace(message), lan.now)
        gateway.member.flush(lan.now)
        lan.drain(gateway)
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"x"]
    assert subscriber.member.stats.duplicates >= 1


@pytest.mark.parametrize("gateway_first", [True, False])
def test_a_message_that_a_gateway_brings_back_is_delivered_once(lan: Lan, gateway_first: bool) -> None:
    device, gateway, subscriber = lan.host(), lan.host(), lan.host()
    for host in (device, subscriber):
        host.subscribe("a")
    lan.run(SETTLED_S)
    device.messages.clear()

    def relay() -> None:
        relayed = Message("a", b"x", 1, id=MessageId(device.member.origin, 0, 1))
        gateway.member.publish(relayed, lan.now)
        gateway.member.flush(lan.now)
        lan.drain(gateway)
        lan.run(SETTLED_S)

    if gateway_first:
        subscriber.member._subscriber.senders.clear()  # It has never heard of the device.
        relay()
    device.publish("a", b"x", qos=1)
    lan.run(SETTLED_S)
    if not gateway_first:
        relay()
    assert subscriber.payloads == [b"x"]
    assert device.payloads == [b"x"], "its own, and not again from the gateway"
