"""What happens when descriptors run out, and when nothing can serve a connection."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import time
from pathlib import Path
from typing import ClassVar

import pytest

from hedgerow.node.link import Entrance, Link
from hedgerow.node.listener import Factory
from hedgerow.node.listeners import Listeners
from tests.conftest import StartNode
from tests.node.peers import connected, part_of, port_of, running, with_part
from tests.programs import wait_until
from tests.waiting import until

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c"


def test_no_descriptors_left_is_survived(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    assert node.process is not None
    pid = node.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", node.port())) as first:
        first.sendall(CONNECT)
        assert first.recv(4) == b"\x20\x02\x00\x00"
        in_use = 1 + max(map(int, (path.name for path in Path(f"/proc/{pid}/fd").iterdir())))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use, limits[1]))
        with socket.create_connection(("127.0.0.1", node.port())) as waiting:
            waiting.sendall(CONNECT.replace(b"c", b"d"))
            wait_until(lambda: "no new connections" in node.log, "the log to say so")
            cpu_before = _cpu_s(pid)
            time.sleep(1)  # long enough for two more attempts, and for a busy loop to show
            assert _cpu_s(pid) - cpu_before < 0.3
            assert len(re.findall("no new connections", node.log)) == 1
            first.sendall(b"\xc0\x00")
            assert first.recv(2) == b"\xd0\x00"  # those that are connected are served
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            waiting.settimeout(10)
            assert waiting.recv(4) == b"\x20\x02\x00\x00"


class BrokenLink(Link):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raise ValueError("a mistake of ours")


class BrokenLinks(Listeners):
    """Links that cannot be made, or that fail when they are open."""

    is_broken = True
    makes_none: ClassVar[bool]

    def factory(self, scheme: str) -> Factory:
        return self.make

    def make(self, listener: Entrance, address: str) -> Link:
        if self.is_broken and self.makes_none:
            raise ValueError("a mistake of ours")
        return (BrokenLink if self.is_broken else Link)(self.node, listener, address)


class NoLinks(BrokenLinks):
    makes_none = True


class FailingLinks(BrokenLinks):
    makes_none = False


@pytest.mark.parametrize("kind", [NoLinks, FailingLinks])
async def test_a_connection_that_cannot_be_served_ends_and_counts_for_nothing(
    caplog: pytest.LogCaptureFixture, kind: type[BrokenLinks]
) -> None:
    async with running(table=with_part("listeners", kind)) as server:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        if kind is NoLinks:
            assert await reader.read() == b""
            assert "failed to open" in caplog.text
        writer.close()
        await until(lambda: server.sockets.opening == 0, "the connection to be counted no more")
        part_of(server, kind).is_broken = False
        async with connected(port_of(server), "next"):
            assert server.open_sockets == 1


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
