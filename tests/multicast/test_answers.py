"""A small datagram must not make a large one, nor many, nor keep a member busy."""

from __future__ import annotations

from hedgerow.multicast import frame, limits
from hedgerow.multicast.frame import FrameKind, GroupInterest, Hello, RepairRequest
from tests.multicast.frames import write
from tests.multicast.scene import TOPIC, Target, steps_of


def request(target: Target, *ranges: tuple[int, int], newer_than_ms: int = frame.ANY_AGE) -> bytes:
    repair = RepairRequest(target.member.sender, newer_than_ms, list(ranges))
    return write(FrameKind.REPAIR, frame.pack_repair(repair), topic=TOPIC)


def test_a_request_for_everything_is_answered_in_parts() -> None:
    target = Target()
    for _ in range(1_000):
        target.publish(TOPIC, bytes(1_000), qos=1)
    target.run(1.0)
    target.said()
    target.ask(request(target, *[(1, 0xFFFF)] * frame.MAX_RANGES), source=99)
    assert len(target.said()) <= limits.MAX_REPAIRS + 1


def test_repairs_are_not_sent_faster_than_allowed() -> None:
    target = Target(history_bytes=64 * 1024 * 1024)
    for _ in range(30_000):
        target.publish(TOPIC, b"", qos=1)
    target.run(1.0)
    target.said()
    for step in range(1_000):
        target.ask(request(target, (1 + 30 * step, 30)), source=99)
        target.now += 0.0001
    assert 0 < len(target.said()) < limits.REPAIRS_PER_S * 0.2
    assert target.member.stats.repairs_refused > 0


def test_the_same_request_again_and_again_is_answered_once() -> None:
    target = Target()
    target.publish(TOPIC, b"x", qos=1)
    target.run(1.0)
    target.said()
    for _ in range(100):
        target.ask(request(target, (1, 1)), source=99)
    assert len(target.said()) == 1


def test_requests_for_what_is_gone_are_not_answered_without_end() -> None:
    target = Target(history_s=0.5)
    target.publish(TOPIC, b"x", qos=1)
    target.run(2.0)
    target.said()
    for _ in range(3_000):
        target.ask(request(target, (1, 1)), source=99)
    assert len(target.said()) <= limits.REPAIRS_PER_S * 0.1


def test_searching_a_long_history_takes_no_time() -> None:
    """64 ranges, each of which is all of it, in a history of 50,000 frames that are older than asked for."""
    target = Target()
    for _ in range(50_000):
        target.publish(TOPIC, b"", qos=1)
    target.run(1.0)
    data = request(target, *[(1, 0xFFFF)] * frame.MAX_RANGES, newer_than_ms=1)
    steps = steps_of(lambda: target.ask(data, source=99))
    assert steps < 20_000  # To look at each of them once takes 100,000.


def test_a_question_for_every_last_value_is_answered_no_faster_than_allowed() -> None:
    target = Target()
    for number in range(60):
        target.publish(f"home/{number}", bytes(200_000), retain=True)
        target.run(0.5)
    target.run(40.0)
    target.said()
    data = write(FrameKind.INTEREST, frame.pack_interest(GroupInterest(True, ["#"])), crc=0)
    answered = 0
    for _ in range(20):
        target.ask(data, source=99)
        target.run(0.05)
        answered += sum(map(len, target.said()))
    # All of them, to their groups and to the control group, each time: that would be 480 MB.
    assert 0 < answered < 2 * limits.ANSWERS_PER_S * limits.DATAGRAM_BYTES


def test_questions_are_searched_for_no_more_often_than_allowed() -> None:
    target = Target()
    for number in range(100):
        target.publish(f"home/{number}", b"x", retain=True)
    before = target.member.values.visited
    data = write(FrameKind.INTEREST, frame.pack_interest(GroupInterest(True, ["#"])), crc=0)
    for _ in range(2_000):
        target.ask(data, source=99)
    searched = (target.member.values.visited - before) / 100
    assert 0 < searched < limits.INTERESTS_PER_S


def test_a_forged_address_is_sent_little() -> None:
    target = Target()
    for number in range(60):
        target.member.subscribe(f"some/long/topic/name/{number}", target.now)
    target.run(10.0)
    target.said()
    asked = 0
    for kind, body in (
        (FrameKind.PRESENCE, b""),
        (FrameKind.HELLO, frame.pack_hello(Hello(bytes(8), True, ["#"]))),
    ):
        data = write(kind, body, crc=0)
        asked += len(data)
        target.ask(data, source="victim", unicast=True)
    sent = 0
    for _ in range(100):
        target.run(10.0)
        sent += sum(len(data) for address, data in target.member.take_to_peers() if address == "victim")
        target.member.take_to_groups()
    assert 0 < sent <= 5 * asked


def test_copies_go_only_where_a_cookie_came_back_from() -> None:
    target = Target()
    for number in range(1, 200):
        hello = Hello(number.to_bytes(8, "big"), True, ["#"])
        data = write(FrameKind.HELLO, frame.pack_hello(hello), crc=0)
        target.ask(data, source=f"victim {number}", unicast=True)
    target.said()
    target.publish(TOPIC, b"x")
    assert [address for address, _ in target.member.take_to_peers()] == []


def test_a_cookie_is_good_for_one_address_only() -> None:
    target = Target()
    hello = Hello(bytes(8), True, ["#"])
    target.ask(write(FrameKind.HELLO, frame.pack_hello(hello), crc=0), source="honest", unicast=True)
    ((_, welcome),) = [
        each
        for each in target.member.take_to_peers()
        if frame.parse_header(each[1]).kind == FrameKind.WELCOME
    ]
    cookie = frame.parse_welcome(welcome[frame.HEADER_BYTES :])
    data = write(FrameKind.HELLO, frame.pack_hello(Hello(cookie, True, ["#"])), crc=0)
    target.ask(data, source="victim", unicast=True)
    target.said()
    target.publish(TOPIC, b"x")
    assert target.member.take_to_peers() == []
    target.ask(data, source="honest", unicast=True)
    target.said()
    target.publish(TOPIC, b"x")
    assert {address for address, _ in target.member.take_to_peers()} == {"honest"}
