"""Datagrams sent on a host of their own, captured by dumpcap, and read by tshark with our dissectors."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts import INTERFACE, Host, network
from tests.programs import ROOT, need_program, wait_until
from tests.waiting import PATIENCE_S

DISSECTORS = ROOT / "tools/wireshark/hedgerow.lua"
LOOPBACK = "127.0.0.1"


class Datagram(NamedTuple):
    data: bytes
    to_port: int
    from_port: int = 40_000
    to: str = LOOPBACK
    """An IPv6 group leaves by the host's interface, whose MTU is 1,500."""


class Dissected(NamedTuple):
    protocol: str
    info: str
    fields: dict[str, Any]
    """By their full names, those within other fields too; a list where a name is there several times."""
    is_malformed: bool


SEND = """
import json, socket, sys
for data, to_port, from_port, to in json.load(sys.stdin):
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind(("", from_port))
        scope = (0, socket.if_nametoindex(sys.argv[1])) if family == socket.AF_INET6 else ()
        sender.sendto(bytes.fromhex(data), (to, to_port, *scope))
"""


def dissect(
    directory: Path, datagrams: list[Datagram], *options: str, snap_bytes: int = 65_535
) -> list[Dissected]:
    """What tshark says of each, in the order of sending. All must go by the same interface."""
    tshark = need_dissecting_tshark()
    capture = directory / "capture.pcapng"
    with network(count=1) as net:
        _capture(net.hosts[0], datagrams, capture, snap_bytes)
    command = [tshark, "-X", f"lua_script:{DISSECTORS}", "-r", str(capture), *options]
    packets = json.loads(_output(command, "-T", "json", "--no-duplicate-keys"))
    columns = _output(command, "-T", "tabs", "-o", 'gui.column.format:"P","%p","I","%i"')
    lines = columns.decode().strip("\n").split("\n")
    assert len(lines) == len(packets) == len(datagrams)
    return [
        _dissected(line, packet["_source"]["layers"]) for line, packet in zip(lines, packets, strict=True)
    ]


def _output(command: list[str], *options: str) -> bytes:
    done = subprocess.run([*command, *options], capture_output=True, check=True, timeout=PATIENCE_S)
    assert b"Lua" not in done.stderr, done.stderr.decode()
    return done.stdout


@cache
def need_dissecting_tshark() -> str:
    tshark = need_program("tshark")
    need_program("dumpcap")
    asked = subprocess.run(
        [tshark, "-G", "protocols", "-X", f"lua_script:{DISSECTORS}"], capture_output=True, check=False
    )
    if b"hedgerow.sensor" not in asked.stdout:
        said = asked.stderr.decode().strip()
        if DISSECTORS.name in said:
            pytest.fail(f"the dissectors do not load: {said}")
        pytest.skip(f"this tshark runs no Lua scripts; it said: {said or 'nothing'}")
    return tshark


def _capture(host: Host, datagrams: list[Datagram], capture: Path, snap_bytes: int) -> None:
    interface = INTERFACE if ":" in datagrams[0].to else "lo"
    log = capture.with_suffix(".log")
    command = [need_program("dumpcap"), "-q", "-i", interface, "-f", "udp", "-c", str(len(datagrams))]
    command += ["-s", str(snap_bytes)]
    with log.open("wb") as output:
        dumpcap = host.run([*command, "-w", capture], stderr=output)
    # It names the file when the interface is open, and ends by itself at the last datagram.
    wait_until(lambda: b"File:" in log.read_bytes() or dumpcap.poll() is not None, "dumpcap to begin")
    listed = [[datagram.data.hex(), *datagram[1:]] for datagram in datagrams]
    subprocess.run(
        [*host.wrapper, sys.executable, "-c", SEND, INTERFACE],
        input=json.dumps(listed).encode(),
        check=True,
        timeout=PATIENCE_S,
    )
    wait_until(lambda: dumpcap.poll() is not None, "dumpcap to see every datagram")
    assert dumpcap.returncode == 0, log.read_text()


def _dissected(line: str, layers: dict[str, Any]) -> Dissected:
    protocol, _, info = line.partition("\t")
    fields: dict[str, Any] = {}
    _collect(layers, fields)
    is_malformed = any(name.endswith(".malformed") for name in fields)
    return Dissected(protocol.strip(), info.strip(), fields, is_malformed)


def _collect(tree: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, value in tree.items():
        values = value if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, dict):
                _collect(one, fields)
            elif name in fields:
                before = fields[name]
                fields[name] = [*before, one] if isinstance(before, list) else [before, one]
            else:
                fields[name] = one
