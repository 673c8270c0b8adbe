"""Members on this machine's loopback interface, which leave when the test ends."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from hedgerow.message import Message
from hedgerow.net.multicast.endpoint import MulticastEndpoint
from hedgerow.net.multicast.options import MulticastOptions


def free_udp_port() -> int:
    """A port that nobody uses now, nor the one after it, so that tests at the same time do not meet."""
    while True:
        with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as next_one:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def own_topic() -> str:
    """A topic of one test alone: with IPv4, tests at the same time share the groups of topics."""
    return f"test/{secrets.token_hex(8)}"


class Recorder(MulticastEndpoint):
    """Keeps what arrives."""

    def __init__(self, options: MulticastOptions) -> None:
        super().__init__(options, hears_itself=False)
        self.received: list[Message] = []
        self.on_messages = self.received.extend

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.received]

    def subscribe(self, topic_filter: str) -> None:
        self.member.subscribe(topic_filter, self.clock())
        self.flush()

    def say(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.publish(Message(topic, payload, qos, retain))


@asynccontextmanager
async def members(
    count: int, port: int, options: MulticastOptions | None = None
) -> AsyncIterator[list[Recorder]]:
    """Members of one fabric, on the loopback interface with IPv4."""
    options = replace(options or MulticastOptions(), interfaces=("lo",), ip=4, port=port)
    started: list[Recorder] = []
    try:
        for _ in range(count):
            member = Recorder(options)
            await member.start()
            started.append(member)
        yield started
    finally:
        for member in started:
            await member.stop()
