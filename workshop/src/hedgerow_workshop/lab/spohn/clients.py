"""The clients of a run: publishers, subscribers, and one at each node that hears what its federator says.

A payload is 64 bytes: who published it, its number, and blanks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow_workshop.lab.clients import Clients
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.nodes import Node
from hedgerow_workshop.lab.spohn.record import Arrival, Record, State

QUIET_S = 0.5  # after the last message: what is doubled would come now
POLL_S = 0.02


class Traffic:
    """Publications on one topic, and what becomes of them, written into a record."""

    def __init__(self, clients: Clients, record: Record, topic: str, qos: int) -> None:
        self.topic = topic
        self._clients = clients
        self._record = record
        self._qos = qos
        self._publishers: dict[str, Bus] = {}

    def _client_id(self, role: str, name: str) -> str:
        # A blank in it would look like two words in Mosquitto's log of subscriptions.
        return f"{role}-{name}-{self.topic.replace('/', '-')}"

    async def subscribe(self, name: str, url: str) -> None:
        arrivals = self._record.arrived[name] = []

        def receive(message: Message) -> None:
            now = time.monotonic()
            publisher, number = message.payload.split()
            arrivals.append(Arrival(publisher.decode(), int(number), now))

        bus = await self._clients.connect(self._client_id("subscriber", name), url)
        await self._clients.listen(bus, self.topic, self._qos, receive)

    async def open_publisher(self, name: str, url: str) -> None:
        self._publishers[name] = await self._clients.connect(self._client_id("publisher", name), url)
        self._record.sent[name] = []

    async def publish(self, name: str, gaps_s: Iterable[float]) -> None:
        """A numbered message after each gap."""
        bus, sent = self._publishers[name], self._record.sent[name]
        at = time.monotonic()
        for gap_s in gaps_s:
            at += gap_s
            await asyncio.sleep(max(0, at - time.monotonic()))
            payload = f"{name} {len(sent)}".ljust(grid.PAYLOAD_BYTES)
            sent.append(time.monotonic())
            bus.publish_nowait(self.topic, payload, qos=self._qos)

    def missing(self) -> Iterator[tuple[str, str]]:
        """(publisher, subscriber) where something has not arrived yet."""
        for publisher, sent in self._record.sent.items():
            for subscriber, arrivals in self._record.arrived.items():
                numbers = {arrival.number for arrival in arrivals if arrival.publisher == publisher}
                if len(numbers) < len(sent):
                    yield publisher, subscriber

    async def settle(self, patience_s: float, check: Callable[[], None]) -> None:
        """Until all that was sent has arrived and nothing more arrives, or until the patience is over."""
        give_up_at = time.monotonic() + patience_s
        while any(self.missing()) and time.monotonic() < give_up_at:
            check()
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(QUIET_S)
        self._record.ended_at = time.monotonic()


class Watch:
    """The last word of every node's federator on itself."""

    def __init__(self, clients: Clients) -> None:
        self.states: dict[str, State] = {}
        self._clients = clients

    async def open(self, node: Node) -> None:
        def receive(message: Message) -> None:
            if message.payload:
                self.states[node.name] = json.loads(message.payload)

        bus = await self._clients.connect(f"watch-{node.name}", node.broker.url)
        await self._clients.listen(bus, node.state_topic, 0, receive)

    def forget(self, node: str) -> None:
        self.states.pop(node, None)
