"""Whom a node federates with, and how: what is left of a configuration once it has been read.

A `FederationConfig` that `keys.make_federation` made can be used as it is: its URLs are of MQTT, its files
can be read, its numbers are those that the federator and the overlay take.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.fabric.federation.limits import ANNOUNCE_INTERVAL_S
from hedgerow.fabric.overlay.limits import MAX_STATIC, Settings
from hedgerow.fabric.overlay.wire import MAX_ADDRESS_BYTES
from hedgerow.mqtt.broker.limits import MIB
from hedgerow.net.authority import authority
from hedgerow.net.client.urls import parse_url
from hedgerow.net.values import read_text, read_utf8

logger = logging.getLogger(__name__)

DEFAULTS = Settings()


@dataclass(slots=True, frozen=True)
class NeighbourUrl:
    """A broker at which a node of the federation is."""

    host: str
    port: int
    is_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """For people and for other nodes, and so without user and password."""
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{authority(self.host, self.port)}"

    @property
    def is_loopback(self) -> bool:
        """Reached from this machine alone."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def is_same_place(self, other: NeighbourUrl) -> bool:
        same_host = self.host.lower() == other.host.lower() or (self.is_loopback and other.is_loopback)
        return same_host and self.port == other.port


@dataclass(slots=True, frozen=True)
class FederationConfig:
    neighbours: tuple[NeighbourUrl, ...] = ()
    """Always linked to, beside those of `neighbours_file`: `read_neighbours` has both."""
    neighbours_file: Path | None = None
    join: tuple[NeighbourUrl, ...] = ()
    """Members through which this node becomes one."""
    discover: bool = False
    enabled: bool | None = None
    """True: also without anyone to link to, for a node that others link to. False: not at all."""
    redundancy: int = 2
    active_at_most: int = DEFAULTS.active_at_most
    """Neighbours that the overlay chooses, beside the static ones."""
    advertise: tuple[NeighbourUrl, ...] = ()
    """Where others reach this node, if that is not where it listens."""
    key: bytes | None = field(default=None, repr=False)
    key_file: Path | None = None
    """Where the key stood."""
    username: str | None = None
    """At neighbours whose URL has no user, those that the federation itself found among them."""
    password: str | None = field(default=None, repr=False)
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    keep_s: float = 86_400.0
    """How long a neighbour that is gone is waited for with what is for it."""
    queue_bytes: int = 64 * MIB
    announce_interval_s: float = ANNOUNCE_INTERVAL_S
    home: NeighbourUrl | None = None
    """Of a sidecar: the broker that it stands beside."""
    assume: tuple[str, ...] = ()
    """Filters that clients of that broker are taken to have."""

    @property
    def is_enabled(self) -> bool:
        if self.enabled is not None:
            return self.enabled
        return bool(self.neighbours or self.join or self.discover or self.neighbours_file is not None)

    @property
    def overlay_settings(self) -> Settings:
        target = min(DEFAULTS.active_target, self.active_at_most)
        return Settings(active_target=target, active_at_most=self.active_at_most)

    def read_neighbours(self) -> tuple[NeighbourUrl, ...]:
        """The static neighbours, those of the file as it is now. Raises ConfigError."""
        listed = () if self.neighbours_file is None else read_neighbours_file(self.neighbours_file)
        neighbours = unique((*self.neighbours, *listed))
        if self.home is not None:
            check_not_home(neighbours, self.home)
        return at_most(MAX_STATIC, "static neighbours", neighbours)

    def url_to_dial(self, address: str, listed: Iterable[NeighbourUrl]) -> NeighbourUrl | None:
        """From an address of the overlay to how it is dialled: with the user that `listed` has for it, or the
        one for all. None if it is no address: other nodes tell them."""
        try:
            url = read_neighbour_url(address, Path())
        except ConfigError:
            return None
        known = next((each for each in listed if str(each) == str(url)), None)
        if known is not None and known.username is not None:
            return known
        return replace(url, username=self.username, password=self.password)


def warn_of_readable_secrets(federation: FederationConfig) -> None:
    """To be called when the log is set up."""
    listed = federation.neighbours_file
    secrets = [federation.key_file, federation.keyfile]
    if listed is not None and any(each.password is not None for each in read_neighbours_file(listed)):
        secrets.append(listed)
    warn_if_readable(secrets)


def warn_if_readable(secrets: Iterable[Path | None]) -> None:
    for path in filter(None, secrets):
        if path.stat().st_mode & 0o077:
            logger.warning("%s: others on this machine may read its secrets; chmod 600 %s", path, path)


# URLs


def read_neighbour_url(value: object, base: Path) -> NeighbourUrl:
    address = parse_url(read_text(value, base))
    if address.scheme.name not in ("mqtt", "mqtts"):
        raise ConfigError(f"{address}: nodes are linked by mqtt:// or mqtts://")
    if address.rest not in ("", "/"):
        raise ConfigError(f'{address}: what is "{address.rest}"? There is nothing behind the port')
    url = NeighbourUrl(
        address.host, address.port, address.scheme.tls, address.username or None, address.password
    )
    # What other nodes are told has to fit into their packets.
    if not str(url).isprintable() or " " in url.host or len(str(url).encode()) > MAX_ADDRESS_BYTES:
        raise ConfigError(f'"{url.host}" is no name of a host')
    return url


def read_neighbours_file(
    path: Path, read_url: Callable[[object, Path], NeighbourUrl] = read_neighbour_url
) -> tuple[NeighbourUrl, ...]:
    """A URL a line; empty lines and those that begin with # mean nothing. Raises ConfigError."""
    urls: list[NeighbourUrl] = []
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                urls.append(read_url(text, path.parent))
            except ConfigError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
    return unique(urls)


def check_not_home(urls: Iterable[NeighbourUrl], home: NeighbourUrl) -> None:
    for url in urls:
        if url.is_same_place(home):
            raise ConfigError(f"{url} is the broker that this federator stands beside, and no neighbour")


def at_most(maximum: int, what: str, urls: tuple[NeighbourUrl, ...]) -> tuple[NeighbourUrl, ...]:
    if len(urls) > maximum:
        raise ConfigError(f"{len(urls)} {what}; there may be {maximum}")
    return urls


def unique(urls: Iterable[NeighbourUrl]) -> tuple[NeighbourUrl, ...]:
    """The first of each address."""
    found: dict[str, NeighbourUrl] = {}
    for url in urls:
        found.setdefault(str(url), url)
    return tuple(found.values())
