"""The `[mobility]` table of a configuration: which part a node has in mobility, and with whom.

A `MobilityConfig` that `make_mobility` made can be used as it is: a mobile broker has fixed brokers and a
domain, their URLs are of MQTT and can be told to clients, its numbers are those that the machines take. Which
keys a node may have depends on its role: `_needed` says so. `io.config_keys` reads each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError
from hedgerow.hot.window import MAX_PERIODS
from hedgerow.mobility.io.config_keys import MOBILITY_KEYS, read_fixed_url
from hedgerow.mobility.settings import MobileSettings
from hedgerow.node.broker_urls import (
    BrokerUrl,
    at_most,
    is_unspecified,
    read_urls_file,
    unique,
)
from hedgerow.node.config import Chapter, Config, Given, check_not_itself, check_open_listeners
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
    homes: frozenset[str] = frozenset()
    """Of a fixed broker: HOST:PORT where it may send clients of mobile brokers, beside the hosts that their
    links come from."""
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

    @property
    def monitors_alone(self) -> bool:
        """A mobile broker's own monitor shows what it decides."""
        return self.monitors and not self.is_mobile

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


def secret_files(config: Config) -> dict[str, Path | None]:
    mobility = config.of(MobilityConfig)
    listed = mobility.fixed_file
    has_password = listed is not None and any(
        each.password is not None for each in read_urls_file(listed, read_fixed_url)
    )
    return {
        "mobile broker's TLS key": mobility.keyfile,
        "fixed brokers' passwords": listed if has_password else None,
    }


# From what was given to the settings

_SETTINGS = {each.name for each in fields(MobileSettings)} - {"fixed"}

# Keys that only some nodes have, with what they need.
_MOBILE = 'mobility.role = "mobile" (--role mobile)'
_EITHER = "mobility.role (--role mobile or --role fixed)"
_OF_BOTH = frozenset({"domain", "takeover_after_s"})
_OF_FIXED = frozenset({"allow", "homes"})
_OF_MONITORS = frozenset({"x_s", "y_s", "share", "capacity", "score"})
_OF_ANY = frozenset({"role", "monitors"})


def make_mobility(given: Given) -> MobilityConfig:
    table, where = given.table("mobility"), given.where
    role = table.get("role")
    for name in table:
        if (needed := _needed(name, role, table.get("monitors", False))) is not None:
            raise ConfigError(f"{where(f'mobility.{name}')}: {needed}")
    settings = {name: value for name, value in table.items() if name in _SETTINGS}
    rest = {name: value for name, value in table.items() if name not in _SETTINGS}
    mobility = MobilityConfig(**rest, settings=MobileSettings((), **settings))
    _check_role(mobility, where)
    if "keyfile" in table and "certfile" not in table:
        raise ConfigError(f"{where('mobility.keyfile')}: needs mobility.certfile too")
    _check_window(mobility.settings, table, where)
    if (
        mobility.relay is not None
        and is_unspecified(mobility.relay.host)
        and not settings.get("fixed_address")
    ):
        raise ConfigError(
            f"{where('mobility.relay')}: at which address do clients reach {mobility.relay}? Name it instead,"
            " or set mobility.fixed_address (--fixed-clients-at HOST:PORT)"
        )
    try:
        mobility.read_fixed()
    except ConfigError as error:
        name = "fixed_file" if "fixed" not in table else "fixed"
        raise ConfigError(f"{where(f'mobility.{name}')}: {error}") from None
    return mobility


def check_mobility(config: Config, given: Given) -> None:
    mobility = config.of(MobilityConfig)
    check_not_itself(mobility.fixed, "mobility.fixed", config, given)
    if not mobility.is_mobile:
        return
    if mobility.relay is not None:
        # Whoever it passes on is a client of this machine to the fixed broker.
        check_open_listeners([("mobility.relay", mobility.relay)], config, given)
    settings = mobility.settings
    if settings.moves_clients and not (settings.address or config.mqtt or config.mqtts):
        raise ConfigError(
            f"{given.where('mobility.role')}: clients that are sent to the fixed broker could not come"
            " back: set mqtt or mqtts, mobility.address (--clients-at HOST:PORT), or"
            " mobility.moves_clients = false (--no-move-clients)"
        )


def _needed(name: str, role: str | None, monitors: bool) -> str | None:
    """Why a node of this role does not have this key."""
    if name in _OF_ANY or (role == "mobile" and name not in _OF_FIXED):
        return None
    if name in _OF_BOTH:
        return None if role is not None else f"needs {_EITHER}"
    if name in _OF_FIXED:
        return None if role == "fixed" else 'needs mobility.role = "fixed" (--role fixed)'
    if name in _OF_MONITORS:
        return None if monitors else f"needs {_MOBILE}, or mobility.monitors = true (--hot-topics)"
    if name in ("fixed", "fixed_file") and role == "fixed":
        return "a fixed broker names none: mobile brokers come to it"
    return f"needs {_MOBILE}"


def _check_role(mobility: MobilityConfig, where: Callable[[str], str]) -> None:
    if mobility.role is None:
        return
    if mobility.is_mobile and not mobility.fixed and mobility.fixed_file is None:
        raise ConfigError(
            f"{where('mobility.role')}: which broker is to support it? Set mobility.fixed (--fixed URL)"
        )
    if not mobility.domain:
        raise ConfigError(
            f"{where('mobility.role')}: mobile and fixed brokers write to each other under topics of their"
            " own: set mobility.domain (--domain TOPIC), the same for all of them"
        )


def _check_window(settings: MobileSettings, table: dict[str, Any], where: Callable[[str], str]) -> None:
    if settings.y_s > MAX_PERIODS * settings.x_s:
        name = "y_s" if "y_s" in table else "x_s"
        raise ConfigError(
            f"{where(f'mobility.{name}')}: a window of {settings.y_s:g} s is more than {MAX_PERIODS:,} times"
            f" the {settings.x_s:g} s between two calculations"
        )


CHAPTER = Chapter(MobilityConfig, MOBILITY_KEYS, make_mobility, check_mobility, secret_files)
