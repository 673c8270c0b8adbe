"""The configuration of a node: what a running node is told, and what its rooms add to that.

The node knows its own keys alone. A room writes a `Chapter`: its keys, the settings that are made of them,
and what must hold between those and the rest. A `Config` gives a room's settings by their class. One that was
loaded (`config_loading`) can be used as it is: every value has the right type and range, the files that it
names can be read, TLS listeners have a certificate, and nobody outside this machine gets in without a name
unless the configuration says so in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hedgerow.broker.access import Access, Acl, UserGroups
from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.values import Address, Key, read_utf8

Settings = TypeVar("Settings")
Settings_co = TypeVar("Settings_co", covariant=True)


@dataclass(slots=True, frozen=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None
    require_client_certificate: bool = False
    use_identity_as_username: bool = False
    use_subject_as_username: bool = False
    crl_file: Path | None = None

    @property
    def names_users(self) -> bool:
        """Is a client the user that its certificate says?"""
        return self.use_identity_as_username or self.use_subject_as_username


@dataclass(slots=True, frozen=True)
class WebTokenRules:
    """Which JSON Web Tokens are believed."""

    keys: Path | str
    """A file, or a URL."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    issuer: str | None = None
    audience: str | None = None
    user_claim: str = "sub"
    groups_claim: str = "groups"
    leeway_s: float = 10.0
    """How far the clock of whoever made it may be off."""
    refresh_s: float = 300.0


@dataclass(slots=True, frozen=True)
class LoginHook:
    """A service that is asked who may log in."""

    url: str
    timeout_s: float = 2.0
    cache_s: float = 60.0
    """How long a yes holds."""
    secret: Path | None = None
    """A file, whose first line proves to it who asks."""


@dataclass(slots=True, frozen=True)
class Config:
    mqtt: tuple[Address, ...] = (Address("localhost", 1883),)
    mqtts: tuple[Address, ...] = ()
    ws: tuple[Address, ...] = (Address("localhost", 9001),)
    wss: tuple[Address, ...] = ()
    http: tuple[Address, ...] = (Address("localhost", 8780),)
    https: tuple[Address, ...] = ()
    data: Path | None = None
    data_bytes: int | None = None
    """None: a share of the disk."""
    data_full: str = "wait"
    data_age_s: float = 0.0
    """0: for ever."""
    id: str | None = None
    mdns: bool = False
    tls: Tls | None = None
    passwords: Path | None = None
    jwt: WebTokenRules | None = None
    hook: LoginHook | None = None
    acl: Path | None = None
    anonymous: bool = True
    empty_client_ids: bool = True
    maximum_qos: int = 2
    retain_available: bool = True
    administrators: frozenset[str] = frozenset()
    key_file: Path | None = None
    host_names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    log_format: str = "text"
    log_level: str = "info"
    sys_interval_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    rooms: Mapping[type, object] = field(default_factory=dict)
    """The settings of those rooms of which something was said, by their class."""
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What it was made of, by key, as the readers of the keys understood it."""
    keys: Mapping[str, Key] = field(default_factory=dict, compare=False, repr=False)
    """All that could have been given."""

    def of(self, settings: type[Settings]) -> Settings:
        """A room's settings: those that were given, or what the class is by itself."""
        found = self.rooms.get(settings)
        return found if isinstance(found, settings) else settings()

    def with_rooms(self, *settings: object) -> Config:
        """The same, with these settings instead of those of the same classes."""
        return replace(self, rooms={**self.rooms, **{type(each): each for each in settings}})

    @property
    def has_users(self) -> bool:
        """Is there anything by which somebody proves to be a user, but for certificates?"""
        return self.passwords is not None or self.has_other_users

    @property
    def has_other_users(self) -> bool:
        """Are there any that no file names?"""
        return self.jwt is not None or self.hook is not None

    @property
    def takes_clients(self) -> bool:
        return bool(self.mqtt or self.mqtts or self.ws or self.wss)


@dataclass(slots=True, frozen=True)
class Given:
    """What a configuration says, by key ("tls.key"), as the readers of the keys understood it."""

    values: Mapping[str, Any]
    places: Mapping[str, str]
    """Of each, "FILE:LINE: KEY" or the flag."""
    keys: Collection[str]
    """All that could have been given."""

    def where(self, name: str) -> str:
        """To begin an error with."""
        return self.places.get(name, name)

    def table(self, name: str) -> dict[str, Any]:
        """What was given in a table of the file, by the keys in it."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): v for key, v in self.values.items() if key.startswith(prefix)}


def _nothing(config: Config, given: Given) -> None:
    pass


def _no_files(config: Config) -> Mapping[str, Path | None]:
    return {}


@dataclass(slots=True, frozen=True)
class Chapter(Generic[Settings_co]):
    """What a room adds to the configuration."""

    settings: type[Settings_co]
    """By itself, what holds if nothing is said."""
    keys: tuple[Key, ...]
    make: Callable[[Given], Settings_co]
    """Settings from what was given; asked for only if one of the keys was. Raises ConfigError."""
    check: Callable[[Config, Given], None] = _nothing
    """Whether they hold together with everything else; asked of every node. Raises ConfigError."""
    secrets: Callable[[Config], Mapping[str, Path | None]] = _no_files
    """Files that no other user should read, by what people call them."""


# What chapters and the node itself check


def check_same_ports(addresses: Iterable[tuple[str, Address]], given: Given) -> None:
    """Each with the key that it was given for."""
    taken: dict[tuple[str, int], str] = {}
    for name, address in addresses:
        for host in address.bind_hosts:
            other = taken.get((host, address.port))
            if other and address.port:
                also = "given twice" if other == name else f"also the address of {other}"
                raise ConfigError(f"{given.where(name)}: {address} is {also}")
            taken[host, address.port] = name


def check_open_listeners(addresses: Iterable[tuple[str, Address]], config: Config, given: Given) -> None:
    """Whoever wants strangers to be let in without a name has to say so. Each with its key."""
    if config.has_users or "access.anonymous" in given.values:
        return
    for name, address in addresses:
        is_tls = name in ("mqtts", "wss")
        if address.is_loopback or (is_tls and config.tls and config.tls.require_client_certificate):
            continue
        certificates = "tls.require_client_certificate = true (--require-client-certificate), or "
        raise ConfigError(
            f"{given.where(name)}: on {address} anyone who reaches this machine could connect without "
            f"a name. Set access.passwords (--passwords FILE), or {certificates if is_tls else ''}"
            "say that this is meant: access.anonymous = true (--anonymous)"
        )


def check_not_itself(urls: Iterable[BrokerUrl], key: str, config: Config, given: Given) -> None:
    """Nobody is a neighbour of itself. `key` is what the URLs were given for."""
    own = [
        BrokerUrl(host, address.port)
        for address in (*config.mqtt, *config.mqtts)
        for host in _reached_hosts(address)
    ]
    for url in urls:
        if any(url.is_same_place(each) for each in own):
            raise ConfigError(f"{given.where(key)}: {url} is this node itself")


def _reached_hosts(address: Address) -> tuple[str, ...]:
    return ("localhost",) if address.host in ("*", "0.0.0.0", "::") else (address.host,)


def load_access(config: Config, memberships: UserGroups | None = None) -> Access:
    """The access rules that the configuration names. Raises ConfigError with the ACL file and line."""
    if config.acl is None:
        return Access()
    return Access(Acl.parse(read_utf8(config.acl), str(config.acl)), memberships)
