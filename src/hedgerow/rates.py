"""How often something may be done: a token bucket, alone or for each address in bounded memory.

A bucket is kept as one number, the time at which it will be full again; whoever is behind that time by
more than the burst is refused. An address with a full bucket is as good as unknown, so the table holds
only those that were active just now, and at most `MAX_ADDRESSES` of them.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

MAX_ADDRESSES = 4_096  # addresses that are remembered: an attacker may have very many, or forge them
MAX_ADDRESS_CHARACTERS = 64  # An address is shorter, with its interface too.
IPV6_SITE_BITS = 64  # one customer holds at least a /64, so that its addresses count as one

_SITE_IPV6 = re.compile(rf"[0-9a-f]{{{IPV6_SITE_BITS // 4}}}")


class RatePerAddress:
    """`per_s` of 0 is no limit. Refusals do not lengthen the wait."""

    def __init__(self, per_s: float, burst: float, spare_loopback: bool = False) -> None:
        self._interval_s = 1 / per_s if per_s > 0 else 0.0
        self._tolerance_s = self._interval_s * max(burst - 1, 0)
        self._spare_loopback = spare_loopback
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._full_at)

    def allows(self, address: str, now: float) -> bool:
        if not self._interval_s or (self._spare_loopback and is_loopback(address)):
            return True
        site = site_of(address)
        full_at = max(self._full_at.pop(site, now), now)
        allowed = full_at - now <= self._tolerance_s
        if len(self._full_at) >= MAX_ADDRESSES:
            self._make_room(now)
        self._full_at[site] = full_at + self._interval_s if allowed else full_at
        return allowed

    def _make_room(self, now: float) -> None:
        waiting = [(site, at) for site, at in self._full_at.items() if at > now]
        # Too many all the same: those that have been quiet longest go, many at a time, so that a
        # flood from everywhere does not pay for this walk each time.
        self._full_at = dict(waiting[-MAX_ADDRESSES // 2 :])


class Allowance:
    """A token bucket for answers, of which anyone can ask for more than we should give."""

    __slots__ = ("_full_at", "_interval_s", "_tolerance_s")

    def __init__(self, per_s: float, burst_s: float) -> None:
        self._interval_s = 1 / per_s
        self._tolerance_s = burst_s
        self._full_at = 0.0

    def take(self, now: float) -> bool:
        full_at = max(self._full_at, now)
        if full_at - now > self._tolerance_s:
            return False
        self._full_at = full_at + self._interval_s
        return True


def is_loopback(address: str) -> bool:
    """An address as the system writes it; a socket for both families writes ::ffff:127.0.0.1. A name is none,
    though it may begin as one: 127.0.0.1.evil.example."""
    return len(address) <= MAX_ADDRESS_CHARACTERS and _is_loopback(address)


@lru_cache(MAX_ADDRESSES)
def _is_loopback(address: str) -> bool:
    """Asked twice for each connection, and reading an address took a tenth of what a CONNECT does."""
    try:
        return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def site_of(address: str) -> str:
    """What counts as one: an IPv4 address, however it is written, or the IPv6 network that one customer has.

    Anything else, such as the path of a socket, is its own site."""
    return address if ":" not in address else _ipv6_site(address)


def name_of(site: str) -> str:
    """For people: an IPv6 network as 2001:db8::/64."""
    if not _SITE_IPV6.fullmatch(site):
        return site
    first = bytes.fromhex(site).ljust(16, b"\0")
    return str(ipaddress.IPv6Network((first, IPV6_SITE_BITS)))


def networks_of(site: str) -> tuple[str, str, str]:
    """The networks that hold a site, the widest first, and the site: what one attacker has many sites in."""
    if site.count(".") == 3:  # an IPv4 address: of a /16 and a /24
        middle = site.rpartition(".")[0]
        return middle.rpartition(".")[0], middle, site
    if _SITE_IPV6.fullmatch(site):  # of a /32, which a provider has, and the /48 that a customer gets
        return site[:8], site[:12], site
    return site, site, site


@lru_cache(MAX_ADDRESSES)  # reading an IPv6 address takes as long as receiving a datagram
def _ipv6_site(address: str) -> str:
    try:
        read = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if read.ipv4_mapped is not None:
        return str(read.ipv4_mapped)
    return read.packed[: IPV6_SITE_BITS // 8].hex()
