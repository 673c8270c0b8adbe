"""The transparent gateway: bytes pass unread both ways, slow readers hold the other side back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from hedgerow.mobility.io.relay import MAX_RELAYED, Relay
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from tests.node.peers import connected, port_of, running
from tests.waiting import PATIENCE_S, until

Target = tuple[str, int] | None


class FarBroker:
    """Whoever listens behind the relay: its connections, as they come."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.target = self._server.sockets[0].getsockname()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted.put_nowait((reader, writer))

    async def next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.accepted.get()

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()


@asynccontextmanager
async def far_broker() -> AsyncIterator[FarBroker]:
    far = FarBroker()
    await far.start()
    try:
        yield far
    finally:
        await far.stop()


@asynccontextmanager
async def relaying(
    server: Server, target: Callable[[], Target], max_relayed: int = MAX_RELAYED
) -> AsyncIterator[Relay]:
    relay = Relay(server, Address("127.0.0.1", 0), target, max_relayed)
    relay.start()
    try:
        yield relay
    finally:
        await relay.stop()


async def connect(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = relay.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_a_client_speaks_with_the_broker_behind_it() -> None:
    async with (
        running(id="fixed") as fixed,
        running(id="mobile") as mobile,
        relaying(mobile, lambda: ("localhost", port_of(fixed))) as relay,
    ):
        async with connected(int(relay.address.rpartition(":")[2]), "guest"):
            assert "guest" in fixed.broker.sessions
            assert "guest" not in mobile.broker.sessions
        await until(lambda: not relay.passed, "the passage to end")
        await until(lambda: not fixed.broker.connections, "the client's end to be seen")


async def test_what_is_said_early_is_said_to_the_broker_when_it_answers() -> None:
    """A client does not wait with its CONNECT, and may have closed its side before there is anyone."""
    async with running() as server, far_broker() as far, relaying(server, lambda: far.target) as relay:
        reader, writer = await connect(relay)
        writer.write(b"early")
        writer.write_eof()
        there, answer = await far.next()
        async with asyncio.timeout(PATIENCE_S):
            assert await there.read() == b"early"
        answer.write(b"late")
        answer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"late"
        await until(lambda: not relay.passed, "both sides to be closed")
        assert not server.open_sockets
        writer.close()


@pytest.mark.parametrize("is_client_first", [True, False], ids=["client", "broker"])
async def test_a_side_that_said_its_last_may_still_be_answered(is_client_first: bool) -> None:
    async with running() as server, far_broker() as far, relaying(server, lambda: far.target) as relay:
        near, there = await connect(relay), await far.next()
        (reader, writer), (answers, answering) = (near, there) if is_client_first else (there, near)
        writer.write_eof()
        assert await ended(answers)
        data = bytes(range(256)) * 4_096
        answering.write(data)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(len(data)) == data
        answering.write_eof()
        assert await ended(reader)
        await until(lambda: not relay.passed, "both sides to be closed")
        writer.close()
        answering.close()


@pytest.mark.parametrize("is_client_first", [True, False], ids=["client", "broker"])
async def test_a_side_that_breaks_takes_the_other_along(is_client_first: bool) -> None:
    async with running() as server, far_broker() as far, relaying(server, lambda: far.target) as relay:
        near, there = await connect(relay), await far.next()
        (_, writer), (other, closing) = (near, there) if is_client_first else (there, near)
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()
        assert await ended(other)
        await until(lambda: not relay.passed, "both sides to be closed")
        assert not server.open_sockets
        closing.close()


@pytest.mark.parametrize("is_down", [True, False], ids=["to the client", "to the broker"])
async def test_a_reader_that_is_slow_slows_the_writer_down(is_down: bool) -> None:
    """Kernels take some megabytes for each of two connections; the rest stays with who sends it."""
    size = 64 * 1024 * 1024
    async with running() as server, far_broker() as far, relaying(server, lambda: far.target) as relay:
        near, there = await connect(relay), await far.next()
        (reader, _), (_, writer) = (near, there) if is_down else (there, near)
        transport = writer.transport
        writer.write(b"x" * size)
        left = -1

        def is_stuck() -> bool:
            nonlocal left
            before, left = left, transport.get_write_buffer_size()
            return before == left

        await until(is_stuck, "the writer to be held back")
        assert left > size // 4
        (passage,) = relay.passed
        held = [end.transport.get_write_buffer_size() for end in (passage.near, passage.far)]
        assert sum(held) < 2 * 1024 * 1024
        writer.write_eof()
        count = 0
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(1 << 20):
                count += len(data)
        assert count == size
        for each in (near[1], there[1]):
            each.close()


async def test_without_a_fixed_broker_clients_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        targets: list[Target] = [None, nobody.getsockname()]
        async with running() as server, relaying(server, lambda: targets[0]) as relay:
            for reason in ("no fixed broker is linked", "connection refused"):
                reader, writer = await connect(relay)
                assert await ended(reader)
                assert f"a client at 127.0.0.1 was not passed on to the fixed broker: {reason}" in caplog.text
                writer.close()
                targets.pop(0)
            await until(lambda: not relay.passed and not server.open_sockets, "nothing to be left")


async def test_there_are_only_so_many() -> None:
    async with running() as server, far_broker() as far, relaying(server, lambda: far.target, 2) as relay:
        taken = [await connect(relay) for _ in range(2)]
        _, closing = await far.next()
        await far.next()
        reader, refused = await connect(relay)
        assert await ended(reader)
        refused.close()
        closing.close()
        taken[0][1].close()
        await until(lambda: len(relay.passed) == 1, "a place to be free")
        taken.append(await connect(relay))
        await far.next()
        for _, writer in taken:
            writer.close()


async def test_it_stops_at_any_time_and_leaves_nothing() -> None:
    """With clients that are served, one whose broker does not answer, and one that has only just come."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(0)
    full = [socket.create_connection(silent.getsockname())]
    with suppress(OSError):
        while len(full) < 4:  # until the kernel takes no more, and does not refuse either
            full.append(socket.create_connection(silent.getsockname(), timeout=0.05))
    async with running() as server, far_broker() as far:
        target = far.target
        relay = Relay(server, Address("127.0.0.1", 0), lambda: target)
        relay.start()
        clients = [await connect(relay)]
        await far.next()
        target = silent.getsockname()
        clients.append(await connect(relay))
        await until(lambda: len(relay.passed) == 2, "both to be taken")
        clients.append(await connect(relay))
        await relay.stop()
        assert not relay.passed
        assert not server.open_sockets
        for reader, writer in clients:
            assert await ended(reader)
            writer.close()
    for each in (*full, silent):
        each.close()
