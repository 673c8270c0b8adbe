"""A load over something that loses messages or doubles them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.end_to_end import QOS_0
from hedgerow_workshop.bench.loader import Publisher
from hedgerow_workshop.bench.lossy import LossyLoad, LossySubscriber

PACKET = QOS_0.delivery()
CHUNK = 10


@contextmanager
def lossy_load(forward: Callable[[int], int]) -> Iterator[LossyLoad]:
    """A load through a stand-in for brokers that passes on the packet with each number so many times."""
    (publisher, source), (sink, subscriber) = socket.socketpair(), socket.socketpair()

    def serve() -> None:
        number, data = 0, b""
        while received := source.recv(65_536):
            data += received
            while len(data) >= len(PACKET):
                sink.sendall(data[: len(PACKET)] * forward(number))
                number, data = number + 1, data[len(PACKET) :]

    serving = threading.Thread(target=serve)
    serving.start()
    with source, sink:
        load = LossyLoad(
            [Publisher(publisher, [PACKET] * CHUNK, CHUNK)], [LossySubscriber(subscriber, PACKET)], 4 * CHUNK
        )
        load.lost_s = 0.1
        try:
            yield load
        finally:
            publisher.shutdown(socket.SHUT_RDWR)
            serving.join()
            load.close()


def test_what_arrives_is_what_counts() -> None:
    with lossy_load(lambda number: 0 if number % 10 == 0 else 1) as load:
        measured = load.run(seconds=20, messages=1_000)
        assert (load.sent, load.lost, measured.messages) == (1_000, 100, 900)
        assert load.run(seconds=20, messages=100).messages == 90
        assert (load.sent, load.lost) == (1_100, 110)


def test_waiting_for_the_lost_is_not_measured() -> None:
    with lossy_load(lambda number: 0 if number >= 20 else 1) as load:
        assert load.run(seconds=20, messages=40).seconds < load.lost_s


def test_nothing_at_all_is_an_error() -> None:
    with (
        lossy_load(lambda number: 0) as load,
        pytest.raises(BenchError, match="none of 40 messages arrived"),
    ):
        load.run(seconds=20, messages=40)


def test_more_than_was_published_is_an_error() -> None:
    """The first packet comes a hundred times, in one piece: the surplus is there when the run ends."""
    with (
        lossy_load(lambda number: 100 if number == 0 else 1) as load,
        pytest.raises(BenchError, match="beyond the 10 messages published"),
    ):
        load.run(seconds=20, messages=CHUNK)
