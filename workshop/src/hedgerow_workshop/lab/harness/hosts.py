"""Several hosts on one machine: network namespaces whose cables meet in a switch.

    with network(3) as net:
        subprocess.run([*net.hosts[0].wrapper, "hostname"])

Each host has an interface `eth0`, no default route and no DNS. The switch is a bridge in a namespace of its
own that nothing else is connected to, so no packet reaches the machine's own network. Namespaces have no
names: each exists for as long as a process in it does, here a `cat` that ends when its standard input
closes. So whoever is killed leaves nothing, and two networks at once cannot collide. A user who is not root
gets the same inside a user namespace, where the system allows that.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import NamedTuple

from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.programs import find_program

INTERFACE = "eth0"
SWITCH = "bridge"
"""The switch's own interface: what it hears is all that hosts send."""


class NoHostsError(LabError):
    """There can be no such hosts here; the text says what is missing."""


# Classic BPF, as `code jt jf k`, that drops some of what arrives. ARP and neighbour discovery always pass: a
# lost reply costs a second of silence, which would hide the loss that was asked for. A host's own multicast,
# looped back to it, is no Ethernet frame and passes.
_LOSS = """
    40 0  0  12,          ldh [12]        the frame's EtherType
    21 2  0  2048,        jeq IPv4, +2
    21 4  0  34525,       jeq IPv6, +4
    5  0  0  10,          ja keep
    48 0  0  23,          ldb [23]        the IPv4 protocol, which every fragment has
    21 5  0  17,          jeq UDP, +5
    21 4  7  {also},      jeq TCP or UDP, +4, keep
    48 0  0  20,          ldb [20]        the IPv6 next header
    21 2  0  17,          jeq UDP, +2
    21 1  0  {also},      jeq TCP or UDP, +1
    21 0  3  44,          jeq fragment, +0, keep
    32 0  0  4294963256,  ld random       SKF_AD_OFF + SKF_AD_RANDOM
    53 1  0  {threshold}, jge threshold, keep
    6  0  0  2,           ret TC_ACT_SHOT
    6  0  0  0            ret TC_ACT_OK
"""


@dataclass
class Host:
    """One namespace; `wrapper` is the command prefix that runs a program in it."""

    wrapper: tuple[str, ...]
    address4: str | None
    address6: str | None
    """Link-local, without `%eth0`."""
    port: str
    """Of the switch, where its cable ends."""
    is_losing: bool = field(default=False, init=False)

    def lose(self, percent: float, *, tcp: bool = False) -> None:
        """Lose this share of the UDP datagrams that arrive, or of TCP segments too, at random and before any
        program sees them."""
        if self.is_losing:
            call(self.wrapper, "tc", "qdisc", "delete", "dev", INTERFACE, "clsact")
        self.is_losing = percent > 0
        if self.is_losing:
            call(self.wrapper, "tc", "qdisc", "add", "dev", INTERFACE, "clsact")
            attach = f"tc filter add dev {INTERFACE} ingress protocol all pref 1 bpf da bytecode"
            call(self.wrapper, *attach.split(), _loss_program(percent, tcp))


class Counted(NamedTuple):
    """Bytes of frames so far."""

    sent: int
    """By hosts."""
    carried: int
    """On all cables: what a switch passes on to several hosts is on several."""


@dataclass(frozen=True)
class Network:
    hosts: list[Host]
    switch: tuple[str, ...]
    """The command prefix that runs a program in the switch's namespace."""

    def count(self) -> Counted:
        """By the kernel's own counters."""
        counters = json.loads(call(self.switch, "ip", "-json", "-stats", "link", "show"))
        ports = {host.port for host in self.hosts}
        of_ports = [each["stats64"] for each in counters if each["ifname"] in ports]
        sent = sum(each["rx"]["bytes"] for each in of_ports)
        return Counted(sent, sent + sum(each["tx"]["bytes"] for each in of_ports))


@contextmanager
def network(
    count: int, *, ipv4: bool = True, ipv6: bool = True, subnet: str = "10.77.0.0/24"
) -> Iterator[Network]:
    """Hosts 1 to `count`, with the subnet's addresses .1, .2, … and fe80::1, fe80::2, …

    Raises NoHostsError.
    """
    with ExitStack() as namespaces:
        yield _build(namespaces, count, ipv4, ipv6, IPv4Network(subnet))


def why_not() -> str | None:
    """Why there can be no hosts here; None: there can."""
    try:
        with network(1):
            return None
    except NoHostsError as error:
        return str(error)


def _build(namespaces: ExitStack, count: int, ipv4: bool, ipv6: bool, subnet: IPv4Network) -> Network:
    switch = _new_namespace(namespaces, ())
    _disable_ipv6(switch)  # The switch must not speak on the network itself.
    # Flood every group: what snooping learns depends on a querier, and networks differ in having one.
    _ip(switch, [f"link add {SWITCH} type bridge mcast_snooping 0", f"link set {SWITCH} up"])
    hosts = []
    for number in range(1, count + 1):
        # In the switch's user namespace, where there is one: an interface may not leave it.
        wrapper = _new_namespace(namespaces, switch)
        address4 = str(subnet[number]) if ipv4 else None
        address6 = f"fe80::{number:x}" if ipv6 else None
        port = f"port{number}"
        _connect(switch, port, wrapper)
        _configure(wrapper, address4 and f"{address4}/{subnet.prefixlen}", address6 and f"{address6}/64")
        hosts.append(Host(wrapper, address4, address6, port))
    return Network(hosts, switch)


def _new_namespace(namespaces: ExitStack, inside: tuple[str, ...]) -> tuple[str, ...]:
    """The command prefix that enters a new network namespace, which lasts as long as the stack."""
    user = os.geteuid() != 0
    command = [*inside, _program("unshare"), "--net"]
    if user and not inside:
        command += ["--user", "--map-root-user"]
    pipe = subprocess.PIPE
    keeper = subprocess.Popen([*command, _program("cat")], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    namespaces.callback(_release, keeper)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    with suppress(BrokenPipeError):
        keeper.stdin.write(b"?")
    if not keeper.stdout.read(1):  # The echo says that `cat` runs, so the namespace exists.
        raise NoHostsError(f"no network namespaces here: {keeper.stderr.read().decode().strip()}")
    enter = [_program("nsenter"), f"--target={keeper.pid}", "--net"]
    if user:
        enter += ["--user", "--preserve-credentials"]
    # A program must not outlive one that is killed: it would keep the namespace.
    return (*enter, "--", _program("setpriv"), "--pdeathsig", "KILL")


def _connect(switch: tuple[str, ...], port: str, host: tuple[str, ...]) -> None:
    """Lay a cable from a new port of the switch to the host's interface."""
    target = next(word for word in host if word.startswith("--target=")).removeprefix("--target=")
    lines = [
        f"link add {port} type veth peer name {INTERFACE} netns {target}",
        f"link set {port} master {SWITCH} up",
    ]
    _ip(switch, lines)


def _configure(host: tuple[str, ...], address4: str | None, address6: str | None) -> None:
    if address6 is None:
        _disable_ipv6(host)
    # No address made from the MAC: duplicate address detection would keep it unusable for a second.
    lines = ["link set lo up", f"link set {INTERFACE} addrgenmode none", f"link set {INTERFACE} up"]
    if address4 is not None:
        lines.append(f"address add {address4} dev {INTERFACE}")
    if address6 is not None:
        lines.append(f"address add {address6} dev {INTERFACE} nodad")
    _ip(host, lines)


def _disable_ipv6(namespace: tuple[str, ...]) -> None:
    script = "for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $file ] || echo 1 >$file; done"
    call(namespace, "sh", "-c", script)


def _ip(namespace: tuple[str, ...], lines: list[str]) -> None:
    call(namespace, "ip", "-batch", "-", text="\n".join(lines))


def call(namespace: tuple[str, ...], program: str, *arguments: str, text: str = "") -> str:
    """What a command says that must succeed. Raises NoHostsError: a kernel may lack what it asks for."""
    command = [*namespace, _program(program), *arguments]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        what = f"`{' '.join([program, *arguments])}`: {done.stderr.decode().strip()}"
        raise NoHostsError(f"this kernel refuses {what}")
    return done.stdout.decode()


def _loss_program(percent: float, tcp: bool) -> str:
    """As `tc` wants it: the number of instructions, then each."""
    instructions = [" ".join(line.split()[:4]).rstrip(",") for line in _LOSS.strip().splitlines()]
    program = ",".join([str(len(instructions)), *instructions])
    return program.format(threshold=min(int(percent / 100 * 2**32), 2**32 - 1), also=6 if tcp else 17)


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise NoHostsError(f"{name} is not installed")
    return found


def _release(keeper: subprocess.Popen[bytes]) -> None:
    with keeper:  # Closes its standard input, so it ends, and waits for that.
        pass
