"""Members on this machine's loopback interface, which leave when the test ends."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hedgerow.message import Message
from hedgerow.multicast.io.endpoint import MulticastEndpoint
from hedgerow.multicast.io.interfaces import Choice, choose
from hedgerow.multicast.io.options import MulticastOptions


def own_topic() -> str:
    """A topic of one test alone: with IPv4, tests at the same time share the groups of topics."""
    return f"test/{secrets.token_hex(8)}"


def loopback() -> Choice:
    return choose(MulticastOptions(("lo",), ip=4))


def stranger_on_loopback() -> socket.socket:
    """Whose datagrams to groups go out through the loopback interface."""
    stranger = socket.socket(type=socket.SOCK_DGRAM)
    stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    return stranger


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1


class Recorder(MulticastEndpoint):
    """Keeps what arrives."""

    def __init__(self, options: MulticastOptions) -> None:
        super().__init__(options, hears_itself=False)
        self.received: list[Message] = []
        self.held: list[Message] = []
        """Last values, once `on_held` puts them here; before, they are received like the others."""
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
