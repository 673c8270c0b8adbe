"""Which part a node has in mobility, and with whom: what is left of a configuration once it has been read.

A `MobilityConfig` that `keys.make_mobility` made can be used as it is: a mobile broker has fixed brokers and
a domain, their URLs are of MQTT and can be told to clients, its numbers are those that the machines take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.mobility.settings import MobileSettings
from hedgerow.mqtt.extension import parse_address
from hedgerow.node.authority import authority
from hedgerow.node.broker_urls import (
    BrokerUrl,
    at_most,
    is_unspecified,
    read_broker_url,
    read_urls_file,
    unique,
    warn_if_readable,
)
from hedgerow.node.values import Address

MAX_FIXED = 16  # URLs: each is tried in turn


@dataclass(slots=True, frozen=True)
class MobilityConfig:
    role: str | None = None
    """"mobile" or "fixed"; None: neither."""
    fixed: tuple[BrokerUrl, ...] = ()
    """In order of preference, before those of `fixed_file`: `read_fixed` has both."""
    fixed_file: Path | None = None
    domain: str = ""
    relay: Address | None = None
    """Where this node listens for clients that it passes on to the fixed broker."""
    allow: frozenset[str] | None = None
    """Of a fixed broker: the mobile brokers that it helps. None: whoever may connect."""
    monitors: bool = False
    """Count hot topics and show them, also without a role."""
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    settings: MobileSettings = field(default_factory=lambda: MobileSettings(()))
    """Without what is known at run time: `settings_with` adds it."""

    @property
    def is_mobile(self) -> bool:
        return self.role == "mobile"

    def read_fixed(self) -> tuple[BrokerUrl, ...]:
        """The fixed brokers, those of the file as it is now. Raises ConfigError."""
        if not self.is_mobile:
            return ()
        listed = () if self.fixed_file is None else read_urls_file(self.fixed_file, read_fixed_url)
        urls = unique((*self.fixed, *listed))
        if not urls:
            raise ConfigError(f"{self.fixed_file}: names no fixed broker")
        self._check_relay(urls)
        return at_most(MAX_FIXED, "fixed brokers", urls)

    def _check_relay(self, urls: Iterable[BrokerUrl]) -> None:
        """A broker that serves its own machine alone may let everyone in there, and the relay would be one of
        that machine's clients."""
        for url in urls:
            if self.relay is not None and not self.relay.is_loopback and url.is_loopback:
                raise ConfigError(
                    f"{url} is for clients of this machine alone, and the relay on {self.relay} would let"
                    " others in; name an address of the fixed broker that others reach"
                )

    def settings_with(self, urls: Iterable[BrokerUrl], relay_address: str) -> MobileSettings:
        settings = self.settings
        return replace(
            settings,
            fixed=tuple(map(str, urls)),
            fixed_address=settings.fixed_address or relay_address,
        )


def warn_of_readable_secrets(mobility: MobilityConfig) -> None:
    """To be called when the log is set up."""
    listed = mobility.fixed_file
    secrets = [mobility.keyfile]
    if listed is not None and any(
        each.password is not None for each in read_urls_file(listed, read_fixed_url)
    ):
        secrets.append(listed)
    warn_if_readable(secrets)


def read_fixed_url(value: object, base: Path) -> BrokerUrl:
    url = read_broker_url(value, base)
    try:
        parse_address(place_of(url))  # Clients are told it.
    except ValueError:
        raise ConfigError(f"{url}: clients cannot be sent to {url.host}") from None
    if is_unspecified(url.host):
        raise ConfigError(f"{url}: nobody can connect to {url.host}")
    return url


def place_of(url: BrokerUrl) -> str:
    """HOST:PORT."""
    return authority(url.host, url.port)
