"""What a member listens to: topics, gaps and who asks for them, and each message once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hedgerow.message import Message, MessageId, Properties
from hedgerow.multicast import frame
from hedgerow.multicast.frame import FrameKind, RepairRequest
from hedgerow.multicast.limits import REPAIR_AGAIN_S, REPAIR_WITHIN_S, MulticastLimits
from tests.multicast.frames import SENDER, read, write
from tests.multicast.lan import NO_LONGER_NEW_S, REPAIRED_S, SETTLED_S, Host, Lan, kind_of
from tests.multicast.scene import Target


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
    publisher, subscriber = lan.host(), lan.host(limits=MulticastLimits(groups=10))
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
    publisher.publish("a", b"first", qos=1)
    lan.run(NO_LONGER_NEW_S)
    missed: set[bytes] = set()

    def note_loss(host: Host, data: bytes) -> bool:
        is_lost = lan.random.random() < 0.05
        if is_lost and kind_of(data) == FrameKind.DATA:
            missed.add(data)
        return is_lost

    lan.drop = note_loss
    for number in range(count):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.002)
    lan.run(REPAIRED_S)
    for subscriber in subscribers:
        assert subscriber.payloads == [b"first", *(b"%d" % number for number in range(count))]
        assert subscriber.member.stats.lost == 0
    requests = sum(subscriber.member.stats.repairs_requested for subscriber in subscribers)
    assert requests <= 2 * len(missed)


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
    lan.drop = lambda host, data: kind_of(data) == FrameKind.DATA
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
    lan.drop = lambda host, data: host is subscriber and kind_of(data) == FrameKind.DATA
    publisher.publish("a", b"2", qos=1)
    lan.run(0.001)
    lan.drop = lambda host, data: host is publisher  # It hears no requests.
    publisher.publish("a", b"3", qos=1)
    lan.run(2 * REPAIRED_S)
    assert subscriber.payloads == [b"1"], "its sender waits for it, and keeps what it lacks"
    lan.run(MulticastLimits().history_s)
    assert subscriber.payloads == [b"1", b"3"]
    assert subscriber.member.stats.lost == 1
    assert [each.messages for each in subscriber.missed] == [1]


def test_one_that_no_sender_waits_for_gives_a_gap_up_sooner(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.member.subscribe("a", lan.now, 0)
    lan.drain(subscriber)
    publisher.publish("a", b"1", qos=1)
    lan.run(SETTLED_S)
    lan.drop = lambda host, data: host is subscriber and kind_of(data) == FrameKind.DATA
    publisher.publish("a", b"2", qos=1)
    lan.run(0.001)
    lan.drop = lambda host, data: host is publisher
    publisher.publish("a", b"3", qos=1)
    lan.run(2 * REPAIRED_S)
    assert subscriber.payloads == [b"1", b"3"]


def test_a_wildcard_gets_what_was_sent_before_it_knew_of_the_topic(lan: Lan) -> None:
    """At QoS 1, that is: the first frames and their copies are lost, the announcement is not."""
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a/#")
    lan.run(SETTLED_S)
    lan.drop = lambda host, data: kind_of(data) == FrameKind.DATA
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
        subscriber.member.subscriber.senders.clear()  # It has never heard of the device.
        relay()
    device.publish("a", b"x", qos=1)
    lan.run(SETTLED_S)
    if not gateway_first:
        relay()
    assert subscriber.payloads == [b"x"]
    assert device.payloads == [b"x"], "its own, and not again from the gateway"


# Who asks, of those who miss the same


def test_of_fifty_who_miss_the_same_frame_a_few_ask(lan: Lan) -> None:
    """Also when no answer comes for 50 ms: the others do not ask one after the other."""
    publisher, *subscribers = [lan.host() for _ in range(51)]
    for subscriber in subscribers:
        subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"1", qos=1)
    lan.run(NO_LONGER_NEW_S)
    lan.drop = lambda host, data: kind_of(data) == FrameKind.DATA
    publisher.publish("a", b"2", qos=1)
    lan.run(2 * lan.delay_s)
    lan.drop = lambda host, data: host is publisher and kind_of(data) == FrameKind.REPAIR
    publisher.publish("a", b"3", qos=1)
    lan.run(0.05)
    lan.drop = lambda host, data: False
    lan.run(REPAIRED_S)
    assert all(subscriber.payloads == [b"1", b"2", b"3"] for subscriber in subscribers)
    assert 0 < lan.sent[FrameKind.REPAIR] <= 10  # All ask once if nobody listens to the others.


OTHER = bytes.fromhex("1112131415161718")


def receive(target: Target, sequence: int, sender: bytes = SENDER, payload: bytes = b"") -> None:
    data = write(
        FrameKind.DATA, payload or b"%d" % sequence, flags=frame.QOS_1, sender=sender,
        stream_sequence=sequence, message_sequence=sequence,
    )  # fmt: skip
    target.ask(data, topic="t")


def with_frames(*sequences: int, **own_limits: Any) -> Target:
    """A subscriber that has got these frames of a stream, and misses those between them."""
    target = Target(**own_limits)
    target.member.subscribe("t", target.now)
    target.run(SETTLED_S)
    for sequence in sequences:
        receive(target, sequence)
    target.said()
    return target


def request(*ranges: tuple[int, int], newer_than_ms: int = frame.ANY_AGE, topic: str = "t") -> bytes:
    """What another subscriber says to all."""
    repair = RepairRequest(SENDER, newer_than_ms, list(ranges))
    return write(FrameKind.REPAIR, frame.pack_repair(repair), topic=topic, sender=OTHER)


def requests(target: Target) -> list[list[tuple[int, int]]]:
    """The ranges that it has asked for."""
    said = [read(data) for data in target.said()]
    return [each.body.ranges for each in said if each.header.kind == FrameKind.REPAIR]


def test_another_who_asks_for_all_that_we_miss_asks_for_us() -> None:
    target = with_frames(1, 3, 5)
    target.ask(request((2, 3)))
    target.run(REPAIR_WITHIN_S)
    assert requests(target) == []
    assert target.member.stats.repairs_suppressed == 1
    target.run(2 * REPAIR_AGAIN_S)
    assert requests(target)[0] == [(2, 1), (4, 1)], "nobody answered"


def test_what_arrives_meanwhile_does_not_make_us_ask() -> None:
    """The stream goes on while another's request is under way."""
    target = with_frames(1, 3, 5)
    target.ask(request((2, 3)))
    for sequence in range(6, 12):
        receive(target, sequence)
        target.run(REPAIR_AGAIN_S / 6)
    assert requests(target) == []


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (request((2, 1)), {}),
        (request((4, 1)), {}),
        (request((2, 3), newer_than_ms=1), {}),
        (request((2, 3), topic="another"), {}),
        (request((2, 3)), {"unicast": True}),
    ],
    ids=["one of two", "the other of two", "only the newest", "another topic", "heard by us alone"],
)
def test_another_who_asks_for_less_does_not_ask_for_us(data: bytes, how: dict[str, bool]) -> None:
    target = with_frames(1, 3, 5)
    target.ask(data, **how)
    target.run(REPAIR_WITHIN_S)
    assert requests(target) == [[(2, 1), (4, 1)]]


def test_one_who_asks_all_the_time_does_not_keep_others_from_asking() -> None:
    target = with_frames(1, 3)
    for _ in range(20):
        target.ask(request((2, 1)))
        target.run(REPAIR_AGAIN_S / 3)
    assert requests(target)


def test_a_stream_that_goes_on_is_asked_for_again_soon() -> None:
    """Nobody has answered for a while, so that the next request is far. Then one of two repairs comes."""
    target = with_frames(1, 3, 5)
    for _ in range(6):
        while not requests(target):
            target.run(0.01)
    receive(target, 2)
    target.run(2 * REPAIR_AGAIN_S)
    assert requests(target) == [[(4, 1)]]


def test_a_stream_full_of_gaps_leaves_room_for_another_with_one() -> None:
    target = with_frames(1, waiting_bytes=200_000)
    receive(target, 1, sender=OTHER)
    for sequence in range(3, 1_000, 2):
        receive(target, sequence, payload=bytes(1_000))
    target.member.take_messages()
    for sequence in (*range(3, 50), 2):
        receive(target, sequence, sender=OTHER, payload=bytes(1_000))
    delivered = [each.id.sequence for each in target.member.take_messages() if each.id]
    assert delivered == list(range(2, 50))


def test_a_value_that_was_heard_expires_as_it_would_at_its_publisher(lan: Lan) -> None:
    publisher, witness = lan.host(), lan.host()
    witness.subscribe("a/#")
    lan.run(SETTLED_S)
    for topic, expiry in (("a/short", 5), ("a/long", 100)):
        publisher.send(Message(topic, b"x", 0, True, Properties(message_expiry_interval=expiry)))
    lan.run(20.0)
    publisher.is_plugged = False
    late = lan.host()
    late.subscribe("a/#")
    lan.run(SETTLED_S)
    assert [each.topic for each in late.held] == ["a/long"]
    assert 70 <= late.held[0].properties["message_expiry_interval"] <= 80
