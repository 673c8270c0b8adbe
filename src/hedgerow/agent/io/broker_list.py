"""The brokers that an agent is given: as words, or as a TOML file.

A word is `ID=HOST:PORT`, `ID=mqtt://USER:PASSWORD@HOST:PORT`, or either without `ID=`, when the id is host
and port. A file is a list of `[[broker]]` tables; `FILE_KEYS` says what may stand in one. The order is the
rank: the later a broker stands, the higher it is. Whatever is wrong raises ConfigError that names the word,
or the file, the broker and the key.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.agent.agent import MAX_BROKERS
from hedgerow.bridges.options import find_option
from hedgerow.bridges.section import FarAddress
from hedgerow.bridges.values import ADDRESSES
from hedgerow.client.options import TlsOptions
from hedgerow.client.urls import BusUrl, parse_url
from hedgerow.errors import ConfigError
from hedgerow.node.authority import authority
from hedgerow.node.values import read_directory_path, read_file_path, read_node_id, read_text, read_utf8

BRIDGED_SCHEMES = ("mqtt", "mqtts")
KINDS = ("hedgerow", "mosquitto", "other")

# These say which bridge it is, and that is the agent's to say.
RESERVED_OPTIONS = ("connection", "address", "topic", "replace", "remote_clientid", "local_clientid")

Option = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """One broker. `id` is its name among agents; it need not be the node's own."""

    id: str
    address: BusUrl
    """Where the agent reaches it, and bridges too unless `bridge_address` says otherwise."""
    bridge_address: FarAddress | None = None
    options: tuple[Option, ...] = ()
    """Further words of the sections of bridges to it."""
    bind: str | None = None
    """The address that its own bridges connect from."""
    kind: str | None = None
    """One of `KINDS`, where `$SYS/broker/version` does not say so."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    config_dir: Path | None = None
    """A Mosquitto's folder of `include_dir`."""
    pidfile: Path | None = None
    pid: int | None = None

    @property
    def far_address(self) -> FarAddress:
        return self.bridge_address or FarAddress(self.address.host, self.address.port)


def read_words(words: Iterable[str]) -> list[BrokerEntry]:
    return [_read_word(word) for word in words]


def check_entries(entries: Sequence[BrokerEntry]) -> None:
    """Raises ConfigError for two of one id or address, and for too many."""
    if len(entries) > MAX_BROKERS:
        raise ConfigError(f"{len(entries)} brokers are more than {MAX_BROKERS}")
    places: dict[str, str] = {}
    for entry in entries:
        if entry.id in places.values():
            raise ConfigError(f"broker {entry.id}: given twice")
        place = authority(entry.address.host, entry.address.port)
        if place in places:
            raise ConfigError(f"broker {entry.id}: {place} is also the address of {places[place]}")
        places[place] = entry.id


def _read_word(word: str) -> BrokerEntry:
    given_id, equals, place = word.partition("=")
    if not equals or "/" in given_id or "@" in given_id:
        given_id, place = "", word
    try:
        address = read_url(place)
        broker_id = read_node_id(given_id, Path()) if equals and given_id else default_id(address)
    except ConfigError as error:
        raise ConfigError(f"broker {given_id or _without_password(place)}: {error}") from None
    return BrokerEntry(broker_id, address)


def read_url(text: str) -> BusUrl:
    """`HOST:PORT`, or a URL that bridges can be made to."""
    address = parse_url(text if "://" in text else f"mqtt://{text}")
    if address.scheme.name not in BRIDGED_SCHEMES:
        raise ConfigError(f"bridges speak mqtt:// and mqtts://, not {address.scheme.name}://")
    if address.rest not in ("", "/"):
        raise ConfigError(f'"{address.rest}" after {address}: {address.scheme.name}:// takes no path')
    return address


def default_id(address: BusUrl) -> str:
    return make_id(f"{address.host}-{address.port}")


def make_id(text: str) -> str:
    """An id out of what is none: a host, the name of a service."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:64] or "broker"


def read_option(text: str) -> Option:
    """`WORD VALUE` of a bridge section, with the word's proper name."""
    word, _, value = text.strip().partition(" ")
    option = find_option(word)
    if option.word in RESERVED_OPTIONS:
        hint = "; --topic says what is carried" if option.word == "topic" else ""
        raise ConfigError(f"{word}: the agent itself says that{hint}")
    value = value.strip()
    try:
        option.kind.read(value)
    except ConfigError as error:
        raise ConfigError(f"{word}: {error}") from None
    return option.word, value


def read_entries(path: Path) -> list[BrokerEntry]:
    """The brokers of a TOML file."""
    try:
        document = tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except RecursionError:  # by thousands of brackets
        raise ConfigError(f"{path}: nested too deeply") from None
    tables = document.pop("broker", None)
    if document:
        raise ConfigError(f"{path}: {next(iter(document))}: there are [[broker]] tables alone")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        raise ConfigError(f"{path}: no [[broker]] tables")
    entries = []
    for number, table in enumerate(tables, 1):
        name = table["id"] if isinstance(table.get("id"), str) else f"number {number}"
        try:
            entries.append(_read_table(table, path.parent))
        except ConfigError as error:
            raise ConfigError(f"{path}: broker {name}: {error}") from None
    return entries


def _read_table(table: dict[str, Any], base: Path) -> BrokerEntry:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in FILE_KEYS:
            raise ConfigError(f"{key}: there is no such key; there are {', '.join(FILE_KEYS)}")
        try:
            values[key] = FILE_KEYS[key](value, base)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
    if "url" not in values:
        raise ConfigError("has no url")
    if "config_dir" in values and not {"pid", "pidfile"} & values.keys():
        raise ConfigError("config_dir: needs pid or pidfile too, to tell Mosquitto of the change")
    files = [str(values.pop(key)) if key in values else None for key in ("ca_file", "cert_file", "key_file")]
    address = values.pop("url")
    return BrokerEntry(
        values.pop("id", default_id(address)),
        address,
        bridge_address=values.pop("address", None),
        tls=TlsOptions(files[0], files[1], files[2]),
        **values,
    )


def _read_url(value: object, base: Path) -> BusUrl:
    return read_url(read_text(value, base))


def _read_bridge_address(value: object, base: Path) -> FarAddress:
    addresses: tuple[FarAddress, ...] = ADDRESSES.read(read_text(value, base))
    if len(addresses) > 1:
        raise ConfigError("one address is expected")
    return addresses[0]


def _read_options(value: object, base: Path) -> tuple[Option, ...]:
    if not isinstance(value, list):
        raise ConfigError('is no list such as ["keepalive_interval 20"]')
    return tuple(read_option(read_text(each, base)) for each in value)


def _read_bind(value: object, base: Path) -> str:
    text = read_text(value, base)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f'"{text}" is not an IPv4 or IPv6 address') from None
    return text


def _read_kind(value: object, base: Path) -> str:
    if value not in KINDS:
        raise ConfigError(f"is none of {', '.join(KINDS)}")
    return str(value)


def _read_pid(value: object, base: Path) -> int:
    if type(value) is not int or not 2 <= value < 1 << 31:
        raise ConfigError("is not the number of a process")
    return value


def _read_config_dir(value: object, base: Path) -> Path:
    path: Path = read_directory_path(value, base)
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such directory")
    return path


FILE_KEYS: dict[str, Callable[[object, Path], Any]] = {
    "id": read_node_id,
    "url": _read_url,
    "address": _read_bridge_address,
    "options": _read_options,
    "bind": _read_bind,
    "kind": _read_kind,
    "ca_file": read_file_path,
    "cert_file": read_file_path,
    "key_file": read_file_path,
    "config_dir": _read_config_dir,
    "pidfile": lambda value, base: base / read_text(value, base),
    "pid": _read_pid,
}


def _without_password(text: str) -> str:
    return re.sub(r":[^:@/]*@", ":…@", text)
