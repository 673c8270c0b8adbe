"""One tunnel as a stream: the window, acknowledgements, congestion, gaps, and an end that is told."""

from __future__ import annotations

import pytest

from hedgerow.federation.tunnel import frames
from hedgerow.federation.tunnel.frames import TunnelFrame, TunnelFrameKind
from hedgerow.federation.tunnel.tunnel import (
    ACK_FRAMES,
    ACK_S,
    HIGH_WATER_BYTES,
    LOW_WATER_BYTES,
    WINDOW_BYTES,
    WINDOW_FRAMES,
    Tunnel,
)
from hedgerow.federation.tunnel.tunnels import Drained, TunnelReceived
from tests.federation.tunnel.carrier import DIALLER, FEDERATOR, KEY, Carrier


def under_way(carrier: Carrier, receiver: str) -> list[TunnelFrame]:
    carrier.collect()
    return [frames.decode(payload) for payload in carrier.queues[receiver]]


def test_what_is_written_comes_out_at_the_other_end_in_both_directions() -> None:
    carrier = Carrier(KEY)
    near, far = carrier.dial()
    near.write(b"connect ")
    near.write(bytearray(b"and "))
    near.write(memoryview(b"publish"))
    far.write(b"acknowledged")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"connect and publish"
    assert carrier.arrived[DIALLER, 7] == b"acknowledged"
    carrier.advance(ACK_S)
    assert near.unacknowledged_bytes == far.unacknowledged_bytes == 0


def test_writes_are_gathered_in_one_frame() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    for _ in range(100):
        near.write(b"0123456789")
    assert [len(frame.data) for frame in under_way(carrier, FEDERATOR)] == [1000]


def test_what_is_written_later_to_a_buffer_does_not_change_what_was_sent() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    buffer = bytearray(b"first")
    near.write(buffer)
    buffer[:] = b"later"
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"first"


def test_a_large_write_is_cut_into_frames_that_the_broker_takes() -> None:
    carrier = Carrier(KEY, max_frame_bytes=2_000)
    near, _ = carrier.dial()
    data = bytes(range(256)) * 40
    near.write(data[:3])
    near.write(data[3:])
    carrier.collect()
    sizes = [len(payload) for payload in carrier.queues[FEDERATOR]]
    assert sizes[:-1] == [2_000] * (len(sizes) - 1)
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == data


def test_no_more_than_the_window_is_under_way() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    near.write(bytes(3 * WINDOW_BYTES))
    sent = under_way(carrier, FEDERATOR)
    assert [len(frame.data) for frame in sent] == [frames.MAX_DATA_BYTES] * 8
    assert near.unacknowledged_bytes == 3 * WINDOW_BYTES
    carrier.settle()
    carrier.advance(ACK_S)
    assert len(carrier.arrived[FEDERATOR, 7]) == 3 * WINDOW_BYTES
    assert near.unacknowledged_bytes == 0


def test_small_frames_are_counted_too_and_what_waits_leaves_in_larger_ones() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    for _ in range(5 * WINDOW_FRAMES):
        near.write(b"x")
        carrier.collect()
    assert [len(frame.data) for frame in under_way(carrier, FEDERATOR)] == [1] * WINDOW_FRAMES
    for _ in range(ACK_FRAMES):
        carrier.carry(FEDERATOR)
    assert under_way(carrier, DIALLER)[0].acknowledged == ACK_FRAMES
    carrier.carry(DIALLER)
    assert len(under_way(carrier, FEDERATOR)[-1].data) == 4 * WINDOW_FRAMES


def test_the_rest_of_a_window_is_not_filled_with_a_small_frame() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    near.write(b"odd")
    near.write(bytes(2 * WINDOW_BYTES))
    near.write(b"")
    carrier.collect()
    assert {len(frame.data) for frame in under_way(carrier, FEDERATOR)} == {frames.MAX_DATA_BYTES}


def test_an_acknowledgement_waits_a_moment_for_data_to_ride_on() -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    near.write(b"publish")
    carrier.settle()
    assert near.unacknowledged_bytes == 7
    far.write(b"puback")
    assert carrier.kinds(DIALLER) == ["DATA"]
    carrier.settle()
    assert near.unacknowledged_bytes == 0
    assert carrier.federator.deadline == float("inf")


def test_an_acknowledgement_goes_alone_where_nothing_else_goes() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    near.write(b"publish")
    carrier.settle()
    assert carrier.kinds(DIALLER) == []
    assert carrier.federator.deadline == carrier.now + ACK_S
    carrier.federator.handle_timer(carrier.now + ACK_S)
    assert carrier.kinds(DIALLER) == ["ACK"]
    carrier.settle()
    assert near.unacknowledged_bytes == 0
    assert carrier.federator.deadline == carrier.dialler.deadline == float("inf")
    assert not carrier.federator.take_frames()


def test_many_bytes_are_acknowledged_at_once() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    near.write(bytes(WINDOW_BYTES))
    for _ in range(2):
        carrier.carry(FEDERATOR)
    assert carrier.kinds(DIALLER) == ["ACK"]


def test_congestion_begins_high_and_ends_low() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    near.write(bytes(HIGH_WATER_BYTES))
    assert not near.is_congested
    near.write(b"x")
    assert near.is_congested
    seen = set()
    while near.is_congested:
        seen.add(near.unacknowledged_bytes)
        carrier.carry(FEDERATOR)
        carrier.carry(DIALLER)
    assert min(seen) >= LOW_WATER_BYTES > near.unacknowledged_bytes
    assert Drained(near) in carrier.events[DIALLER]
    near.write(bytes(LOW_WATER_BYTES))
    assert not near.is_congested


@pytest.mark.parametrize("key", [None, KEY])
def test_a_lost_frame_closes_both_ends_and_nothing_behind_it_is_given_on(key: bytes | None) -> None:
    carrier = Carrier(key)
    near, far = carrier.dial()
    for data in (b"one ", b"two ", b"three ", b"four "):
        near.write(data)
        carrier.collect()
    carrier.carry(FEDERATOR)
    carrier.lose(FEDERATOR)
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"one "
    assert carrier.closed(FEDERATOR) == carrier.closed(DIALLER) == ["4 bytes were lost on their way"]
    assert near.closed_because == far.closed_because == "4 bytes were lost on their way"
    near.write(b"five")
    assert not carrier.dialler.take_frames()


def test_a_lost_last_frame_is_noticed_by_the_next_acknowledgement() -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    near.write(b"lost")
    carrier.lose(FEDERATOR)
    far.write(b"ping")
    carrier.advance(ACK_S)
    assert carrier.closed(FEDERATOR) == carrier.closed(DIALLER) == ["4 bytes were lost on their way"]


def test_a_lost_acknowledgement_is_made_good_by_the_next() -> None:
    carrier = Carrier()
    near, _ = carrier.dial()
    for data in (b"one", b"two"):
        near.write(data)
        carrier.settle()
        carrier.federator.handle_timer(carrier.now + ACK_S)
        if data == b"one":
            assert carrier.lose(DIALLER)
        carrier.settle()
    assert near.unacknowledged_bytes == 0
    assert carrier.closed(DIALLER) == []


def test_what_was_written_before_close_still_arrives() -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    near.write(b"disconnect")
    near.close("done")
    near.close("again")
    near.write(b"too late")
    assert carrier.kinds(FEDERATOR) == ["DATA", "CLOSE"]
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"disconnect"
    assert carrier.closed(FEDERATOR) == ["done"]
    assert carrier.closed(DIALLER) == []  # It was its own wish.
    assert not carrier.dialler.take_frames()
    assert far.closed_because == "done"


def test_a_reader_that_pauses_stops_the_writer_within_the_window() -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    data = bytes(range(256)) * 2_048
    far.pause_reading()
    near.write(data)
    carrier.advance(1)
    assert not any(isinstance(event, TunnelReceived) for event in carrier.events[FEDERATOR])
    assert near.unacknowledged_bytes == len(data)
    first = far.resume_reading()
    assert first == data[:WINDOW_BYTES]
    carrier.advance(1)
    assert first + carrier.arrived[FEDERATOR, 7] == data
    assert near.unacknowledged_bytes == 0
    assert far.resume_reading() == b""


@pytest.mark.parametrize("size", [1, frames.MAX_DATA_BYTES])
def test_a_writer_that_ignores_the_window_is_closed_by_a_reader_that_pauses(size: int) -> None:
    carrier = Carrier()
    _, far = carrier.dial()
    far.pause_reading()
    for sequence in range(0, (WINDOW_FRAMES + 1) * size, size):
        forged = TunnelFrame(TunnelFrameKind.DATA, False, far.number, DIALLER, sequence, 0, bytes(size))
        carrier.federator.receive(frames.encode(forged, frames.Seal(None)), carrier.now)
    carrier.collect()
    assert carrier.closed(FEDERATOR) == ["the other end sends more than the window"]
    assert len(far.resume_reading()) <= WINDOW_BYTES + size


def test_an_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    forged = TunnelFrame(TunnelFrameKind.ACK, False, far.number, DIALLER, 0, 1)
    carrier.federator.receive(frames.encode(forged, frames.Seal(None)), carrier.now)
    assert carrier.federator.ignored == {"acknowledgement": 1}
    near.write(b"goes on")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"goes on"


def test_frames_that_come_twice_count_once() -> None:
    carrier = Carrier(KEY)
    near, far = carrier.dial()
    near.write(b"publish")
    far.write(b"puback")
    carrier.advance(1)
    for receiver, payload in list(carrier.carried):
        carrier.nodes[receiver].receive(payload, carrier.now)
    near.write(b" more")
    carrier.advance(1)
    assert carrier.arrived[FEDERATOR, 7] == b"publish more"
    assert carrier.arrived[DIALLER, 7] == b"puback"
    assert carrier.closed(DIALLER) == carrier.closed(FEDERATOR) == []
    assert carrier.federator.ignored["duplicate"] > 0


def unconnected() -> Tunnel:
    return Carrier().dialler.open(1, 0.0)


def test_before_it_is_open_what_is_written_waits() -> None:
    tunnel = unconnected()
    tunnel.write(b"early")
    assert tunnel.take_frames(frames.MAX_FRAME_BYTES) == []
    assert tunnel.unacknowledged_bytes == 5
    assert tunnel.peer == ""
