"""A small server for tests, whatever it speaks; and a SOCKS 5 proxy, from RFC 1928 and RFC 1929."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server on loopback. At the end every connection has ended."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


class SocksProxy:
    def __init__(self, login: tuple[str, str] | None, reply: int) -> None:
        self._login = login
        self._reply = reply
        self.port = 0
        self.asked: list[tuple[str, int]] = []
        """Names and ports."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        offered = await reader.readexactly(count)
        wanted = 0 if self._login is None else 2
        writer.write(bytes((5, wanted if wanted in offered else 255)))
        if wanted not in offered:
            return
        if self._login is not None:
            given = []
            await reader.readexactly(1)
            for _ in range(2):
                (size,) = await reader.readexactly(1)
                given.append((await reader.readexactly(size)).decode())
            writer.write(bytes((1, tuple(given) != self._login)))
        await reader.readexactly(4)
        (size,) = await reader.readexactly(1)
        name = (await reader.readexactly(size)).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append((name, port))
        writer.write(bytes((5, self._reply, 0, 1, 0, 0, 0, 0, 0, 0)))
        if self._reply != 0:
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
        await back.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def socks_proxy(login: tuple[str, str] | None = None, reply: int = 0) -> AsyncIterator[SocksProxy]:
    proxy = SocksProxy(login, reply)
    async with answering(proxy.serve) as proxy.port:
        yield proxy
