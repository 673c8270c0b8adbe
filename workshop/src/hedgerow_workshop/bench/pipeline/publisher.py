"""A process that publishes at a steady rate; each payload says when, and its number.

    python -m hedgerow_workshop.bench.pipeline.publisher PORT RATE SECONDS

At the end it says how many were published and acknowledged (QoS 1). It stops by itself.
"""

from __future__ import annotations

import asyncio
import sys
import time

import hedgerow

TOPIC = "bench/pipeline/{number}"
TOPICS = 50
PAYLOAD_BYTES = 64
TICK_S = 0.01


def payload(number: int, at: float) -> bytes:
    return f"{number} {at:.6f} ".encode().ljust(PAYLOAD_BYTES, b".")


def read_payload(data: bytes) -> tuple[int, float]:
    number, at, _ = data.split(b" ", 2)
    return int(number), float(at)


async def publish(port: int, rate: float, seconds: float) -> int:
    count = 0
    async with (
        hedgerow.connect(f"mqtt://127.0.0.1:{port}", client_id="publisher") as bus,
        asyncio.TaskGroup() as group,
    ):
        began_at = time.monotonic()
        while (elapsed_s := time.monotonic() - began_at) < seconds:
            for _ in range(int(elapsed_s * rate) - count):
                topic = TOPIC.format(number=count % TOPICS)
                group.create_task(bus.publish(topic, payload(count, time.time()), qos=1))
                count += 1
            await asyncio.sleep(TICK_S)
    return count


def main() -> None:
    port, rate, seconds = sys.argv[1:]
    print(asyncio.run(publish(int(port), float(rate), float(seconds))))


if __name__ == "__main__":
    main()
