"""From a mosquitto.conf to the keys of a node.

Mosquitto has settings of a listener where a node has them once. They are taken where all listeners
agree. Where they do not, the file is refused: it asks for two nodes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.bridges.options import OPTIONS
from hedgerow.cli.mosquitto.lines import OptionLine, read_lines
from hedgerow.cli.mosquitto.options import (
    GENERAL,
    LISTENER,
    READ_BY_HAND,
    Fate,
    Needless,
    Sets,
    Unsupported,
    fate_of,
    flag,
    number,
)
from hedgerow.errors import ConfigError
from hedgerow.node.config_files import Written

PATHS = ("access.acl", "access.passwords", "data")
"""With those of `tls`: keys whose values are relative to the file."""
SHARED = {"password_file", "acl_file", "allow_anonymous", "allow_zero_length_clientid"}
"""What `per_listener_settings true` makes settings of a listener."""

OF_TLS = {w for w, fate in LISTENER.items() if isinstance(fate, Sets) and fate.key.startswith("tls.")}
OF_BRIDGES = {word for option in OPTIONS.values() for word in (option.word, *option.aliases)}
OF_LISTENERS = {*LISTENER, "bind_address", "cafile", "protocol", "socket_domain"}
PROTOCOLS = {"mqtt": "mqtt", "websockets": "ws"}
DOMAINS = {"ipv4": "0.0.0.0", "ipv6": "[::]"}
LOCAL_PORT = 1883
# The least severe kind that is asked for decides.
LEVELS = {
    "debug": "debug", "all": "debug", "internal": "debug", "websockets": "debug",
    "information": "info", "notice": "info", "subscribe": "info", "unsubscribe": "info",
    "warning": "warning", "error": "error", "none": "error",
}  # fmt: skip
SEVERITY = ("debug", "info", "warning", "error")


@dataclass
class _Listener:
    line: OptionLine | None
    port: int = LOCAL_PORT
    host: str | None = None
    options: dict[str, OptionLine] = field(default_factory=dict)

    def value(self, word: str) -> str | None:
        return self.options[word].value if word in self.options else None

    @property
    def where(self) -> str:
        return self.line.where if self.line is not None else "the listener at port 1883"


@dataclass
class Converted:
    """What a mosquitto.conf comes to."""

    written: dict[str, Written] = field(default_factory=dict)
    """Keys of the node, as the file gave them."""
    bridges: str = ""
    """Its connection sections, as they stand."""
    ignored: list[str] = field(default_factory=list)
    """What is not honoured, with the place and the reason."""


def convert(file: Path) -> Converted:
    """Raises ConfigError for what cannot be, and for what a node would have to leave open."""
    result = Converted()
    general, listeners = _sort(list(read_lines(file)), result)
    base = file.parent
    for line in general.values():
        _take(result, line, GENERAL.get(line.word), base)
    _take_logging(result, general, base)
    _take_persistence(result, general, base)
    _take_listeners(result, listeners, base)
    if "access.anonymous" not in result.written:
        # Mosquitto 2: nobody without a user, but at a broker that only this machine reaches.
        is_local = all(each.line is None for each in listeners) and "access.passwords" not in result.written
        result.written["access.anonymous"] = Written(is_local, f"{file}: allow_anonymous", base)
    return result


def _sort(lines: Iterable[OptionLine], result: Converted) -> tuple[dict[str, OptionLine], list[_Listener]]:
    """General options, and the listeners with theirs. Sections of bridges go into the result."""
    general: dict[str, OptionLine] = {}
    default = _Listener(None)
    listeners = [default]
    is_in_bridge = per_listener = False
    for line in lines:
        if line.word == "connection" or (is_in_bridge and line.word in OF_BRIDGES):
            is_in_bridge = True
            result.bridges += f"{line.word} {line.value}\n"
        elif line.word == "port":
            default.line, default.port = line, _number(line, line.value)
        elif line.word == "listener":
            is_in_bridge = False
            listeners.append(_read_listener(line))
        elif line.word == "per_listener_settings":
            per_listener = _read(line, flag) is True
        elif line.word in OF_LISTENERS or (per_listener and line.word in SHARED):
            listeners[-1].options[line.word] = line
        elif fate_of(line.word) is not None or line.word in READ_BY_HAND:
            # A log_dest and a log_type each stand several times.
            general[f"{line.word} {line.value}" if line.word.startswith("log_") else line.word] = line
        else:
            raise ConfigError(f"{line.where}: Mosquitto 2.0 has no such option{_nearest(line, is_in_bridge)}")
    if default.line is None and len(listeners) > 1:
        del listeners[0]
        for line in default.options.values():
            result.ignored.append(f"{line.where}: stands before every listener, and belongs to none")
    return general, listeners


def _nearest(line: OptionLine, is_in_bridge: bool) -> str:
    known = [*GENERAL, *LISTENER, *READ_BY_HAND, *(OF_BRIDGES if is_in_bridge else ())]
    near = difflib.get_close_matches(line.word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _read_listener(line: OptionLine) -> _Listener:
    port, _, host = line.value.partition(" ")
    host = host.strip()
    if port == "0" or host.startswith("/"):
        raise ConfigError(f"{line.where}: a node does not listen at a path; give a port and an address")
    return _Listener(line, _number(line, port), host or None)


def _number(line: OptionLine, value: str) -> int:
    try:
        return number(value)
    except ConfigError as error:
        raise ConfigError(f"{line.where}: {error}") from None


def _read(line: OptionLine, read: Any) -> Any:
    try:
        return read(line.value)
    except ConfigError as error:
        raise ConfigError(f"{line.where}: {error}") from None


def _take(result: Converted, line: OptionLine, fate: Fate | None, base: Path) -> None:
    match fate:
        case Sets(key, read):
            value = _read(line, read)
            if value is not None:
                result.written[key] = Written(value, line.where, base)
        case Unsupported(why, guards, unless):
            if line.value == unless:
                return
            if guards:
                raise ConfigError(f"{line.where}: not supported, and without it more would be open: {why}")
            result.ignored.append(f"{line.where}: not honoured: {why}")
        case Needless() | None:
            pass


def _take_logging(result: Converted, general: dict[str, OptionLine], base: Path) -> None:
    types = [line for line in general.values() if line.word == "log_type"]
    for line in types:
        if line.value not in LEVELS:
            raise ConfigError(f'{line.where}: "{line.value}" is none of {", ".join(LEVELS)}')
    if types:
        level = min((LEVELS[line.value] for line in types), key=SEVERITY.index)
        result.written["log.level"] = Written(level, types[0].where, base)
    for line in general.values():
        if line.word == "log_dest" and line.value not in ("stderr", "stdout"):
            result.ignored.append(f"{line.where} {line.value}: not honoured: the log goes to standard error")


def _take_persistence(result: Converted, general: dict[str, OptionLine], base: Path) -> None:
    line = general.get("persistence")
    if line is None or not _read(line, flag):
        return
    place = general.get("persistence_location")
    if place is None:
        raise ConfigError(f"{line.where}: needs persistence_location, the directory of the data")
    result.written["data"] = Written(place.value, place.where, base)


def _take_listeners(result: Converted, listeners: list[_Listener], base: Path) -> None:
    for scheme in ("mqtt", "mqtts", "ws", "wss"):
        found = [each for each in listeners if _scheme(each) == scheme]
        addresses: list[str] = [_address(each) for each in found]
        where = found[0].where if found else "mosquitto.conf"
        result.written[scheme] = Written(addresses or "off", where, base)
    for word in (*LISTENER, *SHARED):
        fate = LISTENER.get(word) or GENERAL[word]
        concerned = [each for each in listeners if word not in OF_TLS or _is_tls(each)]
        line = _agreed(concerned, word)
        if line is not None:
            _take(result, line, fate, base)
    required = _agreed([each for each in listeners if _is_tls(each)], "require_certificate")
    authorities = _agreed([each for each in listeners if _is_tls(each)], "cafile")
    if required is not None and _read(required, flag):
        if authorities is None:
            raise ConfigError(f"{required.where}: needs cafile")
        result.written["tls.client_ca"] = Written(authorities.value, authorities.where, base)


def _agreed(listeners: list[_Listener], word: str) -> OptionLine | None:
    """The option, which all listeners must have with one value. Raises ConfigError."""
    lines = [each.options.get(word) for each in listeners]
    given = [line for line in lines if line is not None]
    if not given:
        return None
    if len(given) < len(lines) or len({line.value for line in given}) > 1:
        raise ConfigError(
            f"{given[-1].where}: the listeners differ, and a node has one such setting for all of them;"
            " run a node for each, and federate them"
        )
    return given[0]


def _is_tls(listener: _Listener) -> bool:
    return "certfile" in listener.options


def _scheme(listener: _Listener) -> str:
    name = listener.value("protocol") or "mqtt"
    if name not in PROTOCOLS:
        line = listener.options["protocol"]
        raise ConfigError(f'{line.where}: "{name}" is neither mqtt nor websockets')
    return PROTOCOLS[name] + ("s" if _is_tls(listener) else "")


def _address(listener: _Listener) -> str:
    host = listener.host or listener.value("bind_address")
    if host is None and listener.line is None:
        host = "localhost"  # Mosquitto 2 without a listener serves this machine alone.
    if host is None:
        domain = listener.value("socket_domain")
        if domain is not None and domain not in DOMAINS:
            raise ConfigError(f'{listener.where}: socket_domain "{domain}" is neither ipv4 nor ipv6')
        host = "*" if domain is None else DOMAINS[domain]
    elif ":" in host:
        host = f"[{host}]"
    return f"{host}:{listener.port}"
