"""From a TOML file, and flags that override it, to a `Config`.

A `NodeKind` has the one list of everything that can be configured. Errors name the file and line, or the
flag, and the key and the reason.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.node.config import (
    Chapter,
    Config,
    Given,
    LoginHook,
    Tls,
    WebTokenRules,
    check_open_listeners,
    check_same_ports,
)
from hedgerow.node.config_files import Written, flatten, read_config_file
from hedgerow.node.config_keys import FIELDS, LIMIT_KEYS, LISTENERS, NODE_KEYS
from hedgerow.node.values import Address, Key, read_boolean


class NodeKind(NamedTuple):
    """A kind of node: what can be configured of it, and what holds for it otherwise."""

    command: str
    chapters: tuple[Chapter[object], ...]
    defaults: Config
    takes: Callable[[str], bool] = lambda name: True
    """Is this a key of it?"""
    check: Callable[[Config, Given], None] = lambda config, given: None
    """What must hold for this kind, between rooms too. Raises ConfigError."""

    @property
    def known_keys(self) -> tuple[Key, ...]:
        """Those of other kinds, too."""
        return (*NODE_KEYS, *(key for chapter in self.chapters for key in chapter.keys), *LIMIT_KEYS)

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(key for key in self.known_keys if self.takes(key.name))

    @property
    def tables(self) -> set[str]:
        return {key.name.partition(".")[0] for key in self.known_keys if "." in key.name}


def load_config(
    path: Path | None,
    overrides: Mapping[str, object],
    kind: NodeKind,
    instead: Mapping[str, Written] | None = None,
) -> Config:
    """The configuration in `path`, if any, or what another kind of file says `instead`, with `overrides` by
    key ("tls.key"). Raises ConfigError."""
    written = read_config_file(path, kind.tables) if path is not None else dict(instead or {})
    flags = {key.name: key.flag for key in kind.known_keys}
    for name, value in overrides.items():
        table, _, rest = name.partition(".")
        where = f"--limit {rest}" if table == "limits" else flags.get(name, name)
        written[name] = Written(value, where, Path())
    return _make(written, kind)


def make_config(values: Mapping[str, object], path: Path | None, kind: NodeKind) -> Config:
    """The configuration of a program: `values`, in tables or by key ("tls.key"), override the file in `path`.

    Raises ConfigError."""
    written = read_config_file(path, kind.tables) if path is not None else {}
    for name, value in flatten(values, kind.tables):
        written[name] = Written(_as_in_file(value), name, Path())
    return _make(written, kind)


def _as_in_file(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_as_in_file(each) for each in value] if isinstance(value, list | tuple) else value


# Flags


def add_arguments(parser: argparse.ArgumentParser, kind: NodeKind) -> None:
    """Add `--config` and the flag of every key, in groups that are the tables of the file.

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
        if key.name in LISTENERS:
            default = ", ".join(map(str, getattr(kind.defaults, key.name))) or "off"
            options["help"] = f"{key.help}; may be repeated (default: {default})"
        table = key.name.rpartition(".")[0]
        if table not in groups:
            groups[table] = parser.add_argument_group(f"[{table}]")
        groups[table].add_argument(key.flag, **options)
    parser.add_argument(
        "--limit",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any key of [limits]; may be repeated",
    )


def from_arguments(
    namespace: argparse.Namespace, kind: NodeKind, instead: Mapping[str, Written] | None = None
) -> Config:
    """The configuration that the flags of `add_arguments` ask for; without `--config`, with what is written
    `instead`. Raises ConfigError."""
    given = vars(namespace)
    overrides = {key.name: given[key.name] for key in kind.keys if key.name in given}
    for text in namespace.limit:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f'--limit {text}: not NAME=VALUE, such as --limit "queue_bytes=16 MiB"')
        overrides[f"limits.{name.strip()}"] = value.strip()
    return load_config(namespace.config, overrides, kind, instead)


# From what was written to a Config: reads each value, then checks them together


def _make(written: Mapping[str, Written], kind: NodeKind) -> Config:
    given = _read(written, kind)
    config = replace(
        kind.defaults,
        **{field: given.values[name] for name, field in FIELDS.items() if name in given.values},
        tls=_tls(given),
        jwt=_web_tokens(given),
        hook=_login_hook(given),
        anonymous=given.values.get("access.anonymous", not given.values.keys() & NAMING_USERS),
        limits=Limits(**given.table("limits")),
        values=given.values,
        keys={key.name: key for key in kind.keys},
    )
    for chapter in kind.chapters:
        if any(key.name in given.values for key in chapter.keys):
            config = config.with_rooms(chapter.make(given))
    for check in (
        _check_tls_listeners,
        _check_listeners,
        _check_data,
        _check_administrators,
        *(chapter.check for chapter in kind.chapters),
        kind.check,
        _check_names,
    ):
        check(config, given)
    return config


# Of whatever lets users in, by which clients without a name are kept out unless people say otherwise.
NAMING_USERS = {"access.passwords", "jwt.keys", "hook.url"}


def _web_tokens(given: Given) -> WebTokenRules | None:
    table = given.table("jwt")
    if not table:
        return None
    if "keys" not in table:
        raise ConfigError(f"{given.where(f'jwt.{next(iter(table))}')}: needs jwt.keys too (--jwt-keys WHERE)")
    seconds = {f"{name}_s": table.pop(name) for name in ("leeway", "refresh") if name in table}
    return WebTokenRules(**table, **seconds)


def _login_hook(given: Given) -> LoginHook | None:
    table = given.table("hook")
    if not table:
        return None
    if "url" not in table:
        raise ConfigError(
            f"{given.where(f'hook.{next(iter(table))}')}: needs hook.url too (--login-hook URL)"
        )
    seconds = {f"{name}_s": table.pop(name) for name in ("timeout", "cache") if name in table}
    return LoginHook(**table, **seconds)


def _read(written: Mapping[str, Written], kind: NodeKind) -> Given:
    keys = {key.name: key for key in kind.keys}
    values: dict[str, Any] = {}
    for name, (value, where, base) in written.items():
        try:
            if name not in keys:
                raise ConfigError(_unknown(name, kind))
            values[name] = keys[name].read(value, base)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return Given(values, {name: each.where for name, each in written.items()}, keys)


def _unknown(name: str, kind: NodeKind) -> str:
    import difflib

    if name in kind.tables:
        return f"is a table: [{name}], with its keys below"
    if any(key.name == name for key in kind.known_keys):
        return f"is no key of {kind.command}"
    names = [key.name for key in kind.keys]
    last = name.rpartition(".")[2]
    nearest = [known for known in names if known.rpartition(".")[2] == last]
    nearest += difflib.get_close_matches(name, [*names, *kind.tables], 1)
    nearest += [known for known in names if difflib.get_close_matches(last, [known.rpartition(".")[2]], 1)]
    return "there is no such key" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _tls(given: Given) -> Tls | None:
    table = given.table("tls")
    if not table:
        return None
    first = given.where(f"tls.{next(iter(table))}")
    for name in ("certificate", "key"):
        if name not in table:
            raise ConfigError(f"{first}: TLS needs tls.{name} too (--{name} FILE)")
    if table.get("use_identity_as_username") and table.get("use_subject_as_username"):
        where = given.where("tls.use_subject_as_username")
        raise ConfigError(f"{where}: either this or tls.use_identity_as_username")
    needing = (
        "require_client_certificate",
        "use_identity_as_username",
        "use_subject_as_username",
        "crl_file",
    )
    for name in needing:
        if table.get(name) and "client_ca" not in table:
            raise ConfigError(f"{given.where(f'tls.{name}')}: needs tls.client_ca too (--client-ca FILE)")
    return Tls(**table)


def _check_tls_listeners(config: Config, given: Given) -> None:
    for name in ("mqtts", "wss", "https"):
        if getattr(config, name) and config.tls is None:
            raise ConfigError(
                f"{given.where(name)}: needs tls.certificate and tls.key (--certificate FILE --key FILE)"
            )


def _check_listeners(config: Config, given: Given) -> None:
    check_same_ports(_listeners(config, LISTENERS), given)


def _check_data(config: Config, given: Given) -> None:
    for name in ("data_bytes", "data_full", "data_age"):
        if name in given.values and config.data is None:
            raise ConfigError(f"{given.where(name)}: needs data too (--data DIR)")


def _check_administrators(config: Config, given: Given) -> None:
    verified = config.has_users or (config.tls and config.tls.names_users)
    if config.administrators and not verified:
        raise ConfigError(
            f"{given.where('access.administrators')}: needs access.passwords (--passwords FILE) or "
            "tls.use_identity_as_username: a name that nobody verifies gives no rights"
        )


def _check_names(config: Config, given: Given) -> None:
    """Whoever wants strangers to be let in without a name has to say so, and somebody must get in."""
    if config.has_users:
        return
    check_open_listeners(_listeners(config, ("mqtt", "mqtts", "ws", "wss")), config, given)
    if "access.anonymous" not in given.values:
        return
    if not config.anonymous and not (config.tls and config.tls.names_users):
        raise ConfigError(
            f"{given.where('access.anonymous')}: nobody could connect: clients must have a name, "
            "but there is neither access.passwords nor tls.use_identity_as_username"
        )


def _listeners(config: Config, names: Iterable[str]) -> Iterator[tuple[str, Address]]:
    return ((name, address) for name in names for address in getattr(config, name))
