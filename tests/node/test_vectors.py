"""The wire vectors over TCP: against our own node, and against Mosquitto as the oracle.

All vectors run at once on one broker, each with names of its own, so that the run takes as long as its
slowest vector. Where Mosquitto differs the vector says how, and it is an error if it does not.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.broker.vectors import DisagreementError, Run, Vector, load
from tests.conftest import StartMosquitto, StartNode

ANSWER_S = 20.0  # All vectors at once on a slow machine; a broker that agrees needs milliseconds.
DIFFERING_S = 1.5  # Whoever is expected to differ is not waited for as long.
AT_ONCE = 60

LIVE = [vector for vector in load() if vector.core_only is None]


class Live:
    """A broker that listens on a port."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self.port = port
        self.timeout_s = timeout_s
        self.streams: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self.opened: list[asyncio.StreamWriter] = []

    async def open(self, name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.streams[name] = reader, writer
        self.opened.append(writer)

    async def send(self, name: str, data: bytes) -> None:
        writer = self.streams[name][1]
        writer.write(data)
        with suppress(ConnectionError):  # What the broker did instead is for `receive` to tell.
            await writer.drain()

    async def receive(self, name: str) -> bytes | None:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await read_packet(self.streams[name][0])
        except TimeoutError:
            return None
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def drop(self, name: str) -> None:
        self.streams.pop(name)[1].close()

    async def wait(self, seconds: float) -> None:
        """What the vector expects after that time is waited for that much longer."""
        self.timeout_s += seconds

    async def close(self) -> None:
        for writer in self.opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def read_packet(reader: asyncio.StreamReader) -> bytes:
    data = await reader.readexactly(2)
    while data[-1] & 0x80:
        data += await reader.readexactly(1)
    size = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data[1:]))
    return data + await reader.readexactly(size)


async def disagreement(vector: Vector, port: int, tag: str, differs: bool) -> str | None:
    """What the broker did otherwise; None when it agrees."""
    broker = Live(port, DIFFERING_S if differs else ANSWER_S)
    try:
        await Run(vector, broker, tag).run()
    except DisagreementError as found:
        return str(found)
    finally:
        await broker.close()
    return None


async def run_all(port: int, against_mosquitto: bool) -> list[str]:
    """What is wrong, vector by vector."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def run(number: int, vector: Vector) -> str | None:
        differs = against_mosquitto and vector.mosquitto is not None
        async with gate:
            found = await disagreement(vector, port, f"{number:04x}", differs)
        if differs and (found is None or vector.saw not in found):
            instead = "and does not" if found is None else f"but not like this:\n{found}"
            return f"{vector}\n  is said to differ ({vector.mosquitto}), {instead}"
        return None if differs else found

    results = await asyncio.gather(*(run(number, vector) for number, vector in enumerate(LIVE)))
    return [result for result in results if result is not None]


def tell(failures: list[str]) -> None:
    if failures:
        pytest.fail(f"{len(failures)} of {len(LIVE)} vectors:\n" + "\n".join(failures), pytrace=False)


@pytest.mark.parametrize("arguments", [(), ("--data", "store")], ids=["memory", "store"])
async def test_our_node(hedgerow_node: StartNode, arguments: tuple[str, ...]) -> None:
    node = hedgerow_node("--sys-interval", "0", *arguments)
    tell(await run_all(node.port(), against_mosquitto=False))


async def test_mosquitto_is_the_oracle(mosquitto: StartMosquitto) -> None:
    tell(await run_all(mosquitto("persistence false"), against_mosquitto=True))
