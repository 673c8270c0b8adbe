"""The clients of a run: publishers, subscribers, and one at each node that hears what its federator says.

A payload is 64 bytes: who published it, its number, and blanks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from itertools import accumulate

from hedgerow.client.bus import Bus
from hedgerow.message import Message
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.measure import count_lost
from hedgerow_workshop.lab.harness.programs import wait_until
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.nodes import GridNode
from hedgerow_workshop.lab.spohn.record import SpohnRecord, State

QUIET_S = 0.5  # after the last message: what is doubled would come now


class GridTraffic:
    """Publications on one topic, and what becomes of them, written into a record."""

    def __init__(self, clients: Clients, record: SpohnRecord, topic: str, qos: int) -> None:
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
            arrivals.append(Received(publisher.decode(), int(number), now))

        bus = await self._clients.connect(self._client_id("subscriber", name), url)
        await self._clients.listen(bus, self.topic, self._qos, receive)

    async def open_publisher(self, name: str, url: str) -> None:
        self._publishers[name] = await self._clients.connect(self._client_id("publisher", name), url)
        self._record.sent[name] = []

    async def publish(self, name: str, gaps_s: Iterable[float]) -> None:
        """A numbered message after each gap."""
        bus, sent = self._publishers[name], self._record.sent[name]
        due_at = accumulate(gaps_s, initial=time.monotonic())
        next(due_at)
        async for _ in keep_pace(due_at):
            payload = f"{name} {len(sent)}".ljust(grid.PAYLOAD_BYTES)
            sent.append(time.monotonic())
            bus.publish_nowait(self.topic, payload, qos=self._qos)

    async def settle(self, patience_s: float, check: Callable[[], None]) -> None:
        """Until all that was sent has arrived and nothing more arrives, or until the patience is over."""
        await wait_until(lambda: not count_lost(self._record.hearings()), patience_s, check)
        await asyncio.sleep(QUIET_S)
        self._record.ended_at = time.monotonic()


class StateWatch:
    """The last word of every node's federator on itself."""

    def __init__(self, clients: Clients) -> None:
        self.states: dict[str, State] = {}
        self._clients = clients

    async def open(self, node: GridNode) -> None:
        def receive(message: Message) -> None:
            if message.payload:
                self.states[node.name] = json.loads(message.payload)

        bus = await self._clients.connect(f"watch-{node.name}", node.broker.url)
        await self._clients.listen(bus, node.state_topic, 0, receive)

    def forget(self, node: str) -> None:
        self.states.pop(node, None)
