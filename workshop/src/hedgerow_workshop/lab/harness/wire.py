"""Clients that cost next to nothing: MQTT 3.1.1, cut and joined by hand.

A publisher counts a message as sent when PUBACK has come. What was in flight when its connection was lost
it never sends again: whether the broker had taken it nobody knows, and it counts for nothing. A reader has
a session that outlives its connections, and acknowledges what it reads when it reads it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import cast

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Connect, Publish, Subscribe, Subscription
from hedgerow_workshop.lab.harness.record import Received

RETRY_S = 0.1
ANSWER_S = 10.0
TICK_S = 0.02
CHUNK = 50  # publications that are written at once
# Small, so that what a slow reader has not read is the broker's to keep, and not the kernel's.
RECEIVE_BUFFER_BYTES = 32_768
_PACKET_IDS = 65_535
_CONNACK, _PUBLISH, _PUBACK, _SUBACK = 2, 3, 4, 9
_DUP, _QOS = 0x08, 0x06


class WireClient(asyncio.Protocol):
    """It connects again and again until it is closed."""

    clean_start = True
    receive_buffer_bytes: int | None = None

    def __init__(self, name: str, address: tuple[str, int]) -> None:
        self.name = name
        self.address = address
        self.losses: list[float] = []
        """When a connection was."""
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._lost = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._stay_connected())
        async with asyncio.timeout(ANSWER_S):
            await self._ready.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._transport is not None:
            self._transport.abort()

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            opened = socket.socket()
            opened.setblocking(False)
            if self.receive_buffer_bytes is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await loop.sock_connect(opened, self.address)
                    await loop.create_connection(lambda: self, sock=opened)
                await self._lost.wait()
            except (OSError, TimeoutError):
                opened.close()
            await asyncio.sleep(RETRY_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._unread = b""
        connect = Connect(
            client_id=self.name, protocol_version=MQTT_3_1_1, clean_start=self.clean_start, keep_alive=0
        )
        self._transport.write(encode(connect, MQTT_3_1_1))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.losses.append(time.monotonic())
        self._lost.set()
        self.lost()

    def data_received(self, data: bytes) -> None:
        data = self._unread + data if self._unread else data
        used = 0
        for first, start, end in packets(data):
            self.receive(first, data, start, end)
            used = end
        self._unread = data[used:]
        self.received()

    @abstractmethod
    def receive(self, first: int, data: bytes, start: int, end: int) -> None:
        """A packet: its first byte, and where its body is."""

    def received(self) -> None:
        """All packets of a chunk have been."""

    def lost(self) -> None:
        """The connection is."""


def packets(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each whole packet its first byte, and where its body begins and ends."""
    at, size = 0, len(data)
    while at + 1 < size:
        length, shift, start = 0, 0, at + 1
        while True:
            if start >= size:
                return
            byte = data[start]
            length |= (byte & 0x7F) << shift
            shift, start = shift + 7, start + 1
            if byte < 0x80:
                break
        end = start + length
        if end > size:
            return
        yield data[at], start, end
        at = end


class WirePublisher(WireClient):
    """As fast as it is acknowledged, from `start` on until `stop`."""

    def __init__(
        self, name: str, address: tuple[str, int], topic: str, payload_bytes: int, window: int, most: int
    ) -> None:
        super().__init__(name, address)
        self.sent: dict[int, float] = {}
        """Number → when it was handed to the broker, of all that were acknowledged."""
        self._packet = encode(Publish(topic, b" " * payload_bytes, 1, packet_id=1), MQTT_3_1_1)
        self._head = self._packet[: -payload_bytes - 2]
        self._payload_bytes = payload_bytes
        self._window = window
        self._most = most
        self._number = 0
        self._in_flight: dict[int, tuple[int, float]] = {}
        self._is_publishing = False

    @property
    def is_done(self) -> bool:
        """It has nothing to send any more, and has heard of all that it sent."""
        return not self._in_flight and (not self._is_publishing or self._number >= self._most)

    def start(self) -> None:
        self._is_publishing = True
        self._send()

    def stop(self) -> None:
        self._is_publishing = False

    def probe(self, topic: str) -> None:
        if self._transport is not None and self._ready.is_set():
            self._transport.write(encode(Publish(topic, self.name.encode()), MQTT_3_1_1))

    def receive(self, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if kind == _PUBACK:
            acknowledged = self._in_flight.pop(data[start] << 8 | data[start + 1], None)
            if acknowledged is not None:
                number, at = acknowledged
                self.sent[number] = at
        elif kind == _CONNACK:
            self._ready.set()

    def received(self) -> None:
        if self._is_publishing and self._ready.is_set():
            self._send()

    def lost(self) -> None:
        self._in_flight.clear()
        self._ready.clear()

    def _send(self) -> None:
        transport = self._transport
        room = min(self._window - len(self._in_flight), self._most - self._number)
        if transport is None or (room < CHUNK and len(self._in_flight) >= CHUNK):
            return
        now = time.monotonic()
        written: list[bytes] = []
        for number in range(self._number, self._number + room):
            packet_id = number % _PACKET_IDS + 1
            self._in_flight[packet_id] = number, now
            payload = (b"%d" % number).ljust(self._payload_bytes)
            written.append(self._head + packet_id.to_bytes(2, "big") + payload)
        self._number += room
        transport.write(b"".join(written))


class PacedReader(WireClient):
    """`may_read` says how many messages it may have read by now; beyond that it leaves them unread."""

    clean_start = False
    receive_buffer_bytes = RECEIVE_BUFFER_BYTES

    def __init__(
        self, name: str, address: tuple[str, int], topic_filter: str, may_read: Callable[[], float]
    ) -> None:
        super().__init__(name, address)
        self._answers: list[bytes] = []
        self._filter = topic_filter
        self._may_read = may_read
        self._is_paused = False
        self._tick: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def count(self) -> int:
        """Messages that it has read."""

    @abstractmethod
    def receive_publish(self, first: int, data: bytes, start: int, end: int) -> None:
        """Read it, and add its acknowledgement to the answers."""

    async def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        await super().close()

    def receive(self, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if kind == _PUBLISH:
            self.receive_publish(first, data, start, end)
        elif kind == _CONNACK:
            self._is_paused = False
            if data[start]:  # Session Present
                self._ready.set()
            else:
                asked = Subscribe(1, [Subscription(self._filter, 1)])
                self._answers.append(encode(asked, MQTT_3_1_1))
        elif kind == _SUBACK:
            self._ready.set()

    def received(self) -> None:
        if self._transport is not None and self._answers:
            self._transport.write(b"".join(self._answers))
        self._answers.clear()
        self._regulate()

    def _regulate(self) -> None:
        if self._transport is None:
            return
        is_ahead = self.count > self._may_read()
        if is_ahead and self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_S, self._look_again)
        if is_ahead != self._is_paused:
            self._is_paused = is_ahead
            if is_ahead:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _look_again(self) -> None:
        self._tick = None
        self._regulate()

    def lost(self) -> None:
        self._answers.clear()


class WireReader(PacedReader):
    """It keeps what came, and when."""

    def __init__(
        self, name: str, address: tuple[str, int], topic_filter: str, may_read: Callable[[], float]
    ) -> None:
        super().__init__(name, address, topic_filter, may_read)
        self.arrivals: list[Received] = []
        """Publishers are named by the last level of their topics."""
        self.heard: set[str] = set()
        """Whose probes came."""
        self._names: dict[bytes, str] = {}

    @property
    def count(self) -> int:
        return len(self.arrivals)

    def receive_publish(self, first: int, data: bytes, start: int, end: int) -> None:
        topic_at = start + 2
        body_at = topic_at + (data[start] << 8 | data[start + 1])
        topic = data[topic_at:body_at]
        if first & _QOS:
            self._answers.append(b"\x40\x02" + data[body_at : body_at + 2])
            body_at += 2
        name = self._names.get(topic)
        if name is None:
            name = self._names[topic] = topic.decode().rpartition("/")[2]
        if name == "probe":
            self.heard.add(data[body_at:end].decode())
            return
        number = int(data[body_at:end])
        self.arrivals.append(Received(name, number, time.monotonic(), bool(first & _DUP)))
