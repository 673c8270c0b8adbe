"""Those who behave: a publisher and a subscriber who must not notice what others do to the broker.

The pair keeps up a steady stream at every QoS. In the end all of it has arrived, once and in order,
none of it late, and neither was ever disconnected. A third client reads `$SYS`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hedgerow.mqtt.packets import Publish
from tests.faults.client import PersistentClient, running, until
from tests.programs import Node

INTERVAL_S = 0.01
MAX_LATENCY_S = 3.0  # Of any message, on a machine that others use too; stalls that attacks cause are longer.
SYS_INTERVAL = ("--sys-interval", "0.2")


class _Subscriber(PersistentClient):
    slowest_s = 0.0

    def handle_publish(self, packet: Publish) -> None:
        super().handle_publish(packet)
        self.slowest_s = max(self.slowest_s, time.monotonic() - float(packet.payload.split()[1]))


class Witness:
    def __init__(self, node: Node, username: str | None, password: str | None) -> None:
        self.node = node
        login: Any = {"username": username, "password": password}
        self.publisher = PersistentClient(node.port(), "witness-p", **login)
        topics = tuple((f"witness/{qos}", qos) for qos in (0, 1, 2))
        self.subscriber = _Subscriber(node.port(), "witness-s", subscriptions=topics, **login)
        self._reader = PersistentClient(
            node.port(), "witness-sys", subscriptions=(("$SYS/broker/#", 0),), **login
        )

    def counter(self, topic: str) -> int:
        """The newest value below $SYS/broker that has come."""
        values = self._reader.arrived[f"$SYS/broker/{topic}"]
        return int(values[-1]) if values else 0

    async def wait_for_counter(self, topic: str, at_least: int) -> None:
        await until(lambda: self.counter(topic) >= at_least, f"$SYS/broker/{topic} to be {at_least}")

    async def wait_for_log(self, text: str, count: int = 1) -> None:
        await until(lambda: self.node.log.count(text) >= count, f"{text!r} in the log")

    async def publish(self) -> None:
        number = 0
        while True:
            if len(self.publisher.outgoing) < 100:
                number += 1
                for qos in (0, 1, 2):
                    self.publisher.publish(f"witness/{qos}", b"%d %f" % (number, time.monotonic()), qos)
            await asyncio.sleep(INTERVAL_S)

    async def arrive(self) -> None:
        await until(lambda: all(c.is_connected for c in self.clients), "the witnesses to connect")

    async def testify(self) -> None:
        sent, arrived = self.publisher.sent, self.subscriber.arrived
        for topic in ("witness/0", "witness/1", "witness/2"):
            await until(
                lambda topic=topic: len(arrived[topic]) >= len(sent[topic]),  # type: ignore[misc]
                f"all of {topic}",
            )
            assert arrived[topic] == sent[topic]
        assert [client.connections for client in self.clients] == [1, 1, 1], "a witness was disconnected"
        assert self.subscriber.slowest_s < MAX_LATENCY_S
        assert "Traceback" not in self.node.log

    @property
    def clients(self) -> list[PersistentClient]:
        return [self.publisher, self.subscriber, self._reader]


@asynccontextmanager
async def witnessed(
    node: Node, username: str | None = None, password: str | None = None
) -> AsyncIterator[Witness]:
    """The witnesses watch while the body does its worst; the node needs `SYS_INTERVAL`."""
    witness = Witness(node, username, password)
    async with running(*witness.clients):
        await witness.arrive()
        publishing = asyncio.create_task(witness.publish())
        try:
            yield witness
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        await witness.testify()


def resident_bytes(node: Node) -> int:
    assert node.process is not None
    pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
