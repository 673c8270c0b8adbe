"""Where a topic is found: its multicast address, its checksum, its name in multicast DNS.

With IPv6 an address is computed. With IPv4, whose multicast addresses are too few for that, and with IPv6
where it is asked for, the first publisher chooses one and multicast DNS tells it to the others; publishers
that chose at the same time see each other's choice and all keep the same one.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

# The group in which members hear of each other and of new topics, and which has to be known beforehand.
# As a topic name it can be no application's: names that begin with $ do not travel by multicast.
CONTROL_TOPIC = "$hedgerow/multicast"
CONTROL_GROUP_IPV4 = "239.255.72.82"


def ipv6_group(topic: str, scope: int) -> str:
    """ff1S: and the first 112 bits of the topic's SHA-256. The 1 says that nobody assigned it."""
    digest = hashlib.sha256(topic.encode()).digest()[:14]
    return str(ipaddress.IPv6Address(bytes((0xFF, 0x10 | scope)) + digest))


@lru_cache(maxsize=4_096)
def topic_crc(topic: str) -> int:
    """What a frame says of its topic, for those who listen to another one at the same address."""
    return zlib.crc32(topic.encode())


@lru_cache(maxsize=4_096)
def topic_hash(topic: str) -> bytes:
    """How an acknowledgement names a topic: 8 bytes, which no two topics share but by design."""
    return hashlib.sha256(topic.encode()).digest()[:8]


def mdns_label(topic: str) -> str:
    """The topic as a label of a name in `.local`: a topic may be longer than the 63 bytes of a label."""
    digest = hashlib.sha256(topic.encode()).digest()[:20]
    return f"topic-{base64.b32encode(digest).decode().lower()}"


@dataclass(frozen=True)
class GroupRange:
    """The groups among which the publishers of a topic choose one."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    control_group: str

    def choose(self, chance: float, taken: Iterable[str] = ()) -> str:
        """Some group that nobody is known to use; `chance` is from 0 to 1."""
        first = int(chance * self.network.num_addresses)
        # When all are taken topics share one, and the CRC tells them apart.
        found = self._next(first, self._reserved.union(taken)) or self._next(first, self._reserved)
        return found or self.control_group

    def at(self, number: int) -> str:
        """The group of that number, whatever the number."""
        return self._next(number % self.network.num_addresses, self._reserved) or self.control_group

    @property
    def _reserved(self) -> set[str]:
        return {self.control_group, str(self.network[0]), str(self.network[-1])}

    def _next(self, first: int, avoided: set[str]) -> str | None:
        count = self.network.num_addresses
        groups = (str(self.network[(first + step) % count]) for step in range(count))
        return next((group for group in groups if group not in avoided), None)

    def has(self, address: str) -> bool:
        """Anyone may announce anything: not a group of ours, and we would send to whomever they name."""
        try:
            return ipaddress.ip_address(address) in self.network and address != self.control_group
        except ValueError:
            return False


# Administratively scoped, as "private" as addresses get among groups (RFC 2365 §6.1: the local scope).
IPV4_GROUPS = GroupRange(ipaddress.IPv4Network("239.255.0.0/16"), CONTROL_GROUP_IPV4)


def ipv6_groups(scope: int) -> GroupRange:
    """Those that hosts may give themselves, by the group id in their last 32 bits (RFC 3307 §4.3.2)."""
    return GroupRange(ipaddress.IPv6Network(f"ff1{scope:x}::8000:0/97"), ipv6_group(CONTROL_TOPIC, scope))


def winning_group(groups: Iterable[str]) -> str:
    """Of groups that were chosen for one topic at the same time, the one that everyone keeps.

    RFC 6762 §8.2: the record whose data is lexicographically later wins. All are of one IP version.
    """
    return max(groups, key=lambda group: ipaddress.ip_address(group).packed)
