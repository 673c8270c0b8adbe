"""What one member knows of another: a stream's order, its gaps and pieces, and what has been here before."""

from __future__ import annotations

import pytest

from hedgerow.multicast.incoming import (
    FRAME_BYTES,
    MAX_FLOORS,
    Arrived,
    IncomingStream,
    Listening,
    SendingMember,
)
from tests.multicast.frames import SENDER
from tests.multicast.lan import SETTLED_S, START_AT, Lan


def stream_with(*sequences: int) -> IncomingStream:
    sender = SendingMember(SENDER, START_AT)
    stream = sender.streams["t"] = IncomingStream(sender, Listening("t", 0, True, START_AT, START_AT))
    for sequence in sequences:
        assert stream.put(sequence, Arrived(0, sequence, b"%d" % sequence))
        stream.highest = max(stream.highest, sequence)
    return stream


def taken(stream: IncomingStream) -> list[int]:
    return [arrived.message_sequence for arrived in iter(stream.take, None)]


def test_frames_are_given_on_in_order_up_to_the_gap() -> None:
    stream = stream_with(5, 2, 1)
    assert taken(stream) == [1, 2]
    assert stream.has_gap
    for sequence in (4, 3):
        stream.put(sequence, Arrived(0, sequence, b""))
    assert taken(stream) == [3, 4, 5]
    assert not stream.has_gap
    assert stream.bytes == 0


def test_a_frame_is_kept_once() -> None:
    stream = stream_with(1, 3)
    taken(stream)
    for sequence in (1, 3):
        assert not stream.put(sequence, Arrived(0, sequence, b"again"))
    assert stream.bytes == FRAME_BYTES + 1


@pytest.mark.parametrize(
    ("max_ranges", "missing"), [(64, [(1, 1), (3, 2), (6, 1), (9, 2)]), (2, [(1, 1), (3, 2)])]
)
def test_what_is_missing_is_named_the_oldest_first(max_ranges: int, missing: list[tuple[int, int]]) -> None:
    stream = stream_with(2, 5, 7, 8)
    stream.highest = 10
    assert stream.missing(max_ranges) == missing


@pytest.mark.parametrize(("sequence", "given_up"), [(1, 0), (3, 1), (6, 3), (20, 15)])
def test_what_is_given_up_is_counted_without_what_had_come(sequence: int, given_up: int) -> None:
    stream = stream_with(2, 5, 7, 8)
    assert stream.skip_to(sequence) == given_up
    assert stream.bytes == sum(FRAME_BYTES + 1 for each in (2, 5, 7, 8) if each >= sequence)


def test_pieces_make_a_content_only_in_order_and_of_one_message() -> None:
    stream = stream_with()
    assert [stream.add_piece(index, 3, b"%d" % index, 7) for index in range(3)] == [None, None, b"012"]
    for pieces in (
        [(1, 3, 8), (2, 3, 8)],  # joined in the middle
        [(0, 3, 8), (2, 3, 8)],  # one was given up
        [(0, 2, 8), (1, 2, 9)],  # of another message
        [(0, 3, 8), (1, 2, 8)],  # of another count
    ):
        assert [stream.add_piece(index, count, b"x", of) for index, count, of in pieces] == [None, None]
        assert stream.pieces == b""


def test_what_was_delivered_before_a_topic_was_left_is_not_delivered_again(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    for number in range(6):
        publisher.publish("a", b"%d" % number, qos=number % 2)
    lan.run(SETTLED_S)
    subscriber.member.unsubscribe("a", lan.now)
    lan.drain(subscriber)
    subscriber.subscribe("a")
    for topic, data in lan.tapped:
        if topic == "a":
            subscriber.member.receive_datagram(data, lan.now, "a")
    lan.drain(subscriber)
    publisher.publish("a", b"new", qos=1)
    lan.run(SETTLED_S)
    assert subscriber.payloads == [*(b"%d" % number for number in range(6)), b"new"]


def test_of_the_topics_that_were_left_the_latest_are_remembered() -> None:
    """Who invents topics that a wildcard joins and leaves fills no memory."""
    sender = SendingMember(SENDER, START_AT)
    for number in range(MAX_FLOORS + 10):
        topic = f"a/{number}"
        stream = IncomingStream(sender, Listening(topic, 0, False, START_AT, START_AT))
        stream.delivered_sequence = number
        sender.streams[topic] = stream
        sender.forget(topic)
    assert list(sender.floors.values()) == list(range(10, MAX_FLOORS + 10))
