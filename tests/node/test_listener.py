"""What happens when descriptors run out."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from pathlib import Path

from tests.conftest import StartNode
from tests.programs import wait_until

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


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
