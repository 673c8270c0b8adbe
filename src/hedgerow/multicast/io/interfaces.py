"""Which network interfaces can do multicast, and what to do about one that cannot.

Everything is asked of the kernel here and now: names, flags and IPv4 addresses by ioctl, IPv6 addresses
in /proc/net/if_inet6, and the route to a group by connecting a datagram socket, which sends nothing.
No default route is needed, nor DNS. /sys is not read: in a container it may show another network.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import ConfigError
from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, CONTROL_TOPIC, ipv6_group
from hedgerow.multicast.io.options import MulticastOptions, address_hint
from hedgerow.multicast.limits import SCOPES

# <linux/if.h>, <linux/sockios.h>
_IFF_UP, _IFF_LOOPBACK, _IFF_MULTICAST = 0x1, 0x8, 0x1000
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFMTU = 0x8913, 0x8915, 0x8921
_IFF_TENTATIVE = 0x40  # <linux/if_addr.h>: duplicate address detection is under way

_ETHERNET_MTU = 1_500
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_DISABLE_IPV6 = "/proc/sys/net/ipv6/conf/{}/disable_ipv6"


@dataclass(slots=True, frozen=True)
class Interface:
    """One that can, with the address that its datagrams come from."""

    name: str
    index: int
    address: str


class Choice(NamedTuple):
    ip: int
    interfaces: tuple[Interface, ...]


def choose(options: MulticastOptions) -> Choice:
    """The IP version and interfaces to use now. Raises ConfigError saying what is missing.

    Interfaces that were named must all work. Of the others, the loopback interface is used only when
    there is no other: members on this machine hear each other through any interface.
    """
    versions = options.ip_versions
    return _choose_named(options, versions) if options.interfaces else _choose_all(options, versions)


def choose_again(options: MulticastOptions, current: Choice) -> Choice | None:
    """What to use now that something about the interfaces has changed; None when nothing is left.

    A member that runs never goes back from IPv6 to IPv4, nor to the loopback interface: the addresses of
    an interface come back one after the other, and the others would look for it in vain.
    """
    with suppress(ConfigError):
        choice = choose(options)
        if choice.ip >= current.ip and (
            options.interfaces or not is_loopback(choice) or is_loopback(current)
        ):
            return choice
    found = []
    for name in options.interfaces or [each for _, each in socket.if_nameindex()]:
        with suppress(ConfigError):
            if options.interfaces or not _flags(name) & _IFF_LOOPBACK:
                found.append(find(name, current.ip, options))
    return Choice(current.ip, tuple(found)) if found else None


def is_loopback(choice: Choice) -> bool:
    return all(_flags(each.name) & _IFF_LOOPBACK for each in choice.interfaces)


def _choose_named(options: MulticastOptions, versions: tuple[int, ...]) -> Choice:
    first_error: ConfigError | None = None
    for ip in versions:
        try:
            return Choice(ip, tuple(find(name, ip, options) for name in dict.fromkeys(options.interfaces)))
        except ConfigError as error:
            first_error = first_error or error
    if len(versions) == 1:
        assert first_error is not None
        raise first_error
    # Neither works. IPv4's reason is the shorter way out: it needs an address and nothing else.
    for name in options.interfaces:
        find(name, versions[-1], options)
    raise AssertionError("an interface came up while it was looked at")


def _choose_all(options: MulticastOptions, versions: tuple[int, ...]) -> Choice:
    names = [name for _, name in socket.if_nameindex()]
    for is_loopback in (False, True):
        for ip in versions:
            found = []
            for name in names:
                with suppress(ConfigError):
                    if bool(_flags(name) & _IFF_LOOPBACK) is is_loopback:
                        found.append(find(name, ip, options))
            if found:
                return Choice(ip, tuple(found))
    reasons = [_reason(name, versions[-1], options) for name in names]
    family = f"IPv{versions[0]} multicast" if len(versions) == 1 else "multicast"
    raise ConfigError(f"no network interface can do {family}: {'; '.join(reasons) or 'there is none'}")


def _reason(name: str, ip: int, options: MulticastOptions) -> str:
    try:
        find(name, ip, options)
    except ConfigError as error:
        return str(error)
    return f"{name} has just come up"


def find(name: str, ip: int, options: MulticastOptions) -> Interface:
    """The interface of this name, ready for use. Raises ConfigError saying what it lacks, and the
    command that gives it."""
    try:
        index = socket.if_nametoindex(name)
    except OSError:
        existing = ", ".join(each for _, each in socket.if_nameindex())
        text = f'there is no network interface "{name}"; there are {existing}{address_hint(name)}'
        raise ConfigError(text) from None
    flags = _flags(name)
    if not flags & _IFF_UP:
        raise ConfigError(f"interface {name} is down; this brings it up: ip link set {name} up")
    if not flags & (_IFF_MULTICAST | _IFF_LOOPBACK):
        raise ConfigError(
            f"interface {name} has multicast switched off; this allows it: ip link set {name} multicast on"
        )
    return Interface(name, index, _FINDERS[ip](name, index, bool(flags & _IFF_LOOPBACK), options))


def _find_ipv4(name: str, index: int, is_loopback: bool, options: MulticastOptions) -> str:
    address = _ipv4_address(name)
    if address is None:
        example = "127.0.0.1/8" if is_loopback else "10.0.0.1/24"
        raise ConfigError(
            f"interface {name} has no IPv4 address; this gives it one: ip address add {example} dev {name}"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        set_ipv4_interface(probe, Interface(name, index, address))
        try:
            probe.connect((CONTROL_GROUP_IPV4, options.port))
        except OSError as error:
            raise ConfigError(f"interface {name} cannot do IPv4 multicast: {error.strerror}") from None
    return address


def _find_ipv6(name: str, index: int, is_loopback: bool, options: MulticastOptions) -> str:
    addresses = _ipv6_addresses(name)
    if not addresses:
        raise _no_ipv6_address(name)
    # Link-local ones first, as for any datagram to a link-local group.
    address, is_tentative = min(addresses, key=lambda each: (not each[0].startswith("fe80:"), each[1]))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            _connect_ipv6(probe, index, options)
        except OSError as error:
            if is_tentative and error.errno == errno.EADDRNOTAVAIL:
                return address  # In a second or two it can.
            if error.errno != errno.ENETUNREACH:
                raise ConfigError(f"interface {name} cannot do IPv6 multicast: {error.strerror}") from None
            # What the kernel itself adds, except on the loopback interface, where that would not be heard.
            route = (
                f"local ff00::/8 dev {name}" if is_loopback else f"multicast ff00::/8 dev {name} table local"
            )
            raise ConfigError(
                f"interface {name} has no route for IPv6 multicast; this adds it: ip -6 route add {route}"
            ) from None
    return address


_FINDERS: dict[int, Callable[[str, int, bool, MulticastOptions], str]] = {4: _find_ipv4, 6: _find_ipv6}


def _no_ipv6_address(name: str) -> ConfigError:
    if not _IPV6_ADDRESSES.exists():
        return ConfigError("this system has no IPv6; IPv4 works with ip=4")
    with suppress(OSError):
        if Path(_DISABLE_IPV6.format(name)).read_text().strip() == "1":
            return ConfigError(
                f"IPv6 is disabled on interface {name}; this enables it: "
                f"sysctl net.ipv6.conf.{name.replace('.', '/')}.disable_ipv6=0"
            )
    return ConfigError(
        f"interface {name} has no IPv6 address; this gives it one: ip address add fe80::1/64 dev {name}"
    )


def _flags(name: str) -> int:
    try:
        (flags,) = struct.unpack_from("@H", _ioctl(name, _SIOCGIFFLAGS), 16)
    except OSError:
        return 0  # It went away meanwhile.
    return int(flags)


def can_send(choice: Choice, options: MulticastOptions) -> bool:
    """Is there an interface whose address is not still being checked for duplicates? (RFC 4862 §5.4)"""
    return choice.ip == 4 or any(_reaches(each, options) for each in choice.interfaces)


def _reaches(interface: Interface, options: MulticastOptions) -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            _connect_ipv6(probe, interface.index, options)
        except OSError:
            return False
    return True


def _connect_ipv6(probe: socket.socket, index: int, options: MulticastOptions) -> None:
    set_ipv6_interface(probe, index)
    probe.connect((ipv6_group(CONTROL_TOPIC, SCOPES[options.scope]), options.port, 0, index))


def smallest_mtu(choice: Choice) -> int:
    """The largest packet that all of them take."""
    return min((_mtu(each.name) for each in choice.interfaces), default=_ETHERNET_MTU)


def _mtu(name: str) -> int:
    try:
        (mtu,) = struct.unpack_from("@i", _ioctl(name, _SIOCGIFMTU), 16)
    except OSError:
        return _ETHERNET_MTU
    return int(mtu)


def _ipv4_address(name: str) -> str | None:
    try:
        return socket.inet_ntoa(_ioctl(name, _SIOCGIFADDR)[20:24])
    except OSError:
        return None


def _ioctl(name: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, request, struct.pack("256s", name.encode()))


def _ipv6_addresses(name: str) -> list[tuple[str, bool]]:
    """(address, whether it is still being checked for duplicates)."""
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:
        return []
    found = []
    for digits, _, _, _, flags, interface in map(str.split, lines):
        if interface == name:
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            found.append((address, bool(int(flags, 16) & _IFF_TENTATIVE)))
    return found


def set_ipv4_interface(sender: socket.socket, interface: Interface) -> None:
    """Multicast from this socket leaves through the interface, with its address as the source."""
    option = struct.pack(
        "@4s4si", bytes(4), socket.inet_aton(interface.address), interface.index
    )  # struct ip_mreqn
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, option)


def set_ipv6_interface(sender: socket.socket, index: int) -> None:
    sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
