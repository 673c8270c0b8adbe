"""Frames that are not genuine are dropped and counted, and the others notice nothing."""

from __future__ import annotations

import pytest

from hedgerow.message import Message
from hedgerow.multicast import frame
from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.groups import CONTROL_TOPIC, topic_crc
from tests.multicast import frames
from tests.multicast.frames import write, write_message
from tests.multicast.lan import Lan
from tests.multicast.scene import KEY, OTHER_KEY, TOPIC, Scene, refused, ring


def recorded(scene: Scene) -> list[tuple[str | None, bytes]]:
    return [(None if topic == CONTROL_TOPIC else topic, data) for topic, data in scene.lan.tapped]


@pytest.mark.parametrize("key", [None, KEY], ids=["in clear", "sealed"])
def test_truncated_frames(key: str | None) -> None:
    scene = Scene(key)
    for topic, data in recorded(scene)[:30]:
        for size in range(len(data)):
            scene.attack(data[:size], topic=topic, source=99)
    stats = scene.subscriber.member.stats
    assert stats.malformed > 500
    if key:
        assert stats.forged > 500
        assert scene.is_unharmed()


def test_every_flipped_bit_of_every_sealed_frame_is_noticed() -> None:
    scene = Scene(KEY)
    stats = scene.subscriber.member.stats
    for topic, data in [
        each for each in recorded(scene) if frame.parse_header(each[1]).kind == FrameKind.DATA
    ]:
        for position in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[position // 8] ^= 1 << position % 8
            before = refused(stats)
            scene.attack(bytes(flipped), topic=topic, source=99)
            assert refused(stats) == before + 1, f"bit {position}"
    assert scene.is_unharmed()


@pytest.mark.parametrize("key", [None, KEY], ids=["in clear", "sealed"])
def test_oversized_datagrams(key: str | None) -> None:
    scene = Scene(key, payload_bytes=2_000)
    sealer = ring().sealer(frames.SENDER)
    for kind in FrameKind:
        data = write(kind, b"\0\1a" * 20_000, topic=TOPIC, message_sequence=1)
        if key:
            data = sealer.seal(data[:32], data[32:])
        scene.attack(data, topic=TOPIC, source=99)
        scene.attack(data, source=99)
    assert scene.is_unharmed()
    if key is None:
        assert scene.subscriber.member.stats.too_large > 0


def test_a_message_larger_than_the_limit_in_pieces_is_dropped_before_it_is_whole() -> None:
    scene = Scene(payload_bytes=2_000)
    for index in range(200):
        body = frame.pack_fragment(index, 65_535, bytes(1_300))
        scene.attack(
            write(
                FrameKind.DATA,
                body,
                topic=TOPIC,
                flags=frame.FRAGMENT,
                stream_sequence=1 + index,
                message_sequence=1,
            ),
            topic=TOPIC,
        )
    assert scene.subscriber.member.stats.too_large > 0
    assert scene.subscriber.member.subscriber.waiting_bytes < 100_000
    assert scene.is_unharmed()


@pytest.mark.parametrize(
    ("counted", "keys"),
    [("forged", OTHER_KEY), ("forged", f"2 {'ab' * 32}"), ("clear", None)],
    ids=["another key", "an unknown key id", "in clear"],
)
def test_forged_frames(counted: str, keys: str | None) -> None:
    scene = Scene(KEY)
    stats = scene.subscriber.member.stats
    sealer = ring(keys).sealer(frames.SENDER) if keys else None
    for number in range(1, 100):
        for flags, topic in ((0, TOPIC), (frame.TOPIC, None)):
            clear = write_message(Message(TOPIC, b"forged"), flags=flags, message_sequence=number)
            data = sealer.seal(clear[:32], clear[32:]) if sealer else clear
            scene.attack(data, topic=topic, source=None if topic else 99)
    assert getattr(stats, counted) == 198
    assert scene.is_unharmed()


def test_in_the_name_of_another_member_with_another_key() -> None:
    scene = Scene(KEY)
    name = scene.publisher.member.sender
    sealer = ring(OTHER_KEY).sealer(name)
    for kind in FrameKind:
        clear = write(kind, b"x" * 24, topic=TOPIC, sender=name, stream_sequence=99, message_sequence=99)
        scene.attack(sealer.seal(clear[:32], clear[32:]), topic=TOPIC)
    assert scene.subscriber.member.stats.forged == len(FrameKind)
    assert scene.is_unharmed()


def test_a_topic_that_is_not_the_one_of_the_crc() -> None:
    scene = Scene()
    message = Message(TOPIC, b"x")
    for crc in (topic_crc("home/mop"), 0):
        data = write_message(message, flags=frame.TOPIC, message_sequence=1, crc=crc)
        scene.attack(data, source=99)
    assert scene.subscriber.member.stats.malformed == 2
    assert scene.is_unharmed()


def test_sealed_frames_to_a_member_without_a_key() -> None:
    scene = Scene()
    clear = write_message(Message(TOPIC, b"sealed"), message_sequence=1)
    scene.attack(ring().sealer(frames.SENDER).seal(clear[:32], clear[32:]), topic=TOPIC)
    assert scene.subscriber.member.stats.sealed == 1
    assert scene.is_unharmed()


# Replays


def test_replays_to_those_who_heard_it() -> None:
    scene = Scene(KEY)
    stats = scene.subscriber.member.stats
    before, tape = refused(stats), recorded(scene)
    for topic, data in tape * 3:
        if frame.parse_header(data).sender != scene.subscriber.member.sender:
            scene.attack(data, topic=topic, source=99 if topic is None else None)
            scene.attack(data, source=99, unicast=True)
    assert stats.replayed > 0
    assert refused(stats) > before + len(tape)
    assert scene.is_unharmed()


def test_a_recorded_life_played_to_a_newcomer() -> None:
    """Everyone who wrote it is gone: the seals are good, and nobody can prove to be alive."""
    scene = Scene(KEY)
    scene.publisher.publish(TOPIC, b"kept", qos=1, retain=True)
    scene.lan.run(1.0)
    tape = recorded(scene)
    later = Lan(seed=1)
    newcomer = later.host(ring())
    newcomer.subscribe("#", TOPIC)
    for topic, data in tape * 2:
        newcomer.member.receive_datagram(data, later.now, topic, 99 if topic is None else None)
        later.drain(newcomer)
        later.run(0.05)
    later.run(5.0)
    assert newcomer.messages == newcomer.held == []
    assert newcomer.member.stats.unproven > 0
    assert not newcomer.member.proofs.unproven, "and what waited for a proof is forgotten"
    friend = later.host(ring())
    friend.publish(TOPIC, b"alive", qos=1)
    later.run(1.0)
    assert newcomer.payloads == [b"alive"]


def test_frames_of_a_living_sender_from_before_a_newcomer_came() -> None:
    scene = Scene(KEY)
    scene.lan.run(60.0)
    tape = recorded(scene)
    newcomer = scene.host()
    newcomer.subscribe(TOPIC)
    for topic, data in tape:
        newcomer.member.receive_datagram(data, scene.lan.now, topic, 99 if topic is None else None)
        scene.lan.drain(newcomer)
        scene.lan.run(0.01)
    scene.lan.run(2.0)
    assert newcomer.payloads == []
    assert scene.is_unharmed()
