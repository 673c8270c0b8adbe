"""What the shell's tests talk with: a node in this process, and a client that sends bytes as told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Packet
from hedgerow.node.config import Config
from hedgerow.node.part import AnyPart, Part, PartEntry
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from hedgerow.parts import PARTS
from tests.packets import PacketReader
from tests.waiting import PATIENCE_S

LOOPBACK = (Address("127.0.0.1", 0),)
NOWHERE: dict[str, Any] = dict.fromkeys(("mqtt", "mqtts", "ws", "wss", "http"), ())


@asynccontextmanager
async def running(*rooms: object, **settings: Any) -> AsyncIterator[Server]:
    """A node that listens only where `settings` say: `running(ws=LOOPBACK)`; by default on MQTT. And
    with the `table` of parts, and to be stopped in the time, that they say. `rooms` are settings of rooms."""
    how: dict[str, Any] = {name: settings.pop(name) for name in ("table", "shut_down_s") if name in settings}
    listeners = NOWHERE if settings.keys() & NOWHERE.keys() else NOWHERE | {"mqtt": LOOPBACK}
    server = Server(Config(**(listeners | settings)).with_rooms(*rooms), **({"table": PARTS} | how))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def with_part(name: str, part: type[Part]) -> tuple[PartEntry, ...]:
    """The table of parts, where this class makes the part of that name."""
    made_by = f"{part.__module__}:{part.__qualname__}"
    assert name in {entry.name for entry in PARTS}
    return tuple(
        PartEntry(name, made_by, entry.is_wanted) if entry.name == name else entry for entry in PARTS
    )


def part_of(node: Server, kind: type[AnyPart]) -> AnyPart:
    found = node.find(kind)
    assert found is not None
    return found


def port_of(server: Server, scheme: str = "mqtt") -> int:
    port = next(urlsplit(url).port for url in server.urls if urlsplit(url).scheme == scheme)
    assert port is not None
    return port


class RawClient:
    """Packets and plain bytes over TCP or TLS, with no manners of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._received = PacketReader()

    def send(self, *packets: Packet | bytes) -> None:
        self.writer.write(b"".join(p if isinstance(p, bytes) else codec.encode(p, MQTT_5) for p in packets))

    @property
    def transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.writer.transport)

    async def receive(self) -> Packet | None:
        """The next packet; None when the server closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while (packet := self._received.take()) is None:
                data = await self.reader.read(65_536)
                if not data:
                    assert not self._received.pending, "the last packet was cut"
                    return None
                self._received.feed(data)
        return packet

    async def closed(self) -> bool:
        """Did the server close, or reset, without another packet?"""
        try:
            return await self.receive() is None
        except (ConnectionError, ssl.SSLError):
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@asynccontextmanager
async def raw_client(
    port: int, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def connected(port: int, client_id: str = "", **options: Any) -> AsyncIterator[RawClient]:
    """A client whose CONNECT was accepted; `options` are those of `Connect`."""
    async with raw_client(port) as client:
        client.send(Connect(client_id, **options))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == 0
        yield client
