"""What the client's tests talk to: a server that answers as told and a cable that can be cut; and a transport
to be looked at from behind a bus."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from hedgerow.client.mqtt_transport import MAX_UNACKNOWLEDGED, MqttTransport
from hedgerow.client.options import BusOptions, DriverOptions
from hedgerow.client.urls import parse_url
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.events import ConnectOptions
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.packets import PacketReader
from tests.waiting import until


def polite(packet: Packet) -> list[Packet]:
    """The answers of a server that agrees with everything."""
    match packet:
        case Connect():
            return [Connack()]
        case Publish(qos=1):
            return [Puback(packet.packet_id)]
        case Publish(qos=2):
            return [Pubrec(packet.packet_id)]
        case Pubrel():
            return [Pubcomp(packet.packet_id)]
        case Subscribe():
            return [Suback(packet.packet_id, [each.qos for each in packet.subscriptions])]
        case Unsubscribe():
            return [Unsuback(packet.packet_id, [0] * len(packet.topic_filters))]
        case Pingreq():
            return [Pingresp()]
    return []


class ScriptedServer:
    """Notes every packet and answers with what `answer` returns; None closes the connection."""

    def __init__(self, answer: Callable[[Packet], list[Packet] | None]) -> None:
        self.answer = answer
        self.version = MQTT_5
        self.received: list[Packet] = []
        self.connections = 0
        self.lingers = False
        """Leave the connection open when the client has closed its side."""
        self.lingering: list[asyncio.StreamWriter] = []
        self.writer: asyncio.StreamWriter | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def of(self, kind: type[Packet]) -> list[Packet]:
        return [packet for packet in self.received if isinstance(packet, kind)]

    async def until_received(self, kind: type[Packet], count: int = 1) -> None:
        await until(lambda: len(self.of(kind)) >= count, f"{count} {kind.__name__}")

    def send(self, *packets: Packet) -> None:
        assert self.writer is not None
        self.writer.write(b"".join(codec.encode(packet, self.version) for packet in packets))

    def close(self) -> None:
        for writer in self.lingering:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        incoming = PacketReader()
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                incoming.feed(data)
                while (packet := incoming.take(self.version)) is not None:
                    self.received.append(packet)
                    answers = self.answer(packet)
                    if answers is None:
                        writer.close()
                        return
                    self.send(*answers)
        if self.lingers:
            self.lingering.append(writer)
        else:
            writer.close()


@asynccontextmanager
async def scripted(
    answer: Callable[[Packet], list[Packet] | None] = polite, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(answer)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(server.serve(reader, writer))
        tasks.add(task)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


class Cable:
    """Carries bytes to a port and back. `cut` resets it; `mute` lets both ends believe that it lives."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.muted = False
        self.unplugged = False
        self.links = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._connect(reader, writer))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.unplugged:
            writer.transport.abort()
            return
        self.links += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, far_writer}
        self._start(self._carry(reader, far_writer))
        self._start(self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not self.muted:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def cable_to(port: int) -> AsyncIterator[Cable]:
    cable = Cable(port)
    listener = await asyncio.start_server(cable.accept, "127.0.0.1", 0)
    cable.port = listener.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        listener.close()
        await cable.close()


async def open_mqtt(url: str, max_unacknowledged: int = MAX_UNACKNOWLEDGED, **options: Any) -> MqttTransport:
    """What `hedgerow.connect` puts behind a bus; `options` are those of `DriverOptions`."""
    driver = DriverOptions(ConnectOptions("c"), **{"first_delay_s": 0.01, "max_delay_s": 0.05} | options)
    transport = MqttTransport(parse_url(url), BusOptions(driver), max_unacknowledged)
    await transport.open()
    return transport
