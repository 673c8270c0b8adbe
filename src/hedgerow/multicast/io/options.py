"""How a member takes part in multicast, and the URL that says it.

    multicast://[INTERFACE[,INTERFACE…]][:PORT][?ip=4&scope=site&naming=mdns&peer=HOST[:PORT]&key=FILE
                                                 &max_payload=BYTES&patience=SECONDS]

`multicast://` alone is right in most places: every interface that can, on the default port.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import parse_qsl, quote

from hedgerow.errors import ConfigError
from hedgerow.multicast.io import DEFAULT_PORT
from hedgerow.multicast.limits import SCOPES, MulticastLimits
from hedgerow.node.authority import authority

MAX_PAYLOAD = MulticastLimits().payload_bytes
# A message in pieces has to fit into what a receiver keeps of one stream behind a gap, which is 8 MiB, with
# what each piece takes beside its bytes.
LARGEST_PAYLOAD = 4 * 1024 * 1024
PATIENCE_S = MulticastLimits().patience_s
LONGEST_PATIENCE_S = 3_600.0

NAMINGS = ("computed", "mdns")

_INTERFACE = re.compile(r"[^\s/:,?#]{1,15}")  # IFNAMSIZ, with its end, is 16
_PEER = re.compile(r"(?:\[(?P<literal>[^\]]+)\]|(?P<host>[^:\[\]/?#@\s]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(slots=True, frozen=True)
class MulticastOptions:
    interfaces: tuple[str, ...] = ()
    """Their names; none: every one that can."""
    scope: str = "link"
    """How far an IPv6 group reaches: interface, link or site."""
    ip: int | None = None
    """4 or 6; None: 6 where the interfaces can, else 4."""
    naming: str | None = None
    """How the group of a topic is found: computed, which takes IPv6, or by multicast DNS (mdns). None:
    computed with IPv6, else mdns."""
    port: int = DEFAULT_PORT
    """Of every group. A member's own port is the next one, if that is free."""
    peers: tuple[str, ...] = ()
    """`HOST[:PORT]` of members that multicast may not reach."""
    key_file: Path | None = None
    max_payload: int = MAX_PAYLOAD
    patience_s: float = PATIENCE_S
    """How long a message at QoS 1 or 2 may wait for a receiver to acknowledge it; 0: not at all."""

    def __post_init__(self) -> None:
        for name in self.interfaces:
            if not _INTERFACE.fullmatch(name):
                hint = address_hint(name)
                raise ConfigError(f'"{name}" is not the name of an interface, such as eth0{hint}')
        if self.scope not in SCOPES:
            raise ConfigError(f'scope "{self.scope}": there are {", ".join(SCOPES)}')
        if self.ip not in (None, 4, 6):
            raise ConfigError(f"ip is {self.ip}: there are 4 and 6")
        if self.naming not in (None, *NAMINGS):
            raise ConfigError(f'naming "{self.naming}": there are {", ".join(NAMINGS)}')
        if self.naming == "computed" and self.ip == 4:
            raise ConfigError(
                "naming computed needs IPv6: IPv4 has too few groups to compute one; leave out ip=4"
            )
        if not 0 < self.port < 65_535:
            raise ConfigError(f"port {self.port} is not from 1 to 65534: the one after it is used too")
        if not 0 < self.max_payload <= LARGEST_PAYLOAD:
            raise ConfigError(f"max_payload {self.max_payload} is not from 1 to {LARGEST_PAYLOAD}")
        if not 0 <= self.patience_s <= LONGEST_PATIENCE_S:
            raise ConfigError(f"patience {self.patience_s:g} is not from 0 to {LONGEST_PATIENCE_S:g} seconds")
        for peer in self.peers:
            parse_peer(peer, self.port + 1)

    @property
    def ip_versions(self) -> tuple[int, ...]:
        """Those that will do, the better one first."""
        if self.ip is not None:
            return (self.ip,)
        return (6,) if self.naming == "computed" else (6, 4)

    def has_names(self, ip: int) -> bool:
        """Whether groups are found by multicast DNS, with this IP version."""
        return ip == 4 or self.naming == "mdns"

    @property
    def url(self) -> str:
        """The URL that `read_options` reads these options from."""
        asked: list[tuple[str, object]] = []
        if self.ip is not None:
            asked.append(("ip", self.ip))
        if self.scope != "link":
            asked.append(("scope", self.scope))
        if self.naming is not None:
            asked.append(("naming", self.naming))
        asked += [("peer", peer) for peer in self.peers]
        if self.key_file is not None:
            asked.append(("key", self.key_file))
        if self.max_payload != MAX_PAYLOAD:
            asked.append(("max_payload", self.max_payload))
        if self.patience_s != PATIENCE_S:
            asked.append(("patience", f"{self.patience_s:g}"))
        query = "&".join(f"{name}={quote(str(value), safe='/:[],')}" for name, value in asked)
        name = name_of(self.interfaces, self.port)
        return f"{name}?{query}" if query else name


def name_of(interfaces: Iterable[str], port: int) -> str:
    """For people: where, without how."""
    host = ",".join(interfaces)
    return f"multicast://{authority(host, None if port == DEFAULT_PORT else port)}"


def address_hint(name: str) -> str:
    """The end of an error about an interface, for those who wrote a machine's address in its place."""
    try:
        ip_address(name)
    except ValueError:
        return ""
    return f"; a machine is named with ?peer={name}"


def read_options(host: str, port: int, rest: str) -> MulticastOptions:
    """The options in a URL's host, port and what follows them. Raises ConfigError."""
    path, _, query = rest.partition("?")
    if path not in ("", "/"):
        raise ConfigError(f'"{path}" in a multicast URL: it takes no path, only ?NAME=VALUE&…')
    interfaces = tuple(host.split(",")) if host else ()
    single: dict[str, str] = {}
    peers: list[str] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "peer":
            peers.append(value)
        elif name not in ("ip", "scope", "naming", "key", "max_payload", "patience"):
            known = "ip, scope, naming, peer, key, max_payload and patience"
            raise ConfigError(f'"{name}" in a multicast URL: there are {known}')
        elif name in single:
            raise ConfigError(f'"{name}" is twice in a multicast URL')
        else:
            single[name] = value
    return MulticastOptions(
        interfaces=interfaces,
        scope=single.get("scope", "link"),
        ip=_read_number("ip", single["ip"]) if "ip" in single else None,
        naming=single.get("naming"),
        port=port,
        peers=tuple(peers),
        key_file=Path(single["key"]).expanduser() if single.get("key") else None,
        max_payload=_read_number("max_payload", single["max_payload"])
        if "max_payload" in single
        else MAX_PAYLOAD,
        patience_s=_read_seconds("patience", single["patience"]) if "patience" in single else PATIENCE_S,
    )


def parse_peer(text: str, default_port: int) -> tuple[str, int]:
    """`HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address. Raises ConfigError."""
    with suppress(ValueError):
        return str(IPv6Address(text)), default_port
    found = _PEER.fullmatch(text)
    if found is None or not 0 < int(found["port"] or default_port) < 65_536:
        raise ConfigError(f'peer "{text}" is not HOST[:PORT]')
    return found["literal"] or found["host"], int(found["port"] or default_port)


def _read_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f'{name}={text} in a multicast URL: "{text}" is not a number')
    return int(text)


def _read_seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ConfigError(f'{name}={text} in a multicast URL: "{text}" is not a number of seconds')
    return float(text)
