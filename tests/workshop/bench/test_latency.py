"""The latency driver measures every message that it sent, and ends when one does not come."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.latency import LatencyPair
from hedgerow_workshop.bench.peers import Child

TOPIC = "bench/latency"


def pair_of(child: Child) -> LatencyPair:
    dialect = child.dialect
    subscriber = dialect.connect(child.port, "subscriber")
    dialect.subscribe(subscriber, [TOPIC])
    publisher = dialect.connect(child.port, "publisher")
    return LatencyPair(publisher, subscriber, dialect.publish(TOPIC), dialect.delivery(TOPIC), dialect.stray)


@pytest.fixture
def pair(mosquitto_child: Child) -> Iterator[LatencyPair]:
    pair = pair_of(mosquitto_child)
    with pair.publisher, pair.subscriber:
        yield pair


def test_one_at_a_time(pair: LatencyPair) -> None:
    latencies = pair.one_at_a_time(0.2)
    assert len(latencies) > 10
    assert min(latencies) > 0
    assert sum(latencies) <= 5e9


def test_paced_sends_as_many_as_the_rate_says(pair: LatencyPair) -> None:
    latencies = pair.paced(0.2, rate=1_000)
    assert len(latencies) == 200
    assert min(latencies) > 0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """The publisher's two ends and the subscriber's two."""
    sockets = (*socket.socketpair(), *socket.socketpair())
    yield sockets
    for each in sockets:
        each.close()


def test_nothing_arrives(
    ends: tuple[socket.socket, socket.socket, socket.socket, socket.socket],
) -> None:
    pair = LatencyPair(ends[0], ends[2], b"packet", b"delivery", b"", stall_s=0.2)
    with pytest.raises(BenchError, match="did not arrive within 0.2 s"):
        pair.one_at_a_time(20)
    with pytest.raises(BenchError, match="stalled: 50 messages under way"):
        pair.paced(0.05, rate=1_000)


def test_something_else_arrives(
    ends: tuple[socket.socket, socket.socket, socket.socket, socket.socket],
) -> None:
    pair = LatencyPair(ends[0], ends[2], b"packet", b"delivery", b"")
    ends[3].sendall(b"DELIVERY")
    with pytest.raises(BenchError, match="something other than what was published: b'DELIVERY'"):
        pair.one_at_a_time(20)


def test_parts_and_strays(ends: tuple[socket.socket, socket.socket, socket.socket, socket.socket]) -> None:
    """A delivery in two parts, one behind a stray, and two at once, are four deliveries."""
    pair = LatencyPair(ends[0], ends[2], b"packet", b"delivery", b"PING\r\n")
    counts = []
    for data in (b"deli", b"very", b"PING\r\ndelivery", b"deliverydelivery"):
        ends[3].sendall(data)
        counts.append(pair.receive())
    assert counts == [0, 1, 1, 2]


def test_the_broker_closes(ends: tuple[socket.socket, socket.socket, socket.socket, socket.socket]) -> None:
    pair = LatencyPair(ends[0], ends[2], b"packet", b"delivery", b"")
    ends[3].close()
    with pytest.raises(BenchError, match="closed a connection"):
        pair.one_at_a_time(20)
