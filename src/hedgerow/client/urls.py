"""Where to connect, as a URL: `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][/PATH]`.

`SCHEMES` is the table of transports. A new transport is a new line in it, with the module that
implements it, and every command and `hedgerow.connect` know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from hedgerow.errors import ConfigError
from hedgerow.multicast.io import DEFAULT_PORT as MULTICAST_PORT
from hedgerow.node.authority import authority, host_and_port
from hedgerow.sensors.packet import DEFAULT_PORT as SENSOR_PORT


class Scheme(NamedTuple):
    name: str
    port: int
    tls: bool
    websocket: bool
    module: str
    """Its `open_transport(address, options)` makes one."""
    options: bool = False
    """It takes `?NAME=VALUE&…` after host and port."""
    hostless: bool = False
    """There may be no host."""


_MQTT_MODULE = "hedgerow.client.mqtt_transport"
_SENSOR_MODULE = "hedgerow.client.sensor_transport"
_MULTICAST_MODULE = "hedgerow.client.multicast_transport"

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("mqtt", 1883, tls=False, websocket=False, module=_MQTT_MODULE),
        Scheme("mqtts", 8883, tls=True, websocket=False, module=_MQTT_MODULE),
        Scheme("ws", 80, tls=False, websocket=True, module=_MQTT_MODULE),
        Scheme("wss", 443, tls=True, websocket=True, module=_MQTT_MODULE),
        Scheme("udp", SENSOR_PORT, tls=False, websocket=False, module=_SENSOR_MODULE, options=True),
        Scheme(
            "multicast",
            MULTICAST_PORT,
            tls=False,
            websocket=False,
            module=_MULTICAST_MODULE,
            options=True,
            hostless=True,
        ),
    )
}
BROKER_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if scheme.module == _MQTT_MODULE)
"""Of those at whose other end is a broker, which keeps a session."""

DEFAULT_WEBSOCKET_PATH = "/mqtt"

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"((?P<username>[^:@/]*)(:(?P<password>[^@/]*))?@)?"
    r"(\[(?P<literal>[^\]/]*)\]|(?P<host>[^:/?#\[\]@]*))"
    r"(:(?P<port>[^/?#@\[\]]*))?"
    r"(?P<rest>[/?#].*)?",
    re.DOTALL,
)
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


@dataclass(slots=True, frozen=True)
class BusUrl:
    """A parsed URL. `rest` is what follows host and port: a WebSocket's path, or what the user of a
    command appended as a topic."""

    scheme: Scheme
    host: str
    port: int
    rest: str = ""
    username: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        """For people, and so without the password."""
        user = f"{quote(self.username)}@" if self.username else ""
        path = self.path if self.scheme.websocket else ""
        if self.scheme.options:
            path = "".join(self.rest.partition("?")[1:])
        return f"{self.scheme.name}://{user}{authority(self.host, self.port)}{path}"

    @property
    def path(self) -> str:
        return DEFAULT_WEBSOCKET_PATH if self.rest in ("", "/") else self.rest


def parse_url(url: str, offered: Iterable[str] = SCHEMES) -> BusUrl:
    """Read a URL, or raise ConfigError saying what is wrong with it.

    `offered` are the schemes that the error names: who takes some alone says of the others why not."""
    known = f"there are {', '.join(f'{name}://' for name in offered)}"
    matched = _URL.fullmatch(url)
    if matched is None:
        example = "mqtt://[USER[:PASSWORD]@]HOST[:PORT]"
        hint = f"did you mean mqtt://{url}?" if _HOST.fullmatch(url) else known
        raise ConfigError(f'"{_without_password(url)}" is not a URL such as {example}; {hint}')
    scheme = SCHEMES.get(matched["scheme"].lower())
    if scheme is None:
        raise ConfigError(f'no transport "{matched["scheme"]}://"; {known}')
    host = matched["literal"] or unquote(matched["host"] or "")
    if not host and not scheme.hostless:
        raise ConfigError(f'"{_without_password(url)}" names no host')
    return BusUrl(
        scheme,
        host,
        _parse_port(matched["port"], scheme, url),
        matched["rest"] or "",
        None if matched["username"] is None else unquote(matched["username"]),
        None if matched["password"] is None else unquote(matched["password"]),
    )


def read_host(text: str) -> tuple[str, int | None]:
    """HOST or HOST:PORT, or raise ConfigError."""
    host, port = host_and_port(text)
    if not host or port == 0:
        raise ConfigError(f'"{text}" is not HOST or HOST:PORT')
    return host, port


def _parse_port(text: str | None, scheme: Scheme, url: str) -> int:
    if not text:
        return scheme.port
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65_536):
        raise ConfigError(f'port "{text}" in "{_without_password(url)}" is not a number from 1 to 65535')
    return int(text)


def _without_password(url: str) -> str:
    """The URL as an error may quote it: errors end in logs."""
    return re.sub(r"^([A-Za-z0-9+.-]*://)?([^:/@]*):.*@", r"\1\2:…@", url, flags=re.DOTALL)
