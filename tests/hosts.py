"""Several hosts on one machine: network namespaces whose cables meet in a bridge.

    with network(count=3) as net:
        process = net.hosts[0].run([sys.executable, "-c", ...], stdout=subprocess.PIPE)
        net.hosts[1].unplug()

Each host has an interface `eth0`, no default route and no DNS. The bridge lives in a namespace of its
own that nothing else is connected to, so no packet reaches the machine's own network. Namespaces have no
names: each exists for as long as a process in it does, here a `cat` that ends when its standard input
closes. So a test run that is killed leaves nothing, and two runs at once cannot collide. A user who is
not root gets the same inside a user namespace, where the system allows that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO

import pytest

from tests.programs import end, need_program

INTERFACE = "eth0"
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
class Host:
    """One namespace; `wrapper` is the command prefix that runs a program in it, as `programs.Node` takes."""

    wrapper: tuple[str, ...]
    address4: str | None
    address6: str | None
    """Link-local, without `%eth0`."""
    _switch: tuple[str, ...]
    _port: str
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
        _call(self._switch, "ip", "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        _call(self._switch, "ip", "link", "set", self._port, "master", "bridge")

    def lose(self, percent: float) -> None:
        """Lose this share of the UDP datagrams that arrive, at random and before any program sees them."""
        if self._losing:
            _call(self.wrapper, "tc", "qdisc", "delete", "dev", INTERFACE, "clsact")
        self._losing = percent > 0
        if self._losing:
            _call(self.wrapper, "tc", "qdisc", "add", "dev", INTERFACE, "clsact", may_skip=True)
            attach = f"tc filter add dev {INTERFACE} ingress protocol all pref 1 bpf da bytecode"
            _call(self.wrapper, *attach.split(), _loss_program(percent), may_skip=True)


@dataclass(frozen=True)
class Network:
    hosts: list[Host]


@contextmanager
def network(
    count: int = 3, *, ipv4: bool = True, ipv6: bool = True, subnet: str = "10.77.0.0/24"
) -> Iterator[Network]:
    """Hosts 1 to `count`, with the subnet's addresses .1, .2, … and fe80::1, fe80::2, …"""
    for program in ("unshare", "nsenter", "setpriv", "ip", "tc", "cat"):
        need_program(program)
    subnet4 = IPv4Network(subnet)
    with ExitStack() as namespaces, ExitStack() as running:
        switch = _new_namespace(namespaces, ())
        _disable_ipv6(switch)  # The bridge must not speak on the network itself.
        # Flood every group: what snooping learns depends on a querier, and networks differ in having one.
        _ip(switch, ["link add bridge type bridge mcast_snooping 0", "link set bridge up"], may_skip=True)
        hosts = []
        for number in range(1, count + 1):
            # In the switch's user namespace, where there is one: an interface may not leave it.
            wrapper = _new_namespace(namespaces, switch)
            address4 = str(subnet4[number]) if ipv4 else None
            address6 = f"fe80::{number:x}" if ipv6 else None
            port = f"port{number}"
            _connect(switch, port, wrapper)
            _configure(wrapper, address4 and f"{address4}/{subnet4.prefixlen}", address6 and f"{address6}/64")
            hosts.append(Host(wrapper, address4, address6, switch, port, running))
        yield Network(hosts)


def _new_namespace(namespaces: ExitStack, inside: tuple[str, ...]) -> tuple[str, ...]:
    """The command prefix that enters a new network namespace, which lasts as long as the stack."""
    user = os.geteuid() != 0
    command = [*inside, "unshare", "--net"]
    if user and not inside:
        command += ["--user", "--map-root-user"]
    pipe = subprocess.PIPE
    keeper = subprocess.Popen([*command, "cat"], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    namespaces.callback(_release, keeper)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    with suppress(BrokenPipeError):
        keeper.stdin.write(b"?")
    if not keeper.stdout.read(1):  # The echo says that `cat` runs, so the namespace exists.
        pytest.skip(f"no network namespaces here: {keeper.stderr.read().decode().strip()}")
    enter = ["nsenter", f"--target={keeper.pid}", "--net"]
    if user:
        enter += ["--user", "--preserve-credentials"]
    # A program must not outlive a test run that is killed: it would keep the namespace.
    return (*enter, "--", "setpriv", "--pdeathsig", "KILL")


def _connect(switch: tuple[str, ...], port: str, host: tuple[str, ...]) -> None:
    """Lay a cable from a new port of the bridge to the host's interface."""
    target = next(word for word in host if word.startswith("--target=")).removeprefix("--target=")
    lines = [
        f"link add {port} type veth peer name {INTERFACE} netns {target}",
        f"link set {port} master bridge up",
    ]
    _ip(switch, lines, may_skip=True)


def _configure(host: tuple[str, ...], address4: str | None, address6: str | None) -> None:
    if address6 is None:
        _disable_ipv6(host)
    # No address made from the MAC: duplicate address detection would keep it unusable for a second.
    lines = ["link set lo up", f"link set {INTERFACE} addrgenmode none", f"link set {INTERFACE} up"]
    if address4 is not None:
        lines.append(f"address add {address4} dev {INTERFACE}")
    if address6 is not None:
        lines.append(f"address add {address6} dev {INTERFACE} nodad")
    _ip(host, lines, may_skip=True)


def _disable_ipv6(namespace: tuple[str, ...]) -> None:
    script = "for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $file ] || echo 1 >$file; done"
    _call(namespace, "sh", "-c", script)


def _loss_program(percent: float) -> str:
    """The BPF program as `tc` wants it: the number of instructions, then each as `code jt jf k`."""
    instructions = [" ".join(line.split()[:4]).rstrip(",") for line in DATAGRAM_LOSS.strip().splitlines()]
    program = ",".join([str(len(instructions)), *instructions])
    return program.format(threshold=min(int(percent / 100 * 2**32), 2**32 - 1))


def _ip(namespace: tuple[str, ...], lines: list[str], *, may_skip: bool = False) -> None:
    _call(namespace, "ip", "-batch", "-", text="\n".join(lines), may_skip=may_skip)


def _call(
    namespace: tuple[str, ...], program: str, *arguments: str, text: str = "", may_skip: bool = False
) -> None:
    """Run a command that must succeed; `may_skip` where a kernel may lack what it asks for."""
    command = [*namespace, need_program(program), *arguments]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        what = f"`{' '.join([program, *arguments])}`: {done.stderr.decode().strip()}"
        if may_skip:
            pytest.skip(f"this kernel refuses {what}")
        pytest.fail(what)


def _release(keeper: subprocess.Popen[bytes]) -> None:
    with keeper:  # Closes its standard input, so it ends, and waits for that.
        pass


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        end(process)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
