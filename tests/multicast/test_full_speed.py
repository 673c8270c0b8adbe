"""Publishers at full speed, and a node that is busy and stopped for a while: nothing is lost, or comes twice.

Real processes and sockets, on the loopback interface.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hedgerow
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow.topics import STATUS_PREFIX
from hedgerow_workshop.programs import free_udp_port
from tests.programs import run_node
from tests.waiting import PATIENCE_S, until

PUBLISHERS, MESSAGES, TOPICS = 2, 4_000, 25
PUBLISH = """
import asyncio, sys
import hedgerow

async def main(url, name, messages, topics):
    async with hedgerow.connect(url) as bus:
        for number in range(messages):
            topic = f"farm/{name}/{number % topics}"
            await bus.publish(topic, f"{name} {number} ".encode() + bytes(100), qos=1)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


@contextmanager
def publishers(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", PUBLISH, url]
    sizes = [str(MESSAGES), str(TOPICS)]
    started = [subprocess.Popen([*command, f"p{number}", *sizes]) for number in range(PUBLISHERS)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()


async def test_a_busy_node_that_was_stopped_for_a_while_gets_all_once(tmp_path: Path) -> None:
    options = MulticastOptions(("lo",), ip=4, port=free_udp_port())
    flags = ("--multicast-interface", "lo", "--multicast-ip", "4", "--multicast-port", str(options.port))
    received: defaultdict[str, list[int]] = defaultdict(list)

    async def receive(messages: hedgerow.Subscription) -> None:
        async for message in messages:
            received[message.topic].append(int(message.payload.split()[1]))

    async def load(bus: hedgerow.Bus) -> None:
        while True:
            await bus.publish("house/load", bytes(200), qos=1)

    def count() -> int:
        return sum(map(len, received.values()))

    with run_node(tmp_path, "--multicast", "farm/#", *flags, "--data", "data", "--journal", "#") as node:
        url = f"mqtt://127.0.0.1:{node.port()}"
        async with (
            hedgerow.connect(url) as bus,
            hedgerow.connect(url) as loader,
            bus.subscribe("farm/#", qos=1) as messages,
        ):
            tasks = [asyncio.create_task(receive(messages)), asyncio.create_task(load(loader))]
            with publishers(options.url) as started:
                await until(lambda: count() > MESSAGES // 4, "the first messages")
                assert node.process is not None
                os.kill(node.process.pid, signal.SIGSTOP)
                await asyncio.sleep(1.0)  # what is tested: nothing can be waited for
                os.kill(node.process.pid, signal.SIGCONT)
                await until(lambda: all(each.poll() is not None for each in started), "the publishers")
                assert [each.returncode for each in started] == [0] * PUBLISHERS
            await until(lambda: count() >= PUBLISHERS * MESSAGES, "all messages")
            for task in tasks:
                task.cancel()
    assert received == {
        f"farm/p{publisher}/{topic}": list(range(topic, MESSAGES, TOPICS))
        for publisher in range(PUBLISHERS)
        for topic in range(TOPICS)
    }


async def test_a_receiver_that_takes_nothing_holds_a_publisher_no_longer_than_its_patience() -> None:
    options = MulticastOptions(("lo",), ip=4, port=free_udp_port(), patience_s=1.0)
    count = 3_000
    async with (
        hedgerow.connect(options.url) as publisher,
        hedgerow.connect(options.url) as bus,
        bus.subscribe("a", qos=1, queue_messages=10) as stuck,
    ):
        await publisher.publish("a", b"0", qos=1)
        await asyncio.sleep(1.5)  # until the topic is new no longer, and goes one way only
        began_at = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE_S):
            for number in range(1, count):
                await publisher.publish("a", b"%d" % number + bytes(1_000), qos=1)
            assert asyncio.get_running_loop().time() - began_at > 0.9, "it did not wait at all"
            got = []
            async for message in stuck:
                got.append(int(message.payload.rstrip(b"\0") or b"0"))
                if len(got) + stuck.missed == count:
                    break
    assert got == sorted(set(got))


def test_the_status_says_what_is_under_way(tmp_path: Path) -> None:
    flags = ("--multicast-interface", "lo", "--multicast-ip", "4", "--multicast-port", str(free_udp_port()))
    with run_node(tmp_path, "--multicast", "farm/#", *flags, "--udp", "127.0.0.1:0") as node:
        url = f"mqtt://127.0.0.1:{node.port()}"
        words = ["sub", url, f"{STATUS_PREFIX}+", "-C", "1", "-W", "20"]
        told = subprocess.run([sys.executable, "-m", "hedgerow", *words], capture_output=True, check=True)
    status = json.loads(told.stdout)
    assert status["multicast"]["receive_buffer_bytes"] > 0
    assert status["multicast"]["overruns"] == status["sensors"]["overruns"] == 0
    assert status["multicast"]["unacknowledged_bytes"] == status["multicast"]["missed"] == 0
