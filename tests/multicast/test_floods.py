"""Floods, in clear, where anyone may say anything: memory stays flat, and talk beside them is unharmed."""

from __future__ import annotations

import gc
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.multicast import discovery, frame, incoming, limits, member, peers, publisher, subscriber
from hedgerow.multicast.frame import Challenge, FrameKind, Gone, GroupInterest, Hello, RepairRequest
from hedgerow.multicast.groups import topic_crc
from tests.multicast import frames
from tests.multicast.frames import write, write_message
from tests.multicast.scene import TOPIC, Scene, steps_of


def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are reached."""
    for module in (discovery, incoming, limits, member, peers, publisher, subscriber):
        for name, value in {
            "MAX_SENDERS": 64,
            "MAX_STREAMS": 128,
            "MAX_PEERS": 16,
            "MAX_COPIES": 8,
            "MAX_UNPROVEN": 16,
            "MAX_ANSWERS": 32,
        }.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(subscriber, "_DUPLICATES_BYTES", 64 * 1024)


SMALL: dict[str, int] = {
    "payload_bytes": 4_096,
    "history_bytes": 64 * 1024,
    "waiting_bytes": 64 * 1024,
    "retained_bytes": 64 * 1024,
    "groups": 64,
}


def invented_senders() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        sender = number.to_bytes(8, "big")
        yield write(FrameKind.PRESENCE, sender=sender, crc=0), {"source": number}
        yield write_message(Message(TOPIC, b""), sender=sender, flags=frame.QOS_1), {"topic": TOPIC}


def invented_topics() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        names = [f"home/{number}/{part}" for part in range(20)]
        yield write(FrameKind.TOPICS, frame.pack_names(names), crc=0), {"source": 99}
        message = Message(f"home/x{number}", b"x")
        yield write_message(message, flags=frame.TOPIC, message_sequence=number), {"source": 99}


def long_topics() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        topic = f"home/{number:060000}"
        crc = zlib.crc32(topic.encode())  # `topic_crc` remembers what it was asked for.
        message = Message(topic, b"x")
        yield write_message(message, flags=frame.TOPIC, message_sequence=number, crc=crc), {"source": 99}
        yield write(FrameKind.TOPICS, frame.pack_names([topic]), crc=0), {"source": 99}


def invented_streams() -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each with frames that never get their turn."""
    for number in count(1):
        for sequence in (2, 4, 70_000, 70_002, 2**63):
            yield (
                write(
                    FrameKind.DATA,
                    b"",
                    topic=TOPIC,
                    sender=(number % 200).to_bytes(8, "big"),
                    flags=frame.QOS_1,
                    stream_sequence=sequence + 2 * (number // 200),
                    message_sequence=number,
                ),
                {"topic": TOPIC},
            )


def unfinished_fragments() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(0):
        index, sender = number // 50 % 100, number % 50 + 1
        yield (
            write(
                FrameKind.DATA,
                frame.pack_fragment(index, 65_535, b"x"),
                topic=TOPIC,
                sender=sender.to_bytes(8, "big"),
                flags=frame.FRAGMENT,
                stream_sequence=1 + number // 50,
                message_sequence=1 + number // 5_000,
            ),
            {"topic": TOPIC},
        )


def large_fragments() -> Iterator[tuple[bytes, dict[str, Any]]]:
    """In order, with nothing missing but the end."""
    for number in count(0):
        index, sender = number % 40, number // 40 % 60 + 1
        yield (
            write(
                FrameKind.DATA,
                frame.pack_fragment(index, 65_535, bytes(1_300)),
                topic=TOPIC,
                sender=sender.to_bytes(8, "big"),
                flags=frame.FRAGMENT,
                stream_sequence=1 + index + 40 * (number // 2_400),
                message_sequence=1 + number // 2_400,
            ),
            {"topic": TOPIC},
        )


def retained_values() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        message = Message(f"home/{number}", bytes(100), retain=True, id=MessageId(f"o{number}", 0, 1))
        flags = frame.TOPIC | frame.HELD
        yield write_message(message, 1.5e9, flags=flags, message_sequence=number), {"source": 99}


def relayed_ids() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        message = Message(TOPIC, b"", id=MessageId(f"{number:016x}", 0, number))
        yield write_message(message, message_sequence=number), {"topic": TOPIC}


def forged_hellos() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        hello = Hello(number.to_bytes(8, "big"), True, ["#"])
        sender = (number % 50).to_bytes(8, "big")
        data = write(FrameKind.HELLO, frame.pack_hello(hello), sender=sender, crc=0)
        yield data, {"source": 1_000 + number, "unicast": True}


def questions() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        body = frame.pack_interest(GroupInterest(True, ["#", "+/+", f"home/{number}"]))
        yield write(FrameKind.INTEREST, body, crc=0), {"source": 99}
        body = frame.pack_challenge(Challenge(number.to_bytes(8, "big"), bytes(16)))
        yield write(FrameKind.CHALLENGE, body, crc=0), {"source": 99}
        body = frame.pack_repair(RepairRequest(number.to_bytes(8, "big"), frame.ANY_AGE, [(1, 0xFFFF)]))
        yield write(FrameKind.REPAIR, body, topic=TOPIC), {"source": 99}


def ends() -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number in count(1):
        sender = (number % 100).to_bytes(8, "big")
        heartbeat = frame.pack_heartbeat(number)
        yield (
            write(FrameKind.HEARTBEAT, heartbeat, topic=TOPIC, sender=sender, stream_sequence=2 * number),
            {"topic": TOPIC},
        )
        gone = frame.pack_gone(Gone(frame.EVERYONE, number))
        yield (
            write(FrameKind.GONE, gone, topic=TOPIC, sender=sender, stream_sequence=number),
            {"topic": TOPIC},
        )
        yield write(FrameKind.LEAVE, sender=sender, crc=0), {"source": 99}


FLOODS = [
    invented_senders,
    invented_topics,
    long_topics,
    invented_streams,
    unfinished_fragments,
    large_fragments,
    retained_values,
    relayed_ids,
    forged_hellos,
    questions,
    ends,
]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_fills_no_memory(
    flood: Callable[[], Iterator[tuple[bytes, dict[str, Any]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_bounds(monkeypatch)
    scene = Scene(None, **SMALL)
    stream = flood()

    def pour(datagrams: int) -> int:
        for data, how in islice(stream, datagrams):
            scene.attack(data, **how)
            scene.subscriber.member.take_messages()
        scene.subscriber.messages.clear()
        scene.subscriber.held.clear()
        scene.subscriber.missed.clear()
        scene.lan.tapped.clear()
        scene.lan.run(0.5)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        for number in range(5_000):
            topic_crc(f"home/vacuum/{number}")  # It keeps the last ones, too.
        pour(2_000)
        filled = pour(1_000)
        grown = pour(3_000) - filled
    finally:
        tracemalloc.stop()
    assert grown < 60_000, f"{grown} bytes for 3,000 datagrams"


@pytest.mark.parametrize("flood", FLOODS)
def test_talk_beside_a_flood_is_unharmed(
    flood: Callable[[], Iterator[tuple[bytes, dict[str, Any]]]],
) -> None:
    scene = Scene()
    stream = flood()
    for _ in range(10):
        for data, how in islice(stream, 100):
            scene.attack(data, **how)
            scene.attack(data, to=scene.publisher, **how)
        scene.talk()
    scene.lan.run(5.0)
    assert [each for each in scene.subscriber.payloads if each not in (b"", b"x")] == scene.published


# Streams that are all gaps


def stream_frame(sequence: int, body: bytes = b"", sender: bytes = frames.SENDER) -> bytes:
    return write(
        FrameKind.DATA,
        body,
        topic=TOPIC,
        sender=sender,
        flags=frame.QOS_1,
        stream_sequence=sequence,
        message_sequence=sequence,
    )


@pytest.mark.parametrize("body", [b"", bytes(1_000)])
def test_what_waits_behind_a_gap_stays_within_its_bound(body: bytes) -> None:
    scene = Scene(waiting_bytes=100_000)
    for sender in (b"sender-1", b"sender-2", b"sender-3", b"sender-4", b"sender-5", b"sender-6"):
        for sequence in range(2, 302):
            scene.attack(stream_frame(sequence, body, sender), topic=TOPIC)
            held = scene.subscriber.member.subscriber
            streams = [stream for each in held.senders.values() for stream in each.streams.values()]
            assert held.waiting_bytes <= 100_000
            assert sum(len(stream.waiting) for stream in streams) <= 500


def test_messages_that_never_end_stay_within_the_bound_of_all() -> None:
    scene = Scene(waiting_bytes=100_000)
    held = scene.subscriber.member.subscriber
    for data, how in islice(large_fragments(), 2_400):
        scene.attack(data, **how)
        assert held.waiting_bytes <= 100_000 + 1_300
    assert scene.subscriber.member.stats.fragments_discarded > 0
    scene.published.append(bytes(20_000))
    scene.publisher.publish(TOPIC, bytes(20_000), qos=1)  # One that ends still finds room.
    assert scene.is_unharmed()


def test_a_stream_that_leaps_and_leaves() -> None:
    """What waited is far behind the new end, and must not be waited for."""
    scene = Scene()
    for sequence in (2, 100_000, 2**61):
        scene.attack(stream_frame(sequence), topic=TOPIC)
    held = scene.subscriber.member.subscriber
    (stream,) = held.senders[frames.SENDER].streams.values()
    assert list(stream.waiting) == [2**61]
    scene.attack(write(FrameKind.LEAVE, sender=frames.SENDER, crc=0), source=99)
    assert not stream.has_gap
    assert held.waiting_bytes == 0
    scene.subscriber.messages = [each for each in scene.subscriber.messages if each.payload]
    assert scene.is_unharmed()


def test_thousands_of_gaps_are_given_up_at_once() -> None:
    """One after the other, by recursion or by searching all of them each time, they would take a minute."""
    scene = Scene()
    member = scene.subscriber.member
    for sequence in range(2, 20_000, 2):
        member.receive_datagram(stream_frame(sequence), scene.lan.now, TOPIC)
    steps = steps_of(
        lambda: member.receive_datagram(
            write(FrameKind.LEAVE, sender=frames.SENDER, crc=0), scene.lan.now, None, 99
        )
    )
    assert len(member.take_messages()) == 9_999
    assert steps < 9_999 * 200
