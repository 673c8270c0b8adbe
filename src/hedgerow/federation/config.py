"""Whom a node federates with, and how: what is left of a configuration once it has been read.

A `FederationConfig` that `keys.make_federation` made can be used as it is: its URLs are of MQTT, its files
can be read, its numbers are those that the federator and the overlay take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hedgerow.broker.limits import MIB
from hedgerow.errors import ConfigError
from hedgerow.federation.mesh.limits import ANNOUNCE_INTERVAL_S
from hedgerow.federation.overlay.limits import MAX_STATIC, OverlaySettings
from hedgerow.node.broker_urls import (
    BrokerUrl,
    at_most,
    read_broker_url,
    read_urls_file,
    unique,
    warn_if_readable,
)

DEFAULTS = OverlaySettings()


@dataclass(slots=True, frozen=True)
class FederationConfig:
    neighbours: tuple[BrokerUrl, ...] = ()
    """Always linked to, beside those of `neighbours_file`: `read_neighbours` has both."""
    neighbours_file: Path | None = None
    join: tuple[BrokerUrl, ...] = ()
    """Members through which this node becomes one."""
    discover: bool = False
    enabled: bool | None = None
    """True: also without anyone to link to, for a node that others link to. False: not at all."""
    redundancy: int = 2
    active_at_most: int = DEFAULTS.active_at_most
    """Neighbours that the overlay chooses, beside the static ones."""
    advertise: tuple[BrokerUrl, ...] = ()
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
    home: BrokerUrl | None = None
    """Of a sidecar: the broker that it stands beside."""
    assume: tuple[str, ...] = ()
    """Filters that clients of that broker are taken to have."""

    @property
    def is_enabled(self) -> bool:
        if self.enabled is not None:
            return self.enabled
        return bool(self.neighbours or self.join or self.discover or self.neighbours_file is not None)

    @property
    def overlay_settings(self) -> OverlaySettings:
        target = min(DEFAULTS.active_target, self.active_at_most)
        return OverlaySettings(active_target=target, active_at_most=self.active_at_most)

    def read_neighbours(self) -> tuple[BrokerUrl, ...]:
        """The static neighbours, those of the file as it is now. Raises ConfigError."""
        listed = () if self.neighbours_file is None else read_urls_file(self.neighbours_file)
        neighbours = unique((*self.neighbours, *listed))
        if self.home is not None:
            check_not_home(neighbours, self.home)
        return at_most(MAX_STATIC, "static neighbours", neighbours)

    def url_to_dial(self, address: str, listed: Iterable[BrokerUrl]) -> BrokerUrl | None:
        """From an address of the overlay to how it is dialled: with the user that `listed` has for it, or the
        one for all. None if it is no address: other nodes tell them."""
        try:
            url = read_broker_url(address, Path())
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
    if listed is not None and any(each.password is not None for each in read_urls_file(listed)):
        secrets.append(listed)
    warn_if_readable(secrets)


def check_not_home(urls: Iterable[BrokerUrl], home: BrokerUrl) -> None:
    for url in urls:
        if url.is_same_place(home):
            raise ConfigError(f"{url} is the broker that this federator stands beside, and no neighbour")
