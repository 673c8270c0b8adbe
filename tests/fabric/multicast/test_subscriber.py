"""What a member listens to: topics, gaps and who asks for them, and each message once."""

from __future__ import annotations

import dataclasses

import pytest

from hedgerow.fabric.multicast.frame import Kind
from hedgerow.fabric.multicast.limits import Limits
from hedgerow.message import Message, MessageId
from tests.fabric.multicast.lan import REPAIRED_S, SETTLED_S, Host, Lan, kind_of


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


def test_a_message_that_two_gateways_bring_is_delivered_once(lan: Lan) -> None:
    one, other, subscriber = lan.host(), lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    message = Message("a", b"x", 1, id=MessageId("broker", 7, 9))
    for gateway in (one, other):
        gateway.send(dataclasses.replace(message))
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
        gateway.send(relayed)
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
