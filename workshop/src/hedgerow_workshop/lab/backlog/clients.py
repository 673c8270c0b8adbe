"""Publishers and readers of the experiment, for a million messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Connect, Pingreq, Publish
from hedgerow_workshop.lab.backlog.numbers import HEAD_BYTES, Layout, Tally, payload
from hedgerow_workshop.lab.backlog.settings import FILTER, TOPICS
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.harness.wire import PacedReader, WireClient

CHUNK = 50  # publications that are written at once
RETRY_S = 0.005
_PACKET_IDS = 65_535
_CONNACK, _PUBACK, _PINGRESP = 2, 4, 13
_TOPIC_BYTES = len(TOPICS) + 1


def topic_of(publisher: int) -> str:
    """All of one length."""
    return f"{TOPICS}{publisher}"


class Publisher(WireClient):
    """As fast as it is acknowledged, from `start` on until all is sent or `stop`.

    What was in flight when its connection was lost it never sends again, and does not count.
    """

    def __init__(
        self, index: int, address: tuple[str, int], payload_bytes: int, window: int, most: int
    ) -> None:
        super().__init__(f"publisher-{index}", address)
        self.index = index
        self.acknowledged = bytearray(most)
        """1 for each number that was."""
        self.count = 0
        """How many were."""
        self.last_at = 0.0
        """When the last one was."""
        self._head = encode(Publish(topic_of(index), b" " * payload_bytes, 1, packet_id=1), MQTT_3_1_1)
        self._head = self._head[: -payload_bytes - 2]
        self._tail = payload(0, 0, payload_bytes)[HEAD_BYTES:]
        self._window = window
        self._number = 0
        self._in_flight: dict[int, int] = {}
        self._is_publishing = False

    @property
    def is_done(self) -> bool:
        """It has nothing to send any more, and has heard of all that it sent."""
        return not self._in_flight and (not self._is_publishing or self._number >= len(self.acknowledged))

    def start(self) -> None:
        self._is_publishing = True
        self.last_at = time.monotonic()
        self._send()

    def stop(self) -> None:
        self._is_publishing = False

    def receive(self, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if kind == _PUBACK:
            number = self._in_flight.pop(data[start] << 8 | data[start + 1], None)
            if number is not None:
                self.acknowledged[number] = 1
                self.count += 1
        elif kind == _CONNACK:
            self._ready.set()

    def received(self) -> None:
        self.last_at = time.monotonic()
        if self._is_publishing and self._ready.is_set():
            self._send()

    def lost(self) -> None:
        self._in_flight.clear()
        self._ready.clear()

    def _send(self) -> None:
        transport = self._transport
        room = min(self._window - len(self._in_flight), len(self.acknowledged) - self._number)
        if transport is None or (room < CHUNK and len(self._in_flight) >= CHUNK):
            return
        head, tail, index = self._head, self._tail, bytes((self.index,))
        written: list[bytes] = []
        for number in range(self._number, self._number + room):
            packet_id = number % _PACKET_IDS + 1
            self._in_flight[packet_id] = number
            written += (head, packet_id.to_bytes(2, "big"), index, number.to_bytes(4, "little"), tail)
        self._number += room
        transport.write(b"".join(written))


class Reader(PacedReader):
    """It reads what publishers with payloads of one size published."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        tally: Tally,
        payload_bytes: int,
        may_read: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        super().__init__(name, address, FILTER, may_read)
        self.tally = tally
        self.last_at = time.monotonic()
        """When something came."""
        self._layout = Layout(_TOPIC_BYTES, payload_bytes)

    @property
    def count(self) -> int:
        return self.tally.count

    def data_received(self, data: bytes) -> None:
        data = self._unread + data if self._unread else data
        used = self._take_run(data, 0)
        # What is not in the run is no PUBLISH of a publisher, or not yet whole.
        self._unread = b""
        super().data_received(data[used:] if used else data)

    def _take_run(self, data: bytes, start: int) -> int:
        """Returns where the run ends."""
        layout = self._layout
        count = layout.run(data, start)
        if count:
            self._answers.append(layout.acknowledgements(data, start, count))
            publishers, firsts = layout.publishers(data, start, count), layout.firsts(data, start, count)
            self.tally.add(publishers, layout.numbers(data, start, count), firsts)
            self.last_at = time.monotonic()
        return start + count * layout.size

    def receive_publish(self, first: int, data: bytes, start: int, end: int) -> None:
        at = start - 1 - len(self._layout.length)
        if self._take_run(data[:end], at) != end:
            raise LabError(f"{self.name} got a PUBLISH of another kind: {data[at : at + 40]!r}")


async def subscribe(readers: Iterable[Reader]) -> None:
    """Make their sessions, and leave."""
    found = list(readers)
    await asyncio.gather(*(reader.open() for reader in found))
    await asyncio.gather(*(reader.close() for reader in found))


async def first_answer(address: tuple[str, int], patience_s: float) -> float:
    """When a broker that is starting has answered a ping, by the monotonic clock."""
    hello = encode(Connect(client_id="first", protocol_version=MQTT_3_1_1, keep_alive=0), MQTT_3_1_1)
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(give_up_at - time.monotonic()):
                answers, output = await asyncio.open_connection(*address)
                try:
                    output.write(hello + encode(Pingreq(), MQTT_3_1_1))
                    await answers.readuntil(bytes((_PINGRESP << 4, 0)))
                    return time.monotonic()
                finally:
                    output.close()
        await asyncio.sleep(RETRY_S)
    raise LabError(f"no answer within {patience_s:g} s of the start")
