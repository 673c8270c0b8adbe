"""Sockets in an epoll of ours: bytes in and out, slow readers, every way to end, and when the loop rests."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hedgerow.broker.broker import Broker
from hedgerow.node.clock import SteadyClock
from hedgerow.node.link import WRITE_HIGH_WATER, WRITE_LOW_WATER, Link
from hedgerow.node.listeners import Listeners
from hedgerow.node.poller import (
    BUSY_PER_S,
    FEW,
    LARGE_READ,
    SMALL_READ,
    WINDOW_S,
    PolledSocket,
    Poller,
    ReadPace,
)
from tests.node.peers import connected, part_of, port_of, running
from tests.waiting import until

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class NotedLink(Link):
    """Notes what its transport tells it."""

    def __init__(self, *, fails: bool = False) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, "")
        self.taken: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.congestion: list[bool] = []
        self.fails = fails

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def take(self, data: bytes, now: float) -> None:
        if self.fails:
            raise RuntimeError("a mistake of ours")
        self.taken.append(data)

    def pause_writing(self) -> None:
        self.congestion.append(True)

    def resume_writing(self) -> None:
        self.congestion.append(False)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Other(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost: list[Exception | None] = []

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Pair:
    """A polled socket, its link, and the other end, which does not block."""

    def __init__(self, poller: Poller, stack: ExitStack, *, fails: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.far = stack.enter_context(socket.create_connection(server.getsockname()))
            near, _ = server.accept()
        near.setblocking(False)
        self.far.setblocking(False)
        self.link = NotedLink(fails=fails)
        poller.add(near, self.link)
        self.near: PolledSocket = poller.sockets[near.fileno()]

    def reset(self) -> None:
        self.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.far.close()

    def drain(self) -> int:
        """Read what has arrived at the other end; so many bytes."""
        size = 0
        try:
            while data := self.far.recv(1 << 20):
                size += len(data)
        except BlockingIOError:
            pass
        return size


class FullEpoll:
    """Of a system that watches only so many more."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll
        self.room = 0

    def register(self, descriptor: int, events: int) -> None:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1
        self._epoll.register(descriptor, events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


class Flushes:
    """What a poller asks of its node."""

    def __init__(self) -> None:
        self.count = 0
        self.clock = SteadyClock()
        self.broker = Broker("node", 1, self.clock())

    def flush(self) -> None:
        self.count += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def flushes() -> Flushes:
    return Flushes()


@pytest.fixture
async def poller(flushes: Flushes) -> AsyncIterator[Poller]:
    node: Any = flushes
    made = Poller(node)
    yield made
    for each in list(made.sockets.values()):
        each.abort()
    await asyncio.sleep(0)
    made.close()
    made.close()


async def test_what_comes_is_given_to_the_link(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    pair.far.send(b"one")
    await until(lambda: bool(pair.link.taken), "the bytes")
    pair.far.send(b"two")
    await until(lambda: len(pair.link.taken) > 1, "more bytes")
    assert pair.link.taken == [b"one", b"two"]
    pair.far.close()
    await until(lambda: pair.link.lost == [None], "the end")
    assert pair.near.is_closing()
    assert not poller.sockets


async def test_much_is_read_in_few_steps(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    sent = os.urandom(3 * LARGE_READ)
    left = sent
    while left:
        try:
            left = left[pair.far.send(left) :]
        except BlockingIOError:
            await asyncio.sleep(0)
    await until(lambda: sum(map(len, pair.link.taken)) == len(sent), "all of it")
    assert b"".join(pair.link.taken) == sent
    assert max(map(len, pair.link.taken)) > SMALL_READ


async def test_a_paused_socket_is_not_read_and_its_end_does_not_wake_the_loop(
    poller: Poller, flushes: Flushes, stack: ExitStack
) -> None:
    pair = Pair(poller, stack)
    pair.near.pause_reading()
    pair.far.send(b"later")
    pair.reset()
    await asyncio.sleep(0.05)  # in which a descriptor that stays ready would turn the loop thousands of times
    assert flushes.count == 0
    assert not pair.link.taken
    pair.near.resume_reading()
    await until(lambda: len(pair.link.lost) == 1, "the reset to be seen")
    assert isinstance(pair.link.lost[0], ConnectionError)


async def test_a_slow_reader_is_told_of_and_gets_everything(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    chunk, written = bytes(WRITE_LOW_WATER), 0
    while not pair.link.congestion:
        pair.near.write(chunk)
        written += len(chunk)
    assert pair.near.get_write_buffer_size() > WRITE_HIGH_WATER
    pair.near.write_eof()  # after all of it
    read = 0

    def is_over() -> bool:
        nonlocal read
        read += pair.drain()
        return read == written

    await until(is_over, "everything")
    assert pair.link.congestion == [True, False]
    assert pair.near.get_write_buffer_size() == 0
    await until(lambda: _is_at_end(pair.far), "the end of it")
    pair.far.send(b"still heard")
    await until(lambda: pair.link.taken == [b"still heard"], "what the other end says afterwards")


async def test_close_waits_until_all_is_sent(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    chunk, written = bytes(WRITE_LOW_WATER), 0
    while not pair.link.congestion:
        pair.near.write(chunk)
        written += len(chunk)
    pair.near.close()
    pair.near.write(b"too late")
    pair.far.send(b"not heard")
    await asyncio.sleep(0)
    assert not pair.link.lost
    read = 0

    def is_over() -> bool:
        nonlocal read
        try:
            read += pair.drain()
        except ConnectionResetError:  # for what was sent and not heard
            return True
        return bool(pair.link.lost)

    await until(is_over, "the end")
    await until(lambda: bool(pair.link.lost), "the link to be told")
    assert read >= written - 2 * WRITE_HIGH_WATER
    assert pair.link.lost == [None]
    assert not pair.link.taken


async def test_a_write_to_a_connection_that_was_reset_ends_it(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    pair.near.pause_reading()
    pair.reset()
    while not pair.near.is_closing():
        pair.near.write(b"anybody there?")
    assert not pair.link.lost  # A write calls nobody back with that.
    await until(lambda: len(pair.link.lost) == 1, "the link to be told")
    assert isinstance(pair.link.lost[0], ConnectionError)


async def test_a_reader_that_is_reset_while_it_is_slow_ends(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    pair.near.pause_reading()
    while not pair.link.congestion:
        pair.near.write(bytes(WRITE_LOW_WATER))
    pair.reset()
    await until(lambda: len(pair.link.lost) == 1, "the link to be told")
    assert isinstance(pair.link.lost[0], ConnectionError)
    assert not poller.sockets


async def test_a_mistake_in_one_socket_ends_it_and_serves_the_others(
    poller: Poller, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky, lucky = Pair(poller, stack, fails=True), Pair(poller, stack)
    unlucky.far.send(b"1")
    await until(lambda: unlucky.link.lost == [None], "the end of one")
    lucky.far.send(b"2")
    await until(lambda: lucky.link.taken == [b"2"], "the other to be served")
    assert "a mistake of ours" in caplog.text


async def test_a_socket_that_the_system_does_not_watch_ends_and_costs_no_other_its_descriptor(
    poller: Poller, stack: ExitStack
) -> None:
    full: Any = FullEpoll(poller.epoll)
    poller.epoll = full
    with pytest.raises(OSError, match="No space"):
        Pair(poller, stack)
    assert not poller.sockets
    full.room = 1
    other = Pair(poller, stack)
    other.near.pause_reading()
    with pytest.raises(OSError, match="No space"):
        other.near.resume_reading()
    other.near.abort()
    full.room = 1
    last = Pair(poller, stack)
    await until(lambda: other.link.lost == [None], "the end of one")
    last.far.send(b"1")
    await until(lambda: last.link.taken == [b"1"], "the other to be served")


async def test_a_connection_that_the_system_does_not_watch_takes_no_place() -> None:
    async with running() as server:
        poller = part_of(server, Listeners)._poller
        assert poller is not None
        poller.epoll = full = FullEpoll(poller.epoll)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not server.sockets.open, "its place to be free")
        assert not list(server.broker.connections)
        full.room = 1
        async with connected(port_of(server)):
            assert server.sockets.open == 1


async def test_a_protocol_may_take_the_place_of_the_link(poller: Poller, stack: ExitStack) -> None:
    pair = Pair(poller, stack)
    other = Other()
    pair.near.set_protocol(other)
    pair.far.send(b"discarded")
    pair.far.close()
    await until(lambda: other.lost == [None], "the end")
    assert not pair.link.taken
    assert not pair.link.lost


async def test_clients_of_the_plain_port_are_polled() -> None:
    async with running() as server, connected(port_of(server), "client") as client:
        for _ in range(3):
            client.send(b"\xc0\x00")
            assert type(await client.receive()).__name__ == "Pingresp"
        (connection,) = server.broker.connections
        assert isinstance(connection.link.transport, PolledSocket)


# Rests


def _rests(sockets: int, reads_per_s: float, turn_reads: int, seconds: float = 0.1) -> bool:
    """Does a loop rest in the end, that reads so much from so many sockets in turns of such a size?"""
    pace, now, read = ReadPace(), 1_000.0, 0
    is_resting = False
    seen: dict[int, int] = {}
    while now < 1_000.0 + seconds:
        now += turn_reads / reads_per_s
        for _ in range(turn_reads):
            read += 1
            if seen.get(read % sockets) != pace.window:
                seen[read % sockets] = pace.window
                pace.sockets += 1
        is_resting = pace.is_to_rest(now, turn_reads)
    return is_resting


def test_a_loop_that_is_woken_for_every_few_of_many_rests() -> None:
    assert _rests(sockets=500, reads_per_s=2 * BUSY_PER_S, turn_reads=2)


def test_a_loop_with_much_to_read_at_once_does_not_rest() -> None:
    assert not _rests(sockets=500, reads_per_s=2 * BUSY_PER_S, turn_reads=FEW)


def test_a_loop_with_little_to_read_does_not_rest() -> None:
    assert not _rests(sockets=500, reads_per_s=BUSY_PER_S / 2, turn_reads=2)


def test_nobody_rests_while_few_wait_for_answers() -> None:
    assert not _rests(sockets=20, reads_per_s=2 * BUSY_PER_S, turn_reads=2)


def test_the_first_turn_after_a_long_silence_is_followed_by_no_rest() -> None:
    pace = ReadPace()
    assert not pace.is_to_rest(1_000.0, 1)
    assert not pace.is_to_rest(1_000.0 + WINDOW_S, 1)


def _is_at_end(far: socket.socket) -> bool:
    try:
        return far.recv(1) == b""
    except BlockingIOError:
        return False
