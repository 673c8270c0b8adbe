"""What a member publishes: gathering, pieces, streams and their numbers, and what it refuses."""

from __future__ import annotations

import pytest

from hedgerow.errors import RefusedError
from hedgerow.message import Message
from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.limits import IDLE_TOPIC_S, INTERVAL_S, MulticastLimits
from tests.multicast.lan import NO_LONGER_NEW_S, REPAIRED_S, SETTLED_S, Lan


def test_messages_of_one_turn_share_a_datagram(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"first of the topic")
    lan.run(SETTLED_S)
    before = lan.sent[FrameKind.DATA]
    publisher.send(*(Message("a", b"%d" % number) for number in range(20)))
    lan.run(SETTLED_S)
    assert lan.sent[FrameKind.DATA] == before + 1
    assert subscriber.payloads[1:] == [b"%d" % number for number in range(20)]
    sequences = [message.id.sequence for message in subscriber.messages if message.id]
    assert sequences == list(range(1, 22))


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
    assert subscriber.member.subscriber.waiting_bytes == 0


def test_a_message_that_is_too_large_is_refused(lan: Lan) -> None:
    publisher = lan.host(limits=MulticastLimits(payload_bytes=1_000))
    with pytest.raises(RefusedError, match="1001 bytes; at most 1000"):
        publisher.publish("a", bytes(1_001))
    with pytest.raises(RefusedError, match="begin with \\$"):
        publisher.publish("$SYS/x", b"")
    subscriber = lan.host(limits=MulticastLimits(payload_bytes=1_000))
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    lan.host().publish("a", bytes(200_000))
    lan.run(REPAIRED_S)
    assert subscriber.messages == []
    assert subscriber.member.stats.too_large


def test_what_cannot_travel_cannot_be_held(lan: Lan) -> None:
    gateway = lan.host(limits=MulticastLimits(payload_bytes=100))
    for message in (Message("a" * 2_000, b"x"), Message("$SYS/a", b"x"), Message("a", bytes(101))):
        with pytest.raises(RefusedError, match="multicast"):
            gateway.member.hold(message, lan.now)
    late = lan.host()
    late.subscribe("#")
    lan.run(SETTLED_S)
    assert late.held == []


def test_what_left_the_history_is_said_to_be_gone() -> None:
    lan = Lan()
    publisher, subscriber = lan.host(limits=MulticastLimits(history_bytes=3_000)), lan.host()
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


@pytest.mark.parametrize("pause_s", [0.01, 0.03, 1.5, 11.0])
def test_the_end_of_a_stream_is_told_soon_however_long_ago_the_last_message_was(
    lan: Lan, pause_s: float
) -> None:
    """A publisher that says two things and goes: the second is lost, and nothing follows it."""
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("a", b"1", qos=1)
    lan.run(pause_s)
    lan.drop = lambda host, data: host is subscriber
    publisher.publish("a", b"2", qos=1)
    lan.run(0.01)
    lan.drop = lambda host, data: False
    lan.run(publisher.member.linger_until(lan.now) - lan.now)
    assert subscriber.payloads == [b"1", b"2"]


def test_a_topic_that_comes_back_goes_on_behind_its_old_numbers(lan: Lan) -> None:
    """Its subscribers have not forgotten them."""
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=1)
    lan.run(IDLE_TOPIC_S + 2 * INTERVAL_S)
    assert publisher.member.publisher.outgoing == {}
    publisher.publish("a", b"again", qos=1)
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"0", b"1", b"2", b"again"]


def test_a_topic_whose_numbers_are_forgotten_goes_on_behind_all_others(lan: Lan) -> None:
    publisher, subscriber = lan.host(limits=MulticastLimits(topics=2)), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=1)
    for topics in ("a", "bc"):
        for topic in topics:
            publisher.publish(topic, b"3", qos=1)
        lan.run(IDLE_TOPIC_S + 2 * INTERVAL_S)
    publisher.publish("a", b"again", qos=1)
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"0", b"1", b"2", b"3", b"again"]


def test_topics_in_use_are_bounded_and_make_room_when_they_rest(lan: Lan) -> None:
    host = lan.host(limits=MulticastLimits(topics=4))
    for number in range(4):
        host.publish(f"a/{number}", b"")
    with pytest.raises(RefusedError, match="4 topics"):
        host.publish("a/4", b"")
    host.publish("a/0", b"one of the four")
    lan.run(INTERVAL_S + SETTLED_S)
    host.publish("a/4", b"")
    assert len(host.member.publisher.outgoing) <= 4


def test_datagrams_become_smaller_with_the_network_for_topics_in_use_too(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"first")
    lan.run(NO_LONGER_NEW_S)
    publisher.member.set_datagram_bytes(500)
    lan.tapped.clear()
    for qos in (0, 1):
        publisher.publish("a", bytes(1_000), qos=qos)
    publisher.send(*[Message("a", bytes(100))] * 20)
    lan.run(SETTLED_S)
    assert subscriber.payloads[1:] == [bytes(1_000)] * 2 + [bytes(100)] * 20
    assert max(len(data) for _, data in lan.tapped) <= 500
