"""QoS 1 at full speed: publishing waits for those who could not keep up, and nothing is lost."""

from __future__ import annotations

import tracemalloc
from math import inf

import pytest

from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.limits import DATAGRAM_BYTES, HISTORY_AT_LEAST_S, MAX_REPAIRS, MIB, MulticastLimits
from hedgerow.multicast.outgoing import FrameHistory, OutgoingTopic, Pace, SentFrame
from tests.multicast.lan import REPAIRED_S, SETTLED_S, Host, Lan


def publish_at_full_speed(lan: Lan, publisher: Host, duration_s: float, first: int) -> int:
    """As an application does that waits when it is told to; the number of the next message."""
    number, end_at = first, lan.now + duration_s
    while (ready_at := max(publisher.member.ready_at, lan.now) + 1e-6) < end_at:
        lan.run(ready_at - lan.now)
        publisher.publish("a", number.to_bytes(4, "big") + bytes(1_000), qos=1)
        number += 1
    lan.run(end_at - lan.now)
    return number


@pytest.mark.parametrize("away_s", [0.05, 0.3])
def test_a_receiver_that_was_away_gets_everything(away_s: float) -> None:
    lan = Lan()
    publisher, subscriber = lan.host(limits=MulticastLimits(history_bytes=4 * MIB)), lan.host()
    subscriber.subscribe("a")
    lan.run(1.0)
    count = publish_at_full_speed(lan, publisher, 0.05, first=0)
    subscriber.is_plugged = False
    behind = publish_at_full_speed(lan, publisher, away_s, first=count)
    subscriber.is_plugged = True
    assert behind - count > MAX_REPAIRS  # It takes more than one request.
    count = publish_at_full_speed(lan, publisher, 0.5, first=behind)
    lan.run(5.0)
    assert [int.from_bytes(payload[:4], "big") for payload in subscriber.payloads] == list(range(count))
    assert subscriber.member.stats.lost == 0


def test_repairs_follow_each_other_without_a_pause() -> None:
    """A gap of many requests' worth is closed as fast as requests and repairs travel."""
    lan = Lan()
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    publisher.publish("a", b"", qos=1)
    lan.run(1.0)
    subscriber.is_plugged = False
    for _ in range(20 * MAX_REPAIRS):
        publisher.publish("a", bytes(1_000), qos=1)
    lan.run(0.01)
    subscriber.is_plugged = True
    lan.run(1.0)
    assert len(subscriber.messages) == 1 + 20 * MAX_REPAIRS
    assert lan.sent[FrameKind.REPAIR] <= 22


def test_publishing_waits_before_it_forgets_what_is_young() -> None:
    lan = Lan()
    publisher = lan.host(limits=MulticastLimits(history_bytes=100_000, patience_s=0))
    published_at = lan.now
    while publisher.member.ready_at <= lan.now + 0.1:
        publisher.publish("a", bytes(1_000), qos=1)
    assert publisher.member.ready_at == published_at + HISTORY_AT_LEAST_S


def test_a_large_frame_counts_as_several() -> None:
    small, large = Pace(), Pace()
    for _ in range(6):
        small.sent(-1.0, DATAGRAM_BYTES)
    large.sent(-1.0, 6 * DATAGRAM_BYTES)
    assert large.ready_at == pytest.approx(small.ready_at)


def test_nothing_new_is_sent_while_much_is_sent_again() -> None:
    pace = Pace()
    pace.sent_again(Pace.BURST_FRAMES - 1, 100.0)
    assert pace.ready_at < 100.0
    pace.sent_again(Pace.BURST_FRAMES, 100.0)
    assert pace.ready_at == 100.0 + Pace.PAUSE_S


def test_one_who_asks_all_the_time_does_not_silence_a_publisher() -> None:
    pace = Pace()
    sent, now = 0, 100.0
    for _ in range(1_000):
        now += 0.001
        pace.sent_again(256, now)
        while pace.ready_at <= now:
            pace.sent(now, 100)
            sent += 1
    assert sent >= 0.3 * Pace.MIN_PER_S


@pytest.mark.parametrize(("share", "slower"), [(0.05, False), (0.2, False), (0.4, True)])
def test_it_goes_slower_only_when_much_of_what_it_sends_is_missed(share: float, slower: bool) -> None:
    """One receiver on a bad link misses 5 % at any pace."""
    pace = Pace()
    for number in range(1, 2_001):
        now = 100.0 + number * 0.001
        pace.sent(now, 100)
        if int(number * share) > int((number - 1) * share):
            pace.sent_again(1, now)
    assert (pace.per_s < Pace.FIRST_PER_S) is slower


def test_a_sender_is_slowed_by_requests_and_not_forever(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    pace = publisher.member.publisher.pace
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


def test_the_history_counts_what_its_frames_take() -> None:
    """Of small ones most is not in their bodies."""
    history, outgoing, count = FrameHistory(1 << 40, inf), OutgoingTopic("a", 1_000, 1_000, 0.0, 0.0), 20_000
    tracemalloc.start()
    try:
        for number in range(count):
            at = number / 1_000
            body = number.to_bytes(64, "big")
            history.add(outgoing, SentFrame(1_000 + number, 3, 1_000 + number, body, 1, at), at)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < history.bytes < 1.2 * taken
