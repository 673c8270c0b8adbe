"""Senders at full speed, and receivers that are slow, dead, away, many: nothing is lost by those who live."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.message import Message
from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.limits import (
    FIRST_ACKNOWLEDGEMENT_S,
    GONE_AFTER_S,
    MAX_RECEIVERS,
    MulticastLimits,
)
from hedgerow.multicast.outgoing import Pace
from tests.multicast.frames import read
from tests.multicast.lan import SETTLED_S, Host, Lan, filtered
from tests.multicast.scene import ring

STEP_S = 0.001
SMALL = MulticastLimits(history_bytes=2_000_000, window_bytes=200_000, waiting_bytes=2_000_000)


def publish_all(lan: Lan, *publishers: tuple[Host, list[Message]], at_most_s: float = 300.0) -> None:
    """Each as fast as its member lets it; asserts what is true of it meanwhile."""
    left = {host: list(reversed(messages)) for host, messages in publishers}
    give_up_at = lan.now + at_most_s
    while any(left.values()):
        assert lan.now < give_up_at, "the publishers wait without end"
        for host, messages in left.items():
            while messages and host.member.ready_at <= lan.now:
                host.send(messages.pop())
                history = host.member.publisher.history
                assert history.bytes <= 1.25 * history.max_bytes
        lan.run(STEP_S)


def acknowledge_all(lan: Lan, *publishers: Host, at_most_s: float = 120.0) -> None:
    """Publish no more, and wait for what is under way, as a bus does that closes."""
    give_up_at = lan.now + at_most_s
    for host in publishers:
        host.member.finish(lan.now)
        lan.drain(host)
    while any(
        host.member.is_awaited(lan.now) or host.member.linger_until(lan.now) > lan.now for host in publishers
    ):
        assert lan.now < give_up_at, "the publishers wait without end"
        lan.run(STEP_S)


def numbered(count: int, topics: int, word: bytes = b"", size: int = 50) -> list[Message]:
    return [Message(f"t/{n % topics}", b"%s %d " % (word, n) + bytes(size), 1) for n in range(count)]


def slow(host: Host, per_s: float, buffer_bytes: int = 100_000) -> Host:
    host.service_s, host.buffer_bytes = 1 / per_s, buffer_bytes
    host.member.set_receive_buffer(buffer_bytes // 2)  # Linux counts twice what it was asked for.
    return host


def subscribed(lan: Lan, count: int = 1, limits: MulticastLimits = SMALL) -> list[Host]:
    hosts = [lan.host(limits=limits) for _ in range(count)]
    for host in hosts:
        host.subscribe("t/#")
    lan.run(SETTLED_S)
    return hosts


def assert_all_in_order(host: Host, *sent: list[Message]) -> None:
    """Each message once, and those of one publisher and topic in their order."""
    got = [(message.topic, message.payload) for message in host.messages]
    expected = [(message.topic, message.payload) for messages in sent for message in messages]
    assert Counter(got) == Counter(expected)
    for messages in sent:
        for topic in {message.topic for message in messages}:
            own = [message.payload for message in messages if message.topic == topic]
            word = own[0].split()[0] if len(sent) > 1 else b""
            assert [p for t, p in got if t == topic and p.startswith(word)] == own


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([1, 20, 150]),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.lists(st.sampled_from([1_000.0, 5_000.0, 1e9]), min_size=1, max_size=3),
)
def test_every_receiver_gets_all_of_every_publisher(
    seed: int, publisher_count: int, topics: int, loss: float, rates: list[float]
) -> None:
    lan = Lan(seed)
    receivers = [slow(host, rate) for host, rate in zip(subscribed(lan, len(rates)), rates, strict=True)]
    publishers = [lan.host(limits=SMALL) for _ in range(publisher_count)]
    for host in lan.hosts:
        host.loss = loss
    sent = [numbered(400, topics, b"p%d" % number) for number in range(publisher_count)]
    publish_all(lan, *zip(publishers, sent, strict=True))
    acknowledge_all(lan, *publishers)
    for receiver in receivers:
        assert_all_in_order(receiver, *sent)
        assert receiver.member.stats.missed == receiver.member.stats.lost == 0
        assert receiver.member.subscriber.waiting_bytes == 0
    for publisher in publishers:
        assert publisher.member.unacknowledged_bytes == 0
        assert publisher.member.stats.left_behind == 0


def test_a_sender_is_as_fast_as_its_slowest_receiver(lan: Lan) -> None:
    receivers = subscribed(lan, 3)
    slow(receivers[1], 400.0)
    publisher = lan.host(limits=SMALL)
    sent = numbered(4_000, 4)
    began_at = lan.now
    publish_all(lan, (publisher, sent[:2_000]))
    dropped = receivers[1].dropped  # before the sender knew of it
    publish_all(lan, (publisher, sent[2_000:]))
    assert 9.0 < lan.now - began_at < 15.0
    assert receivers[1].dropped == dropped, "what is under way fits into the receiver's buffer"
    acknowledge_all(lan, publisher)
    for receiver in receivers:
        assert_all_in_order(receiver, sent)


def test_with_no_receiver_a_sender_waits_a_moment_and_never_again(lan: Lan) -> None:
    publisher = lan.host()
    began_at = lan.now
    publish_all(lan, (publisher, numbered(20_000, 1)))
    expected_s = 20_000 / Pace.FIRST_PER_S
    assert lan.now - began_at < expected_s + FIRST_ACKNOWLEDGEMENT_S + 0.1


def test_a_listener_at_qos_0_is_not_waited_for(lan: Lan) -> None:
    listener = slow(lan.host(limits=SMALL), 100.0)
    listener.member.subscribe("t/#", lan.now, 0)
    lan.drain(listener)
    lan.run(SETTLED_S)
    publisher = lan.host(limits=SMALL)
    began_at = lan.now
    publish_all(lan, (publisher, numbered(3_000, 1)))
    assert lan.now - began_at < 3_000 / Pace.MIN_PER_S
    assert publisher.member.receiver_count == 0


def test_an_application_that_takes_nothing_holds_its_senders(lan: Lan) -> None:
    """As a gateway does whose broker does not store what it is given."""
    (receiver,) = subscribed(lan)
    publisher = lan.host(limits=SMALL)
    publish_all(lan, (publisher, numbered(10, 1)))
    lan.run(SETTLED_S)
    receiver.is_taking = False
    messages = numbered(2_000, 1, b"more")
    began_at = lan.now
    while messages and lan.now < began_at + 5.0:
        while messages and publisher.member.ready_at <= lan.now:
            publisher.send(messages.pop(0))
        lan.run(STEP_S)
    held = len(messages)
    assert held > 1_500
    receiver.is_taking = True
    lan.drain(receiver)
    publish_all(lan, (publisher, messages))
    acknowledge_all(lan, publisher)
    assert len(receiver.messages) == 2_010
    assert publisher.member.stats.left_behind == 0


@pytest.mark.parametrize("patience_s", [2.0, 60.0])
def test_a_dead_receiver_holds_a_sender_no_longer_than_its_patience(lan: Lan, patience_s: float) -> None:
    limits = MulticastLimits(window_bytes=200_000, patience_s=patience_s)
    living, dead = subscribed(lan, 2)
    publisher = lan.host(limits=limits)
    publish_all(lan, (publisher, numbered(10, 1)))
    lan.run(SETTLED_S)
    dead.is_plugged = False
    sent = numbered(3_000, 1, b"more")
    began_at = lan.now
    publish_all(lan, (publisher, sent))
    bound_s = min(patience_s, GONE_AFTER_S)
    assert 0.9 * bound_s - 5.0 < lan.now - began_at < bound_s + 3.0
    assert len(living.messages) == 3_010
    assert publisher.member.stats.left_behind == 1
    [(receiver, _)] = publisher.member.take_left_behind()
    assert receiver == dead.member.sender


def test_both_sides_count_what_a_receiver_missed_that_was_left_behind(lan: Lan) -> None:
    limits = MulticastLimits(history_bytes=300_000, window_bytes=100_000, patience_s=1.0)
    living, away = subscribed(lan, 2)
    publisher = lan.host(limits=limits)
    early = numbered(100, 2)
    publish_all(lan, (publisher, early))
    lan.run(SETTLED_S)
    away.is_plugged = False
    late = numbered(5_000, 2, b"late")
    publish_all(lan, (publisher, late))
    away.is_plugged = True
    lan.run(3.0)
    last = numbered(100, 2, b"last")
    publish_all(lan, (publisher, last))
    acknowledge_all(lan, publisher)
    assert len(living.messages) == 5_200
    missed = 5_200 - len(away.messages)
    assert missed > 2_000
    assert away.member.stats.missed == missed
    assert publisher.member.stats.not_taken == missed
    assert sum(each.messages for each in away.missed) == missed
    assert {each.topic for each in away.missed} == {"t/0", "t/1"}
    assert publisher.member.receiver_count == 2
    assert not publisher.member.publisher.flow.receivers[away.member.sender].is_left_behind


def test_a_receiver_that_leaves_is_not_waited_for(lan: Lan) -> None:
    (receiver,) = subscribed(lan)
    publisher = lan.host(limits=SMALL)
    publish_all(lan, (publisher, numbered(10, 1)))
    lan.run(SETTLED_S)
    receiver.is_taking = False
    receiver.member.leave(lan.now)
    lan.drain(receiver)
    receiver.is_plugged = False
    began_at = lan.now
    publish_all(lan, (publisher, numbered(3_000, 1)))
    assert lan.now - began_at < 1.0


def test_one_that_unsubscribes_is_not_waited_for(lan: Lan) -> None:
    (receiver,) = subscribed(lan)
    publisher = lan.host(limits=SMALL)
    publish_all(lan, (publisher, numbered(10, 1)))
    lan.run(SETTLED_S)
    receiver.member.unsubscribe("t/#", lan.now)
    lan.drain(receiver)
    lan.run(SETTLED_S)
    assert publisher.member.unacknowledged_bytes == 0
    began_at = lan.now
    publish_all(lan, (publisher, numbered(3_000, 1)))
    assert lan.now - began_at < 1.0
    receiver.subscribe("t/0")
    lan.run(SETTLED_S)
    sent = numbered(3_000, 1, b"again")
    publish_all(lan, (publisher, sent))
    acknowledge_all(lan, publisher)
    assert [each for each in receiver.messages if each.payload.startswith(b"again")]
    assert_all_in_order_of(receiver, b"again", sent)


def assert_all_in_order_of(host: Host, word: bytes, sent: list[Message]) -> None:
    got = [message.payload for message in host.messages if message.payload.startswith(word)]
    assert got == [message.payload for message in sent]


def test_a_receiver_that_stays_behind_in_one_topic_keeps_its_frame(lan: Lan) -> None:
    """While others flow through the history: it is the oldest frame, and waits to be repaired."""
    limits = MulticastLimits(history_bytes=300_000, window_bytes=100_000)
    one, other = subscribed(lan, 2, limits)
    publisher = lan.host(limits=limits)
    publish_all(lan, (publisher, numbered(10, 2)))
    lan.run(SETTLED_S)
    hears_nothing_of = "t/1"
    groups, one.groups = one.groups, one.groups - {hears_nothing_of}
    sent = [Message(hears_nothing_of, b"to be repaired", 1), *numbered(3_000, 1)]
    left = list(sent)
    began_at = lan.now
    while left and lan.now < began_at + 4.0:
        while left and publisher.member.ready_at <= lan.now:
            publisher.send(left.pop(0))
        lan.run(STEP_S)
    assert left, "the history is full, and one of its frames not acknowledged"
    one.groups = groups
    publish_all(lan, (publisher, left))
    acknowledge_all(lan, publisher)
    for receiver in one, other:
        assert len(receiver.messages) == 10 + len(sent)


def test_invented_receivers_hold_a_sender_no_longer_than_its_patience_and_fill_no_memory(lan: Lan) -> None:
    limits = MulticastLimits(window_bytes=100_000, patience_s=1.0)
    subscribed(lan)
    publisher = lan.host(limits=limits)
    publish_all(lan, (publisher, numbered(10, 1)))
    lan.run(SETTLED_S)
    forged = next(
        data
        for data in (data for _, data in _unicast_to(lan, publisher))
        if read(data).header.kind == FrameKind.ACKNOWLEDGEMENT
    )
    for number in range(2 * MAX_RECEIVERS):
        data = forged[:8] + number.to_bytes(8, "big") + forged[16:]
        publisher.member.receive_datagram(data, lan.now, None, 99, unicast=True)
    assert publisher.member.receiver_count <= MAX_RECEIVERS
    began_at = lan.now
    publish_all(lan, (publisher, numbered(3_000, 1)))
    assert lan.now - began_at < 5.0


def _unicast_to(lan: Lan, publisher: Host) -> list[tuple[None, bytes]]:
    """What comes to it alone, of one more message."""
    heard: list[tuple[None, bytes]] = []

    def tap(host: Host, data: bytes) -> bool:
        if host is publisher:
            heard.append((None, data))
        return False

    lan.drop = tap
    publisher.publish("t/0", b"", qos=1)
    lan.run(SETTLED_S)
    return heard


def test_sealed_frames_are_acknowledged_too(lan: Lan) -> None:
    publisher = lan.host(ring(), SMALL)
    receiver = slow(lan.host(ring(), SMALL), 1_000.0)
    receiver.subscribe("t/#")
    lan.run(SETTLED_S)
    sent = numbered(1_500, 3)
    publish_all(lan, (publisher, sent))
    acknowledge_all(lan, publisher)
    assert_all_in_order(receiver, sent)
    assert publisher.member.receiver_count == 1


def test_a_peer_that_is_sent_copies_is_waited_for(lan: Lan) -> None:
    publisher, receiver = filtered(lan)
    receiver.subscribe("t/#")
    receiver.member.add_peer(publisher.number, lan.now)
    lan.run(SETTLED_S)
    slow(receiver, 1_000.0)
    sent = numbered(1_500, 3)
    publish_all(lan, (publisher, sent))
    acknowledge_all(lan, publisher)
    assert_all_in_order(receiver, sent)
    assert publisher.member.receiver_count == 1
