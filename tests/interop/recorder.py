"""A byte relay that keeps what went through it, and finds in it what a standard peer must never see.

The reading is its own, by the specification, and not the codec's: the codec is what is being judged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

CONNECT, CONNACK, DISCONNECT, AUTH = 1, 2, 14, 15
EXTENSION = 0xFF
BRIDGE = 0x80  # Mosquitto's mark in the version of a bridge; 0xFF has this bit too, and is no bridge


class Packet(NamedTuple):
    kind: int
    body: bytes


@dataclass
class Recording:
    """One connection."""

    up: bytearray = field(default_factory=bytearray)
    """From who connected."""
    down: bytearray = field(default_factory=bytearray)

    @property
    def version(self) -> int:
        """Of its CONNECT; 0 before that has come."""
        first = next(packets(self.up), None)
        if first is None:
            return 0
        assert first.kind == CONNECT
        name_length = int.from_bytes(first.body[:2], "big")
        version = first.body[2 + name_length]
        return version if version == EXTENSION else version & ~BRIDGE

    @property
    def extensions(self) -> list[str]:
        """What standard MQTT does not have, of either side."""
        found = []
        if self.version not in (3, 4, 5):
            found.append(f"version {self.version}")
        for way, data in (("up", self.up), ("down", self.down)):
            for place, packet in enumerate(packets(data)):
                if packet.kind == 0 or (packet.kind == AUTH and self.version < 5):
                    found.append(f"{way}: packet type {packet.kind}")
                elif packet.kind == CONNACK and not self._is_standard(packet, place):
                    found.append(f"{way}: CONNACK {packet.body.hex()}")
        return found

    def _is_standard(self, connack: Packet, place: int) -> bool:
        """The first packet, once, with a code of its version."""
        code = connack.body[1]
        if place or connack.body[0] > 1:
            return False
        return code == 0 or code >= 0x80 if self.version == 5 else code <= 5 and len(connack.body) == 2


def packets(data: bytes | bytearray) -> Iterator[Packet]:
    """Those that are complete."""
    position = 0
    while position < len(data):
        length = shift = 0
        body = position + 1
        while body < len(data):
            length |= (data[body] & 0x7F) << shift
            shift += 7
            body += 1
            if data[body - 1] < 0x80:
                break
        else:
            return
        if body + length > len(data):
            return
        yield Packet(data[position] >> 4, bytes(data[body : body + length]))
        position = body + length


class Recorder:
    def __init__(self, target: int) -> None:
        self.recordings: list[Recording] = []
        self.port = 0
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recording = Recording()
        self.recordings.append(recording)
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(far_writer)
            await asyncio.gather(
                _pass(reader, far_writer, recording.up), _pass(far_reader, writer, recording.down)
            )
        finally:
            for each in writers:
                each.transport.abort()

    async def run(self, is_open: threading.Event, end: asyncio.Event) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
            self._tasks.add(task)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        is_open.set()
        await end.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # Then what was aborted is closed.


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    """To the end, which is passed on."""
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            record += data
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()


@contextmanager
def recording(target: int) -> Iterator[Recorder]:
    """A relay to this port of the machine, in a thread of its own: the clients of these tests block."""
    recorder = Recorder(target)
    is_open = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(recorder.run(is_open, end)))
    thread.start()
    try:
        assert is_open.wait(10)
        yield recorder
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
