"""Many receivers, each on a host of its own, from one start of Python: for tests.

    python crowd.py URL PID…

For each PID a receiver is forked that enters the network namespace of that process. It subscribes to `must`
and `may` and prints `ready`; when the last message of `must` has come, which is `end`, it prints as JSON what
it got. All leave when this program is ended, however that comes about.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hedgerow.client.bus import Bus
from hedgerow.client.multicast_transport import MulticastTransport
from hedgerow.client.urls import parse_url
from hedgerow.multicast.frame import FrameKind, parse_header
from hedgerow.multicast.groups import topic_crc
from hedgerow.multicast.io import mdns
from hedgerow.multicast.io.options import read_options
from hedgerow.multicast.member import Member

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
MUST, MAY = "must", "may"


class Losses:
    """Which frames of the stream of `must` were lost on their way: later ones arrive before them."""

    def __init__(self, member: Member) -> None:
        self.sequences: list[int] = []
        self._crc = topic_crc(MUST)
        self._highest = 0
        self._receive = member.receive_datagram
        member.receive_datagram = self._look  # type: ignore[method-assign, assignment]

    def _look(self, data: bytes, *arguments: Any) -> None:
        header = parse_header(data)
        if header.crc == self._crc and header.kind in (FrameKind.DATA, FrameKind.HEARTBEAT):
            last = header.stream_sequence
            is_data = header.kind == FrameKind.DATA
            self.sequences += range(self._highest + 1, last if is_data else last + 1)
            self._highest = max(self._highest, last)
        self._receive(data, *arguments)


async def receive(url: str, ended: int) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_reader(ended, end.set)
    address = parse_url(url)
    transport = MulticastTransport(read_options(address.host, address.port, address.rest))
    await transport.open()
    async with Bus(transport) as bus:
        taking = asyncio.create_task(take(bus, transport.endpoint.member))
        await end.wait()
        taking.cancel()


async def take(bus: Bus, member: Member) -> None:
    losses = Losses(member)
    got: dict[str, list[str]] = {MUST: [], MAY: []}
    async with bus.subscribe(MUST, MAY, qos=1) as messages:
        tell("ready")
        async for message in messages:
            got[message.topic].append(message.payload.decode())
            if got[MUST][-1:] == ["end"]:
                break
        requests = member.stats.repairs_requested
        report = {"must": got[MUST], "may": got[MAY], "lost": losses.sequences, "requests": requests}
        tell(json.dumps(report))


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # One call, so that the lines of many do not mix.


def enter_network_of(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(url: str, pids: list[int]) -> None:
    ended, running = os.pipe()
    receivers = []
    for pid in pids:
        receiver = os.fork()
        if not receiver:
            os.close(running)
            enter_network_of(pid)
            asyncio.run(receive(url, ended))
            return
        receivers.append(receiver)
    signal.sigwait([signal.SIGTERM])
    os.close(running)
    for receiver in receivers:
        os.waitpid(receiver, 0)


if __name__ == "__main__":
    # With IPv6 multicast DNS only finds peers for where multicast is filtered. Among fifty on one machine it
    # would cost more than what is measured.
    mdns.START_PEERS_S = 3_600.0
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main(sys.argv[1], [int(pid) for pid in sys.argv[2:]])
