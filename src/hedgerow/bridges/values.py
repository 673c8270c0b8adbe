"""How the values of a bridge section are written: readers of what stands after an option's word, and back.

A reader returns the value to work with, or raises ConfigError with the reason alone; its caller knows the
line and the word, and has let `check_characters` see the text. What a reader returned can be written, and
reads as the same again. A reason never quotes a free text, which may be a password, and of anything else no
more than the beginning: it is sent to clients.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hedgerow.errors import ConfigError, TopicError
from hedgerow.topics import validate_name

DEFAULT_PORT = 1883
MAX_ADDRESSES = 32  # A command could make this node knock at the doors of a whole network.
MAX_NAME_BYTES = 255
MAX_QUOTED = 60

# What MQTT-1.5.4-1 and -2 forbid in a string, and §1.5.4 lets a receiver refuse: Mosquitto refuses these.
_FORBIDDEN = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane * 0x10000 + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


class ValueKind(NamedTuple):
    """One way to write a value."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    is_text: bool = False
    """Any text at all: in JSON it is always a string."""


class FarAddress(NamedTuple):
    """Where the far broker is."""

    host: str
    """A name, or an IPv4 or IPv6 address."""
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        # Mosquitto takes what follows the last colon for the port, and no brackets.
        is_default = self.port == DEFAULT_PORT and ":" not in self.host
        return self.host if is_default else f"{self.host}:{self.port}"


class Backoff(NamedTuple):
    """How long to wait before connecting again: from `base_s` up to `cap_s`; constant when they are equal."""

    base_s: float
    cap_s: float


def quote(text: str) -> str:
    return f'"{text}"' if len(text) <= MAX_QUOTED else f'"{text[:MAX_QUOTED]}…"'


def check_characters(text: str) -> None:
    found = _FORBIDDEN.search(text)
    if found is not None:
        hint = "; words are separated by blanks" if found[0] == "\t" else ""
        raise ConfigError(f"U+{ord(found[0]):04X} is not allowed{hint}")


def check_topic(validate: Callable[[str], str], topic: str) -> None:
    """As `validate` of hedgerow.topics, with a reason that is short whatever the topic is."""
    try:
        validate(topic)
    except TopicError as error:
        raise ConfigError(str(error).replace(repr(topic), quote(topic))) from None


def one_word(text: str) -> str:
    if not text:
        raise ConfigError("has no value")
    word, blank, rest = text.partition(" ")
    if blank:
        raise ConfigError(f"{quote(rest.lstrip(' '))} is too much: one word is expected")
    return word


def one_of(*choices: str) -> ValueKind:
    def read(text: str) -> str:
        word = one_word(text)
        if word not in choices:
            raise ConfigError(f"{quote(word)} is none of {', '.join(choices)}")
        return word

    return ValueKind(read, str)


def whole_number(lowest: int, highest: int) -> ValueKind:
    def read(text: str) -> int:
        word = one_word(text)
        if not re.fullmatch("[0-9]{1,15}", word) or not lowest <= int(word) <= highest:
            raise ConfigError(f"{quote(word)} is not a whole number from {lowest} to {highest}")
        return int(word)

    return ValueKind(read, str)


def seconds(lowest: float, highest: float) -> ValueKind:
    return ValueKind(lambda text: _read_seconds(one_word(text), lowest, highest), _write_seconds)


def _read_seconds(word: str, lowest: float, highest: float) -> float:
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,20})?", word) or not lowest <= float(word) <= highest:
        raise ConfigError(f"{quote(word)} is not a number of seconds from {lowest:g} to {highest:g}")
    return float(word)


def _write_seconds(value: float) -> str:
    return str(int(value)) if value == math.floor(value) else repr(value)


def _read_flag(text: str) -> bool:
    word = one_word(text)
    if word not in ("true", "false", "1", "0"):
        raise ConfigError(f"{quote(word)} is none of true, false")
    return word in ("true", "1")


def _read_text(text: str) -> str:
    if not text:
        raise ConfigError("has no value")
    if text != text.strip(" "):
        raise ConfigError("begins or ends with a blank, which a section cannot write")
    return text


def _read_name(text: str) -> str:
    name = one_word(text)
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{quote(name)} is longer than {MAX_NAME_BYTES} bytes")
    if any(character in name for character in "/+#"):
        # The bridge's state is published to a topic of which the name is one level.
        raise ConfigError(f"{quote(name)} contains one of / + #, which cannot be in one level of a topic")
    return name


def _read_topic_name(text: str) -> str:
    check_topic(validate_name, _read_text(text))
    return text


def _read_start_type(text: str) -> str:
    if text == "manual":
        raise ConfigError('"manual" is not supported, nor is it by Mosquitto: automatic, lazy and once are')
    start_type: str = one_of("automatic", "lazy", "once").read(text)
    return start_type


def _read_ip_address(text: str) -> str:
    word = one_word(text)
    if not _is_ip_address(word):
        raise ConfigError(f"{quote(word)} is not an IPv4 or IPv6 address")
    return word


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_host_name(host: str) -> bool:
    labels = host.split(".")
    # A last label of digits is an IPv4 address gone wrong (RFC 1123 §2.1).
    return (
        len(host) <= 253
        and not labels[-1].isdecimal()
        and all(re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels)
    )


def _read_address(word: str) -> FarAddress:
    """HOST, HOST:PORT, or IPv6 as Mosquitto writes it, with a port, or in brackets, with or without."""
    host, colon, port = word.rpartition(":")
    if not colon or word.endswith("]"):
        host, port = word, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    if not _is_ip_address(host) and not _is_host_name(host):
        hint = "; IPv6 is written ADDRESS:PORT or [ADDRESS]:PORT" if ":" in host else ""
        raise ConfigError(f"{quote(word)} is not HOST or HOST:PORT{hint}")
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"{quote(word)}: {quote(port)} is not a port from 1 to 65535")
    return FarAddress(host, int(port))


def _read_addresses(text: str) -> tuple[FarAddress, ...]:
    words = [word for word in text.split(" ") if word]
    if not words:
        raise ConfigError("has no value")
    if len(words) > MAX_ADDRESSES:
        raise ConfigError(f"{len(words)} addresses are more than {MAX_ADDRESSES}")
    return tuple(map(_read_address, words))


def _write_addresses(addresses: tuple[FarAddress, ...]) -> str:
    return " ".join(map(str, addresses))


def _read_backoff(text: str) -> Backoff:
    words = [word for word in text.split(" ") if word]
    if not 1 <= len(words) <= 2:
        raise ConfigError("is one number of seconds, or two: the base and the cap")
    # Mosquitto's upper bounds. Its lower one is a second, which is long on a local network.
    base_s = _read_seconds(words[0], 0.01, 3_600)
    cap_s = _read_seconds(words[-1], 0.01, 7_200)
    if cap_s < base_s:
        raise ConfigError(f"the cap {words[-1]} is lower than the base {words[0]}")
    return Backoff(base_s, cap_s)


def _write_backoff(backoff: Backoff) -> str:
    base, cap = map(_write_seconds, backoff)
    return base if base == cap else f"{base} {cap}"


FLAG = ValueKind(_read_flag, lambda value: "true" if value else "false")
TEXT = ValueKind(_read_text, str, is_text=True)
NAME = ValueKind(_read_name, str, is_text=True)
TOPIC_NAME = ValueKind(_read_topic_name, str, is_text=True)
START_TYPE = ValueKind(_read_start_type, str)
IP_ADDRESS = ValueKind(_read_ip_address, str)
ADDRESSES = ValueKind(_read_addresses, _write_addresses)
BACKOFF = ValueKind(_read_backoff, _write_backoff)
