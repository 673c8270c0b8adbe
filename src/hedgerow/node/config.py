"""The configuration of a node: a TOML file, and flags that override it.

`keys` has the one list of everything that can be configured. A `Config` that was loaded can be used as it is:
every value has the right type and range, the files that it names can be read, TLS listeners have a
certificate, and nobody outside this machine gets in without a name unless the configuration says so in words.
Errors name the file and line, or the flag, and the key and the reason.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.io.config_keys import make_federation
from hedgerow.journal.config import JournalConfig, make_journal
from hedgerow.mobility.config import MobilityConfig
from hedgerow.mobility.io.config_keys import make_mobility
from hedgerow.multicast.config import Multicast, make_multicast
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.config_keys import ALL_KEYS, KEYS, LISTENERS, SECTIONS
from hedgerow.node.values import Address, Key, read_boolean, read_utf8
from hedgerow.sensors.config import SensorSettings, make_sensor_settings


@dataclass(slots=True, frozen=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None
    require_client_certificate: bool = False
    use_identity_as_username: bool = False


@dataclass(slots=True, frozen=True)
class Config:
    mqtt: tuple[Address, ...] = (Address("localhost", 1883),)
    mqtts: tuple[Address, ...] = ()
    ws: tuple[Address, ...] = (Address("localhost", 9001),)
    wss: tuple[Address, ...] = ()
    http: tuple[Address, ...] = (Address("localhost", 8780),)
    https: tuple[Address, ...] = ()
    udp: tuple[Address, ...] = ()
    data: Path | None = None
    id: str | None = None
    bridges: tuple[Path, ...] = ()
    """Files of sections, as `bridge_files` reads them."""
    tls: Tls | None = None
    passwords: Path | None = None
    acl: Path | None = None
    anonymous: bool = True
    administrators: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    log_format: str = "text"
    log_level: str = "info"
    sys_interval_s: float = 10.0
    sensors: SensorSettings = field(default_factory=SensorSettings)
    multicast: Multicast = field(default_factory=Multicast)
    federation: FederationConfig = field(default_factory=FederationConfig)
    mobility: MobilityConfig = field(default_factory=MobilityConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    mdns: bool = False
    dashboard: bool = True
    """Beside metrics and health, wherever HTTP is served."""
    home_assistant: str | None = None
    """The prefix of Home Assistant's discovery; None: it is told nothing."""

    @property
    def takes_clients(self) -> bool:
        return bool(self.mqtt or self.mqtts or self.ws or self.wss)

    @property
    def serves_dashboard(self) -> bool:
        return self.dashboard and bool(self.http or self.https)


FIELDS = {
    "log.format": "log_format",
    "log.level": "log_level",
    "sys.interval": "sys_interval_s",
    "home_assistant.prefix": "home_assistant",
}


class NodeKind(NamedTuple):
    """A kind of node: what can be configured of it, and what holds for it otherwise."""

    command: str
    keys: tuple[Key, ...]
    defaults: Config


NODE = NodeKind("hedgerow up", KEYS, Config())
# It has no clients of its own: whatever it serves, it serves through the broker that it stands beside.
SIDECAR = NodeKind(
    "hedgerow federate",
    tuple(
        key
        for key in ALL_KEYS
        if key.name in ("id", "data", "http", "dashboard")
        or (key.name.startswith(("log.", "limits.", "federation.")) and key.name != "federation.enabled")
    ),
    Config(mqtt=(), ws=(), http=()),
)
# It has no clients at all: it is a member of the federation that it shows.
DASHBOARD = NodeKind(
    "hedgerow dash",
    tuple(
        key
        for key in KEYS
        if key.name in ("id", "http", "https", "tls.certificate", "tls.key")
        or (
            key.name.startswith(("access.", "log.", "limits.", "federation."))
            and key.name not in ("access.anonymous", "federation.enabled")
        )
    ),
    Config(mqtt=(), ws=(), http=(Address("localhost", 8781),)),
)


# What keeps strangers from reading a dashboard: the key that it takes, and how to say it.
CLOSED_DASHBOARD = {
    "access.passwords": "set access.passwords (--passwords FILE)",
    "access.anonymous": "say that this is meant, access.anonymous = true (--anonymous)",
    "dashboard": "serve metrics alone, dashboard = false (--no-dashboard)",
}


def load_config(path: Path | None, overrides: Mapping[str, object], kind: NodeKind = NODE) -> Config:
    """The configuration in `path`, if any, with `overrides` by key ("tls.key"). Raises ConfigError."""
    given = _read_file(path) if path is not None else {}
    for name, value in overrides.items():
        given[name] = _Given(value, _flag_of(name), Path())
    return _Loader(given, kind).config()


def make_config(values: Mapping[str, object], path: Path | None = None, kind: NodeKind = NODE) -> Config:
    """The configuration of a program: `values`, in tables or by key ("tls.key"), override the file in `path`.

    Raises ConfigError."""
    given = _read_file(path) if path is not None else {}
    for name, value in _flatten(values):
        given[name] = _Given(_as_in_file(value), name, Path())
    return _Loader(given, kind).config()


def _as_in_file(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_as_in_file(each) for each in value] if isinstance(value, list | tuple) else value


def kind_of(path: Path) -> NodeKind:
    """Whose configuration it is: only what stands beside a broker names that. Raises ConfigError."""
    return SIDECAR if "federation.broker" in _read_file(path) else NODE


def load_access(config: Config) -> Access:
    """The access rules that the configuration names. Raises ConfigError with the ACL file and line."""
    if config.acl is None:
        return Access()
    return Access(Acl.parse(read_utf8(config.acl), str(config.acl)))


def add_arguments(parser: argparse.ArgumentParser, kind: NodeKind = NODE) -> None:
    """Add `--config` and the flag of every key, in groups that are the sections of the file.

    A flag that was not given leaves no attribute.
    """
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file; flags override it")
    groups: dict[str, argparse.ArgumentParser | argparse._ArgumentGroup] = {"": parser}
    for key in kind.keys:
        if key.flag == "--limit":
            continue
        options: dict[str, Any] = {"dest": key.name, "default": argparse.SUPPRESS, "help": key.help}
        if key.read is read_boolean:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = key.metavar
        if key.repeated:
            options["action"] = "append"
        if key.implied is not None:
            options |= {"nargs": "?", "const": key.implied}
        if key.name in (*LISTENERS, "udp"):
            default = ", ".join(map(str, getattr(kind.defaults, key.name))) or "off"
            options["help"] = f"{key.help}; may be repeated (default: {default})"
        section = key.name.rpartition(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(f"[{section}]")
        groups[section].add_argument(key.flag, **options)
    parser.add_argument(
        "--limit",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any key of [limits]; may be repeated",
    )


def from_arguments(namespace: argparse.Namespace, kind: NodeKind = NODE) -> Config:
    """The configuration that the flags of `add_arguments` ask for. Raises ConfigError."""
    given = vars(namespace)
    overrides = {key.name: given[key.name] for key in kind.keys if key.name in given}
    for text in namespace.limit:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f'--limit {text}: not NAME=VALUE, such as --limit "queue_bytes=16 MiB"')
        overrides[f"limits.{name.strip()}"] = value.strip()
    return load_config(namespace.config, overrides, kind)


class _Given(NamedTuple):
    value: object
    where: str  # "FILE:LINE: KEY" or the flag, to begin an error with
    base: Path  # what a relative path is relative to


def _flag_of(name: str) -> str:
    if name.startswith("limits."):
        return f"--limit {name.removeprefix('limits.')}"
    return next((key.flag for key in ALL_KEYS if key.name == name), name)


class _Loader:
    """From what was given, by key, to a Config: reads each value, then checks them together."""

    def __init__(self, given: dict[str, _Given], kind: NodeKind) -> None:
        self.given = given
        self.kind = kind
        self.values: dict[str, Any] = {}
        for name, (value, where, base) in given.items():
            key = next((key for key in kind.keys if key.name == name), None)
            try:
                if key is None:
                    raise ConfigError(_unknown(name, kind))
                self.values[name] = key.read(value, base)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None

    def where(self, name: str) -> str:
        return self.given[name].where if name in self.given else name

    def config(self) -> Config:
        values = self.values
        plain = {
            FIELDS.get(name, name): value
            for name, value in values.items()
            if name in FIELDS or "." not in name
        }
        tls = self.tls()
        passwords = values.get("access.passwords")
        anonymous = values.get("access.anonymous")
        config = replace(
            self.kind.defaults,
            **plain,
            tls=tls,
            passwords=passwords,
            acl=values.get("access.acl"),
            anonymous=passwords is None if anonymous is None else anonymous,
            administrators=values.get("access.administrators", frozenset()),
            limits=Limits(**self.section("limits")),
            sensors=self.sensors(),
            multicast=self.multicast(),
            federation=make_federation(self.section("federation"), self.where),
            mobility=make_mobility(self.section("mobility"), self.where),
            journal=make_journal(self.section("journal"), values.get("data"), self.where),
        )
        if self.kind is SIDECAR and config.federation.home is None:
            raise ConfigError("federation.broker: which broker is it to stand beside? (--broker URL)")
        self.check_tls_listeners(config)
        self.check_same_ports(config, LISTENERS)
        self.check_same_ports(config, ("udp",))
        self.check_open_sensors(config, anonymous is True)
        self.check_administrators(config)
        self.check_mobility(config)
        self.check_neighbours(config)
        if anonymous is None:
            self.check_open_listeners(config)
        elif not anonymous and passwords is None and not (tls and tls.use_identity_as_username):
            raise ConfigError(
                f"{self.where('access.anonymous')}: nobody could connect: clients must have a name, "
                "but there is neither access.passwords nor tls.use_identity_as_username"
            )
        return config

    def section(self, section: str) -> dict[str, Any]:
        prefix = f"{section}."
        return {name.removeprefix(prefix): v for name, v in self.values.items() if name.startswith(prefix)}

    def tls(self) -> Tls | None:
        given = self.section("tls")
        if not given:
            return None
        first = self.where(f"tls.{next(iter(given))}")
        for name in ("certificate", "key"):
            if name not in given:
                raise ConfigError(f"{first}: TLS needs tls.{name} too ({_flag_of(f'tls.{name}')} FILE)")
        for name in ("require_client_certificate", "use_identity_as_username"):
            if given.get(name) and "client_ca" not in given:
                raise ConfigError(f"{self.where(f'tls.{name}')}: needs tls.client_ca too (--client-ca FILE)")
        return Tls(**given)

    def sensors(self) -> SensorSettings:
        given = self.section("sensors")
        if given and "udp" not in self.values:
            first = self.where(f"sensors.{next(iter(given))}")
            raise ConfigError(f"{first}: needs udp too (--udp HOST)")
        return make_sensor_settings(given)

    def multicast(self) -> Multicast:
        given = self.section("multicast")
        if given and "topics" not in given:
            first = self.where(f"multicast.{next(iter(given))}")
            raise ConfigError(f"{first}: needs multicast.topics too (--multicast FILTER)")
        return make_multicast(given)

    def check_tls_listeners(self, config: Config) -> None:
        for name in ("mqtts", "wss", "https"):
            if getattr(config, name) and config.tls is None:
                raise ConfigError(
                    f"{self.where(name)}: needs tls.certificate and tls.key (--certificate FILE --key FILE)"
                )

    def check_same_ports(self, config: Config, names: Iterable[str]) -> None:
        taken: dict[tuple[str, int], str] = {}
        for name, address in _listeners(config, names):
            for host in address.bind_hosts:
                other = taken.get((host, address.port))
                if other and address.port:
                    also = "given twice" if other == name else f"also the address of {other}"
                    raise ConfigError(f"{self.where(name)}: {address} is {also}")
                taken[host, address.port] = name

    def check_open_listeners(self, config: Config) -> None:
        """Whoever wants strangers to be let in without a name has to say so."""
        if config.passwords is not None:
            return
        self.check_open_dashboard(config)
        for name, address in _listeners(config, ("mqtt", "mqtts", "ws", "wss")):
            is_tls = name in ("mqtts", "wss")
            if address.is_loopback or (is_tls and config.tls and config.tls.require_client_certificate):
                continue
            certificates = "tls.require_client_certificate = true (--require-client-certificate), or "
            raise ConfigError(
                f"{self.where(name)}: on {address} anyone who reaches this machine could connect without "
                f"a name. Set access.passwords (--passwords FILE), or {certificates if is_tls else ''}"
                "say that this is meant: access.anonymous = true (--anonymous)"
            )

    def check_open_dashboard(self, config: Config) -> None:
        names = {key.name for key in self.kind.keys}
        ways = "; or ".join(text for name, text in CLOSED_DASHBOARD.items() if name in names)
        for name, address in _listeners(config, ("http", "https")):
            if config.dashboard and not address.is_loopback:
                raise ConfigError(
                    f"{self.where(name)}: on {address} anyone who reaches this machine could read every "
                    f"message on the dashboard: {ways}"
                )

    def check_open_sensors(self, config: Config, anonymous: bool) -> None:
        """A password does not help here: the sensors' protocol has no place for a name."""
        for address in config.udp:
            if not (address.is_loopback or anonymous or config.sensors.anonymous):
                raise ConfigError(
                    f"{self.where('udp')}: on {address} anyone who reaches this machine could publish and "
                    "subscribe to the sensors' topics: their protocol has no names. Say that this is meant: "
                    "sensors.anonymous = true (--sensors-anonymous)"
                )

    def check_administrators(self, config: Config) -> None:
        verified = config.passwords is not None or (config.tls and config.tls.use_identity_as_username)
        if config.administrators and not verified:
            raise ConfigError(
                f"{self.where('access.administrators')}: needs access.passwords (--passwords FILE) or "
                "tls.use_identity_as_username: a name that nobody verifies gives no rights"
            )

    def check_mobility(self, config: Config) -> None:
        mobility = config.mobility
        if not mobility.is_mobile:
            return
        if config.federation.is_enabled:
            first = next(name for name in self.values if name.startswith("federation."))
            raise ConfigError(
                f"{self.where(first)}: a mobile broker reaches the others through its fixed broker, which"
                " may be federated"
            )
        settings = mobility.settings
        if settings.moves_clients and not (settings.address or config.mqtt or config.mqtts):
            raise ConfigError(
                f"{self.where('mobility.role')}: clients that are sent to the fixed broker could not come"
                " back: set mqtt or mqtts, mobility.address (--clients-at HOST:PORT), or"
                " mobility.moves_clients = false (--no-move-clients)"
            )

    def check_neighbours(self, config: Config) -> None:
        others = {
            "federation.neighbours": config.federation.neighbours,
            "federation.join": config.federation.join,
            "mobility.fixed": config.mobility.fixed,
        }
        for _, address in _listeners(config, ("mqtt", "mqtts")):
            own = [BrokerUrl(host, address.port) for host in _reached_hosts(address)]
            for name, urls in others.items():
                for url in urls:
                    if any(url.is_same_place(each) for each in own):
                        raise ConfigError(f"{self.where(name)}: {url} is this node itself")


def _reached_hosts(address: Address) -> tuple[str, ...]:
    return ("localhost",) if address.host in ("*", "0.0.0.0", "::") else (address.host,)


def _listeners(config: Config, names: Iterable[str]) -> Iterator[tuple[str, Address]]:
    return ((name, address) for name in names for address in getattr(config, name))


def _unknown(name: str, kind: NodeKind) -> str:
    import difflib

    if name in SECTIONS:
        return f"is a table: [{name}], with its keys below"
    if any(key.name == name for key in ALL_KEYS):
        return f"is no key of {kind.command}"
    names = [key.name for key in kind.keys]
    last = name.rpartition(".")[2]
    nearest = [known for known in names if known.rpartition(".")[2] == last]
    nearest += difflib.get_close_matches(name, [*names, *SECTIONS], 1)
    nearest += [known for known in names if difflib.get_close_matches(last, [known.rpartition(".")[2]], 1)]
    return "there is no such key" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _read_file(path: Path) -> dict[str, _Given]:
    import tomllib

    text = read_utf8(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, position = str(error).partition(" (at ")
        found = re.match(r"line ([0-9]+)", position)  # otherwise: "end of document"
        line = int(found[1]) if found else len(text.rstrip().splitlines())
        raise ConfigError(f"{path}:{line}: {reason}") from None
    except RecursionError:  # by thousands of brackets
        raise ConfigError(f"{path}: nested too deeply") from None
    lines = _key_lines(text)
    given: dict[str, _Given] = {}
    for name, value in _flatten(document):
        # A key of an inline table stands in the line of that table.
        line_number = lines.get(name) or lines.get(name.partition(".")[0])
        where = f"{path}:{line_number}: {name}" if line_number else f"{path}: {name}"
        given[name] = _Given(value, where, path.parent)
    return given


def _flatten(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _key_lines(text: str) -> dict[str, int]:
    """The line of each key and table. tomllib does not tell; this reads the usual ways to write them."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[+([^\]]+)\]", line):
            section = _normal_key(found[1])
            lines.setdefault(section, number)
            section += "."
        elif found := re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line):
            lines.setdefault(section + _normal_key(found[1]), number)
    return lines


def _normal_key(text: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in text.split("."))
