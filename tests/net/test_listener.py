"""How often an address may connect, and what happens when descriptors run out."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from pathlib import Path

from hedgerow.net import listener
from hedgerow.net.listener import ConnectRate
from tests.conftest import StartNode
from tests.programs import wait_until

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c"


def test_a_rate_allows_its_burst_and_then_its_pace() -> None:
    rate = ConnectRate(per_s=2, burst=4)
    assert [rate.allows("192.0.2.1", 100.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert rate.allows("192.0.2.2", 100.0)  # another address has its own
    assert not rate.allows("192.0.2.1", 100.4)
    assert rate.allows("192.0.2.1", 100.5)
    assert not rate.allows("192.0.2.1", 100.5)
    assert [rate.allows("192.0.2.1", 200.0) for _ in range(5)] == [True] * 4 + [False]


def test_refusals_do_not_lengthen_the_wait() -> None:
    rate = ConnectRate(per_s=1, burst=1)
    assert rate.allows("192.0.2.1", 0.0)
    assert not any(rate.allows("192.0.2.1", n / 1000) for n in range(1, 1000))
    assert rate.allows("192.0.2.1", 1.0)


def test_zero_is_no_limit() -> None:
    rate = ConnectRate(per_s=0, burst=0)
    assert all(rate.allows("192.0.2.1", 0.0) for _ in range(10_000))


def test_one_ipv6_site_is_one_address() -> None:
    rate = ConnectRate(per_s=1, burst=1)
    assert rate.allows("2001:db8::1", 0.0)
    assert not rate.allows("2001:db8::ffff:2", 0.0)
    assert rate.allows("2001:db8:0:1::1", 0.0)
    assert rate.allows("fe80::1%eth0", 0.0)


def test_loopback_is_spared_only_when_asked() -> None:
    spared, held = ConnectRate(1, 1, spare_loopback=True), ConnectRate(1, 1)
    for address in ("127.0.0.1", "::1"):
        assert [spared.allows(address, 0.0), spared.allows(address, 0.0)] == [True, True]
        assert [held.allows(address, 0.0), held.allows(address, 0.0)] == [True, False]


def test_the_table_of_addresses_is_bounded() -> None:
    rate = ConnectRate(per_s=1, burst=1)
    assert rate.allows("203.0.113.1", 0.0)
    for n in range(3 * listener.MAX_ADDRESSES):
        assert rate.allows(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 0.5)
        assert len(rate._full_at) <= listener.MAX_ADDRESSES
    newest = f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
    assert not rate.allows(newest, 0.5)  # whoever connected just now is not forgotten


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
