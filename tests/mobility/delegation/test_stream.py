"""A stream: each publication once and in order, over any number of connections."""

from __future__ import annotations

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.events import DelegationStats
from hedgerow.mobility.delegation.limits import (
    ACKNOWLEDGE_EVERY,
    LEAST_WINDOW_BYTES,
    WINDOW_BYTES,
    DelegationLimits,
)
from hedgerow.mobility.delegation.publications import EventBody, HelloBody, PublicationKind, Serving
from hedgerow.mobility.delegation.stream import Stream


def receive(stream: Stream, publications: list[Message], now: float = 0.0) -> list[str]:
    """The callbacks in what is accepted: they tell which it was."""
    accepted = []
    for publication in publications:
        kind, header, body = codec.read(publication)
        if isinstance(body, HelloBody):
            if stream.receive_hello(header, body, 0.0):
                stream.begin_anew()
        elif stream.accept(kind, header, body, now):
            stream.acknowledged(kind, header)
            if isinstance(body, Serving):
                accepted.append(body.callback)
    return accepted


def connect(first: Stream, second: Stream) -> list[str]:
    """What the second accepts of what was missing."""
    first.link_up()
    second.link_up()
    hello, other = first.take_publications(), second.take_publications()
    receive(first, other)
    return receive(second, hello + first.take_publications())


def put(stream: Stream, callback: str) -> None:
    stream.put(PublicationKind.SERVING, Serving(callback, True), 0.0)


def test_what_a_cut_link_lost_is_sent_again() -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    for callback in ("1@a", "2@a", "3@a"):
        put(first, callback)
    assert receive(second, first.take_publications()[:1]) == ["1@a"]
    assert connect(first, second) == ["2@a", "3@a"]
    receive(first, second.take_publications())
    assert not first.records


def test_what_a_gap_follows_is_not_taken() -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    put(first, "1@a")
    put(first, "2@a")
    sent = first.take_publications()
    assert receive(second, sent[1:]) == []
    assert receive(second, sent + sent) == ["1@a", "2@a"]


def test_what_was_written_for_a_forgotten_stream_does_not_count_in_the_next() -> None:
    """Its number may be the very next one there."""
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    put(first, "old@a")
    late = first.take_publications()
    second = Stream("d", "b", 2, DelegationStats())
    connect(first, second)
    put(first, "new@a")
    assert receive(second, late + first.take_publications()) == ["new@a"]


def test_nothing_is_acknowledged_before_what_was_written_for_it_is_here() -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    put(first, "question@a")
    receive(second, first.take_publications())
    put(second, "answer@b")
    second.take_publications()  # Lost.
    first.link_up()
    second.link_up()
    receive(first, second.take_publications())  # HELLO, which says that the question was received.
    assert [record.number for record in first.records] == [1]
    receive(second, first.take_publications())
    assert receive(first, second.take_publications()) == ["answer@b"]
    assert not first.records


def test_an_old_hello_is_ignored() -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    first.link_up()
    old = first.take_publications()
    connect(first, second)
    second.link_up()
    receive(second, old)
    assert not second.is_open


def test_what_is_agreed_overtakes_events_that_wait() -> None:
    """However many there are, and though the other side reads none of them."""
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    for number in range(2_000):
        event = EventBody(Message("t", bytes(1_000), 1, id=MessageId("a", 1, number)))
        first.put(PublicationKind.EVENT, event, 0.0)
    sent = first.take_publications()
    assert sum(each.size for each in sent) < WINDOW_BYTES + 2_000
    put(first, "agreed@a")
    (behind,) = first.take_publications()
    assert codec.read(behind)[0] == PublicationKind.SERVING
    assert receive(second, [*sent, behind]) == ["agreed@a"]
    for _ in range(2_000):
        receive(first, second.take_publications())
        receive(second, first.take_publications())
    assert second.content.received == 2_000
    assert not first.kept


def test_two_sides_with_full_queues_do_not_wait_for_each_other() -> None:
    limits = DelegationLimits(window_bytes=1)
    streams = [Stream("d", name, 1, DelegationStats(), limits) for name in ("a", "b")]
    connect(*streams)
    for number in range(50):
        for stream, name in zip(streams, "ab", strict=True):
            event = EventBody(Message("t", b"", 1, id=MessageId(name, 1, number)))
            stream.put(PublicationKind.EVENT, event, 0.0)
    for _ in range(200):
        for stream, other in (streams, streams[::-1]):
            receive(other, stream.take_publications())
    assert [stream.content.received for stream in streams] == [50, 50]
    assert not any(stream.kept for stream in streams)


def event(number: int, qos: int, payload: bytes = b"") -> EventBody:
    return EventBody(Message("t", payload, qos, id=MessageId("a", 1, number)))


def test_events_that_nobody_waits_for_are_acknowledged_together() -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    receive(first, second.take_publications())
    for number in range(3):
        first.put(PublicationKind.EVENT, event(number, 0), 0.0)
        receive(second, first.take_publications())
        assert not second.take_publications(0.0)
    assert 0.0 < second.deadline < 0.1
    receive(first, second.take_publications(second.deadline))
    assert not first.kept
    assert second.deadline == float("inf")


@pytest.mark.parametrize("hurried", [event(0, 1), event(0, 0, bytes(10_000))], ids=["QoS 1", "large"])
def test_what_somebody_waits_for_is_acknowledged_at_once(hurried: EventBody) -> None:
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    first.put(PublicationKind.EVENT, event(1, 0), 0.0)
    first.put(PublicationKind.EVENT, hurried, 0.0)
    receive(second, first.take_publications())
    receive(first, second.take_publications(0.0))
    assert not first.kept


def test_many_events_are_acknowledged_before_their_time() -> None:
    """The other side may have no more under way."""
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    for number in range(ACKNOWLEDGE_EVERY):
        first.put(PublicationKind.EVENT, event(number, 0), 0.0)
    receive(second, first.take_publications())
    receive(first, second.take_publications(0.0))
    assert not first.kept


@pytest.mark.parametrize("bytes_per_s", [125_000, 2_000_000])
def test_a_full_queue_of_events_delays_no_delegation(bytes_per_s: int) -> None:
    """On a link of one megabit, and a quicker one: bytes arrive one after the other."""
    first, second = Stream("d", "a", 1, DelegationStats()), Stream("d", "b", 1, DelegationStats())
    connect(first, second)
    receive(first, second.take_publications())
    for number in range(1_500):
        first.put(PublicationKind.EVENT, event(number, number % 2, bytes(500)), 0.0)
    on_the_way: list[tuple[float, Message]] = []
    now, free_at, waited, asked = 0.0, 0.0, [], dict[str, float]()
    while first.kept and now < 60:
        now += 0.01
        if round(now * 100) % 20 == 0:
            asked[f"{now:.2f}@a"] = now
            first.put(PublicationKind.SERVING, Serving(f"{now:.2f}@a", True), now)
        for publication in first.take_publications(now):
            free_at = max(now, free_at) + publication.size / bytes_per_s
            on_the_way.append((free_at + 0.02, publication))
        arrived = [each for at, each in on_the_way if at <= now]
        del on_the_way[: len(arrived)]
        waited += [now - asked[name] for name in receive(second, arrived, now)]
        receive(first, second.take_publications(now), now)
    assert not first.kept
    assert waited
    assert max(waited) < LEAST_WINDOW_BYTES / bytes_per_s + 0.2
    assert now < 1.3 * 1_500 * 900 / bytes_per_s + 1
