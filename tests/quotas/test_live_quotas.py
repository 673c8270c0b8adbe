"""A client that publishes far beyond its quota, beside others that keep to theirs: how long these wait.
 Latencies of one pair of clients are taken in turns, with the flood and without, so that whatever else the
machine does touches both alike.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connect, Publish, Suback, Subscribe, Subscription
from hedgerow.quotas.config import QuotasConfig
from hedgerow.quotas.part import QuotasPart
from tests.node.peers import RawClient, connected, part_of, port_of, running

TURNS = 8
MESSAGES = 400  # in each turn
PACE_S = 0.002
BURST_S = 1.5  # until the flood has had its burst
MOST = 1.2  # times the latency without the flood


class Latencies(NamedTuple):
    clock: list[float]
    processor: list[float]

    def p99s(self) -> tuple[float, float]:
        return quantile(self.clock, 0.99), quantile(self.processor, 0.99)


async def take(publisher: RawClient, subscriber: RawClient, into: Latencies) -> None:
    for number in range(MESSAGES):
        sent_at, worked_s = time.perf_counter(), time.thread_time()
        publisher.send(Publish("paced", b"%d" % number))
        message = await subscriber.receive()
        into.clock.append(time.perf_counter() - sent_at)
        into.processor.append(time.thread_time() - worked_s)
        assert isinstance(message, Publish)
        assert message.payload == b"%d" % number
        await asyncio.sleep(PACE_S)


# In a process of its own, which sends as much as the node takes and throws away what it answers.
FLOOD = """
import select, socket, sys
flood = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connect, chunk = (bytes.fromhex(each) for each in sys.argv[2:])
flood.sendall(connect)
flood.setblocking(False)
rest = b""
while True:
    readable, writable, _ = select.select([flood], [flood], [])
    if readable and not flood.recv(65_536):
        break
    if writable:
        rest = rest or chunk
        rest = rest[flood.send(rest):]
"""


@contextmanager
def flooding(port: int, qos: int) -> Iterator[None]:
    connect = codec.encode(Connect(f"flood-{qos}"), MQTT_5)
    chunk = b"".join(
        codec.encode(Publish("flood", b"x" * 64, qos, packet_id=number if qos else 0), MQTT_5)
        for number in range(1, 201)
    )
    flood = subprocess.Popen((sys.executable, "-c", FLOOD, str(port), connect.hex(), chunk.hex()))
    try:
        yield
        assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("qos", [0, 1])
async def test_whoever_exceeds_its_quota_does_not_slow_others(qos: int) -> None:
    async with running(QuotasConfig(client_messages=1_000)) as server:
        port = port_of(server)
        async with connected(port, "publisher") as publisher, connected(port, "subscriber") as subscriber:
            subscriber.send(Subscribe(1, [Subscription("paced")]))
            assert isinstance(await subscriber.receive(), Suback)
            alone, beside = Latencies([], []), Latencies([], [])
            for _ in range(TURNS):
                await take(publisher, subscriber, alone)
                with flooding(port, qos):
                    await asyncio.sleep(BURST_S)  # The flood has had its burst.
                    await take(publisher, subscriber, beside)
            assert part_of(server, QuotasPart).exceeded > 10 * TURNS
            clock, processor = (new / old for new, old in zip(beside.p99s(), alone.p99s(), strict=True))
            was_s, is_s = alone.p99s(), beside.p99s()
            by_clock = f"{1e3 * was_s[0]:.3f} ms, beside the flood {1e3 * is_s[0]:.3f} ({clock:.2f} times)"
            by_processor = f"{1e3 * was_s[1]:.3f} ms, beside the flood {1e3 * is_s[1]:.3f} ({processor:.2f})"
            print(f"QoS {qos}: p99 by the clock {by_clock}; by the processor {by_processor}")
            assert processor <= MOST
