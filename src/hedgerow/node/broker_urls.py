"""URLs of other brokers, as people write them: of neighbours, and of fixed brokers."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError
from hedgerow.node.authority import authority
from hedgerow.node.values import read_text, read_utf8

logger = logging.getLogger(__name__)

LINK_SCHEMES = ("mqtt", "mqtts")
MAX_URL_BYTES = 255  # What other nodes are told has to fit into their packets.


@dataclass(slots=True, frozen=True)
class BrokerUrl:
    """Where a broker is, and as whom to log in there."""

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

    def is_same_place(self, other: BrokerUrl) -> bool:
        same_host = self.host.lower() == other.host.lower() or (self.is_loopback and other.is_loopback)
        return same_host and self.port == other.port


def read_broker_url(value: object, base: Path) -> BrokerUrl:
    address = parse_url(read_text(value, base), LINK_SCHEMES)
    if address.scheme.name not in LINK_SCHEMES:
        raise ConfigError(f"{address}: nodes are linked by mqtt:// or mqtts://")
    if address.rest not in ("", "/"):
        raise ConfigError(f'{address}: what is "{address.rest}"? There is nothing behind the port')
    url = BrokerUrl(
        address.host, address.port, address.scheme.tls, address.username or None, address.password
    )
    if not str(url).isprintable() or " " in url.host or len(str(url).encode()) > MAX_URL_BYTES:
        raise ConfigError(f'"{url.host}" is no name of a host')
    return url


def read_urls_file(
    path: Path, read_url: Callable[[object, Path], BrokerUrl] = read_broker_url
) -> tuple[BrokerUrl, ...]:
    """A URL a line; empty lines and those that begin with # mean nothing. Raises ConfigError."""
    urls: list[BrokerUrl] = []
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                urls.append(read_url(text, path.parent))
            except ConfigError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
    return unique(urls)


def at_most(maximum: int, what: str, urls: tuple[BrokerUrl, ...]) -> tuple[BrokerUrl, ...]:
    if len(urls) > maximum:
        raise ConfigError(f"{len(urls)} {what}; there may be {maximum}")
    return urls


def unique(urls: Iterable[BrokerUrl]) -> tuple[BrokerUrl, ...]:
    """The first of each address."""
    found: dict[str, BrokerUrl] = {}
    for url in urls:
        found.setdefault(str(url), url)
    return tuple(found.values())


def is_unspecified(host: str) -> bool:
    """Every address of a machine, and so none to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


def warn_if_readable(secrets: Iterable[Path | None]) -> None:
    """Such as files of URLs with passwords."""
    for path in filter(None, secrets):
        if path.stat().st_mode & 0o077:
            logger.warning("%s: others on this machine may read its secrets; chmod 600 %s", path, path)
