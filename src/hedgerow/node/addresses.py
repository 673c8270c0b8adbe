"""The addresses and names of this machine: which they are, and at which of them a listener is reached."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    import ifaddr

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_addresses(version: int, adapters: Iterable[ifaddr.Adapter] | None = None) -> list[IpAddress]:
    """Those of every interface; `adapters` are asked in place of this machine's."""
    from ifaddr import get_adapters

    texts = [
        each.ip for adapter in (get_adapters() if adapters is None else adapters) for each in adapter.ips
    ]
    found = [ipaddress.ip_address(text if isinstance(text, str) else text[0]) for text in texts]
    return [address for address in found if address.version == version]


def reached_addresses(host: str, adapters: Iterable[ifaddr.Adapter] | None = None) -> list[IpAddress]:
    """Of the address that a listener has. An IPv6 address of one link alone says nothing without the link."""
    address = ipaddress.ip_address(host)
    addresses = own_addresses(address.version, adapters) if address.is_unspecified else [address]
    return [each for each in addresses if not each.is_link_local or each.version == 4]


def is_of_this_machine(host: str, look_up: Callable[..., Any] = socket.getaddrinfo) -> bool:
    """Whether an address is one of ours, which the system tells by letting us bind to it. A name is none: to
    look it up would have everybody wait for a silent name server."""
    if is_loopback(host):
        return True
    try:
        found = look_up(host, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, _, _, _, address = found[0]  # of a link-local one, fe80::1%eth0, with its interface
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except (OSError, UnicodeError):
        return False
    return True


def dialled_address(host: str, look_up: Callable[..., Any] = socket.getaddrinfo) -> str:
    """Where a connection to an address goes, in whichever of the system's ways it is written (0x7f000001,
    127.1, ::ffff:127.0.0.1). One that is unspecified leads to this machine. A name stays a name."""
    try:
        found = look_up(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return host
    address = ipaddress.ip_address(found[0][4][0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address)


def is_own_name(host: str, own_name: str | None = None) -> bool:
    """Is it an address, or a name of this machine, which no name server elsewhere can give away?

    `own_name` is what the machine is called; None: as it says itself."""
    host = host.lower().rstrip(".")
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        own = (own_name or socket.gethostname()).lower()
        return host in ("localhost", own, own.partition(".")[0], f"{own.partition('.')[0]}.local")
