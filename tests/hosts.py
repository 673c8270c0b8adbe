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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from hedgerow_workshop.lab.harness import hosts as lab_hosts
from hedgerow_workshop.lab.harness.hosts import SWITCH, NoHostsError, call
from tests.programs import end, need_program

INTERFACE = lab_hosts.INTERFACE


@dataclass
class Host(lab_hosts.Host):
    _switch: tuple[str, ...]
    _running: ExitStack

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

    def lose(self, percent: float, *, tcp: bool = False) -> None:
        need_program("tc")
        try:
            super().lose(percent, tcp=tcp)
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
        yield Network(
            [
                Host(each.wrapper, each.address4, each.address6, each.port, net.switch, running)
                for each in net.hosts
            ]
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        end(process)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
