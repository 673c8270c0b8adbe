"""The lab's hosts (`lab/harness/hosts.py`) for tests: programs on them end with them, cables can be pulled,
and datagrams lost.

    with network(count=3) as net:
        process = net.hosts[0].run([sys.executable, "-c", ...], stdout=subprocess.PIPE)
        net.hosts[1].unplug()

Where there can be no such hosts, tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from hedgerow_workshop.lab.harness import hosts as lab_hosts
from hedgerow_workshop.lab.harness.hosts import SWITCH, NoHostsError, call
from tests.programs import end, need_program

INTERFACE = lab_hosts.INTERFACE

DATAGRAM_LOSS = """
    40 0 0 12,          ldh [12]           the frame's EtherType
    21 2 0 2048,        jeq IPv4, +2
    21 3 0 34525,       jeq IPv6, +3
    5  0 0 8,           ja keep
    48 0 0 23,          ldb [23]           the IPv4 protocol, which every fragment has
    21 3 6 17,          jeq UDP, +3, keep
    48 0 0 20,          ldb [20]           the IPv6 next header
    21 1 0 17,          jeq UDP, +1
    21 0 3 44,          jeq fragment, +0, keep
    32 0 0 4294963256,  ld random          SKF_AD_OFF + SKF_AD_RANDOM
    53 1 0 {threshold}, jge threshold, keep
    6  0 0 2,           ret TC_ACT_SHOT
    6  0 0 0            ret TC_ACT_OK
"""
"""Classic BPF that drops UDP and nothing else: a lost ARP or neighbour reply costs a second of silence,
which would hide the loss that was asked for. A host's own multicast, looped back to it, is no Ethernet
frame and passes."""


@dataclass
class Host(lab_hosts.Host):
    _switch: tuple[str, ...]
    _running: ExitStack
    _losing: bool = field(default=False, init=False)

    interface = INTERFACE

    def run(
        self,
        command: Sequence[str | Path],
        *,
        stdin: IO[bytes] | int | None = subprocess.DEVNULL,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on this host. It is ended with the network, if not before."""
        process = subprocess.Popen(
            [*self.wrapper, *command], stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env
        )
        self._running.callback(_end, process)
        return process

    def unplug(self) -> None:
        """Cut the host off silently: its interface stays up, and what it sends is heard by nobody."""
        call(self._switch, "ip", "link", "set", self.port, "nomaster")

    def plug(self) -> None:
        call(self._switch, "ip", "link", "set", self.port, "master", SWITCH)

    def lose(self, percent: float) -> None:
        """Lose this share of the UDP datagrams that arrive, at random and before any program sees them."""
        need_program("tc")
        try:
            if self._losing:
                call(self.wrapper, "tc", "qdisc", "delete", "dev", INTERFACE, "clsact")
            self._losing = percent > 0
            if self._losing:
                call(self.wrapper, "tc", "qdisc", "add", "dev", INTERFACE, "clsact")
                attach = f"tc filter add dev {INTERFACE} ingress protocol all pref 1 bpf da bytecode"
                call(self.wrapper, *attach.split(), _loss_program(percent))
        except NoHostsError as error:
            pytest.skip(str(error))


@dataclass(frozen=True)
class Network:
    hosts: list[Host]


@contextmanager
def network(
    count: int = 3, *, ipv4: bool = True, ipv6: bool = True, subnet: str = "10.77.0.0/24"
) -> Iterator[Network]:
    """As the lab's, with tests' hosts."""
    with ExitStack() as namespaces, ExitStack() as running:
        try:
            net = namespaces.enter_context(lab_hosts.network(count, ipv4=ipv4, ipv6=ipv6, subnet=subnet))
        except NoHostsError as error:
            pytest.skip(str(error))
        yield Network([Host(**vars(host), _switch=net.switch, _running=running) for host in net.hosts])


def _loss_program(percent: float) -> str:
    """The BPF program as `tc` wants it: the number of instructions, then each as `code jt jf k`."""
    instructions = [" ".join(line.split()[:4]).rstrip(",") for line in DATAGRAM_LOSS.strip().splitlines()]
    program = ",".join([str(len(instructions)), *instructions])
    return program.format(threshold=min(int(percent / 100 * 2**32), 2**32 - 1))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        end(process)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
