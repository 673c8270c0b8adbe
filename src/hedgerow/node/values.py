"""How the values of a configuration are written, and what they mean: addresses, files, sizes, durations.

A reader takes what TOML or a flag gave, and the folder that relative paths start from. It returns the
value to work with or raises ConfigError with the reason alone; its caller knows where the value stood.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hedgerow.broker.limits import KIB, MIB, Limits
from hedgerow.errors import ConfigError
from hedgerow.node.authority import authority
from hedgerow.node.files import read_regular

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

GIB = 1024 * MIB
TIB = 1024 * GIB
INFINITE = float("inf")

SIZE_UNITS = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": KIB, "mib": MIB, "gib": GIB}
DURATION_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
A_SIZE = 'a size such as 65536 or "16 MiB"'
A_DURATION = 'a duration such as 10, "5 min" or "never"'

# What a limit may be set to: from values with which a client can still be served to those that the
# protocol has room for, or that no machine reaches.
LIMIT_RANGES: dict[str, tuple[float, float]] = {
    "connections": (1, 10_000_000),
    "http_connections": (4, 100_000),
    "connects_per_s": (0, 1_000_000),
    "connect_timeout_s": (0.1, 3_600),
    "packet_bytes": (256, 268_435_460),  # §2.1.4: a remaining length of four bytes, and the header
    "receive_maximum": (1, 65_535),
    "in_flight": (1, 65_535),
    "queue_bytes": (KIB, TIB),
    "queue_messages": (1, 1_000_000_000),
    "subscriptions": (1, 10_000_000),
    "session_bytes": (64 * KIB, TIB),
    "subscription_bytes": (64 * KIB, TIB),
    "retained_bytes": (0, TIB),
    "topic_alias_maximum": (0, 65_535),
    "keep_alive_s": (1, 65_535),
    "session_expiry_s": (0, INFINITE),
    "sessions": (1, 1_000_000_000),
}

Read = Callable[[object, Path], Any]


AT_RESTART = "restart"
AT_RELOAD = "reload"
FOR_NEW = "reload, for new connections"
IF_RAISED = "reload if raised, else restart"
"""What clients were told when they connected must hold for as long as they are connected."""


class Key(NamedTuple):
    """One thing that can be configured: where it stands in the file, its flag, and how it is read."""

    name: str
    flag: str
    metavar: str
    read: Read
    help: str
    repeated: bool = False
    """Several values are several flags."""
    implied: str | None = None
    """What the flag means that stands alone, if it may."""
    takes_effect: str = AT_RESTART
    """When a change does, and one of the file that it names: one of the four above."""


@dataclass(slots=True, frozen=True)
class Address:
    """Where to listen. Port 0: the system chooses one."""

    host: str
    """A name, an IPv4 or IPv6 address, `localhost`, or `*` for every address of this machine."""
    port: int

    @property
    def bind_hosts(self) -> tuple[str, ...]:
        """The hosts to bind, IPv4 first; of several, one that this machine does not have may be left out."""
        return {"localhost": ("127.0.0.1", "::1"), "*": ("0.0.0.0", "::")}.get(self.host, (self.host,))

    @property
    def is_loopback(self) -> bool:
        """Reached from this machine alone. A name may resolve to anything, so only `localhost` counts."""
        if self.host == "localhost":
            return True
        ip_address = _ip_address(self.host)
        return ip_address is not None and ip_address.is_loopback

    def __str__(self) -> str:
        return authority(self.host, self.port)


def read_addresses(value: object, base: Path) -> tuple[Address, ...]:
    values = value if isinstance(value, list) else [value]
    if values == ["off"]:
        return ()
    if not values or "off" in values:
        raise ConfigError('either "off" alone, or addresses')
    return tuple(map(_address, values))


def _address(value: object) -> Address:
    if not isinstance(value, str):
        raise ConfigError(f'{show(value)} is not "HOST:PORT" or "off"')
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", value)
    if found is None:
        hint = 'HOST may be a name, an IPv4 address, an IPv6 address in [], "localhost" or "*" for all'
        raise ConfigError(f'"{value}" is not "HOST:PORT" or "off"; {hint}')
    in_brackets, host, port = found.groups()
    if int(port) > 65_535:
        raise ConfigError(f'"{value}": there is no port above 65535')
    if in_brackets is not None:
        if ":" not in in_brackets or _ip_address(in_brackets) is None:
            raise ConfigError(f'"{value}": [{in_brackets}] is not an IPv6 address')
        return Address(in_brackets, int(port))
    if host != "*" and _ip_address(host) is None and not _is_host_name(host):
        raise ConfigError(f'"{value}": "{host}" is neither an IPv4 address nor a name')
    return Address(host.lower(), int(port))


def _is_host_name(host: str) -> bool:
    labels = host.split(".")
    # A last label of digits is an IPv4 address gone wrong (RFC 1123 §2.1).
    return not labels[-1].isdecimal() and all(
        re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels
    )


def _ip_address(text: str) -> IPv4Address | IPv6Address | None:
    import ipaddress

    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def read_text(value: object, base: Path) -> str:
    if value == "":
        raise ConfigError('"" says nothing: give it a value, or leave it out')
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{show(value)} is not a text in quotes")
    return value


def read_boolean(value: object, base: Path) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{show(value)} is neither true nor false")
    return value


def read_count(low: int, high: int) -> Callable[[object, Path], int]:
    def read(value: object, base: Path) -> int:
        return _whole(number_within(value, {}, "a whole number", low, high), value)

    return read


def read_file_path(value: object, base: Path) -> Path:
    """A file that can be read."""
    path = _path(value, base)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a directory, not a file")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{path} cannot be read by this user")
    return path


def read_file_paths(value: object, base: Path) -> tuple[Path, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(read_file_path(each, base) for each in values)


def read_user_names(value: object, base: Path) -> frozenset[str]:
    values = value if isinstance(value, list) else [value]
    return frozenset(read_text(each, base) for each in values)


def read_directory_path(value: object, base: Path) -> Path:
    """A directory, or what may become one."""
    path = _path(value, base)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is not a directory")
    return path


def _path(value: object, base: Path) -> Path:
    try:
        return base / Path(read_text(value, base)).expanduser()
    except RuntimeError:
        raise ConfigError(f"{show(value)}: there is no such home directory") from None


def read_node_id(value: object, base: Path) -> str:
    # It becomes a level of control topics and a part of message ids, which are read back by "/".
    text = read_text(value, base)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise ConfigError(f'"{text}" is not 1 to 64 letters, digits, ".", "_" or "-"')
    return text


def read_one_of(*words: str) -> Read:
    def read(value: object, base: Path) -> str:
        if value not in words:
            import difflib

            near = difflib.get_close_matches(str(value).lower(), words, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{show(value)} is none of {', '.join(words)}{hint}")
        return str(value)

    return read


def read_interval(value: object, base: Path) -> float:
    """Seconds between two repetitions; 0 and "never" both come to 0, which is none at all."""
    seconds = parse_number(value, DURATION_UNITS, A_DURATION)
    return 0.0 if seconds in (0, INFINITE) else duration_within(value, 0.1, 86_400)


def read_duration(low: float, high: float) -> Read:
    """In seconds."""
    return lambda value, base: duration_within(value, low, high)


ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256",
    "HS384", "HS512",
)  # fmt: skip


def read_algorithms(value: object, base: Path) -> tuple[str, ...]:
    """By which tokens may be signed. `none` is not among them."""
    read = read_one_of(*ALGORITHMS)
    return tuple(read(each, base) for each in (value if isinstance(value, list) else [value]))


def read_web_url(value: object, base: Path) -> str:
    """https, or http to this machine: what goes there, and what comes, decides who is let in."""
    from urllib.parse import urlsplit

    text = read_text(value, base)
    try:
        parts = urlsplit(text)
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
        parts = urlsplit("")
    if not is_whole or parts.username is not None or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{show(value)} is not a URL such as https://host/path")
    if parts.scheme == "http" and not Address(parts.hostname or "", 0).is_loopback:
        raise ConfigError(f"{show(value)}: to another machine only by https://")
    return text


def read_key_set(value: object, base: Path) -> Path | str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return read_web_url(value, base)
    return read_file_path(value, base)


def read_limit(name: str) -> Read:
    """The reader of a field of `Limits`: its name and its default say what kind of number it is."""
    is_whole = not isinstance(Limits.__dataclass_fields__[name].default, float)
    units: Mapping[str, float] = {}
    what = "a whole number" if is_whole else "a number"
    if name.endswith("_bytes"):
        units, what = SIZE_UNITS, A_SIZE
    elif name.endswith("_s") and not name.endswith("_per_s"):
        units, what = DURATION_UNITS, A_DURATION

    def read(value: object, base: Path) -> float:
        number = number_within(value, units, what, *LIMIT_RANGES[name])
        return _whole(number, value) if is_whole else float(number)

    return read


def size_within(value: object, low: float, high: float) -> int:
    return _whole(number_within(value, SIZE_UNITS, A_SIZE, low, high), value)


def duration_within(value: object, low: float, high: float) -> float:
    """In seconds."""
    return float(number_within(value, DURATION_UNITS, A_DURATION, low, high))


def number_within(
    value: object, units: Mapping[str, float], what: str, low: float, high: float = INFINITE
) -> float:
    """`what` is how such a value is written."""
    number = parse_number(value, units, what)
    if not low <= number <= high:
        unit = " s" if units is DURATION_UNITS else " bytes" if units is SIZE_UNITS else ""
        raise ConfigError(f"{show(value)} is not {in_range(low, high, unit)}")
    return number


def in_range(low: float, high: float, unit: str = "") -> str:
    return f"from {low:.15g}{unit} on" if high == INFINITE else f"from {low:.15g} to {high:.15g}{unit}"


def parse_number(value: object, units: Mapping[str, float], what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if value == "never" and units is DURATION_UNITS:
        return INFINITE
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?) *([A-Za-z]*)", value)
        if found is not None and (not found[2] or found[2].lower() in units):
            number = float(found[1]) if "." in found[1] else int(found[1])
            return number * units[found[2].lower()] if found[2] else number
    raise ConfigError(f"{show(value)} is not {what}")


def _whole(number: float, value: object) -> int:
    if not float(number).is_integer():
        raise ConfigError(f"{show(value)} is not a whole number")
    return int(number)


def show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def read_utf8(path: Path) -> str:
    """The text of a regular file. Raises ConfigError with the file's name, and the line that is not UTF-8."""
    try:
        content = read_regular(path)
        # As universal newlines would have it.
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from None
