"""What a node needs of its machine, checked before it runs: ports, multicast, names, clock, limits, files.

Each check is a function from a configuration to findings; what else it takes is how the machine is asked. It
changes nothing and waits a second at most. No name is looked up, and datagrams have a hop limit of 0: what
others can see of it is the kernel's own IGMP report, which does not leave the link, that somebody joined a
group.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import secrets
import select
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hedgerow.broker.limits import MIB
from hedgerow.errors import ConfigError, counted, reason_of
from hedgerow.federation.config import FederationConfig
from hedgerow.journal.config import JournalConfig
from hedgerow.kinds import CHAPTERS
from hedgerow.multicast.config import Multicast
from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, ipv6_group
from hedgerow.multicast.io.interfaces import Interface, find
from hedgerow.multicast.io.sockets import open_receivers, open_sender
from hedgerow.multicast.limits import SCOPES
from hedgerow.node import udp
from hedgerow.node.authority import authority
from hedgerow.node.backlogs import (
    FILE,
    NEAR,
    Backlogs,
    decode,
    owner_in_words,
    reader_in_words,
    room_in_words,
    time_in_words,
)
from hedgerow.node.config import Config
from hedgerow.node.config_keys import LISTENERS
from hedgerow.node.files import read_regular
from hedgerow.node.open_sockets import places
from hedgerow.node.values import Address
from hedgerow.sensors.config import SensorSettings

OK, WARNING, PROBLEM = "ok", "warning", "problem"
STATES = (OK, WARNING, PROBLEM)

HEARD_S = 1.0
FEW_BYTES, VERY_FEW_BYTES = 1024 * MIB, 64 * MIB
EARLIEST = 1_735_689_600.0  # 2025-01-01: before this program was
CLOCK_SAMPLE_S, CLOCK_STEP_S = 0.2, 0.05
SHOWN_OF_COMMAND = 80  # characters
SHOWN_READERS = 5


class Finding(NamedTuple):
    state: str
    """One of STATES. A problem is in the way of a node; a warning may be, or is of some of its parts."""
    seen: str
    advice: str = ""


# Ports

Bind = Callable[[str, int, int], OSError | None]
"""Why a host and port cannot be bound by a socket of this kind."""
FindHolder = Callable[[int, int], tuple[int, str] | None]
"""(process id, command) of who has bound a port by a socket of this kind."""


def bind_failure(
    host: str,
    port: int,
    kind: int,
    look_up: Callable[..., Sequence[tuple[int, int, int, str, Any]]] = socket.getaddrinfo,
) -> OSError | None:
    """Why it cannot be bound. As a node binds it, but nobody can connect to it."""
    try:
        found = look_up(host, port, type=kind, flags=socket.AI_NUMERICHOST)
        family, _, _, _, place = found[0]
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(place)
    except OSError as error:
        # A system without IPv6 has no socket for it, and a node leaves that address out.
        return OSError(errno.EADDRNOTAVAIL, error.strerror) if error.errno == errno.EAFNOSUPPORT else error
    return None


def holder_of(port: int, kind: int = socket.SOCK_STREAM) -> tuple[int, str] | None:
    """(process id, command) of who has bound a port, as far as the system tells this user."""
    tables = ("tcp", "tcp6") if kind == socket.SOCK_STREAM else ("udp", "udp6")
    inodes = {f"socket:[{inode}]" for table in tables for inode in _inodes(Path("/proc/net") / table, port)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in inodes:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    text = b" ".join(words).decode(errors="replace").strip()
                    return int(process.name), "".join(each for each in text if each.isprintable())
    return None


def _inodes(table: Path, port: int) -> Iterator[str]:
    """proc(5): local address, state and inode; a connection that is open (01) holds no port against us."""
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            if int(words[1].rpartition(":")[2], 16) == port and words[3] != "01":
                yield words[9]


def check_ports(
    config: Config, bind: Bind = bind_failure, find_holder: FindHolder = holder_of
) -> list[Finding]:
    """That every listener can have its address."""
    wanted = [(name, address, socket.SOCK_STREAM) for name in LISTENERS for address in getattr(config, name)]
    wanted += [("udp", address, socket.SOCK_DGRAM) for address in config.of(SensorSettings).udp]
    if not wanted:
        return [Finding(OK, "no listener is asked for")]
    return [_check_port(*each, bind, find_holder) for each in wanted]


def _check_port(name: str, address: Address, kind: int, bind: Bind, find_holder: FindHolder) -> Finding:
    failures = {}
    for host in address.bind_hosts:
        failure = bind(host, address.port, kind)
        if failure is not None:
            failures[host] = failure
    where = f"{name} {address}"
    others = [error for error in failures.values() if error.errno != errno.EADDRNOTAVAIL]
    if not others and len(failures) < len(address.bind_hosts):
        return Finding(OK, f"{where} is free" if address.port else f"{where}: the system chooses the port")
    error = (others or list(failures.values()))[0]
    flag = f"--{name} {authority(address.host, 0)}"
    if error.errno == errno.EADDRINUSE:
        return _taken(where, find_holder(address.port, kind), flag)
    if error.errno == errno.EACCES:
        advice = "choose a port from 1024 on, or allow it: sysctl net.ipv4.ip_unprivileged_port_start=0"
        return Finding(PROBLEM, f"{where} is for privileged users", advice)
    if error.errno == errno.EADDRNOTAVAIL:
        return Finding(
            PROBLEM, f"{where}: this machine has no such address", "ip address lists its addresses"
        )
    if isinstance(error, socket.gaierror):
        return Finding(OK, f"{where}: a name, which is not looked up here")
    return Finding(PROBLEM, f"{where}: {reason_of(error)}", f"choose another: {flag}")


def _taken(where: str, by: tuple[int, str] | None, flag: str) -> Finding:
    if by is None:
        return Finding(PROBLEM, f"{where} is taken, by a process of another user", f"choose another: {flag}")
    pid, command = by
    shown = command if len(command) <= SHOWN_OF_COMMAND else f"{command[: SHOWN_OF_COMMAND - 1]}…"
    seen = f"{where} is taken by process {pid}: {shown}"
    if "hedgerow" in (Path(word).name for word in command.split()[:3]):  # `python -m hedgerow` too
        return Finding(WARNING, seen, "a node runs there already")
    return Finding(PROBLEM, seen, f"end it, or choose another: {flag}")


# Multicast and IPv6

Hear = Callable[[int, list[Interface]], list[str]]
"""On which of the interfaces a datagram of an IP version comes back, by name."""


def heard_on(
    ip: int,
    interfaces: list[Interface],
    open_sender: Callable[[int, str, int, Interface, str], socket.socket] = open_sender,
) -> list[str]:
    """The names of those on which a datagram of ours came back."""
    token = secrets.token_bytes(16)
    group = CONTROL_GROUP_IPV4 if ip == 4 else ipv6_group(token.hex(), SCOPES["link"])
    names: dict[socket.socket, str] = {}
    heard: list[str] = []
    with ExitStack() as opened:
        for interface in interfaces:
            with suppress(OSError):
                (receiver,) = open_receivers(ip, [interface], group, 0)
                opened.enter_context(receiver)
                names[receiver] = interface.name
                port = receiver.getsockname()[1]
                with open_sender(ip, group, port, interface, "interface") as sender:  # a hop limit of 0
                    sender.send(token)
        give_up_at = time.monotonic() + HEARD_S
        while names and (left_s := give_up_at - time.monotonic()) > 0:
            ready = select.select(list(names), [], [], left_s)[0]
            heard += [names.pop(each) for each in ready if each.recv(64) == token]
    return heard


def check_multicast(config: Config, hear: Hear = heard_on) -> list[Finding]:
    """That a datagram to a group is heard again, on each interface, with IPv4 and with IPv6."""
    return [_check_multicast(ip, config, hear) for ip in (4, 6)]


def _check_multicast(ip: int, config: Config, hear: Hear) -> Finding:
    multicast = config.of(Multicast)
    options = multicast.options
    ready: list[Interface] = []
    lacking: dict[str, str] = {}
    for _, name in socket.if_nameindex():
        try:
            ready.append(find(name, ip, options))
        except ConfigError as error:
            lacking[name] = str(error)
    heard = hear(ip, ready)
    lacking |= {each.name: f"nothing was heard on {each.name}" for each in ready if each.name not in heard}
    seen = f"IPv{ip} multicast is heard on {', '.join(heard) or 'no interface'}"
    wanted = options.interfaces or [name for name in lacking if not _may_lack(lacking[name], name, heard)]
    reasons = [lacking[name] for name in wanted if name in lacking]
    if not reasons:
        return Finding(OK, seen)
    is_needed = bool(multicast.topics) and not heard and options.ip in (None, ip)
    advice = "if a firewall is in the way, allow UDP to 239.255.0.0/16 and ff00::/8"
    return Finding(PROBLEM if is_needed else WARNING, f"{seen}; {'; '.join(reasons)}", advice)


def _may_lack(reason: str, name: str, heard: list[str]) -> bool:
    """One that is down is meant to be; loopback, which Linux gives no route for IPv6 groups, is used only
    where there is nothing else."""
    return "is down" in reason or (name == "lo" and bool(heard))


def check_ipv6(config: Config, bind: Bind = bind_failure) -> list[Finding]:
    advice = "IPv4 alone is used; to have both: sysctl net.ipv6.conf.all.disable_ipv6=0"
    failure = bind("::1", 0, socket.SOCK_STREAM) if socket.has_ipv6 else OSError("this Python has none")
    if failure is not None:
        return [Finding(WARNING, f"no IPv6: {reason_of(failure)}", advice)]
    return [Finding(OK, "IPv6 works on loopback")]


def try_mdns() -> None:
    from zeroconf import Zeroconf

    Zeroconf(interfaces=["127.0.0.1"]).close()


def check_mdns(
    config: Config, attempt: Callable[[], None] = try_mdns, find_holder: FindHolder = holder_of
) -> list[Finding]:
    """That multicast DNS can be spoken, on loopback."""
    is_needed = config.mdns or config.of(FederationConfig).discover
    try:
        attempt()
    except Exception as error:  # the library raises whatever the system gave it
        holder = find_holder(5353, socket.SOCK_DGRAM)
        is_other = holder is not None and holder[0] != os.getpid()  # the attempt may still have it itself
        by = (
            f"; process {holder[0]} has port 5353: {holder[1][:SHOWN_OF_COMMAND]}"
            if holder and is_other
            else ""
        )
        advice = "neighbours are not found by themselves; name them: --neighbour URL"
        return [Finding(PROBLEM if is_needed else WARNING, f"{reason_of(error)}{by}", advice)]
    return [Finding(OK, "multicast DNS starts (port 5353)")]


# The clock


class Clock(Protocol):
    """As the module `time`."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def is_clock_synchronised() -> bool | None:
    """What the kernel says (adjtimex(2), which with no modes changes nothing); None: nothing."""
    if sys.platform != "linux":
        return None
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(1_024))
    time_error = 5
    return None if state < 0 else state != time_error


def check_clock(
    config: Config, clock: Clock = time, is_synchronised: Callable[[], bool | None] = is_clock_synchronised
) -> list[Finding]:
    """That it can be right, is not being moved, and that somebody synchronises it."""
    wall, steady = clock.time(), clock.monotonic()
    if wall < EARLIEST:
        today = time.strftime("%Y-%m-%d", time.gmtime(wall))
        advice = "set it: certificates are not valid yet, and what others send looks old"
        return [Finding(PROBLEM, f"the clock says {today}", advice)]
    clock.sleep(CLOCK_SAMPLE_S)
    step_s = (clock.time() - wall) - (clock.monotonic() - steady)
    if abs(step_s) > CLOCK_STEP_S:
        return [Finding(WARNING, f"the clock was moved by {step_s * 1e3:.0f} ms while it was looked at")]
    match is_synchronised():
        case True:
            return [Finding(OK, "synchronised")]
        case False:
            advice = "delays between machines are shown wrong; timedatectl set-ntp true"
            return [Finding(WARNING, "nobody synchronises it", advice)]
        case _:
            return [Finding(OK, "plausible; whether it is synchronised cannot be told here")]


# Limits and files


def check_open_files(
    config: Config, limits_of: Callable[[int], tuple[int, int]] = resource.getrlimit
) -> list[Finding]:
    soft, hard = limits_of(resource.RLIMIT_NOFILE)
    _, room = places(config, hard)
    if room >= config.limits.connections:
        return [
            Finding(
                OK,
                f"{soft} open files, which a node raises to {hard}" if soft < hard else f"{hard} open files",
            )
        ]
    seen = (
        f"{hard} open files at most: room for {room} connections of the {config.limits.connections} allowed"
    )
    state = WARNING if room else PROBLEM
    return [Finding(state, seen, "raise it: LimitNOFILE= in the service's unit, or ulimit -Hn")]


def granted_receive_buffer() -> int:
    with udp.open_socket(socket.AF_INET) as probe:
        return udp.granted_bytes(probe)


def check_receive_buffers(
    config: Config, granted: Callable[[], int] = granted_receive_buffer
) -> list[Finding]:
    """What a burst of datagrams waits in."""
    size = granted()
    seen = f"a UDP socket gets {size} of {udp.RECEIVE_BUFFER_BYTES} bytes"
    if size >= udp.RECEIVE_BUFFER_BYTES:
        return [Finding(OK, seen)]
    if not (config.of(Multicast).topics or config.of(SensorSettings).udp):
        return [Finding(OK, f"{seen}, which multicast and sensors would need")]
    advice = f"bursts beyond it are dropped; sysctl -w {udp.SETTING}={udp.RECEIVE_BUFFER_BYTES}"
    return [Finding(WARNING, seen, advice)]


def check_permissions(config: Config, may_use: Callable[[Path, int], bool] = os.access) -> list[Finding]:
    """That a node can keep what it must, and that nobody reads what is secret."""
    found = [_check_writable(directory, may_use) for directory in _directories(config)]
    files = {"passwords": config.passwords, "TLS key": None if config.tls is None else config.tls.key}
    for chapter in CHAPTERS:
        files |= chapter.secrets(config)
    found += [_check_secret(what, file, may_use) for what, file in files.items() if file is not None]
    return found or [Finding(OK, "nothing is kept on disk: no data directory, no password file")]


def _directories(config: Config) -> list[Path]:
    """Where a node keeps what it keeps."""
    journal = config.of(JournalConfig)
    directories = (config.data, journal.directory if journal.topics else None)
    return list(dict.fromkeys(each for each in directories if each is not None))


def _check_writable(directory: Path, may_use: Callable[[Path, int], bool]) -> Finding:
    place = nearest_existing(directory)
    if not place.is_dir() or not may_use(place, os.W_OK | os.X_OK):
        return Finding(PROBLEM, f"{place} cannot be written by this user", f"chown or chmod {place}")
    return Finding(OK, f"{directory} can be " + ("written" if directory.exists() else "made"))


def _check_secret(what: str, file: Path, may_use: Callable[[Path, int], bool]) -> Finding:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        return Finding(PROBLEM, f"{what}: {file}: {reason_of(error)}", "name a file that is there")
    if not may_use(file, os.R_OK):
        return Finding(PROBLEM, f"{what}: {file} cannot be read by this user", f"chown or chmod {file}")
    if mode & 0o007:
        return Finding(WARNING, f"{what}: {file} is open to every user (mode {mode:o})", f"chmod o= {file}")
    return Finding(OK, f"{what}: {file} is kept from other users (mode {mode:o})")


def free_bytes(place: Path) -> int:
    return shutil.disk_usage(place).free


def check_disk(config: Config, free_at: Callable[[Path], int] = free_bytes) -> list[Finding]:
    found = [
        _check_disk(directory, free_at(nearest_existing(directory))) for directory in _directories(config)
    ]
    return found or [Finding(OK, "nothing is kept on disk")]


def _check_disk(directory: Path, free: int) -> Finding:
    seen = f"{directory}: {free / MIB:,.0f} MiB free"
    state = PROBLEM if free < VERY_FEW_BYTES else WARNING if free < FEW_BYTES else OK
    advice = "on a full disk nothing is acknowledged: make room, or bound the journal (--journal-max-bytes)"
    return Finding(state, seen, "" if state == OK else advice)


# Messages that wait


def check_backlogs(config: Config, clock: Callable[[], float] = time.time) -> list[Finding]:
    """What the node itself wrote down of them."""
    if config.data is None:
        return [Finding(OK, "no data directory: what waits for clients waits in memory")]
    try:
        backlogs = decode(read_regular(config.data / FILE))
    except FileNotFoundError:
        return [Finding(OK, f"{config.data}: no node has said what waits there")]
    except (OSError, ValueError) as error:
        return [Finding(WARNING, f"{config.data / FILE} cannot be read: {reason_of(error)}")]
    return [_check_room(backlogs, clock()), *_name_readers(backlogs)]


def _check_room(backlogs: Backlogs, now: float) -> Finding:
    share = backlogs.room.share()
    state = OK if share is None or share < NEAR else PROBLEM if share >= 1 else WARNING
    facts = [
        f"{counted(backlogs.messages, 'message')} wait for {counted(backlogs.readers, 'reader')}",
        room_in_words(backlogs.room),
    ]
    if backlogs.oldest_at is not None:
        facts.append(f"the oldest for {time_in_words(max(0.0, backlogs.at - backlogs.oldest_at))}")
    if backlogs.full_in_s is not None:
        facts.append(f"full in about {time_in_words(backlogs.full_in_s)}")
    seen = f"{', '.join(facts)}, as of {time_in_words(max(0.0, now - backlogs.at))} ago"
    advice = (
        "at the bound publishers wait, and who holds more than its share loses some of it: connect the "
        "readers below, end their sessions, or raise the bound"
    )
    return Finding(state, seen, "" if state == OK else advice)


def _name_readers(backlogs: Backlogs) -> Iterator[Finding]:
    for owner in backlogs.owners:
        yield Finding(OK, owner_in_words(owner))
    for figures in backlogs.largest[:SHOWN_READERS]:
        yield Finding(OK, reader_in_words(figures, backlogs.at))


def nearest_existing(path: Path) -> Path:
    """The path, or the first directory above it that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
