"""What happens when descriptors run out, and when nothing can serve a connection."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import time
from pathlib import Path

import pytest

from hedgerow.node.link import Link
from tests.conftest import StartNode
from tests.node.peers import connected, port_of, running
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


@pytest.mark.parametrize("method", ["__init__", "connection_made"])
async def test_a_connection_that_cannot_be_served_ends_and_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("a mistake of ours")

    async with running() as server:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with monkeypatch.context() as patch:
            patch.setattr(Link, method, fail)
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            if method == "__init__":
                assert await reader.read() == b""
                assert "failed to open" in caplog.text
            writer.close()
        await until(lambda: server.sockets.opening == 0, "the connection to be counted no more")
        async with connected(port_of(server), "next"):
            assert server.open_sockets == 1


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
