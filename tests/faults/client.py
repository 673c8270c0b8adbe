"""A client that keeps its session as the specification asks, whatever happens to the broker.

It remembers what it sent until it is acknowledged and which QoS 2 identifiers it has received, comes
back whenever the connection is lost, and sends again what it must (MQTT 5 §4.1, §4.4). It also keeps
what a real client forgets: every acknowledgement and every arrival, so that a test can hold the
broker to its word. Its state lives in the test's process, which nobody kills.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
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
    Subscription,
)
from hedgerow.mqtt.reasons import Reason

PATIENCE_S = 30.0
RETRY_S = 0.02
# Few identifiers, so that each is used again soon: a broker that remembers one for too long takes the
# next message for a repetition.
MAX_PACKET_ID = 127


async def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition of this process, or fail naming `what`."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s:g} s in vain for {what}") from None


@dataclass
class Outgoing:
    publish: Publish
    released: bool = False  # PUBREC received: PUBREL is what must be sent again


class PersistentClient:
    def __init__(
        self,
        port: int,
        client_id: str,
        version: int = MQTT_5,
        receive_maximum: int = 65_535,
        subscriptions: tuple[tuple[str, int], ...] = (),
        keep_alive: int = 0,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
        self.port = port
        self.client_id = client_id
        self.version = version
        self.subscriptions = subscriptions
        self.connect = Connect(client_id, version, False, keep_alive, username)
        self.connect.password = password.encode() if password is not None else None
        if version == MQTT_5:
            self.connect.properties = {"session_expiry_interval": 3600, "receive_maximum": receive_maximum}
        self.connections = 0
        self.is_connected = False
        self.disconnect_reasons: list[int] = []
        self.sessions_lost = 0
        self.outgoing: dict[int, Outgoing] = {}  # in the order of sending
        self.received: set[int] = set()  # QoS 2: PUBREC sent, PUBREL awaited
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.acknowledged: dict[str, list[bytes]] = defaultdict(list)  # PUBACK, PUBREC or PUBCOMP came
        self.arrived: dict[str, list[bytes]] = defaultdict(list)
        self._next_packet_id = 1
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._left_open: list[asyncio.StreamWriter] = []
        self._subscribed = False

    # Publishing

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Take a message; it is sent now or, without a connection, when there is one."""
        assert len(self.outgoing) < MAX_PACKET_ID
        packet_id = self._next_packet_id if qos else 0
        if qos:
            while packet_id in self.outgoing:
                packet_id = packet_id % MAX_PACKET_ID + 1
            self._next_packet_id = packet_id % MAX_PACKET_ID + 1
        packet = Publish(topic, payload, qos, retain, packet_id=packet_id)
        self.sent[topic].append(payload)
        if qos:
            self.outgoing[packet_id] = Outgoing(packet)
        if self.is_connected:
            self._send(packet)

    def ping(self) -> None:
        if self.is_connected:
            self._send(Pingreq())

    def abort(self) -> None:
        """Lose the connection, as a client in a tunnel does. It comes back."""
        if self._writer is not None:
            self._writer.transport.abort()

    def jump(self) -> None:
        """Come back over a new connection while the old one seems to live, as after a change of networks."""
        if self._writer is not None and self._reader is not None:
            self._left_open.append(self._writer)
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
            self._reader.feed_eof()

    # The connection

    async def run(self) -> None:
        """Be connected, again and again, until cancelled."""
        try:
            while True:
                try:
                    await self._connect_once()
                except (OSError, asyncio.IncompleteReadError, EOFError):
                    pass
                finally:
                    self.is_connected = False
                await asyncio.sleep(RETRY_S)
        finally:
            for writer in self._left_open:
                writer.transport.abort()

    async def _connect_once(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._reader, self._writer = reader, writer
        try:
            self._send(self.connect)
            buffer = b""
            while data := await reader.read(65_536):
                buffer = self._receive(buffer + data)
            raise EOFError
        finally:
            self._reader = self._writer = None
            if writer not in self._left_open:
                writer.transport.abort()

    def _receive(self, data: bytes) -> bytes:
        position = 0
        while (header := codec.read_header(data, position)) is not None and header[1] <= len(data):
            body, end = header
            self._handle(codec.decode(data[position], data[body:end], self.version))
            position = end
        return data[position:]

    def _send(self, packet: Packet) -> None:
        assert self._writer is not None
        self._writer.write(codec.encode(packet, self.version))

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Connack(reason_code=Reason.SERVER_BUSY):
                raise ConnectionRefusedError  # On a busy machine a hash takes long: once more.
            case Connack():
                assert packet.reason_code == 0, packet
                self._resume(packet)
            case Publish():
                self.handle_publish(packet)
            case Puback(packet_id):
                self._finish(packet_id)
            case Pubrec(packet_id):
                entry = self.outgoing.get(packet_id)
                if entry is not None and not entry.released:
                    entry.released = True
                    self.acknowledged[entry.publish.topic].append(entry.publish.payload)
                self._send(Pubrel(packet_id))
            case Pubcomp(packet_id):
                self.outgoing.pop(packet_id, None)
            case Pubrel(packet_id):
                self.received.discard(packet_id)
                self._send(Pubcomp(packet_id))
            case Suback():
                assert max(packet.reason_codes) <= 2, packet
                self._subscribed = True
                self.is_connected = True
            case Pingresp():
                pass
            case Disconnect():
                self.disconnect_reasons.append(packet.reason_code)
            case _:
                raise AssertionError(packet)

    def _resume(self, connack: Connack) -> None:
        self.connections += 1
        if not connack.session_present:
            # A first SUBACK that we did not see may belong to a session that the broker did not keep.
            self.sessions_lost += self._subscribed or (not self.subscriptions and self.connections > 1)
            if self.subscriptions:
                wanted = [Subscription(topic_filter, qos) for topic_filter, qos in self.subscriptions]
                self._send(Subscribe(MAX_PACKET_ID + 1, wanted))
        self.is_connected = connack.session_present or not self.subscriptions
        for packet_id, entry in self.outgoing.items():
            if entry.released:
                self._send(Pubrel(packet_id))
            else:
                entry.publish.dup = True
                self._send(entry.publish)

    def _finish(self, packet_id: int) -> None:
        entry = self.outgoing.pop(packet_id, None)
        if entry is not None:
            self.acknowledged[entry.publish.topic].append(entry.publish.payload)

    def handle_publish(self, packet: Publish) -> None:
        if packet.qos == 2:
            if packet.packet_id not in self.received:
                self.received.add(packet.packet_id)
                self.arrived[packet.topic].append(packet.payload)
            self._send(Pubrec(packet.packet_id))
            return
        self.arrived[packet.topic].append(packet.payload)
        if packet.qos == 1:
            self._send(Puback(packet.packet_id))


@asynccontextmanager
async def running(*clients: PersistentClient) -> AsyncIterator[None]:
    """The clients at work; a mistake in one of them fails the test."""
    tasks = [asyncio.create_task(client.run()) for client in clients]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
